"""The steps that lead from one term to an equal one, found by replaying the search with a goal.

For explaining only: a fresh instrumented e-graph holds both terms and grows until they are equal;
the rows that its rules left prove the equality, and the proof is written out as steps. Whatever is
found here is checked by eqsat.explain.replay; where nothing is found, the trace says so.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from eqsat.carry_law import CarryLaw
from eqsat.explain.inlining import Expanded, Inlining
from eqsat.explain.proof import Closure, Equation, Move, Unrolling, shortest
from eqsat.explain.steps import Position, Step, Trace, stamped
from eqsat.explain.witness import witness_declarations, witness_rules, witness_seeds, witness_terms
from eqsat.layout.prepare import prepared_rows
from eqsat.price.partial_sums import rounded_facts
from eqsat.rule import Rewrite, Rule, variables_of
from eqsat.saturate.egglog_text import (
    BINDERS,
    AtomTable,
    declarations,
    names_needed,
    seed,
    signatures,
    subset_points,
    table_for,
)
from eqsat.saturate.saturation import SearchWorker
from eqsat.schedule.region import Region, prefixes
from eqsat.terms.algebra import Renaming, Term, post_order, with_children
from eqsat.terms.matching import Setting, bindings, build, failed, results
from eqsat.terms.renaming import same_when_pushed

FUSION = frozenset({"fusion", "substitution"})
Extra = Callable[[Mapping[Term, int]], tuple[list[str], list[str]]]
WEIGHTS = {"add_commute": 2, "mul_commute": 2, "mul_associate": 3, "swap_in_sum": 4}


@dataclass(frozen=True)
class Hunt:
    """What a search for steps works with: the rules, their setting, a worker, limits in seconds."""

    rules: tuple[Rule, ...]
    setting: Setting
    worker: SearchWorker
    seconds: float = 20.0
    shorten_seconds: float = 1.0
    rounds: int = 14


@dataclass(frozen=True)
class _Label:
    """Why an equation holds: a rewrite of a rule, or a re-indexing."""

    kind: str
    rule: str = ""
    variant: int = 1


def equations(
    source: Term,
    target: Term,
    hunt: Hunt,
    known: Sequence[Equation] = (),
    extra: Extra | None = None,
    also: Sequence[Term] = (),
) -> tuple[list[Equation], str]:
    """Equations that the rules gave on the way from source to target, and a note on failure.

    `known`: equations that hold besides. `extra`: commands that declare relations, and commands
    that state them, given the numbers of terms; `also`: terms that those need.
    """
    sides = [*also, *(side for e in known for side in (e.left, e.right))]
    roots = [source, target, *sides]
    table = table_for(roots, hunt.rules)
    ops = signatures(post_order(roots), hunt.rules)
    texts, rows_of = witness_rules(hunt.rules)
    seeds, numbers = _seeds(roots, table, hunt.setting)
    groups = sorted({rule.group for rule in hunt.rules})
    before, after = extra(numbers) if extra else ([], [])
    commands = [
        *declarations(ops, groups),
        *witness_declarations(ops),
        *before,
        *texts,
        *seeds,
        *after,
        *(f"(union (node {numbers[e.left]}) (node {numbers[e.right]}))" for e in known),
        "(relation done ())",
        f"(rule ((= (node {numbers[source]}) (node {numbers[target]}))) ((done)) :ruleset facts)",
    ]
    read = [*(f"W_{op}" for op in ops), "rw"]
    request = {"commands": commands, "schedules": _schedules(groups, hunt.rounds), "read": read}
    needed = names_needed(post_order(roots), hunt.setting.facts.universe, table)
    answer = hunt.worker.ask(request, hunt.seconds, needed)
    if "error" in answer:
        return [], f"the search for the steps was cut: {answer['error']}"
    rows = {name: [*zip(*columns, strict=True)] for name, columns in answer["columns"].items()}
    made = witness_terms(rows, ops, table)
    found = [
        _equation(rows_of[number], made[left], made[right])
        for number, left, right, *_ in rows.get("rw", ())
    ]
    rewrites = {(rule.name, variant): one for rule, variant, one in rows_of}
    return _sound(dict.fromkeys(found), known, rewrites, hunt.setting), ""


def _seeds(
    roots: Sequence[Term], table: AtomTable, setting: Setting
) -> tuple[list[str], dict[Term, int]]:
    """Commands that enter the terms with their witnesses and facts; the number of each term."""
    terms = list(post_order(roots))
    for term in terms:
        for arg in term.args:
            if not isinstance(arg, Term | int | float | str | CarryLaw):
                table.number(arg)
    universe = setting.facts.universe
    seeds, numbers = seed(roots, universe, table, setting.finite)
    points = subset_points(_masks(terms), universe)
    return [*points, *seeds, *witness_seeds(numbers, table)], numbers


Rewrites = Mapping[tuple[str, int], Rewrite]


def _sound(
    found: Iterable[Equation],
    known: Sequence[Equation],
    rewrites: Rewrites,
    setting: Setting,
) -> list[Equation]:
    """The equations that hold for these terms, and others in place of those that do not.

    The search asks a guard of a class: it holds where one member shows it. Here the rule must hold
    for its terms; where one of them does not meet a guard, an equal term may.
    """
    sound, doubtful = list(known), []
    for equation in found:
        label = equation.label
        assert isinstance(label, _Label)
        one = rewrites[label.rule, label.variant]
        holds = equation.right in results(one, equation.left, setting)
        (sound if holds else doubtful).append(equation)
    if doubtful:
        equal = Closure(sound, [side for e in doubtful for side in (e.left, e.right)]).members()
        for equation in doubtful:
            sound += _mended(equation, rewrites, setting, equal)
    return sound


def _mended(
    equation: Equation, rewrites: Rewrites, setting: Setting, equal: Mapping[Term, list[Term]]
) -> list[Equation]:
    """The same rewrite over equal terms that meet its guards, if there are any."""
    label = equation.label
    assert isinstance(label, _Label)
    one = rewrites[label.rule, label.variant]
    for way in bindings(one, equation.left, setting):
        for _ in one.conditions:
            guard = failed(one, way, setting)
            if guard is None:
                left, right = (build(side, way, setting) for side in (one.left, one.right))
                assert isinstance(left, Term) and isinstance(right, Term)
                return [Equation(left, right, label, equation.weight)]
            names = {v.name for part in guard.args for v in variables_of(part) if v.sort == "Expr"}
            others = [
                {**way, name: member}
                for name in sorted(names)
                for member in equal.get(way[name], ())  # type: ignore[call-overload]
            ]
            way = next((w for w in others if failed(one, w, setting) is not guard), way)
    return []


def _masks(terms: Iterable[Term]) -> list[int]:
    masks = [int(t.args[0]) for t in terms if t.op in BINDERS]  # type: ignore[arg-type]
    whole = 0
    for mask in masks:
        whole |= mask
    return [whole] if whole.bit_count() <= 10 else masks


def _schedules(groups: Sequence[str], rounds: int) -> list[str]:
    """Rounds of the rules until the goal is met; what distributes comes between the others."""
    facts = "(saturate (run facts))"

    def some(names: Iterable[str], count: int, matches: int) -> str:
        runs = " ".join(f"(run-with bo {name} :until (done))" for name in names)
        return (
            f"(run-schedule (let-scheduler bo (back-off :match-limit {matches} :ban-length 5)) "
            f"(repeat {count} {facts} {runs}))"
        )

    plain = [name for name in groups if name != "distribute"]
    if "distribute" not in groups:
        return [some(plain, rounds, 1000)]
    between = [some(["distribute"], 1, 500), some(plain, 6, 1000)]
    return [some(plain, rounds, 1000), *between, *between]


def _equation(row: tuple[Rule, int, Rewrite], left: Term, right: Term) -> Equation:
    rule, variant, _ = row
    return Equation(left, right, _Label("rule", rule.name, variant), WEIGHTS.get(rule.name, 1))


def as_step(move: Move) -> Step:
    """A move of a proof as a step of a trace."""
    if move.again is not None:
        return Step(
            "again", move.position, move.before, move.after, again=move.again, forward=move.forward
        )
    label = move.equation.label if move.equation else None
    assert isinstance(label, _Label)
    return Step(
        label.kind, move.position, move.before, move.after, label.rule, label.variant, move.forward
    )


# --- the algebra of a segment ------------------------------------------------------------------


Pushed = Mapping[Term, Mapping[tuple[Renaming, Term], None]]


def _reindexings(
    pushed: Pushed, inlining: Inlining, expanded: Expanded, source: Term
) -> list[Equation]:
    """What carrying a re-indexing down made of terms, as equations."""
    found: list[Equation] = []
    waiting = dict(pushed)
    while ready := [result for result in waiting if result in expanded]:
        for result in ready:
            for renaming, body in waiting.pop(result):
                inlining.expand([body], expanded)
                left, right = Term("reindex", renaming, expanded[body]), expanded[result]
                if left is not right and same_when_pushed(left, right, inlining.universe):
                    found.append(Equation(left, right, _Label("reindex")))
    for term in [*post_order(expanded.values())]:  # what is stored narrower, and read elsewhere
        if {term.op, *(child.op for child in term.children)} == {"cast", "reindex"}:
            swapped = _swapped(term)
            if same_when_pushed(term, swapped, inlining.universe):
                found.append(Equation(term, swapped, _Label("reindex")))
    sides = [side for one in found for side in (one.left, one.right)]
    return [*found, *_in_one_order(post_order([source, *expanded.values(), *sides]))]


def _in_one_order(terms: Iterable[Term]) -> Iterator[Equation]:
    """Re-indexings that differ in the order of what they name, as they do of a value whose axes lie
    in another order in memory.
    """
    first: dict[object, Renaming] = {}
    for term in terms:
        if term.op == "reindex":
            one = term.args[0]
            assert isinstance(one, Renaming)
            places = frozenset(zip(one.source, one.target, strict=True))
            same = first.setdefault((places, frozenset(one.guards), one.fill), one)
            if same != one:
                yield Equation(term, Term("reindex", same, *term.children), _Label("reindex"))


def _swapped(term: Term) -> Term:
    """A conversion of what is re-indexed as a re-indexing of what is converted, and back."""
    (inner,) = term.children
    (innermost,) = inner.children
    return with_children(inner, (with_children(term, (innermost,)),))


def algebra_trace(
    name: str,
    outputs: Sequence[Term],
    target: Sequence[str],
    inlining: Inlining,
    pushed: Pushed,
    hunt: Hunt,
) -> Trace:
    """The trace from a segment's terms to what its kernels store.

    target: the buffers of the outputs, in order. First the rules, then the cuts.
    """
    by_buffer = {one.buffer: one for one in inlining.stored}
    source = Term("program", *outputs)
    goal = Term("program", *(by_buffer[buffer].term for buffer in target))
    trace = Trace(name, source, goal, (), inlining.stored)
    expanded = inlining.expand([*(one.term for one in inlining.stored), goal])
    whole = expanded[goal]
    known = _reindexings(pushed, inlining, expanded, source)
    unrolling = Unrolling()
    if source is not whole:
        found, note = equations(source, whole, hunt, known)
        few = shortest(found, source, whole, hunt.shorten_seconds)
        if few is None:
            return _lacking(trace, note)
        unrolling.prove(Closure(few, (source, whole)), source, whole, ())
    _cut(unrolling, expanded, inlining, goal, ())
    return stamped(replace(trace, steps=tuple(map(as_step, unrolling.moves))))


def _lacking(trace: Trace, note: str) -> Trace:
    why = note or "the rules that fired do not connect the source with the program as run"
    return replace(trace, note=why)


def _cut(
    unrolling: Unrolling,
    expanded: Expanded,
    inlining: Inlining,
    term: Term,
    position: Position,
) -> None:
    """Moves from the expanded term at a position to the term itself."""

    def write(term: Term, position: Position) -> None:
        unrolling.show(expanded[term], term, position, lambda: steps(term, position))

    def steps(term: Term, position: Position) -> None:
        found = inlining.origin(term)
        if found is None:
            for place, child in enumerate(term.children):
                write(child, (*position, place))
            return
        renaming, one = found
        whole = inlining.whole(one)
        moved = whole is not term
        inner = (*position, 0) if moved else position
        write(one.term, inner)
        cut = Equation(one.term, whole, _Label("cut"))
        unrolling.moves.append(Move(inner, one.term, whole, cut, True))
        if moved:
            carried = Equation(Term("reindex", renaming, whole), term, _Label("reindex"))
            unrolling.moves.append(Move(position, carried.left, term, carried, True))

    write(term, position)


# --- one kernel ----------------------------------------------------------------------------------


def kernel_trace(name: str, region: Region, target: Term, hunt: Hunt) -> Trace:
    """The trace from a region's unfused kernel to a fused and then scheduled one."""
    start = region.start
    trace = Trace(name, start.kernel, target, (), region.stored)

    def bodies(numbers: Mapping[Term, int]) -> tuple[list[str], list[str]]:
        rows = [f"(body {n} (node {numbers[body]}))" for n, body in start.bodies.items()]
        rows += prepared_rows(region.prepared, numbers)
        rows += rounded_facts(region.made)
        relations = ("body (i64 E)", "prepared (E E String i64)", "rounded (String)")
        return [f"(relation {one})" for one in relations], rows

    source, goal = start.kernel.children[0], target.children[0]
    fusion = replace(hunt, rules=tuple(rule for rule in hunt.rules if rule.group in FUSION))
    unrolling = Unrolling()
    if source is not goal:
        ready = [side for one in region.prepared for side in (one.source, one.copy)]
        also = (*start.bodies.values(), *ready)
        found, note = equations(source, goal, fusion, (), bodies, also)
        few = shortest(found, source, goal, hunt.shorten_seconds)
        if few is None:
            return _lacking(trace, note)
        unrolling.prove(Closure(few, (source, goal)), source, goal, (0,))
    steps = list(map(as_step, unrolling.moves))
    fused = Term("kernel", goal, start.kernel.children[1])
    for following in prefixes(target):
        step = _schedule_step(fused, following, hunt)
        if step is None:
            return _lacking(trace, f"no rule settles {following.children[1].op} as the kernel does")
        steps.append(step)
        fused = following
    return stamped(replace(trace, steps=tuple(steps)))


def _schedule_step(before: Term, after: Term, hunt: Hunt) -> Step | None:
    for rule in hunt.rules:
        for variant, one in enumerate(rule.rewrites, 1):
            if rule.group not in FUSION and after in results(one, before, hunt.setting):
                return Step("rule", (), before, after, rule.name, variant)
    return None
