"""A program before any backend: what would run, and all that explaining it takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eqsat.explain import account
from eqsat.explain.account import Subject
from eqsat.explain.explanation import Explanation
from eqsat.kernel.ir import Kernel
from eqsat.library import PricedCall
from eqsat.program import Launch, Parts, Report
from eqsat.schedule.scheduling import Search
from eqsat.segment.segments import Segment
from eqsat.solve import Solution


@dataclass(frozen=True)
class Planned:
    """The parts of a program, its report, and how they were found. `structure`: of the outputs."""

    parts: Parts
    report: Report
    structure: Any
    segments: tuple[Segment, ...]
    solutions: tuple[Solution, ...]
    search: Search

    def explain(
        self, title: str = "program", launches: Sequence[Launch] | None = None
    ) -> Explanation:
        """How the program as written became these launches (default: those planned)."""
        running = list(self.parts.launches if launches is None else launches)
        shown = self._shown()
        kernels, buffers = [], []
        for number in range(len(self.solutions)):
            own = [launch for launch in running if launch.segment == number]
            ours = (launch.kernel for launch in own)
            kernels.append(tuple(kernel for kernel in ours if isinstance(kernel, Kernel)))
            buffers.append(
                {
                    buffer.name: shown.get(name, name)
                    for launch in own
                    for buffer, name in zip(launch.kernel.buffers, launch.buffers, strict=True)
                }
            )
        return account.explain(
            Subject(
                title=title,
                segments=self.segments,
                search=self.search,
                kernels=tuple(kernels),
                buffers=tuple(buffers),
                arguments=tuple(
                    (a.name, f"{a.dtype.name}{list(a.shape)}") for a in self.parts.arguments
                ),
                operations=self.report.operations,
                once=sum(launch.seconds for launch in self.parts.once),
                calls={
                    number: one
                    for number, solution in enumerate(self.solutions)
                    for one in solution.kernels
                    if isinstance(one, PricedCall)
                },
            )
        )

    def _shown(self) -> Mapping[str, str]:
        """Names that a person knows, by the program's buffers."""
        names = {a.buffer: a.name for a in self.parts.arguments}
        taken = set(names.values())
        several = len(self.parts.outputs) > 1
        for number, (buffer, _, _) in enumerate(self.parts.outputs):
            label = f"result{number}" if several else "result"
            names[buffer] = f"{label}_" if label in taken else label
        return names
