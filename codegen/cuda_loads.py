"""Loads of several elements at once into a thread's registers."""

from collections.abc import Callable

from eqsat.codegen.cuda_block import Block, Point
from eqsat.codegen.cuda_math import cast, literal, storage_type, widen
from eqsat.kernel import Load


def load_vector(
    block: Block,
    s: Load,
    point: Point,
    condition: str,
    width: int,
    element: Callable[[str], str],
) -> None:
    """Write one access to `width` elements that lie together; `element(e)` names the register of
    the e-th. Where the condition, if there is one, does not hold they are the load's fill.
    """
    out, buffer = block.out, block.kernel.buffer(s.access.buffer)
    pack = f"Pack<{storage_type(buffer.dtype)}, {width}>"
    source = f"{block.buffer(buffer.name)} + {block.address(s.access, point)}"
    out.line(f"{pack} pack = {{}};")
    if condition:
        out.line(f"const bool exists = {condition};")
    read = f"pack = *reinterpret_cast<const {pack}*>({source});"
    out.line(f"if (exists) {read}" if condition else read)
    out.line("#pragma unroll")
    with out.block(f"for (int e = 0; e < {width}; ++e)"):
        value = cast(buffer.dtype, s.dtype, widen(buffer.dtype, "pack.item[e]"))
        text = f"exists ? {value} : {literal(s.dtype, s.fill)}"
        out.line(f"{element('e')} = {text if condition and s.fill else value};")
