"""Rows of the laws of rules/powers.py, and of those of numbers."""

import math
from collections.abc import Callable

from algebra_rows import Miss, Pair, Row, row
from distribute_rows import ROWS
from terms import Terms, add, mul

from eqsat.terms.algebra import Term

__all__ = ["ROWS"]


def powers(t: Terms) -> Callable[..., Term]:
    """What raises a term to a power that is a number, of its dtype."""

    def power(x: Term, exponent: float, dtype: str = "float32") -> Term:
        return Term("pow", x, t.number(exponent, dtype))

    return power


@row
def small_power(t: Terms) -> Row:
    a, n, h = t.read("a", "i"), t.read("n", "i", "int32"), t.read("h", "i", "float16")
    power = powers(t)

    return Row(
        (
            (power(a, 1), a),
            (power(a, 2), mul(a, a)),
            (power(a, 3), mul(a, mul(a, a))),
            (power(a, 4), mul(mul(a, a), mul(a, a))),
            (power(n, 2, "int32"), mul(n, n)),
            (power(h, 2, "float16"), mul(h, h)),
            (power(a, -1), Term("reciprocal", a)),
        ),
        (
            Miss(power(a, 2.5), mul(a, a)),
            Miss(power(a, -1), a),
            Miss(power(n, -1, "int32"), Term("reciprocal", n), "dtype_in", wrong=False),
            Miss(Term("pow", t.number(2), a), mul(a, a)),
            Miss(power(h, 3, "float16"), mul(h, mul(h, h)), "dtype_in", wrong=False),
        ),
    )


@row
def divide_by_power_of_two(t: Terms) -> Row:
    a, n, h = t.read("a", "i"), t.read("n", "i", "int64"), t.read("h", "i", "int8")

    def by(op: str, x: Term, number: float, dtype: str = "int64") -> Term:
        return Term(op, x, t.number(number, dtype))

    powers_of_two = [(k, 1 << k) for k in range(1, 31)]
    return Row(
        (
            *((by("floor_divide", n, two), by("shift_right", n, k)) for k, two in powers_of_two),
            *((by("remainder", n, two), by("bitwise_and", n, two - 1)) for _, two in powers_of_two),
            (by("floor_divide", h, 4, "int8"), by("shift_right", h, 2, "int8")),
        ),
        (
            Miss(by("floor_divide", n, 3), by("shift_right", n, 1)),
            Miss(by("remainder", n, 3), by("bitwise_and", n, 2)),
            Miss(by("floor_divide", n, -2), by("shift_right", n, 1)),
            Miss(
                by("floor_divide", a, 4, "float32"),
                by("shift_right", a, 2, "float32"),
                "dtype_in",
                wrong=False,
            ),
        ),
    )


@row
def half_power(t: Terms) -> Row:
    a, h = t.read("a", "i"), t.read("h", "i", "float16")
    square = Term("square", a)
    above, power = add(square, t.number(1)), powers(t)

    def instead(of: float, value: float, otherwise: Term) -> Term:
        return Term("where", Term("equal", a, t.number(of)), t.number(value), otherwise)

    def cube(x: Term) -> Term:
        return mul(Term("rsqrt", x), mul(Term("rsqrt", x), Term("rsqrt", x)))

    def fifth(x: Term) -> Term:
        two = mul(Term("rsqrt", x), Term("rsqrt", x))
        return mul(Term("rsqrt", x), mul(two, two))

    b = instead(0, 0, instead(-math.inf, math.inf, a))
    return Row(
        (
            (power(a, 0.5), Term("sqrt", b)),
            (power(a, 1.5), mul(b, Term("sqrt", b))),
            (power(a, 2.5), mul(mul(b, b), Term("sqrt", b))),
            (power(a, -0.5), Term("rsqrt", b)),
            (power(a, -1.5), cube(b)),
            (power(a, -2.5), fifth(b)),
            (power(square, 0.5), Term("sqrt", square)),
            (power(square, 1.5), mul(square, Term("sqrt", square))),
            (power(square, 2.5), mul(mul(square, square), Term("sqrt", square))),
            (power(above, -0.5), Term("rsqrt", above)),
            (power(above, -1.5), cube(above)),
            (power(above, -2.5), fifth(above)),
        ),
        (
            Miss(power(a, 0.5), Term("sqrt", a), "nonneg", wrong=False),
            Miss(power(square, -0.5), Term("rsqrt", square), "positive", wrong=False),
            Miss(power(a, 1.5), mul(a, a)),
            Miss(power(h, 0.5, "float16"), Term("sqrt", h), "dtype_in", wrong=False),
        ),
    )


@row
def multiply_numbers(t: Terms) -> Row:
    def product(x: float, y: float, dtype: str) -> Pair:
        a, b, whole = (Term("literal", number, dtype) for number in (x, y, x * y))
        return mul(a, b), whole

    return Row(
        (product(2.0, 3.0, "float32"), product(2.0, 3.0, "float64")),
        (
            Miss(*product(0.0, math.inf, "float32"), "finite", wrong=False),
            Miss(*product(2.0, 3.0, "int32"), wrong=False),
        ),
    )


@row
def reciprocal_of_number(t: Terms) -> Row:
    def inverse(x: float, y: float, dtype: str) -> Pair:
        return Term("reciprocal", Term("literal", x, dtype)), Term("literal", y, dtype)

    return Row(
        (inverse(4.0, 0.25, "float32"), inverse(4.0, 0.25, "float64")),
        (
            Miss(*inverse(math.inf, 0.0, "float32"), "finite", wrong=False),
            Miss(*inverse(0.0, math.inf, "float32"), wrong=False),
            Miss(*inverse(4.0, 0.25, "float16"), wrong=False),
        ),
    )
