"""A schedule decoded from its term: what each axis was given; its form, price and lowering."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eqsat.errors import SpecError
from eqsat.lower.lowering import Schedule
from eqsat.price.priced import Price
from eqsat.price.pricer import Array, Blocking, Pricer
from eqsat.schedule.reduction_parts import Division, divide
from eqsat.schedule.split_scans import divide_scans
from eqsat.schedule.turned import turn
from eqsat.terms.algebra import Term
from eqsat.terms.form import Form, form

Step = tuple[Any, ...]  # a rule's name, and what it gave: an axis, a memory, how many
COUNTED = {"launch": "threads", "cluster": "cluster", "share": "shared", "stream_k": "last_parts"}
LAST = frozenset({"split", "turn", "cluster", "share", "stream_k"})  # steps that settle no axis
TURNED = 0  # parts of a choice whose results are stored with the axis outermost


@dataclass(frozen=True)
class Choice:
    """A decoded schedule: what each axis was given, and the `steps` that gave it.

    `parts`: the axis whose reduction is split, and in how many parts, or which is outermost in what
    is stored, and TURNED. `cluster`: how many blocks
    compute a tile together; `shared`: how many copy factors for each other; `last_parts`: in how
    many parts the last tiles are; `settled`: how many axes were given something.
    """

    tiles: Mapping[str, int]
    chunks: Mapping[str, int]
    steps: tuple[Step, ...]
    threads: int = 1
    stages: int = 1
    memory: str = "registers"
    parts: tuple[str, int] | None = None
    cluster: int = 1
    shared: int = 1
    last_parts: int = 0
    settled: int = 0

    @property
    def rules(self) -> tuple[str, ...]:
        """The steps as texts: the rule and what it gave."""
        return tuple(" ".join(map(str, step)) for step in self.steps)

    def grid_tiles(self, made: Form) -> int:
        """Tiles of the grid, a reduction in parts aside."""
        return math.prod(-(-made.extents[axis] // size) for axis, size in self.tiles.items())


def open_choice(made: Form) -> Choice:
    """No schedule yet of a kernel of the form."""
    return Choice({name: made.extents[name] for name in made.grid}, {}, ())


def with_step(before: Choice, step: Step) -> Choice:
    """What a choice settles with one more step."""
    op, *args = step
    made = object.__new__(Choice)  # there are tens of thousands: a copy, and what differs
    found: dict[str, Any] = vars(made)
    found |= vars(before)
    found["steps"] = (*before.steps, step)
    found["settled"] += op not in LAST
    if op == "tile":
        found["tiles"] = {**before.tiles, args[0]: args[1]}
    elif op == "stream":
        found["chunks"] = {**before.chunks, args[0]: args[1]}
    elif op == "stage":
        found["memory"], found["stages"] = args
    elif op == "split":
        found["parts"] = (*args,)
    elif op == "turn":
        found["parts"] = (*args, TURNED)
    elif op in COUNTED:
        (found[COUNTED[op]],) = args
    return made


def decode_choice(steps: Iterable[Step], made: Form) -> Choice:
    """The schedule that steps settle, of a kernel of the form."""
    return reduce(with_step, steps, open_choice(made))


def constrained(
    name: str,
    choices: list[Choice],
    made: Form,
    spec: str,
    grid_dim: int | None,
    block_dim: int | None,
) -> list[Choice]:
    """The choices that meet the caller's grid and block dimensions; SpecError if none does."""
    if grid_dim is not None or block_dim is not None:
        choices = [choice for choice in choices if choice.parts is None]  # what joins has its own
    kept = choices
    if block_dim is not None:
        kept = [choice for choice in kept if choice.threads == block_dim]
        if not kept:
            offered = sorted({choice.threads for choice in choices})
            raise SpecError(
                f"block_dim {block_dim} is not legal for {name} on {spec}; "
                f"its blocks may have {', '.join(map(str, offered))} threads."
            )
    if grid_dim is not None:
        found = sorted({choice.grid_tiles(made) for choice in kept})
        kept = [choice for choice in kept if choice.grid_tiles(made) == grid_dim]
        if not kept:
            raise SpecError(
                f"grid_dim {grid_dim} is not legal for {name} on {spec}; its "
                f"tiles make grids of {', '.join(map(str, found))}."
            )
    return kept


@dataclass(frozen=True)
class Opening:
    """What the kernel of a choice computes: all of a form, or the parts of its division."""

    made: Form
    division: Division | None = None

    def whole_tile(self, name: str) -> int:
        """The tile of a name that a choice leaves open: one part, or every point."""
        is_part = self.division is not None and name == self.division.part
        return 1 if is_part else self.made.extents[name]

    def schedule(self, choice: Choice) -> Schedule:
        """What the choice settles, for lowering."""
        made = self.made
        memory: dict[Term, str] = {}
        if choice.memory != "registers":
            memory = {one: choice.memory for one in made.operands() if one.op == "read"}
        tiles = {n: choice.tiles.get(n, self.whole_tile(n)) for n in made.grid}
        chunks = {n: size for n, size in choice.chunks.items() if n in made.reduced}
        blocks = (choice.threads, choice.stages)
        together = (choice.cluster, choice.shared, choice.last_parts)
        return Schedule(tiles, chunks, *blocks, made.operations, memory, *together)


def opening(made: Form, parts: tuple[str, int] | None, kernel: str) -> Opening | None:
    """What a kernel of the form computes with a reduction in parts, or with what it stores in
    another order; None where it cannot be.

    Temporaries are named after what is stored, since plans number kernels each in its own way, and
    after what the kernel's name has besides its number.
    """
    if parts is None:
        return Opening(made)
    _, besides, suffix = kernel.partition("_")
    (axis, count), stem = parts, made.stored[0].buffer + besides + suffix
    scanned = axis == made.stepped or made.steps.inner
    how = divide_scans if scanned else divide
    division = turn(made, axis, stem) if count == TURNED else how(made, axis, count, stem)
    if division is None:
        return None
    return Opening(form(division.first, division.first_facts), division)


@dataclass(frozen=True)
class Alike:
    """Choices of the same parts, that stream the same axes and stage in one memory; places in
    windows may be streamed or be whole in a chunk of what is.
    """

    choices: tuple[Choice, ...]

    @property
    def parts(self) -> tuple[str, int] | None:
        """Into what their reduction is divided."""
        return self.choices[0].parts

    @cached_property
    def streamed(self) -> tuple[str, ...]:
        """The axes that some of them take chunk by chunk."""
        return tuple(dict.fromkeys(name for choice in self.choices for name in choice.chunks))

    @cached_property
    def apart(self) -> list["Alike"]:
        """Those that stream the very same axes."""
        return _grouped(self.choices, lambda choice: tuple(choice.chunks))

    @cached_property
    def together(self) -> list[NDArray[np.intp]]:
        """Places of those that have as many blocks that copy for each other, and parts of their
        last tiles.
        """
        groups: dict[tuple[int, int], list[int]] = {}
        for place, choice in enumerate(self.choices):
            groups.setdefault((choice.shared, choice.last_parts), []).append(place)
        return [np.array(places) for places in groups.values()]

    @cached_property
    def tiles(self) -> dict[str, Array]:
        """Tile extents of each grid name."""
        return {n: self._column([c.tiles[n] for c in self.choices]) for n in self.choices[0].tiles}

    @cached_property
    def blocking(self) -> Blocking:
        """What else they settle."""
        chunks = {n: [c.chunks.get(n, np.inf) for c in self.choices] for n in self.streamed}
        return Blocking(
            chunks={name: self._column(sizes) for name, sizes in chunks.items()},
            threads=self._column([c.threads for c in self.choices]),
            stages=self._column([c.stages for c in self.choices]),
            staged=self.choices[0].memory != "registers",
            cluster=self._column([c.cluster for c in self.choices]),
            shared=self._column([c.shared for c in self.choices]),
            last_parts=self._column([c.last_parts for c in self.choices]),
        )

    @staticmethod
    def _column(values: Sequence[float]) -> Array:
        return np.array(values, dtype=np.float64)

    def price(self, opened: Opening, pricer: Pricer) -> Price:
        """Prices of the kernel of an opening under each choice."""
        made, blocking = opened.made, self.blocking
        one = np.ones_like(blocking.threads)
        tiles = {
            n: self.tiles[n] if n in self.tiles else one * opened.whole_tile(n) for n in made.grid
        }
        chunks = {n: np.minimum(c, made.extents[n]) for n, c in blocking.chunks.items()}
        return pricer.price(made, tiles, replace(blocking, chunks=chunks))


def alike(choices: Sequence[Choice], places: Collection[str]) -> list[Alike]:
    """Choices in groups; `places`: names that number places in windows."""

    def key(choice: Choice) -> tuple[object, ...]:
        streamed = tuple(name for name in choice.chunks if name not in places)
        return (choice.parts, streamed, bool(choice.chunks), choice.memory)

    return _grouped(choices, key)


def _grouped(choices: Iterable[Choice], key: Callable[[Choice], object]) -> list[Alike]:
    groups: dict[object, list[Choice]] = {}
    for choice in choices:
        groups.setdefault(key(choice), []).append(choice)
    return [Alike(tuple(group)) for group in groups.values()]
