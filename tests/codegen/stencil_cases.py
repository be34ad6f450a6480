"""Kernels whose threads have points side by side: neighbours, coordinates, runs of a scan."""

from collections.abc import Iterator
from itertools import product

import numpy as np
from cuda_cases import Case, case
from kernel_building import Body, Sample, at, buffers, normal

from eqsat.graph.index import Affine, mod
from eqsat.kernel.ir import Axis, Guard, Kernel, Scan, Store

FIVE = [(0, 1), (1, 0), (1, 1), (1, 2), (2, 1)]
DOWN = [(0, 0), (1, 0), (4, 0)]
CUBE = list(product(range(3), repeat=3))


def moved(name: str, by: int) -> Affine:
    return Affine(((name, 1),), by)


def stencil(
    shape: tuple[int, ...],
    tile: tuple[int, ...],
    places: list[tuple[int, ...]],
    beyond: float | None = None,
) -> Sample:
    """y[i, ...] = z[i, ...] + sum_n n x[i + p_n, ...] of places p in each direction; where x ends
    before y does it is `beyond`, on both sides as far, if that is a number.
    """
    names = "ijk"[: len(shape)]
    reach = tuple(max(place[axis] for place in places) for axis in range(len(shape)))
    around = tuple(0 if beyond is None else far // 2 for far in reach)
    out = tuple(n - f + 2 * a for n, f, a in zip(shape, reach, around, strict=True))
    x, z, y = buffers(x=shape, z=out, y=out)
    b = Body()
    total = b.load("total", " ".join(names), at(z, *names))
    for n, place in enumerate(places):
        steps = [by - before for by, before in zip(place, around, strict=True)]
        where = [moved(name, by) for name, by in zip(names, steps, strict=True)]
        inside = tuple(
            Guard(expression, 0, size)
            for expression, size, own in zip(where, shape, out, strict=True)
            if expression.constant < 0 or expression.constant + own > size
        )
        b.load(f"x{n}", " ".join(names), at(x, *where, guards=inside), fill=beyond or 0.0)
        b.literal(f"n{n}", float(n))
        b.map(f"p{n}", " ".join(names), "mul", f"x{n}", f"n{n}")
        total = b.map(f"s{n}", " ".join(names), "add", total, f"p{n}")
    first, other = normal(shape, out)
    answer, whole = other.astype("d"), first.astype("d")
    whole = np.pad(whole, [(a, a) for a in around], constant_values=beyond or 0.0)
    for n, place in enumerate(places):
        part = tuple(slice(by, by + size) for by, size in zip(place, out, strict=True))
        answer = answer + n * whole[part]
    axes = tuple(Axis(n, size, t) for n, size, t in zip(names, out, tile, strict=True))
    kernel = Kernel("stencil", (x, z, y), axes, (), (b.phase(Store(at(y, *names), total)),))
    return Sample(kernel, {"x": first, "z": other}, {"y": answer}, 1e-4)


def torus(shape: tuple[int, ...], tile: tuple[int, ...], places: list[tuple[int, ...]]) -> Sample:
    """y[i, ...] = sum_n n x[i + p_n, ...], the first beyond the last, of places from -1 on"""
    names = "ijk"[: len(shape)]
    extents = dict(zip(names, shape, strict=True))
    x, y = buffers(x=shape, y=shape)
    b = Body()
    total = b.literal("total", 0.0)
    (first,) = normal(shape)
    answer = np.zeros(shape)
    for n, place in enumerate(places):
        steps = tuple(by - 1 for by in place)
        where = [
            mod(moved(name, by), extents[name], extents)
            for name, by in zip(names, steps, strict=True)
        ]
        b.load(f"x{n}", " ".join(names), at(x, *where))
        b.literal(f"n{n}", float(n))
        b.map(f"p{n}", " ".join(names), "mul", f"x{n}", f"n{n}")
        total = b.map(f"s{n}", " ".join(names), "add", total, f"p{n}")
        back = tuple(-by for by in steps)
        answer += n * np.roll(first.astype("d"), back, tuple(range(len(shape))))
    axes = tuple(Axis(n, size, t) for n, size, t in zip(names, shape, tile, strict=True))
    kernel = Kernel("torus", (x, y), axes, (), (b.phase(Store(at(y, *names), total)),))
    return Sample(kernel, {"x": first}, {"y": answer}, 1e-4)


def directions(m: int, n: int, tile: int) -> Sample:
    """y[i] = sum_c x[i, c] d[c] / sqrt(sum_c x[i, c]^2)"""
    x, d, y = buffers(x=(m, n), d=(n,), y=(m,))
    b = Body()
    b.load("a", "i c", at(x, "i", "c"))
    b.load("w", "c", at(d, "c"))
    b.reduce("s", "i", "sum", "c", b.map("q", "i c", "mul", "a", "a"))
    b.contract("p", "i", "c", "a", "w")
    b.map("r", "i", "div", "p", b.map("root", "i", "sqrt", "s"))
    first, other = normal((m, n), (n,))
    wide = first.astype("d")
    answer = wide @ other.astype("d") / np.sqrt((wide**2).sum(-1))
    axes, inner = (Axis("i", m, tile),), (Axis("c", n, n),)
    kernel = Kernel("directions", (x, d, y), axes, inner, (b.phase(Store(at(y, "i"), "r")),))
    return Sample(kernel, {"x": first, "d": other}, {"y": answer}, 1e-4)


def scanned_columns(m: int, n: int, tile: int) -> Sample:
    """y[i, j] = sum_{k <= i} x[k, j], by tiles of whole columns"""
    x, y = buffers(x=(m, n), y=(m, n))
    b = Body()
    b.load("a", "i j", at(x, "i", "j"))
    b.add(Scan, "s", "i j", "sum", "i", "a")
    (first,) = normal((m, n))
    answer = first.astype("d").cumsum(0)
    axes, inner = (Axis("j", n, tile),), (Axis("i", m, m),)
    phases = (b.phase(Store(at(y, "i", "j"), "s")),)
    return Sample(Kernel("columns", (x, y), axes, inner, phases), {"x": first}, {"y": answer}, 1e-4)


def stencil_cases() -> Iterator[Case]:
    for shape, tile, places in (
        ((19, 37), (4, 32), FIVE),
        ((9, 70), (8, 64), FIVE),
        ((34, 66), (8, 64), DOWN),
        ((7, 12, 34), (2, 4, 32), CUBE),
        ((6, 6, 20), (4, 2, 32), CUBE),
    ):
        label = "x".join(map(str, shape))
        yield case(f"stencil-{label}-{len(places)}", stencil(shape, tile, places), 32)
    for shape, tile, places, beyond in (
        ((19, 37), (4, 32), FIVE, 0.0),
        ((20, 64), (8, 64), FIVE, 0.5),
        ((35, 66), (8, 64), DOWN, 0.0),
        ((7, 12, 34), (2, 4, 32), CUBE, -1.0),
        ((3, 4, 32), (2, 2, 32), CUBE, 0.0),
    ):
        label = "x".join(map(str, shape))
        sample = stencil(shape, tile, places, beyond)
        yield case(f"stencil-{label}-{len(places)}-beyond-{beyond}", sample, 32)
    for shape, tile, places in (
        ((16, 64), (4, 32), FIVE),
        ((21, 33), (8, 32), FIVE),
        ((4, 6, 32), (2, 4, 32), CUBE),
    ):
        label = "x".join(map(str, shape))
        yield case(f"torus-{label}-{len(places)}", torus(shape, tile, places), 32)
    for m, n in ((70, 3), (64, 5), (33, 7), (40, 4), (64, 24)):
        yield case(f"directions-{m}x{n}", directions(m, n, 64), 64)
    for m, n in ((96, 20), (33, 16), (5, 40)):
        yield case(f"columns-{m}x{n}", scanned_columns(m, n, 8), 64)
