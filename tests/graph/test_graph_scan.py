"""Linear recurrences against a loop of steps, by `evaluate`."""

import numpy as np
import pytest
from finite_differences import check

import eqsat.graph as g
from eqsat.errors import DTypeError, ShapeError
from eqsat.graph.evaluate import topological

RNG = np.random.default_rng(12)
A = RNG.uniform(-1.2, 1.2, (3, 5, 2))
B = RNG.uniform(-2, 2, (3, 5, 2))


def evaluate(tensor):
    return g.evaluate([tensor], {})[0]


def steps(a, b, axis, initial=0.0):
    """The states by a loop, in float64."""
    factors, offsets = (np.moveaxis(np.asarray(x, np.float64), axis, 0) for x in (a, b))
    state = np.broadcast_to(np.asarray(initial, np.float64), offsets.shape[1:])
    states = np.empty_like(offsets)
    for t in range(len(offsets)):
        states[t] = state = factors[t] * state + offsets[t]
    return np.moveaxis(states, 0, axis)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_states_are_those_of_a_loop(axis):
    found = evaluate(g.affine_scan(g.constant(A), g.constant(B), axis))
    np.testing.assert_allclose(found, steps(A, B, axis), rtol=1e-13)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32", "int8"])
def test_dtypes_are_kept(dtype):
    a, b = np.round(4 * A), np.round(4 * B)
    found = g.affine_scan(*(g.astype(g.constant(x), dtype) for x in (a, b)), 1)
    assert found.dtype == g.as_dtype(dtype) and evaluate(found).dtype == found.dtype.numpy
    wanted = steps(a, b, 1)
    if found.dtype.kind == "int":
        wanted = wanted.astype(np.int64).astype(dtype)  # integers wrap
    elif found.dtype.itemsize == 2:
        wanted = wanted.astype(found.dtype.numpy).astype(np.float64)  # rounded once
    np.testing.assert_array_equal(evaluate(found).astype(np.float64), wanted)


def test_narrow_floats_are_carried_wide_and_rounded_once():
    n = 4096
    ones = g.constant(np.ones(n, np.float32))
    half = g.astype(ones, "float16")
    found = evaluate(g.affine_scan(half, half, 0))
    assert found[-1] == n  # in float16 it would stay at 2048


def test_an_initial_state_comes_before_the_first():
    first = RNG.uniform(-2, 2, (3, 2))
    found = evaluate(g.affine_scan(g.constant(A), g.constant(B), 1, g.constant(first)))
    np.testing.assert_allclose(found, steps(A, B, 1, first), rtol=1e-13)
    found = evaluate(g.affine_scan(g.constant(A), g.constant(B), 1, 0.5))
    np.testing.assert_allclose(found, steps(A, B, 1, 0.5), rtol=1e-13)


def test_factors_and_offsets_broadcast():
    found = evaluate(g.affine_scan(0.5, g.constant(B), 0))
    np.testing.assert_allclose(found, steps(np.full_like(B, 0.5), B, 0), rtol=1e-13)
    found = evaluate(g.affine_scan(g.constant(A[:, :1]), g.constant(B), 1))
    np.testing.assert_allclose(found, steps(np.broadcast_to(A[:, :1], B.shape), B, 1), rtol=1e-13)


@pytest.mark.parametrize("shape", [(0, 2), (1, 2), (2, 0)])
def test_none_and_one_step(shape):
    b = RNG.uniform(-2, 2, shape)
    found = evaluate(g.affine_scan(0.5, g.constant(b), 0, 2.0))
    np.testing.assert_allclose(found, steps(np.full(shape, 0.5), b, 0, 2.0))


def test_a_factor_of_one_is_the_prefix_sum():
    found = evaluate(g.affine_scan(1.0, g.constant(B), 1))
    np.testing.assert_allclose(found, B.cumsum(1), rtol=1e-13)


def test_derivatives_by_factors_offsets_and_the_initial_state():
    check(lambda a, b, h: g.affine_scan(a, b, 1, h), a=A, b=B, h=B[:, 0])


def test_the_derivative_scans_back_once():
    a, b = (g.input(name, (4, 6)) for name in "ab")
    found = g.grad(g.sum(g.square(g.affine_scan(a, b, 1))), [a, b])
    scans = [t for t in topological(found) if t.op == "scan_affine"]
    assert len(scans) == 2


F32, F64 = g.input("x", (3, 4)), g.input("first", (3,), "float64")
TRUE = g.input("t", (3, 4), "bool")
REFUSED = {
    "axis": (lambda: g.affine_scan(F32, F32, 2), ShapeError, "axis 2 is outside x"),
    "shapes": (
        lambda: g.affine_scan(F32, g.input("y", (3, 5)), 1),
        ShapeError,
        "affine_scan: x float32[3, 4] and y float32[3, 5] do not broadcast",
    ),
    "kind": (lambda: g.affine_scan(TRUE, TRUE, 1), DTypeError, "affine_scan: takes numeric"),
    "mixed": (lambda: g.affine_scan(F32, F64, 1), ShapeError, "do not broadcast"),
    "initial dtype": (
        lambda: g.affine_scan(F32, F32, 1, F64),
        DTypeError,
        "the initial state first float64[3] is not float32",
    ),
    "initial shape": (
        lambda: g.affine_scan(F32, F32, 0, g.input("z", (3,))),
        ShapeError,
        "z float32[3] does not broadcast to (4,)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(name):
    build, kind, message = REFUSED[name]
    with pytest.raises(kind) as caught:
        build()
    assert message in str(caught.value)
