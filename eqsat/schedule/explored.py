"""A saturated region's kernels: of hundred thousands of rows no more is made than is asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from eqsat.saturate.egglog_text import SCHEDULE, AtomTable
from eqsat.saturate.saturation import FrozenEGraph, columns_of, thaw
from eqsat.schedule.choice import Choice, Step, open_choice, with_step
from eqsat.terms.algebra import Term, Universe
from eqsat.terms.form import Form


@dataclass(frozen=True)
class Explored:
    """The ways to compute a region's values, and its kernels: the classes of a body and a schedule.

    `steps`: the last step of each schedule but the `untiled` one, and `before`: the schedule that
    it follows.
    """

    values: FrozenEGraph
    kernels: list[tuple[int, int]]
    untiled: int
    steps: Mapping[int, Step]
    before: Mapping[int, int]

    @property
    def root(self) -> int:
        """The class of the body of the kernel without a schedule."""
        (found,) = (body for body, schedule in self.kernels if schedule == self.untiled)
        return found

    def choices(self, made: Form) -> list[Choice]:
        """Every schedule that settles the most axes, its reduction whole or in parts."""
        chains = {self.untiled: open_choice(made)}

        def chain(number: int) -> Choice:
            if number not in chains:
                chains[number] = with_step(chain(self.before[number]), self.steps[number])
            return chains[number]

        choices = [chain(schedule) for _, schedule in self.kernels]
        most = max(choice.settled for choice in choices)
        return [choice for choice in choices if choice.settled == most]


def explored(
    answer: dict[str, Any],
    ops: Mapping[str, tuple[str, ...]],
    table: AtomTable,
    universe: Universe,
    terms: list[Term],
    numbers: dict[Term, int],
    kernel: Term,
) -> Explored:
    """What a worker's answer says of the kernels that are equal to one under no schedule."""
    of_values = {op: sorts for op, sorts in ops.items() if op not in SCHEDULE}
    values = thaw(answer, of_values, table, universe, terms, numbers, (kernel,))
    (root,), untiled = values.roots, values.class_of[kernel.children[1]]
    rows = zip(*columns_of(answer, "kernel", ops["kernel"]), strict=True)
    kernels = [(body, schedule) for body, schedule, made in rows if made == root]
    steps: dict[int, Step] = {}
    before: dict[int, int] = {}
    for op in SCHEDULE & ops.keys() - {"kernel", "untiled"}:
        *own, below, made = columns_of(answer, op, ops[op])
        steps.update(zip(made, zip(repeat(op, len(made)), *own, strict=True), strict=True))
        before.update(zip(made, below, strict=True))
    return Explored(values, kernels, untiled, steps, before)
