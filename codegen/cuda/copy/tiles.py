"""Tiles in shared memory: their layout, what reads them, and values staged there.

The innermost index is the one that is contiguous in memory. Rows of whole 16-byte units get an odd
number of them, so that eight consecutive rows lie in different banks. Of float64 that fragments are
read from, half a warp reads four rows of 32 bytes: then units are of these. Points of a tile beyond
the extents are zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from eqsat.graph.dtypes import DType
from eqsat.kernel.ir import Load
from eqsat.layout.needs import SIXTEEN

from ..place.access import run_along
from ..place.block import Block, Frame
from ..place.distribution import Factor
from ..place.operations import LANES
from ..place.placement import COMPUTED, INLINE, SHARED
from ..place.tile import TILE_UNIT, Point, Reader, Tile
from ..prelude.math import cast, held_type, literal, narrow, storage_type, widen
from .box_tile import BoxTile
from .window_tile import number_of_places, rows_conflict, shared_axes, window_tile

SHORTEST = 64  # bytes of rows that are parted, where single elements of them are read


def lay_out(
    block: Block,
    name: str,
    dtype: DType,
    order: Sequence[str],
    slots: int = 1,
    places: Mapping[str, int] | None = None,
    permuted: bool = False,
) -> Tile:
    """Allocate a tile and declare its pointer, which for a ring is that of the first slot; of some
    indices it has so many `places`. Rows are padded, if units are not `permuted`.
    """
    unit = max(LANES * dtype.itemsize if block.placement.matrices else 0, TILE_UNIT)
    extents = {i: _extent(block, i) for i in order} | dict(places or {})
    strides, stride = {}, 1
    row = "" if permuted else _row(block, name, order, extents)
    shortest = 0 if block.placement.matrices else SHORTEST
    for i in reversed(order):
        bytes_ = stride * dtype.itemsize
        if i == row and bytes_ % unit == 0 and bytes_ >= shortest:
            stride += 0 if bytes_ // unit % 2 else unit // dtype.itemsize
        strides[i] = stride
        stride *= extents[i]
    pointer = f"s_{block.names.of(name)}"
    tile = Tile(pointer, dtype, tuple(order), extents, strides, slots, permuted=permuted)
    offset = block.allocate(tile.size * slots * dtype.itemsize)
    kind = storage_type(dtype)
    declared = pointer if slots == 1 else f"{pointer}_ring"
    block.out.line(f"{kind}* const {declared} = reinterpret_cast<{kind}*>(shared + {offset});")
    return tile


def _row(block: Block, name: str, order: Sequence[str], extents: Mapping[str, int]) -> str:
    """The index that numbers rows which are read together, those of an operation's factor: of
    others the one next to the elements of a row.
    """
    *outer, inner = [i for i in order if extents[i] > 1] or [""]
    for m in block.placement.matrices.values():
        for one, free in ((m.left, m.rows), (m.right, m.columns)):
            if one == name:
                apart = (m.k,) if inner in free else free
                return next((i for i in reversed(outer) if i in apart), "")
    return outer[-1] if outer else ""


def _extent(block: Block, index: str) -> int:
    """Of a tile: what matrix operations take at once, whole."""
    step = block.matrix_steps.get(index, 1)
    return -(-block.distribution.padded(index) // step) * step


def tile_for(block: Block, load: Load, slots: int = 1) -> Tile:
    """The tile of a load, contiguous along the index that is so in memory, of several the one with
    the longest runs; where it has one point of an index, that is none of them.
    """
    buffer = block.kernel.buffer(load.access.buffer)
    strides = {atom: abs(c) for atom, c in load.access.address.terms if isinstance(atom, str)}
    runs = {i: run_along(load.access, i, block.axes[i].extent) for i in load.indices}
    order = sorted(
        block.ordered(load.indices),
        key=lambda i: (_extent(block, i) > 1, -strides.get(i, buffer.size + 1), runs[i]),
    )
    extents = {i: _extent(block, i) for i in order}
    axes = shared_axes(block, load, extents)
    places = number_of_places(axes, extents)
    beside = {i for axis in axes.values() for i in axis.names} - axes.keys()
    copied = [i for i in order if i not in beside]
    permuted = bool(axes) and rows_conflict(block, load, axes, extents, order[-1])
    tile = lay_out(block, load.name, buffer.dtype, copied, slots, places, permuted)
    return window_tile(tile, axes, order, extents) if axes else tile


def anywhere(block: Block, name: str) -> Reader:
    """A reader of a value at any point, not only this thread's own."""
    s = block.placement.statements.get(name)
    if block.placement.where[name] in (INLINE, SHARED, COMPUTED):
        return block.readers[name]
    if isinstance(s, Load) and not s.access.coordinates:
        return lambda point: fetch(block, s, point)
    return stage(block, name, block.ordered(block.placement.indices[name])).reader(
        block.placement.dtypes[name]
    )


def own_reader(block: Block, s: Load, tile: Tile) -> Reader:
    """A reader of a tile of 16-bit elements, by words where a thread's registers are neighbours."""
    plain = tile.reader(s.dtype)
    inner = tile.order[-1] if tile.order else ""
    rows = [tile.strides[i] for i in tile.order[:-1] if tile.extents[i] > 1]
    even = isinstance(tile, BoxTile) or not any(stride % 2 for stride in rows)
    paired = bool(inner) and even and block.distribution.vector(inner) % 2 == 0
    if tile.dtype.name not in SIXTEEN or not paired:
        return plain
    number = block.index("r", inner)

    def read(point: Point) -> str:
        if point.register.get(inner) != number:
            return plain(point)  # of other threads too
        first = replace(point, at={**point.at, inner: f"({point.at[inner]} - {number} % 2)"})
        word = f"*reinterpret_cast<const unsigned*>({tile.pointer} + {tile.offset(first)})"
        return cast(tile.dtype, s.dtype, widen(tile.dtype, f"half_of({word}, {number} % 2)"))

    return read


def fetch(block: Block, load: Load, point: Point, frame: Frame | None = None) -> str:
    """A load's value read from global memory at a point; zero outside the extents."""
    conditions = block.exists(load.access, point)
    value = block.memory_element([load.access], point, load.dtype)
    fill, zero = literal(load.dtype, load.fill), literal(load.dtype, 0)
    valid = " && ".join(block.valid(load.indices, point, frame))
    if conditions:
        value = f"({' && '.join(conditions)} ? {value} : {fill})"
    return f"({valid} ? {value} : {zero})" if valid else value


def stage(block: Block, name: str, order: Sequence[str]) -> Tile:
    """Write a value held in registers to shared memory, for reading at any point.

    This is how a value changes its distribution. Zero outside the extents.
    """
    out = block.out
    dtype, indices = block.placement.dtypes[name], block.placement.indices[name]
    copies = block.copies[name] = block.copies.get(name, 0) + 1
    again = str(copies) if copies > 1 else ""  # two products of one scope may take it
    tile = lay_out(block, f"{name}_staged{again}", dtype, order)
    if block.tiles_read:
        block.barrier()
    if any(tile.extents[i] > block.distribution.padded(i) for i in order):
        step = block.kernel.threads
        out.line(f"for (int e = threadIdx.x; e < {tile.size}; e += {step}) {tile.pointer}[e] = 0;")
        block.barrier()
    owner = owns(block, indices)
    if owner:
        out.line(f"if ({owner})")
    with out.block(), block.points(indices) as point:
        value = block.read(name, point)
        valid = " && ".join(block.valid(indices, point))
        if valid:
            value = f"({valid} ? {value} : {literal(dtype, 0)})"
        out.line(f"{tile.pointer}[{tile.offset(point)}] = {narrow(dtype, value)};")
    block.barrier()
    block.tiles_read = True
    return tile


def fitting(tile: Tile, width: int) -> int:
    """Elements of so many that lie together, aligned, wherever they begin along the last index."""
    pitches = [tile.extents[tile.order[-1]], *(tile.strides[i] for i in tile.order[:-1])]
    while any(pitch % width for pitch in pitches):
        width //= 2
    return width


def write_held(block: Block, tile: Tile, there: str, width: int, held: str) -> None:
    """Put what a register holds, so many elements, where a tile has its place."""
    if width > 1:
        kind = held_type(tile.dtype, width)
        block.out.line(f"*reinterpret_cast<{kind}*>({there}) = {held};")
    else:
        block.out.line(f"*({there}) = ({storage_type(tile.dtype)}){held};")


def inside(tile: Tile, frame: Frame, point: Point, indices: Sequence[str]) -> list[str]:
    """Conditions for a point to lie in the tile along some indices."""
    extents, covered = tile.extents, frame.distribution.padded
    return [f"{point.local(i)} < {extents[i]}" for i in indices if covered(i) > extents[i]]


def if_inside(
    block: Block, tile: Tile, frame: Frame, point: Point, indices: Sequence[str] | None = None
) -> None:
    """The condition for a point to lie in the tile, along some indices or all, and to be this
    thread's to copy.
    """
    conditions = inside(tile, frame, point, tile.order if indices is None else indices)
    conditions += [f"threadIdx.x {f}" for f in repeated(frame, tile)]
    if conditions:
        block.out.line(f"if ({' && '.join(conditions)})")


def repeated(frame: Frame, tile: Tile) -> list[str]:
    """Conditions that leave one thread of those that would copy the same elements."""
    return [f"/ {f.stride} % {f.count} == 0" for f in frame.distribution.unused(tile.order)]


def owns(block: Block, indices: Sequence[str]) -> str:
    """The condition that picks one of the threads that hold the same elements; empty for all."""
    return owners(block, block.distribution.unused(indices))


def owners(block: Block, factors: Sequence[Factor]) -> str:
    """The condition that picks the threads whose coordinates in these factors are 0."""
    conditions = []
    for f in factors:
        thread = block.thread if block.kernel.cluster > 1 else "threadIdx.x"
        text = thread if f.stride == 1 else f"{thread} / {f.stride}"
        last = f.stride * f.count == block.kernel.tile_threads
        conditions.append(f"{text} == 0" if last else f"{text} % {f.count} == 0")
    return " && ".join(conditions)
