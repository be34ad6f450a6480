"""Values that are compared with their own largest or smallest: computed once, or read from memory.

Computed a second time, in another kernel or another loop, they may round otherwise, and then none
of them equals its own extremum. What carries the extremum and its place along computes them once.
"""

from collections.abc import Collection, Iterable, Iterator

from eqsat.terms.algebra import Term
from eqsat.terms.form import Form

COMPARED = frozenset({"equal", "not_equal"})
EXTREMES = frozenset({"reduce_max", "reduce_min"})


def own_extremes(terms: Iterable[Term]) -> Iterator[tuple[Term, Term]]:
    """(value, its extremum) of each comparison with a value that is computed."""
    for term in terms:
        if term.op in COMPARED:
            a, b = term.children
            for value, top in ((a, b), (b, a)):
                if top.op in EXTREMES and top.children[0] is value and value.op != "read":
                    yield value, top


def met_again(form: Form, names: Collection[str]) -> bool:
    """Whether a loop over the names would compute a value anew to compare it with its extremum."""
    mask = form.facts.universe.mask(names)
    return any(top.args[0] & mask for _, top in own_extremes(form.terms))  # type: ignore[operator]
