"""The predicted time of a program before and after each step of a trace."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from eqsat.cut.extraction import Extractor
from eqsat.errors import SpecError
from eqsat.explain.steps import Trace, states
from eqsat.price.priced import Price
from eqsat.price.pricer import Pricer
from eqsat.saturate.saturation import Class, ENode, FrozenEGraph
from eqsat.schedule.apart import estimate
from eqsat.schedule.choice import Alike, Choice, Opening, opening
from eqsat.schedule.region import Region
from eqsat.terms.algebra import (
    WEIGHTED,
    Facts,
    Read,
    Term,
    Universe,
    post_order,
    rebuild,
    with_children,
)
from eqsat.terms.carry_terms import definition
from eqsat.terms.form import Stored
from eqsat.terms.renaming import pushed_down

Pair = tuple[float | None, float | None]


@dataclass
class ProgramCosts:
    """Costs of a segment's terms, as kernels; not known once `seconds` are over.

    Before the first cut: cut into kernels as well as the model can. For a cut: with the cuts that
    were made so far and no others.
    """

    outputs: Sequence[tuple[str, tuple[str, ...]]]
    facts: Facts
    pricer: Pricer
    order: Mapping[Term, tuple[str, ...]]
    seconds: float = 5.0
    _kernels: dict[Stored, float] = field(default_factory=dict)
    _free: dict[Term, float] = field(default_factory=dict)
    _numbers: dict[Term, int] = field(default_factory=dict)
    _prices: dict[tuple[Term, tuple[str, ...]], float] = field(default_factory=dict)

    def pairs(self, trace: Trace) -> tuple[Pair, ...]:
        """Seconds before and after each step."""
        found: list[Pair] = []
        whole = states(trace)
        cut = False
        deadline = time.monotonic() + self.seconds
        for i, step in enumerate(trace.steps):
            if time.monotonic() > deadline:
                found.append((None, None))
                continue
            cut |= step.kind == "cut"
            cost = (lambda term: self._cut(term, trace.stored)) if cut else self.freely
            found.append((_known(cost, whole[i]), _known(cost, whole[i + 1])))
        return tuple(found)

    def freely(self, program: Term) -> float:
        """Seconds of a whole term under the cuts that suit it best."""
        if program not in self._free:

            def hold(term: Term, children: tuple[Term, ...]) -> Term:
                same = with_children(term, children)
                return definition(same, self.facts) if term.op in WEIGHTED else same

            held = rebuild(program, hold)  # what a kernel may choose later
            self._free[program] = min(self._best(one) for one in dict.fromkeys((program, held)))
        return self._free[program]

    def _best(self, program: Term) -> float:
        graph = self._graph(program.children)
        order = {graph.class_of[t]: n for t, n in self.order.items() if t in graph.class_of}
        outputs = [
            (graph.class_of[term], buffer, names)
            for term, (buffer, names) in zip(program.children, self.outputs, strict=True)
        ]
        extractor = Extractor(graph, self.pricer, order)
        extractor.prices = self._prices
        return extractor.run(outputs).seconds

    def _graph(self, roots: Sequence[Term]) -> FrozenEGraph:
        """An e-graph of these terms alone. A term has one number in all of them, so that what was
        priced once is known again.
        """
        terms = list(post_order(roots))
        for term in terms:
            self._numbers.setdefault(term, len(self._numbers))
        number = self._numbers
        nodes = {
            number[t]: [
                ENode(t.op, tuple(Class(number[a]) if isinstance(a, Term) else a for a in t.args))
            ]
            for t in terms
        }
        return FrozenEGraph(
            universe=self.facts.universe,
            nodes=nodes,
            free={number[t]: self.facts.free(t) for t in terms},
            dtype={number[t]: self.facts.dtype(t).name for t in terms},
            roots=tuple(number[root] for root in roots),
            class_of={t: number[t] for t in terms},
        )

    def _cut(self, program: Term, stored: Sequence[Stored]) -> float:
        by_buffer = {one.buffer: one for one in stored}
        needed = {
            buffer: replace(by_buffer[buffer], term=term)
            for term, (buffer, _) in zip(program.children, self.outputs, strict=True)
        }
        stack = [one.term for one in needed.values()]
        while stack:
            for term in post_order([stack.pop()]):
                read = term.args[0] if term.args else None
                if isinstance(read, Read) and read.buffer in by_buffer:
                    one = by_buffer[read.buffer]
                    if one.buffer not in needed:
                        needed[one.buffer] = one
                        stack.append(one.term)
        return sum(map(self._kernel, needed.values()))

    def _kernel(self, one: Stored) -> float:
        """Seconds of a kernel of its own, re-indexings carried down first."""
        if one not in self._kernels:
            own = self.facts.universe
            universe = Universe(list(own.names), dict(own.extents))
            plain = replace(one, term=pushed_down(one.term, universe))
            self._kernels[one] = estimate((plain,), Facts(universe), self.pricer)
        return self._kernels[one]


def _known(cost: Callable[[Term], float | None], term: Term) -> float | None:
    """A cost, or None for a term on the way that the spec has no price for."""
    try:
        return cost(term)
    except SpecError:
        return None


class KernelCosts:
    """Costs of one kernel's terms: while it is fused, with what is not yet fused in kernels of its
    own, under the best tiles; then under its schedule, what is unsettled lying whole in one tile.
    """

    def __init__(self, region: Region, pricer: Pricer) -> None:
        self.region, self.pricer = region, pricer
        self.facts = region.made.facts
        self.values = {n: self._value(n) for n in region.start.bodies}
        self._own: dict[int, float] = {}

    def pairs(self, trace: Trace) -> tuple[Pair, ...]:
        """Seconds before and after each step."""
        whole = states(trace)
        found: list[Pair] = []
        for i in range(len(trace.steps)):
            scheduled = bool(whole[i + 1].children[1].children)
            cost = self._scheduled if scheduled else self._fused
            found.append((_known(cost, whole[i]), _known(cost, whole[i + 1])))
        return tuple(found)

    def _value(self, number: int) -> Stored:
        universe = self.facts.universe
        meaning = self.region.start.meanings[number]
        names = universe.members(self.facts.free(meaning))
        return Stored(f"t{number}", meaning, names, self.facts.dtype(meaning))

    def _loaded(self, term: Term, done: dict[Term, Term]) -> Term:
        """The term with values read from memory."""
        for sub in post_order([term]):
            if sub.op == "value":
                one = self.values[sub.args[0]]  # type: ignore[index]
                done[sub] = one.read_back(self.facts.universe.extents)
            elif sub not in done:
                args = (done[a] if isinstance(a, Term) else a for a in sub.args)
                done[sub] = Term(sub.op, *args)
        return done[term]

    def _fused(self, kernel: Term) -> float:
        parts = self.region.parts(self._loaded(kernel.children[0], {}))
        made = zip(self.region.made.stored, parts, strict=True)
        stored = [replace(one, term=part) for one, part in made]
        needed: set[int] = set()
        stack = [kernel.children[0]]
        while stack:
            for sub in post_order([stack.pop()]):
                if sub.op == "value" and sub.args[0] not in needed:
                    needed.add(sub.args[0])  # type: ignore[arg-type]
                    stack.append(self.region.start.bodies[sub.args[0]])  # type: ignore[index]
        own = estimate(stored, self.facts, self.pricer) + self._preparing(kernel.children[0])
        return own + sum(map(self._unfused, sorted(needed)))

    def _preparing(self, body: Term) -> float:
        """Seconds of the kernels that prepare what a body reads."""
        terms = set(post_order([body]))
        ready = [one for one in self.region.prepared if one.copy in terms]
        return sum(estimate(one.stored, self.facts, self.pricer) for one in ready)

    def _unfused(self, number: int) -> float:
        if number not in self._own:
            body = self._loaded(self.region.start.bodies[number], {})
            one = replace(self.values[number], term=body)
            self._own[number] = estimate((one,), self.facts, self.pricer)
        return self._own[number]

    def _scheduled(self, kernel: Term) -> float | None:
        made, choice = self.region.partial(kernel)
        opened = opening(made, choice.parts, "") or Opening(made)
        if choice.threads == 1 and self.region.menus.threads:
            choice = replace(choice, threads=max(self.region.menus.threads))
        own = self.price(opened, choice).seconds[0]
        return float(own) + self._preparing(kernel.children[0])

    def price(self, opened: Opening, choice: Choice) -> Price:
        """The price of a fused kernel under a schedule."""
        return Alike((choice,)).price(opened, self.pricer)

    def parts(self, kernel: Term) -> dict[str, float]:
        """What the predicted time of a whole kernel is made of."""
        opened, choice = self.region.opening("", kernel)
        price = self.price(opened, choice)
        found = {name: float(value[0]) for name, value in price.parts.items()}
        return {name: value for name, value in found.items() if math.isfinite(value) and value > 0}
