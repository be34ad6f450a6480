"""Tiles in shared memory whose elements the block computes from loads: prologues of products.

Each element is computed once, by whichever thread has it in a distribution made for copying.
"""

from collections.abc import Callable
from dataclasses import dataclass

from eqsat.codegen.cuda_access import unit_stride, vector_width
from eqsat.codegen.cuda_block import Block, Frame, Point, Tile, constant
from eqsat.codegen.cuda_distribution import cover
from eqsat.codegen.cuda_math import cast, literal, narrow, register_type, storage_type, widen
from eqsat.codegen.cuda_tiles import anywhere, fetch, lay_out, repeated
from eqsat.kernel import Load, Map, operands

Expression = Callable[[Map, Point], str]


@dataclass(frozen=True)
class _Work:
    """The tile in the making: its chain ends in `result`; `width` elements at a time."""

    block: Block
    result: Map
    tile: Tile
    frame: Frame
    width: int
    expression: Expression


def compute_tile(block: Block, result: Map, expression: Expression) -> None:
    """Compute the tile of a placed chain and make it readable; readers wait at a barrier."""
    chain = block.placement.chains[result.name]
    inside = {s.name for s in chain}
    leaves = {name for s in chain for name in operands(s)} - inside
    staged = {name: anywhere(block, name) for name in block.sorted_names(leaves)}
    if block.tiles_read:
        block.barrier()
    block.before_reading(leaves)
    order, width = _order(block, result)
    tile = lay_out(block, result.name, result.dtype, order)
    while any(p % width for p in (tile.extents[order[-1]], *(tile.strides[i] for i in order[:-1]))):
        width //= 2
    readers, block.readers = block.readers, {**block.readers, **staged}
    points = [(i, tile.extents[i]) for i in order]
    frame = Frame(cover(points, width, block.kernel.threads), block.frame.origin, "copy_")
    work = _Work(block, result, tile, frame, width, expression)
    with block.out.block():
        block.define_bases(frame, order)
        with block.points(order, frame, {order[-1]: width}) as point:
            inside_tile = [
                f"{point.local(i)} < {extent}"
                for i, extent in points
                if frame.distribution.padded(i) > extent
            ]
            inside_tile += [f"threadIdx.x {f}" for f in repeated(block, frame, tile)]
            if inside_tile:
                block.out.line(f"if ({' && '.join(inside_tile)})")
            with block.out.block():
                _elements(work, point)
    block.readers = readers
    block.readers[result.name] = tile.reader(result.dtype)
    block.tiles[result.name] = tile
    block.tiles_written = True


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


def _elements(work: _Work, point: Point) -> None:
    """Load vectors, then compute and keep their elements one by one."""
    block, out, width = work.block, work.block.out, work.width
    inner = work.tile.order[-1]
    chain = block.placement.chains[work.result.name]
    packed = [
        s for s in chain if isinstance(s, Load) and width > 1 and unit_stride(s.access, inner)
    ]
    for s in packed:
        _load_pack(work, s, point)
    kind = storage_type(work.tile.dtype)
    if width > 1:
        out.line(f"Pack<{kind}, {width}> pack;")
        out.line("#pragma unroll")
    with out.block(f"for (int e = 0; e < {width}; ++e)" if width > 1 else ""):
        at = Point({**point.at, inner: f"({point.at[inner]} + e)"}, {}, point.origin)
        at = at if width > 1 else point
        for s in chain:
            text = _value(work, s, at, s in packed)
            out.line(f"const {register_type(s.dtype)} {block.value(s.name)} = {text};")
            block.readers[s.name] = constant(block.value(s.name))
        value = block.value(work.result.name)
        valid = " && ".join(block.valid(work.tile.order, at, work.frame))
        if valid:
            value = f"({valid} ? {value} : {literal(work.result.dtype, 0)})"
        stored = narrow(work.tile.dtype, value)
        place = f"{work.tile.pointer} + {work.tile.offset(point)}"
        out.line(f"pack.item[e] = {stored};" if width > 1 else f"*({place}) = {stored};")
    if width > 1:
        place = f"{work.tile.pointer} + {work.tile.offset(point)}"
        out.line(f"*reinterpret_cast<Pack<{kind}, {width}>*>({place}) = pack;")


def _load_pack(work: _Work, s: Load, point: Point) -> None:
    block = work.block
    buffer, name = block.kernel.buffer(s.access.buffer), block.value(s.name)
    pack = f"Pack<{storage_type(buffer.dtype)}, {work.width}>"
    conditions = [*block.valid(s.indices, point, work.frame), *block.exists(s.access, point)]
    source = f"{block.buffer(buffer.name)} + {block.address(s.access, point)}"
    block.out.line(f"{pack} {name}_pack = {{}};")
    block.out.line(f"const bool {name}_exists = {' && '.join(conditions) or 'true'};")
    block.out.line(f"if ({name}_exists) {name}_pack = *reinterpret_cast<const {pack}*>({source});")


def _value(work: _Work, s: Load | Map, at: Point, packed: bool) -> str:
    block = work.block
    if isinstance(s, Map):
        return work.expression(s, at)
    if not packed:
        return fetch(block, s, at, work.frame)
    buffer, name = block.kernel.buffer(s.access.buffer), block.value(s.name)
    value = cast(buffer.dtype, s.dtype, widen(buffer.dtype, f"{name}_pack.item[e]"))
    return f"{name}_exists ? {value} : {literal(s.dtype, s.fill)}" if s.fill else value
