"""An independent checker of traces: no e-graph, one step after the other, from the graph itself.

It matches every rule where the trace says, evaluates the guards in Python, applies every step, and
must land on the program: from the source graph's terms to the stored values, from each kernel's
unfused term to its code.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from eqsat.encode.encoding import Encoding, encode
from eqsat.errors import SpecError, TraceError, UnsupportedError
from eqsat.explain.explanation import (
    AGAIN,
    DAMAGED,
    Explanation,
    KernelRecord,
    SegmentRecord,
    damaged,
)
from eqsat.explain.inlining import Inlining
from eqsat.explain.steps import Step, Trace, digests, replace_at, term_at
from eqsat.explain.term_values import agree
from eqsat.graph.index import Affine, add, const, free_names, row_major, substitute, var
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Buffer, Guard
from eqsat.layout.prepare import copies
from eqsat.library import LibraryCall, check_call, is_call
from eqsat.rule import ALGEBRA, Rewrite, Rule
from eqsat.schedule.reduction_parts import Division
from eqsat.schedule.region import Region
from eqsat.segment.segments import Segment
from eqsat.solve import finite_buffers, leaf_names, segment_buffers
from eqsat.specs import ParallelProcessingUnit
from eqsat.terms.algebra import (
    SCATTERS,
    Facts,
    Read,
    Renaming,
    Term,
    Universe,
    rebuild,
    with_children,
)
from eqsat.terms.form import Stored
from eqsat.terms.matching import Setting, bindings, failed, results, show_condition
from eqsat.terms.renaming import pushed_down, same_when_pushed
from eqsat.terms.scattered import starts


def replay(
    trace: Trace, source: Term, target: Term, rules: Sequence[Rule], setting: Setting
) -> list[Term]:
    """The whole term before the first step and after each.

    Raises TraceError, naming the step, unless every step holds and the last gives the target.
    """
    if trace.note:
        raise TraceError(f"{trace.name} has no steps: {trace.note}. Raise the search's limits.")
    return _Replay(trace, rules, setting).run(source, target)


class _Replay:
    def __init__(self, trace: Trace, rules: Sequence[Rule], setting: Setting) -> None:
        self.trace, self.setting = trace, setting
        self.rules = {rule.name: rule for rule in rules}
        self.universe = setting.facts.universe
        self.states: list[Term] = []

    def run(self, source: Term, target: Term) -> list[Term]:
        trace = self.trace
        if trace.source is not source:
            raise TraceError(
                f"{trace.name} starts from another term than the program as written. Check it with "
                f"its own program. {AGAIN}"
            )
        self.states = [source]
        for number, step in enumerate(trace.steps, 1):
            try:
                self.states.append(self._apply(number, step))
            except TraceError as error:
                what = step.rule or step.kind
                raise TraceError(f"{trace.name}, step {number} ({what}): {error}") from None
        if self.states[-1] is not target:
            raise TraceError(
                f"{trace.name}: its {len(trace.steps)} steps end at another term than the program "
                f"as run"
            )
        return self.states

    def _apply(self, number: int, step: Step) -> Term:
        state = self.states[-1]
        try:
            found = term_at(state, step.position)
        except IndexError:
            raise TraceError(f"there is no position {step.position}") from None
        if found is not step.before:
            raise TraceError(
                f"at {step.position} stands {_brief(found)}, not {_brief(step.before)}"
            )
        self._check(number, step)
        result = replace_at(state, step.position, step.after)
        if digests([result])[result] != step.whole:
            raise TraceError("it does not give the whole term that the trace records")
        return result

    def _check(self, number: int, step: Step) -> None:
        if step.before is step.after:
            raise TraceError("it changes nothing")
        match step.kind:
            case "rule":
                self._check_rule(step)
            case "reindex":
                if not same_when_pushed(step.before, step.after, self.universe):
                    raise TraceError("the re-indexing, carried down, gives another term")
            case "cut":
                self._check_cut(step)
            case "again":
                self._check_again(number, step)
            case _:
                raise TraceError(f"{step.kind!r} is no kind of step")

    def _check_rule(self, step: Step) -> None:
        rule = self.rules.get(step.rule)
        if rule is None or not 1 <= step.variant <= len(rule.rewrites):
            raise TraceError(f"there is no rule {step.rule!r} with a variant {step.variant}")
        one = rule.rewrites[step.variant - 1]
        ends = (step.before, step.after) if step.forward else (step.after, step.before)
        if ends[1] not in results(one, ends[0], self.setting):
            raise TraceError(self._why(one, *ends))

    def _why(self, one: Rewrite, left: Term, right: Term) -> str:
        ways = list(bindings(one, left, self.setting))
        if not ways:
            return f"its left side does not match {_brief(left)}, or a relation it asks for fails"
        for way in ways:
            guard = failed(one, way, self.setting)
            if guard is not None:
                return f"its guard {show_condition(guard)} does not hold for {_brief(left)}"
        return f"from {_brief(left)} it does not give {_brief(right)}"

    def _check_cut(self, step: Step) -> None:
        for one in self.trace.stored:
            if one.term is step.before and one.read_back(self.universe.extents) is step.after:
                return
        raise TraceError("no stored value is computed and read like that")

    def _check_again(self, number: int, step: Step) -> None:
        if step.again is None:
            raise TraceError("it names no steps")
        first, last, base = step.again
        if not 0 <= first <= last < number - 1:
            raise TraceError(f"steps {first + 1} to {last + 1} do not come before it")
        for earlier in self.trace.steps[first : last + 1]:
            if earlier.position[: len(base)] != base:
                raise TraceError(f"steps {first + 1} to {last + 1} are not all under {base}")
        try:
            ends = (term_at(self.states[first], base), term_at(self.states[last + 1], base))
        except IndexError:
            raise TraceError(f"there is no position {base} at step {first + 1}") from None
        if ends != ((step.before, step.after) if step.forward else (step.after, step.before)):
            raise TraceError(f"steps {first + 1} to {last + 1} showed another equality")


def _brief(term: Term) -> str:
    text = f"({' '.join([term.op, *('..' for _ in term.args)])})"
    return text if term.children or not term.args else f"({term.op} {str(term.args[0])[:60]})"


# --- a whole program ---------------------------------------------------------------------------


def check(
    explanation: Explanation,
    segments: Sequence[Segment],
    rules: Sequence[Rule],
    spec: ParallelProcessingUnit,
) -> int:
    """Check every trace against the segments of the source graph; the number of steps checked.

    Raises TraceError, naming the step or the part that does not hold.
    """
    try:
        return _check(explanation, segments, rules, spec)
    except DAMAGED as error:
        raise damaged(error) from error


def _check(
    explanation: Explanation,
    segments: Sequence[Segment],
    rules: Sequence[Rule],
    spec: ParallelProcessingUnit,
) -> int:
    records = (*explanation.segments, *explanation.calls)
    places = [place for record in records for place in record.places]
    if sorted(places) != list(range(len(segments))):
        raise TraceError(f"the trace is of segments {sorted(places)}, not all {len(segments)}")
    _check_orders(segments)
    for record in explanation.calls:
        _check_call(record.call, segments[record.places[0]], spec)
    return sum(
        _check_segment(record, segments[place], rules, spec)
        for record in explanation.segments
        for place in record.places[:1]
    )


def _check_orders(segments: Sequence[Segment]) -> None:
    """What one segment stores lies as those that read it take it to."""
    found: dict[Tensor, tuple[int, ...] | None] = {}
    for number, segment in enumerate(segments):
        for tensor in (*segment.leaves, *segment.stored):
            axes = segment.orders.get(tensor)
            if found.setdefault(tensor, axes) != axes:
                raise TraceError(f"segment {number + 1} has another order of the axes of {tensor}")


def _check_call(call: LibraryCall, segment: Segment, spec: ParallelProcessingUnit) -> None:
    """The call is what the spec has for the segment's tensor."""
    (tensor,) = segment.stored
    if not is_call(tensor):
        raise TraceError(f"{call.name} calls a library for {tensor}, which kernels compute")
    try:
        check_call(call, tensor, spec)
    except (SpecError, UnsupportedError) as error:
        raise TraceError(str(error)) from error


def _check_segment(
    record: SegmentRecord, segment: Segment, rules: Sequence[Rule], spec: ParallelProcessingUnit
) -> int:
    name = record.trace.name
    leaves = leaf_names(segment)
    encoding = encode(segment.tensors, segment.stored, leaves, segment.orders)
    universe = _universe(record, encoding.universe)
    stored = {one.buffer: one for one in record.trace.stored}
    source = Term("program", *(output.term for output in encoding.outputs))
    target = _target(name, encoding, stored)
    algebra = [rule for rule in rules if rule.group in ALGEBRA]
    setting = Setting(Facts(universe), finite_buffers(segment))
    replay(record.trace, source, target, algebra, setting)
    _compare(record.trace, encoding, target, universe)
    buffers = segment_buffers(encoding, stored.values())
    made: list[str] = []
    division: Division | None = None
    waiting: list[KernelRecord] = []
    for kernel in record.kernels:
        facts = Facts(universe)
        rest = division.unsettled if division else ()
        if kernel.stored != rest and _is_ahead(kernel, stored):
            waiting.append(kernel)  # it prepares what a later one reads, or combines values in
            continue
        if division is not None:
            _check_rest(kernel, division)
            facts = division.rest_facts
        else:
            for one in kernel.stored:
                _check_renamed(stored[one.buffer], one, universe)
                made.append(one.buffer)
        region = Region(kernel.stored, facts, spec, kernel.recast)
        division = _check_kernel(kernel, region, rules, buffers)
        buffers |= {b.name: b for b in division.buffers} if division else {}
        _check_prepared(kernel, region, waiting, rules, buffers)
        waiting = []
    if sorted(made) != sorted(stored):
        raise TraceError(f"{name}: the kernels store {made}, and the trace {list(stored)}")
    if waiting:
        unread = ", ".join(one.buffer for kernel in waiting for one in kernel.stored)
        raise TraceError(f"{name}: no kernel reads what is prepared in {unread}")
    if division is not None:
        raise TraceError(f"{name}: no kernel joins the parts in {division.buffers[0].name}")
    return len(record.trace.steps) + sum(len(k.trace.steps) for k in record.kernels)


def _is_ahead(kernel: KernelRecord, stored: Mapping[str, Stored]) -> bool:
    """Whether a kernel stores no value of the trace, but what another kernel needs to find."""
    first = kernel.stored[0]
    value = stored.get(first.buffer)
    return value is None or (value.term.op in SCATTERS and first.term.op == "literal")


def _target(name: str, encoding: Encoding, stored: Mapping[str, Stored]) -> Term:
    """What the outputs' buffers hold, as the trace has it."""
    terms = []
    for i, output in enumerate(encoding.outputs):
        one = stored.get(f"y{i}")
        if one is None or one.names != output.names or one.dtype != output.tensor.dtype:
            raise TraceError(f"{name} does not store output y{i} as the graph has it")
        terms.append(one.term)
    return Term("program", *terms)


def _compare(trace: Trace, encoding: Encoding, target: Term, universe: Universe) -> None:
    """Both ends are worth the same at a few points, where that costs little."""
    inlining = Inlining(trace.stored, universe)
    expanded = inlining.expand(target.children)
    ends = ([output.term for output in encoding.outputs], [expanded[t] for t in target.children])
    if _agree(*ends, universe) is not False:
        return
    for step in trace.steps:
        if step.kind == "rule":
            sides = [inlining.expand([term])[term] for term in (step.before, step.after)]
            if _agree(sides[:1], sides[1:], universe) is False:
                raise TraceError(
                    f"{trace.name}: rule {step.rule} is unsound: every step holds, and yet this "
                    f"one changes numbers. Mend the rule or its guards, or leave it out."
                )
    raise TraceError(
        f"{trace.name}: every step holds, and yet the numbers differ: a rule is unsound. Check the "
        f"guards of {', '.join(sorted({step.rule for step in trace.steps} - {''}))}."
    )


def _agree(left: Sequence[Term], right: Sequence[Term], universe: Universe) -> bool | None:
    scratch = Universe(list(universe.names), dict(universe.extents))
    ends = [[pushed_down(term, scratch) for term in terms] for terms in (left, right)]
    return agree(*ends, scratch)


def _universe(record: SegmentRecord, own: Universe) -> Universe:
    """The segment's own names, and those that the trace adds for re-indexed sums."""
    known = tuple((name, own.extents[name]) for name in own.names)
    if record.names[: len(known)] != known:
        raise TraceError(
            f"{record.trace.name} has other indices than the program as written. Check it with its "
            f"own program. {AGAIN}"
        )
    return Universe([name for name, _ in record.names], dict(record.names))


def _check_renamed(separate: Stored, joined: Stored, universe: Universe) -> None:
    """A kernel may name the axes of a value anew, to share its grid with another value, or store
    its elements where those that it computes them of come.
    """
    if joined.at is not None:
        _check_moved(separate, joined, universe)
        return
    extents = [[universe.extents[n] for n in one.names] for one in (separate, joined)]
    if extents[0] != extents[1] or separate.dtype != joined.dtype:
        raise TraceError(f"the kernel stores {joined.buffer} in another shape than its trace")
    pairs = [(a, b) for a, b in zip(separate.names, joined.names, strict=True) if a != b]
    term = separate.term
    if pairs:
        renaming = Renaming(tuple(a for a, _ in pairs), tuple(var(b) for _, b in pairs))
        term = Term("reindex", renaming, term)
    if not same_when_pushed(term, joined.term, universe):
        raise TraceError(f"the kernel stores another value in {joined.buffer} than its trace")


def _check_moved(separate: Stored, joined: Stored, universe: Universe) -> None:
    """Where the guards hold, the points of a kernel are those of the value, each once: each of its
    names is some of the kernel's in order of their strides, less a number, and covers its extent.
    """
    extents, stride, place = universe.extents, 1, dict[str, Affine]()
    known = {guard.expression.terms: guard for guard in joined.guards}
    assert joined.at is not None
    for name in reversed(separate.names):
        above = stride * extents[name]
        first = name == separate.names[0]
        own = [(n, c // stride) for n, c in joined.at.terms if c >= stride and (c < above or first)]
        terms = Affine(tuple(own), 0).terms
        guard = known.pop(terms, None)
        at = guard.expression if guard else Affine(terms, 0)
        names = [str(n) for n, _ in sorted(own, key=lambda one: -one[1])]
        low, high = at.constant, at.constant + math.prod(extents[n] for n in names) - 1
        row = add(row_major(names, extents), const(low))
        within = (guard.lower, guard.upper) if guard else (low, high + 1)
        if row != at or within != (0, extents[name]) or low > 0 or high < extents[name] - 1:
            raise TraceError(f"the kernel stores {joined.buffer} in places that are not its own")
        place[name], stride = at, above
    whole = substitute(row_major(separate.names, extents), place, extents)
    used = sorted(n for at in place.values() for n in free_names(at))
    if known or whole != joined.at or used != sorted(joined.names):
        raise TraceError(f"the kernel stores {joined.buffer} in places that are not its own")
    renaming = Renaming(tuple(place), tuple(place.values()))
    term = _without(Term("reindex", renaming, separate.term), joined.guards)
    if separate.dtype != joined.dtype or not same_when_pushed(
        term, _without(joined.term, joined.guards), universe
    ):
        raise TraceError(f"the kernel stores another value in {joined.buffer} than its trace")


def _without(term: Term, guards: Collection[Guard]) -> Term:
    """A term whose reads are not asked for what holds wherever it is stored."""

    def change(sub: Term, children: tuple[Term, ...]) -> Term:
        read = sub.args[0] if sub.op == "read" else None
        if not isinstance(read, Read):
            return with_children(sub, children)
        return Term("read", replace(read, guards=tuple(g for g in read.guards if g not in guards)))

    return rebuild(term, change)


def _check_rest(record: KernelRecord, division: Division) -> None:
    """After a kernel of parts comes the one that joins them."""
    if record.stored != division.unsettled:
        raise TraceError(
            f"{record.trace.name} does not compute what the parts in {division.buffers[0].name} "
            f"leave to do"
        )


def _check_prepared(
    record: KernelRecord,
    region: Region,
    before: Sequence[KernelRecord],
    rules: Sequence[Rule],
    buffers: Mapping[str, Buffer],
) -> None:
    """The kernels before one store what it reads prepared or combines values in, nothing else."""
    parts = zip(region.made.stored, region.parts(record.trace.target.children[0]), strict=True)
    body = [replace(one, term=part) for one, part in parts]
    prepared = region.before(body)
    wanted = [*(one.stored for one in copies(prepared)), *((one,) for one in starts(body))]
    if [one.stored for one in before] != wanted:
        names = ", ".join(one.buffer for kernel in wanted for one in kernel) or "nothing"
        raise TraceError(f"{record.trace.name} reads {names} prepared, which no kernel stores so")
    known = {**buffers, **{one.buffer.name: one.buffer for one in prepared}}
    for kernel in before:
        own = Region(kernel.stored, region.made.facts, region.spec, kernel.recast)
        if _check_kernel(kernel, own, rules, known) is not None:
            raise TraceError(f"{kernel.trace.name} stores parts, and no kernel joins them")


def _check_kernel(
    record: KernelRecord, region: Region, rules: Sequence[Rule], buffers: dict[str, Buffer]
) -> Division | None:
    """What the kernel leaves to do, if it computes parts."""
    name = record.trace.name
    others = [rule for rule in rules if rule.group not in ALGEBRA]
    target = record.trace.target
    replay(record.trace, region.start.kernel, target, others, region.setting())
    made = region.kernel(record.kernel.name, target, buffers)
    if made != replace(record.kernel, rules=()):
        raise TraceError(f"{name}: its last term is not the kernel that runs")
    return region.opening(record.kernel.name, target)[0].division
