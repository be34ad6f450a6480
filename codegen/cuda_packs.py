"""Neighbouring elements written to memory as one vector.

Two 16-bit floats are rounded by one conversion: half the instructions, and nothing that the
assembler would merge by itself, which it does without heed of warpgroup operations under way.
"""

from collections.abc import Callable

from eqsat.codegen.cuda_block import Writer
from eqsat.codegen.cuda_math import SIXTEEN, narrow, storage_type
from eqsat.graph.dtypes import DType, float64

Value = Callable[[str], str]


def write_pack(
    out: Writer, dtype: DType, source: DType, width: int, target: str, value: Value
) -> None:
    """Write `width` elements of a dtype at `target`; `value` gives the register value number e,
    which was a `source` before it got its compute dtype.
    """
    kind, count, element = storage_type(dtype), width, narrow(dtype, value("e"))
    if dtype.name in SIXTEEN and width % 2 == 0 and source != float64:
        kind, count = "unsigned", width // 2
        element = f"pack_{dtype.name}({value('e * 2')}, {value('e * 2 + 1')})"
    out.line(f"Pack<{kind}, {count}> pack;")
    out.line("#pragma unroll")
    out.line(f"for (int e = 0; e < {count}; ++e) pack.item[e] = {element};")
    out.line(f"*reinterpret_cast<Pack<{kind}, {count}>*>({target}) = pack;")
