"""Values that were joined to share a kernel: scheduled together, or apart where that is faster.

Joining goes by prices that leave a kernel's limits to its schedule. Where the schedules that fit
are not much faster than the halves of the kernel were taken to be, the halves are scheduled too.
"""

from collections.abc import Sequence

from eqsat.errors import SpecError
from eqsat.kernel.ir import Buffer
from eqsat.price.pricer import Pricer
from eqsat.schedule.menu import least_seconds
from eqsat.schedule.scheduling import Predicted, Search, schedule_region
from eqsat.terms.algebra import Facts
from eqsat.terms.form import Stored, form

FASTER = 0.8  # times what its halves were taken to need: a kernel that stays whole
Buffers = dict[str, Buffer]


def estimate(stored: Sequence[Stored], facts: Facts, pricer: Pricer) -> float:
    """The least predicted seconds of a kernel that stores the values, before it is scheduled."""
    return least_seconds(form(stored, facts), pricer)


def schedule_joined(
    name: str,
    stored: tuple[Stored, ...],
    facts: Facts,
    pricer: Pricer,
    buffers: Buffers,
    search: Search,
) -> list[Predicted]:
    """The cheapest kernels for the values, of which none needs another.

    Their temporaries are added to `buffers`. Raises SpecError when no schedule fits the spec.
    """
    if len(stored) == 1:
        return schedule_region(name, stored, facts, pricer, buffers, search)
    halves = stored[: len(stored) // 2], stored[len(stored) // 2 :]
    expected = sum(estimate(half, facts, pricer) for half in halves)
    whole, lacking = dict(buffers), None
    together: list[Predicted] = []
    try:
        together = schedule_region(name, stored, facts, pricer, whole, search)
    except SpecError as error:
        lacking = error
    if together and _seconds(together) <= FASTER * expected:
        buffers |= whole
        return together
    parts = dict(buffers)
    try:
        apart = [
            predicted
            for number, half in enumerate(halves)
            for predicted in schedule_joined(
                f"{name}_{'ab'[number]}", half, facts, pricer, parts, search
            )
        ]
    except SpecError:
        if lacking:
            raise lacking from None
        apart = []
    if apart and (lacking or _seconds(apart) < _seconds(together)):
        buffers |= parts
        return apart
    buffers |= whole
    return together


def _seconds(kernels: list[Predicted]) -> float:
    return sum(predicted.per_run for predicted in kernels)
