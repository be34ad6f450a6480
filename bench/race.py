"""One row from graph to record: compile, check, time beside the peers.

A record's status: "ok"; "wrong" (an answer that is off gets no time); "failed" (with the error);
"unsupported" (this version cannot be asked for it). The same words serve for each contender, and
"missing" for a peer that cannot take part.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from eqsat.bench import variants
from eqsat.bench.case import Case, Instance, described, instance
from eqsat.bench.check import Reference, measured_error, reference
from eqsat.bench.contender import Contender, Device, MissingPeerError, Sets
from eqsat.bench.drawn import faulty, race_drawn
from eqsat.bench.floor import floor
from eqsat.bench.inputs import sets_needed
from eqsat.bench.timing import interleave
from eqsat.program import Program
from eqsat.specs import ParallelProcessingUnit

Record = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What to run of each row. `candidates`: 0 for the program alone. `tune`: see variants.

    `drawn`: so many random candidates, by `seed`, are raced against the `best` best predicted.
    `precision`: of eqsat.compile.
    """

    scale: str = "full"
    peers: tuple[str, ...] = ("numpy", "torch", "inductor")
    rounds: int = 30
    candidates: int = 0
    tune: int = 1
    precision: str = "default"
    drawn: int = 0
    seed: int = 0
    best: int = 8


def run_case(
    case: Case,
    plan: Plan,
    spec: ParallelProcessingUnit,
    device: Device,
    say: Callable[[str], None] = lambda _: None,
    builder: Callable[..., Program] = variants.build,
) -> Record:
    """The record of a row. `builder` makes its program; tests put a wrong one in its place."""
    whole = instance(case, case.sizes[plan.scale], plan.precision)
    record = _described(whole, plan, spec)
    asked = {"candidates": plan.candidates > 0, "tune": plan.tune > 1, "drawn": plan.drawn > 0}
    lacking = variants.lacking_options([*case.options, *(name for name in asked if asked[name])])
    if lacking:
        what = ", ".join(f"{name}=" for name in lacking)
        return record | {"status": "unsupported", "message": f"eqsat.compile takes no {what} yet"}
    try:
        say("compile")
        program = builder(
            whole,
            spec,
            candidates=max(1, plan.candidates, plan.best if plan.drawn else 1),
            drawn=plan.drawn,
            seed=plan.seed,
            tune=plan.tune,
            precision=plan.precision,
        )
        record |= _compiled(program)
        count = sets_needed(whole.bytes, spec.last_level_cache_bytes)
        sets = device.sets(case, whole.sizes, count)
        record["rotation"] = _rotation(whole, spec, count)
        say("compute the float64 reference")
        expected = reference(whole, sets, device)
        record["checked"] = expected.note
        say("check the answer")
        ours = device.ours(program, sets)
        entry = _checked(ours, expected, device) | {"about": _tiles(program)}
    except Exception as error:  # recorded: one row's failure must not lose the others
        return record | {"status": "failed", "message": _message(error)}
    record |= {"status": entry["status"], "contenders": [entry]}
    if entry["status"] != "ok":
        return record | {"message": f"error {entry['error']:.1e}, allowed {whole.tolerance:.1e}"}
    entrants = [(entry, ours)]
    found = {"contenders": _peers(case, plan, sets, expected, device, say)}
    if plan.candidates:
        found["variants"] = _variants(program, whole, plan, spec, sets, expected, device, say)
    for key, others in found.items():
        for made, contender in others:
            record.setdefault(key, []).append(made)
            if contender is not None and made["status"] == "ok":
                entrants.append((made, contender))
    record = _timed(record, entrants, expected, device, plan.rounds, say)
    if plan.drawn and record["status"] == "ok":
        entrants.clear()  # and their memory
        try:
            raced = race_drawn(program, plan.best, plan.rounds, sets, expected, device, say)
        except Exception as error:
            return record | {"status": "failed", "message": _message(error)}
        record["random"] = {"seed": plan.seed, **raced}
    return record


def _described(whole: Instance, plan: Plan, spec: ParallelProcessingUnit) -> Record:
    case = whole.case
    least = floor(spec, whole.bytes, whole.work)
    return {
        "case": case.name,
        "group": case.group,
        "scale": plan.scale,
        "sizes": dict(whole.sizes),
        "inputs": described(whole.inputs),
        "tolerance": whole.tolerance,
        "bytes": whole.bytes,
        "work": whole.work,
        "floor_ms": least.seconds * 1e3,
        "floor_bound": least.bound,
        "contenders": [],
    }


def _compiled(program: Program) -> Record:
    report = program.report
    return {
        "predicted_ms": program.cost * 1e3,
        "kernels": len(program.kernels),
        "bottlenecks": sorted({launch.bottleneck for launch in program.parts.launches}),
        "search": {
            "seconds": report.search_seconds,
            "compile_seconds": report.compile_seconds,
            "nodes": report.nodes,
            "saturated": report.saturated,
            "from_cache": report.from_cache,
            "notes": list(report.notes),
        },
    }


def _rotation(whole: Instance, spec: ParallelProcessingUnit, count: int) -> Record:
    """`enough`: whether twice the cache passes between two uses of a set."""
    cache = spec.last_level_cache_bytes
    return {
        "sets": count,
        "bytes": count * whole.bytes,
        "last_level_cache_bytes": cache,
        "enough": (count - 1) * whole.bytes >= 2 * cache,
    }


def _tiles(program: Program) -> str:
    return " | ".join(variants.schedule(kernel) for kernel in program.kernels[:4])


def _checked(contender: Contender, expected: Reference, device: Device) -> Record:
    found = measured_error(contender, expected, device)
    right = found <= expected.whole.tolerance  # false for NaN
    status = "ok" if right else "wrong"
    return {
        "name": contender.name,
        "status": status,
        "error": found,
        "calls_per_block": contender.calls,
    }


def _message(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text[:2000]}" if text else type(error).__name__


@contextmanager
def _quiet_library() -> Iterator[None]:
    """Warnings of a peer's library are its own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _peers(
    case: Case,
    plan: Plan,
    sets: Sets,
    expected: Reference,
    device: Device,
    say: Callable[[str], None],
) -> Iterator[tuple[Record, Contender | None]]:
    """Each peer that was asked for: checked, or why it is missing."""
    for name in plan.peers:
        say(f"prepare {name}")
        try:
            with _quiet_library():
                contender = device.peer(name, case, sets)
                yield _checked(contender, expected, device), contender
        except MissingPeerError as error:
            yield {"name": name, "status": "missing", "message": str(error)}, None
        except Exception as error:  # a peer may raise anything; the row goes on without it
            first, *_ = _message(error).splitlines()  # the rest is of the peer's own insides
            yield {"name": name, "status": "failed", "message": first.strip()}, None


def _variants(
    program: Program,
    whole: Instance,
    plan: Plan,
    spec: ParallelProcessingUnit,
    sets: Sets,
    expected: Reference,
    device: Device,
    say: Callable[[str], None],
) -> Iterator[tuple[Record, Contender | None]]:
    """The next best kernels, and the program without each family of rules."""
    failures: list[Record] = []

    def failed(name: str, error: Exception) -> None:
        failures.append({"name": name, "status": "failed", "message": _message(error)})

    def all_variants() -> Iterable[variants.Variant]:
        yield from variants.candidates(program, plan.candidates)
        yield from variants.families(whole, spec, plan.precision, failed)

    for variant in all_variants():
        say(f"check {variant.name}")
        try:
            contender = device.variant(variant.name, variant.program, variant.launches, sets)
            made = _checked(contender, expected, device)
        except Exception as error:  # a candidate that does not run is recorded as such
            failed(variant.name, error)
            continue
        yield made | {"about": variant.about, "predicted_ms": variant.predicted * 1e3}, contender
    yield from ((failure, None) for failure in failures)


def _timed(
    record: Record,
    entrants: Sequence[tuple[Record, Contender]],
    expected: Reference,
    device: Device,
    rounds: int,
    say: Callable[[str], None],
) -> Record:
    """Times of all that were right, and are still right after the last round."""
    say(f"time {rounds} rounds of {len(entrants)}")
    try:
        timings = interleave([c for _, c in entrants], rounds, device.pause_seconds)
        for entry, contender in entrants:
            again = measured_error(contender, expected, device)
            entry["error"] = max(entry["error"], again)
            if again <= expected.whole.tolerance:
                entry |= timings[contender.name].record()
            else:
                entry |= {"status": "wrong", "message": "wrong after the timed rounds"}
    except Exception as error:
        return record | {"status": "failed", "message": _message(error)}
    if record["contenders"][0]["status"] != "ok":
        return record | {"status": "wrong", "message": "wrong after the timed rounds"}
    return record


def is_wrong(record: Record) -> bool:
    """Whether something of ours in the record computed a wrong answer or failed."""
    ours = [record, *(e for e in record["contenders"] if e["name"] == "eqsat")]
    wrong = any(entry["status"] in ("wrong", "failed", "not run") for entry in ours)
    others = (*record.get("variants", ()), *faulty(record.get("random", {})))
    return wrong or any(entry["status"] == "wrong" for entry in others)


def finite(value: Any) -> Any:
    """The value for JSON: numbers that are not finite become null."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
