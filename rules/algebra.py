"""Laws of sums of products over named indices, and of the nonlinear maps between them.

`free(a)` is the set of indices that a depends on; capitals are index sets. Guards on free indices
keep a reduction from capturing an index; guards on dtypes keep laws to where they hold.
"""

from collections.abc import Iterator

from eqsat.rule import (
    FLOATS,
    WIDE_FLOATS,
    DTypeOf,
    Free,
    Node,
    PointsIn,
    Rewrite,
    Variable,
    apply,
    differ,
    disjoint,
    dtype_in,
    finite,
    nonempty,
    overlap,
    rewrite,
    rule,
)

RING = (*WIDE_FLOATS, "int8", "int16", "int32", "int64", "uint8")


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
    terms would grow. float: rounding changes.
    """
    whole = Free(a) | Free(b) | Free(c)
    left, right = (a * b) * c, a * (b * c)
    yield rewrite(left, right).when(differ(Free(a), whole), dtype_in(a, *RING))
    yield rewrite(left, right).when(differ(Free(b) | Free(c), whole), dtype_in(a, *RING))


@rule("algebra")
def divide_by_reciprocal(a: "Expr", b: "Expr") -> Iterator[Rewrite]:
    """a / b  ->  a * (1 / b)
    when: b spans fewer indices than a, so that the division is done less often. float: rounding.
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
def cancel_shift(a: "Expr", b: "Expr", c: "Expr") -> Iterator[Rewrite]:
    """(a + b) - (a + c)  ->  b - c
    when: a is finite (a mask of -inf must leave its NaN); a spans fewer indices than the whole, so
    that work is saved. float: rounding changes.
    """
    yield rewrite((a + b) - (a + c), b - c).when(
        differ(Free(a), Free(a) | Free(b) | Free(c)), dtype_in(a, *WIDE_FLOATS), *finite(a)
    )


@rule("algebra")
def carry_weighted_sum(s: "Expr", r: "Expr", S: "Indices") -> Iterator[Rewrite]:
    """sum_S exp(s - max_S s) * r  ->  weighted_sum_S(s, r), carried with a running maximum
    when: s depends on S (otherwise nothing is carried). float: rounding changes by the rescale.
    """
    weight = apply("exp", s - max_(S, s))
    yield rewrite(sum_(S, weight * r), apply("weighted_sum", S, s, r)).when(
        overlap(S, Free(s)), dtype_in(s, *WIDE_FLOATS)
    )
    one = apply("literal", 1.0, DTypeOf(s))  # type: ignore[arg-type]
    yield rewrite(sum_(S, weight), apply("weighted_sum", S, s, one)).when(
        overlap(S, Free(s)), dtype_in(s, *WIDE_FLOATS)
    )


@rule("distribute")
def distribute_in_sum(a: "Expr", b: "Expr", c: "Expr", S: "Indices") -> Iterator[Rewrite]:
    """sum_S a * (b + c)  ->  sum_S a * b + sum_S a * c,  and the same for b - c
    when: b or c lacks an index of S, so that it may leave the sum; all are finite (0 * inf would
    differ). float: rounding changes.
    """
    for lacking in (b, c):
        guards = (nonempty(S.without(Free(lacking))), dtype_in(a, *WIDE_FLOATS), *finite(a, b, c))
        yield rewrite(sum_(S, a * (b + c)), sum_(S, a * b) + sum_(S, a * c)).when(*guards)
        yield rewrite(sum_(S, a * (b - c)), sum_(S, a * b) - sum_(S, a * c)).when(*guards)


@rule("distribute")
def split_sum_of_sum(a: "Expr", b: "Expr", S: "Indices") -> Iterator[Rewrite]:
    """sum_S (a + b)  ->  sum_S a + sum_S b
    when: a or b lacks an index of S, so that its sum is cheaper. float: rounding changes.
    """
    for lacking in (a, b):
        guards = (nonempty(S.without(Free(lacking))), dtype_in(a, *WIDE_FLOATS), *finite(a, b))
        yield rewrite(sum_(S, a + b), sum_(S, a) + sum_(S, b)).when(*guards)


def one_of(dtype: Variable) -> Node:
    """The literal one."""
    return apply("literal", 1.0, dtype)  # type: ignore[arg-type]


@rule("algebra")
def mul_identity(a: "Expr", d: "Text") -> Iterator[Rewrite]:
    """a * 1  ->  a"""
    yield rewrite(a * one_of(d), a)


@rule("algebra")
def cast_twice(a: "Expr", d: "Text") -> Iterator[Rewrite]:
    """cast_d cast_d a  ->  cast_d a"""
    yield rewrite(apply("cast", d, apply("cast", d, a)), apply("cast", d, a))  # type: ignore[arg-type]


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
