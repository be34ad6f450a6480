"""Rules drawn from every operation of every shipped spec: what they prove, refuse and compute."""

from collections.abc import Sequence

import numpy as np
import pytest
from kernel_cases import Case, equal, run
from numeric import random_buffers
from terms import Terms, universe

from eqsat.algebra import Term
from eqsat.graph.dtypes import BY_NAME
from eqsat.lower import Schedule
from eqsat.narrow import TERMS, products
from eqsat.rule import PRECISIONS, Rule, allowed
from eqsat.rules.carries import SOFTMAX
from eqsat.rules.substitution import float32_products, substitutions
from eqsat.saturate import SearchWorker
from eqsat.specs import ParallelOperation, available, load

One = tuple[str, ParallelOperation]
SPECS = {name: load(name) for name in available()}
PRODUCTS: list[One] = [
    (spec, operation)
    for spec, unit in SPECS.items()
    for operation in unit.operations
    if operation.semantics is not None and operation.semantics.contraction is not None
]


def rows_of(operation: ParallelOperation) -> list[tuple[str, str]]:
    """(factors' dtype, result's dtype) of each row."""
    assert operation.semantics is not None and operation.semantics.contraction is not None
    left, _ = (read.operand for read in operation.semantics.contraction)
    out = operation.semantics.output.operand
    return [(row[left], row[out]) for row in operation.supported_data_types]


def dtypes_of(operation: ParallelOperation) -> list[tuple[str, str]]:
    """The rows that hold dtypes of ours."""
    return [(a, d) for a, d in rows_of(operation) if a in BY_NAME and d in BY_NAME]


def those(*rows: tuple[str, str]) -> list[One]:
    """The operations with one of these rows."""
    return [one for one in PRODUCTS if set(rows) & set(rows_of(one[1]))]


def each(cases: list[One]):
    ids = [f"{spec}-{operation.name}" for spec, operation in cases]
    return pytest.mark.parametrize(("spec", "operation"), cases, ids=ids)


PLAIN = [one for one in PRODUCTS if dtypes_of(one[1])]
BFLOAT16 = those(("bfloat16", "float32"))
NARROW = those(*((narrow, "float32") for narrow in TERMS))


def rule_of(kind: str, spec: str, operation: ParallelOperation, splits: bool = False) -> Rule:
    invocation = frozenset({operation.invocation_name})
    found = substitutions(SPECS[spec], invocation, invocation if splits else frozenset())
    return {rule.name: rule for rule in found}[f"{kind}_{operation.name}"]


def product(t: Terms, factor: str, result: str, name: str) -> Term:
    """contract_j(a, b) of a factor dtype, widened to the result's dtype, by an operation."""
    sides: Sequence[Term] = [t.read("a", "ij", factor), t.read("b", "jk", factor)]
    if result != factor:
        sides = [t.cast(result, side) for side in sides]
    return t.contract("j", sides[0], sides[1], name)


def rounded(t: Terms, term: Term) -> Term:
    return t.cast("float32", t.cast("bfloat16", term))


def narrowed(t: Terms, a: Term, b: Term, name: str, narrow: str, terms: int) -> Term:
    return Term("narrow_contract", t.mask("j"), a, b, name, narrow, terms, 0)


def test_every_rule_is_drawn_from_an_operation() -> None:
    kinds = {"substitute", "round_weights", "round_factor", "round_factors", "split_factors"}
    kinds.add("split_ahead")
    for unit in SPECS.values():
        emitted = frozenset(operation.invocation_name for operation in unit.operations)
        for splits in (frozenset(), emitted):
            rules = substitutions(unit, emitted, splits, splits)
            assert len({rule.name for rule in rules}) == len(rules)
            for rule in rules:
                (operation,) = (o for o in unit.operations if rule.name.endswith(f"_{o.name}"))
                assert rule.name.removesuffix(f"_{operation.name}") in kinds
                assert operation.name in rule.equation


@each(PLAIN)
def test_a_substitution_takes_its_dtypes_alone(
    spec: str, operation: ParallelOperation, worker: SearchWorker
) -> None:
    rule = rule_of("substitute", spec, operation)
    assert rule.precision == "exact"
    t = Terms(universe())
    pairs = dtypes_of(operation)
    for factor, result in pairs:
        case = Case(*(product(t, factor, result, name) for name in ("", operation.name)))
        assert equal(case, worker, rule)
    others = [d for d in BY_NAME if d not in {factor for factor, _ in pairs}]
    wrong = others[len(operation.name) % len(others)]
    case = Case(*(product(t, wrong, wrong, name) for name in ("", operation.name)))
    assert not equal(case, worker, rule)


@each(PLAIN)
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


@each(PLAIN)
def test_an_operation_on_matrices_refuses_a_vector(
    spec: str, operation: ParallelOperation, worker: SearchWorker
) -> None:
    """Its rows or columns would be padding; a library call takes any extents."""
    rule = rule_of("substitute", spec, operation)
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
    return Term("weighted_contract", t.mask("j"), s, wide, name, SOFTMAX)


@each(those(*((d, "float32") for d in ("float16", "bfloat16", "float32"))))
def test_carried_weights_meet_an_operation(
    spec: str, operation: ParallelOperation, worker: SearchWorker
) -> None:
    rng = np.random.default_rng(2)
    for factor, result in dtypes_of(operation):
        if result != "float32":
            continue
        wide = factor == "float32"
        rule = rule_of("substitute" if wide else "round_weights", spec, operation)
        assert rule.precision == ("exact" if wide else "default")
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
        digits = 1e-5 if wide else 2e-2  # weights are rounded as b was
        np.testing.assert_allclose(found, expected, rtol=digits, atol=digits)


@each(BFLOAT16)
def test_a_float32_factor_is_rounded_to_meet_a_bfloat16_one(
    spec: str, operation: ParallelOperation, worker: SearchWorker
) -> None:
    rule = rule_of("round_factor", spec, operation)
    assert rule.precision == "default"
    t = Terms(universe())
    a, b = t.read("a", "ij"), t.cast("float32", t.read("b", "jk", "bfloat16"))
    for left, right in (((a, b), (rounded(t, a), b)), ((b, a), (b, rounded(t, a)))):
        proved = Case(t.contract("j", *left), t.contract("j", *right, operation.name))
        assert equal(proved, worker, rule)
    both = t.contract("j", a, t.read("c", "jk"))
    one = t.contract("j", rounded(t, a), t.read("c", "jk"), operation.name)
    assert not equal(Case(both, one), worker, rule)


@each(NARROW)
def test_float32_factors_are_rounded_where_the_user_says_so(
    spec: str, operation: ParallelOperation, worker: SearchWorker
) -> None:
    t = Terms(universe())
    a, b = t.read("a", "ij"), t.read("b", "jk")
    c, d = t.read("c", "ij", "float64"), t.read("d", "jk", "float64")
    name = operation.name
    for narrow, _ in rows_of(operation):
        inside = rule_of("round_factors", spec, operation, splits=True)
        precision = {"tfloat32": "tf32", "bfloat16": "bf16"}[narrow]
        assert inside.precision == precision
        assert equal(
            Case(t.contract("j", a, b), narrowed(t, a, b, name, narrow, 1)), worker, inside
        )
        assert not equal(
            Case(t.contract("j", c, d), narrowed(t, c, d, name, narrow, 1)), worker, inside
        )
        if narrow == "bfloat16" and "shared" in operation.operand_memory.values():
            with pytest.raises(KeyError):  # what is rounded in registers does not get there
                rule_of("round_factors", spec, operation)
            continue
        before = rule_of("round_factors", spec, operation)
        assert before.precision == precision
        factors = (a, b) if narrow == "tfloat32" else (rounded(t, a), rounded(t, b))
        plain, double = t.contract("j", a, b), t.contract("j", c, d)
        assert equal(Case(plain, t.contract("j", *factors, name)), worker, before)
        assert not equal(Case(double, t.contract("j", c, d, name)), worker, before)


@each(NARROW)
def test_float32_factors_are_split_into_terms(
    spec: str, operation: ParallelOperation, worker: SearchWorker
) -> None:
    rule = rule_of("split_factors", spec, operation, splits=True)
    assert rule.precision == "default"
    t = Terms(universe())
    a, b, v = t.read("a", "ij"), t.read("b", "jk"), t.read("v", "j")
    ((narrow, _),) = rows_of(operation)
    name, terms = operation.name, TERMS[narrow]
    whole = Case(t.contract("j", a, b), narrowed(t, a, b, name, narrow, terms))
    assert equal(whole, worker, rule)
    fewer = Case(t.contract("j", a, b), narrowed(t, a, b, name, narrow, terms - 1))
    assert not equal(fewer, worker, rule)
    vector = Case(t.contract("j", a, v), narrowed(t, a, v, name, narrow, terms))
    assert not equal(vector, worker, rule)
    c, d = t.read("c", "ij", "float64"), t.read("d", "jk", "float64")
    double = Case(t.contract("j", c, d), narrowed(t, c, d, name, narrow, terms))
    assert not equal(double, worker, rule)


@each(NARROW)
def test_kernels_compute_with_narrowed_factors(spec: str, operation: ParallelOperation) -> None:
    rng = np.random.default_rng(4)
    ((narrow, _),) = rows_of(operation)
    for terms in (1, TERMS[narrow]):
        over = universe(*rng.integers(3, 20, 4).tolist())
        t = Terms(over)
        a, b = t.read("a", "ij"), t.read("b", "jk")
        term = narrowed(t, a, b, operation.name, narrow, terms)
        arrays = {
            name: rng.standard_normal(buffer.size).astype(np.float32)
            for name, buffer in random_buffers([term], over).items()
        }
        n = over.extents
        left, right = (arrays[x].astype(np.float64) for x in "ab")
        exact = left.reshape(n["i"], n["j"]) @ right.reshape(n["j"], n["k"])
        schedule = Schedule({"i": n["i"], "k": n["k"]}, {"j": 4}, operations={term: operation.name})
        for table in (None, {operation.name: operation}):
            found = run(term, over, arrays, schedule, operations=table)
            error = np.abs(found - exact).max()
            if terms > 1:
                assert error < 4e-6
            else:
                assert 1e-5 < error < {"tfloat32": 1e-2, "bfloat16": 1e-1}[narrow]


def test_terms_that_are_stored_are_multiplied(worker: SearchWorker) -> None:
    """Numbers are checked in test_prepare.py."""
    operation = SPECS["h200"].operation("wgmma_m64n128k16_bf16_ss")
    names = frozenset({operation.invocation_name})
    drawn = substitutions(SPECS["h200"], names, frozenset(), names)
    rule = {rule.name: rule for rule in drawn}[f"split_ahead_{operation.name}"]
    assert rule.precision == "default"
    t = Terms(universe())
    pairs = [
        (t.read(x, names), t.read(f"{x}_terms", f"t{names}", "bfloat16"))
        for x, names in (("a", "ij"), ("b", "jk"))
    ]
    plain = t.contract("j", *(whole for whole, _ in pairs))
    sides = [t.cast("float32", terms) for _, terms in pairs]
    how = (operation.name, "bfloat16", 3, t.mask("t"))
    split = Term("narrow_contract", t.mask("jt"), *sides, *how)
    rows = tuple((*pair, "bfloat16", t.mask("t")) for pair in pairs)
    assert equal(Case(plain, split, prepared=rows), worker, rule)
    for wrong in (rows[:1], tuple((*pair, "", 0) for pair in pairs)):
        assert not equal(Case(plain, split, prepared=wrong), worker, rule)
    vector = t.read("v", "j"), t.read("v_terms", "tj", "bfloat16")
    sides = (sides[0], t.cast("float32", vector[1]))
    case = Case(
        t.contract("j", pairs[0][0], vector[0]),
        Term("narrow_contract", t.mask("jt"), *sides, *how),
        prepared=(rows[0], (*vector, "bfloat16", t.mask("t"))),
    )
    assert not equal(case, worker, rule)
    held = SPECS["h200"].operation("wgmma_m64n128k16_bf16_rs")
    assert f"split_ahead_{held.name}" not in {rule.name for rule in drawn}
    stored = float32_products(SPECS["h200"], names, frozenset(), "default", names)
    assert stored == {operation.name: 6}


def test_a_precision_allows_what_those_before_it_allow() -> None:
    unit = SPECS["h200"]
    names = frozenset(operation.invocation_name for operation in unit.operations)
    rules = substitutions(unit, names, names)
    kinds = {
        choice: {rule.name.split("_mma_")[0] for rule in allowed(rules, choice)
                 if "_mma_m16n8k16_bf16" in rule.name or "_mma_m16n8k8_tf32" in rule.name}
        for choice in PRECISIONS
    }  # fmt: skip
    assert kinds["exact"] == {"substitute"}
    default = {"substitute", "round_weights", "round_factor", "split_factors"}
    assert kinds["default"] == default
    assert kinds["tf32"] == kinds["bf16"] == default | {"round_factors"}
    count = {choice: float32_products(unit, names, names, choice) for choice in PRECISIONS}
    assert count["exact"] == {}
    assert count["default"]["mma_m16n8k8_tf32"] == len(products(2)) == 3
    assert count["default"]["mma_m16n8k16_bf16"] == len(products(3)) == 6
    assert count["tf32"]["mma_m16n8k8_tf32"] == 1
    assert count["tf32"]["mma_m16n8k16_bf16"] == 6
    assert count["bf16"]["mma_m16n8k16_bf16"] == 1
