"""Reads of which comparisons of positions select one, as one read of several places.

    where(i < n, a[i], b[i - n])   ->   a[i] if i < n, else b[i - n]

A thread then has one element in flight for each point, whatever number of pieces a value is joined
of: of an image that is mirrored at its edges nine.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from eqsat.graph.index import Affine, bounds, const, scale, sub
from eqsat.kernel.idle_chunks import mask_margins
from eqsat.kernel.ir import (
    Access,
    Contract,
    Guard,
    Kernel,
    Literal,
    Load,
    Map,
    Number,
    Phase,
    Position,
    Statement,
    operands,
    store_operands,
)

LEAST_PLACES = 3  # of two, each is read where it is there, in vectors wherever they begin
MOST_PLACES = 12  # beyond which telling them apart takes longer than reads that are idle


def with_selected_reads(kernel: Kernel) -> Kernel:
    """The kernel with one read in place of several of which one is used; without products or
    streams, whose operands are read in ways of their own.
    """
    streamed = any(phase.stream for phase in kernel.phases)
    if streamed or any(isinstance(s, Contract) for s in kernel.statements()):
        return kernel
    phases = tuple(_Selection(kernel, phase).run() for phase in kernel.phases)
    return replace(kernel, phases=phases)


@dataclass(frozen=True)
class _Places:
    """Places of memory, of each point at most one that has its element; where none has, the fill.
    `made_of` are the statements that read them.
    """

    accesses: tuple[Access, ...]
    fill: Number
    made_of: frozenset[str]


class _Selection:
    """The reads of one phase."""

    def __init__(self, kernel: Kernel, phase: Phase) -> None:
        self.kernel, self.phase = kernel, phase
        self.extents = {name: axis.extent for name, axis in kernel.axes().items()}
        self.known = {s.name: s for s in phase.body}
        self.uses: dict[str, int] = {}
        for name in _read_names(kernel):
            self.uses[name] = self.uses.get(name, 0) + 1
        self.written = {store.access.buffer for own in kernel.phases for store in own.stores}

    def run(self) -> Phase:
        """The phase with its reads as one where they are selected."""
        made: dict[str, Load] = {}
        taken: set[str] = set()
        for s in reversed(self.phase.body):
            if isinstance(s, Map) and s.op == "where" and s.name not in taken:
                found = self.places(s.name)
                if found and LEAST_PLACES <= len(found.accesses) <= MOST_PLACES:
                    first, *rest = self.covering(found.accesses)
                    read = Load(s.name, s.dtype, s.indices, first, found.fill, rest=tuple(rest))
                    made[s.name], taken = read, taken | found.made_of
        if not made:
            return self.phase
        body = [made.get(s.name, s) for s in self.phase.body]
        return replace(self.phase, body=tuple(_needed(self.phase, body, self.kernel)))

    def places(self, name: str, inside: str = "") -> _Places | None:
        """The places that a value is read at; None where it is made of anything else, or is used
        elsewhere than `inside` another one.
        """
        s = self.known.get(name)
        if inside and not isinstance(s, Literal) and self.uses[name] > 1:
            return None
        match s:
            case Literal(value=value):
                return _Places((), value, frozenset())
            case Load(access=access) if s.memory == "registers" and not s.rest:
                plain = not access.coordinates and access.buffer not in self.written
                return _Places((access,), s.fill, frozenset({name})) if plain else None
            case Map(op="where", arguments=(condition, one, other)):
                return self.selected(condition, name, one, other)
        return None

    def selected(self, condition: str, name: str, one: str, other: str) -> _Places | None:
        """The places of both sides of a selection."""
        margins = [m for m in mask_margins(self.kernel, condition) if self.least(m) < 0]
        sides = self.places(one, name), self.places(other, name)
        if not margins or sides[0] is None or sides[1] is None or sides[0].fill != sides[1].fill:
            return None
        holds = [Guard(m, 0, bounds(m, self.extents)[1] + 1) for m in margins]
        fails = [Guard(m, self.least(m), 0) for m in margins]
        if sides[1].accesses and len(fails) > 1:
            return None
        places = [self.guarded(access, holds) for access in sides[0].accesses]
        places += [self.guarded(access, fails) for access in sides[1].accesses]
        made_of = sides[0].made_of | sides[1].made_of | {name}
        return _Places(tuple(filter(None, places)), sides[0].fill, made_of)

    def least(self, expression: Affine) -> int:
        return bounds(expression, self.extents)[0]

    def guarded(self, access: Access, others: Iterable[Guard]) -> Access | None:
        """An access where other guards hold as well; None where it then never does."""
        ranges: dict[Affine, tuple[int, int]] = {}
        for guard in (*access.guards, *others):
            expression, lower, upper = _plain(guard)
            low, high = ranges.get(expression, bounds(expression, self.extents))
            high += expression not in ranges
            ranges[expression] = max(low, lower), min(high, upper)
        if any(lower >= upper for lower, upper in ranges.values()):
            return None
        guards = (Guard(expression, *within) for expression, within in ranges.items())
        kept = (g for g in guards if not g.contains(bounds(g.expression, self.extents)))
        return replace(access, guards=tuple(kept))

    def covering(self, accesses: tuple[Access, ...]) -> tuple[Access, ...]:
        """The accesses, the last one without guards where together they are everywhere."""
        boxes: list[Mapping[str, int]] = []
        for access in accesses:
            box: dict[str, int] = {}
            for guard in access.guards:
                (atom, step), *others = guard.expression.terms
                if not isinstance(atom, str) or step != 1 or others:
                    return accesses
                box[atom] = guard.upper - guard.lower
            boxes.append(box)
        names = {name for box in boxes for name in box}
        volume = sum(prod(box.get(n, self.extents[n]) for n in names) for box in boxes)
        if volume < prod(self.extents[n] for n in names):
            return accesses
        return (*accesses[:-1], replace(accesses[-1], guards=()))


def _plain(guard: Guard) -> tuple[Affine, int, int]:
    """A guard's expression without its constant, the first step positive, and its range."""
    expression, lower, upper = guard.expression, guard.lower, guard.upper
    constant = expression.constant
    expression = sub(expression, const(constant))
    lower, upper = lower - constant, upper - constant
    if expression.terms and expression.terms[0][1] < 0:
        return scale(expression, -1), 1 - upper, 1 - lower
    return expression, lower, upper


def _read_names(kernel: Kernel) -> list[str]:
    """What statements and stores read, as often as they do."""
    found = [name for s in kernel.statements() for name in operands(s)]
    stores = (store for phase in kernel.phases for store in phase.stores)
    return [*found, *(name for store in stores for name in store_operands(store))]


def _needed(phase: Phase, body: list[Statement], kernel: Kernel) -> list[Statement]:
    """The statements without values that nothing reads any more."""
    elsewhere = [own for own in kernel.phases if own is not phase]
    read = {name for own in elsewhere for s in own.body for name in operands(s)}
    read |= {n for own in kernel.phases for store in own.stores for n in store_operands(store)}
    kept: list[Statement] = []
    for s in reversed(body):
        if s.name in read or not isinstance(s, Literal | Load | Map | Position):
            kept.append(s)
            read |= {*operands(s)}
    return kept[::-1]
