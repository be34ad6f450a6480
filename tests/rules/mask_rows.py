"""Rows of the laws of masks: of comparisons, and of what they leave out."""

from algebra_rows import Miss, Pair, Row, row
from rounding_rows import ROWS
from terms import Terms, add, sub

from eqsat.algebra import Term


@row
def invert_comparison(t: Terms) -> Row:
    a, b = (t.read(name, "ij", "int32") for name in "ab")
    x, y = (t.read(name, "ij") for name in "xy")
    pairs = (
        ("greater", "less_equal"),
        ("less_equal", "greater"),
        ("less", "greater_equal"),
        ("greater_equal", "less"),
    )

    def sides(op: str, inverse: str, a: Term, b: Term) -> Pair:
        return Term("logical_not", Term(op, a, b)), Term(inverse, a, b)

    return Row(
        tuple(sides(*pair, a, b) for pair in pairs),
        (
            Miss(*sides("greater", "greater", a, b)),
            Miss(*sides("greater", "less_equal", x, y), "dtype_in", wrong=False),
        ),
    )


@row
def mask_what_is_left(t: Terms) -> Row:
    a, b = (t.read(name, "ij", "int32") for name in "ab")
    x, y, z = (t.read(name, "ij") for name in "xyz")
    c, e = Term("less", x, y), Term("less", y, z)
    nothing = [t.number(value) for value in (0.0, float("-inf"))]

    def neither(c: Term, e: Term) -> Term:
        return Term("logical_and", Term("logical_not", c), Term("logical_not", e))

    proves = []
    for none in nothing:
        for op, inverse in (
            ("greater", "less_equal"),
            ("less_equal", "greater"),
            ("less", "greater_equal"),
            ("greater_equal", "less"),
        ):
            masked = Term("where", Term(op, a, b), none, x)
            proves.append((masked, Term("where", Term(inverse, a, b), x, none)))
        negated = Term("where", Term("logical_not", c), none, x)
        proves.append((negated, Term("where", c, x, none)))
        either = Term("where", Term("logical_or", c, e), none, x)
        proves.append((either, Term("where", neither(c, e), x, none)))
    none = nothing[0]
    more, less = Term("greater", x, y), Term("less_equal", x, y)
    return Row(
        tuple(proves),
        (
            Miss(Term("where", Term("greater", a, b), none, x), Term("where", c, x, none)),
            Miss(
                Term("where", more, none, x), Term("where", less, x, none), "dtype_in", wrong=False
            ),
            Miss(
                Term("where", Term("logical_and", c, e), none, x),
                Term("where", neither(c, e), x, none),
            ),
        ),
    )


@row
def mask_by_where(t: Terms) -> Row:
    a, c = t.read("a", "ij"), Term("less", t.read("x", "ij"), t.read("y", "ij"))
    mask = Term("where", c, t.number(0), t.number(float("-inf")))
    masked = Term("where", c, a, t.number(float("-inf")))
    other = Term("where", c, t.number(1), t.number(float("-inf")))
    return Row(
        ((add(a, mask), masked), (add(mask, a), masked)),
        (Miss(add(a, other), masked), Miss(sub(a, mask), masked)),
    )


__all__ = ["ROWS"]
