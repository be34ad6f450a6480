"""How the names of a form lie in memory: along which a tile is long, and which cross."""

import math
from collections.abc import Iterable

from eqsat.graph.index import Affine, free_names, unit_names
from eqsat.terms.algebra import SCATTERS, Read, Term
from eqsat.terms.form import Form

SHORT_TAIL = 16  # points of a stored value's last names below which tiles are long along the next


def innermost(form: Form) -> dict[str, int]:
    """Names along which a tile is long, as values are stored along them, and the points of those
    inside each: the last one, and where no row is reduced the next one out, if that is shorter
    than a vector.
    """
    found: dict[str, int] = {}
    summed, is_short = summed_points(form), not long_rows(form)
    for one in form.stored:
        names = form.grid[-1:] if one.term.op in SCATTERS else one.names
        points = 1
        for name in reversed(names):
            inside = max(points, summed) if is_short else points
            found[name] = min(inside, found.get(name, inside))
            points *= form.extents[name]
            if points >= SHORT_TAIL or not is_short:
                break
    return found


def points_inside(form: Form, name: str) -> int:
    """Points that lie inside a name where values are stored along it."""
    found = 1
    for names in (one.names for one in form.stored if name in one.names):
        found = max(found, math.prod(form.extents[n] for n in names[names.index(name) + 1 :]))
    return found


def summed_points(form: Form) -> int:
    """Points of all reduced names together."""
    return math.prod(form.extents[name] for name in form.reduced)


def long_rows(form: Form) -> set[str]:
    """The reduced names, where rows along them are no shorter than a vector."""
    return {*form.reduced} if summed_points(form) >= SHORT_TAIL else set()


def along_rows(form: Form, name: str) -> list[set[str]]:
    """The names that memory is walked along, of what depends on a grid name and is walked along a
    row that is reduced; those of windows that slide by one are among them.
    """
    rows = long_rows(form)
    found = (unit_names(a) for a in _addresses(form.terms) if name in free_names(a))
    return [{*names} for names in found if names & rows]


def crossed(form: Form) -> set[str]:
    """Grid names along which memory is read where it is stored along another, and those others.

    A tile must be wide along both for either access to move whole lines.
    """
    found: set[str] = set()
    for read in (term.args[0] for term in form.terms if term.op == "read"):
        assert isinstance(read, Read)
        names = free_names(read.address)
        along = unit_names(read.address) & set(form.grid)
        for one in form.stored:
            if one.names and one.names[-1] in names and one.names[-1] not in along:
                found |= {*along, one.names[-1]} if along else set()
    return found


def _addresses(terms: Iterable[Term]) -> list[Affine]:
    """Where the reads among some terms lie."""
    reads = [term.args[0] for term in terms if term.op == "read"]
    return [read.address for read in reads if isinstance(read, Read)]


def lies_in_short_rows(form: Form) -> bool:
    """Whether what is reduced is a row in memory, of the reduced names alone."""
    reduced = {*form.reduced}
    rows = [unit_names(a) for a in _addresses(form.terms) if free_names(a) & reduced]
    return bool(rows) and all(names and names <= reduced for names in rows)
