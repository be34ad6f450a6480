"""Tiles in shared memory: their layout, the block's copies into them, and values staged there.

The innermost index is the one that is contiguous in memory. Rows of whole 16-byte units get an odd
number of them, so that eight consecutive rows lie in different banks. Of float64 that fragments are
read from, half a warp reads four rows of 32 bytes: then units are of these. Points of a tile beyond
the extents are zero.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import prod

from eqsat.codegen.cuda_access import run_along, vector_width
from eqsat.codegen.cuda_block import TILE_UNIT, Block, Frame, Point, Reader, Tile
from eqsat.codegen.cuda_distribution import Factor, cover
from eqsat.codegen.cuda_math import literal, narrow, storage_type
from eqsat.codegen.cuda_operations import LANES
from eqsat.codegen.cuda_placement import COMPUTED, INLINE, SHARED
from eqsat.graph.dtypes import DType
from eqsat.kernel import Load

WORD = 4  # bytes: the least that cp.async copies
SHORTEST = 64  # bytes of rows that are parted, where single elements of them are read
AHEAD = 64  # shorter elements that a thread reads before it writes the first


def lay_out(block: Block, name: str, dtype: DType, order: Sequence[str], slots: int = 1) -> Tile:
    """Allocate a tile and declare its pointer, which for a ring is that of the first slot."""
    extents = {}
    unit = max(LANES * dtype.itemsize if block.placement.matrices else 0, TILE_UNIT)
    for i in order:
        step = block.matrix_steps.get(i, 1)
        extents[i] = -(-block.distribution.padded(i) // step) * step
    strides, stride = {}, 1
    rows = [i for i in order if extents[i] > 1]
    shortest = 0 if block.placement.matrices else SHORTEST
    for i in reversed(order):
        strides[i] = stride
        stride *= extents[i]
        bytes_ = stride * dtype.itemsize
        if i in rows[1:][-1:] and bytes_ % unit == 0 and bytes_ >= shortest:
            stride += 0 if bytes_ // unit % 2 else unit // dtype.itemsize
    pointer = f"s_{block.names.of(name)}"
    tile = Tile(pointer, dtype, tuple(order), extents, strides, slots)
    offset = block.allocate(tile.size * slots * dtype.itemsize)
    kind = storage_type(dtype)
    declared = pointer if slots == 1 else f"{pointer}_ring"
    block.out.line(f"{kind}* const {declared} = reinterpret_cast<{kind}*>(shared + {offset});")
    return tile


def tile_for(block: Block, load: Load, slots: int = 1) -> Tile:
    """The tile of a load, contiguous along the index that is so in memory, of several the one with
    the longest runs.
    """
    buffer = block.kernel.buffer(load.access.buffer)
    strides = {atom: abs(c) for atom, c in load.access.address.terms if isinstance(atom, str)}
    runs = {i: run_along(load.access, i, block.axes[i].extent) for i in load.indices}
    order = sorted(
        block.ordered(load.indices), key=lambda i: (-strides.get(i, buffer.size + 1), runs[i])
    )
    return lay_out(block, load.name, buffer.dtype, order, slots)


def copy_width(block: Block, load: Load, tile: Tile) -> int:
    """Elements that one thread copies at a time."""
    if not tile.order:
        return 1
    inner, buffer = tile.order[-1], block.kernel.buffer(load.access.buffer)
    indices = block.placement.indices
    width = vector_width(load.access, inner, buffer, block.axes, indices)
    pitches = [tile.extents[inner], *(tile.strides[i] for i in tile.order[:-1])]
    while any(pitch % width for pitch in pitches):
        width //= 2
    return width


def can_copy_async(block: Block, load: Load, tile: Tile) -> bool:
    """Whether cp.async serves: known addresses, a word or more at a time, absent means zero."""
    bytes_ = copy_width(block, load, tile) * tile.dtype.itemsize
    return not load.access.coordinates and not load.fill and bytes_ >= WORD


def copy(
    block: Block, load: Load, tile: Tile, origin: Mapping[str, str], target: str, asynchronous: bool
) -> None:
    """The whole block copies the tile at `origin` to `target`; the caller sees to barriers."""
    width = copy_width(block, load, tile)
    order = [(i, tile.extents[i]) for i in tile.order]
    frame = Frame(cover(order, width, block.kernel.threads), origin, "copy_")
    readers = dict(block.readers)
    block.readers.update({c.value: anywhere(block, c.value) for c in load.access.coordinates})
    with block.out.block():
        block.define_bases(frame, tile.order)
        steps = {tile.order[-1]: width} if tile.order else {}
        if not asynchronous and width == 1 and tile.dtype.itemsize < WORD:
            _copy_words(block, load, tile, frame, target)
        else:
            with block.points(tile.order, frame, steps) as point:
                _if_inside(block, tile, frame, point)
                with block.out.block():
                    _copy_vector(block, load, tile, frame, point, target, width, asynchronous)
    block.readers = readers
    block.tiles_written = True


def _copy_words(block: Block, load: Load, tile: Tile, frame: Frame, target: str) -> None:
    """Copy elements that are too short for a copy that runs on: a thread reads many of them before
    it waits for the first.
    """
    inner = _together(frame, tile)
    count = prod(frame.distribution.registers(i) for i in inner)
    kind, out = storage_type(tile.dtype), block.out
    with block.points([i for i in tile.order if i not in inner], frame) as around:
        out.line(f"int ahead[{count}] = {{}};")
        for is_read in (True, False):
            with block.points(inner, frame) as within:
                at, register = {**around.at, **within.at}, {**around.register, **within.register}
                point = Point(at, register, frame.origin)
                held = f"ahead[{block.register_number(inner, point, frame)}]"
                _if_inside(block, tile, frame, point)
                if is_read:
                    out.line(f"{held} = {_element(block, load, tile, frame, point)};")
                else:
                    out.line(f"*({target} + {tile.offset(point)}) = ({kind}){held};")
            if is_read:
                out.line("hold(ahead);")


def _together(frame: Frame, tile: Tile) -> tuple[str, ...]:
    """The indices of a tile of which a thread has the most points together, up to so many."""
    counts = {i: frame.distribution.registers(i) for i in tile.order}
    subsets = (s for n in range(len(counts) + 1) for s in combinations(tile.order, n))
    sizes = {s: prod(counts[i] for i in s) for s in subsets}
    return max((s for s, size in sizes.items() if size <= AHEAD), key=sizes.__getitem__)


def _if_inside(block: Block, tile: Tile, frame: Frame, point: Point) -> None:
    """The condition for a point to lie in the tile, and to be this thread's to copy."""
    inside = [
        f"{point.local(i)} < {tile.extents[i]}"
        for i in tile.order
        if frame.distribution.padded(i) > tile.extents[i]
    ]
    inside += [f"threadIdx.x {f}" for f in repeated(block, frame, tile)]
    if inside:
        block.out.line(f"if ({' && '.join(inside)})")


def repeated(block: Block, frame: Frame, tile: Tile) -> list[str]:
    """Conditions that leave one thread of those that would copy the same elements."""
    return [f"/ {f.stride} % {f.count} == 0" for f in frame.distribution.unused(tile.order)]


def _copy_vector(
    block: Block,
    load: Load,
    tile: Tile,
    frame: Frame,
    point: Point,
    target: str,
    width: int,
    asynchronous: bool,
) -> None:
    out, access = block.out, load.access
    source, place = block.buffer(access.buffer), f"{target} + {tile.offset(point)}"
    if width == 1 and not asynchronous:
        out.line(f"*({place}) = {_element(block, load, tile, frame, point)};")
        return
    valid = block.valid(tile.order, point, frame)
    condition = " && ".join([*valid, *block.exists(access, point)]) or "true"
    address = block.address(access, point)
    if asynchronous:
        bytes_ = width * tile.dtype.itemsize
        out.line(f"const bool exists = {condition};")
        out.line(
            f"copy_async<{bytes_}>({place}, exists ? {source} + {address} : {source}, exists);"
        )
        return
    kind = storage_type(tile.dtype)
    pack = f"Pack<{kind}, {width}>"
    out.line(f"{pack} pack = {{}};")
    if load.fill:
        fill = _memory_literal(tile.dtype, load.fill)
        out.line(f"if ({' && '.join(valid) or 'true'})")
        out.line(f"    for (int e = 0; e < {width}; ++e) pack.item[e] = {fill};")
    read = f"pack = *reinterpret_cast<const {pack}*>({source} + {address});"
    out.line(read if condition == "true" else f"if ({condition}) {read}")
    out.line(f"*reinterpret_cast<{pack}*>({place}) = pack;")


def _element(block: Block, load: Load, tile: Tile, frame: Frame, point: Point) -> str:
    """An element of memory as it lies there: the load's fill where it does not exist, and zero
    beyond the extents.
    """
    access, kind = load.access, storage_type(tile.dtype)
    valid = block.valid(tile.order, point, frame)
    condition = " && ".join([*valid, *block.exists(access, point)])
    fill = _memory_literal(tile.dtype, load.fill)
    absent = "0" if fill == "0" else f"{' && '.join(valid) or 'true'} ? {fill} : ({kind})0"
    value = f"{block.buffer(access.buffer)}[{block.address(access, point)}]"
    return f"{condition} ? {value} : {absent}" if condition else value


def _memory_literal(dtype: DType, value: bool | int | float) -> str:
    return narrow(dtype, literal(dtype, value)) if value else "0"


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


def fetch(block: Block, load: Load, point: Point, frame: Frame | None = None) -> str:
    """A load's value read from global memory at a point; zero outside the extents."""
    conditions = block.exists(load.access, point)
    value = block.memory_element(load.access, point, load.dtype)
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
