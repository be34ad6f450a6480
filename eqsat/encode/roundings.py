"""Which roundings of a graph nobody asked for, so that a kernel may keep the bits they drop."""

from collections.abc import Collection, Sequence

from eqsat.graph.tensor import Tensor
from eqsat.layout.needs import SIXTEEN
from eqsat.terms.algebra import CONDITIONS, REDUCTIONS

# Continuous functions of floats: near arguments give near values.
UNARY = (
    *("neg", "abs", "square", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal"),
    *("sin", "cos", "tanh", "erf"),
)
BINARY = ("add", "sub", "mul", "div", "pow", "maximum", "minimum")
EXTREMES = ("reduce_max", "reduce_min")
CONTINUOUS = frozenset({*UNARY, *BINARY, *EXTREMES, "where", "view"})
# What can change by much where its operand changes in the last bit.
DISCRETE = CONDITIONS | {"sign", "floor", "ceil", "trunc", "round", "floor_divide", "remainder"}


def unasked(tensors: Sequence[Tensor]) -> set[Tensor]:
    """The casts of float32 to 16-bit floats that round, point by point, what is then reduced.

    tensors: those of a segment, operands first. Not among them: casts that were written
    (`astype`), what a comparison or a float's integer part depends on, and what is repeated for
    its users, whose rounding costs nothing beside theirs.
    """
    looked_at: set[Tensor] = set()
    reduced: set[Tensor] = set()
    for tensor in reversed(tensors):
        if tensor in looked_at or _is_discrete(tensor):
            looked_at.update(tensor.operands)
        if tensor in reduced or tensor.op in REDUCTIONS:
            reduced.update(x for x in tensor.operands if x.size >= tensor.size)
    return {
        tensor
        for tensor in reduced - looked_at
        if tensor.op == "cast"
        and tensor.dtype.name in SIXTEEN
        and tensor.operands[0].dtype.name == "float32"
        and "written" not in tensor.attributes
    }


def held_wide(
    tensors: Sequence[Tensor], stored: Collection[Tensor], rounded: Collection[Tensor]
) -> set[Tensor]:
    """What is computed of `rounded` values in 16-bit floats for float32 alone: terms may say that
    it is float32, as kernels compute it so.

    tensors: those of a segment, operands first; stored: those that lie in memory.
    """
    found: set[Tensor] = set()
    for tensor in tensors:
        rests = any(x in found or x in rounded for x in tensor.operands)
        if rests and tensor.op in CONTINUOUS and tensor.dtype.name in SIXTEEN:
            found.add(tensor)
    found -= set(stored)
    for tensor in reversed(tensors):
        if tensor not in found and not _is_widening(tensor):
            found.difference_update(tensor.operands)
    return found


def _is_widening(tensor: Tensor) -> bool:
    return tensor.op == "cast" and tensor.dtype.name == "float32"


def _is_discrete(tensor: Tensor) -> bool:
    whole = tensor.op == "cast" and tensor.dtype.kind != "float"
    return tensor.op in DISCRETE or (whole and tensor.operands[0].dtype.kind == "float")
