"""The part of a stream's chunks that change anything: what the price of a masked kernel counts.

The same laws as of eqsat.kernel.idle_chunks, for terms that are not lowered yet.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.graph.index import Affine, add, const, sub
from eqsat.kernel.idle_chunks import COMPARED, FALSE, LOWEST, ZERO, compared, mapped
from eqsat.terms.algebra import SCANS, WEIGHTED, Term
from eqsat.terms.form import REDUCING, Form, walked

SAMPLES = 64  # points of each name at which masks are looked at
MOST_SAMPLES = SAMPLES**3  # of all names together


@dataclass(frozen=True)
class Live:
    """`share`: the part of all points at which no mask fails that leaves every carry as it was, or
    what is stored without them; `stored`: of the latter masks alone; `stream`: the names along
    which chunks are left out; `steps`: how far a point of each name moves a mask, as a part of its
    range along that name's axis.
    """

    share: float = 1.0
    stored: float = 1.0
    stream: int = 0
    steps: tuple[tuple[str, float], ...] = ()


def live_share(form: Form, streamed: int) -> Live:
    """What masks leave of a kernel's streams over some names."""
    whole = Live()
    if not streamed or not any(term.op in COMPARED for term in form.terms):
        return whole
    if any(walked(one, form.facts) & streamed for one in form.stored):
        return whole
    if any(term.op in SCANS for term in form.terms):
        return whole
    carried = [t for t in form.phase if t.args[0] & streamed]  # type: ignore[operator]
    mask = form.facts.universe.mask
    known = [(one, m, mask(_atoms(m)) & streamed) for one, m in _margins(form) if m.terms]
    margins = [m for one, m, own in known if own and all(_is_kept(t, one) for t in carried)]
    tiled = mask(form.grid)
    of_tiles = ((one, m) for one, m, _ in known if not mask(_atoms(m)) & ~tiled)
    unread = [m for one, m in of_tiles if _is_unread(form, one, carried)]
    if not carried or not (margins or unread):
        return whole
    stream = mask(name for m in margins for name in _atoms(m)) & streamed
    for reduction in carried if unread else ():
        stream |= reduction.args[0] & streamed  # type: ignore[operator]
    every = [*margins, *unread]
    names = sorted({name for margin in every for name in _atoms(margin)})
    reach = max(abs(step) * form.extents[str(name)] for name, step in every[0].terms)
    steps = tuple((str(name), abs(step) / reach) for name, step in every[0].terms)
    return Live(_part(form, names, every), _part(form, names, unread), stream, steps)


def _part(form: Form, names: Sequence[str], margins: Sequence[Affine]) -> float:
    """The part of the points of some names at which no margin is negative."""
    most = min(SAMPLES, int(MOST_SAMPLES ** (1 / len(names)) + 1e-6))
    counts = [min(form.extents[name], most) for name in names]
    places = [np.linspace(0, form.extents[n] - 1, k) for n, k in zip(names, counts, strict=True)]
    at = dict(zip(names, np.meshgrid(*places, indexing="ij", sparse=True), strict=True))
    live = np.ones(counts, dtype=bool)
    for margin in margins:
        live &= margin.constant + sum(step * at[str(name)] for name, step in margin.terms) >= 0
    return float(live.mean())


def _is_unread(form: Form, mask: Term, reductions: Sequence[Term]) -> bool:
    """Whether nothing that is stored depends on reductions where a mask fails."""
    made, false = {*reductions}, {mask}
    for term in form.terms:
        needed = term.children
        if term.op == "logical_and" and false & {*needed}:
            false.add(term)
            continue
        if term.op == "where" and needed[0] in false:
            needed = needed[2:]
        if made & {*needed}:
            made.add(term)
    return not made & {one.term for one in form.stored}


def _atoms(margin: Affine) -> list[str]:
    return [atom for atom, _ in margin.terms if isinstance(atom, str)]


def _margins(form: Form) -> Iterator[tuple[Term, Affine]]:
    """Comparisons of positions, and what is negative where they fail."""
    places: dict[Term, Affine] = {}
    for term in form.terms:
        kids = term.children
        if term.op == "position" and isinstance(term.args[0], Affine):
            places[term] = term.args[0]
        elif term.op == "literal" and isinstance(term.args[0], int | float):
            if form.facts.dtype(term).kind == "int":
                places[term] = const(int(term.args[0]))
        elif term.op in {"add", "sub"} and all(child in places for child in kids):
            places[term] = (add if term.op == "add" else sub)(*(places[child] for child in kids))
        elif term.op == "cast" and kids[0] in places and form.facts.dtype(term).kind == "int":
            places[term] = places[kids[0]]
        elif term.op in COMPARED and all(child in places for child in kids):
            margin = compared(term.op, *(places[child] for child in kids))
            if all(isinstance(atom, str) for atom, _ in margin.terms):
                yield term, margin


def _is_kept(reduction: Term, mask: Term) -> bool:
    """Whether a reduction has nothing of points at which a mask fails."""
    known: dict[Term, str] = {mask: FALSE}

    def state(term: Term) -> str:
        if term not in known:
            kids = () if term.op in REDUCING else term.children
            values = [child.args[0] if child.op == "literal" else None for child in kids]
            known[term] = mapped(term.op, [state(child) for child in kids], values)
        return known[term]

    states = [state(child) for child in reduction.children]
    if reduction.op in WEIGHTED or reduction.op == "weighted_contract":
        return states[0] == LOWEST
    if reduction.op == "reduce_max":
        return states[0] == LOWEST
    sums = {"reduce_sum", "contract", "narrow_contract"}
    return reduction.op in sums and ZERO in states
