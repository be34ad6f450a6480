"""The block's copies into tiles: straight on, by way of registers, or of shorter elements together.

A thread reads many elements that are too short for a copy that runs on before it waits for one.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import combinations
from math import ceil, prod

from eqsat.graph.dtypes import DType
from eqsat.kernel.ir import Load
from eqsat.layout.needs import VECTOR_BYTES

from ..place.access import vector_width
from ..place.block import Block, Frame
from ..place.distribution import cover
from ..place.tile import Point, Tile, flat_number
from ..prelude.math import WORD, held_type, literal, narrow, storage_type
from .tiles import anywhere, fitting, if_inside, write_held
from .window_copy import AHEAD, window_copy
from .window_tile import at_place, within_extents


def copy_width(block: Block, load: Load, tile: Tile) -> int:
    """Elements that one thread copies at a time."""
    tile = tile.places
    if not tile.order:
        return 1
    inner, buffer = tile.order[-1], block.kernel.buffer(load.access.buffer)
    indices = block.placement.indices
    return fitting(tile, vector_width(load.access, inner, buffer, block.axes, indices))


def can_copy_async(block: Block, load: Load, tile: Tile) -> bool:
    """Whether cp.async serves: known addresses, a word or more at a time, absent means zero."""
    bytes_ = copy_width(block, load, tile) * tile.dtype.itemsize
    return not load.access.coordinates and not load.fill and bytes_ >= WORD


def copy(
    block: Block, load: Load, tile: Tile, origin: Mapping[str, str], target: str, asynchronous: bool
) -> None:
    """The whole block copies the tile at `origin` to `target`; the caller sees to barriers."""
    width, tile = copy_width(block, load, tile), tile.places
    windows = window_copy(block, load, tile, width)
    if windows is not None and (distribution := windows.distribution()) is not None:
        windows.write(Frame(distribution, origin, "copy_"), target, asynchronous)
        block.tiles_written = True
        return
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
                if_inside(block, tile, frame, point)
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
                if_inside(block, tile, frame, point)
                with block.out.block():
                    if is_read:
                        _read(block, load, tile, frame, point, 1, held)
                    else:
                        write_held(block, tile, f"{target} + {tile.offset(point)}", 1, held)
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
            if_inside(self.block, self.tile, self.frame, point)
            write_held(
                self.block,
                self.tile,
                f"{self.tile.pointer} + {self.tile.offset(point)}",
                self.width,
                held,
            )
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
        write_held(block, tile, f"{target} + {tile.offset(point)}", width, "pack")
        return
    source, place = block.buffer(load.access.buffer), f"{target} + {tile.offset(point)}"
    point = at_place(tile, point)
    condition = _exists(block, load, tile, frame, point) or "true"
    address = block.address(load.access, point)
    size = width * tile.dtype.itemsize
    how = f"{size}{', true' * (size == VECTOR_BYTES and _is_alike(block, load))}"
    block.out.line(f"const bool exists = {condition};")
    block.out.line(f"copy_async<{how}>({place}, exists ? {source} + {address} : {source}, exists);")


def _is_alike(block: Block, load: Load) -> bool:
    """Whether all tiles read the same: few lines, which the cache near each SM then serves."""
    return all(axis.count == 1 for name, axis in block.axes.items() if name in load.indices)


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
