"""Tiles in shared memory whose elements the block computes from loads: prologues of products.

Each element is computed once, by whichever thread has it in a distribution made for copying. What
it reads, in vectors or once for a vector's elements, a thread loads all at once, in a loop over
chunks while products of the chunk before are under way.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil, prod

from eqsat.graph.dtypes import float32
from eqsat.kernel.ir import Load, Map, operands
from eqsat.layout.needs import SIXTEEN

from ..place.access import unit_stride, vector_width
from ..place.block import Block, Frame
from ..place.distribution import cover
from ..place.registers import REGISTERS_OF_SM
from ..place.tile import Point, Tile, constant
from ..prelude.math import WORD, cast, literal, narrow, register_type, storage_type, widen
from .tile_copy import vector_number
from .tiles import anywhere, fetch, if_inside, lay_out

REGISTERS_AHEAD = 192  # registers of the 255 that a thread has at most

Expression = Callable[[Map, Point], str]


@dataclass(frozen=True)
class ComputedTile:
    """The tile in the making: its chain ends in `result`; `width` elements at a time. `ahead`:
    a thread has all that it reads in registers before it computes; in a loop over chunks it had it
    a chunk before, and `following` is the line that loads what the next one needs.
    """

    block: Block
    result: Map
    tile: Tile
    frame: Frame
    width: int
    ahead: bool = False
    following: str = ""

    @property
    def order(self) -> tuple[str, ...]:
        return self.tile.order

    @property
    def loads(self) -> list[Load]:
        """Those of which one serves a vector of elements."""
        chain, inner = self.block.placement.chains[self.result.name], self.order[-1]
        every = [s for s in chain if isinstance(s, Load)]
        return [s for s in every if self.count(s) > 1 or self.is_alone(s, inner)]

    def is_alone(self, s: Load, inner: str) -> bool:
        """Whether a vector reads one element of what is at known addresses."""
        return not s.access.coordinates and (self.width == 1 or inner not in s.indices)

    def count(self, s: Load) -> int:
        """How many elements a vector reads of a load."""
        return self.width if unit_stride(s.access, self.order[-1]) else 1

    @property
    def vectors(self) -> int:
        """How many of each load a thread has."""
        counts = (self.frame.distribution.registers(i) for i in self.order)
        return prod(counts) // self.width

    def number(self, point: Point) -> str:
        """Which of them is at a point."""
        return vector_number(self.frame, self.order, self.width, point)

    def pack(self, s: Load) -> str:
        """The type of a vector."""
        kind = storage_type(self.block.kernel.buffer(s.access.buffer).dtype)
        return f"Pack<{kind}, {self.count(s)}>"

    @property
    def registers(self) -> int:
        """How many a thread needs for what it loads ahead."""
        sizes = {s: self.block.kernel.buffer(s.access.buffer).dtype.itemsize for s in self.loads}
        return self.vectors * sum(ceil(self.count(s) * n / WORD) for s, n in sizes.items())

    def declare(self) -> None:
        """The registers of what is loaded ahead."""
        for s in self.loads:
            name = self.block.value(s.name)
            self.block.out.line(f"{self.pack(s)} {name}_ahead[{self.vectors}] = {{}};")

    def read(self) -> None:
        """Load them; where something is not there, zero."""
        with _points(self) as point:
            for s in self.loads:
                target = f"{self.block.value(s.name)}_ahead[{self.number(point)}]"
                if _exists(self, s, point) != "true":
                    self.block.out.line(f"{target} = {{}};")  # what the chunk before left there
                _load_pack(self, s, point, target)


def planned_tile(block: Block, result: Map) -> ComputedTile:
    """Lay out the tile of a placed chain."""
    order, width = _order(block, result)
    tile = lay_out(block, result.name, result.dtype, order)
    while any(p % width for p in (tile.extents[order[-1]], *(tile.strides[i] for i in order[:-1]))):
        width //= 2
    points = [(i, tile.extents[i]) for i in order]
    frame = Frame(cover(points, width, block.kernel.threads), block.frame.origin, "copy_")
    return ComputedTile(block, result, tile, frame, width)


def may_load_ahead(block: Block, loads: Sequence[Load], registers: int) -> bool:
    """Whether a thread has registers for what it loads ahead, and the kernel writes none of it."""
    stores = (store for phase in block.kernel.phases for store in phase.stores)
    written = {store.access.buffer for store in stores}
    sums = sum(block.register_count(m.contract.indices) for m in block.placement.matrices.values())
    half = REGISTERS_OF_SM / block.kernel.threads / 2  # the other half: all else
    fits = sums + block.held_ahead + registers <= min(half, REGISTERS_AHEAD)
    return fits and not any(s.access.buffer in written for s in loads)


def compute_tile(block: Block, result: Map, expression: Expression) -> None:
    """Compute the tile of a placed chain and make it readable; readers wait at a barrier. What is
    loaded ahead in a loop is loaded of the next chunk then.
    """
    chain = block.placement.chains[result.name]
    inside = {s.name for s in chain}
    leaves = {name for s in chain for name in operands(s)} - inside
    staged = {name: anywhere(block, name) for name in block.sorted_names(leaves)}
    if block.tiles_read:
        block.barrier()
    block.before_reading(leaves)
    work = block.ahead.get(result.name) or planned_tile(block, result)
    may = bool(work.following) or may_load_ahead(block, work.loads, work.registers)
    work = replace(work, ahead=may)
    readers, block.readers = block.readers, {**block.readers, **staged}
    with block.out.block():
        if work.ahead and not work.following:
            work.declare()
            with block.out.block():
                work.read()
        with _points(work) as point:
            _elements(work, point, expression)
    if work.following:
        block.out.line(work.following)
    block.readers = readers
    block.readers[result.name] = work.tile.reader(result.dtype)
    block.tiles[result.name] = work.tile
    block.tiles_written = True


@contextmanager
def _points(work: ComputedTile) -> Iterator[Point]:
    """Loops over a thread's vectors of the tile."""
    block, order = work.block, work.order
    block.define_bases(work.frame, order)
    with block.points(order, work.frame, {order[-1]: work.width}) as point:
        if_inside(block, work.tile, work.frame, point)
        with block.out.block():
            yield point


def _order(block: Block, result: Map) -> tuple[list[str], int]:
    """The tile's indices, that along which most loads are contiguous last; and the vector width."""
    loads = [s for s in block.placement.chains[result.name] if isinstance(s, Load)]
    order = block.ordered(result.indices)
    votes = {i: sum(unit_stride(s.access, i) for s in loads) for i in order}
    inner = max(order, key=lambda i: (votes[i], order.index(i)))
    widths = [
        vector_width(s.access, inner, block.kernel.buffer(s.access.buffer), block.axes, {})
        for s in loads
        if unit_stride(s.access, inner)
    ]
    width = min([*widths, 16 // result.dtype.itemsize]) if widths else 1
    return [*(i for i in order if i != inner), inner], width


def _elements(work: ComputedTile, point: Point, expression: Expression) -> None:
    """Take vectors, then compute and keep their elements one by one."""
    block, out, width = work.block, work.block.out, work.width
    inner, chain = work.order[-1], block.placement.chains[work.result.name]
    loads = work.loads
    for s in loads:
        name = block.value(s.name)
        if work.ahead:
            out.line(f"const {work.pack(s)} {name}_pack = {name}_ahead[{work.number(point)}];")
        else:
            out.line(f"{work.pack(s)} {name}_pack = {{}};")
            _load_pack(work, s, point, f"{name}_pack")
        if s.fill:
            out.line(f"const bool {name}_exists = {_exists(work, s, point)};")
    kind = storage_type(work.tile.dtype)
    if width > 1:
        out.line(f"Pack<{kind}, {width}> pack;")
        out.line("#pragma unroll")
    with out.block(f"for (int e = 0; e < {width}; ++e)" if width > 1 else ""):
        at = Point({**point.at, inner: f"({point.at[inner]} + e)"}, {}, point.origin)
        at = at if width > 1 else point
        for s in chain:
            if isinstance(s, Load):
                text = _loaded(work, s, at, s in loads)
            elif s is work.result and s.op == "cast" and s.dtype.name in SIXTEEN:
                text = block.converted(s.arguments[0], float32, at)  # rounded as it is stored
            else:
                text = expression(s, at)
            out.line(f"const {register_type(s.dtype)} {block.value(s.name)} = {text};")
            block.readers[s.name] = constant(block.value(s.name))
        value = block.value(work.result.name)
        valid = " && ".join(block.valid(work.order, at, work.frame))
        if valid:
            value = f"({valid} ? {value} : {literal(work.result.dtype, 0)})"
        stored = narrow(work.tile.dtype, value)
        place = f"{work.tile.pointer} + {work.tile.offset(point)}"
        out.line(f"pack.item[e] = {stored};" if width > 1 else f"*({place}) = {stored};")
    if width > 1:
        place = f"{work.tile.pointer} + {work.tile.offset(point)}"
        out.line(f"*reinterpret_cast<Pack<{kind}, {width}>*>({place}) = pack;")


def _load_pack(work: ComputedTile, s: Load, point: Point, target: str) -> None:
    block = work.block
    source = f"{block.buffer(s.access.buffer)} + {block.address(s.access, point)}"
    load = f"{target} = *reinterpret_cast<const {work.pack(s)}*>({source});"
    exists = _exists(work, s, point)
    block.out.line(load if exists == "true" else f"if ({exists}) {load}")


def _exists(work: ComputedTile, s: Load, point: Point) -> str:
    """Whether what a load reads at a point is there."""
    conditions = work.block.valid(s.indices, point, work.frame)
    return " && ".join([*conditions, *work.block.exists(s.access, point)]) or "true"


def _loaded(work: ComputedTile, s: Load, at: Point, packed: bool) -> str:
    block = work.block
    if not packed:
        return fetch(block, s, at, work.frame)
    buffer, name = block.kernel.buffer(s.access.buffer), block.value(s.name)
    item = f"{name}_pack.item[{'e' if work.count(s) > 1 else 0}]"
    value = cast(buffer.dtype, s.dtype, widen(buffer.dtype, item))
    return f"{name}_exists ? {value} : {literal(s.dtype, s.fill)}" if s.fill else value
