"""Plans of one segment: the best once they are scheduled.

Cuts go by prices that leave a kernel's limits to its schedule. Plans that differ little in these
are scheduled, each distinct kernel once, and compared by what their kernels then need. Where a
kernel needs far longer than its price, or fits no schedule, another cut is made that knows of it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from eqsat.cut.cuts import UNFIT, Cut, Plan
from eqsat.cut.extraction import Extractor
from eqsat.cut.laid import laid, orders_read, read_otherwise
from eqsat.errors import SpecError
from eqsat.schedule.apart import Buffers
from eqsat.schedule.scheduling import Predicted
from eqsat.terms.algebra import Read, Term, post_order
from eqsat.terms.form import Stored

Schedule = Callable[[str, tuple[Stored, ...], Buffers], list[Predicted]]
"""Kernels of a name for some values; their temporaries are added to the buffers."""


NEAR = 1.1  # times the predicted seconds of the best plan: others that are worth scheduling
GAIN = 1.02  # times the time of a later plan, for which it is taken: prices tell no less
SOON = 1.03  # times the price of a kernel that computes a factor, which could be stored; from one
# cut to the next less is no gain
WORTH = 0.02  # of these, for which a kernel stands that others may do without: prices tell no less
OFF = 2.0  # times the price of a kernel, and of a plan, from where its time is worth another cut
WELL_OFF = 1.15  # the same of a plan of few kernels
CUTS = 8  # of a segment, at the most
PATIENCE = 3  # cuts, one after the other, that gain nothing: what later ones know is little
FEW = 3  # kernels of a plan, beyond which no cut is worth its time that gains so little
SEVERAL = 6  # kernels scheduled for a segment, beyond which one such cut is enough


@dataclass(frozen=True)
class Scheduled:
    """A plan, its kernels in order, and all of its buffers."""

    plan: Plan
    kernels: tuple[Predicted, ...]
    buffers: Buffers

    @property
    def seconds(self) -> float:
        return sum(one.per_run for one in self.kernels)


@dataclass(frozen=True)
class _Known:
    """The kernels for some values, the name that theirs begin with, and their temporaries."""

    name: str
    kernels: Sequence[Predicted]
    buffers: Buffers
    error: SpecError | None = None

    @property
    def seconds(self) -> float:
        return UNFIT if self.error else sum(one.per_run for one in self.kernels)

    @property
    def parted(self) -> bool:
        """Whether no one kernel, with those that prepare and finish it, fits."""
        return not self.kernels or len(self.kernels) > 1 + self.kernels[0].followers


Known = dict[tuple[Stored, ...], _Known]


def best_planned(
    cut: Callable[[], Plan],
    extractor: Extractor,
    buffers: Callable[[Plan], Buffers],
    schedule: Schedule,
) -> Scheduled:
    """The fastest plan of some cuts, each of which knows what kernels of those before it need.

    Raises SpecError when no plan fits the spec.
    """
    known: Known = {}
    best: Scheduled | None = None
    error: SpecError | None = None
    vain = 0
    for _ in range(CUTS):
        plan = cut()
        if best and _is_near(best, plan, extractor, known):
            break
        plans = ((one, buffers(one)) for one in (plan, *near(plan, extractor)))
        try:
            found = best_scheduled(plans, schedule, known)
        except SpecError as problem:
            error = error or problem
        else:
            vain = 0 if best is None or found.seconds * SOON < best.seconds else vain + 1
            best = found if best is None or found.seconds * GAIN < best.seconds else best
        patience = PATIENCE if len(known) <= SEVERAL else 1
        if vain >= patience or (best and _is_near(best, plan, extractor, known)):
            break
        if not _taught(plan, extractor, known):
            break
    if best is None:
        assert error is not None
        raise error
    return _laid_as_read(best, extractor, buffers, schedule, known)


def _laid_as_read(
    best: Scheduled,
    extractor: Extractor,
    buffers: Callable[[Plan], Buffers],
    schedule: Schedule,
    known: Known,
) -> Scheduled:
    """The plan with values in the order in which kernels of it copy them, where that is faster: all
    of them, else those that nothing else reads.
    """
    kernels, facts = [one.kernel for one in best.kernels], extractor.facts
    orders = orders_read(best.plan, kernels, facts.universe.extents)
    others = read_otherwise(orders, kernels)
    copied_alone = {name: orders[name] for name in orders if name not in others}
    for own in (orders, copied_alone) if others else (orders,):
        if own:
            plan = laid(best.plan, own, facts)
            with suppress(SpecError):
                found = _scheduled(plan, dict(buffers(plan)), schedule, known)
                if found.seconds < best.seconds:
                    return found
    return best


def _is_near(best: Scheduled, plan: Plan, extractor: Extractor, known: Known) -> bool:
    """Whether the best plan takes little longer than the price of one, so far as prices tell."""
    kernels = ((stored, known[stored]) for stored in best.plan.kernels)
    least = min((_off(best.plan, *one, extractor) for one in kernels), default=OFF)
    return best.seconds <= least * plan.seconds


def _off(plan: Plan, stored: tuple[Stored, ...], one: _Known, extractor: Extractor) -> float:
    """The times its price from which a kernel of a plan is worth another cut: soon where the values
    took several, and, of few, where it computes or gathers a factor which could be stored.
    """
    if one.parted:
        return NEAR
    if len(plan.kernels) > FEW:
        return OFF
    return SOON if extractor.computes_factors(stored) else WELL_OFF


def _taught(plan: Plan, extractor: Extractor, known: Known) -> bool:
    """Whether the extractor has learned that a kernel of a plan needs far longer than its price, or
    several kernels in its place.
    """
    found = [(stored, known[stored]) for stored in plan.kernels if stored in known]
    whole = sum(one.seconds for _, one in found)
    far = [
        extractor.learn(stored, one.seconds)
        for stored, one in found
        if one.seconds > _off(plan, stored, one, extractor) * extractor.price_kernel(stored)
        and one.seconds > WORTH * whole
    ]
    return any(far)


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


def best_scheduled(
    plans: Iterable[tuple[Plan, Buffers]], schedule: Schedule, known: Known
) -> Scheduled:
    """The plan whose kernels are fastest; each comes with the buffers that it begins with. What is
    known of kernels is added to.

    Raises SpecError when no schedule fits the spec for the first plan.
    """
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
    known: Known,
) -> Scheduled:
    kernels: list[Predicted] = []
    for stored in plan.kernels:
        if stored not in known:
            name, own = f"k{sum(len(one.kernels) for one in known.values())}", dict(buffers)
            try:
                found, error = schedule(name, stored, own), None
            except SpecError as problem:
                found, error = [], problem
            added = {n: b for n, b in own.items() if n not in buffers}
            known[stored] = _Known(name, found, added, error)
        one = known[stored]
        if one.error:
            raise one.error
        buffers |= one.buffers
        first = len(kernels)
        kernels += [_renamed(k, one.name, f"k{first}") for k in one.kernels]
    return Scheduled(plan, tuple(kernels), buffers)


def _renamed(one: Predicted, old: str, new: str) -> Predicted:
    """The kernel and its alternatives under names that begin otherwise, as does its workspace."""

    def change(part: Predicted) -> Predicted:
        kernel, before = part.kernel, f"{part.kernel.name}_"
        name = new + kernel.name.removeprefix(old)
        buffers = tuple(
            replace(b, name=f"{name}_{b.name.removeprefix(before)}")
            if b.name.startswith(before)
            else b
            for b in kernel.buffers
        )
        return replace(part, kernel=replace(kernel, name=name, buffers=buffers))

    return one.each(change)
