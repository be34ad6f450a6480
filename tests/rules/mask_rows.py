"""Rows of the laws of masks: of comparisons, and of what they leave out."""

from algebra_rows import Miss, Pair, Row, row
from rounding_rows import ROWS
from terms import Terms, add, sub

from eqsat.terms.algebra import Term


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


@row
def chosen_truth(t: Terms) -> Row:
    c = Term("less", t.read("x", "ij"), t.read("y", "ij"))
    true, false = (t.number(value, "bool") for value in (1, 0))
    return Row(
        (
            (Term("where", c, true, false), c),
            (Term("where", c, false, true), Term("logical_not", c)),
        ),
        (Miss(Term("where", c, true, true), c), Miss(Term("where", c, false, true), c)),
    )


@row
def question_of_mask(t: Terms) -> Row:
    c = Term("less", t.read("x", "ij"), t.read("y", "ij"))
    zero, one, two = (t.number(value) for value in (0, 1, 2))
    mask, negated = Term("where", c, one, zero), Term("logical_not", c)
    holds = {"not_equal": zero, "equal": one, "greater": zero, "greater_equal": one}
    fails = {"equal": zero, "not_equal": one, "less_equal": zero, "less": one}
    return Row(
        (
            *((Term(op, mask, number), c) for op, number in holds.items()),
            (Term("cast", "bool", mask), c),
            *((Term(op, mask, number), negated) for op, number in fails.items()),
        ),
        (
            Miss(Term("equal", mask, two), c),
            Miss(Term("greater", mask, one), c),
            Miss(Term("equal", Term("where", c, two, zero), one), c),
        ),
    )


@row
def rest_of_mask(t: Terms) -> Row:
    c = Term("less", t.read("x", "ij"), t.read("y", "ij"))
    zero, one, two = (t.number(value) for value in (0, 1, 2))
    mask, rest = Term("where", c, one, zero), Term("where", c, zero, one)
    return Row(
        ((sub(one, mask), rest),),
        (Miss(sub(two, mask), rest), Miss(sub(one, Term("where", c, two, zero)), rest)),
    )


@row
def within_distance(t: Terms) -> Row:
    a, b, c = (t.read(name, "ij", "int32") for name in "abc")
    x, y, z = (t.read(name, "ij") for name in "xyz")
    u, v, w = (t.read(name, "ij", "uint8") for name in "uvw")

    def sides(op: str, joined: str, a: Term, b: Term, c: Term) -> Pair:
        both = Term(joined, Term(op, sub(a, b), c), Term(op, sub(b, a), c))
        return Term(op, Term("abs", sub(a, b)), c), both

    ways = {
        "less": "logical_and",
        "less_equal": "logical_and",
        "greater": "logical_or",
        "greater_equal": "logical_or",
    }
    return Row(
        tuple(sides(op, joined, a, b, c) for op, joined in ways.items()),
        (
            Miss(*sides("less", "logical_or", a, b, c)),
            Miss(*sides("greater", "logical_and", a, b, c)),
            Miss(*sides("less", "logical_and", x, y, z), "dtype_in", wrong=False),
            Miss(*sides("less", "logical_and", u, v, w), "dtype_in"),
        ),
    )


__all__ = ["ROWS"]
