"""Weighted reductions as terms: a law's pivot, and what it gives to rows that are held."""

from eqsat.algebra import Facts, Term
from eqsat.carry_law import CarryLaw, held, placed
from eqsat.rule import Pattern


def law_of(term: Term) -> CarryLaw:
    """The law of a weighted reduction, its last argument."""
    law = term.args[-1]
    assert isinstance(law, CarryLaw)
    return law


def number(value: float, like: Term, facts: Facts) -> Term:
    """A literal of a term's dtype."""
    return Term("literal", value, facts.dtype(like).name)


def mean(mask: int, total: Term, facts: Facts) -> Term:
    """A total over the names of a mask, divided by the number of their points."""
    return Term("div", total, number(float(facts.universe.size(mask)), total, facts))


def pivot_of(term: Term, facts: Facts) -> Term:
    """The pivot of a weighted reduction."""
    law, mask, s = law_of(term), term.args[0], term.children[0]
    assert isinstance(mask, int)
    if law.pivot == "mean":
        return mean(mask, Term("reduce_sum", mask, s), facts)
    return Term(f"reduce_{law.pivot}", mask, s)


def definition(term: Term, facts: Facts) -> Term:
    """A weighted reduction as the reduction of products that it is."""
    law, (s, r) = law_of(term), term.children
    weight = held(law, s, pivot_of(term, facts), lambda value: number(value, s, facts), Term)
    if term.op == "weighted_min":
        chosen = Term("where", weight, r, number(0.0, r, facts))
        return Term("reduce_min", term.args[0], chosen)
    return Term("reduce_sum", term.args[0], weight if is_one(r) else Term("mul", weight, r))


def shifted(law: CarryLaw, pivots: tuple[Term, Term], facts: Facts) -> Term:
    """t(p, q) of two pivots."""
    p, q = pivots
    shift: Pattern | None = law.shift
    assert shift is not None
    return placed(shift, {"p": p, "q": q}, lambda value: number(value, p, facts), Term)


def is_one(r: Term) -> bool:
    """Whether values are the literal 1."""
    return r.op == "literal" and r.args[0] == 1.0
