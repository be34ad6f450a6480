"""Rules drawn from every operation of every shipped spec: what they prove, refuse and compute."""

from collections.abc import Sequence

import numpy as np
import pytest
from kernel_cases import Case, equal, run
from numeric import random_buffers
from terms import Terms, universe

from eqsat.graph.dtypes import BY_NAME
from eqsat.layout.narrow import TERMS, products
from eqsat.lower.lowering import Schedule
from eqsat.rule import PRECISIONS, Rule, allowed
from eqsat.rules.carries import SOFTMAX
from eqsat.rules.substitution import float32_products, substitutions
from eqsat.saturate.saturation import SearchWorker
from eqsat.specs import ParallelOperation, available, load
from eqsat.terms.algebra import Term

One = tuple[str, ParallelOperation]
SPECS = {name: load(name) for name in available()}
PRODUCTS: list[One] = [
    (spec, operation)
    for spec, unit in SPECS.items()
    for operation in unit.operations
    if operation.semantics is not None and operation.semantics.contraction is not None
]


def all_rows_of(operation: ParallelOperation) -> list[tuple[str, str, str]]:
    """(dtypes of both factors, result's dtype) of each row."""
    assert operation.semantics is not None and operation.semantics.contraction is not None
    left, right = (read.operand for read in operation.semantics.contraction)
    out = operation.semantics.output.operand
    return [(row[left], row[right], row[out]) for row in operation.supported_data_types]


def rows_of(operation: ParallelOperation) -> list[tuple[str, str]]:
    """(factors' dtype, result's dtype) of each row whose factors are alike."""
    return [(a, d) for a, b, d in all_rows_of(operation) if a == b]


def dtypes_of(operation: ParallelOperation) -> list[tuple[str, str, str]]:
    """The rows that hold dtypes of ours."""
    return [row for row in all_rows_of(operation) if set(row) <= {*BY_NAME}]


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


def factors(t: Terms, kinds: Sequence[str], result: str, right: str = "jk") -> list[Term]:
    """a and b of two dtypes, widened to the result's dtype."""
    sides = [t.read("a", "ij", kinds[0]), t.read("b", right, kinds[1])]
    pairs = zip(sides, kinds, strict=True)
    return [side if kind == result else t.cast(result, side) for side, kind in pairs]


def as_it_is(spec: str, operation: ParallelOperation) -> Rule:
    """The rule that asks for no more than the operation's dtypes."""
    kind = "substitute_few_bits" if operation.accumulator_bits else "substitute"
    return rule_of(kind, spec, operation)


def product(t: Terms, left: str, right: str, result: str, name: str) -> Term:
    """contract_j(a, b) of factor dtypes, widened to the result's dtype, by an operation."""
    return t.contract("j", *factors(t, (left, right), result), name)


def rounded(t: Terms, term: Term) -> Term:
    return t.cast("float32", t.cast("bfloat16", term))


def narrowed(t: Terms, a: Term, b: Term, name: str, narrow: str, terms: int) -> Term:
    return Term("narrow_contract", t.mask("j"), a, b, name, narrow, terms, 0)


def test_every_rule_is_drawn_from_an_operation() -> None:
    kinds = {"substitute", "round_weights", "round_factor", "round_factors", "split_factors"}
    kinds |= {
        "split_ahead",
        "split_one_ahead",
        "widen",
        "widen_ahead",
        "widen_weighted",
        "widen_weighted_ahead",
    }
    kinds |= {"substitute_where_rounded", "substitute_few_bits"}
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
    rule = as_it_is(spec, operation)
    assert rule.precision == ("tf32" if operation.accumulator_bits else "exact")
    t = Terms(universe())
    rows = dtypes_of(operation)
    for row in rows:
        case = Case(*(product(t, *row, name) for name in ("", operation.name)))
        assert equal(case, worker, rule)
    others = [d for d in BY_NAME if d not in {factor for factor, *_ in rows}]
    wrong = others[len(operation.name) % len(others)]
    case = Case(*(product(t, wrong, wrong, wrong, name) for name in ("", operation.name)))
    assert not equal(case, worker, rule)
    factor, _, result = rows[0]
    half = Case(*(product(t, factor, wrong, result, name) for name in ("", operation.name)))
    assert equal(half, worker, rule) == (factor == result)  # then any factor is cast to its dtype


@each(PLAIN)
def test_a_substitution_computes_the_same(spec: str, operation: ParallelOperation) -> None:
    rng = np.random.default_rng(len(operation.name))
    for row in dtypes_of(operation):
        over = universe(*rng.integers(1, 20, 4).tolist())
        term = product(Terms(over), *row, operation.name)
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
    rule = as_it_is(spec, operation)
    t = Terms(universe())
    for left, right, result in dtypes_of(operation):
        sides = factors(t, (left, right), result, "j")
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
    for factor, _, result in dtypes_of(operation):
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


@each([one for one in PLAIN if one[1].accumulator_bits])
def test_sums_of_few_bits_serve_where_they_are_rounded(
    spec: str, operation: ParallelOperation, worker: SearchWorker
) -> None:
    """What is stored of them decides; a program may round factors to tf32, and then it is no
    matter. No rule computes them so where a program asks for exact sums.
    """
    rule = rule_of("substitute_where_rounded", spec, operation)
    assert rule.precision == "default"
    t = Terms(universe())
    for row in dtypes_of(operation):
        sides = [product(t, *row, name) for name in ("", operation.name)]
        assert equal(Case(*sides, facts=('(rounded "float32")',)), worker, rule)
        assert not equal(Case(*sides), worker, rule)
    with pytest.raises(KeyError):
        rule_of("substitute", spec, operation)
    wide = SPECS[spec].replace_operation(operation.name, accumulator_bits=0)
    drawn = substitutions(wide, frozenset({operation.invocation_name}))
    assert f"substitute_{operation.name}" in {rule.name for rule in drawn}


@each(those(("float16", "float32"), ("bfloat16", "float32")))
def test_factors_are_widened_where_registers_hold_them(
    spec: str, operation: ParallelOperation, worker: SearchWorker
) -> None:
    """Of 8-bit floats alone, whose every number a 16-bit one has; a float16 is no bfloat16. Besides
    threads convert one for an operation that runs on.
    """
    ((wide, _),) = rows_of(operation)
    places = [operation.operand_memory[x] for x in "ab"]
    most = places.count("registers") + operation.asynchronous
    rule = rule_of("widen", spec, operation)
    assert rule.precision == "exact"
    t = Terms(universe())

    def case(left: str, right: str) -> Case:
        before = factors(t, (left, right), "float32")
        plain = [t.read("a", "ij", left), t.read("b", "jk", right)]
        after = [
            side if kind == wide else t.cast("float32", t.cast(wide, own))
            for side, own, kind in zip(before, plain, (left, right), strict=True)
        ]
        return Case(t.contract("j", *before), t.contract("j", *after, operation.name))

    eight, other = "float8_e4m3fn", {"float16": "bfloat16", "bfloat16": "float16"}[wide]
    assert equal(case(eight, wide), worker, rule)
    assert equal(case(wide, "float8_e5m2"), worker, rule)
    assert equal(case(eight, "float8_e5m2"), worker, rule) == (most == 2)
    for pair in ((eight, other), (other, wide), (eight, "int8")):
        assert not equal(case(*pair), worker, rule)


@each(those(("float16", "float32"), ("bfloat16", "float32")))
def test_factors_are_widened_before_where_memory_holds_them(
    spec: str, operation: ParallelOperation, worker: SearchWorker
) -> None:
    """By a kernel of its own, which stores those that are narrower."""
    ((wide, _),) = rows_of(operation)
    if set(operation.operand_memory[x] for x in "ab") != {"shared"}:
        with pytest.raises(KeyError):
            rule_of("widen_ahead", spec, operation)
        return
    rule = rule_of("widen_ahead", spec, operation)
    assert rule.precision == "exact"
    t = Terms(universe())
    a, b = t.read("a", "ij", "float8_e4m3fn"), t.read("b", "jk", "float8_e5m2")
    copies = {x: t.read(f"{x}_wide", names, wide) for x, names in (("a", "ij"), ("b", "jk"))}
    rows = ((a, copies["a"], wide, 0), (b, copies["b"], wide, 0))
    same = t.read("c", "jk", wide)

    def case(right: Term, stored: Term, ready: tuple = rows) -> Case:
        before = [t.cast("float32", side) for side in (a, right)]
        after = [t.cast("float32", side) for side in (copies["a"], stored)]
        names = ("", operation.name)
        pair = (t.contract("j", *s, n) for s, n in zip((before, after), names, strict=True))
        return Case(*pair, prepared=ready)

    assert equal(case(b, copies["b"]), worker, rule)
    assert equal(case(same, same), worker, rule)
    for ready in (rows[:1], (rows[0], (b, copies["b"], "", 0))):
        assert not equal(case(b, copies["b"], ready), worker, rule)
    assert not equal(case(same, same, rows[1:]), worker, rule)


@each(those(("float16", "float32"), ("bfloat16", "float32")))
def test_what_is_weighted_is_widened_on_its_way_or_before(
    spec: str, operation: ParallelOperation, worker: SearchWorker
) -> None:
    """In registers where an operation takes both factors from there, else by another kernel; by
    threads that convert, where it takes the weights from registers and runs on.
    """
    ((wide, _),) = rows_of(operation)
    kinds = {"widen_weighted", "widen_weighted_ahead"}
    names = {
        rule.name for rule in substitutions(SPECS[spec], frozenset({operation.invocation_name}))
    }
    offered = {kind for kind in kinds if f"{kind}_{operation.name}" in names}
    places = [operation.operand_memory[x] for x in "ab"]
    inside_kernels = "registers" in places and (operation.asynchronous or "shared" not in places)
    ahead = "shared" in places
    expected = {"widen_weighted": inside_kernels, "widen_weighted_ahead": ahead}
    assert offered == {kind for kind, wanted in expected.items() if wanted}
    rules = {kind: rule_of(kind, spec, operation) for kind in offered}
    assert {rule.precision for rule in rules.values()} == {"default"}
    t = Terms(universe())
    s, stored = t.read("s", "ij"), t.read("b_wide", "jk", wide)

    def case(kind: str, after: Term, ready: tuple = ()) -> Case:
        b = t.cast("float32", t.read("b", "jk", kind))
        by_name = Term(
            "weighted_contract", t.mask("j"), s, t.cast("float32", after), operation.name, SOFTMAX
        )
        return Case(t.weighted("j", s, b), by_name, prepared=ready)

    def before(kind: str, *layout: object) -> Case:
        rows = ((t.read("b", "jk", kind), stored, *layout),)
        return case(kind, stored, rows if layout else ())

    eight, other = "float8_e5m2", {"float16": "bfloat16", "bfloat16": "float16"}[wide]
    inside = [case(kind, t.cast(wide, t.read("b", "jk", kind))) for kind in (eight, other, "int8")]
    for kind, rule in rules.items():
        held = kind == "widen_weighted"
        assert [equal(one, worker, rule) for one in inside] == [held, False, False]
        assert equal(before(eight, wide, 0), worker, rule) != held
        assert not equal(before(eight, "", 0), worker, rule)
        assert not equal(before(eight), worker, rule)


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
    assert f"split_one_ahead_{operation.name}" not in {rule.name for rule in drawn}
    assert f"split_ahead_{held.name}" not in {rule.name for rule in drawn}
    stored = float32_products(SPECS["h200"], names, frozenset(), "default", names)
    assert stored == {operation.name: 6}


def test_one_factor_is_split_as_it_is_read(worker: SearchWorker) -> None:
    """Whichever: the operation takes it from registers, and terms of the other from memory."""
    operation = SPECS["h200"].operation("wgmma_m64n128k16_bf16_rs")
    names = frozenset({operation.invocation_name})
    drawn = {rule.name: rule for rule in substitutions(SPECS["h200"], names, frozenset(), names)}
    rule = drawn[f"split_one_ahead_{operation.name}"]
    t = Terms(universe())
    a, b = t.read("a", "ij"), t.read("b", "jk")
    stored = [t.read("a_terms", "tij", "bfloat16"), t.read("b_terms", "tjk", "bfloat16")]
    rows = tuple((*pair, "bfloat16", t.mask("t")) for pair in zip((a, b), stored, strict=True))
    how = (operation.name, "bfloat16", 3, t.mask("t"))
    plain, cast = t.contract("j", a, b), [t.cast("float32", terms) for terms in stored]
    for sides in ((a, cast[1]), (cast[0], b)):
        split = Term("narrow_contract", t.mask("jt"), *sides, *how)
        assert equal(Case(plain, split, prepared=rows), worker, rule)
        assert not equal(Case(plain, split, prepared=rows[:1]), worker, rule)
    both = Term("narrow_contract", t.mask("jt"), *cast, *how)
    assert not equal(Case(plain, both, prepared=rows), worker, rule)


def test_a_precision_allows_what_those_before_it_allow() -> None:
    unit = SPECS["h200"]
    names = frozenset(operation.invocation_name for operation in unit.operations)
    rules = substitutions(unit, names, names)
    kinds = {
        choice: {rule.name.split("_mma_")[0] for rule in allowed(rules, choice)
                 if "_mma_m16n8k16_bf16" in rule.name or "_mma_m16n8k8_tf32" in rule.name}
        for choice in PRECISIONS
    }  # fmt: skip
    assert kinds["exact"] == {"substitute", "widen"}
    default = {"substitute", "widen", "widen_weighted", "round_weights", "round_factor"}
    default |= {"split_factors"}
    assert kinds["default"] == default
    assert kinds["tf32"] == kinds["bf16"] == default | {"round_factors"}
    count = {choice: float32_products(unit, names, names, choice) for choice in PRECISIONS}
    assert count["exact"] == {}
    assert count["default"]["mma_m16n8k8_tf32"] == len(products(2)) == 3
    assert count["default"]["mma_m16n8k16_bf16"] == len(products(3)) == 6
    assert count["tf32"]["mma_m16n8k8_tf32"] == 1
    assert count["tf32"]["mma_m16n8k16_bf16"] == 6
    assert count["bf16"]["mma_m16n8k16_bf16"] == 1
