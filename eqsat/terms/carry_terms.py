"""Weighted reductions as terms: a law's pivot, and what it gives to rows that are held."""

from collections.abc import Iterable

from eqsat.carry_law import CarryLaw, held, placed
from eqsat.rule import Pattern
from eqsat.terms.algebra import REDUCTIONS, WEIGHTED, Facts, Term


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


def without_factor(s: Term) -> tuple[Term, float]:
    """(a, c) with s = c * a, for a literal c > 0; a mask of -inf is no obstacle."""
    if s.op == "mul":
        for a, b in (s.children, s.children[::-1]):
            if b.op == "literal" and isinstance(b.args[0], float) and 0 < b.args[0] < float("inf"):
                inner, factor = without_factor(a)
                return inner, factor * b.args[0]
    if s.op == "where":
        condition, a, b = s.children
        if b.op == "literal" and b.args[0] == -float("inf"):
            inner, factor = without_factor(a)
            return Term("where", condition, inner, b), factor
    return s, 1.0


def is_pivot(reduction: Term, weighted: Term) -> bool:
    """Whether a reduction is what the weights of another are about, or that but for a factor."""
    pivot = {"max": "reduce_max", "min": "reduce_min", "mean": "reduce_sum"}[law_of(weighted).pivot]
    s = weighted.children[0]
    scores = (s, without_factor(s)[0]) if law_of(weighted).operation else (s,)
    alike = reduction.op == pivot and reduction.args[0] == weighted.args[0]
    return alike and reduction.children[0] in scores


def carried_pivots(terms: Iterable[Term]) -> set[Term]:
    """The reductions among terms that others carry as what their weights are about."""
    every = list(terms)
    weighted = [term for term in every if term.op in WEIGHTED]
    return {term for term in every if term.op in REDUCTIONS for t in weighted if is_pivot(term, t)}


def is_one(r: Term) -> bool:
    """Whether values are the literal 1."""
    return r.op == "literal" and r.args[0] == 1.0
