"""Rows of the laws by which sums distribute, as `algebra_rows` has them."""

from algebra_rows import ROWS, Miss, Pair, Row, row
from terms import Terms, add, mul, sub

from eqsat.terms.algebra import Term

__all__ = ["ROWS"]


@row
def distribute_in_sum(t: Terms) -> Row:
    a, b, c = t.read("a", "j"), t.read("b", "ij"), t.read("c", "i")
    x, y, z = t.read("x", "j", "float16"), t.read("y", "ij", "float16"), t.read("z", "i", "float16")

    far = sub(b, mul(t.sum("j", b), t.number(1 / 3)))
    k = t.cast(t.dtype, y)  # as many digits as a 16-bit float has
    p, q = Term("square", b), Term("square", c)

    def split(join: str, p: Term, q: Term, a: Term = a) -> Pair:
        return (
            t.sum("j", mul(a, Term(join, p, q))),
            Term(join, t.sum("j", mul(a, p)), t.sum("j", mul(a, q))),
        )

    infinite = split("add", k, c)
    return Row(
        (
            *(split("add", c, k), split("add", k, c), split("sub", c, k), split("sub", k, c)),
            *(split("sub", c, k, Term("square", far)), split("sub", k, c, Term("square", far))),
            *(split("add", p, q), split("add", q, p)),
        ),
        (
            Miss(*split("add", k, k), "nonempty", wrong=False),
            Miss(
                t.sum("j", mul(x, add(y, z))),
                add(t.sum("j", mul(x, y)), t.sum("j", mul(x, z))),
                "dtype_in",
                wrong=False,
            ),
            Miss(*infinite, "finite", awkward=("a",)),
            Miss(*split("sub", k, c, far), "given", wrong=False),  # a covariance
            Miss(*split("sub", b, c), "coarse", wrong=False),  # from a number near all of b
            Miss(*split("add", b, c), wrong=False),
        ),
    )


@row
def scale_weight(t: Terms) -> Row:
    a, b, c, s = t.read("a", "ij"), t.read("b", "jk"), t.read("c", "i"), t.read("s")
    h, k, r = t.read("h", "ij", "float16"), t.read("k", "jk", "float16"), t.read("r", "", "float16")

    def scaled(s: Term, a: Term, b: Term) -> Pair:
        return mul(s, t.sum("j", mul(a, b))), t.sum("j", mul(mul(s, a), b))

    return Row(
        (scaled(s, a, b),),
        (
            Miss(*scaled(c, a, b), "disjoint", False),
            Miss(*scaled(s, a, a), "nonempty", False),
            Miss(*scaled(s, Term("exp", a), b), wrong=False),
            Miss(*scaled(s, a, b), "finite", awkward=("s",)),
            Miss(*scaled(r, h, k), "dtype_in", False),
        ),
    )


@row
def distribute_weights_in_sum(t: Terms) -> Row:
    a, c, p, r = t.read("a", "jk"), t.read("c", "ij"), t.read("p", "ij"), t.read("r", "i")
    x, y = t.read("x", "jk", "float16"), t.read("y", "ij", "float16")
    q = t.read("q", "i", "float16")
    weights = mul(Term("exp", p), r)

    def split(join: str, b: Term, other: Term, a: Term = a) -> Pair:
        return (
            t.sum("j", mul(a, Term(join, b, other))),
            Term(join, t.sum("j", mul(a, b)), t.sum("j", mul(a, other))),
        )

    return Row(
        (split("add", weights, c), split("sub", weights, c), split("sub", c, weights)),
        (
            Miss(*split("add", p, c), wrong=False),
            Miss(*split("add", mul(Term("exp", p), c), p), "nonempty", wrong=False),
            Miss(*split("add", mul(Term("exp", y), q), y, x), "dtype_in", wrong=False),
            Miss(*split("add", weights, c), "finite", awkward=("a",)),
        ),
    )


@row
def split_sum_of_sum(t: Terms) -> Row:
    b, c, w = t.read("b", "ij"), t.read("c", "i"), t.read("w", "ij", "float16")
    y, z = t.read("y", "ij", "float16"), t.read("z", "i", "float16")

    def split(p: Term, q: Term) -> Pair:
        return t.sum("j", add(p, q)), add(t.sum("j", p), t.sum("j", q))

    k, p, q = t.cast(t.dtype, y), Term("square", b), Term("square", c)
    return Row(
        (split(c, k), split(k, c), split(p, q), split(q, p)),
        (
            Miss(*split(k, t.cast(t.dtype, w)), "nonempty", wrong=False),
            Miss(*split(y, z), "dtype_in", wrong=False),
            Miss(*split(k, c), "finite", wrong=False, awkward=("y", "c")),
            Miss(*split(b, c), wrong=False),
        ),
    )


@row
def sum_of_deviations(t: Terms) -> Row:
    """From a tenth of the sum, and from one that is weighted."""
    points = t.universe.extents["j"]
    x, a, b, c = t.read("x", "ij"), t.read("a", "ij"), t.read("b", "i"), t.read("c", "i")
    w, v, k = t.read("w", "j"), t.read("v", "ij"), t.number(0.1)
    n = t.read("n", "ij", "int32")

    def apart(y: Term, factor: Term) -> Term:
        return sub(y, mul(t.sum("j", y), factor))

    def left(y: Term, factor: Term) -> Term:
        return mul(sub(t.number(1), mul(t.number(points), factor)), t.sum("j", y))

    def weighted(factor: Term, by: Term) -> Pair:
        whole = t.sum("j", add(a, mul(apart(x, factor), by)))
        return whole, add(t.sum("j", a), mul(by, left(x, factor)))

    one, count = t.number(1, "int32"), t.number(points, "int32")
    whole = t.sum("j", sub(n, mul(t.sum("j", n), one)))
    return Row(
        (
            weighted(k, b),
            weighted(c, b),
            (t.sum("j", apart(x, c)), left(x, c)),
        ),
        (
            Miss(*weighted(k, w), "disjoint"),
            Miss(t.sum("j", apart(x, w)), left(x, w), "disjoint"),
            Miss(t.sum("j", sub(x, mul(t.sum("j", v), k))), left(x, k)),
            Miss(whole, mul(sub(one, mul(count, one)), t.sum("j", n)), "dtype_in", wrong=False),
        ),
    )


@row
def split_sum_of_products(t: Terms) -> Row:
    """A row of numbers beside a product of matrices, and a product that has no row to share."""
    a, b, c = t.read("a", "ik"), t.read("b", "kj"), t.read("c", "j")
    x, y, z = (t.read(n, i, "float16") for n, i in (("x", "ik"), ("y", "kj"), ("z", "j")))
    whole = t.read("w", "ijk")

    def split(p: Term, q: Term) -> Pair:
        return t.sum("j", add(p, q)), add(t.sum("j", p), t.sum("j", q))

    product = t.sum("k", mul(a, b))
    shared = split(product, c)
    return Row(
        (shared, (split(c, product)[0], shared[1])),
        (
            Miss(*split(t.sum("k", mul(whole, b)), c), "nonempty", wrong=False),
            Miss(*split(t.sum("k", mul(x, y)), z), "dtype_in", wrong=False),
            Miss(*shared, "finite", wrong=False, awkward=("a", "c")),
            Miss(*split(t.sum("k", whole), c), wrong=False),
        ),
    )
