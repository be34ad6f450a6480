"""Laws of masks: of comparisons, and of what they choose between.

However a mask is written, they lead to `where(comparison, value, number)`, which tells kernels what
they may leave out.
"""

import math
from collections.abc import Iterator

from eqsat.rule import FLOATS, Rewrite, apply, dtype_in, rewrite, rule
from eqsat.rules.algebra import INTEGERS, SIGNED

INVERSE = {
    "greater": "less_equal",
    "less_equal": "greater",
    "less": "greater_equal",
    "greater_equal": "less",
}


@rule("algebra")
def invert_comparison(a: "Expr", b: "Expr") -> Iterator[Rewrite]:
    """not (a > b)  ->  a <= b,  and the like
    when: a is an integer (neither holds for NaN).
    """
    for op, inverse in INVERSE.items():
        yield rewrite(apply("logical_not", apply(op, a, b)), apply(inverse, a, b)).when(
            dtype_in(a, *INTEGERS)
        )


@rule("algebra")
def mask_what_is_left(
    a: "Expr", b: "Expr", c: "Expr", e: "Expr", x: "Expr", d: "Text"
) -> Iterator[Rewrite]:
    """where(c, v, x)  ->  where(not c, x, v)  for a number v that stands for nothing: 0 or -inf
    when: c compares integers, is a negation, or one of two such, so that what is left is a
    comparison or both of two, of which kernels know where it fails.
    """
    for number in (0.0, -math.inf):
        none = apply("literal", number, d)
        for op, inverse in INVERSE.items():
            left = apply("where", apply(inverse, a, b), x, none)
            yield rewrite(apply("where", apply(op, a, b), none, x), left).when(
                dtype_in(a, *INTEGERS)
            )
        negated = apply("where", apply("logical_not", c), none, x)
        yield rewrite(negated, apply("where", c, x, none))
        neither = apply("logical_and", apply("logical_not", c), apply("logical_not", e))
        either = apply("where", apply("logical_or", c, e), none, x)
        yield rewrite(either, apply("where", neither, x, none))


@rule("algebra")
def mask_by_where(a: "Expr", c: "Expr", d: "Text") -> Iterator[Rewrite]:
    """a + where(c, 0, -inf)  ->  where(c, a, -inf)"""
    zero, never = (apply("literal", number, d) for number in (0.0, -math.inf))
    mask, masked = apply("where", c, zero, never), apply("where", c, a, never)
    for whole in (a + mask, mask + a):
        yield rewrite(whole, masked).when(dtype_in(a, *FLOATS))


@rule("algebra")
def chosen_truth(c: "Expr") -> Iterator[Rewrite]:
    """where(c, true, false)  ->  c,  where(c, false, true)  ->  not c"""
    true, false = (apply("literal", number, "bool") for number in (1.0, 0.0))
    yield rewrite(apply("where", c, true, false), c)
    yield rewrite(apply("where", c, false, true), apply("logical_not", c))


@rule("algebra")
def question_of_mask(c: "Expr", d: "Text") -> Iterator[Rewrite]:
    """where(c, 1, 0) != 0  ->  c,  and the like: what is asked of a mask of ones and zeros"""
    zero, one = (apply("literal", number, d) for number in (0.0, 1.0))
    mask, negated = apply("where", c, one, zero), apply("logical_not", c)
    holds = {"not_equal": zero, "equal": one, "greater": zero, "greater_equal": one}
    fails = {"equal": zero, "not_equal": one, "less_equal": zero, "less": one}
    for op, number in holds.items():
        yield rewrite(apply(op, mask, number), c)
    yield rewrite(apply("cast", "bool", mask), c)
    for op, number in fails.items():
        yield rewrite(apply(op, mask, number), negated)


@rule("algebra")
def rest_of_mask(c: "Expr", d: "Text") -> Iterator[Rewrite]:
    """1 - where(c, 1, 0)  ->  where(c, 0, 1)"""
    zero, one = (apply("literal", number, d) for number in (0.0, 1.0))
    yield rewrite(one - apply("where", c, one, zero), apply("where", c, zero, one))


@rule("algebra")
def within_distance(a: "Expr", b: "Expr", c: "Expr") -> Iterator[Rewrite]:
    """abs(a - b) < c  ->  a - b < c and b - a < c,  abs(a - b) > c  ->  a - b > c or b - a > c,
    and the same with <= and >=.
    when: a is a signed integer (two comparisons of floats cost more; below 0 unsigned ones wrap).
    """
    for op in INVERSE:
        apart = apply(op, apply("abs", a - b), c)
        joined = "logical_and" if op.startswith("less") else "logical_or"
        sides = apply(joined, apply(op, a - b, c), apply(op, b - a, c))
        yield rewrite(apart, sides).when(dtype_in(a, *SIGNED))
