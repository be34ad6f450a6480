"""Segments, counts and scattered sums against NumPy, by `evaluate`."""

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.errors import ArgumentError, DTypeError, ShapeError

RNG = np.random.default_rng(11)
IDS = np.array([2, 0, 2, -1, 5, 0, 2, 7])  # -1, 5 and 7 lie outside 0..4
INSIDE = (IDS >= 0) & (IDS < 5)


def evaluate(tensor, **inputs):
    return g.evaluate([tensor], inputs)[0]


def constants(*arrays):
    return [g.constant(array) for array in arrays]


def added(x, ids, count):
    out = np.zeros((count, *x.shape[ids.ndim :]), x.dtype)
    kept = (ids >= 0) & (ids < count)
    np.add.at(out, ids[kept], x[kept])
    return out


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("rest", [(), (3,), (2, 3)])
def test_segment_sum_drops_ids_outside(dtype, rest):
    x = RNG.integers(-9, 9, (8, *rest)).astype(dtype)
    result = evaluate(g.segment_sum(*constants(x, IDS), 5))
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, added(x, IDS, 5))


def test_segment_sum_of_ids_with_two_axes_and_without_any():
    x, ids = RNG.integers(0, 9, (2, 3, 4)), RNG.integers(0, 3, (2, 3))
    result = evaluate(g.segment_sum(*constants(x, ids), 3))
    np.testing.assert_array_equal(result, added(x, ids, 3))
    nothing = g.segment_sum(g.constant(np.ones((0, 2), "float32")), np.zeros(0, np.int64), 3)
    np.testing.assert_array_equal(evaluate(nothing), np.zeros((3, 2)))
    assert g.segment_sum(g.constant(x[0]), ids[0], 0).shape == (0, 4)


def test_segment_sum_widens_as_sum_does():
    ones = g.constant(np.ones(5000, np.int8))
    assert evaluate(g.segment_sum(ones, np.zeros(5000, np.int64), 1)).tolist() == [5000]
    half = g.segment_sum(g.astype(ones, "float16"), np.zeros(5000, np.int64), 1)
    assert half.dtype == g.float16
    assert evaluate(half).tolist() == [5000]  # in float16 it would stay at 2048


def test_a_nan_stays_in_its_own_segment():
    x = np.array([1, np.nan, 2, 3], np.float32)
    ids = np.array([0, 1, 0, 2])
    for function, empty in ((g.segment_sum, 0), (g.segment_max, -np.inf), (g.segment_min, np.inf)):
        result = evaluate(function(*constants(x, ids), 4))
        assert np.isnan(result).tolist() == [False, True, False, False]
        assert result[3] == empty


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int64", "uint8"])
def test_segment_extremes(dtype):
    x = RNG.integers(0, 99, (8, 2)).astype(dtype)
    largest = evaluate(g.segment_max(*constants(x, IDS), 5))
    smallest = evaluate(g.segment_min(*constants(x, IDS), 5))
    for s in (0, 2):
        np.testing.assert_array_equal(largest[s], x[s == IDS].max(0))
        np.testing.assert_array_equal(smallest[s], x[s == IDS].min(0))
    limits = (np.iinfo(dtype).min, np.iinfo(dtype).max) if "int" in dtype else (-np.inf, np.inf)
    assert (largest[[1, 3, 4]] == limits[0]).all() and (smallest[[1, 3, 4]] == limits[1]).all()


def test_bincount():
    ids = RNG.integers(0, 7, (20, 3))
    weights = RNG.uniform(-1, 1, (20, 3))
    counts = evaluate(g.bincount(g.constant(ids), 9))
    assert counts.dtype == np.int64
    np.testing.assert_array_equal(counts, np.bincount(ids.ravel(), minlength=9))
    weighted = evaluate(g.bincount(ids, 9, g.constant(weights)))
    np.testing.assert_allclose(weighted, np.bincount(ids.ravel(), weights.ravel(), 9), atol=1e-12)
    np.testing.assert_array_equal(evaluate(g.bincount(IDS, 5)), np.bincount(IDS[INSIDE], None, 5))


def test_histogram():
    x = np.array([-1, 0, 0.1, 0.26, 0.5, 0.99, 1, 1.5, np.nan, np.inf, -np.inf], np.float32)
    counts = evaluate(g.histogram(g.constant(x), 4, 0.0, 1.0))
    assert counts.tolist() == np.histogram(x[1:7], 4, (0, 1))[0].tolist() == [2, 1, 1, 2]
    whole = RNG.integers(0, 50, (6, 5))
    np.testing.assert_array_equal(
        evaluate(g.histogram(g.constant(whole), 5, 0, 50)), np.histogram(whole, 5, (0, 50))[0]
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scatter_add(axis):
    target = RNG.integers(0, 9, (4, 5, 3)).astype("float32")
    index = np.array([[1, -1], [0, 1], [99, -99]])
    d = axis % 3
    shape = (*target.shape[:d], *index.shape, *target.shape[d + 1 :])
    updates = RNG.integers(0, 9, shape).astype("float32")
    expected = np.moveaxis(target.copy(), d, 0)
    at = np.where(index < 0, index + target.shape[d], index)
    kept = (at >= 0) & (at < target.shape[d])
    np.add.at(expected, at[kept], np.moveaxis(updates, (d, d + 1), (0, 1))[kept])
    result = evaluate(g.scatter_add(g.constant(target), index, g.constant(updates), axis))
    np.testing.assert_array_equal(result, np.moveaxis(expected, 0, d))


def test_gradients_are_gathers():
    x, ids = g.input("x", (6, 2)), g.constant(np.array([0, 2, 5, 0, 1, -1]))
    weights = g.constant(RNG.uniform(-1, 1, (3, 2)).astype("float32"))
    (slope,) = g.grad(g.sum(g.segment_sum(x, ids, 3) * weights), [x])
    value = evaluate(slope, x=np.ones((6, 2), "float32"))
    w = np.vstack([weights.attributes["value"], np.zeros((1, 2))])
    np.testing.assert_array_equal(value, w[[0, 2, 3, 0, 1, 3]].astype("float32"))


def test_errors():
    x = g.input("x", (4, 3))
    with pytest.raises(DTypeError, match="is not integer"):
        g.segment_sum(x, g.input("ids", (4,), "float32"), 3)
    with pytest.raises(ShapeError, match="no leading part"):
        g.segment_sum(x, g.input("ids", (3,), "int64"), 3)
    with pytest.raises(ShapeError, match="-1 segments"):
        g.segment_max(x, g.input("ids", (4,), "int64"), -1)
    with pytest.raises(ShapeError, match="Give a weight for each"):
        g.bincount(g.input("ids", (4,), "int64"), 3, x)
    with pytest.raises(ArgumentError, match="there are no bins"):
        g.histogram(x, 4, 1.0, 1.0)
    with pytest.raises(ShapeError, match="should have the shape"):
        g.scatter_add(x, g.input("ids", (2,), "int64"), x)
    with pytest.raises(DTypeError, match="differ in dtype"):
        g.scatter_add(x, g.input("ids", (2,), "int64"), g.input("u", (2, 3), "int64"))
