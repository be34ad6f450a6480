"""Tiles in shared memory whose elements the block computes from loads: prologues of products.

Each element is computed once, by whichever thread has it in a distribution made for copying. What
it reads in vectors a thread loads all at once, in a loop over chunks while products of the chunk
before are under way.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod

from eqsat.codegen.cuda_access import unit_stride, vector_width
from eqsat.codegen.cuda_block import Block, Frame, Point, Tile, constant
from eqsat.codegen.cuda_distribution import cover
from eqsat.codegen.cuda_math import cast, literal, narrow, register_type, storage_type, widen
from eqsat.codegen.cuda_placement import COMPUTED, SIXTEEN
from eqsat.codegen.cuda_registers import REGISTERS
from eqsat.codegen.cuda_tiles import anywhere, fetch, lay_out, repeated
from eqsat.graph.dtypes import float32
from eqsat.kernel import Load, Map, Phase, operands

WORD = 4  # bytes of a register

Expression = Callable[[Map, Point], str]


@dataclass(frozen=True)
class _Work:
    """The tile in the making: its chain ends in `result`; `width` elements at a time. `ahead`:
    a thread has all of its vectors in registers before it computes, in a loop up to chunk `last`
    those of the next chunk.
    """

    block: Block
    result: Map
    tile: Tile
    frame: Frame
    width: int
    ahead: bool = False
    last: str = ""

    @property
    def order(self) -> tuple[str, ...]:
        return self.tile.order

    @property
    def packed(self) -> list[Load]:
        """What is loaded in vectors."""
        chain, inner = self.block.placement.chains[self.result.name], self.order[-1]
        loads = [s for s in chain if isinstance(s, Load)]
        return [s for s in loads if self.width > 1 and unit_stride(s.access, inner)]

    @property
    def vectors(self) -> int:
        """How many of each load a thread has."""
        counts = (self.frame.distribution.registers(i) for i in self.order)
        return prod(counts) // self.width

    def number(self, point: Point) -> str:
        """Which of them is at a point."""
        text = "0"
        for i in self.order:
            count = self.frame.distribution.registers(i)
            own = point.register[i]
            if i == self.order[-1]:
                own, count = f"{own} / {self.width}", count // self.width
            if count > 1:
                text = own if text == "0" else f"({text}) * {count} + {own}"
        return text

    def pack(self, s: Load) -> str:
        """The type of a vector."""
        kind = storage_type(self.block.kernel.buffer(s.access.buffer).dtype)
        return f"Pack<{kind}, {self.width}>"


def load_chunks_ahead(
    block: Block, phase: Phase, live: tuple[str, str], begin: Callable[[], None]
) -> None:
    """Before a loop over the `live` chunks: lay out the tiles that it computes, and load what those
    of the first chunk are computed of; `begin` says where the chunk at hand begins.
    """
    for s in phase.body:
        if isinstance(s, Map) and block.placement.where[s.name] == COMPUTED:
            work = replace(_planned(block, s), last=live[1])
            streamed = {axis.name for axis in phase.stream}
            if not work.ahead or not streamed & {*s.indices}:
                continue
            _declare(work)
            with block.out.block(f"auto {_loader(work)} = [&](int chunk)", ";"):
                begin()
                _load_all(work)
            block.out.line(f"{_loader(work)}({live[0]});")
            block.works[s.name] = work


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
    work = block.works.get(result.name) or _planned(block, result)
    readers, block.readers = block.readers, {**block.readers, **staged}
    with block.out.block():
        if work.ahead and not work.last:
            _declare(work)
            with block.out.block():
                _load_all(work)
        with _points(work) as point:
            _elements(work, point, expression)
    if work.last:
        block.out.line(f"if (chunk + 1 < {work.last}) {_loader(work)}(chunk + 1);")
    block.readers = readers
    block.readers[result.name] = work.tile.reader(result.dtype)
    block.tiles[result.name] = work.tile
    block.tiles_written = True


def _planned(block: Block, result: Map) -> _Work:
    order, width = _order(block, result)
    tile = lay_out(block, result.name, result.dtype, order)
    while any(p % width for p in (tile.extents[order[-1]], *(tile.strides[i] for i in order[:-1]))):
        width //= 2
    points = [(i, tile.extents[i]) for i in order]
    frame = Frame(cover(points, width, block.kernel.threads), block.frame.origin, "copy_")
    work = _Work(block, result, tile, frame, width)
    if not work.packed:
        return work
    sums = sum(block.register_count(m.contract.indices) for m in block.placement.matrices.values())
    held = sum(work.vectors * width * _size(block, s) / WORD for s in work.packed)
    fits = sums + held <= REGISTERS / block.kernel.threads / 2  # the other half: all else
    return replace(work, ahead=fits)


def _size(block: Block, s: Load) -> int:
    return block.kernel.buffer(s.access.buffer).dtype.itemsize


def _loader(work: _Work) -> str:
    return f"load_{work.block.names.of(work.result.name)}"


def _declare(work: _Work) -> None:
    """The registers of what is loaded ahead."""
    for s in work.packed:
        name = work.block.value(s.name)
        work.block.out.line(f"{work.pack(s)} {name}_ahead[{work.vectors}] = {{}};")


def _load_all(work: _Work) -> None:
    with _points(work) as point:
        for s in work.packed:
            target = f"{work.block.value(s.name)}_ahead[{work.number(point)}]"
            if work.last and _exists(work, s, point) != "true":
                work.block.out.line(f"{target} = {{}};")  # what the chunk before left there
            _load_pack(work, s, point, target)


@contextmanager
def _points(work: _Work) -> Iterator[Point]:
    """Loops over a thread's vectors of the tile."""
    block, order = work.block, work.order
    block.define_bases(work.frame, order)
    with block.points(order, work.frame, {order[-1]: work.width}) as point:
        inside = [
            f"{point.local(i)} < {work.tile.extents[i]}"
            for i in order
            if work.frame.distribution.padded(i) > work.tile.extents[i]
        ]
        inside += [f"threadIdx.x {f}" for f in repeated(block, work.frame, work.tile)]
        if inside:
            block.out.line(f"if ({' && '.join(inside)})")
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


def _elements(work: _Work, point: Point, expression: Expression) -> None:
    """Take vectors, then compute and keep their elements one by one."""
    block, out, width = work.block, work.block.out, work.width
    inner, chain = work.order[-1], block.placement.chains[work.result.name]
    packed = work.packed
    for s in packed:
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
                text = _loaded(work, s, at, s in packed)
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


def _load_pack(work: _Work, s: Load, point: Point, target: str) -> None:
    block = work.block
    source = f"{block.buffer(s.access.buffer)} + {block.address(s.access, point)}"
    load = f"{target} = *reinterpret_cast<const {work.pack(s)}*>({source});"
    exists = _exists(work, s, point)
    block.out.line(load if exists == "true" else f"if ({exists}) {load}")


def _exists(work: _Work, s: Load, point: Point) -> str:
    """Whether what a load reads at a point is there."""
    conditions = work.block.valid(s.indices, point, work.frame)
    return " && ".join([*conditions, *work.block.exists(s.access, point)]) or "true"


def _loaded(work: _Work, s: Load, at: Point, packed: bool) -> str:
    block = work.block
    if not packed:
        return fetch(block, s, at, work.frame)
    buffer, name = block.kernel.buffer(s.access.buffer), block.value(s.name)
    value = cast(buffer.dtype, s.dtype, widen(buffer.dtype, f"{name}_pack.item[e]"))
    return f"{name}_exists ? {value} : {literal(s.dtype, s.fill)}" if s.fill else value
