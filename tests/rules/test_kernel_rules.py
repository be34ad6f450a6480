"""Every kernel rule: what it proves, what it refuses, and that kernels compute the same with it.

Fusion and substitution rules equate values; the others lead from one schedule of a kernel to the
next, and no schedule may change what the kernel computes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from algebra_rows import ROWS as LAWS
from numeric import SCHEDULED, Meaning, check, random_buffers
from terms import NAMES, Terms, exp, mul, sub, universe

from eqsat.algebra import Facts, Read, Term, Universe, post_order
from eqsat.codegen import oracle
from eqsat.driver import default_rules
from eqsat.egglog_text import AtomTable, constructor, declarations, rule_lines, seed, signatures
from eqsat.form import Stored, form
from eqsat.graph.dtypes import BY_NAME
from eqsat.kernel import Buffer
from eqsat.lower import Schedule, lower
from eqsat.rule import Rule, collect
from eqsat.rules import kernels
from eqsat.saturate import FrozenEGraph, SearchWorker, thaw
from eqsat.schedule import GROUPS, _schedule_facts
from eqsat.specs import ParallelOperation, available, load

RULES = {rule.name: rule for rule in collect(vars(kernels))}
UNTILED = Term("untiled")


@dataclass(frozen=True)
class Case:
    """Two terms, and the facts under which a rule makes them equal, or must not."""

    left: Term
    right: Term
    facts: tuple[str, ...] = ()
    values: tuple[Term, ...] = ()  # bodies of the values 0, 1, ...


@dataclass(frozen=True)
class Row:
    proves: tuple[Case, ...]
    refuses: tuple[Case, ...]


def value_rows() -> dict[str, Row]:
    """Rules that equate values."""
    t = Terms(universe())
    a, b, s, r = t.read("a", "ij"), t.read("b", "jk"), t.read("s", "ij"), t.read("r", "jk")
    top, one = t.max("j", s), t.number(1)
    held = Term("exp_difference", s, top)
    body = exp(a)
    return {
        "inline": Row(
            (Case(Term("value", 0), body, values=(body,)),),
            (Case(Term("value", 1), body, values=(body,)),),
        ),
        "contract": Row(
            (Case(t.sum("j", mul(a, b)), t.contract("j", a, b)),),
            (Case(t.sum("jk", mul(a, b)), t.contract("jk", a, b)),),
        ),
        "hold_weights": Row(
            (Case(exp(sub(s, top)), held),),
            (Case(exp(sub(a, top)), Term("exp_difference", a, top)), Case(sub(s, top), held)),
        ),
        "hold_weighted_sum": Row(
            (
                Case(t.weighted("j", s, r), t.sum("j", mul(held, r))),
                Case(t.weighted("j", s, one), t.sum("j", held)),
            ),
            (Case(t.weighted("j", s, r), t.sum("j", mul(Term("exp_difference", a, top), r))),),
        ),
    }


def schedule_rows() -> dict[str, Row]:
    """Rules that settle the next axis of a schedule with a size on offer."""
    t = Terms(universe())
    body = t.sum("j", mul(t.read("a", "ij"), t.read("b", "jk")))

    def case(given: Term, schedule: Term, *facts: str) -> Case:
        return Case(Term("kernel", body, given), Term("kernel", body, schedule), facts)

    tiled, kept = Term("tile", "i", 2, UNTILED), Term("keep", "j", UNTILED)
    streamed = Term("stream", "j", 2, UNTILED)
    launched = Term("launch", 64, UNTILED)
    staged = Term("stage", "shared", 2, UNTILED)
    return {
        "tile": Row(
            (case(UNTILED, tiled, '(axis 0 "i")', '(tile_menu "i" 2)'),),
            (
                case(UNTILED, tiled, '(axis 0 "i")', '(tile_menu "i" 4)'),
                case(UNTILED, tiled, '(axis 0 "k")', '(tile_menu "i" 2)'),
                case(tiled, Term("tile", "i", 2, tiled), '(axis 0 "i")', '(tile_menu "i" 2)'),
            ),
        ),
        "stream": Row(
            (case(UNTILED, streamed, '(axis 0 "j")', '(chunk_menu "j" 2)'),),
            (case(UNTILED, streamed, '(axis 0 "j")', '(tile_menu "j" 2)'),),
        ),
        "keep": Row(
            (case(UNTILED, kept, '(axis 0 "j")', '(keep_menu "j")'),),
            (case(UNTILED, kept, '(axis 0 "j")', '(chunk_menu "j" 2)'),),
        ),
        "launch": Row(
            (case(UNTILED, launched, '(axis 0 "threads")', "(thread_menu 64)"),),
            (
                case(UNTILED, launched, '(axis 0 "i")', "(thread_menu 64)"),
                case(UNTILED, launched, '(axis 0 "threads")', "(thread_menu 128)"),
            ),
        ),
        "stage": Row(
            (case(UNTILED, staged, '(axis 0 "stages")', '(stage_menu "shared" 2)'),),
            (case(UNTILED, staged, '(axis 0 "stages")', '(stage_menu "registers" 2)'),),
        ),
    }


ROWS = value_rows() | schedule_rows()
SPECS = {name: load(name) for name in available()}
SUBSTITUTIONS = [
    (spec, operation)
    for spec, unit in SPECS.items()
    for operation in unit.operations
    if operation.semantics is not None and operation.semantics.contraction is not None
]
IDS = [f"{spec}-{operation.name}" for spec, operation in SUBSTITUTIONS]


def search(case: Case, worker: SearchWorker, *rules: Rule) -> FrozenEGraph:
    """The e-graph of both terms of a case."""
    over, roots = universe(), (case.left, case.right, *case.values, UNTILED)
    table = AtomTable()
    terms = list(post_order(roots))
    for term in terms:
        for arg in term.args:
            if not isinstance(arg, Term | int | float | str):
                table.number(arg)
    ops = signatures(terms, rules)
    seeds, numbers = seed(roots, over, table, frozenset())
    commands = [
        *declarations(ops, GROUPS),
        *_schedule_facts(ops),
        *rule_lines(rules),
        *seeds,
        *(f"(body {i} (node {numbers[body]}))" for i, body in enumerate(case.values)),
        *case.facts,
    ]
    every = " ".join(f"(run {group})" for group in GROUPS)
    schedule = f"(run-schedule (repeat 3 (saturate (run facts)) {every}) (saturate (run facts)))"
    read = [*map(constructor, ops), "free", "dtype", "node"]
    request = {"commands": commands, "schedules": [schedule], "read": read}
    answer = worker.ask(request, 20)
    assert "error" not in answer, answer
    return thaw(answer, ops, table, over, terms, numbers, roots)


def equal(case: Case, worker: SearchWorker, *rules: Rule) -> bool:
    graph = search(case, worker, *rules)
    return graph.class_of[case.left] == graph.class_of[case.right]


def test_every_rule_has_a_row() -> None:
    shipped = {rule.name for rule in default_rules()}
    assert shipped == {*LAWS, *ROWS}
    names = {operation.name for _, operation in SUBSTITUTIONS}
    for unit in SPECS.values():
        emitted = frozenset(operation.invocation_name for operation in unit.operations)
        for rule in kernels.substitutions(unit, emitted):
            assert rule.name.removeprefix("substitute_") in names


@pytest.mark.parametrize("name", ROWS)
def test_a_rule_proves_its_cases(name: str, worker: SearchWorker) -> None:
    for case in ROWS[name].proves:
        assert equal(case, worker, RULES[name])


@pytest.mark.parametrize("name", ROWS)
def test_a_rule_refuses_its_near_misses(name: str, worker: SearchWorker) -> None:
    for case in ROWS[name].refuses:
        assert not equal(case, worker, RULES[name])


@pytest.mark.parametrize("name", value_rows())
def test_values_are_the_same(name: str, worker: SearchWorker) -> None:
    """`value 0` means its body, which is a term of the same class."""
    for case in ROWS[name].proves:
        graph = search(case, worker, RULES[name])
        meant = {t: c for t, c in graph.class_of.items() if t.op not in SCHEDULED}
        graph = replace(graph, class_of=meant)
        assert not check(graph, random_buffers(meant, universe(), 3))


# --- no schedule changes what a kernel computes -------------------------------------------------


def attention_like(t: Terms) -> Term:
    """sum_j softmax_j(s) b: two phases over j, one carried by a running maximum."""
    s, b = t.read("s", "ij"), t.read("b", "jk")
    total = t.weighted("j", s, t.number(1))
    return Term("div", t.weighted("j", s, b), total)


def matmul(t: Terms) -> Term:
    """sum_j a b + c"""
    product = t.sum("j", mul(t.read("a", "ij"), t.read("b", "jk")))
    return Term("add", product, t.read("c", "k"))


def run(term: Term, over: Universe, arrays: dict[str, np.ndarray], schedule: Schedule, **more):
    """What the kernel of a term stores over i, k under a schedule, by the tile interpreter."""
    extents, facts = over.extents, Facts(over)
    dtype = facts.dtype(term)
    buffers = {"y": Buffer("y", (extents["i"], extents["k"]), dtype, "output")}
    for sub_term in post_order([term]):
        if sub_term.op == "read":
            read = sub_term.args[0]
            assert isinstance(read, Read)
            size = arrays[read.buffer].size
            buffers[read.buffer] = Buffer(read.buffer, (size,), read.dtype, "input")
    made = form([Stored("y", term, ("i", "k"), dtype)], facts)
    kernel = lower("k0", made, schedule, buffers, "oracle")
    y = np.full((extents["i"], extents["k"]), 7, dtype.numpy)
    typed = {n: a.astype(buffers[n].dtype.numpy) for n, a in arrays.items() if n in buffers}
    oracle.run(kernel, {"y": y, **typed}, more.get("operations"))
    return y


@pytest.mark.parametrize("name", schedule_rows())
@pytest.mark.parametrize("program", [matmul, attention_like], ids=lambda p: p.__name__)
def test_kernels_are_the_same_under_every_schedule(name: str, program) -> None:
    rng = np.random.default_rng(5)
    for extents in [(1, 1, 1, 1), (3, 5, 2, 1), *rng.integers(1, 8, (3, 4)).tolist()]:
        over = universe(*extents)
        term = program(Terms(over, "float64"))
        arrays = random_buffers([term], over)
        meaning = Meaning(over, arrays).term(term)
        expected = meaning.transpose(0, 2, 1, 3).reshape(over.extents["i"], over.extents["k"])
        tiles = {n: over.extents[n] for n in NAMES if n in "ik"}
        size = int(rng.integers(1, 4))
        reads = {t: "shared" for t in post_order([term]) if t.op == "read"}
        schedule = {
            "tile": Schedule({"i": size, "k": int(rng.integers(1, 4))}),
            "stream": Schedule(tiles, {"j": size}),
            "keep": Schedule(tiles),
            "launch": Schedule(tiles, {"j": size}, threads=64),
            "stage": Schedule(tiles, {"j": size}, stages=2, memory=reads),
        }[name]
        np.testing.assert_allclose(run(term, over, arrays, schedule), expected, rtol=1e-9)


# --- substitution, from every operation of every shipped spec -------------------------------------


def rule_of(spec: str, operation: ParallelOperation) -> Rule | None:
    unit = SPECS[spec]
    found = kernels.substitutions(unit, frozenset({operation.invocation_name}))
    return {rule.name: rule for rule in found}.get(f"substitute_{operation.name}")


def dtypes_of(operation: ParallelOperation) -> list[tuple[str, str]]:
    """(factors' dtype, result's dtype) of the rows that hold dtypes of ours."""
    assert operation.semantics is not None and operation.semantics.contraction is not None
    left, _ = (read.operand for read in operation.semantics.contraction)
    out = operation.semantics.output.operand
    rows = [(row.get(left), row.get(out)) for row in operation.supported_data_types]
    return [(a, d) for a, d in rows if a in BY_NAME and d in BY_NAME]


def product(t: Terms, factor: str, result: str, name: str) -> Term:
    """contract_j(a, b) of a factor dtype, widened to the result's dtype, by an operation."""
    sides: Sequence[Term] = [t.read("a", "ij", factor), t.read("b", "jk", factor)]
    if result != factor:
        sides = [t.cast(result, side) for side in sides]
    return t.contract("j", sides[0], sides[1], name)


@pytest.mark.parametrize(("spec", "operation"), SUBSTITUTIONS, ids=IDS)
def test_a_substitution_takes_its_dtypes_alone(
    spec: str, operation: ParallelOperation, worker: SearchWorker
) -> None:
    rule = rule_of(spec, operation)
    assert rule is not None
    t = Terms(universe())
    pairs = dtypes_of(operation)
    for factor, result in pairs:
        case = Case(*(product(t, factor, result, name) for name in ("", operation.name)))
        assert equal(case, worker, rule)
    others = [d for d in BY_NAME if d not in {factor for factor, _ in pairs}]
    wrong = others[len(operation.name) % len(others)]
    case = Case(*(product(t, wrong, wrong, name) for name in ("", operation.name)))
    assert not equal(case, worker, rule)


@pytest.mark.parametrize(("spec", "operation"), SUBSTITUTIONS, ids=IDS)
def test_a_substitution_computes_the_same(spec: str, operation: ParallelOperation) -> None:
    rng = np.random.default_rng(len(operation.name))
    for factor, result in dtypes_of(operation):
        over = universe(*rng.integers(1, 20, 4).tolist())
        term = product(Terms(over), factor, result, operation.name)
        arrays = random_buffers([term], over)
        schedule = Schedule({"i": over.extents["i"], "k": over.extents["k"]})
        plain = run(term, over, arrays, schedule)
        by_name = Schedule(schedule.tiles, operations={term: operation.name})
        table = {operation.name: operation}
        np.testing.assert_allclose(
            run(term, over, arrays, by_name, operations=table), plain, rtol=1e-4, atol=1e-4
        )


BFLOAT16 = [one for one in SUBSTITUTIONS if ("bfloat16", "float32") in dtypes_of(one[1])]
WIDENING = [one for one in SUBSTITUTIONS if any(d == "float32" for _, d in dtypes_of(one[1]))]


def names_of(cases: list[tuple[str, ParallelOperation]]) -> list[str]:
    return [f"{spec}-{operation.name}" for spec, operation in cases]


@pytest.mark.parametrize(("spec", "operation"), SUBSTITUTIONS, ids=IDS)
def test_an_operation_on_matrices_refuses_a_vector(
    spec: str, operation: ParallelOperation, worker: SearchWorker
) -> None:
    """Its rows or columns would be padding; a library call takes any extents."""
    rule = rule_of(spec, operation)
    assert rule is not None
    t = Terms(universe())
    for factor, result in dtypes_of(operation):
        sides = [t.read("a", "ij", factor), t.read("v", "j", factor)]
        if result != factor:
            sides = [t.cast(result, side) for side in sides]
        case = Case(*(t.contract("j", *sides, name) for name in ("", operation.name)))
        assert equal(case, worker, rule) != any(operation.extents.values())


def weighted(t: Terms, factor: str, name: str) -> Term:
    """Weights exp(s - max s) times b, widened to float32, by an operation where one is named."""
    s, b = t.read("s", "ij"), t.read("b", "jk", factor)
    wide = b if factor == "float32" else t.cast("float32", b)
    if not name:
        return t.weighted("j", s, wide)
    return Term("weighted_contract", t.mask("j"), s, wide, name)


@pytest.mark.parametrize(("spec", "operation"), WIDENING, ids=names_of(WIDENING))
def test_carried_weights_meet_an_operation(
    spec: str, operation: ParallelOperation, worker: SearchWorker
) -> None:
    rule = rule_of(spec, operation)
    assert rule is not None
    rng = np.random.default_rng(2)
    for factor, result in dtypes_of(operation):
        if result != "float32":
            continue
        t = Terms(universe())
        case = Case(*(weighted(t, factor, name) for name in ("", operation.name)))
        assert equal(case, worker, rule)
        over = universe(*rng.integers(1, 20, 4).tolist())
        plain, by_name = (weighted(Terms(over), factor, name) for name in ("", operation.name))
        arrays = random_buffers([plain], over)
        tiles = {"i": over.extents["i"], "k": over.extents["k"]}
        chunks = {"j": int(rng.integers(1, 6))}
        schedule = Schedule(tiles, chunks, operations={by_name: operation.name})
        found = run(by_name, over, arrays, schedule, operations={operation.name: operation})
        expected = run(plain, over, arrays, Schedule(tiles, chunks))
        digits = 1e-5 if factor == "float32" else 2e-2  # weights are rounded as b was
        np.testing.assert_allclose(found, expected, rtol=digits, atol=digits)


@pytest.mark.parametrize(("spec", "operation"), BFLOAT16, ids=names_of(BFLOAT16))
def test_a_float32_factor_is_rounded_to_meet_a_bfloat16_one(
    spec: str, operation: ParallelOperation, worker: SearchWorker
) -> None:
    rule = rule_of(spec, operation)
    assert rule is not None
    t = Terms(universe())
    a, b = t.read("a", "ij"), t.cast("float32", t.read("b", "jk", "bfloat16"))
    rounded = t.cast("float32", t.cast("bfloat16", a))
    for left, right in (((a, b), (rounded, b)), ((b, a), (b, rounded))):
        proved = Case(t.contract("j", *left), t.contract("j", *right, operation.name))
        assert equal(proved, worker, rule)
    both = t.contract("j", a, t.read("c", "jk"))
    exact = t.contract("j", rounded, t.read("c", "jk"), operation.name)
    assert not equal(Case(both, exact), worker, rule)
