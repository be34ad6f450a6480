"""An explanation laid out for reading: headings, tables and steps, before any format."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from eqsat.explain.explanation import (
    CallRecord,
    Explanation,
    KernelRecord,
    RuleRecord,
    SegmentRecord,
)
from eqsat.explain.notation import Notation, letters, renamed
from eqsat.explain.steps import Step, Trace, replace_at, term_at
from eqsat.graph.index import Affine
from eqsat.kernel.text import show
from eqsat.saturate.egglog_text import BINDERS, SCHEDULE
from eqsat.terms.algebra import SCANS, Read, Renaming, Term, Universe, names_of, post_order

Cost = float | None


@dataclass(frozen=True)
class Row:
    """One step, or several alike: what, by which law, where, the change, the cost before, after."""

    number: str
    title: str
    law: str
    place: str
    change: tuple[str, ...]
    cost: str


@dataclass(frozen=True)
class Section:
    """A heading, then facts as (name, text), lines of code, and steps; in that order."""

    level: int
    title: str
    facts: tuple[tuple[str, str], ...] = ()
    code: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()


def sections(explanation: Explanation) -> list[Section]:
    """The explanation as sections, in the order of reading."""
    found = [_head(explanation)]
    count = len(explanation.segments) + len(explanation.calls)
    for segment in explanation.segments:
        found += _Segment(explanation, segment, count).sections()
    found += [_called(record) for record in explanation.calls]
    laws = tuple((rule.name, _stated(rule)) for rule in explanation.rules)
    return [*found, Section(1, "Rules that the steps use", laws)] if laws else found


def _called(record: CallRecord) -> Section:
    """A segment that a library computes."""
    places = ", ".join(str(place + 1) for place in record.places)
    shown = dict(record.buffers)
    buffers = tuple(replace(b, name=shown.get(b.name, b.name)) for b in record.call.buffers)
    predicted = f"{seconds_text(record.seconds)}, most of it {record.bottleneck}"
    facts = (("operation", record.call.operation), ("predicted", predicted))
    code = replace(record.call, buffers=buffers).show().splitlines()
    return Section(1, f"Segment {places}: a call of a library", facts, tuple(code))


def _stated(rule: RuleRecord) -> str:
    text = " ".join([rule.equation, *rule.note.split()])
    return text if rule.precision == "exact" else f"{text} precision: {rule.precision}."


def seconds_text(seconds: Cost) -> str:
    """`12.3 us`"""
    if seconds is None:
        return "?"
    if math.isinf(seconds):
        return "does not fit"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} us"


def _head(explanation: Explanation) -> Section:
    traces = [t for s in explanation.segments for t in (s.trace, *(k.trace for k in s.kernels))]
    steps = sum(len(trace.steps) for trace in traces)
    calls = sum(len(record.places) for record in explanation.calls)
    called = f" and {calls} {'call' if calls == 1 else 'calls'} of a library" if calls else ""
    plural = "kernel" if explanation.launches == 1 else "kernels"
    once = seconds_text(explanation.once)
    facts = [
        (
            "program",
            f"{explanation.operations} operations -> {explanation.launches} {plural}{called}",
        ),
        ("spec", explanation.spec),
        ("predicted", seconds_text(explanation.seconds)),
        *([("once", f"{once}, for what reads constants alone")] if explanation.once else []),
        ("inputs", ", ".join(f"{n}: {kind}" for n, kind in explanation.arguments) or "none"),
    ]
    if explanation.notes:
        facts += [("not traced", note) for note in explanation.notes]
    else:
        facts.append(("trace", f"{steps} steps, replayed without the e-graph: each one holds"))
    return Section(1, explanation.title, tuple(facts))


@dataclass
class _Segment:
    explanation: Explanation
    record: SegmentRecord
    count: int
    buffers: dict[str, tuple[str, tuple[int, ...]]] = field(init=False)

    def __post_init__(self) -> None:
        self.buffers = {local: (shown, shape) for local, shown, shape in self.record.buffers}

    def sections(self) -> list[Section]:
        record = self.record
        places = ", ".join(str(place + 1) for place in record.places)
        title = "The algebra" if self.count == 1 else f"Segment {places}: the algebra"
        taken = {shown for shown, _ in self.buffers.values()}
        used = _names_in(record.trace, record.names) | {n for own in record.outputs for n in own}
        names = [(name, extent) for name, extent in record.names if name in used]
        shown = letters([name for name, _ in names], taken)
        notation = Notation(dict(record.names), shown, self.buffers)
        outputs = self._outputs(shown)
        roots = dict(zip(outputs, record.trace.source.children, strict=True))
        written = notation.definitions(roots)
        facts = [("indices", _indices(names, shown))]
        if len(record.places) > 1:
            facts.append(("runs", f"{len(record.places)} times, with other inputs"))
        found = [Section(1, title, tuple(facts)), Section(2, "As written", (), tuple(written))]
        values = [text.partition("[")[0] for text in outputs]
        rows = _Steps(self.explanation, record.trace, record.costs, notation, values).rows()
        if record.trace.note:
            found.append(Section(2, "Steps", (("none", record.trace.note),)))
        else:
            none = () if rows else (("none", "the program as written is the best that was found"),)
            found.append(Section(2, "Steps", none, (), tuple(rows)))
        fresh = Notation(dict(record.names), shown, self.buffers)
        stored = {
            f"{self._shown(one.buffer)}[{', '.join(shown[n] for n in one.names)}]": one.term
            for one in record.trace.stored
        }
        found.append(Section(2, "As run", (), tuple(fresh.definitions(stored))))
        for kernel in record.kernels:
            found += self._kernel(kernel)
        return found

    def _shown(self, buffer: str) -> str:
        return self.buffers.get(buffer, (buffer, ()))[0]

    def _outputs(self, shown: Mapping[str, str]) -> list[str]:
        return [
            f"{self._shown(f'y{i}')}[{', '.join(shown[n] for n in names)}]"
            for i, names in enumerate(self.record.outputs)
        ]

    def _kernel(self, record: KernelRecord) -> list[Section]:
        taken = {shown for shown, _ in self.buffers.values()}
        shown = letters([name for name, _ in record.names], taken)
        notation = Notation(dict(record.names), shown, self.buffers)
        names = [self._shown(one.buffer) for one in record.stored]
        facts = [
            ("stores", ", ".join(dict.fromkeys(names))),
            ("indices", _indices(record.names, shown)),
            ("predicted", f"{seconds_text(record.seconds)}, most of it {record.bottleneck}"),
            ("parts", ", ".join(f"{n} {seconds_text(s)}" for n, s in record.parts)),
        ]
        if record.recast:
            facts.append(("over", record.recast))
        if record.trace.note:
            facts.append(("no steps", record.trace.note))
        rows = _Steps(self.explanation, record.trace, record.costs, notation, names).rows()
        display = {local: name for local, (name, _) in self.buffers.items()}
        code = show(renamed(record.kernel, shown, display)).splitlines()
        which = f"{record.kernel.name} of segment {self.record.places[0] + 1}"
        title = f"Kernel {record.kernel.name if self.count == 1 else which}"
        return [
            Section(1, title, tuple(facts), (), tuple(rows)),
            Section(2, "Its code", (), tuple(code)),
        ]


def _indices(names: Sequence[tuple[str, int]], shown: Mapping[str, str]) -> str:
    return ", ".join(f"{shown[name]} < {extent}" for name, extent in names) or "none"


def _names_in(trace: Trace, names: Sequence[tuple[str, int]]) -> set[str]:
    """The index names that the terms of a trace, and of what it stores, hold."""
    universe = Universe([name for name, _ in names], dict(names))
    sides = [side for step in trace.steps for side in (step.before, step.after)]
    found = {name for one in trace.stored for name in one.names}
    for term in post_order([trace.source, trace.target, *sides, *(s.term for s in trace.stored)]):
        if term.op in BINDERS or term.op in SCANS:
            found.update(universe.members(int(term.args[0])))  # type: ignore[arg-type]
        for atom in term.args:
            if isinstance(atom, Affine | Read | Renaming):
                found |= names_of(atom)
            if isinstance(atom, Renaming):
                found.update(atom.source)
    return found


@dataclass
class _Steps:
    """The rows of a trace; runs of `inline` are one row."""

    explanation: Explanation
    trace: Trace
    costs: Sequence[tuple[Cost, Cost]]
    notation: Notation
    names: Sequence[str]

    def rows(self) -> list[Row]:
        state = self.trace.source
        found: list[Row] = []
        run: list[int] = []
        for i, step in enumerate(self.trace.steps):
            if step.rule == "inline":
                run.append(i)
            else:
                found += self._inlined(run)
                run = []
                found.append(self._row(i, step, state))
            state = replace_at(state, step.position, step.after)
        return [*found, *self._inlined(run)]

    def _inlined(self, run: Sequence[int]) -> list[Row]:
        if not run:
            return []
        steps = [self.trace.steps[i] for i in run]
        change = []
        for step in steps:
            text = self.notation.show(step.after)
            line = f"{self.notation.show(step.before)} = {text}"
            change += [*self.notation.taken_lines(), *([line] if line not in change else [])]
        number = str(run[0] + 1) if len(run) == 1 else f"{run[0] + 1}-{run[-1] + 1}"
        cost = self._cost(self.costs[run[0]][0], self.costs[run[-1]][1])
        plural = "" if len(run) == 1 else f" x {len(run)}"
        law = self._law("inline")
        return [Row(number, f"inline{plural}", law, "", tuple(change), cost)]

    def _row(self, i: int, step: Step, state: Term) -> Row:
        before, after = self.notation.show(step.before), self.notation.show(step.after)
        defined = self.notation.taken_lines()
        change = [*defined, f"   {before}", f"-> {after}"]
        title, law = self._titled(step)
        if step.rule in SCHEDULE:
            change = [self._settled(step)]
        place = self._place(state, step.position)
        return Row(str(i + 1), title, law, place, tuple(change), self._cost(*self.costs[i]))

    def _titled(self, step: Step) -> tuple[str, str]:
        if step.kind == "again" and step.again is not None:
            first, last, _ = step.again
            undone = "" if step.forward else " undone"
            steps = f"as in {first + 1}-{last + 1}"
            return f"{steps}{undone}", "the same steps on an equal part"
        if step.kind == "cut":
            return "cut", "a value that is written to memory, and read from there"
        if step.kind == "reindex":
            return "reindex", "a re-indexing, carried down to the reads"
        backward = "" if step.forward else ", right to left"
        return step.rule, self._law(step.rule) + backward

    def _law(self, name: str) -> str:
        rule = self.explanation.rule(name)
        return rule.equation if rule else ""

    def _settled(self, step: Step) -> str:
        schedule = step.after.children[1]
        own = [str(a) for a in schedule.args if not isinstance(a, Term)]
        return " ".join([schedule.op, *(self.notation.shown.get(a, a) for a in own)])

    def _place(self, state: Term, position: tuple[int, ...]) -> str:
        """The way from a stored value down to the term: `result > sum[m] > left of *`."""
        parts: list[str] = []
        for depth, place in enumerate(position):
            above = term_at(state, position[:depth])
            if above.op == "program":
                parts.append(self.names[place])
            elif above.op in {"kernel", "together"}:
                continue
            elif len(above.children) > 1:
                side = {0: "left", 1: "right"}.get(place, str(place + 1))
                parts.append(f"{side} of {_sign(above)}")
            else:
                parts.append(_sign(above))
        if len(parts) > 6:
            parts = [*parts[:1], "..", *parts[-4:]]
        return " > ".join(parts)

    @staticmethod
    def _cost(before: Cost, after: Cost) -> str:
        if before is None and after is None:
            return ""
        return f"{seconds_text(before)} -> {seconds_text(after)}"


def _sign(term: Term) -> str:
    signs = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
    return signs.get(term.op, term.op.removeprefix("reduce_"))
