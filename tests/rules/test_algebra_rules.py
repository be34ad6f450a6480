"""Every law: what it proves, what it refuses, and its value; and that each guard is needed."""

import re
from dataclasses import replace
from pathlib import Path

import mask_rows
import numpy as np
import pytest
from algebra_rows import Miss, Row
from carry_rows import OWN
from numeric import TOLERANCE, Meaning, check_terms, differ, random_buffers
from row_check import WHERE, row_faults
from terms import Terms, universe

from eqsat.graph.dtypes import as_dtype
from eqsat.rule import Rule, applicable, collect
from eqsat.rules import algebra, carries, distribute, masks, powers, roundings, scatters
from eqsat.rules.carries import carry_rules
from eqsat.saturate.saturation import FrozenEGraph, Limits, SearchWorker, saturate
from eqsat.solve import ALGEBRA
from eqsat.terms.algebra import Facts, Term, post_order

ROWS = mask_rows.ROWS
RULES = (
    *collect(*map(vars, (algebra, scatters, distribute, powers, masks, roundings, carries))),
    *carry_rules((*carries.LAWS, *OWN)),
)
LAWS = {rule.name: rule for rule in RULES if rule.group in ALGEBRA}
CASES = [(name, i) for name in ROWS for i in range(len(ROWS[name](Terms(universe())).refuses))]


def rows(name: str) -> tuple[Terms, Row]:
    terms = Terms(universe())
    return terms, ROWS[name](terms)


def search(
    terms: Terms, pair: tuple[Term, ...], worker: SearchWorker, *rules: Rule, awkward: tuple = ()
) -> FrozenEGraph:
    """The e-graph of two terms under some rules, no round more than they need."""
    buffers = set(random_buffers(pair, terms.universe))
    finite = frozenset(buffers - set(awkward))
    return saturate(pair, terms.universe, rules, worker, Limits(rounds=2), finite)


def equal(graph: FrozenEGraph, pair: tuple[Term, Term]) -> bool:
    return graph.class_of[pair[0]] == graph.class_of[pair[1]]


def test_every_law_has_a_row() -> None:
    faults = row_faults(set(LAWS), set(ROWS))
    assert not faults, faults


def test_a_forgotten_row_is_named_with_where_to_add_it() -> None:
    assert row_faults({"a", "b"}, {"a", "b"}) == ""
    forgotten, left_over = row_faults({"a", "b"}, {"a", "c"}).splitlines()
    assert forgotten.startswith("No row tests the rule b. Add one.")
    assert left_over == "There is no rule c. Rename its row, or delete it."
    here = Path(__file__).parent
    files = re.findall(r"\w+\.py", WHERE.replace("rules/algebra.py", ""))
    assert set(files) >= {path.name for path in here.glob("*_rows.py")}
    assert all((here / name).is_file() for name in files)


def test_laws_of_operations_that_cannot_occur_are_left_out() -> None:
    kept = {rule.name for rule in applicable(RULES, {"read", "exp", "mul", "reduce_sum"})}
    assert {"mul_commute", "factor_out_of_sum", "merge_sums"} <= kept
    assert not kept & {"add_commute", "divide_by_reciprocal", "keep_bits", "round_by_cast"}


@pytest.mark.parametrize("name", ROWS)
def test_a_law_proves_its_cases_and_they_are_true(name: str, worker: SearchWorker) -> None:
    terms, row = rows(name)
    for pair in row.proves:
        graph = search(terms, pair, worker, LAWS[name])
        assert equal(graph, pair), f"{pair[0]} is not {pair[1]}"
        assert graph.fired.get(name)
        assert not check_terms(graph)


@pytest.mark.parametrize("name", ROWS)
def test_each_rewrite_of_a_law_proves_a_case(name: str, worker: SearchWorker) -> None:
    terms, row = rows(name)
    every = tuple(dict.fromkeys(term for pair in row.proves for term in pair))
    for one in LAWS[name].rewrites:
        graph = search(terms, every, worker, replace(LAWS[name], rewrites=(one,)))
        assert any(equal(graph, pair) for pair in row.proves), one


@pytest.mark.parametrize("name", ROWS)
def test_both_sides_have_one_value_at_random_extents(name: str) -> None:
    rng = np.random.default_rng(len(name))
    for extents in [(1, 1, 1, 1), (3, 1, 2, 1), *rng.integers(1, 6, (4, 4)).tolist()]:
        over = universe(*extents)
        for left, right in ROWS[name](Terms(over)).proves:
            meaning = Meaning(over, random_buffers([left, right], over, int(rng.integers(99))))
            expected, value = meaning.term(left), meaning.term(right)
            rounded = any(
                sub.args[0] in TOLERANCE
                for sub in post_order([left])
                if sub.op in {"cast", "rounded"}
            )
            dtype = as_dtype("bfloat16") if rounded else Facts(over).dtype(left)
            assert differ(expected, value, dtype) < 1


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_law_refuses_its_near_misses(name: str, number: int, worker: SearchWorker) -> None:
    terms, row = rows(name)
    miss = row.refuses[number]
    pair = miss.left, miss.right
    graph = search(terms, pair, worker, LAWS[name], awkward=miss.awkward)
    assert not equal(graph, pair)
    if miss.guard:
        _without_the_guard(terms, name, miss, worker)
    if miss.wrong:
        assert _values_differ(terms, miss), "the near miss is no counterexample"


def _without_the_guard(terms: Terms, name: str, miss: Miss, worker: SearchWorker) -> None:
    """Then the law fires, and evaluating every e-node shows what it broke."""
    broken = without(LAWS[name], miss.guard)
    graph = search(terms, (miss.left,), worker, broken, awkward=miss.awkward)
    assert graph.fired.get(name), "another guard refuses this case too"
    if miss.wrong:
        found = [check_terms(graph, seed, miss.awkward) for seed in range(3)]
        assert any(found), "the broken law was not caught"


def without(rule: Rule, kind: str) -> Rule:
    """A rule less its conditions of a kind."""
    return replace(
        rule,
        rewrites=tuple(
            replace(one, conditions=tuple(c for c in one.conditions if c.kind != kind))
            for one in rule.rewrites
        ),
    )


def _values_differ(terms: Terms, miss: Miss) -> bool:
    over = terms.universe
    dtype = Facts(over).dtype(miss.left)
    for seed in range(3):
        buffers = random_buffers([miss.left, miss.right], over, seed, miss.awkward)
        meaning = Meaning(over, buffers)
        if differ(meaning.term(miss.left), meaning.term(miss.right), dtype) >= 1:
            return True
    return False
