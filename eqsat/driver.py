"""The pipeline, wired: graph -> segments -> kernels -> program."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from eqsat.between import laid_between
from eqsat.cache.kernel_json import decode, encode
from eqsat.cache.store import Cache, content_key
from eqsat.codegen.targets import TARGETS
from eqsat.errors import ArgumentError, EqsatError, IdentifierError, UnsupportedError
from eqsat.graph.dtypes import DType
from eqsat.graph.evaluate import input_nodes, topological
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Buffer
from eqsat.library import LibraryCall, PricedCall, served
from eqsat.named import distinct, nearest
from eqsat.nesting import flatten
from eqsat.planned import Planned
from eqsat.program import Argument, Launch, Parts, Program, Report
from eqsat.repeats import without_repeats
from eqsat.rule import PRECISIONS, Rule, allowed, collect, priced
from eqsat.rules import algebra, carries, distribute, kernels, masks, powers, roundings, scatters
from eqsat.rules.carries import LAWS, carry_rules
from eqsat.rules.substitution import float32_products, substitutions
from eqsat.saturate.rule_check import checked, told
from eqsat.saturate.saturation import Limits, SearchWorker
from eqsat.schedule.scheduling import Predicted, Search
from eqsat.segment.fold import settle
from eqsat.segment.segments import Segment, is_buffer, partition
from eqsat.settings import Debug, Settings
from eqsat.solve import Solution, solve
from eqsat.specs import ParallelProcessingUnit, cpu, load
from eqsat.tune import fastest
from eqsat.version import code_digest


def default_rules() -> tuple[Rule, ...]:
    """Every rule that ships with eqsat, besides those drawn from a spec's operations."""
    laws = algebra, scatters, distribute, powers, masks, roundings, carries
    own = collect(*map(vars, (*laws, kernels)))
    return (*own, *carry_rules(LAWS))


def compile(
    outputs: Any,
    spec: ParallelProcessingUnit | str | None = None,
    *,
    inputs: Sequence[Tensor] | None = None,
    rules: Sequence[Rule] | None = None,
    limits: Limits | None = None,
    cache: Cache | None = None,
    candidates: int = 1,
    drawn: int = 0,
    seed: int = 0,
    tune: bool = False,
    grid_dim: int | None = None,
    block_dim: int | None = None,
    precision: str | None = None,
) -> Program:
    """Compile tensors to a program.

    outputs: a tensor, or a nesting of tuples, lists and dicts of tensors; calls return the same
    nesting. spec: a ParallelProcessingUnit, the name of a shipped one, a TOML file's path, or None
    for this machine's CPU. inputs: the order of positional arguments (default: first use). rules:
    in place of `default_rules()`. limits: bounds of each search. cache: in place of the user's
    persistent cache. candidates: how many of the best kernels to keep for each region (see
    `Launch.alternatives`). drawn: how many more to draw at random, by `seed`, from all legal ones,
    whatever their price. tune: measure them on the device and use the fastest. grid_dim,
    block_dim: the number of tiles, and the threads of a tile, that every kernel must have.
    precision: what may be rounded beyond the dtypes as written. "exact": nothing, though sums may
    be grouped anew; inputs are taken to be finite, arithmetic not to overflow. "default": values
    may keep more bits than written, a float32 factor of a 16-bit one may be rounded to that, and
    products of float32 may be made of narrower ones that are as accurate. "tf32", "bf16": products
    of float32 factors may round those so. None: what EQSAT_PRECISION says. Raises the errors of
    eqsat.errors.
    """
    started = time.perf_counter()
    _check_tune(tune)
    unit = _spec(spec)
    if unit.target not in TARGETS:
        raise UnsupportedError(
            f"spec {unit.name} is for target {unit.target!r}; this installation runs "
            f"{', '.join(sorted(TARGETS))}."
        )
    store = _cache(cache)
    planned = plan(
        outputs,
        unit,
        inputs=inputs,
        rules=rules,
        limits=limits,
        cache=store,
        candidates=candidates,
        drawn=drawn,
        seed=seed,
        grid_dim=grid_dim,
        block_dim=block_dim,
        precision=precision,
    )
    backend = TARGETS[unit.target].backend(unit, store.code_dir)
    parts = planned.parts
    if tune:
        parts = replace(parts, launches=fastest(parts.launches, backend, store))
    program = Program(without_repeats(parts), backend, outputs, planned.report, planned.explain)
    seconds = time.perf_counter() - started
    program.report = replace(planned.report, compile_seconds=seconds)
    _show(program, Settings.from_environment().debug)
    return program


def _show(program: Program, level: Debug) -> None:
    """What EQSAT_DEBUG asks for, on standard error."""
    report = program.report
    if level >= Debug.SUMMARY:
        where = "from the cache" if report.from_cache else f"{report.nodes} e-nodes"
        state = "saturated" if report.saturated else "cut by a limit"
        kernels = "kernel" if len(program.kernels) == 1 else "kernels"
        print(
            f"eqsat: {report.operations} operations -> {len(program.kernels)} {kernels} for "
            f"{program.parts.spec}, predicted {program.cost * 1e6:.1f} us; "
            f"search {report.search_seconds:.2f} s ({where}, {state}), "
            f"in all {report.compile_seconds:.2f} s",
            file=sys.stderr,
        )
    if level >= Debug.EXPLAIN:
        print(program.explain(), file=sys.stderr)
    if level >= Debug.KERNEL:
        print(program.describe(), file=sys.stderr)
    if level >= Debug.SOURCE:
        print(program.source(), file=sys.stderr)


def plan(
    outputs: Any,
    spec: ParallelProcessingUnit | str | None = None,
    *,
    inputs: Sequence[Tensor] | None = None,
    rules: Sequence[Rule] | None = None,
    limits: Limits | None = None,
    cache: Cache | None = None,
    candidates: int = 1,
    drawn: int = 0,
    seed: int = 0,
    grid_dim: int | None = None,
    block_dim: int | None = None,
    precision: str | None = None,
) -> Planned:
    """The kernels of a program, not yet built: needs no device. Arguments are those of `compile`.

    A spec whose target this installation cannot emit for is planned without matrix operations.
    """
    started = time.perf_counter()
    settings = Settings.from_environment()
    _check_numbers(candidates=(candidates, 1), drawn=(drawn, 0), seed=(seed, 0))
    unit = _spec(spec)
    target = TARGETS.get(unit.target, TARGETS["oracle"])
    tensors = flatten(outputs)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise ArgumentError(
                f"compile takes tensors; got a value of type {type(tensor).__name__}. Build them "
                f"from eqsat.input(name, shape, dtype), or use eqsat.jit for a function."
            )
    folded = settle(served(tensors, unit, target.operations))
    bounds = _bounds(limits, settings)
    choice = _precision(precision, settings)
    shipped = default_rules()
    given = shipped if rules is None else checked(rules, shipped)
    drawn_rules = substitutions(unit, target.operations, target.splits, target.terms)
    own_rules = distinct((*given, *drawn_rules))
    with SearchWorker(bounds.memory_bytes) as worker, told(given, shipped):
        search = Search(
            priced(allowed(own_rules, choice), unit.has_elementwise),
            unit,
            target.operations,
            worker,
            bounds,
            misfit=target.misfit,
            candidates=candidates,
            drawn=drawn,
            seed=seed,
            grid_dim=grid_dim,
            block_dim=block_dim,
            precision=choice,
            float32_products=float32_products(
                unit, target.operations, target.splits, choice, target.terms
            ),
        )
        whole = partition([t for t in dict.fromkeys(folded) if t.size])
        store = _cache(cache)
        segments, solutions = laid_between(
            whole,
            _solve_all(whole, search, store),
            folded,
            lambda those: _solve_all(those, search, store),
        )
    arguments = _arguments(tensors, inputs)
    parts = _assemble(folded, arguments, segments, solutions, unit)
    report = _report(tensors, segments, solutions, time.perf_counter() - started)
    report = replace(report, notes=(*report.notes, *_unwritten(unit, target.operations)))
    return Planned(parts, report, outputs, tuple(segments), tuple(solutions), search)


def _check_numbers(**given: tuple[object, int]) -> None:
    """Raise ArgumentError for an option that is no whole number, or below its least."""
    for name, (value, least) in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ArgumentError(
                f"{name}={value!r} is no whole number of at least {least}. Give one, or leave it "
                f"out."
            )


def _check_tune(given: object) -> None:
    """Raise ArgumentError for what does not say whether to measure."""
    if not isinstance(given, bool):
        raise ArgumentError(
            f"tune={given!r} is neither True nor False. Give one of them; candidates= says how "
            f"many kernels of each region are measured."
        )


def _cache(given: object) -> Cache:
    """The cache that is asked for: the user's where none is."""
    if given is None:
        return Cache.open()
    if isinstance(given, Cache):
        return given
    raise ArgumentError(
        f"cache={given!r} is no eqsat.Cache. Use Cache(folder), Cache(None) for one in memory, "
        f"or set EQSAT_CACHE_DIR."
    )


def _precision(given: str | None, settings: Settings) -> str:
    if given is None:
        return settings.precision
    if given not in PRECISIONS:
        raise ArgumentError(f"precision={given!r} is none. Use one of {', '.join(PRECISIONS)}.")
    return given


def _spec(spec: object) -> ParallelProcessingUnit:
    if spec is None or spec == "cpu":
        return cpu()
    if isinstance(spec, str | os.PathLike):
        return load(os.fspath(cast("str | os.PathLike[str]", spec)))
    if not isinstance(spec, ParallelProcessingUnit):
        raise ArgumentError(
            f"spec= takes a spec, the name of a shipped one or the path of a file; got a "
            f"value of type {type(spec).__name__}. Pass one of these, or None for this machine."
        )
    return spec


def _solve_all(segments: Sequence[Segment], search: Search, store: Cache) -> list[Solution]:
    """The solution of each segment; equal segments are solved once, known ones not at all."""
    found: dict[str, Solution] = {}
    rules = "\n".join(rule.text for rule in search.rules)
    for segment in segments:
        if segment.signature not in found:
            key = content_key(
                segment.signature,
                search.spec.fingerprint,
                rules,
                repr((search.limits, search.candidates, search.grid_dim, search.block_dim)),
                repr((search.drawn, search.seed)),
                search.precision,
                code_digest(),
            )
            record = store.get("segment", key)
            known = _restore(record) if record is not None else None
            if known is None:
                known = solve(segment, search)
                if not known.note:
                    store.put("segment", key, _record(known))
            found[segment.signature] = known
    return [found[segment.signature] for segment in segments]


def _record(solution: Solution) -> dict[str, Any]:
    return {
        "kernels": [_predicted(p) for p in solution.kernels],
        "leaves": list(solution.leaves),
        "stored": list(solution.stored),
        "fired": dict(solution.fired),
        "nodes": solution.nodes,
        "saturated": solution.saturated,
    }


def _predicted(one: Predicted | PricedCall) -> dict[str, Any]:
    return {
        "kernel": encode(one.kernel),
        "seconds": one.seconds,
        "share": one.share,
        "bottleneck": one.bottleneck,
        "followers": one.followers,
        "drawn": one.drawn,
        "alternatives": [[_predicted(p) for p in other] for other in one.alternatives],
    }


def _restored(record: Mapping[str, Any]) -> Predicted:
    return Predicted(
        decode(record["kernel"]),
        record["seconds"],
        record["bottleneck"],
        record["followers"],
        tuple(tuple(map(_restored, other)) for other in record["alternatives"]),
        drawn=record["drawn"],
        share=record["share"],
    )


def _restored_launch(record: Mapping[str, Any]) -> Predicted | PricedCall:
    kernel = decode(record["kernel"])
    if isinstance(kernel, LibraryCall):
        return PricedCall(kernel, record["seconds"], record["bottleneck"])
    return _restored(record)


def _restore(record: Mapping[str, Any]) -> Solution | None:
    """The solution in a cache record; None for a record of another form."""
    try:
        return Solution(
            kernels=tuple(map(_restored_launch, record["kernels"])),
            leaves=tuple(record["leaves"]),
            stored=tuple(record["stored"]),
            fired=record["fired"],
            nodes=record["nodes"],
            saturated=record["saturated"],
            from_cache=True,
        )
    except (KeyError, TypeError, ValueError, EqsatError):
        return None


def _bounds(limits: object, settings: Settings) -> Limits:
    """The limits given, or those of the settings."""
    if limits is None:
        megabytes = settings.search_memory_mb
        return Limits(settings.search_nodes, settings.search_seconds, megabytes << 20)
    if not isinstance(limits, Limits):
        raise ArgumentError(
            f"compile: limits is {limits!r}. Give eqsat.Limits(nodes=..., seconds=...), or nothing."
        )
    return limits


def _is_input(value: object) -> bool:
    return isinstance(value, Tensor) and value.op == "input"


def _arguments(tensors: Sequence[Tensor], inputs: Sequence[Tensor] | None) -> tuple[Argument, ...]:
    nodes = input_nodes(tensors)
    if inputs is not None:
        wrong = [one for one in inputs if not _is_input(one)]
        names = [str(one.attributes["name"]) for one in inputs] if not wrong else []
        if wrong or len(set(names)) < len(names):
            what = f"{wrong[0]!r} is none" if wrong else f"of {', '.join(names)} one is repeated"
            raise ArgumentError(f"inputs= takes tensors of eqsat.input, each once; {what}.")
        given = {tensor.attributes.get("name"): tensor for tensor in inputs}
        lacking = [name for name, node in nodes.items() if given.get(name) is not node]
        if lacking:
            raise IdentifierError(
                f"inputs= lacks {', '.join(lacking)}, which the outputs need; list every input."
            )
        nodes = {str(name): tensor for name, tensor in given.items()}
    return tuple(
        Argument(name, f"in{i}", tensor.shape, tensor.dtype)
        for i, (name, tensor) in enumerate(nodes.items())
    )


def _assemble(
    tensors: Sequence[Tensor],
    arguments: Sequence[Argument],
    segments: Sequence[Segment],
    solutions: Sequence[Solution],
    unit: ParallelProcessingUnit,
) -> Parts:
    """Launches over program buffers: each segment's local buffers get names of their own."""
    by_name = {argument.name: argument for argument in arguments}
    buffers: dict[str, Buffer] = {
        a.buffer: Buffer(a.buffer, a.shape, a.dtype, "input") for a in arguments
    }
    constants: dict[str, np.ndarray] = {}
    place: dict[Tensor, str] = {}
    made: dict[Tensor, str] = {}
    for tensor in topological(tensors):
        if tensor.op == "input":
            place[tensor] = by_name[tensor.attributes["name"]].buffer
        elif is_buffer(tensor):
            place[tensor] = f"const{len(constants)}"
            constants[place[tensor]] = tensor.attributes["value"]
    launches: list[Launch] = []
    for number, (segment, solution) in enumerate(zip(segments, solutions, strict=True)):
        local = dict(zip(solution.leaves, (place[t] for t in segment.leaves), strict=True))
        for tensor, name in zip(segment.stored, solution.stored, strict=True):
            made[tensor] = local[name] = f"s{number}_{name}"
            place.setdefault(tensor, made[tensor])
        launches += [_launch(p, number, local, buffers) for p in solution.kernels]
    return _with_outputs(tensors, arguments, buffers, constants, made, launches, unit)


def _launch(
    predicted: Predicted | PricedCall,
    segment: int,
    local: dict[str, str],
    buffers: dict[str, Buffer],
) -> Launch:
    for buffer in predicted.kernel.buffers:
        own = local.setdefault(buffer.name, f"s{segment}_{buffer.name}")
        if buffer.role != "input":
            role = "zeroed" if buffer.role == "zeroed" else "temporary"
            buffers[own] = Buffer(own, buffer.shape, buffer.dtype, role)
    return Launch(
        predicted.kernel,
        tuple(local[buffer.name] for buffer in predicted.kernel.buffers),
        predicted.seconds,
        predicted.bottleneck,
        followers=predicted.followers,
        alternatives=tuple(
            tuple(_launch(p, segment, local, buffers) for p in other)
            for other in predicted.alternatives
        ),
        segment=segment,
        drawn=predicted.drawn,
    )


def _with_outputs(
    tensors: Sequence[Tensor],
    arguments: Sequence[Argument],
    buffers: dict[str, Buffer],
    constants: dict[str, np.ndarray],
    made: Mapping[Tensor, str],
    launches: list[Launch],
    unit: ParallelProcessingUnit,
) -> Parts:
    outputs: list[tuple[str, tuple[int, ...], DType]] = []
    for tensor in tensors:
        name = made[tensor] if tensor.size else f"empty{len(outputs)}"
        stored = buffers.get(name)
        if stored is not None and stored.role == "temporary":
            buffers[name] = Buffer(name, tensor.shape, tensor.dtype, "output")
        outputs.append((name, tensor.shape, tensor.dtype))
    return Parts(
        arguments=tuple(arguments),
        outputs=tuple(outputs),
        buffers=buffers,
        constants=constants,
        launches=tuple(launches),
        spec=unit.name,
    )


def _unwritten(unit: ParallelProcessingUnit, emitted: frozenset[str]) -> Iterator[str]:
    """A note for each product of a spec that its target cannot write, so that no kernel uses it."""
    for one in unit.operations:
        written = one.invocation_name in emitted or unit.target in one.native_implementation
        if one.semantics and one.semantics.contraction and not written:
            hint = nearest(one.invocation_name, sorted(emitted))
            yield (
                f"no kernel uses {one.name}: target {unit.target!r} has no row for its "
                f"invocation_name {one.invocation_name!r}, and spec {unit.name} no "
                f"native_implementation for it. "
                f"{hint if hint.startswith('Did') else 'Give one of them (docs/specs.md).'}"
            )


def _report(
    tensors: Sequence[Tensor],
    segments: Sequence[Segment],
    solutions: Sequence[Solution],
    seconds: float,
) -> Report:
    distinct = {s.signature: f for s, f in zip(segments, solutions, strict=True)}
    fired: dict[str, int] = {}
    for solution in distinct.values():
        for name, count in solution.fired.items():
            fired[name] = fired.get(name, 0) + count
    return Report(
        operations=sum(t.op not in {"input", "constant"} for t in topological(tensors)),
        segments=len(segments),
        distinct_segments=len(distinct),
        nodes=sum(s.nodes for s in distinct.values()),
        saturated=all(s.saturated for s in distinct.values()),
        fired=fired,
        search_seconds=seconds,
        from_cache=all(s.from_cache for s in distinct.values()),
        notes=tuple(dict.fromkeys(s.note for s in distinct.values() if s.note)),
    )
