"""Laws that distribute: sums of sums, and of products with sums, one by one.

They run between rounds of the others, since what they make is more terms.
"""

from collections.abc import Iterator

from eqsat.rule import (
    WIDE_FLOATS,
    Condition,
    Free,
    Rewrite,
    apply,
    dtype_in,
    finite,
    known,
    nonempty,
    rewrite,
    rule,
)
from eqsat.rules.algebra import sum_


def _keeps_digits(other: "Expr", b: "Expr", c: "Expr") -> Iterator[tuple[Condition, ...]]:
    """When sums of b and of c have as many digits as that of b + c."""
    yield known("coarse", other)
    yield (*known("nonneg", b), *known("nonneg", c))


@rule("distribute")
def distribute_in_sum(a: "Expr", b: "Expr", c: "Expr", S: "Indices") -> Iterator[Rewrite]:
    """sum_S a * (b + c)  ->  sum_S a * b + sum_S a * c,  and the same for b - c
    when: b or c lacks an index of S, so that it may leave the sum; all are finite (0 * inf would
    differ); the other is a 16-bit float or a sum of products of such, so that as many digits are
    left of a difference, or both are at least 0; where b - c may be a deviation from a mean, a is
    none, but made of what is read, or at least 0: a covariance would have no right digit left
    where the mean is large. float: rounding changes.
    """
    for lacking, other in ((b, c), (c, b)):
        guards = (nonempty(S.without(Free(lacking))), dtype_in(a, *WIDE_FLOATS), *finite(a, b, c))
        for kept in _keeps_digits(other, b, c):
            yield rewrite(sum_(S, a * (b + c)), sum_(S, a * b) + sum_(S, a * c)).when(
                *guards, *kept
            )
        for plain in (known("given", a), known("nonneg", a)):
            apart = rewrite(sum_(S, a * (b - c)), sum_(S, a * b) - sum_(S, a * c))
            yield apart.when(*guards, *plain, *known("coarse", other))


@rule("distribute")
def distribute_weights_in_sum(
    a: "Expr", c: "Expr", p: "Expr", r: "Expr", S: "Indices"
) -> Iterator[Rewrite]:
    """sum_S a * (exp(p) * r + c)  ->  sum_S a * (exp(p) * r) + sum_S a * c,  and for differences
    when: r lacks an index of S, as what divides weights by their sum does; all are finite (0 * inf
    would differ). float: rounding changes.
    """
    b = apply("exp", p) * r
    guards = (nonempty(S.without(Free(r))), dtype_in(a, *WIDE_FLOATS), *finite(a, b, c))
    yield rewrite(sum_(S, a * (b + c)), sum_(S, a * b) + sum_(S, a * c)).when(*guards)
    yield rewrite(sum_(S, a * (b - c)), sum_(S, a * b) - sum_(S, a * c)).when(*guards)
    yield rewrite(sum_(S, a * (c - b)), sum_(S, a * c) - sum_(S, a * b)).when(*guards)


@rule("distribute")
def split_sum_of_sum(a: "Expr", b: "Expr", S: "Indices") -> Iterator[Rewrite]:
    """sum_S (a + b)  ->  sum_S a + sum_S b
    when: a or b lacks an index of S, so that its sum is cheaper; the other is a 16-bit float or a
    sum of products of such, or both are at least 0: else no digit might be left of a difference.
    float: rounding changes.
    """
    for lacking, other in ((a, b), (b, a)):
        guards = (nonempty(S.without(Free(lacking))), dtype_in(a, *WIDE_FLOATS), *finite(a, b))
        for kept in _keeps_digits(other, a, b):
            yield rewrite(sum_(S, a + b), sum_(S, a) + sum_(S, b)).when(*guards, *kept)


@rule("distribute")
def split_sum_of_products(
    a: "Expr", b: "Expr", c: "Expr", S: "Indices", T: "Indices"
) -> Iterator[Rewrite]:
    """sum_S (sum_T a * b + c)  ->  sum_S sum_T a * b + sum_S c
    when: a lacks an index of S, so that b is summed over it before it is multiplied; all are finite
    (inf - inf would differ). float: rounding changes, by about as much as that of the products: of
    a sum that is near -c these have as few right digits.
    """
    product = sum_(T, a * b)
    guards = (nonempty(S.without(Free(a))), dtype_in(a, *WIDE_FLOATS), *finite(a, b, c))
    for whole in (product + c, c + product):
        yield rewrite(sum_(S, whole), sum_(S, product) + sum_(S, c)).when(*guards)
