"""Laws of sums of products over named indices, and of the nonlinear maps between them.

`free(a)` is the set of indices that a depends on; capitals are index sets. Guards on free indices
keep a reduction from capturing an index; guards on dtypes keep laws to where they hold.
"""

import math
from collections.abc import Iterator

from eqsat.rule import (
    FLOATS,
    WIDE_FLOATS,
    DTypeOf,
    Free,
    Node,
    NumberOf,
    PointsIn,
    Rewrite,
    Variable,
    apply,
    differ,
    disjoint,
    dtype_in,
    finite,
    known,
    nonempty,
    rewrite,
    rule,
)

SIGNED = ("int8", "int16", "int32", "int64")
INTEGERS = (*SIGNED, "uint8")
RING = (*WIDE_FLOATS, *INTEGERS)


def sum_(mask: object, body: object) -> Node:
    """sum over an index set"""
    return apply("reduce_sum", mask, body)  # type: ignore[arg-type]


def max_(mask: object, body: object) -> Node:
    """maximum over an index set"""
    return apply("reduce_max", mask, body)  # type: ignore[arg-type]


@rule("algebra")
def mul_commute(a: "Expr", b: "Expr") -> Iterator[Rewrite]:
    """a * b  ->  b * a"""
    yield rewrite(a * b, b * a)


@rule("algebra")
def add_commute(a: "Expr", b: "Expr") -> Iterator[Rewrite]:
    """a + b  ->  b + a"""
    yield rewrite(a + b, b + a)


@rule("algebra")
def mul_associate(a: "Expr", b: "Expr", c: "Expr") -> Iterator[Rewrite]:
    """(a * b) * c  ->  a * (b * c)
    when: the grouping changes which indices a factor spans; otherwise only the count of equal
    terms would grow. b and c both span some or both none: numbers are moved outside and join
    there, as each place for each of several would be a term of its own. float: rounding changes.
    """
    inner = Free(b) | Free(c)
    whole = Free(a) | inner
    left, right = (a * b) * c, a * (b * c)
    varied = nonempty(Free(b)), nonempty(Free(c)), dtype_in(a, *RING)
    yield rewrite(left, right).when(differ(Free(a), whole), *varied)
    yield rewrite(left, right).when(differ(inner, whole), *varied)
    yield rewrite(left, right).when(disjoint(inner, inner), nonempty(Free(a)), dtype_in(a, *RING))


@rule("algebra")
def divide_by_positive(a: "Expr", b: "Expr") -> Iterator[Rewrite]:
    """a / b  ->  a * (1 / b)
    when: b spans fewer indices than a, so that the division is done less often; it is known to be
    positive, as the sum of a softmax's weights is, and far above 0. float: rounding changes.
    """
    yield rewrite(a / b, a * apply("reciprocal", b)).when(
        differ(Free(a) | Free(b), Free(b)), dtype_in(a, *FLOATS), *known("positive", b)
    )


@rule("algebra", precision="default")
def divide_by_reciprocal(a: "Expr", b: "Expr") -> Iterator[Rewrite]:
    """a / b  ->  a * (1 / b)
    when: b spans fewer indices than a, as in divide_by_positive. float: rounding; 1 / b is infinite
    for divisors below the smallest normal number, and 0 / b NaN.
    """
    yield rewrite(a / b, a * apply("reciprocal", b)).when(
        differ(Free(a) | Free(b), Free(b)), dtype_in(a, *FLOATS)
    )


@rule("algebra")
def factor_out_of_sum(a: "Expr", b: "Expr", S: "Indices") -> Iterator[Rewrite]:
    """sum_S a * b  ->  a * sum_S b
    when: no index of S is free in a; the accumulator is wide (a 16-bit sum of b may overflow
    where the sum of a * b does not). float: rounding changes.
    """
    yield rewrite(sum_(S, a * b), a * sum_(S, b)).when(disjoint(S, Free(a)), dtype_in(a, *RING))


@rule("algebra")
def negate_outside_sum(a: "Expr", S: "Indices") -> Iterator[Rewrite]:
    """sum_S -a  ->  -sum_S a"""
    negated = apply("neg", sum_(S, a))
    yield rewrite(sum_(S, apply("neg", a)), negated).when(dtype_in(a, *RING))


@rule("algebra")
def split_sum_of_product(a: "Expr", b: "Expr", S: "Indices") -> Iterator[Rewrite]:
    """sum_S a * b  ->  sum_{S & free a} a * sum_{S - free a} b
    when: both parts of S are non-empty. float: rounding changes.
    """
    inner, outer = S.without(Free(a)), S & Free(a)
    yield rewrite(sum_(S, a * b), sum_(outer, a * sum_(inner, b))).when(
        nonempty(inner), nonempty(outer), dtype_in(a, *RING)
    )


@rule("algebra")
def nest_sums(a: "Expr", b: "Expr", S: "Indices", T: "Indices") -> Iterator[Rewrite]:
    """sum_S a * sum_T b  ->  sum_{S + T} a * b
    when: no index of T is free in a or in S; a is finite (inf times each b differs from inf times
    their sum). float: rounding changes.
    """
    yield rewrite(sum_(S, a * sum_(T, b)), sum_(S | T, a * b)).when(
        disjoint(T, Free(a)), disjoint(S, T), dtype_in(a, *RING), *finite(a)
    )


@rule("algebra")
def merge_sums(a: "Expr", S: "Indices", T: "Indices") -> Iterator[Rewrite]:
    """sum_S sum_T a  ->  sum_{S + T} a
    when: S and T are disjoint.
    """
    yield rewrite(sum_(S, sum_(T, a)), sum_(S | T, a)).when(disjoint(S, T), dtype_in(a, *RING))


@rule("algebra")
def swap_in_sum(a: "Expr", b: "Expr", S: "Indices") -> Iterator[Rewrite]:
    """a * sum_S b  ->  sum_S a * b
    when: no index of S is free in a; a is finite (inf times each b differs from inf times their
    sum); a spans an index that the sum lacks, so that a chain of products may be grouped anew.
    float: rounding changes.
    """
    yield rewrite(a * sum_(S, b), sum_(S, a * b)).when(
        disjoint(S, Free(a)),
        nonempty(Free(a).without(Free(b))),
        dtype_in(a, *RING),
        *finite(a),
    )


@rule("algebra")
def scale_weight(x: "Read", b: "Expr", s: "Expr", S: "Indices") -> Iterator[Rewrite]:
    """s * sum_S a * b  ->  sum_S (s * a) * b,  for what is read, a
    when: s spans nothing, and is finite (inf times each product differs from inf times their sum);
    b spans an index, none of S, that a lacks, so that fewer points are scaled. float: rounding
    changes.
    """
    a = apply("read", x)
    yield rewrite(s * sum_(S, a * b), sum_(S, (s * a) * b)).when(
        disjoint(Free(s), Free(s)),
        nonempty(Free(a)),
        nonempty(Free(b).without(Free(a) | S)),
        dtype_in(b, *RING),
        *finite(s),
    )


@rule("algebra")
def sum_of_constant(a: "Expr", S: "Indices") -> Iterator[Rewrite]:
    """sum_S a  ->  |S - free a| * sum_{S & free a} a
    when: some index of S is not free in a.
    """
    gone, kept = S.without(Free(a)), S & Free(a)
    count = apply("literal", PointsIn(gone), DTypeOf(a))  # type: ignore[arg-type]
    yield rewrite(sum_(S, a), count * sum_(kept, a)).when(
        nonempty(gone), nonempty(kept), dtype_in(a, *WIDE_FLOATS)
    )
    yield rewrite(sum_(S, a), count * a).when(disjoint(S, Free(a)), dtype_in(a, *WIDE_FLOATS))


@rule("algebra")
def add_sums(a: "Expr", b: "Expr", c: "Expr", S: "Indices") -> Iterator[Rewrite]:
    """sum_S a + sum_S b  ->  sum_S (a + b)
    float: rounding changes.
    """
    left = sum_(S, a) + sum_(S, b)
    yield rewrite(left, sum_(S, a + b)).when(dtype_in(a, *RING))
    yield rewrite(sum_(S, a) + (sum_(S, b) + c), sum_(S, a + b) + c).when(dtype_in(a, *RING))


@rule("algebra")
def sum_of_deviations(
    a: "Expr", b: "Expr", c: "Expr", x: "Expr", S: "Indices"
) -> Iterator[Rewrite]:
    """sum_S (a + b * (x - c * sum_S x))  ->  sum_S a + b * ((1 - |S| * c) * sum_S x),  also without
    a and b
    when: no index of S is free in b or c. float: of deviations from a mean rounding is all that
    their sum has left; infinities and NaN of x stay what they are.
    """
    total = sum_(S, x)
    left = 1.0 - apply("literal", PointsIn(S), DTypeOf(x)) * c  # type: ignore[arg-type]
    apart = x - total * c
    guards = (disjoint(S, Free(b) | Free(c)), dtype_in(x, *WIDE_FLOATS))
    yield rewrite(sum_(S, a + apart * b), sum_(S, a) + b * (left * total)).when(*guards)
    yield rewrite(sum_(S, apart), left * total).when(
        disjoint(S, Free(c)), dtype_in(x, *WIDE_FLOATS)
    )


@rule("algebra")
def factor_common(a: "Expr", b: "Expr", c: "Expr", d: "Expr") -> Iterator[Rewrite]:
    """a * b + a * c  ->  a * (b + c)
    when: the terms are finite wherever the whole is (0 * inf would differ). float: rounding.
    """
    guards = (dtype_in(a, *RING), *finite(a, b, c))
    yield rewrite(a * b + a * c, a * (b + c)).when(*guards)
    yield rewrite(a * b + (a * c + d), a * (b + c) + d).when(*guards)


@rule("algebra")
def shift_out_of_max(a: "Expr", b: "Expr", S: "Indices") -> Iterator[Rewrite]:
    """max_S (a + b)  ->  a + max_S b
    when: no index of S is free in a. float: exact up to the rounding of the sum (monotone).
    """
    yield rewrite(max_(S, a + b), a + max_(S, b)).when(
        disjoint(S, Free(a)), dtype_in(a, *WIDE_FLOATS)
    )


@rule("algebra")
def scale_out_of_max(a: "Expr", b: "Expr", c: "Expr", S: "Indices", d: "Text") -> Iterator[Rewrite]:
    """max_S (a * b)  ->  a * max_S b,  max_S where(c, a * b, -inf)  ->  a * max_S where(c, b, -inf)
    when: a is positive, and no index of S is free in it. float: exact (the rounding of a product
    is monotone).
    """
    never = apply("literal", -math.inf, d)
    guards = (disjoint(S, Free(a)), dtype_in(a, *WIDE_FLOATS), *known("positive", a))
    yield rewrite(max_(S, a * b), a * max_(S, b)).when(*guards)
    masked, without = (apply("where", c, value, never) for value in (a * b, b))
    yield rewrite(max_(S, masked), a * max_(S, without)).when(*guards)


@rule("algebra")
def cancel_shift(a: "Expr", b: "Expr", c: "Expr") -> Iterator[Rewrite]:
    """(a + b) - (a + c)  ->  b - c
    when: a is finite (a mask of -inf must leave its NaN); a spans fewer indices than the whole, so
    that work is saved. float: rounding changes.
    """
    yield rewrite((a + b) - (a + c), b - c).when(
        differ(Free(a), Free(a) | Free(b) | Free(c)), dtype_in(a, *WIDE_FLOATS), *finite(a)
    )


def one_of(dtype: Variable) -> Node:
    """The literal one."""
    return apply("literal", 1.0, dtype)  # type: ignore[arg-type]


@rule("algebra")
def multiply_numbers(x: "Number", y: "Number") -> Iterator[Rewrite]:
    """x * y  ->  the number that it is,  for finite numbers x and y of a float of 32 bits or more
    float: of three and more numbers the product is rounded once.
    """
    for dtype in WIDE_FLOATS:
        a, b = apply("literal", x, dtype), apply("literal", y, dtype)
        product = apply("literal", NumberOf("*", x, y), dtype)  # type: ignore[arg-type]
        yield rewrite(a * b, product).when(*known("finite", a, b))


@rule("algebra")
def reciprocal_of_number(x: "Number") -> Iterator[Rewrite]:
    """1 / x  ->  the number that it is,  for a finite number x of a float of 32 bits or more
    when: x is not 0. float: what is divided by x is rounded twice where x is no power of 2.
    """
    for dtype in WIDE_FLOATS:
        given = apply("literal", x, dtype)
        inverse = apply("literal", NumberOf("/", 1.0, x), dtype)  # type: ignore[arg-type]
        yield rewrite(apply("reciprocal", given), inverse).when(
            *known("finite", given), *known("nonzero", given)
        )


@rule("algebra")
def mul_identity(a: "Expr", d: "Text") -> Iterator[Rewrite]:
    """a * 1  ->  a"""
    yield rewrite(a * one_of(d), a)


@rule("algebra")
def add_one_to_erf(a: "Expr", d: "Text") -> Iterator[Rewrite]:
    """erf(a) + 1  ->  one_plus_erf(a)
    when: the spec has a row for it (eqsat.rule.priced); a is wide, as what a kernel computes.
    float: rounding changes; nothing cancels where erf(a) is near -1.
    """
    curve = apply("erf", a)
    for dtype in WIDE_FLOATS:
        for whole in (curve + one_of(d), one_of(d) + curve):
            yield rewrite(whole, apply("one_plus_erf", a)).when(dtype_in(a, dtype))


@rule("algebra")
def add_one_to_tanh(a: "Expr", d: "Text") -> Iterator[Rewrite]:
    """tanh(a) + 1  ->  r + r,  r = 1 / (1 + exp(-(a + a)))
    when: a is wide, as what a kernel computes. float: rounding changes; nothing cancels where
    tanh(a) is near -1.
    """
    curve, one = apply("tanh", a), one_of(d)
    half = apply("reciprocal", one + apply("exp", apply("neg", a + a)))
    for whole in (curve + one, one + curve):
        yield rewrite(whole, half + half).when(dtype_in(a, *WIDE_FLOATS))


@rule("algebra")
def cast_twice(a: "Expr", d: "Text") -> Iterator[Rewrite]:
    """cast_d cast_d a  ->  cast_d a"""
    yield rewrite(apply("cast", d, apply("cast", d, a)), apply("cast", d, a))  # type: ignore[arg-type]


@rule("algebra")
def narrow_what_was_widened(a: "Expr") -> Iterator[Rewrite]:
    """cast_d cast_float32 a  ->  a,  for a narrower float d
    when: a has the dtype d
    """
    for d in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"):
        again = apply("cast", d, apply("cast", "float32", a))
        yield rewrite(again, a).when(dtype_in(a, d))


@rule("algebra")
def widen_at_once(a: "Expr") -> Iterator[Rewrite]:
    """cast_float32 cast_d a  ->  cast_float32 a,  for a 16-bit float d
    when: a is a float of 8 bits, every number of which d holds
    """
    for d in ("bfloat16", "float16"):
        for narrow in ("float8_e4m3fn", "float8_e5m2"):
            twice = apply("cast", "float32", apply("cast", d, a))
            yield rewrite(twice, apply("cast", "float32", a)).when(dtype_in(a, narrow))


@rule("algebra", precision="default")
def drop_rounding(a: "Expr", b: "Expr", S: "Indices") -> Iterator[Rewrite]:
    """sum_S cast_float32 cast_d a * b  ->  sum_S a * b,  for a 16-bit float d; without b too
    when: a is float32: what is summed keeps what rounding it to its stored dtype would lose. Any
    other rounding stays, as x - cast cast x asks for it. float: fewer roundings.
    """
    for narrow in ("bfloat16", "float16"):
        rounded = apply("cast", "float32", apply("cast", narrow, a))
        yield rewrite(sum_(S, rounded * b), sum_(S, a * b)).when(dtype_in(a, "float32"))
        yield rewrite(sum_(S, rounded), sum_(S, a)).when(dtype_in(a, "float32"))
