"""Left factors that are computed two neighbours along k at a time, by arithmetic on 16-bit floats.

Where every step of a computation is rounded to 16 bits, an instruction on pairs gives what float32
and a rounding give: a sum or a product of two 16-bit floats that float32 holds rounded once more is
the exact one rounded (24 >= 2 * 11 + 2 bits; Figueroa, "When is double rounding innocuous?", 1995).
It takes one instruction where widening, computing and packing take six.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from eqsat.graph.dtypes import DType, float32
from eqsat.kernel.ir import Load, Map, Statement
from eqsat.layout.needs import SIXTEEN

from ..copy.box_tile import BoxTile
from ..place.block import Block
from ..place.placement import Matrix
from ..place.tile import Point
from .fragments import Fragments

PAIRED = {
    "add": "add.rn",
    "sub": "sub.rn",
    "mul": "mul.rn",
    "maximum": "max.NaN",
    "minimum": "min.NaN",
}
KINDS = {"bfloat16": "bf16x2", "float16": "f16x2"}


@dataclass(frozen=True)
class Pairs:
    """A product's left factor: an operation on pairs of what `fragments` and lines of k hold.

    `made`: the statements that it stands for, which nothing else needs.
    """

    block: Block
    matrix: Matrix
    fragments: Mapping[str, Fragments]
    made: frozenset[str]

    def fill(self, target: str) -> None:
        """`target[step][fragment]`: the operand registers of one `step`."""
        out, d = self.block.out, self.block.distribution
        blocks = d.registers(next(iter(self.fragments.values())).row) // 2
        out.line("#pragma unroll")
        with out.block(f"for (int block = 0; block < {blocks}; ++block)"):
            for register in range(self.matrix.operation.left_registers):
                text = self.text(self.matrix.left, register)
                out.line(f"{target}[step][block][{register}] = {text};")

    def text(self, name: str, register: int) -> str:
        """Both elements of a value that lie in an operand register."""
        if name in self.fragments:
            return f"{self.fragments[name].array}[step][block][{register}]"
        tile = self.block.tiles.get(name)
        if tile is not None:
            k = f"step * 16 + {register // 2 * 8} + int({self.block.thread}) % 4 * 2"
            return f"*reinterpret_cast<const unsigned*>({tile.pointer} + {k})"
        op, arguments = operation(self.block, name) or ("", ())
        texts = [self.text(argument, register) for argument in arguments]
        dtype = self.block.placement.dtypes[name].name
        return f"pair_{op}_{dtype}({', '.join(texts)})" if op else texts[0]


def find_pairs(block: Block, matrix: Matrix, fragments: Mapping[str, Fragments]) -> Pairs | None:
    """How a left factor is computed in pairs; None where some step of it is not rounded."""
    placement, leaves, inside = block.placement, set[str](), list[str]()
    dtype, waiting = placement.dtypes[matrix.left], [matrix.left]
    origin = block.frame.origin
    beyond = block.valid([matrix.k], Point(origin, {}, origin))  # what lies there must be zero
    products = {name for name, m in placement.matrices.items() if m.left == matrix.left}
    if dtype.name not in SIXTEEN or beyond or not set(placement.users[matrix.left]) <= products:
        return None
    while waiting:
        name = waiting.pop()
        if name in fragments or _is_line(block, name, matrix.k):
            if block.tiles[name].dtype != dtype:
                return None
            leaves.add(name)
            continue
        found = operation(block, name)
        if found is None:
            return None
        inside.append(name)
        waiting += found[1]
    held = {name: fragments[name] for name in leaves if name in fragments}
    made = {matrix.left}
    for s in reversed(list(placement.statements.values())):
        if isinstance(s, Map) and set(placement.users[s.name]) <= made and placement.users[s.name]:
            made.add(s.name)
    return Pairs(block, matrix, held, frozenset(made)) if held and inside else None


def operation(block: Block, name: str) -> tuple[str, tuple[str, ...]] | None:
    """The operation on pairs whose rounded result a 16-bit value is, and its operands; of a value
    that was widened and rounded again no operation. None if it is neither.
    """
    statements = block.placement.statements
    s = statements.get(name)
    if not isinstance(s, Map) or s.dtype.name not in SIXTEEN:
        return None
    if s.op == "cast":
        inner = statements.get(s.arguments[0])
        if (same := _narrow(block, s.arguments[0], s.dtype)) is not None:
            return "", (same,)
        if not isinstance(inner, Map) or inner.op not in PAIRED or inner.dtype != float32:
            return None
        s, narrow = inner, [_narrow(block, argument, s.dtype) for argument in inner.arguments]
    elif s.op in PAIRED:
        narrow = [a if block.placement.dtypes[a] == s.dtype else None for a in s.arguments]
    else:
        return None
    operands = tuple(a for a in narrow if a is not None)
    return (s.op, operands) if len(operands) == len(s.arguments) else None


def _narrow(block: Block, name: str, dtype: DType) -> str | None:
    """The value of a dtype that a float32 is the widening of."""
    s: Statement | None = block.placement.statements.get(name)
    if not isinstance(s, Map) or s.op != "cast" or s.dtype != float32:
        return None
    return s.arguments[0] if block.placement.dtypes[s.arguments[0]] == dtype else None


def _is_line(block: Block, name: str, k: str) -> bool:
    """Whether a load has been copied as a row along k."""
    tile = block.tiles.get(name)
    load = block.placement.statements.get(name)
    return isinstance(tile, BoxTile) and isinstance(load, Load) and tile.order == (k,)


def function(op: str, dtype: str) -> tuple[str, str]:
    """The name and the definition of a device function on pairs."""
    name, instruction = f"pair_{op}_{dtype}", f"{PAIRED[op]}.{KINDS[dtype]}"
    return (
        name,
        f"""
__device__ __forceinline__ unsigned {name}(unsigned a, unsigned b) {{
    unsigned result;
    asm("{instruction} %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}}""",
    )


FUNCTIONS = dict(function(op, dtype) for op in PAIRED for dtype in KINDS)
"""Device functions by name, of sm_90 and newer."""
