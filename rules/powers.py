"""Laws of powers, roots and quotients by powers of two."""

import math
from collections.abc import Iterator

from eqsat.graph.dtypes import as_dtype, iinfo
from eqsat.rule import (
    FLOATS,
    WIDE_FLOATS,
    Node,
    Pattern,
    Rewrite,
    apply,
    dtype_in,
    known,
    rewrite,
    rule,
)
from eqsat.rules.algebra import INTEGERS, RING


@rule("algebra")
def small_power(a: "Expr", d: "Text") -> Iterator[Rewrite]:
    """a ** 1  ->  a,  a ** 2  ->  a * a,  a ** 3  ->  a * (a * a),  a ** 4  ->  (a * a) * (a * a),
    a ** -1  ->  1 / a
    when: a to the third and the fourth is an integer or wide, as a product of two is rounded; 1 / a
    a float. float: rounding changes.
    """

    def power(exponent: float) -> Node:
        return apply("pow", a, apply("literal", exponent, d))  # type: ignore[arg-type]

    yield rewrite(power(1.0), a)
    yield rewrite(power(2.0), a * a)
    yield rewrite(power(3.0), a * (a * a)).when(dtype_in(a, *RING))
    yield rewrite(power(4.0), (a * a) * (a * a)).when(dtype_in(a, *RING))
    yield rewrite(power(-1.0), apply("reciprocal", a)).when(dtype_in(a, *FLOATS))


@rule("algebra")
def divide_by_power_of_two(a: "Expr", d: "Text") -> Iterator[Rewrite]:
    """a // 2 ** n  ->  a >> n,  a % 2 ** n  ->  a & (2 ** n - 1),  n = 1 .. 30
    when: a is an integer. Both round down, below 0 too.
    """

    def by(op: str, number: int) -> Node:
        return apply(op, a, apply("literal", float(number), d))  # type: ignore[arg-type]

    for n in range(1, 31):
        whole = dtype_in(a, *(name for name in INTEGERS if iinfo(as_dtype(name)).max >= 1 << n))
        yield rewrite(by("floor_divide", 1 << n), by("shift_right", n)).when(whole)
        yield rewrite(by("remainder", 1 << n), by("bitwise_and", (1 << n) - 1)).when(whole)


@rule("algebra")
def half_power(a: "Expr", d: "Text") -> Iterator[Rewrite]:
    """a ** (n / 2)  ->  b ** (n // 2) * sqrt(b),  a ** (-n / 2)  ->  rsqrt(b) ** n,  n = 1, 3, 5;
    b is a, but inf for -inf and 0 for -0, whose powers are none of theirs
    when: a is wide, as what a kernel computes. float: rounding changes.
    """

    def instead(of: float, value: float, otherwise: Pattern) -> Node:
        """`value` where a equals another number."""
        equal = apply("equal", a, apply("literal", of, d))
        return apply("where", equal, apply("literal", value, d), otherwise)

    def power(exponent: float) -> Node:
        return apply("pow", a, apply("literal", exponent, d))  # type: ignore[arg-type]

    def products(b: Pattern) -> Iterator[Rewrite]:
        root = apply("sqrt", b)
        yield rewrite(power(0.5), root)
        yield rewrite(power(1.5), b * root)
        yield rewrite(power(2.5), (b * b) * root)

    def inverses(b: Pattern) -> Iterator[Rewrite]:
        root = apply("rsqrt", b)
        yield rewrite(power(-0.5), root)
        yield rewrite(power(-1.5), root * (root * root))
        yield rewrite(power(-2.5), root * ((root * root) * (root * root)))

    wide = dtype_in(a, *WIDE_FLOATS)
    b = instead(0.0, 0.0, instead(-math.inf, math.inf, a))
    for one in (*products(b), *inverses(b)):
        yield one.when(wide)
    for one in products(a):
        yield one.when(*known("nonneg", a), wide)
    for one in inverses(a):
        yield one.when(*known("positive", a), wide)


@rule("algebra")
def divide_by_root(a: "Expr", b: "Expr") -> Iterator[Rewrite]:
    """a / sqrt(b)  ->  a * rsqrt(b),  1 / sqrt(b)  ->  rsqrt(b)
    when: b is wide, as what a kernel computes. float: rounding changes.
    """
    root, wide = apply("sqrt", b), dtype_in(b, *WIDE_FLOATS)
    yield rewrite(a / root, a * apply("rsqrt", b)).when(wide)
    yield rewrite(apply("reciprocal", root), apply("rsqrt", b)).when(wide)
