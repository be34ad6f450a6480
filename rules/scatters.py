"""Laws of scatters: sums over what lies at a position become additions in memory, or products."""

import math
from collections.abc import Iterator

from eqsat.graph.dtypes import iinfo
from eqsat.rule import (
    WIDE_FLOATS,
    Condition,
    Free,
    Mask,
    Node,
    Pattern,
    Rewrite,
    Variable,
    apply,
    disjoint,
    dtype_in,
    finite,
    nonempty,
    rewrite,
    rule,
)
from eqsat.rules.algebra import sum_

# What a scatter adds up in memory: numbers of 4 or 8 bytes.
ADDED = ("float32", "float64", "int32", "int64")


def scatter(monoid: str, S: Variable, v: Variable, q: Variable, x: Pattern) -> Node:
    """scatter_S(v, position q, x): x combined with what lies at position v"""
    return apply(f"scatter_{monoid}", S, v, apply("position", q), x)


def hits(v: Variable, q: Variable) -> Node:
    """v == position q"""
    return apply("equal", v, apply("position", q))


def apart(q: Variable, S: Variable, known: Mask) -> tuple[Condition, ...]:
    """The position is of an index that is neither reduced nor known; S is known."""
    place = Free(apply("position", q))
    return nonempty(place), disjoint(place, known | S), disjoint(S, S.without(known))


@rule("algebra")
def equal_commute(v: "Expr", q: "Place") -> Iterator[Rewrite]:
    """s == v  ->  v == s,  for a position s"""
    yield rewrite(apply("equal", apply("position", q), v), hits(v, q))


@rule("algebra")
def scatter_selected(
    v: "Expr", x: "Expr", q: "Place", S: "Indices", d: "Text"
) -> Iterator[Rewrite]:
    """sum_S where(v == s, x, 0)  ->  scatter_sum_S(v, s, x),  which adds x at position v
    when: s is an index of neither S nor v nor x, each index of S is one of theirs; x has 4 or 8
    bytes. The same for maxima and -inf, minima and inf, or limits of integers, of which a term's
    number, a float64, is none of the largest int64. float: the order of additions changes.
    """
    lowest = [("max", float(iinfo(dtype).min), (dtype,)) for dtype in ("int32", "int64")]
    cases = (
        ("sum", 0.0, ADDED),
        *(("max", -math.inf, WIDE_FLOATS), *lowest),
        *(("min", math.inf, WIDE_FLOATS), ("min", float(iinfo("int32").max), ("int32",))),
    )
    for monoid, number, dtypes in cases:
        chosen = apply("where", hits(v, q), x, apply("literal", number, d))
        guards = (*apart(q, S, Free(v) | Free(x)), dtype_in(x, *dtypes))
        whole = apply(f"reduce_{monoid}", S, chosen)
        yield rewrite(whole, scatter(monoid, S, v, q, x)).when(*guards)


@rule("algebra")
def scatter_product(v: "Expr", x: "Expr", q: "Place", S: "Indices", d: "Text") -> Iterator[Rewrite]:
    """sum_S cast(v == s) * x  ->  scatter_sum_S(v, s, x)
    when: as for scatter_selected. Where x is infinite the product has NaN in every other sum.
    """
    guards = (*apart(q, S, Free(v) | Free(x)), dtype_in(x, *ADDED))
    member = apply("cast", d, hits(v, q))
    yield rewrite(sum_(S, member * x), scatter("sum", S, v, q, x)).when(*guards)


@rule("algebra")
def scatter_count(v: "Expr", q: "Place", S: "Indices") -> Iterator[Rewrite]:
    """sum_S cast(v == s)  ->  scatter_sum_S(v, s, 1)
    when: s is no index of S or v, each index of S is one of v.
    """
    for dtype in ADDED:
        one = apply("literal", 1.0, dtype)
        counted = sum_(S, apply("cast", dtype, hits(v, q)))
        yield rewrite(counted, scatter("sum", S, v, q, one)).when(*apart(q, S, Free(v)))


@rule("algebra")
def multiply_selected(
    v: "Expr", x: "Expr", q: "Place", S: "Indices", d: "Text"
) -> Iterator[Rewrite]:
    """sum_S where(v == s, x, 0)  ->  sum_S cast(v == s) * x,  a product of matrices
    when: x is finite; it spans an index that v lacks, besides S (otherwise nothing is shared).
    """
    chosen = apply("where", hits(v, q), x, apply("literal", 0.0, d))
    product = apply("cast", d, hits(v, q)) * x
    yield rewrite(sum_(S, chosen), sum_(S, product)).when(
        nonempty(Free(x).without(Free(v) | S)), dtype_in(x, *WIDE_FLOATS), *finite(x)
    )
