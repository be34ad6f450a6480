"""What the bounds of integers decide before the search, and tables that are looked up in."""

import itertools
import operator
from functools import cache

import numpy as np
import pytest
from fast_products import H200, normal, planned, run

import eqsat.graph as g
from eqsat.encode.decided import COMPARISONS, Decisions
from eqsat.graph.evaluate import input_nodes
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Kernel, Load, Map
from eqsat.segment.fold import settle

pytestmark = pytest.mark.usefixtures("shared_search")

COMPARE = {
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
}


def settled(x: Tensor) -> Tensor:
    return Decisions().settle(x)


def between(low: int, high: int) -> Tensor:
    """Integers of which each in [low, high] is one."""
    return g.arange(high - low + 1) + low


@pytest.mark.parametrize("name", sorted(COMPARISONS))
def test_a_comparison_is_decided_where_it_always_holds_or_never(name):
    for low, high, least, most in itertools.product(range(4), repeat=4):
        if low > high or least > most:
            continue
        a, b = g.expand_dims(between(low, high), 1), between(least, most)
        out = g.broadcast_arrays(getattr(g, name)(a, b))[0]
        values = {COMPARE[name](x, y) for x in range(low, high + 1) for y in range(least, most + 1)}
        found = settled(out)
        if found is out:
            assert len(values) == 2
        else:
            (value,) = values
            assert found.op == "view" and found.shape == out.shape
            assert found.operands[0].attributes["value"] == value


@pytest.mark.parametrize("name", ["minimum", "maximum"])
def test_an_extreme_is_an_operand_where_that_is_always_it(name):
    for low, high, least, most in itertools.product(range(4), repeat=4):
        if high - low != most - least:
            continue
        out = getattr(g, name)(between(low, high), between(least, most))
        found = settled(out)
        if found is out:
            assert not (high <= least or low >= most)
        else:
            wanted, value = (g.evaluate([x], {})[0] for x in (out, found))
            np.testing.assert_array_equal(value, wanted)


def test_an_integer_of_one_value_is_a_number_if_a_literal_holds_it():
    x = g.input("x", (5,), "int32")
    for one, value in ((x * 0 + 7, 7), (g.minimum(g.maximum(x, 3), 3), 3), (x % 1, 0)):
        found = settled(one)
        assert found.op == "view" and found.operands[0].attributes["value"] == value
    large = g.input("y", (5,), "int64") * 0 + (2**53 + 1)
    assert settled(large) is large


def test_what_overflows_or_is_unknown_is_not_decided():
    x = g.input("x", (4,), "int8")
    near = g.astype(g.arange(4) + 120, "int8") + g.constant(10, "int8")  # wraps below 0
    for out in (x < 100, near < 0, near >= 0, g.minimum(x, 100)):
        assert settled(out) is out
    assert settled(g.where(g.arange(4) < 9, x, x + 1)).op == "where"  # its condition comes first


def test_a_long_chain_has_bounds():
    x = g.arange(4)
    for _ in range(3000):
        x = x + 1
    assert Decisions().bounds(x) == (3000, 3003)
    assert Decisions().bounds(g.maximum(g.input("x", (4,), "int64"), 0)) == (
        0,
        g.iinfo(x.dtype).max,
    )


def relative(n: int, d: int, size: int) -> Tensor:
    """Attention with a bias for each distance, clipped to a table."""
    q, k, v = (g.input(name, (2, 4, n, d), "bfloat16") for name in "qkv")
    table = g.input("t", (4, size), "float32")
    apart = g.expand_dims(g.arange(n), 1) - g.arange(n)
    place = g.clip(apart + size // 2, 0, size - 1)
    scores = g.astype(q, "float32") @ g.astype(k, "float32").mT * d**-0.5
    return g.astype(g.softmax(scores + g.take(table, place, axis=1)), "bfloat16") @ v


@cache
def relative_kernel() -> Kernel:
    """The one kernel of such attention to long sequences."""
    (launch,) = planned(relative(2048, 64, 128), H200).parts.launches
    return launch.kernel


@pytest.mark.slow
def test_a_position_that_is_clipped_already_is_taken_as_it_is():
    kernel = relative_kernel()
    ops = [s.op for s in kernel.statements() if isinstance(s, Map) and s.dtype.kind == "int"]
    assert sorted(ops) == ["add", "maximum", "minimum", "sub"]
    assert not any(s.op == "less" for s in kernel.statements() if isinstance(s, Map))


def test_a_short_table_leaves_the_products_to_warpgroups():
    """Looking up in what the first cache holds is no traffic of the second."""
    kernel = relative_kernel()
    assert sum("wgmma" in rule for rule in kernel.rules) == 2
    assert any(isinstance(s, Load) and s.access.coordinates for s in kernel.statements())


def test_a_bias_that_is_looked_up_is_right():
    out = relative(48, 16, 8)
    arrays = {n: normal(*x.shape).astype(x.dtype.numpy) for n, x in input_nodes([out]).items()}
    (wanted,) = g.evaluate([out], arrays, np.float64)
    found = run(planned(out, H200), **arrays).astype(np.float64)
    np.testing.assert_allclose(found, wanted, atol=3e-2)


def frames(x: Tensor, step: int, size: int) -> Tensor:
    """Windows of rows, by the positions of their elements."""
    starts = g.arange((x.shape[1] - size) // step + 1) * step
    return g.take(x, g.expand_dims(starts, 1) + g.arange(size), axis=1)


PLACED = {
    "windows": lambda x: frames(x, 3, 5),
    "narrow positions": lambda x: g.take(x, g.astype(g.arange(9), "int8") * 2 + 1, axis=0),
    "every other pair": lambda x: g.take(x, g.arange(10) // 2 * 4 + g.arange(10) % 2, axis=1),
    "backwards": lambda x: g.take(x, 19 - g.arange(20), axis=0),
    "positions that are reshaped": lambda x: g.take(x, g.reshape(g.arange(12), (3, 4)), axis=1),
    "a corner": lambda x: g.take(g.take(x, g.arange(3) + 1, axis=0), 7 - g.arange(4), axis=1),
}


@pytest.mark.parametrize("name", sorted(PLACED))
def test_what_is_taken_at_positions_is_a_view(name):
    x = g.input("x", (20, 24), "float32")
    out = PLACED[name](x)
    (found,) = settle([out])
    assert found.op == "view" and found.operands == (x,)
    array = normal(20, 24)
    wanted, value = (g.evaluate([y], {"x": array})[0] for y in (out, found))
    np.testing.assert_array_equal(value, wanted)


def test_positions_that_wrap_leave_the_table_or_are_read_are_looked_up():
    x, ids = g.input("x", (20, 24), "float32"), g.input("i", (4,), "int32")
    wraps = g.astype(g.arange(9), "int8") * g.astype(40, "int8")
    squares = g.arange(4) * g.arange(4)
    for index in (g.arange(5) + 20, g.arange(5) - 1, wraps, ids + g.arange(4), squares):
        (found,) = settle([g.take(x, index, axis=0)])
        assert found.op == "gather"
