"""What explaining a program gives: for each segment its trace, for each kernel its own; as JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from eqsat.cache.kernel_json import decode, encode
from eqsat.errors import EqsatError, TraceError
from eqsat.explain.steps import Step, Trace
from eqsat.graph.dtypes import as_dtype
from eqsat.kernel.ir import Kernel
from eqsat.library import LibraryCall
from eqsat.terms.algebra import Term, post_order
from eqsat.terms.form import Stored

FORMAT = "eqsat-trace-1"
AGAIN = "Write it anew with eqsat-explain --format json."
# What reading a trace, or taking its steps, raises where values in it are of other kinds.
DAMAGED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
Costs = tuple[tuple[float | None, float | None], ...]


@dataclass(frozen=True)
class KernelRecord:
    """A kernel: its values, its index names with extents, its trace, its code, its predicted time.

    `costs`: predicted seconds before and after each step; infinite where the spec has no room.
    `recast`: in what way its trace is of the values over other names (see eqsat.schedule.recast).
    """

    stored: tuple[Stored, ...]
    names: tuple[tuple[str, int], ...]
    trace: Trace
    costs: Costs
    kernel: Kernel
    seconds: float
    bottleneck: str
    parts: tuple[tuple[str, float], ...]
    recast: str = ""


@dataclass(frozen=True)
class SegmentRecord:
    """A segment: index names with extents, what its buffers are, its trace, its kernels.

    `places`: the numbers of the equal segments that this record stands for, in the order of a run.
    """

    places: tuple[int, ...]
    names: tuple[tuple[str, int], ...]
    buffers: tuple[tuple[str, str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, ...], ...]
    trace: Trace
    costs: Costs
    kernels: tuple[KernelRecord, ...]

    @property
    def seconds(self) -> float:
        """Predicted seconds of the kernels."""
        return sum(kernel.seconds for kernel in self.kernels)


@dataclass(frozen=True)
class CallRecord:
    """A segment that a library computes: its places as those of a SegmentRecord, the call, what
    its buffers are, its predicted time and the largest part of it.
    """

    places: tuple[int, ...]
    call: LibraryCall
    buffers: tuple[tuple[str, str], ...]
    seconds: float
    bottleneck: str


@dataclass(frozen=True)
class RuleRecord:
    """A rule that a trace uses."""

    name: str
    group: str
    equation: str
    note: str
    precision: str = "exact"


@dataclass(frozen=True)
class Explanation:
    """How a program as written became the program as run. `once`: predicted seconds of what reads
    constants alone, which no run but the first needs.
    """

    title: str
    spec: str
    arguments: tuple[tuple[str, str], ...]
    operations: int
    seconds: float
    segments: tuple[SegmentRecord, ...]
    rules: tuple[RuleRecord, ...]
    notes: tuple[str, ...] = ()
    calls: tuple[CallRecord, ...] = ()
    once: float = 0.0

    @property
    def launches(self) -> int:
        """Kernels of one run."""
        return sum(len(s.kernels) * len(s.places) for s in self.segments)

    def rule(self, name: str) -> RuleRecord | None:
        """A rule by name."""
        return next((rule for rule in self.rules if rule.name == name), None)


@dataclass
class _Terms:
    """Terms as a table, each after those that it refers to."""

    rows: list[Any] = field(default_factory=list)
    numbers: dict[Term, int] = field(default_factory=dict)

    def number(self, term: Term) -> int:
        for sub in post_order([term]):
            if sub not in self.numbers:
                args = [
                    {"term": self.numbers[a]} if isinstance(a, Term) else encode(a)
                    for a in sub.args
                ]
                self.numbers[sub] = len(self.rows)
                self.rows.append([sub.op, *args])
        return self.numbers[term]


def to_json(explanation: Explanation) -> dict[str, Any]:
    """A JSON value; the inverse of `from_json`."""
    terms = _Terms()
    segments = [_segment_json(segment, terms) for segment in explanation.segments]
    plain = {
        f.name: getattr(explanation, f.name)
        for f in fields(explanation)
        if f.name not in {"segments", "rules", "calls"}
    }
    return {
        "format": FORMAT,
        **plain,
        "rules": [asdict(rule) for rule in explanation.rules],
        "segments": segments,
        "calls": [asdict(record) | {"call": encode(record.call)} for record in explanation.calls],
        "terms": terms.rows,
    }


def _segment_json(segment: SegmentRecord, terms: _Terms) -> dict[str, Any]:
    return {
        "places": segment.places,
        "names": segment.names,
        "buffers": segment.buffers,
        "outputs": segment.outputs,
        "costs": _costs_json(segment.costs),
        "trace": _trace_json(segment.trace, terms),
        "kernels": [_kernel_json(kernel, terms) for kernel in segment.kernels],
    }


def _costs_json(costs: Costs) -> list[list[float | str | None]]:
    return [[encode_seconds(c) for c in pair] for pair in costs]


def encode_seconds(seconds: float | None) -> float | str | None:
    """Strict JSON has no infinity."""
    return "does not fit" if seconds is not None and math.isinf(seconds) else seconds


def _costs(value: Any) -> Costs:
    return tuple(
        tuple(None if c is None else math.inf if c == "does not fit" else float(c) for c in pair)
        for pair in value
    )  # type: ignore[return-value]


def _kernel_json(record: KernelRecord, terms: _Terms) -> dict[str, Any]:
    return {
        "stored": [_stored_json(one, terms) for one in record.stored],
        "names": record.names,
        "trace": _trace_json(record.trace, terms),
        "costs": _costs_json(record.costs),
        "kernel": encode(record.kernel),
        "seconds": record.seconds,
        "bottleneck": record.bottleneck,
        "parts": record.parts,
        "recast": record.recast,
    }


def _stored_json(one: Stored, terms: _Terms) -> dict[str, Any]:
    return {
        "buffer": one.buffer,
        "term": terms.number(one.term),
        "names": one.names,
        "dtype": one.dtype.name,
        "pitch": one.pitch,
        "offset": one.offset,
        "at": encode(one.at),
        "guards": encode(one.guards),
    }


def _trace_json(trace: Trace, terms: _Terms) -> dict[str, Any]:
    steps = []
    for step in trace.steps:
        row = {f.name: getattr(step, f.name) for f in fields(step)}
        steps.append(row | {"before": terms.number(step.before), "after": terms.number(step.after)})
    return {
        "name": trace.name,
        "source": terms.number(trace.source),
        "target": terms.number(trace.target),
        "steps": steps,
        "stored": [_stored_json(one, terms) for one in trace.stored],
        "note": trace.note,
    }


def is_trace(value: object) -> bool:
    """Whether a JSON value says that it is an explanation of this version."""
    return isinstance(value, Mapping) and value.get("format") == FORMAT


def damaged(error: Exception) -> TraceError:
    """What is said of a trace that holds something else than what was written."""
    return TraceError(f"a damaged trace: {type(error).__name__}: {error}. {AGAIN}")


def from_json(value: Mapping[str, Any]) -> Explanation:
    """The explanation in a JSON value. Raises TraceError for anything else."""
    if not is_trace(value):
        raise TraceError(f"no trace of format {FORMAT}. {AGAIN}")
    try:
        return _explanation(value)
    except (*DAMAGED, EqsatError) as error:
        raise damaged(error) from error


def _explanation(value: Mapping[str, Any]) -> Explanation:
    terms: list[Term] = []
    for op, *args in value["terms"]:
        terms.append(Term(op, *(terms[a["term"]] if _refers(a) else decode(a) for a in args)))
    return Explanation(
        title=str(value["title"]),
        spec=str(value["spec"]),
        arguments=_tuples(value["arguments"]),
        operations=int(value["operations"]),
        seconds=float(value["seconds"]),
        once=float(value.get("once", 0.0)),  # absent before there was such
        segments=tuple(_segment(segment, terms) for segment in value["segments"]),
        rules=tuple(RuleRecord(**rule) for rule in value["rules"]),
        notes=tuple(value["notes"]),
        calls=tuple(_call(record) for record in value["calls"]),
    )


def _call(value: Mapping[str, Any]) -> CallRecord:
    return CallRecord(
        places=_tuples(value["places"]),
        call=decode(value["call"]),
        buffers=_tuples(value["buffers"]),
        seconds=float(value["seconds"]),
        bottleneck=str(value["bottleneck"]),
    )


def _refers(value: Any) -> bool:
    return isinstance(value, dict) and "term" in value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def _segment(value: Mapping[str, Any], terms: Sequence[Term]) -> SegmentRecord:
    return SegmentRecord(
        places=_tuples(value["places"]),
        names=_tuples(value["names"]),
        buffers=_tuples(value["buffers"]),
        outputs=_tuples(value["outputs"]),
        trace=_trace(value["trace"], terms),
        costs=_costs(value["costs"]),
        kernels=tuple(_kernel(kernel, terms) for kernel in value["kernels"]),
    )


def _kernel(value: Mapping[str, Any], terms: Sequence[Term]) -> KernelRecord:
    return KernelRecord(
        stored=tuple(_stored(one, terms) for one in value["stored"]),
        names=_tuples(value["names"]),
        trace=_trace(value["trace"], terms),
        costs=_costs(value["costs"]),
        kernel=decode(value["kernel"]),
        seconds=float(value["seconds"]),
        bottleneck=str(value["bottleneck"]),
        parts=_tuples(value["parts"]),
        recast=str(value["recast"]),
    )


def _stored(value: Mapping[str, Any], terms: Sequence[Term]) -> Stored:
    return Stored(
        value["buffer"],
        terms[value["term"]],
        _tuples(value["names"]),
        as_dtype(value["dtype"]),
        value["pitch"],
        value["offset"],
        decode(value["at"]),
        decode(value["guards"]),
    )


def _trace(value: Mapping[str, Any], terms: Sequence[Term]) -> Trace:
    steps = []
    for row in value["steps"]:
        ends = {"before": terms[row["before"]], "after": terms[row["after"]]}
        steps.append(Step(**{k: _tuples(v) for k, v in row.items()} | ends))
    return Trace(
        name=str(value["name"]),
        source=terms[value["source"]],
        target=terms[value["target"]],
        steps=tuple(steps),
        stored=tuple(_stored(one, terms) for one in value["stored"]),
        note=str(value["note"]),
    )
