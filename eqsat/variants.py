"""Plans of one segment that are predicted to take about as long: the best once they are scheduled.

Cuts go by prices that leave a kernel's limits to its schedule. Plans that differ little in these
are scheduled, each distinct kernel once, and compared by what their kernels then need.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from eqsat.algebra import Read, Term, post_order
from eqsat.errors import SpecError
from eqsat.extract import Cut, Extractor, Plan
from eqsat.form import Stored
from eqsat.kernel import Buffer
from eqsat.schedule import Predicted

Buffers = dict[str, Buffer]
Schedule = Callable[[str, tuple[Stored, ...], Buffers], list[Predicted]]
"""Kernels of a name for some values; their temporaries are added to the buffers."""


NEAR = 1.1  # times the predicted seconds of the best plan: others that are worth scheduling
WORTH = 0.02  # of these, for which a kernel stands that others may do without: prices tell no less


@dataclass(frozen=True)
class Scheduled:
    """A plan, its kernels in order, and all of its buffers."""

    plan: Plan
    kernels: tuple[Predicted, ...]
    buffers: Buffers

    @property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.kernels)


@dataclass(frozen=True)
class _Known:
    """The kernels for some values, the name that theirs begin with, and their temporaries."""

    name: str
    kernels: Sequence[Predicted]
    buffers: Buffers


def near(plan: Plan, extractor: Extractor) -> Iterator[Plan]:
    """Plans besides the best that was found, predicted to take little longer, in each of which the
    kernels that read some value compute it instead.
    """
    cuts, candidates = extractor.best
    for number, own in cuts.items():
        if number < 0 or extractor.price_kernel((own.stored,)) < WORTH * plan.seconds:
            continue
        changed: dict[int, Cut] = {}
        for user, cut in cuts.items():
            if user == number:
                continue
            changed[user] = cut
            if number in _read_in(cut.stored.term):
                without = [c for c in candidates[cut.number] if c.closure <= cut.closure - {number}]
                names, dtype = cut.stored.names, cut.stored.dtype.name
                prices = [extractor.price(c.term, names, dtype) for c in without]
                if not prices:
                    break
                least = without[prices.index(min(prices))]
                changed[user] = replace(cut, stored=replace(cut.stored, term=least.term))
        else:
            other = extractor.joined(changed)
            if other.seconds <= NEAR * plan.seconds:
                yield other


def _read_in(term: Term) -> set[int]:
    """The classes that a term reads from memory."""
    reads = (sub.args[0] for sub in post_order([term]) if sub.op in {"read", "gather"})
    names = (read.buffer for read in reads if isinstance(read, Read))
    return {int(name[1:]) for name in names if name[0] == "t"}


def best_scheduled(plans: Iterable[tuple[Plan, Buffers]], schedule: Schedule) -> Scheduled:
    """The plan whose kernels are fastest; each comes with the buffers that it begins with.

    Raises SpecError when no schedule fits the spec for the first plan.
    """
    known: dict[tuple[Stored, ...], _Known] = {}
    best: Scheduled | None = None
    for plan, buffers in plans:
        try:
            found = _scheduled(plan, dict(buffers), schedule, known)
        except SpecError:
            if best is None:
                raise
            continue
        if best is None or found.seconds < best.seconds:
            best = found
    assert best is not None
    return best


def _scheduled(
    plan: Plan,
    buffers: Buffers,
    schedule: Schedule,
    known: dict[tuple[Stored, ...], _Known],
) -> Scheduled:
    kernels: list[Predicted] = []
    for stored in plan.kernels:
        if stored not in known:
            name, own = f"k{sum(len(one.kernels) for one in known.values())}", dict(buffers)
            found = schedule(name, stored, own)
            added = {n: b for n, b in own.items() if n not in buffers}
            known[stored] = _Known(name, found, added)
        one = known[stored]
        buffers |= one.buffers
        first = len(kernels)
        kernels += [_renamed(k, one.name, f"k{first}") for k in one.kernels]
    return Scheduled(plan, tuple(kernels), buffers)


def _renamed(one: Predicted, old: str, new: str) -> Predicted:
    """The kernel and its alternatives under names that begin otherwise."""
    name = new + one.kernel.name.removeprefix(old)
    others = tuple(tuple(_renamed(part, old, new) for part in other) for other in one.alternatives)
    return replace(one, kernel=replace(one.kernel, name=name), alternatives=others)
