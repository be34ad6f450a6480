"""What a caller gives as rules: numbers in patterns, and names that no program has."""

import numpy as np
import pytest

import eqsat
from eqsat.cache.store import Cache
from eqsat.driver import default_rules
from eqsat.errors import ArgumentError, EqsatError, RuleError
from eqsat.rule import apply, dtype_in, known, rewrite, rule
from eqsat.saturate.rule_check import checked

X = np.random.default_rng(0).uniform(1, 2, 50)


@rule("algebra")
def summed(a: "Expr"):
    """a * 2  ->  a + a"""
    yield rewrite(a * 2, a + a)


@rule("algebra")
def written_otherwise(a: "Expr"):
    """-(1 / a)  ->  (0 - 1) / a,  1 - (-a)  ->  a + 1"""
    yield rewrite(-(1 / a), (0 - a) / (a * a))
    yield rewrite(1 - (-a), a + 1)


@pytest.mark.parametrize("dtype", ("float32", "float64", "int32"))
def test_numbers_beside_a_pattern_have_its_dtype(dtype: str) -> None:
    x = eqsat.input("x", (50,), dtype)
    rules = [*default_rules(), summed, written_otherwise]
    for program, expected, used in (
        (x * 2, lambda a: a * 2, "summed"),
        (1 - (-x), lambda a: 1 + a, "written_otherwise"),
    ):
        made = eqsat.compile(program, rules=rules, cache=Cache(None))
        array = X.astype(dtype)
        np.testing.assert_allclose(made(array), expected(array), rtol=1e-6)
        assert made.report.fired[used] > 0


def pattern(name, left, right):
    def yields(a: "Expr"):
        """a law"""
        yield rewrite(left(a), right(a))

    yields.__name__ = name
    return rule("algebra")(yields)


@pytest.mark.parametrize(
    ("one", "message"),
    (
        (
            pattern("typo", lambda a: apply("exq", a), lambda a: a),
            "typo: no operation is named exq. D",
        ),
        (
            pattern("made", lambda a: a * apply("sigmoid", a), lambda a: a),
            "sigmoid is made of other",
        ),
        (
            pattern("many", lambda a: apply("exp", a, a), lambda a: a),
            "exp takes 1 arguments .* got 2",
        ),
        ("x", r"rules= takes rules; got a value of type str\. Put @rule"),
    ),
)
def test_what_would_never_match_is_refused(one, message: str) -> None:
    with pytest.raises(EqsatError, match=message):
        checked([*default_rules(), one], default_rules())


@pytest.mark.parametrize("given", (default_rules, summed, "x", 3))
def test_what_is_no_sequence_of_rules(given) -> None:
    with pytest.raises(ArgumentError, match=r"rules= takes a sequence of rules; got a value of"):
        eqsat.compile(eqsat.input("x", (2,)) + 1.0, rules=given)


def returned(a: "Expr"):
    """a law"""
    return rewrite(a + a, a)


def nothing(a: "Expr"):
    """a law"""
    yield from ()


def pair(a: "Expr"):
    """a law"""
    yield a + a, a


@pytest.mark.parametrize(
    ("wrong", "message"),
    (
        (
            lambda: rule("algebra")(returned),
            "rule returned returns a value of type Rewrite. Yield rewrite",
        ),
        (lambda: rule("algebra")(nothing), "rule nothing yields nothing"),
        (lambda: rule("algebra")(pair), "rule pair yields a value of type tuple"),
        (lambda: rule(pair), r"@rule needs a group: write @rule\(.algebra.\)"),
        (lambda: rule("algebra", "fp8"), "no precision is named fp8. Use one of exact"),
        (lambda: dtype_in(summed, "flot32"), "no dtype is named flot32. Did you mean float32"),
        (lambda: 2 * apply("read", 1), "nothing tells the dtype of 2 in a pattern"),
    ),
)
def test_mistakes_are_told_where_a_rule_is_written(wrong, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        wrong()


def test_a_fact_that_there_is_not() -> None:
    @rule("algebra")
    def guarded(a: "Expr"):
        """a * a  ->  a"""
        yield rewrite(a * a, a).when(*known("postive", a))

    x = eqsat.input("x", (2,))
    with pytest.raises(RuleError, match=r"no fact is named postive\. Did you mean positive"):
        eqsat.compile(x * x, rules=[*default_rules(), guarded], cache=Cache(None))
