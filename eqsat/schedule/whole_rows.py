"""Reductions of what products leave, in the kernel of the products: tiles that have whole rows.

In the plain form of `max_n sum_k x[m,k] * w[k,n]` there is a loop over n, and in each of its tiles
all of k at once, for which no tile has room where k is long. Here a tile has every n, k is
streamed, and the rows that the products leave are reduced where they lie. Of rows that are too long
for that each tile has a part (`PartMenu` in eqsat.schedule.reduction_parts).
"""

from eqsat.schedule.reduction_parts import LONGEST_ROW, divide
from eqsat.terms.algebra import SCANS, SCATTERS, Facts, Term, post_order
from eqsat.terms.form import Form, form, is_product

LONG = 256  # points of a sum, beyond which no tile has all of them at once


def with_whole_rows(made: Form) -> Form | None:
    """The form of tiles that have whole rows; None where no long sum of products lies inside the
    loop of another reduction, or rows are too long and not of one name.
    """
    facts = made.facts
    if any(t.op in SCANS or t.op in SCATTERS for t in made.terms):
        return None
    long = {t for t in made.terms if is_product(t, facts) and facts.universe.size(_over(t)) > LONG}
    whole = 0
    for outer in made.phase if long else ():
        inside = long & {*post_order(outer.children)}
        for term in inside:
            whole |= _over(outer) & facts.free(term)
    points = facts.universe.size(whole)
    if not whole or (points > LONGEST_ROW and len(facts.universe.members(whole)) > 1):
        return None
    return form(made.stored, Facts(facts.universe, whole))


def kernels_of_whole_rows(made: Form) -> tuple[Form, ...]:
    """The form of tiles that have whole rows, or the forms of parts of rows and of what joins them;
    none where there is no such form.
    """
    whole = with_whole_rows(made)
    if whole is None:
        return ()
    (axis, *_) = whole.facts.universe.members(whole.facts.whole)
    parts = -(-whole.extents[axis] // LONGEST_ROW)
    if parts == 1:
        return (whole,)
    division = divide(whole, axis, parts, "parts")
    if division is None:
        return ()
    first = form(division.first, division.first_facts)
    return first, form(division.rest, division.rest_facts)


def _over(term: Term) -> int:
    """The names that a reduction binds."""
    mask = term.args[0]
    assert isinstance(mask, int)
    return mask
