"""Stage B: one region's kernels as terms in an e-graph of their own, and the cheapest of them.

The search starts from unfused values under an empty schedule and saturates under the fusion, tile,
stage and substitute rules; every complete schedule is then priced.
"""

import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from eqsat.algebra import LEAVES, Facts, Read, Term, post_order, rebuild, with_children
from eqsat.bodies import SUBSTITUTED, bodies_of
from eqsat.coalesce import coalesce
from eqsat.egglog_text import (
    SCHEDULE,
    AtomTable,
    constructor,
    declarations,
    rule_lines,
    seed,
    signatures,
)
from eqsat.errors import SearchError, SpecError
from eqsat.form import REDUCING, WEIGHTED, Form, Stored, form
from eqsat.graph.index import row_major
from eqsat.kernel import Buffer, Kernel
from eqsat.lower import Schedule, lower
from eqsat.menu import schedule_menus
from eqsat.price import Blocking, Price, Pricer
from eqsat.rule import Rule
from eqsat.saturate import Class, FrozenEGraph, Limits, SearchWarning, SearchWorker, thaw
from eqsat.specs import ParallelProcessingUnit

MOST_LOWERED = 60  # schedules, cheapest first, that are lowered to see whether they fit
GROUPS = ("fusion", "substitution", "tiling", "staging")


@dataclass(frozen=True)
class Search:
    """What a search works with: rules, spec, the target's operations, limits, a worker.

    `misfit` is the target's word on what a kernel takes too much of. `candidates`: how many of the
    best kernels to keep for each region. `grid_dim` and `block_dim`, where given, are the number of
    tiles and the threads of a tile that every kernel must have.
    """

    rules: tuple[Rule, ...]
    spec: ParallelProcessingUnit
    operations: frozenset[str]
    worker: SearchWorker
    limits: Limits
    misfit: Callable[[Kernel, ParallelProcessingUnit], str] = lambda kernel, spec: ""
    candidates: int = 1
    grid_dim: int | None = None
    block_dim: int | None = None


@dataclass(frozen=True)
class Choice:
    """A decoded schedule: what each axis was given, and the rules that gave it."""

    tiles: Mapping[str, int]
    chunks: Mapping[str, int]
    threads: int
    stages: int
    memory: str
    rules: tuple[str, ...]


@dataclass(frozen=True)
class Chosen:
    """Where a kernel came from: the values that were asked for, as fused, and their schedule.

    `body` has the names of `coalesce(stored, facts)`.
    """

    stored: tuple[Stored, ...]
    facts: Facts
    body: tuple[Stored, ...]
    choice: Choice


@dataclass(frozen=True)
class Predicted:
    """A kernel with its predicted seconds, the largest part of them, and the next best kernels.

    `chosen` is known where the kernel was just searched for, not where it comes from the cache.
    """

    kernel: Kernel
    seconds: float
    bottleneck: str
    alternatives: tuple["Predicted", ...] = ()
    chosen: Chosen | None = None


def schedule_region(
    name: str,
    stored: tuple[Stored, ...],
    facts: Facts,
    pricer: Pricer,
    buffers: dict[str, Buffer],
    search: Search,
) -> list[Predicted]:
    """The cheapest kernels for the values, found by rewriting the unfused ones.

    One kernel, unless a missing fusion rule leaves values that must touch memory; their buffers
    are added to `buffers`. Raises SpecError when no schedule fits the spec.
    """
    given, before = stored, facts
    stored, facts = coalesce(stored, facts)
    made = form(stored, facts)
    try:
        found = _explore(made, search)
        bodies, choices = bodies_of(found, made), _choices(found, made)
    except SearchError as error:
        warnings.warn(
            f"{error}; {name} is scheduled without operations of the spec. Raise the limits.",
            SearchWarning,
            stacklevel=2,
        )
        bodies, choices = [made.stored], _offered(made, search.spec)
    if not bodies:
        return _unfused(name, stored, facts, pricer, buffers, search)
    ranked, refused = _rank(
        bodies, _alike(_constrained(name, choices, made, search)), facts, pricer
    )
    kernels: dict[Kernel, Predicted] = {}
    for seconds, bottleneck, shaped, choice in ranked[:MOST_LOWERED]:
        lowered = lower(name, shaped, settled(shaped, choice), buffers, search.spec.name)
        misfit = search.misfit(lowered, search.spec) if lowered not in kernels else "nothing new"
        if misfit:
            refused.add(misfit)
            continue
        steps = (*_body_rules(shaped), *choice.rules)
        chosen = Chosen(given, before, shaped.stored, choice)
        kernel = replace(lowered, rules=steps)
        kernels[lowered] = Predicted(kernel, seconds, bottleneck, chosen=chosen)
        if len(kernels) == search.candidates:
            break
    if kernels:
        best, *others = kernels.values()
        return [replace(best, alternatives=tuple(others))]
    parts = _parted(name, stored, made, buffers)
    if not parts:
        raise SpecError(
            f"no schedule of {name} fits {search.spec.name}: each takes more of "
            f"{', '.join(sorted(refused))} than the spec allows. Use a spec with more, or split "
            f"the program."
        )
    return [
        predicted
        for number, part in enumerate(parts)
        for predicted in schedule_region(f"{name}_{number}", part, facts, pricer, buffers, search)
    ]


Ranked = tuple[float, str, Form, Choice]


def _rank(
    bodies: list[tuple[Stored, ...]], groups: list[list[Choice]], facts: Facts, pricer: Pricer
) -> tuple[list[Ranked], set[str]]:
    """Feasible bodies and schedules, the cheapest first; and what the infeasible lack."""
    ranked: list[Ranked] = []
    refused: set[str] = set()
    for body in bodies:
        shaped = form(body, facts)
        if any(t.op in WEIGHTED and t not in shaped.phase for t in shaped.terms):
            continue  # inside another loop's body the weights are held, not carried
        for choices in groups:
            if any(axis not in (*shaped.grid, *shaped.reduced) for axis in choices[0].chunks):
                continue
            price = price_choices(shaped, choices, pricer)
            refused |= {reason for reason, bad in price.refused.items() if bad.any()}
            for index in np.argsort(price.seconds, kind="stable")[:24]:
                seconds = float(price.seconds[index])
                if np.isfinite(seconds):
                    ranked.append((seconds, price.bottleneck(index), shaped, choices[index]))
    ranked.sort(key=lambda one: one[0])
    return ranked, refused


def _constrained(name: str, choices: list[Choice], made: Form, search: Search) -> list[Choice]:
    """The choices that meet the caller's grid and block dimensions; SpecError if none does."""

    def tiles(choice: Choice) -> int:
        return math.prod(-(-made.extents[axis] // size) for axis, size in choice.tiles.items())

    kept = choices
    if search.block_dim is not None:
        kept = [choice for choice in kept if choice.threads == search.block_dim]
        if not kept:
            offered = sorted({choice.threads for choice in choices})
            raise SpecError(
                f"block_dim {search.block_dim} is not legal for {name} on {search.spec.name}; "
                f"its blocks may have {', '.join(map(str, offered))} threads."
            )
    if search.grid_dim is not None:
        found = sorted({tiles(choice) for choice in kept})
        kept = [choice for choice in kept if tiles(choice) == search.grid_dim]
        if not kept:
            raise SpecError(
                f"grid_dim {search.grid_dim} is not legal for {name} on {search.spec.name}; its "
                f"tiles make grids of {', '.join(map(str, found))}."
            )
    return kept


def _parted(
    name: str, stored: tuple[Stored, ...], made: Form, buffers: dict[str, Buffer]
) -> list[tuple[Stored, ...]]:
    """Two regions in place of one that fits no schedule: the last inner reduction is stored.

    Empty when there is no inner reduction.
    """
    roots = {one.term for one in stored}
    inner = [t for t in made.terms if t.op in REDUCING and t not in roots]
    if not inner:
        return []
    term = inner[-1]
    facts = made.facts
    names = facts.universe.members(facts.free(term))
    buffer = f"t{name}"
    extents = facts.universe.extents
    shape = tuple(extents[n] for n in names)
    buffers[buffer] = Buffer(buffer, shape, facts.dtype(term), "temporary")
    first = Stored(buffer, term, names, facts.dtype(term))
    read = Term("read", Read(buffer, first.dtype, row_major(names, extents)))

    def change(sub: Term, children: tuple[Term, ...]) -> Term:
        return read if sub is term else with_children(sub, children)

    rest = tuple(replace(one, term=rebuild(one.term, change)) for one in stored)
    return [(first,), rest]


def _unfused(
    name: str,
    stored: tuple[Stored, ...],
    facts: Facts,
    pricer: Pricer,
    buffers: dict[str, Buffer],
    search: Search,
) -> list[Predicted]:
    """A kernel for each operation, its operands in memory."""
    result: list[Predicted] = []
    reads: dict[Term, Term] = {}
    roots = {one.term: one for one in stored}
    for term in form(stored, facts).terms:
        if term.op in LEAVES:
            reads[term] = term
            continue
        body = with_children(term, tuple(reads[child] for child in term.children))
        one = roots.get(term)
        if one is None:
            names = facts.universe.members(facts.free(term))
            buffer = f"t{name}{len(reads)}"
            one = Stored(buffer, body, names, facts.dtype(term))
            shape = tuple(facts.universe.extents[n] for n in names)
            buffers[buffer] = Buffer(buffer, shape, one.dtype, "temporary")
        one = replace(one, term=body)
        where = row_major(one.names, facts.universe.extents)
        reads[term] = Term("read", Read(one.buffer, one.dtype, where))
        result += schedule_region(f"{name}_{len(reads)}", (one,), facts, pricer, buffers, search)
    return result


def _explore(made: Form, search: Search) -> FrozenEGraph:
    """Saturate the region's kernel terms."""
    start = unfused(made)
    root = start.kernel
    roots = [root, *start.bodies.values()]
    menus = schedule_menus(made, search.spec)
    table = AtomTable()
    rules = [rule for rule in search.rules if rule.group in GROUPS]
    terms = list(post_order(roots))
    ops = signatures(terms, rules)
    seeds, numbers = seed(roots, made.facts.universe, table, frozenset())
    commands = [
        *declarations(ops, GROUPS),
        *_schedule_facts(ops),
        *rule_lines(rules),
        *seeds,
        *(f"(body {n} (node {numbers[body]}))" for n, body in start.bodies.items()),
        *menus.facts(),
    ]
    every = " ".join(f"(run {group})" for group in GROUPS)
    request = {
        "commands": commands,
        "schedules": [f"(run-schedule (repeat 40 (saturate (run facts)) {every}))"],
        "read": [*map(constructor, ops), "free", "dtype", "node"],
    }
    answer = search.worker.ask(request, search.limits.seconds)
    if "error" in answer:
        raise SearchError(f"the search for a kernel's schedule failed: {answer['error']}")
    return thaw(answer, ops, table, made.facts.universe, terms, numbers, (root,))


@dataclass(frozen=True)
class Unfused:
    """A region before any rule: its kernel term; for each numbered value, its term and its body."""

    kernel: Term
    meanings: dict[int, Term]
    bodies: dict[int, Term]


def unfused(made: Form) -> Unfused:
    """The kernel that reads every operand from memory, under an empty schedule."""
    inner = [t for t in made.terms if t.op not in LEAVES]
    number = {t: i for i, t in enumerate(inner)}
    bodies = {
        i: with_children(t, tuple(_value(c, number) for c in t.children))
        for i, t in enumerate(inner)
    }
    parts = [_value(one.term, number) for one in made.stored]
    if len(parts) == 1 and made.stored[0].term in number:
        parts = [bodies[number[made.stored[0].term]]]
    kernel = Term("kernel", together(parts), Term("untiled"))
    return Unfused(kernel, dict(enumerate(inner)), bodies)


def together(parts: Sequence[Term]) -> Term:
    """The values of one kernel as one term."""
    body = parts[0]
    for part in parts[1:]:
        body = Term("together", body, part)
    return body


def _value(term: Term, number: Mapping[Term, int]) -> Term:
    return term if term.op in LEAVES else Term("value", number[term])


def _schedule_facts(ops: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Relations of the menus, and how far a schedule has come."""
    lines = [
        "(relation body (i64 E))",
        "(relation axis (i64 String))",
        "(relation next_axis (E String))",
        "(relation tile_menu (String i64))",
        "(relation chunk_menu (String i64))",
        "(relation keep_menu (String))",
        "(relation thread_menu (i64))",
        "(relation stage_menu (String i64))",
        "(function depth (E) i64 :no-merge)",
        f"(rule ((= s ({constructor('untiled')}))) ((set (depth s) 0)) :ruleset facts)",
        "(rule ((= d (depth s)) (axis d x)) ((next_axis s x)) :ruleset facts)",
    ]
    for op in sorted(SCHEDULE & set(ops) - {"kernel", "untiled"}):
        args = [f"x{i}" for i in range(len(ops[op]))]
        lines.append(
            f"(rule ((= s ({constructor(op)} {' '.join(args)})) (= d (depth {args[-1]}))) "
            f"((set (depth s) (+ d 1))) :ruleset facts)"
        )
    return lines


def _choices(found: FrozenEGraph, made: Form) -> list[Choice]:
    """Every schedule that settles the most axes."""
    chains: dict[int, tuple[tuple[object, ...], ...]] = {}

    def chain(number: int) -> tuple[tuple[object, ...], ...]:
        if number not in chains:
            node = found.nodes[number][0]
            own = (node.op, *(a for a in node.args if not isinstance(a, Class)))
            chains[number] = () if node.op == "untiled" else (*chain(node.children[0]), own)
        return chains[number]

    rows = [chain(n.children[1]) for n in found.nodes[found.roots[0]] if n.op == "kernel"]
    longest = max(len(row) for row in rows)
    return [decode_choice(row, made) for row in rows if len(row) == longest]


def _offered(made: Form, spec: ParallelProcessingUnit) -> list[Choice]:
    """Every schedule that the tiling and staging rules would reach."""
    menus = schedule_menus(made, spec)
    steps: list[list[tuple[object, ...]]] = []
    for axis in menus.axes:
        ways: list[tuple[object, ...]] = [("tile", axis, n) for n in menus.tiles.get(axis, ())]
        ways += [("stream", axis, n) for n in menus.chunks.get(axis, ())]
        ways += [("keep", axis)] if axis in menus.kept else []
        ways += [("launch", n) for n in menus.threads if axis == "threads"]
        ways += [("stage", *stage) for stage in menus.stages if axis == "stages"]
        steps.append(ways)
    return [decode_choice(chain, made) for chain in itertools.product(*steps)]


def decode_choice(chain: tuple[tuple[object, ...], ...], made: Form) -> Choice:
    tiles = {name: made.extents[name] for name in made.grid}
    chunks: dict[str, int] = {}
    threads, stages, memory = 1, 1, "registers"
    rules: list[str] = []
    for op, *args in chain:
        rules.append(" ".join([str(op), *map(str, args)]))
        match op, args:
            case "tile", [str(axis), int(size)]:
                tiles[axis] = size
            case "stream", [str(axis), int(size)]:
                chunks[axis] = size
            case "launch", [int(count)]:
                threads = count
            case "stage", [str(where), int(count)]:
                memory, stages = where, count
    return Choice(tiles, chunks, threads, stages, memory, tuple(rules))


def _alike(choices: list[Choice]) -> list[list[Choice]]:
    """Choices in groups that stream the same axes and stage in the same memory."""
    groups: dict[tuple[object, ...], list[Choice]] = {}
    for choice in choices:
        groups.setdefault((tuple(choice.chunks), choice.memory), []).append(choice)
    return list(groups.values())


def price_choices(made: Form, choices: list[Choice], pricer: Pricer) -> Price:
    """Prices of the choices, which stream the same axes."""

    def column(values: list[int]) -> np.ndarray:
        return np.array(values, dtype=np.float64)

    extents = made.extents
    return pricer.price(
        made,
        {n: column([c.tiles.get(n, extents[n]) for c in choices]) for n in made.grid},
        Blocking(
            chunks={n: column([c.chunks[n] for c in choices]) for n in choices[0].chunks},
            threads=column([c.threads for c in choices]),
            stages=column([c.stages for c in choices]),
            staged=choices[0].memory != "registers",
        ),
    )


def settled(made: Form, choice: Choice) -> Schedule:
    memory: dict[Term, str] = {}
    if choice.memory != "registers":
        for term in made.terms:
            factors = made.contraction(term) or ()
            if term.op == "weighted_contract":
                factors = (made.beneath_cast(term.children[1]),)
            for factor in factors:
                if factor.op == "read":
                    memory[factor] = choice.memory
    operations = {}
    for term in made.terms:
        if term.op in SUBSTITUTED and term.args[3]:
            operations[term] = str(term.args[3])
    tiles = {name: choice.tiles.get(name, made.extents[name]) for name in made.grid}
    chunks = {name: size for name, size in choice.chunks.items() if name in made.reduced}
    return Schedule(tiles, chunks, choice.threads, choice.stages, operations, memory)


def _body_rules(made: Form) -> tuple[str, ...]:
    """The rules that fused the body and chose its operations."""
    inlined = sum(1 for t in made.terms if t.op not in LEAVES) - len(made.stored)
    rules = [f"inline x{inlined}"] if inlined else []
    for term in made.terms:
        if term.op in SUBSTITUTED:
            rules.append(f"substitute_{term.args[3]}" if term.args[3] else "contract")
    return tuple(rules)
