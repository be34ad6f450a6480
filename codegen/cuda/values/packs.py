"""Neighbouring elements written to memory as one vector.

Two narrow floats are rounded by one conversion: half the instructions, and nothing that the
assembler would merge by itself, which it does without heed of warpgroup operations under way.
"""

from collections.abc import Callable

from eqsat.graph.dtypes import DType, float64
from eqsat.kernel.ir import Store

from ..copy.tiles import owns
from ..place.access import continued
from ..place.block import Block, Writer
from ..place.placement import store_indices
from ..place.tile import Point
from ..prelude.math import NARROW, narrow, storage_type

Value = Callable[[str], str]


def store_points(
    block: Block, store: Store, vector: tuple[str, int], value: Callable[[Point], str]
) -> None:
    """Write each of a thread's points to memory. `vector`: the index along which they are
    contiguous, and how many; `value`: the value at a point, in the buffer's compute dtype.
    """
    out, buffer = block.out, block.kernel.buffer(store.access.buffer)
    indices, (index, width) = block.ordered(store_indices(block.placement, store)), vector
    held = block.distribution.vector
    other, times = continued(store.access, vector, indices, buffer, block.axes, held)

    def at(point: Point, number: str) -> Point:
        if times == 1:
            return block.shifted(point, index, number)
        inside = block.shifted(point, index, f"({number}) % {width}")
        return block.shifted(inside, other, f"({number}) / {width}")

    owner = owns(block, indices)
    if owner:
        out.line(f"if ({owner})")
    with out.block(), block.points(indices, steps={index: width, other: times}) as point:
        conditions = [*block.valid(indices, point), *block.exists(store.access, point)]
        if conditions:
            out.line(f"if ({' && '.join(conditions)})")
        target = f"{block.buffer(buffer.name)} + {block.address(store.access, point)}"
        with out.block():
            if width == 1:
                out.line(f"*({target}) = {narrow(buffer.dtype, value(point))};")
                return
            source = block.placement.dtypes[store.value]
            each = width * times
            write_pack(out, buffer.dtype, source, each, target, lambda e: value(at(point, e)))


def write_pack(
    out: Writer, dtype: DType, source: DType, width: int, target: str, value: Value
) -> None:
    """Write `width` elements of a dtype at `target`; `value` gives the register value number e,
    which was a `source` before it got its compute dtype.
    """
    kind = pack_of(out, dtype, source, width, value)
    out.line(f"*reinterpret_cast<{kind}*>({target}) = pack;")


def pack_of(out: Writer, dtype: DType, source: DType, width: int, value: Value) -> str:
    """Define `pack`, which holds `width` elements as memory does; returns its type."""
    kind, count, element = storage_type(dtype), width, narrow(dtype, value("e"))
    if dtype.name in NARROW and width % 2 == 0 and source != float64:
        kind, count = "unsigned" if dtype.itemsize == 2 else "unsigned short", width // 2
        element = f"pack_{dtype.name}({value('e * 2')}, {value('e * 2 + 1')})"
    out.line(f"Pack<{kind}, {count}> pack;")
    out.line("#pragma unroll")
    out.line(f"for (int e = 0; e < {count}; ++e) pack.item[e] = {element};")
    return f"Pack<{kind}, {count}>"
