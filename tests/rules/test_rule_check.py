"""What a caller gives as rules: numbers in patterns, and names that no program has."""

import numpy as np
import pytest

import eqsat
from eqsat.cache.store import Cache
from eqsat.driver import default_rules
from eqsat.errors import ArgumentError, EqsatError, RuleError
from eqsat.rule import DTypeOf, apply, dtype_in, known, rewrite, rule
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
        (
            pattern("turned", lambda a: apply("cast", a, "float64"), lambda a: a),
            r"turned: cast takes \(Text, Expr\) in a pattern, in this order; got \(Expr, Text\) in "
            r"cast\(a, float64\)\. See CONTRIBUTING",
        ),
        (
            pattern("inside", lambda a: a * a, lambda a: apply("where", a, a, 0)),
            r"inside: where takes \(Expr, Expr, Expr\) .* got \(Expr, Expr, Count\) in where\(",
        ),
        (
            pattern("none", lambda a: a * a, lambda a: apply("exp", None)),
            "rule none: None cannot be an argument of an operation. Give a pattern",
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


def zero(a: "Expr"):
    """a * 0  ->  0"""
    yield rewrite(a * 0, 0)


def lone(a: "Expr"):
    """a  ->  a + 0"""
    yield rewrite(a, a + 0)


def power(a: "Expr"):
    """a ** 2  ->  a * a"""
    yield rewrite(a**2, a * a)


def base(a: "Expr"):
    """2 ** -a  ->  a"""
    yield rewrite(2 ** (-a), a)


@pytest.mark.parametrize(
    ("wrong", "message"),
    (
        (
            lambda: rule("algebra")(returned),
            "rule returned returns a value of type Rewrite. Yield rewrite",
        ),
        (
            lambda: rule("algebra")(zero),
            r"rule zero: the right side of a rewrite must be a pattern; got 0\. A number by itself "
            r'is apply\("literal", 0\.0, DTypeOf\(a\)\)',
        ),
        (
            lambda: rule("algebra")(lone),
            r"rule lone: the left side of a rewrite must be an operation; got a\. Write what",
        ),
        (
            lambda: rule("algebra")(power),
            r"rule power: patterns have no `\*\*`; got it between a and 2\. Write a \* a, ",
        ),
        (lambda: rule("algebra")(base), r"got it between neg\(a\) and 2\."),
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


def test_a_number_by_itself_has_the_dtype_of_a_parameter() -> None:
    @rule("algebra")
    def nothing_left(a: "Expr"):
        """2 * a - 2 * a  ->  0
        when: a is an integer, as inf - inf is NaN.
        """
        zero = apply("literal", 0.0, DTypeOf(a))
        yield rewrite(a * 2 - a * 2, zero).when(dtype_in(a, "int32"))

    x = eqsat.input("x", (50,), "int32")
    rules = [*default_rules(), nothing_left]
    made = eqsat.compile(x * 2 - x * 2, rules=rules, cache=Cache(None))
    assert made.report.fired["nothing_left"] > 0
    np.testing.assert_array_equal(made(X.astype("int32")), np.zeros(50))


def test_an_unsound_rule_is_named_among_those_that_were_added() -> None:
    @rule("algebra")
    def narrowed(a: "Expr"):
        """exp(a)  ->  float16 exp(a)"""
        yield rewrite(apply("exp", a), apply("cast", "float16", apply("exp", a)))

    x = eqsat.input("x", (2,))
    rules = [narrowed, *default_rules(), summed]
    with pytest.raises(RuleError, match=r"different dtype.* Added to .* rules: narrowed, summed"):
        eqsat.compile(eqsat.exp(x), rules=rules, cache=Cache(None))
