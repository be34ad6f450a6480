"""Sums of what an index selects, evaluated without the joint array: the same numbers."""

import sys

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.graph.evaluate import topological
from eqsat.graph.selections import selections
from eqsat.graph.tensor import Tensor

EVALUATION = sys.modules["eqsat.graph.evaluate"]
RNG = np.random.default_rng(2)
I = g.input("i", (7, 5), "int64")  # noqa: E741
X, Y = g.input("x", (7, 5, 3), "float32"), g.input("y", (7, 5, 3), "int64")
Z = g.input("z", (7, 5, 3), "int8")
T, U = g.input("t", (4, 6, 3), "float32"), g.input("u", (4, 7, 5, 3), "float32")
PROGRAMS = {
    "sum": lambda: g.segment_sum(X, I, 6),
    "sum of integers": lambda: g.segment_sum(Y, I, 6),
    "sum of short floats": lambda: g.segment_sum(g.astype(X, "bfloat16"), I, 6),
    "max": lambda: g.segment_max(X, I, 6),
    "max of integers": lambda: g.segment_max(Y, I, 6),
    "min of short integers": lambda: g.segment_min(Z, I, 6),
    "count": lambda: g.bincount(I, 6),
    "weights": lambda: g.bincount(I, 6, X[:, :, 0]),
    "scattered": lambda: g.scatter_add(T, I, U, axis=1),
}
VALUES = {
    "i": RNG.integers(-2, 8, (7, 5)),
    "x": RNG.standard_normal((7, 5, 3)).astype("float32"),
    "y": RNG.integers(-9, 9, (7, 5, 3)),
    "z": RNG.integers(-9, 9, (7, 5, 3)).astype("int8"),
    "t": RNG.standard_normal((4, 6, 3)).astype("float32"),
    "u": RNG.standard_normal((4, 7, 5, 3)).astype("float32"),
}


def evaluated(out: Tensor, wide: bool) -> np.ndarray:
    return g.evaluate([out], VALUES, np.float64 if wide else None)[0]


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_what_the_joint_array_gives(name, wide, monkeypatch):
    out = PROGRAMS[name]()
    found, _ = selections(topological([out]), [out])
    assert len(found) == 1
    result = evaluated(out, wide)
    monkeypatch.setattr(EVALUATION, "selections", lambda order, outputs: ({}, {}))
    joint = evaluated(out, wide)
    assert result.dtype == joint.dtype and result.shape == joint.shape
    size = 1e-2 if "short floats" in name and not wide else 1e-6
    np.testing.assert_allclose(result.astype(float), joint.astype(float), rtol=size, atol=size)


def test_a_nan_stays_in_its_segment():
    x = np.array([[1.0], [np.nan], [2.0]], "float32")
    ids = np.array([0, 1, 0])
    for segment in (g.segment_sum, g.segment_max, g.segment_min):
        out = segment(g.input("x", (3, 1), "float32"), g.input("i", (3,), "int64"), 3)
        (found,) = g.evaluate([out], {"x": x, "i": ids})
        assert np.isnan(found[:, 0]).tolist() == [False, True, False]


def test_many_segments_take_no_joint_array():
    """The joint array would have 2 ** 41 elements."""
    n = 1 << 20
    x, i = g.input("x", (n, 2), "float32"), g.input("i", (n,), "int64")
    values = {"x": np.ones((n, 2), "float32"), "i": np.arange(n) // 2}
    (found,) = g.evaluate([g.segment_sum(x, i, n)], values)
    assert (found[: n // 2] == 2).all() and (found[n // 2 :] == 0).all()


def test_what_is_read_elsewhere_too_is_formed():
    chosen = g.where(g.expand_dims(I, 2) == g.arange(6), 1.0, 0.0)
    both = g.sum(chosen, axis=(0, 1)), chosen
    found, inside = selections(topological(both), both)
    assert not found and not inside
