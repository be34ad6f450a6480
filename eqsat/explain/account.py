"""From a planned program to its explanation: search again, trace, price every step, check all."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from eqsat.explain.explanation import (
    CallRecord,
    Explanation,
    KernelRecord,
    RuleRecord,
    SegmentRecord,
)
from eqsat.explain.hunt import Hunt, algebra_trace, kernel_trace
from eqsat.explain.inlining import Inlining
from eqsat.explain.replay import check
from eqsat.explain.step_costs import KernelCosts, ProgramCosts
from eqsat.explain.steps import Trace
from eqsat.kernel.ir import Kernel
from eqsat.library import PricedCall
from eqsat.rule import ALGEBRA, Rule
from eqsat.saturate.saturation import SearchWorker
from eqsat.schedule.region import Region
from eqsat.schedule.scheduling import Chosen, Predicted, Search
from eqsat.segment.segments import Segment
from eqsat.solve import Findings, investigate
from eqsat.terms.algebra import Facts, Term
from eqsat.terms.form import Stored
from eqsat.terms.matching import Setting
from eqsat.terms.scattered import starts

DEEPEST = 100_000  # calls within each other, in place of Python's own limit


@dataclass(frozen=True)
class Subject:
    """What is to be explained: the segments of a graph, how they were searched, what runs.

    `search` has no worker of its own yet; `buffers` gives each segment's buffers readable names;
    `kernels` are those of each segment that run; `calls`: of segments that a library computes;
    `once`: predicted seconds of what no run but the first needs.
    """

    title: str
    segments: tuple[Segment, ...]
    search: Search
    kernels: tuple[tuple[Kernel, ...], ...]
    buffers: tuple[Mapping[str, str], ...]
    arguments: tuple[tuple[str, str], ...]
    operations: int
    calls: Mapping[int, PricedCall]
    once: float = 0.0


def explain(subject: Subject) -> Explanation:
    """Trace, price and check a program. Raises TraceError where a trace that was found is wrong."""
    with _deep_calls():
        return _explain(subject)


@contextmanager
def _deep_calls() -> Iterator[None]:
    """Calls as deep as proofs are, which follow terms from the whole to the last operand."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, DEEPEST))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def _explain(subject: Subject) -> Explanation:
    places: dict[str, list[int]] = {}
    for number, segment in enumerate(subject.segments):
        places.setdefault(segment.signature, []).append(number)
    with SearchWorker(subject.search.limits.memory_bytes) as worker:
        search = replace(subject.search, worker=worker)
        records = [
            _Account(subject, search, tuple(own)).record()
            for own in places.values()
            if own[0] not in subject.calls
        ]
    calls = [_called(subject, tuple(own)) for own in places.values() if own[0] in subject.calls]
    notes = []
    for record in records:
        notes += [t.note for t in (record.trace, *(k.trace for k in record.kernels)) if t.note]
    explanation = Explanation(
        title=subject.title,
        spec=search.spec.name,
        arguments=subject.arguments,
        operations=subject.operations,
        seconds=sum(one.seconds * len(one.places) for one in (*records, *calls)) - subject.once,
        once=subject.once,
        segments=tuple(records),
        rules=tuple(_used(records, search.rules)),
        notes=tuple(dict.fromkeys(notes)),
        calls=tuple(calls),
    )
    if not notes:
        check(explanation, subject.segments, search.rules, search.spec)
    return explanation


def _called(subject: Subject, places: tuple[int, ...]) -> CallRecord:
    one = subject.calls[places[0]]
    shown = tuple(subject.buffers[places[0]].items())
    return CallRecord(places, one.kernel, shown, one.seconds, one.bottleneck)


def _used(records: Sequence[SegmentRecord], rules: Sequence[Rule]) -> list[RuleRecord]:
    traces = [t for r in records for t in (r.trace, *(k.trace for k in r.kernels))]
    names = {step.rule for trace in traces for step in trace.steps}
    return [
        RuleRecord(r.name, r.group, r.equation, r.note, r.precision)
        for r in rules
        if r.name in names
    ]


class _Account:
    """The record of one segment and of those equal to it."""

    def __init__(self, subject: Subject, search: Search, places: tuple[int, ...]) -> None:
        self.search, self.places = search, places
        self.segment = subject.segments[places[0]]
        self.running = subject.kernels[places[0]]
        self.buffers = subject.buffers[places[0]]
        self.name = f"segment {places[0] + 1}"
        self.rest: tuple[Stored, ...] = ()  # what the last kernel left for the one after it
        self.ahead: set[tuple[Stored, ...]] = set()  # what kernels prepare for others

    def record(self) -> SegmentRecord:
        found = investigate(self.segment, self.search, told=True)
        universe = found.encoding.universe
        outputs = [(f"y{i}", one.names) for i, one in enumerate(found.encoding.outputs)]
        trace = self._algebra(found, [buffer for buffer, _ in outputs])
        costs = ProgramCosts(outputs, Facts(universe), found.pricer, found.encoding.order)
        pairs = list(_matched(found.kernels, self.running))
        for one, _ in pairs:
            assert one.chosen is not None
            self.ahead |= {p.stored for p in self._region(one).before(one.chosen.body)}
            self.ahead |= {(start,) for start in starts(one.chosen.body)}
        kernels = [self._kernel(*pair, found) for pair in pairs]
        return SegmentRecord(
            places=self.places,
            names=tuple((name, universe.extents[name]) for name in universe.names),
            buffers=tuple((n, self.buffers.get(n, n), b.shape) for n, b in found.buffers.items()),
            outputs=tuple(names for _, names in outputs),
            trace=trace,
            costs=costs.pairs(trace),
            kernels=tuple(kernels),
        )

    def _algebra(self, found: Findings, outputs: Sequence[str]) -> Trace:
        universe = found.encoding.universe
        rules = tuple(rule for rule in self.search.rules if rule.group in ALGEBRA)
        hunt = Hunt(rules, Setting(Facts(universe), found.finite), self.search.worker)
        terms: list[Term] = [one.term for one in found.encoding.outputs]
        inlining = Inlining(found.plan.separate, universe)
        return algebra_trace(self.name, terms, outputs, inlining, found.pushed, hunt)

    def _region(self, one: Predicted) -> Region:
        assert one.chosen is not None
        chosen = one.chosen
        return Region(chosen.stored, chosen.facts, self.search.spec, chosen.recast)

    def _kernel(self, one: Predicted, running: Kernel | None, found: Findings) -> KernelRecord:
        assert one.chosen is not None
        chosen, region = one.chosen, self._region(one)
        name = f"{self.name}, kernel {one.kernel.name}"
        trace = self._fusion(name, region, chosen, found)
        target = region.target(chosen.body, chosen.choice)
        opened = region.opening(one.kernel.name, target)[0]
        self.rest = opened.division.unsettled if opened.division else ()
        if running is not None and not _same(one.kernel, running):
            trace = replace(trace, note="the search, done again, found another kernel than runs")
        prices = KernelCosts(region, found.pricer)
        parts = prices.parts(target)
        return KernelRecord(
            stored=chosen.stored,
            names=tuple({**opened.made.extents, **region.made.extents}.items()),
            trace=trace,
            costs=prices.pairs(trace),
            kernel=one.kernel,
            seconds=one.seconds,
            bottleneck=one.bottleneck,
            parts=tuple(sorted(parts.items(), key=lambda part: -part[1])),
            recast=chosen.recast,
        )

    def _fusion(self, name: str, region: Region, chosen: Chosen, found: Findings) -> Trace:
        target = region.target(chosen.body, chosen.choice)
        if chosen.stored not in (*found.plan.kernels, self.rest, *self.ahead):
            note = "one part of values that no rule fuses, or that fit no schedule of one kernel"
            return Trace(name, region.start.kernel, target, (), region.stored, note)
        rules = tuple(rule for rule in self.search.rules if rule.group not in ALGEBRA)
        hunt = Hunt(rules, region.setting(), self.search.worker)
        return kernel_trace(name, region, target, hunt)


def _matched(
    found: Sequence[Predicted], running: Sequence[Kernel]
) -> Iterator[tuple[Predicted, Kernel | None]]:
    """Each kernel that was found, or of its alternatives the one that runs; with what runs."""
    waiting, kernels = list(found), iter(running)
    while waiting:
        first, *after = waiting
        now = next(kernels, None)
        other = next((a for a in first.alternatives if _same(a[0].kernel, now)), None)
        if other is not None and not _same(first.kernel, now):
            first, after = other[0], [*other[1:], *after[first.followers :]]
        yield first, now
        waiting = after


def _same(a: Kernel, b: Kernel | None) -> bool:
    return b is not None and replace(a, rules=()) == replace(b, rules=())
