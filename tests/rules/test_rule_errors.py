"""Rules that are malformed are refused where they are written; unsound ones when they run."""

from math import inf

import pytest
from numeric import check_terms
from terms import Terms, mul, universe

from eqsat.driver import default_rules, plan
from eqsat.errors import ArgumentError, RuleError
from eqsat.graph import input as graph_input
from eqsat.rule import (
    Condition,
    Rule,
    Variable,
    apply,
    collect,
    dtype_in,
    fact,
    finite,
    known,
    rewrite,
    rule,
)
from eqsat.saturate.saturation import FrozenEGraph, Limits, SearchWorker, saturate


@rule("algebra")
def doubled(a: "Expr"):
    """a + a  ->  2 * a"""
    yield rewrite(a + a, apply("literal", 2.0, "float32") * a)


def search(worker: SearchWorker, *rules: Rule) -> FrozenEGraph:
    t = Terms(universe())
    root = mul(t.read("a", "i"), t.number(1))
    return saturate([root], t.universe, rules, worker, Limits(rounds=2))


def made(name: str, one, group: str = "algebra") -> Rule:
    return Rule(name, group, "a law", "", (one,))


A, B, D = Variable("a"), Variable("b"), Variable("d", "Text")
ONE = apply("literal", 1.0, D)


def test_a_second_rule_of_one_name_is_refused() -> None:
    other = made("doubled", rewrite(A + A, A))
    with pytest.raises(RuleError, match=r"two rules are named doubled; rename one"):
        collect({"x": doubled}, {"y": other})
    assert collect({"x": doubled, "again": doubled, "no_rule": 3}) == (doubled,)


def test_a_variable_of_the_right_side_alone_is_refused() -> None:
    with pytest.raises(RuleError, match=r"rule invents: b occurs on the right side only, .* Make"):

        @rule("algebra")
        def invents(a: "Expr", b: "Expr"):
            """a * a  ->  a * b"""
            yield rewrite(a * a, a * b)


def test_a_relation_binds_a_variable() -> None:
    @rule("fusion")
    def looked_up(a: "Expr", n: "Count"):
        """value n  ->  a, its body"""
        yield rewrite(apply("value", n), a).when(fact("body", n, a))

    assert looked_up.rewrites[0].conditions[0].kind == "fact"


def test_a_rule_without_its_equation_is_refused() -> None:
    with pytest.raises(RuleError, match=r'rule silent needs a docstring .* its law, as """a \* b'):

        @rule("algebra")
        def silent(a: "Expr"):
            yield rewrite(a + a, a)


def test_a_rule_of_a_group_that_no_search_runs_is_refused() -> None:
    with pytest.raises(RuleError, match=r"rule lost is of group 'algebr', .* one of algebra, dis"):

        @rule("algebr")
        def lost(a: "Expr"):
            """a + a  ->  a"""
            yield rewrite(a + a, a)


def test_a_parameter_without_a_sort_is_refused() -> None:
    with pytest.raises(RuleError, match=r'parameter b of rule bare needs .* as b: "Expr". Use one'):

        @rule("algebra")
        def bare(a: "Expr", b):
            """a + b  ->  b + a"""
            yield rewrite(a + b, b + a)


def test_a_rule_given_beside_one_of_its_name_is_refused() -> None:
    rules = [*default_rules(), made("mul_commute", rewrite(A * B, B * A))]
    with pytest.raises(RuleError, match=r"two rules are named mul_commute; rename one of them"):
        plan(graph_input("x", (2,)) * 2.0, "example_cuda", rules=rules)


def test_a_left_side_that_matches_everything_is_refused() -> None:
    with pytest.raises(RuleError, match=r"left side of a rewrite must be an operation"):
        rewrite(A, A + A)


def test_an_operation_used_with_other_arguments_is_refused(worker: SearchWorker) -> None:
    with pytest.raises(RuleError, match=r"rule odd: mul is used with arguments E, f64 in mul\(a"):
        search(worker, made("odd", rewrite(apply("mul", A, 1.0), A)))


def test_an_unknown_guard_is_refused(worker: SearchWorker) -> None:
    one = rewrite(A * B, B * A).when(Condition("prime", (A,)))
    with pytest.raises(RuleError, match=r"no fact is named prime. Use one of finite"):
        search(worker, made("odd", one))


def test_a_pattern_that_egglog_cannot_read_is_refused(worker: SearchWorker) -> None:
    with pytest.raises(RuleError, match=r"egglog refused the rules"):
        search(worker, made("odd", rewrite(A * B, B * A).when(fact("unheard_of", A))))


def test_a_rule_that_changes_the_dtype_is_caught_by_the_search(worker: SearchWorker) -> None:
    unsound = made("drop_cast", rewrite(A * ONE, apply("cast", "float16", A)))
    with pytest.raises(RuleError, match=r"an unsound rule: two terms of different dtype"):
        search(worker, unsound)


@pytest.mark.parametrize("value", [inf, -inf, 2.0])
def test_a_rule_that_gives_another_number_is_caught_by_value(
    worker: SearchWorker, value: float
) -> None:
    graph = search(worker, made("odd", rewrite(A * ONE, apply("literal", value, D))))
    assert graph.fired == {"odd": 1}
    assert check_terms(graph)


def test_a_rule_that_invents_a_dependence_is_caught(worker: SearchWorker) -> None:
    """`free` is refined by intersection: the class then claims not to depend on i."""
    graph = search(worker, made("odd", rewrite(A * ONE, apply("reduce_sum", 1, A))))
    assert check_terms(graph)


def test_a_guard_on_dtype_lists_names_of_dtypes() -> None:
    assert dtype_in(A, "float32").args == (A, ("float32",))


@pytest.mark.parametrize("wrong", [finite(A), known("nonneg", A, B), A, "float32"])
def test_what_is_no_condition_is_refused(wrong) -> None:
    message = rf"when\(\) takes conditions, got a value of type {type(wrong).__name__}\. .*\*finite"
    with pytest.raises(ArgumentError, match=message) as caught:
        rewrite(A * B, B * A).when(wrong)
    assert isinstance(caught.value, TypeError)


def test_the_worker_lives_on_after_a_refused_rule(worker: SearchWorker) -> None:
    with pytest.raises(RuleError):
        search(worker, made("drop_cast", rewrite(A * ONE, apply("cast", "float16", A))))
    assert search(worker).note == ""
