"""Rows, or columns, of a product that lie side by side in a factor but not where they are stored.

What `bic,jcd->bijd` or heads that are put in front of their places leave: several names are one
axis of a factor, each of them short. An operation has room for rows of one name alone: as digits of
one number they fill its tile, and each element is stored where the digits say.
"""

from itertools import pairwise

from eqsat.layout.coalesce import as_digits, index_names, taken_whole
from eqsat.layout.pixels import together
from eqsat.terms.algebra import Facts, Read
from eqsat.terms.form import Form, Stored
from eqsat.terms.form import form as form_of

LONG = 256  # points of a name that fill a tile by themselves
Values = tuple[tuple[Stored, ...], Facts]


def merged_rows(stored: tuple[Stored, ...], facts: Facts) -> Values | None:
    """The same values, names that walk a factor as one axis being one; None where no product of two
    factors has such, or something else keeps them apart.
    """
    made = form_of(stored, facts)
    groups = _groups(made)
    if not groups:
        return None
    return as_digits(stored, facts, together(index_names(stored, facts), *groups))


def _groups(made: Form) -> list[tuple[str, ...]]:
    """The groups of names of the first product that has any, at most one of each factor."""
    universe = made.facts.universe
    for term in made.terms:
        factors = made.contraction(term) or ()
        reads = [factor.args[0] for factor in factors if factor.op == "read"]
        plain = [r for r in reads if isinstance(r, Read) and not (r.extent or r.fill or r.guards)]
        if len(factors) != 2 or len(plain) != 2:
            continue
        assert isinstance(term.args[0], int)
        summed = {*universe.members(term.args[0])}
        shared = plain[0].names & plain[1].names
        found = [_side_by_side(read, {*summed, *shared}, made) for read in plain]
        groups = [group for group in found if group]
        if groups:
            return groups
    return []


def _side_by_side(read: Read, others: set[str], made: Form) -> tuple[str, ...]:
    """The names of a factor that only it has, which walk it as one axis, the last one short; empty
    where fewer than two do.
    """
    steps = {str(atom): step for atom, step in read.address.terms if isinstance(atom, str)}
    own = sorted((n for n in steps if n in made.extents and n not in others), key=steps.get)  # type: ignore[arg-type]
    own.reverse()
    runs: list[list[str]] = [[name] for name in own[:1]]
    for outer, inner in pairwise(own):
        if steps[outer] == steps[inner] * made.extents[inner]:
            runs[-1].append(inner)
        else:
            runs.append([inner])
    short = [tuple(run) for run in runs if len(run) > 1 and made.extents[run[-1]] < LONG]
    whole = [run for run in short if steps[run[-1]] > 0 and taken_whole(made, run)]
    return max(whole, key=len, default=())
