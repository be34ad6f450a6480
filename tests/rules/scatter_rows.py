"""Rows of the laws that make scatters, as `algebra_rows` has them."""

import math

from algebra_rows import Miss, Pair, Row, row
from power_rows import ROWS
from terms import Terms, mul

from eqsat.graph.index import const
from eqsat.terms.algebra import Term

__all__ = ["ROWS"]


@row
def equal_commute(t: Terms) -> Row:
    v, s = t.read("v", "i", "int64"), t.place("j")
    return Row(
        ((Term("equal", s, v), Term("equal", v, s)),),
        (Miss(Term("less", s, v), Term("less", v, s)),),
    )


@row
def scatter_selected(t: Terms) -> Row:
    v, s = t.read("v", "i", "int64"), t.place("j")
    x, h, y = t.read("x", "ik"), t.read("h", "ik", "float16"), t.read("y", "ijk")
    n, m = t.read("n", "ik", "int32"), t.read("m", "ik", "int64")

    def chosen(value: Term, empty: float = 0.0, dtype: str = "float32") -> Term:
        return Term("where", Term("equal", v, s), value, t.number(empty, dtype))

    def pair(op: str, empty: float) -> Pair:
        reduced = Term(f"reduce_{op}", t.mask("i"), chosen(x, empty))
        return reduced, t.scatter(op, "i", v, s, x)

    def whole(op: str, empty: float, value: Term = n, dtype: str = "int32") -> Pair:
        reduced = Term(f"reduce_{op}", t.mask("i"), chosen(value, empty, dtype))
        return reduced, t.scatter(op, "i", v, s, value)

    pairs = [pair("sum", 0.0), pair("max", -math.inf), pair("min", math.inf)]
    pairs += [whole("sum", 0.0), whole("max", -(2.0**31)), whole("min", 2.0**31 - 1)]
    pairs.append(whole("max", -(2.0**63), m, "int64"))
    wide = t.sum("it", chosen(x)), t.scatter("sum", "it", v, s, x)
    halves = t.sum("i", chosen(h, dtype="float16")), t.scatter("sum", "i", v, s, h)
    first = Term("where", Term("equal", v, Term("position", const(0))), x, t.number(0))
    constant = t.sum("i", first), t.scatter("sum", "i", v, Term("position", const(0)), x)
    return Row(
        tuple(pairs),
        (
            Miss(*wide, "disjoint", wrong=False),
            Miss(t.sum("i", chosen(y)), t.scatter("sum", "i", v, s, y), "disjoint", wrong=False),
            Miss(*halves, "dtype_in", wrong=False),
            Miss(*constant, "nonempty", wrong=False),
            Miss(t.sum("i", chosen(x, 1.0)), pairs[0][1]),
            Miss(*whole("max", 0.0)),
        ),
    )


@row
def scatter_product(t: Terms) -> Row:
    v, s = t.read("v", "i", "int64"), t.place("j")
    x, n, y = t.read("x", "ik"), t.read("n", "ik", "int8"), t.read("y", "ijk")

    def pair(value: Term, dtype: str = "float32", over: str = "i") -> Pair:
        product = mul(t.cast(dtype, Term("equal", v, s)), value)
        return t.sum(over, product), t.scatter("sum", over, v, s, value)

    none = t.cast("float32", Term("equal", v, Term("position", const(0))))
    constant = t.scatter("sum", "i", v, Term("position", const(0)), x)
    return Row(
        (pair(x),),
        (
            Miss(*pair(y), "disjoint", wrong=False),
            Miss(*pair(n, "int8"), "dtype_in", wrong=False),
            Miss(t.sum("i", mul(none, x)), constant, "nonempty", wrong=False),
        ),
    )


@row
def scatter_count(t: Terms) -> Row:
    v, s = t.read("v", "i", "int64"), t.place("j")

    def pair(dtype: str, over: str = "i", place: Term = s) -> Pair:
        counted = t.sum(over, t.cast(dtype, Term("equal", v, place)))
        return counted, t.scatter("sum", over, v, place, t.number(1, dtype))

    return Row(
        tuple(pair(dtype) for dtype in ("float32", "float64", "int32", "int64")),
        (
            Miss(*pair("float32", "ij"), "disjoint", wrong=False),
            Miss(*pair("float32", place=Term("position", const(0))), "nonempty", wrong=False),
            Miss(t.sum("i", t.cast("float32", Term("less", v, s))), pair("float32")[1]),
        ),
    )


@row
def multiply_selected(t: Terms) -> Row:
    v, s = t.read("v", "i", "int64"), t.place("j")
    x, y, n = t.read("x", "ik"), t.read("y", "i"), t.read("n", "ik", "int32")

    def pair(value: Term, dtype: str = "float32") -> Pair:
        hit = Term("equal", v, s)
        chosen = t.sum("i", Term("where", hit, value, t.number(0, dtype)))
        return chosen, t.sum("i", mul(t.cast(dtype, hit), value))

    return Row(
        (pair(x),),
        (
            Miss(*pair(x), "finite", awkward=("x",)),
            Miss(*pair(y), "nonempty", wrong=False),
            Miss(*pair(n, "int32"), "dtype_in", wrong=False),
        ),
    )
