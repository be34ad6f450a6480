"""Boxes of the tensor memory accelerator against the accesses that they stand for."""

from itertools import product

import numpy as np
import pytest
from cuda_async_emulation import tensor_map
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsat.codegen.cuda.place.box import TensorBox, is_copied_often, tensor_box
from eqsat.codegen.cuda.prelude.asynchronous import MOST_DIMENSIONS
from eqsat.graph import index
from eqsat.graph.dtypes import bfloat16, float32, int8, int32
from eqsat.graph.index import Affine, evaluate
from eqsat.kernel.ir import Access, Axis, Buffer, Coordinate, Guard, Load

INNER = "c"


def read_box(box: TensorBox, memory: np.ndarray, at: dict[str, int]) -> np.ndarray:
    """What copies of the box, its tile beginning at `at`, leave: an axis for each index."""
    extents = [box.extents[i] for i in box.order]
    sizes = [extents[-1], *(d.box for d in box.dimensions[1:])]
    starts = [int(evaluate(d.coordinate, at)) for d in box.dimensions]
    assert starts[0] * box.dtype.itemsize % 16 == 0, "the device would end the kernel"
    runs = [_read_once(box, memory, sizes, starts)]
    for _ in range(1, box.runs):
        starts[-1] += box.apart
        runs.append(_read_once(box, memory, sizes, starts))
    found = np.stack(runs, axis=-1).reshape([extents[-1], *reversed(extents[:-1])])
    return np.moveaxis(found, 0, -1).transpose(*reversed(range(len(extents) - 1)), -1)


def _read_once(
    box: TensorBox, memory: np.ndarray, sizes: list[int], starts: list[int]
) -> np.ndarray:
    found = np.zeros(sizes, memory.dtype)
    address, exists = np.full(sizes, box.offset), np.ones(sizes, bool)
    for d, start, grid in zip(box.dimensions, starts, np.indices(sizes), strict=True):
        place = start + grid * d.step
        exists &= (place >= 0) & (place < d.extent)
        address += place * d.stride
    found[exists] = memory[address[exists]]
    return found


def read_access(
    load: Load, memory: np.ndarray, at: dict[str, int], extents: dict[str, int], order: list[str]
) -> np.ndarray:
    """The access at every point of the tile, zero where a guard fails."""
    grids = np.indices([extents[i] for i in order])
    values = {**at, **{i: at[i] + grid for i, grid in zip(order, grids, strict=True)}}
    exists = np.ones(grids.shape[1:], bool)
    for guard in load.access.guards:
        value = evaluate(guard.expression, values)
        exists &= (guard.lower <= value) & (value < guard.upper)
    address = np.where(exists, evaluate(load.access.address, values), 0)
    return np.where(exists, memory[np.clip(address, 0, memory.size - 1)], 0)


def assert_same(load: Load, buffer: Buffer, axes, points, summed, box: TensorBox) -> None:
    """Equal wherever the tile has points, at every tile; zero in what a sum would add wrongly."""
    memory = np.arange(1, buffer.size + 1).astype(np.float64)
    tensor_map(box, np.zeros(buffer.size, box.dtype.numpy))  # as legal as the driver wants it
    order = list(box.order)
    for first in product(*(range(0, axes[i].extent, axes[i].tile) for i in axes)):
        at = dict(zip(axes, first, strict=True))
        valid = {i: min(points[i], axes[i].tile, axes[i].extent - at[i]) for i in order}
        found = read_box(box, memory, at)
        wanted = read_access(load, memory, at, valid, order)
        np.testing.assert_array_equal(found[tuple(slice(valid[i]) for i in order)], wanted)
        for axis, i in enumerate(order):
            if i in summed:
                beyond = [slice(valid[j]) for j in order]
                beyond[axis] = slice(valid[i], None)
                assert not found[tuple(beyond)].any(), f"padding of {i} is not zero"


@st.composite
def loads(draw):
    """A load from a buffer of up to three axes before the inner one, some by sums of two indices
    behind a guard; tiles of one point, part of an axis, all of it, or more.
    """
    dtype = draw(st.sampled_from([bfloat16, float32, int8]))
    unit = 16 // dtype.itemsize
    names = iter("pqrstuvw")
    axes: dict[str, Axis] = {}
    parts: list[Affine] = []
    guards, shape = [], []
    for _ in range(draw(st.integers(0, 3))):
        extent = draw(st.integers(1, 6))
        shape.append(extent)
        i = next(names)
        if draw(st.booleans()):
            axes[i] = Axis(i, extent, draw(st.integers(1, extent)))
            parts.append(index.var(i))
            continue
        j, step = next(names), draw(st.integers(1, 3))
        shift = index.const(draw(st.integers(-2, 2)))
        axes[i] = Axis(i, draw(st.integers(1, 6)), draw(st.integers(1, 4)))
        axes[j] = Axis(j, draw(st.integers(1, 3)), 1)
        at = index.add(index.scale(index.var(i), step), index.var(j), shift)
        parts.append(at)
        guards.append(Guard(at, 0, extent))
    inner = draw(st.integers(1, 5)) * unit + draw(st.sampled_from([0, 0, 1]))
    shape.append(inner)
    extent = draw(st.integers(1, inner)) if draw(st.booleans()) else inner
    axes[INNER] = Axis(INNER, extent, draw(st.sampled_from([extent, 16, 2 * unit, 64])))
    parts.append(index.var(INNER))
    address = index.const(draw(st.sampled_from([0, 0, unit, 1])))
    buffer = Buffer("x", (*shape[:-1], inner), dtype, "input")
    size = buffer.size
    for part, n in zip(parts, buffer.shape, strict=True):
        size //= n
        address = index.add(address, index.scale(part, size))
    spare = Buffer("x", (buffer.size + unit,), dtype, "input")
    order = draw(st.permutations(list(axes)))
    load = Load("a", dtype, tuple(order), Access("x", address, tuple(guards)), 0, "shared")
    points = {i: min(axis.tile, axis.extent) for i, axis in axes.items()}
    points[INNER] = -(-points[INNER] // 32) * 32
    for i in order:
        if points[i] > 1 and i != INNER and draw(st.booleans()):
            points[i] = -(-points[i] // 8) * 8
    return load, spare, axes, points, draw(st.sets(st.sampled_from(list(axes))))


@settings(max_examples=400, deadline=None, derandomize=True)
@given(loads())
def test_a_box_holds_what_the_access_reads(made):
    load, buffer, axes, points, summed = made
    box = tensor_box(load, buffer, axes, points, INNER, summed)
    if box is not None:
        assert_same(load, buffer, axes, points, summed, box)


def image(height: int, batch: int, channels: int = 16, step: int = 1, **more):
    """A load of x[n, step p + r - 1, c], row p for each tile and all of c."""
    row = index.add(index.scale(index.var("p"), step), index.var("r"), index.const(-1))
    address = index.add(
        index.scale(index.var("n"), height * channels), index.scale(row, channels), index.var("c")
    )
    guards = (Guard(row, 0, height),)
    buffer = Buffer("x", (batch, height, channels), bfloat16, "input")
    rows = -(-height // step)
    axes = {
        "n": Axis("n", batch, 1),
        "p": Axis("p", rows, more.get("tile", 1)),
        "r": Axis("r", 3, 1),
        "c": Axis("c", channels, channels),
    }
    load = Load("a", bfloat16, tuple(axes), Access("x", address, guards), 0, "shared")
    points = {i: min(axis.tile, axis.extent) for i, axis in axes.items()}
    return load, buffer, axes, points


def test_a_guarded_row_is_absent_and_not_the_next_images():
    load, buffer, axes, points = image(height=4, batch=3)
    box = tensor_box(load, buffer, axes, points, "c", {"r", "c"})
    assert box is not None and len(box.dimensions) == 3
    assert_same(load, buffer, axes, points, {"r", "c"}, box)


def test_padding_about_one_row_is_absent():
    load, buffer, axes, points = image(height=1, batch=1)
    box = tensor_box(load, buffer, axes, points, "c", {"r", "c"})
    assert box is not None
    assert_same(load, buffer, axes, points, {"r", "c"}, box)


def test_a_step_skips_rows():
    load, buffer, axes, points = image(height=9, batch=2, step=2, tile=4)
    box = tensor_box(load, buffer, axes, points, "c", {"r", "c"})
    assert box is not None and [d.step for d in box.dimensions] == [1, 2, 1]
    assert_same(load, buffer, axes, points, {"r", "c"}, box)


def test_an_element_is_copied_often_along_other_axes_and_by_windows():
    load, buffer, axes, points = image(height=6, batch=2)  # three windows hold an inner row
    box = tensor_box(load, buffer, axes, points, "c", {"r", "c"})
    assert box is not None and not is_copied_often(box, load, axes)
    for extent, tile, often in ((12, 4, True), (12, 12, False), (24, 12, False), (36, 12, True)):
        assert is_copied_often(box, load, {**axes, "o": Axis("o", extent, tile)}) == often


def test_a_tensor_ends_where_the_access_does():
    """A guard wider than what indices reach: padding of the tile must not read past the buffer."""
    row = index.add(index.var("i"), index.const(2))
    address = index.add(index.scale(row, 16), index.var("c"))
    buffer = Buffer("x", (12, 16), bfloat16, "input")
    axes = {"i": Axis("i", 10, 10), "c": Axis("c", 16, 16)}
    load = Load("a", bfloat16, ("i", "c"), Access("x", address, (Guard(row, 0, 99),)), 0, "shared")
    points = {"i": 64, "c": 16}
    box = tensor_box(load, buffer, axes, points, "c", {"c"})
    assert box is not None and box.dimensions[1].extent == 12
    assert_same(load, buffer, axes, points, {"c"}, box)


def rows(stride: int, constant: int = 0, guards=(), dtype=bfloat16, width: int = 32, **more):
    """A load of x[stride i + c + constant]."""
    address = index.add(index.scale(index.var("i"), stride), index.var("c"), index.const(constant))
    access = Access("x", address, guards, more.pop("coordinates", ()))
    load = Load("a", more.pop("result", dtype), ("i", "c"), access, more.pop("fill", 0), "shared")
    buffer = Buffer("x", (1 << 14,), dtype, "input")
    axes = {"i": Axis("i", 40, more.pop("tile", 8)), "c": Axis("c", width, width)}
    points = {"i": 8, "c": -(-width // 16) * 16}
    return tensor_box(load, buffer, axes, points, "c", set())


def test_what_the_accelerator_cannot_copy_is_no_box():
    assert rows(32) is not None and rows(40) is not None and rows(40, 8) is not None
    assert rows(36) is None and rows(33) is None  # bytes between rows: no multiple of 16
    assert rows(32, 4) is None and rows(32, -8) is None  # where the tensor begins
    assert rows(-32, 4096) is None
    assert rows(32, fill=1) is None and rows(32, result=float32) is None
    assert rows(32, coordinates=(Coordinate("row", 32, 9),)) is None
    assert rows(64, dtype=int8, width=40) is None and rows(32, dtype=int8) is not None
    assert rows(1 << 39) is None  # bytes between rows: 40 bits
    assert rows(4, width=4, dtype=int32) is not None and rows(12, dtype=int32) is not None
    transposed = index.add(index.var("i"), index.scale(index.var("c"), 64))
    load = Load("a", bfloat16, ("i", "c"), Access("x", transposed), 0, "shared")
    axes = {"i": Axis("i", 40, 8), "c": Axis("c", 32, 32)}
    assert tensor_box(load, Buffer("x", (4096,), bfloat16, "input"), axes, {"i": 8, "c": 32},
                      "c", set()) is None  # fmt: skip
    guard = (Guard(index.scale(index.var("i"), -1), -39, 1),)
    assert rows(32, guards=guard) is None
    both = (Guard(index.add(index.scale(index.var("i"), 32), index.var("c")), 0, 999),)
    assert rows(32, guards=both) is None


def test_parts_of_a_wide_tile_begin_at_whole_lines():
    axes = {"c": Axis("c", 80, 80)}
    load = Load("a", bfloat16, ("c",), Access("x", index.var("c")), 0, "shared")
    buffer = Buffer("x", (80,), bfloat16, "input")
    assert tensor_box(load, buffer, axes, {"c": 80}, "c", set()) is None  # five parts of 32 bytes
    box = tensor_box(load, buffer, axes, {"c": 512}, "c", set())
    assert box is not None and (box.blocks, box.row_bytes) == (8, 128)
    box = tensor_box(load, buffer, axes, {"c": 128}, "c", set())  # one row is not swizzled
    assert box is not None and (box.blocks, box.row_bytes, box.swizzled_bytes) == (1, 256, 16)


def test_most_dimensions():
    shape = (2, 3, 2, 3, 2, 16)
    names = "abdefc"
    buffer = Buffer("x", shape, bfloat16, "input")
    address, size = index.const(0), buffer.size
    for i, n in zip(names, shape, strict=True):
        size //= n
        address = index.add(address, index.scale(index.var(i), size))
    load = Load("a", bfloat16, tuple(names), Access("x", address), 0, "shared")
    ones = {i: Axis(i, n, 1) for i, n in zip(names[:-1], shape[:-1], strict=True)}
    axes = {**ones, "c": Axis("c", 16, 16)}
    points = {i: min(a.tile, a.extent) for i, a in axes.items()}
    box = tensor_box(load, buffer, axes, points, "c", set())
    assert box is not None and len(box.dimensions) == 2  # those of one point are joined
    assert_same(load, buffer, axes, points, set(), box)
    whole = {i: Axis(i, n, n) for i, n in zip(names, shape, strict=True)}
    assert len(names) > MOST_DIMENSIONS
    assert tensor_box(load, buffer, whole, dict(zip(names, shape, strict=True)), "c", set()) is None


@pytest.mark.parametrize("apart", [False, True])
def test_terms_of_values_are_copied_one_by_one_where_dimensions_run_out(apart: bool) -> None:
    """x[t, n, d + r - 1, p, q, c] of three terms: these lie along n where they follow it."""
    sizes = {"t": 3, "n": 4, "d": 3, "p": 2, "q": 5, "c": 32}
    strides, stride = {}, 1
    for name in reversed(sizes):
        strides[name], stride = stride, stride * sizes[name]
    strides["t"] += 8 * apart  # elements between terms
    row = index.add(index.var("d"), index.var("r"), index.const(-1))
    address = index.add(
        index.scale(row, strides["d"]),
        *(index.scale(index.var(i), n) for i, n in strides.items() if i != "d"),
    )
    tiles = {**sizes, "n": 2, "d": 2, "q": 4}
    axes = {i: Axis(i, n, tiles[i]) for i, n in sizes.items()} | {"r": Axis("r", 3, 1)}
    access = Access("x", address, (Guard(row, 0, 3),))
    load = Load("a", bfloat16, tuple(axes), access, 0, "shared")
    buffer = Buffer("x", (stride + 16,), bfloat16, "input")
    points = {i: min(axis.tile, axis.extent) for i, axis in axes.items()}
    box = tensor_box(load, buffer, axes, points, "c", {"r", "c", "t"}, outer="t")
    if apart:
        assert box is None
        return
    assert box is not None and len(box.dimensions) == MOST_DIMENSIONS and box.runs == 3
    assert_same(load, buffer, axes, points, {"r", "c"}, box)


@pytest.mark.parametrize("tile", [1, 2])
def test_a_quotient_of_an_index_is_a_dimension_where_it_is_one_number_for_a_tile(tile: int) -> None:
    """x[n, h // 4, k, c]: four heads of a query read one of the keys."""
    heads = index.floordiv(index.var("h"), 4)
    parts = ((index.var("n"), 2 * 8 * 16), (heads, 8 * 16), (index.var("k"), 16))
    address = index.add(*(index.scale(part, size) for part, size in parts), index.var("c"))
    buffer = Buffer("x", (3, 2, 8, 16), bfloat16, "input")
    load = Load("a", bfloat16, ("n", "h", "k", "c"), Access("x", address), 0, "shared")
    axes = {i: Axis(i, n, t) for i, n, t in (("n", 3, 1), ("h", 8, tile), ("k", 8, 8))}
    axes["c"] = Axis("c", 16, 16)
    points = {i: axis.tile for i, axis in axes.items()}
    box = tensor_box(load, buffer, axes, points, "c", {"c"})
    assert (box is None) == (tile > 1)
    if box is not None:
        assert_same(load, buffer, axes, points, {"c"}, box)


@pytest.mark.parametrize(("tile", "shift"), [(1, 0), (4, 0), (8, 0), (16, 0), (64, 0), (16, 1)])
def test_a_box_begins_at_whole_units_of_its_rows(tile: int, shift: int) -> None:
    """The device ends a kernel whose copy begins elsewhere, whatever the tensor map allows."""
    buffer = Buffer("x", (256, 64), bfloat16, "input")
    axes = {"r": Axis("r", 256, 64), INNER: Axis(INNER, 64, tile)}
    column = index.sub(index.var(INNER), index.const(shift))
    guards = (Guard(column, 0, 64),) if shift else ()
    address = index.add(index.scale(index.var("r"), 64), column)
    load = Load("v", bfloat16, ("r", INNER), Access("x", address, guards))
    found = tensor_box(load, buffer, axes, {"r": 64, INNER: 64}, INNER, ())
    assert (found is not None) == (tile * 2 % 16 == 0 and not shift)
