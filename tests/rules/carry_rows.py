"""Rows of the rules that carry laws give: for each shipped law, and for one that a user adds."""

import math
from collections.abc import Callable

from algebra_rows import Miss, Pair, Row, row
from kernel_cases import Case
from mask_rows import ROWS
from terms import Terms, add, mul, sub

from eqsat.carry_law import CarryLaw, carry_law, placed
from eqsat.graph import divide, maximum, pow
from eqsat.graph.reductions import FAR, NOWHERE
from eqsat.rules.carries import LAWS, SOFTMAX
from eqsat.terms.algebra import Facts, Term
from eqsat.terms.carry_terms import definition, number, pivot_of

BASE_3 = carry_law("base_3", lambda s, p: pow(3.0, s - p), lambda p, q: pow(3.0, p - q))
SHARE = carry_law(
    "share",
    lambda s, p: divide(s, p),
    lambda p, q: divide(p, q),
    identity=0.0,
    domain="nonneg",
)
LOWEST = carry_law(
    "lowest",
    lambda s, p: pow(0.5, s - p),
    lambda p, q: pow(0.5, p - q),
    pivot="min",
    identity=float("inf"),
)
HINGE = carry_law(
    "hinge",
    lambda s, p: (maximum(s, 0.0) + 1.0) / (maximum(p, 0.0) + 1.0),
    lambda p, q: (maximum(p, 0.0) + 1.0) / (maximum(q, 0.0) + 1.0),
    identity=None,
)
SAMPLES = ("s", "ij", ""), ("w", "ij", "float64"), ("u", "i", ""), ("h", "ij", "float16")
OWN = (BASE_3, SHARE, LOWEST, HINGE)  # laws that a user may add


def weighted(t: Terms, names: str, s: Term, law: CarryLaw) -> Term:
    """The sum of weights over names, as a program writes it."""
    facts = Facts(t.universe)
    pivot = pivot_of(t.weighted(names, s, t.number(1), law), facts)
    at = {"s": s, "p": pivot}
    return placed(law.weight, at, lambda value: number(value, s, facts), Term)


def points(t: Terms, law: CarryLaw, buffer: str = "s", dtype: str = "") -> Term:
    """Points of a law's domain over i and j."""
    read = t.read(buffer, "ij", dtype)
    return Term("square", read) if law.domain else read


def first(
    t: Terms, s: Term, law: CarryLaw, over: str = "j", none: float = NOWHERE, but: str = ""
) -> Pair:
    """The first position along j where weights count: as a program writes it, and carried. Of those
    for which a condition does not hold, where `but` names its buffer.
    """
    place, nowhere = t.place("j"), t.number(none, "int64")
    if but:
        place = Term("where", Term("less", t.read(but, "ij"), t.number(0)), nowhere, place)
    chosen = Term("where", weighted(t, over, s, law), place, nowhere)
    carried = Term("weighted_min", t.mask("j"), s, sub(place, nowhere), law)
    return Term("reduce_min", t.mask("j"), chosen), add(carried, nowhere)


def first_row(t: Terms, law: CarryLaw) -> Row:
    """What `carry_NAME` proves and refuses of a law whose total is a minimum."""
    s, u, n = t.read("s", "ij"), t.read("u", "i"), t.read("n", "ij", "int32")
    half = t.read("h", "ij", "float16")
    return Row(
        (
            *(first(t, s, law, none=far, but=but) for far in (NOWHERE, FAR) for but in ("", "b")),
            first(t, half, law),
        ),
        (
            Miss(*first(t, s, law, over="i")),
            Miss(*first(t, s, law, none=99), wrong=False),  # whether it is more than any position
            Miss(*first(t, u, law), "overlap", wrong=False),
            Miss(*first(t, n, law), "dtype_in", wrong=False),
        ),
    )


def carry_row(law: CarryLaw) -> Callable[[Terms], Row]:
    """What `carry_NAME` proves and refuses."""

    def rows(t: Terms) -> Row:
        if law.monoid == "min":
            return first_row(t, law)
        s, r, h = points(t, law), t.read("r", "jk"), points(t, law, "h", "float16")
        one, half = t.number(1), t.number(1, "float16")
        weight, other = weighted(t, "j", s, law), weighted(t, "i", s, law)
        wide = points(t, law, "w", "float64")
        proves = [
            (t.sum("j", weight), t.weighted("j", s, one, law)),
            (
                t.sum("j", weighted(t, "j", wide, law)),
                t.weighted("j", wide, t.number(1, "float64"), law),
            ),
        ]
        refuses = [
            Miss(t.sum("j", other), t.weighted("j", s, one, law)),
            Miss(t.sum("ij", weight), t.weighted("ij", s, one, law)),
            Miss(
                t.sum("j", weighted(t, "j", h, law)),
                t.weighted("j", h, half, law),
                "dtype_in",
                wrong=False,
            ),
        ]
        if law.shift:
            total = t.sum("jk", weighted(t, "jk", s, law))
            refuses.append(Miss(total, t.weighted("jk", s, one, law), "disjoint", wrong=False))
        else:
            product = mul(weighted(t, "j", wide, law), t.read("v", "jk", "float64"))
            proves.append((t.sum("j", mul(weight, r)), t.weighted("j", s, r, law)))
            proves.append((t.sum("j", product), t.weighted("j", wide, product.children[1], law)))
            refuses.append(Miss(t.sum("j", mul(other, r)), t.weighted("j", s, r, law)))
        if not law.shift and not law.domain:
            u = t.read("u", "i")
            total = t.sum("j", mul(weighted(t, "j", u, law), r))
            refuses.append(Miss(total, t.weighted("j", u, r, law), "overlap", wrong=False))
        return Row(tuple(proves), tuple(refuses))

    rows.__name__ = f"carry_{law.name}"
    return rows


@row
def carry_guarded_softmax(t: Terms) -> Row:
    """As a logsumexp writes it; rows of `a` hold infinities."""

    def guarded(s: Term, over: str = "j") -> Term:
        top = t.max(over, s)
        kind = Facts(t.universe).dtype(s).name
        shift = Term("where", Term("isfinite", top), top, t.number(0, kind))
        return t.sum("j", Term("exp", sub(s, shift)))

    def carried(s: Term) -> Term:
        top, kind = t.max("j", s), Facts(t.universe).dtype(s).name
        total = t.weighted("j", s, t.number(1, kind), SOFTMAX)
        return Term("where", Term("isfinite", top), total, Term("exp", top))

    s, w, u, h = (t.read(n, i, d) for n, i, d in SAMPLES)
    plain = t.sum("j", Term("exp", sub(s, t.max("j", s))))
    return Row(
        ((guarded(s), carried(s)), (guarded(w), carried(w))),
        (
            Miss(guarded(s, "i"), carried(s)),
            Miss(plain, carried(s), wrong=False),
            Miss(guarded(u), carried(u), "overlap", wrong=False),
            Miss(guarded(h), carried(h), "dtype_in", wrong=False),
        ),
    )


@row
def weight_is_finite(t: Terms) -> Row:
    a, b, s = t.read("a", "ij"), t.read("b", "ij"), t.read("s", "ij")
    asked = Term("less", t.read("c", "ij"), t.number(0))

    def lost(over: str, value: float = float("inf"), join: str = "logical_and") -> Term:
        weight = Term("exp", sub(s, t.max(over, s)))
        full = Term("equal", weight, t.number(value))
        return Term("where", Term(join, asked, full), a, b)

    large = Term("exp", mul(s, t.number(1e4)))
    free = Term("equal", large, t.number(float("inf")))
    return Row(
        ((lost("j"), b), (lost("i"), b)),
        (
            Miss(lost("j", 1.0), b),
            Miss(lost("j", join="logical_or"), b),
            Miss(Term("where", Term("logical_and", asked, free), a, b), b),
        ),
    )


@row
def weight_of_logsumexp(t: Terms) -> Row:
    a, b, x, y = t.read("a", "ik"), t.read("b", "jk"), t.read("x", "ij"), t.read("y", "i")
    h, k = (t.cast("float32", t.read(n, m, "bfloat16")) for n, m in (("h", "ik"), ("k", "jk")))
    s, u, long = t.sum("k", mul(h, k)), t.read("u", "ij"), t.sum("k", mul(a, b))

    def parts(s: Term) -> tuple[Term, Term, Term]:
        top = t.max("j", s)
        power = Term("exp", sub(s, top))
        total = t.sum("j", power)
        return power, Term("reciprocal", total), Term("exp", sub(s, add(top, Term("log", total))))

    def weighted(s: Term) -> tuple[Term, Term]:
        power, inverse, weight = parts(s)
        return mul(power, inverse), weight

    def differing(s: Term, third: Term) -> tuple[Term, Term]:
        power, inverse, weight = parts(s)
        difference = add(mul(inverse, x), Term("neg", mul(third, y)))
        return mul(power, difference), mul(weight, sub(x, y))

    def masked(never: float) -> Term:
        return Term("where", Term("less", x, t.number(0)), mul(s, t.number(0.5)), t.number(never))

    hidden = masked(-math.inf)
    return Row(
        (weighted(s), weighted(hidden), differing(s, parts(s)[1])),
        (
            Miss(*weighted(masked(-1e9)), "summed", wrong=False),  # a row of it alone: 1e9 is exact
            Miss(*weighted(add(s, u)), "summed", wrong=False),
            Miss(*weighted(u), "summed", wrong=False),  # of what lies in memory more bits count
            Miss(*weighted(long), "summed", wrong=False),  # as of float32 factors
            Miss(*differing(s, t.read("r", "i"))),
            Miss(weighted(s)[0], weighted(hidden)[1]),
        ),
    )


def hold_cases(t: Terms, law: CarryLaw) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """What `hold_NAME` proves and refuses."""
    if law.monoid == "min":
        s, a = t.read("s", "ij"), t.read("a", "ij")
        (held, carried), (other, _) = first(t, s, law), first(t, a, law)
        some, more = first(t, s, law, but="b")
        return (Case(carried, held), Case(more, some)), (Case(carried, other),)
    s, a, r, facts = points(t, law), points(t, law, "a"), t.read("r", "jk"), Facts(t.universe)
    totals = [t.weighted("j", s, t.number(1), law)]
    totals += [] if law.shift else [t.weighted("j", s, r, law)]
    proves = [Case(total, definition(total, facts)) for total in totals]
    wrong = definition(t.weighted("j", a, t.number(1), law), facts)
    refuses = [Case(totals[0], wrong), Case(t.weighted("i", s, t.number(1), law), proves[0].right)]
    if law.operation:
        held = proves[0].right.children[0]
        proves.append(Case(weighted(t, "j", s, law), held))
        wide = points(t, law, "w", "float64")
        total = t.weighted("j", wide, t.number(1, "float64"), law)
        proves.append(Case(weighted(t, "j", wide, law), definition(total, facts).children[0]))
        refuses.append(Case(weighted(t, "i", s, law), held))
    return tuple(proves), tuple(refuses)


for _law in (*LAWS, *OWN):
    row(carry_row(_law))

__all__ = ["LAWS", "OWN", "ROWS", "hold_cases"]
