"""Tiles in shared memory: their layout, the block's copies into them, and values staged there.

The innermost index is the one that is contiguous in memory. Rows of whole 16-byte units get an odd
number of them, so that eight consecutive rows lie in different banks. Of float64 that fragments are
read from, half a warp reads four rows of 32 bytes: then units are of these. Points of a tile beyond
the extents are zero.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from math import ceil, prod

from eqsat.codegen.cuda_access import run_along, vector_width
from eqsat.codegen.cuda_block import TILE_UNIT, Block, Frame, Point, Reader, Tile, flat_number
from eqsat.codegen.cuda_box_tile import BoxTile
from eqsat.codegen.cuda_distribution import Factor, cover
from eqsat.codegen.cuda_math import SIXTEEN, cast, literal, narrow, storage_type, widen
from eqsat.codegen.cuda_operations import LANES
from eqsat.codegen.cuda_placement import COMPUTED, INLINE, SHARED
from eqsat.codegen.cuda_window_tile import (
    at_place,
    number_of_places,
    shared_axes,
    window_tile,
    within_extents,
)
from eqsat.graph.dtypes import DType
from eqsat.kernel import Load

WORD = 4  # bytes: the least that cp.async copies
SHORTEST = 64  # bytes of rows that are parted, where single elements of them are read
AHEAD = 64  # shorter elements that a thread reads before it writes the first


def lay_out(
    block: Block,
    name: str,
    dtype: DType,
    order: Sequence[str],
    slots: int = 1,
    places: Mapping[str, int] | None = None,
) -> Tile:
    """Allocate a tile and declare its pointer, which for a ring is that of the first slot; of some
    indices it has so many `places`.
    """
    unit = max(LANES * dtype.itemsize if block.placement.matrices else 0, TILE_UNIT)
    extents = {i: _extent(block, i) for i in order} | dict(places or {})
    strides, stride = {}, 1
    row = _row(block, name, order, extents)
    shortest = 0 if block.placement.matrices else SHORTEST
    for i in reversed(order):
        bytes_ = stride * dtype.itemsize
        if i == row and bytes_ % unit == 0 and bytes_ >= shortest:
            stride += 0 if bytes_ // unit % 2 else unit // dtype.itemsize
        strides[i] = stride
        stride *= extents[i]
    pointer = f"s_{block.names.of(name)}"
    tile = Tile(pointer, dtype, tuple(order), extents, strides, slots)
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
    tile = lay_out(block, load.name, buffer.dtype, copied, slots, places)
    return window_tile(tile, axes, order, extents) if axes else tile


def copy_width(block: Block, load: Load, tile: Tile) -> int:
    """Elements that one thread copies at a time."""
    tile = tile.places
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
    width, tile = copy_width(block, load, tile), tile.places
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


def copy_chunk(block: Block, load: Load, tile: Tile, alone: bool) -> None:
    """Copy the tile at hand, of which each thread may have its part in registers; `alone`: no other
    copies are under way, so that the next barrier may wait for all there are.
    """
    if load.name in block.ahead:
        block.ahead[load.name].write()
        return
    started = alone and can_copy_async(block, load, tile)
    copy(block, load, tile, block.frame.origin, tile.pointer, started)
    block.copies_started |= started


def _copy_words(block: Block, load: Load, tile: Tile, frame: Frame, target: str) -> None:
    """Copy elements that are too short for a copy that runs on: a thread reads many of them before
    it waits for the first.
    """
    inner, (name, batch) = _together(frame, tile)
    count = prod(frame.distribution.registers(i) for i in inner)
    out, some = block.out, {name: ("first", batch)}
    outer = [i for i in tile.order if i not in (*inner, name)]
    with block.points(outer, frame) as around, ExitStack() as batches:
        if name:
            out.line("#pragma unroll")
            points = frame.distribution.registers(name)
            head = f"for (int first = 0; first < {points}; first += {batch})"
            batches.enter_context(out.block(head))
        out.line(f"int ahead[{count * batch}] = {{}};")
        for is_read in (True, False):
            with block.points([*inner, *[name] * bool(name)], frame, some=some) as within:
                at, register = {**around.at, **within.at}, {**around.register, **within.register}
                point = Point(at, register, frame.origin)
                number = block.register_number(inner, point, frame)
                if name:
                    number = f"({number}) * {batch} + {register[name]} - first"
                held = f"ahead[{number}]"
                _if_inside(block, tile, frame, point)
                with block.out.block():
                    if is_read:
                        _read(block, load, tile, frame, point, 1, held)
                    else:
                        _write(block, tile, point, target, 1, held)
            if is_read:
                out.line("hold(ahead);")


@dataclass(frozen=True)
class RegisterCopy:
    """A copy of a tile by way of registers, `width` elements at a time: a thread reads all that it
    copies of a chunk while the one before is computed with; `following` is the line that does.
    """

    block: Block
    load: Load
    tile: Tile
    frame: Frame
    width: int
    following: str = ""

    @property
    def loads(self) -> list[Load]:
        """What it reads."""
        return [self.load]

    @property
    def vectors(self) -> int:
        """How many a thread copies."""
        counts = (self.frame.distribution.registers(i) for i in self.tile.order)
        return prod(counts) // self.width

    @property
    def registers(self) -> int:
        """How many it needs for them."""
        return self.vectors * ceil(self.width * self.tile.dtype.itemsize / WORD)

    @property
    def _name(self) -> str:
        return f"{self.block.value(self.load.name)}_ahead"

    def declare(self) -> None:
        """The registers."""
        kind = held_type(self.tile.dtype, self.width)
        self.block.out.line(f"{kind} {self._name}[{self.vectors}] = {{}};")

    def read(self) -> None:
        """All of the chunk at hand, beyond the tile too: so no load waits for a branch."""
        with self._points() as (point, held):
            _read(self.block, self.load, self.tile, self.frame, point, self.width, held)

    def write(self) -> None:
        """To the tile; then read the next chunk."""
        with self.block.out.block(), self._points() as (point, held):
            _if_inside(self.block, self.tile, self.frame, point)
            _write(self.block, self.tile, point, self.tile.pointer, self.width, held)
        if self.following:
            self.block.out.line(self.following)
        self.block.tiles_written = True

    @contextmanager
    def _points(self) -> Iterator[tuple[Point, str]]:
        block, order, frame = self.block, self.tile.order, self.frame
        block.define_bases(frame, order)
        steps = {order[-1]: self.width} if order else {}
        with block.points(order, frame, steps) as point:
            yield point, f"{self._name}[{vector_number(frame, order, self.width, point)}]"


def copied_by_registers(block: Block, load: Load, tile: Tile) -> RegisterCopy:
    """The copy of a tile that is not copied while other work runs on."""
    width, tile = copy_width(block, load, tile), tile.places
    order = [(i, tile.extents[i]) for i in tile.order]
    frame = Frame(cover(order, width, block.kernel.threads), block.frame.origin, "copy_")
    return RegisterCopy(block, load, tile, frame, width)


def vector_number(frame: Frame, order: Sequence[str], width: int, point: Point) -> str:
    """Which of a thread's vectors along the last of some indices is at a point."""
    places, counts = [], []
    for i in order:
        count, own = frame.distribution.registers(i), point.register[i]
        if i == order[-1] and width > 1:
            own, count = f"{own} / {width}", count // width
        places.append(own if count > 1 else "0")
        counts.append(count)
    return flat_number(places, counts)


def _together(frame: Frame, tile: Tile) -> tuple[tuple[str, ...], tuple[str, int]]:
    """The indices of a tile of which a thread has the most points together, up to so many; and of
    which other one it takes how many points with each of these.
    """
    counts = {i: frame.distribution.registers(i) for i in tile.order}
    subsets = (s for n in range(len(counts) + 1) for s in combinations(tile.order, n))
    sizes = {s: prod(counts[i] for i in s) for s in subsets}
    inner = max((s for s, size in sizes.items() if size <= AHEAD), key=sizes.__getitem__)
    most = AHEAD // sizes[inner]
    batches = {
        i: max(n for n in range(1, most + 1) if counts[i] % n == 0)
        for i in tile.order
        if i not in inner
    }
    name = max(batches, key=batches.__getitem__, default="")
    return inner, (name, batches[name]) if batches.get(name, 1) > 1 else ("", 1)


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
    if not asynchronous:
        block.out.line(f"{held_type(tile.dtype, width)} pack;")
        _read(block, load, tile, frame, point, width, "pack")
        _write(block, tile, point, target, width, "pack")
        return
    source, place = block.buffer(load.access.buffer), f"{target} + {tile.offset(point)}"
    point = at_place(tile, point)
    condition = _exists(block, load, tile, frame, point) or "true"
    address = block.address(load.access, point)
    bytes_ = width * tile.dtype.itemsize
    block.out.line(f"const bool exists = {condition};")
    block.out.line(
        f"copy_async<{bytes_}>({place}, exists ? {source} + {address} : {source}, exists);"
    )


def held_type(dtype: DType, width: int) -> str:
    """That of elements on their way through registers: of short ones, each has one."""
    kind = storage_type(dtype)
    if width > 1:
        return f"Pack<{kind}, {width}>"
    return "int" if dtype.itemsize < WORD else kind


def _read(
    block: Block, load: Load, tile: Tile, frame: Frame, point: Point, width: int, held: str
) -> None:
    """Set a register to what lies in memory."""
    point = at_place(tile, point)
    if width == 1:
        block.out.line(f"{held} = {_element(block, load, tile, frame, point)};")
        return
    kind, access = held_type(tile.dtype, width), load.access
    condition = _exists(block, load, tile, frame, point)
    if condition:
        block.out.line(f"{held} = {{}};")
    if load.fill:
        fill = _memory_literal(tile.dtype, load.fill)
        valid = within_extents(block, load, tile, point, frame)
        block.out.line(f"if ({' && '.join(valid) or 'true'})")
        block.out.line(f"    for (int e = 0; e < {width}; ++e) {held}.item[e] = {fill};")
    source = f"{block.buffer(access.buffer)} + {block.address(access, point)}"
    read = f"{held} = *reinterpret_cast<const {kind}*>({source});"
    block.out.line(f"if ({condition}) {read}" if condition else read)


def _write(block: Block, tile: Tile, point: Point, target: str, width: int, held: str) -> None:
    """Put what a register holds into the tile."""
    place, kind = f"{target} + {tile.offset(point)}", held_type(tile.dtype, width)
    if width > 1:
        block.out.line(f"*reinterpret_cast<{kind}*>({place}) = {held};")
    else:
        block.out.line(f"*({place}) = ({storage_type(tile.dtype)}){held};")


def _exists(block: Block, load: Load, tile: Tile, frame: Frame, point: Point) -> str:
    """The condition for an element to be there; empty where it is known to be."""
    valid = within_extents(block, load, tile, point, frame)
    return " && ".join([*valid, *block.exists(load.access, point)])


def _element(block: Block, load: Load, tile: Tile, frame: Frame, point: Point) -> str:
    """An element of memory as it lies there: the load's fill where it does not exist, and zero
    beyond the extents.
    """
    access, kind = load.access, storage_type(tile.dtype)
    valid = within_extents(block, load, tile, point, frame)
    condition = _exists(block, load, tile, frame, point)
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
