"""Scans as streams: along which name a kernel steps, carrying the state of each scan.

A scan h_t = f(h_(t-1), x_t) is not a reduction: it has a value at every step. Where its name is
streamed one point at a time the state is a carry of whatever phase reads it, so that its operands
need no memory, and neither do its states where what is made of them is summed or stored by step.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from eqsat.terms.algebra import (
    SCANS,
    Facts,
    Term,
    post_order,
    rebuild,
    sum_of_products,
    with_children,
)

AHEAD, MOST_AHEAD = 32, 64  # steps whose loads are under way at a time, at most; of long scans
LONG = 64  # turns of the loop over the slots of those steps, from which on a scan is long
AHEAD_BYTES = 256  # of a thread's registers, for what those loads bring
SLOTS_BYTES = 32768  # of a block's shared memory, for the same where copies bring it
MOST_SLOTS_BYTES = 2 * SLOTS_BYTES  # where two steps take more than that


@dataclass(frozen=True)
class Steps:
    """The scans of a kernel. `along`: the mask of the name that may be stepped along, 0 for none.

    `recurrent`: among them is one of which a step multiplies the state before it.
    `held`: names of other scans, which lie wholly inside the tile. `stuck`: no kernel can do it.
    `inner`: the mask of a recurrence that another one, along another name, reads; 0 for none.
    """

    along: int = 0
    recurrent: bool = False
    held: int = 0
    stuck: bool = False
    inner: int = 0


def most_ahead(extent: int) -> int:
    """How many steps of so many may be asked for ahead: nothing else runs while the first are."""
    return MOST_AHEAD if extent >= LONG * MOST_AHEAD else AHEAD


def find_steps(terms: Iterable[Term]) -> Steps:
    """How scans among the terms are done: one name is stepped along, a recurrent one if any."""
    scans = [term for term in terms if term.op in SCANS]
    masks = {term.args[0] for term in scans}
    recurrent = {term.args[0] for term in scans if term.op == "scan_affine"}
    chosen = recurrent or masks
    along = next(iter(chosen)) if len(chosen) == 1 else 0
    held = 0
    for mask in masks:
        assert isinstance(mask, int)
        held |= mask if mask != along else 0
    assert isinstance(along, int)
    stuck = len(recurrent) > 1
    return Steps(along, bool(recurrent), held, stuck, _inner(scans) if stuck else 0)


def _inner(scans: Iterable[Term]) -> int:
    """The mask of the recurrence that no other is inside, where another one reads it."""
    for outer in scans:
        inside = [t for c in outer.children for t in post_order([c]) if t.op == "scan_affine"]
        if outer.op == "scan_affine" and inside and inside[0].args[0] != outer.args[0]:
            assert isinstance(inside[0].args[0], int)
            return inside[0].args[0]
    return 0


def state_names(terms: Iterable[Term], facts: Facts) -> int:
    """The names over which scans among the terms have states, their steps' too."""
    names = 0
    for term in terms:
        names |= facts.free(term) if term.op in SCANS else 0
    return names


def without_contractions(term: Term, along: int, facts: Facts) -> Term:
    """Contractions that change from step to step as the sums of products that they stand for."""
    if not along or not any(sub.op == "contract" for sub in post_order([term])):
        return term

    def change(sub: Term, children: tuple[Term, ...]) -> Term:
        if sub.op == "contract" and not sub.args[3] and facts.free(sub) & along:
            return sum_of_products(sub, children)
        return with_children(sub, children)

    return rebuild(term, change)
