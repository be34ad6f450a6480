"""exp(c a - b) of a product's result a, in one multiply-add and the GPU's own power of two.

    exp(c * a - b)  =  2 ** ((c log2 e) * a - (log2 e) * b)

Only where nothing but 16-bit floats is made of it (`place/nearly.py`). That b is rounded before the
difference moves the exponent by no more than the rounding of the sum a did, where either counts:
elsewhere the power is 0 or infinite.
"""

import math
from collections.abc import Collection

from eqsat.graph.dtypes import float32
from eqsat.kernel.ir import Contract, Literal, Map, Statement
from eqsat.price.nearly import OF_PRODUCTS

from ..place.block import Block
from ..place.tile import Point


def exp_of_difference(block: Block, s: Statement, point: Point, beside: Collection[str]) -> str:
    """The value of a statement at a point; empty where it is no such. `beside` are the statements
    of its loop: what they read can be read here.
    """
    known = block.placement.statements
    if not isinstance(s, Map) or s.op != "exp" or s.arguments[0] not in beside:
        return ""
    difference = known[s.arguments[0]]
    if not isinstance(difference, Map) or difference.op != "sub" or difference.dtype != float32:
        return ""
    scaled, base = difference.arguments
    if not _is_product(block, scaled):
        return ""
    a, factor = _without_factor(block, scaled, point, beside)
    rate = f"{factor * math.log2(math.e)!r}f"
    return f"exp_from({a}, {rate}, {block.converted(base, float32, point)})"


def _is_product(block: Block, name: str) -> bool:
    """Whether a value is a sum of products, or made of one; a large number in its place, as some
    masks have, would be exact, and its difference far smaller than its rounding: -inf alone passes.
    """
    s = block.placement.statements.get(name)
    if not isinstance(s, Map) or s.op not in OF_PRODUCTS:
        return isinstance(s, Contract) or _number(block, name) == -math.inf
    if s.op == "mul":
        return any(_is_product(block, argument) for argument in s.arguments)
    values = s.arguments[1:] if s.op == "where" else s.arguments
    return all(_is_product(block, argument) for argument in values)


def _without_factor(
    block: Block, name: str, point: Point, beside: Collection[str]
) -> tuple[str, float]:
    """a, as text, and c of a value c a with a number c > 0 that is computed in the same loop, if it
    is; a mask of -inf is no obstacle.
    """
    s = block.placement.statements[name]
    if isinstance(s, Map) and name in beside:
        if s.op == "mul":
            for a, c in (s.arguments, s.arguments[::-1]):
                factor = _number(block, c)
                if 0 < factor < math.inf:
                    return block.converted(a, float32, point), factor
        if s.op == "where" and _number(block, s.arguments[2]) == -math.inf:
            condition, value, never = s.arguments
            a, factor = _without_factor(block, value, point, beside)
            texts = [block.read(condition, point), a, block.read(never, point)]
            return "({} ? {} : {})".format(*texts), factor
    return block.converted(name, float32, point), 1.0


def _number(block: Block, name: str) -> float:
    """The number that a value is; NaN where it is none."""
    s = block.placement.statements.get(name)
    return float(s.value) if isinstance(s, Literal) else math.nan
