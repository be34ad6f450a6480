"""Roundings that nobody asked for: results of 16-bit operations that are widened again at once.

`rounded_d a` is the rounding of an operation's result to its 16-bit dtype d, `cast_d a` one that
was written, or that something discrete looks at (`eqsat.encode.roundings`). What a kernel computes
from the former may use a itself, operation by operation: the rounded value remains another one, to
be stored in half the bytes.
"""

from collections.abc import Iterator

from eqsat.encode.roundings import BINARY, EXTREMES, UNARY
from eqsat.rule import Node, Pattern, Rewrite, apply, dtype_in, rewrite, rule


def wide(a: Pattern) -> Node:
    """a as float32"""
    return apply("cast", "float32", a)


@rule("algebra")
def round_by_cast(a: "Expr", d: "Text") -> Iterator[Rewrite]:
    """rounded_d a  ->  cast_d a"""
    yield rewrite(apply("rounded", d, a), apply("cast", d, a))


@rule("algebra", precision="default")
def keep_bits(a: "Expr", b: "Expr", c: "Expr", S: "Indices", d: "Text") -> Iterator[Rewrite]:
    """f(cast_float32 rounded_d a, b)  ->  f(a, b),  for a 16-bit float d
    when: f is continuous, or sums; a is float32. Comparisons see what was rounded. float: fewer
    roundings.
    """
    kept = wide(apply("rounded", d, a))
    found = [(apply(op, kept), apply(op, a)) for op in UNARY]
    for op in BINARY:
        found += [(apply(op, kept, b), apply(op, a, b)), (apply(op, b, kept), apply(op, b, a))]
    found += [(apply("where", c, kept, b), apply("where", c, a, b))]
    found += [(apply("where", c, b, kept), apply("where", c, b, a))]
    for op in ("reduce_sum", *EXTREMES):
        found += [(apply(op, S, kept), apply(op, S, a))]
    for left, right in found:
        yield rewrite(left, right).when(dtype_in(a, "float32"))
