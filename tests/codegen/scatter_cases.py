"""Kernels that combine values at computed positions, for every target."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from kernel_building import Body, Sample, at

from eqsat.graph.dtypes import DType, as_dtype, float32, int32, neutral
from eqsat.graph.index import const, var
from eqsat.kernel.ir import Access, Axis, Buffer, Coordinate, Kernel, Literal, Store

COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def segments(
    points: int,
    width: int,
    count: int,
    tiles: tuple[int, int],
    monoid: str = "sum",
    dtype: DType = float32,
    same: bool = False,
) -> Sample:
    """y[v[i], d] monoid= x[i, d], some v outside of y; `same`: all v are one. Float sums are of
    whole numbers, so that their order does not show. y starts as an input would: at the identity.
    """
    x = Buffer("x", (points, width), dtype, "input")
    v = Buffer("v", (points,), int32, "input")
    y = Buffer("y", (count, width), dtype, "input")
    body = Body(dtype)
    body.load("a", "i d", at(x, "i", "d"))
    body.load("place", "i", at(v, "i"), dtype=int32)
    address = var("d") if width > 1 else const(0)
    where = Access("y", address, (), (Coordinate("place", width, count),))
    grid = Axis("i", points, tiles[0]), Axis("d", width, tiles[1])
    phase = body.phase(Store(where, "a", monoid))
    random = np.random.default_rng(5)
    values = random.integers(-9, 9, x.shape).astype(dtype.numpy)
    if dtype.itemsize == 8 and dtype.kind == "int":
        values *= 1 << 33  # and some odd ones: words that carry, up and down
        values[::2] += random.integers(-(1 << 32), 1 << 32, values[::2].shape)
    if dtype.kind == "float" and points > 4:
        values[3] = np.nan
    if dtype.kind == "float" and monoid != "sum" and points > 13:
        values[10:14] = np.array([np.inf, -np.inf, -0.0, -np.nan])[:, np.newaxis]
    ids = np.full(points, count // 2) if same else random.integers(-2, count + 2, points)
    start = neutral(monoid, dtype)
    answer = np.full(y.shape, start, dtype.numpy)
    kept = (ids >= 0) & (ids < count)
    with np.errstate(invalid="ignore"):
        COMBINE[monoid].at(answer, ids[kept], values[kept])
    inputs = {"x": values, "v": ids.astype(np.int32), "y": np.full(y.shape, start, dtype.numpy)}
    kernel = Kernel("segments", (v, x, y), grid, (), (phase,))
    return Sample(kernel, inputs, {"y": answer})


def counted(points: int, width: int, count: int, tiles: tuple[int, int]) -> Sample:
    """segments, and how many points each has: c[v[i]] += 1 in the same kernel."""
    sample = segments(points, width, count, tiles)
    (phase,) = sample.kernel.phases
    c = Buffer("c", (count,), float32, "input")
    one = Literal("one", float32, 1.0)
    where = Access("c", const(0), (), (Coordinate("place", 1, count),))
    stores = (*phase.stores, Store(where, "one", "sum"))
    phase = replace(phase, body=(*phase.body, one), stores=stores)
    kernel = replace(sample.kernel, buffers=(*sample.kernel.buffers, c), phases=(phase,))
    ids = sample.inputs["v"]
    found = np.bincount(ids[(ids >= 0) & (ids < count)], minlength=count).astype(np.float32)
    inputs = {**sample.inputs, "c": np.zeros(count, np.float32)}
    return Sample(kernel, inputs, {**sample.expected, "c": found})


def scatter_samples() -> Iterator[tuple[str, Sample]]:
    """Sums of each dtype and extremes, at sizes that tiles divide and others."""
    for dtype in ("float32", "float64", "int32", "int64"):
        name = f"sum-{dtype}"
        yield name, segments(70, 12, 5, (32, 12), dtype=as_dtype(dtype))
        yield f"{name}-same", segments(129, 1, 3, (64, 1), dtype=as_dtype(dtype), same=True)
    for dtype in ("float32", "float64", "int32", "int64"):
        for monoid in ("max", "min"):
            yield f"{monoid}-{dtype}", segments(67, 3, 7, (16, 3), monoid, as_dtype(dtype))
    yield "few", segments(1, 1, 1, (1, 1))
    yield "wide", segments(40, 64, 9, (8, 32))
    yield "counts", counted(200, 64, 9, (40, 64))
    yield "many", segments(200, 12, 40, (32, 12))


def kept(sample: Sample, *buffers: str) -> Sample:
    """The same, combined first in shared memory by groups that stay: in these buffers, or all."""
    (phase,) = sample.kernel.phases
    stores = tuple(
        replace(store, memory="shared") if store.access.buffer in buffers or not buffers else store
        for store in phase.stores
    )
    kernel = replace(sample.kernel, phases=(replace(phase, stores=stores),), resident=2)
    return replace(sample, kernel=kernel)
