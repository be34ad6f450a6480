"""Index expressions against brute force, and the simplifications that later layers rely on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsat.errors import ShapeError
from eqsat.graph import index as ix

EXTENTS = {"i": 4, "j": 3, "k": 6}
GRID = ix.open_grid(list(EXTENTS), EXTENTS)
SHAPE = tuple(EXTENTS.values())

leaves = st.one_of(
    st.sampled_from([("var", name) for name in EXTENTS]),
    st.integers(-7, 7).map(lambda c: ("const", c)),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["add", "sub"]), inner, inner),
        st.tuples(st.just("scale"), inner, st.integers(-4, 6)),
        st.tuples(st.sampled_from(["floordiv", "mod"]), inner, st.integers(1, 12)),
    ),
    max_leaves=10,
)


def build(tree, extents):
    """The expression of a tree, and its values by NumPy alone."""
    op, first, *rest = tree
    if op == "var":
        return ix.var(first), GRID[first]
    if op == "const":
        return ix.const(first), np.asarray(first)
    x, a = build(first, extents)
    if op == "scale":
        return ix.scale(x, rest[0]), a * rest[0]
    if op == "floordiv":
        return ix.floordiv(x, rest[0], extents), a // rest[0]
    if op == "mod":
        return ix.mod(x, rest[0], extents), a % rest[0]
    y, b = build(rest[0], extents)
    return (ix.add(x, y), a + b) if op == "add" else (ix.sub(x, y), a - b)


@settings(max_examples=300, deadline=None)
@given(trees, st.booleans())
def test_construction_keeps_the_value(tree, with_extents):
    expression, values = build(tree, EXTENTS if with_extents else None)
    found = np.broadcast_to(ix.evaluate(expression, GRID), SHAPE)
    np.testing.assert_array_equal(found, np.broadcast_to(values, SHAPE))
    low, high = ix.bounds(expression, EXTENTS)
    assert low <= found.min() and found.max() <= high
    assert ix.within(expression, EXTENTS, 9) == (found.min() >= 0 and found.max() < 9)


@settings(max_examples=200, deadline=None)
@given(trees)
def test_simplify_print_and_canonical_form(tree):
    expression, _ = build(tree, None)
    values = np.broadcast_to(ix.evaluate(expression, GRID), SHAPE)
    simple = ix.simplify(expression, EXTENTS)
    np.testing.assert_array_equal(np.broadcast_to(ix.evaluate(simple, GRID), SHAPE), values)
    printed = np.broadcast_to(eval(str(expression), {}, dict(GRID)), SHAPE)
    np.testing.assert_array_equal(printed, values)
    assert all(coefficient for _, coefficient in expression.terms)
    assert ix.free_names(simple) <= ix.free_names(expression) <= set(EXTENTS)
    assert hash(expression) == hash(ix.add(expression, ix.const(0)))


@settings(max_examples=200, deadline=None)
@given(trees, trees, trees)
def test_substitution_is_simultaneous(tree, for_i, for_j):
    expression, _ = build(tree, None)
    (new_i, values_i), (new_j, values_j) = build(for_i, None), build(for_j, None)
    result = ix.substitute(expression, {"i": new_i, "j": new_j}, EXTENTS)
    expected = ix.evaluate(expression, {"i": values_i, "j": values_j, "k": GRID["k"]})
    np.testing.assert_array_equal(
        np.broadcast_to(ix.evaluate(result, GRID), SHAPE), np.broadcast_to(expected, SHAPE)
    )


def test_printed_form():
    i, k = ix.var("i"), ix.var("k")
    assert str(ix.add(ix.scale(i, 2), k, ix.const(-1))) == "2*i + k - 1"
    assert str(ix.floordiv(i, 3)) == "(i // 3)"
    assert str(ix.mod(ix.add(i, ix.const(1)), 3)) == "((i + 1) % 3)"
    assert str(ix.sub(ix.const(2), i)) == "-i + 2"
    assert str(ix.const(0)) == "0"


@pytest.mark.parametrize(
    "expression, text",
    [
        (lambda: ix.floordiv(ix.add(ix.scale(ix.var("k"), 4), ix.var("i")), 4, EXTENTS), "k"),
        (lambda: ix.mod(ix.add(ix.scale(ix.var("k"), 4), ix.var("i")), 4, EXTENTS), "i"),
        (lambda: ix.floordiv(ix.add(ix.scale(ix.var("k"), 4), ix.var("i")), 12, EXTENTS),
         "(k // 3)"),
        (lambda: ix.mod(ix.add(ix.scale(ix.var("k"), 4), ix.var("i")), 12, EXTENTS),
         "i + 4*(k % 3)"),
        (lambda: ix.floordiv(ix.floordiv(ix.var("k"), 2), 3), "(k // 6)"),
        (lambda: ix.mod(ix.mod(ix.var("k"), 6), 3), "(k % 3)"),
        (lambda: ix.mod(ix.floordiv(ix.var("k"), 2), 3, EXTENTS), "(k // 2)"),
        (lambda: ix.add(ix.scale(ix.floordiv(ix.var("k"), 2), 2), ix.mod(ix.var("k"), 2)), "k"),
        (lambda: ix.floordiv(ix.var("i"), 4, EXTENTS), "0"),
    ],
)  # fmt: skip
def test_simplified_form(expression, text):
    assert str(expression()) == text


def test_bad_divisors_are_refused():
    for divide in (ix.floordiv, ix.mod):
        for divisor in (0, -2):
            with pytest.raises(ShapeError, match="divisors are positive constants"):
                divide(ix.var("i"), divisor)
