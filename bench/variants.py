"""Other programs for a row: the next best kernels, and what is left without a family of rules."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eqsat.bench.case import Instance
from eqsat.driver import compile, default_rules
from eqsat.kernel.ir import Kernel
from eqsat.library import LibraryCall
from eqsat.program import Launch, Program
from eqsat.rule import Rule
from eqsat.specs import ParallelProcessingUnit

# What is left out -> the groups of rules; "substitution" means the spec's matrix operations.
FAMILIES: dict[str, frozenset[str]] = {
    "no algebra": frozenset({"algebra", "distribute"}),
    "no fusion": frozenset({"fusion"}),
    "no tiling": frozenset({"tiling"}),
    "no staging": frozenset({"staging"}),
    "no substitution": frozenset({"substitution"}),
    "unfused, untiled": frozenset({"fusion", "tiling", "staging", "substitution"}),
}


@dataclass(frozen=True)
class Variant:
    """A program and the launches to run of it; `about` says what differs."""

    name: str
    about: str
    program: Program
    launches: tuple[Launch, ...]

    @property
    def predicted(self) -> float:
        """Seconds of one run."""
        return sum(launch.seconds for launch in self.launches)


def lacking_options(options: Sequence[str]) -> list[str]:
    """Those that this version's compile does not take."""
    known = inspect.signature(compile).parameters
    return [name for name in options if name not in known]


def build(
    whole: Instance,
    spec: ParallelProcessingUnit,
    *,
    candidates: int = 1,
    drawn: int = 0,
    seed: int = 0,
    tune: int = 1,
    rules: Sequence[Rule] | None = None,
    precision: str = "default",
) -> Program:
    """The row's program. `drawn`: candidates at random, by `seed`, besides the best.

    `tune`: so many kernels of each region are measured for the best.
    """
    options: dict[str, Any] = {"precision": precision, **whole.case.options}
    if max(candidates, tune) > 1:
        options["candidates"] = max(candidates, tune)
    if drawn:
        options |= {"drawn": drawn, "seed": seed}
    if tune > 1:
        options["tune"] = True
    if rules is not None:
        options["rules"] = rules
    return compile(list(whole.outputs), spec, inputs=whole.inputs, **options)


def candidates(program: Program, count: int) -> Iterator[Variant]:
    """The next best kernels of each launch, one at a time, the others being the best."""
    for place, launch in enumerate(program.parts.launches):
        best = [other for other in launch.alternatives if not other[0].drawn]
        for rank, other in enumerate(best[: count - 1], 2):
            yield _with(program, place, other, f"kernel {place}, candidate {rank}")


def drawn(program: Program) -> Iterator[Variant]:
    """The kernels of each launch that were drawn at random, one at a time likewise."""
    for place, launch in enumerate(program.parts.launches):
        others = [other for other in launch.alternatives if other[0].drawn]
        for number, other in enumerate(others, 1):
            yield _with(program, place, other, f"kernel {place}, drawn {number}")


def _with(program: Program, place: int, other: tuple[Launch, ...], name: str) -> Variant:
    """The program with other launches in place of one and of those that finish it."""
    launches = list(program.parts.launches)
    launches[place : place + 1 + launches[place].followers] = other
    about = "; ".join(schedule(one.kernel) for one in other)
    return Variant(name, about, program, tuple(launches))


def families(
    whole: Instance,
    spec: ParallelProcessingUnit,
    precision: str,
    failed: Callable[[str, Exception], None],
) -> Iterator[Variant]:
    """The row compiled without one family of rules after another."""
    for name, left_out in FAMILIES.items():
        unit = spec
        if "substitution" in left_out:
            products = [op for op in spec.operations if op.semantics and op.semantics.contraction]
            unit = replace(spec, operations=tuple(o for o in spec.operations if o not in products))
        rules = [rule for rule in default_rules() if rule.group not in left_out]
        try:
            program = build(whole, unit, rules=rules, precision=precision)
        except Exception as error:  # a device's compiler may raise anything
            failed(name, error)
            continue
        about = f"{len(program.kernels)} kernels"
        yield Variant(name, about, program, program.parts.launches)


def schedule(kernel: Kernel | LibraryCall) -> str:
    """Tiles and streams of a kernel, in one line; what a library is called for."""
    if isinstance(kernel, LibraryCall):
        return f"{kernel.function} by {kernel.operation}"
    tiles = [f"{axis.name}:{axis.tile}" for axis in kernel.grid]
    streams = [f"{axis.name}:{axis.tile}" for phase in kernel.phases for axis in phase.stream]
    return f"grid {' '.join(tiles) or '1'}; stream {' '.join(streams) or 'none'}"
