"""sort, argsort and top_k of many elements, against NumPy."""

import numpy as np
import pytest
from finite_differences import check

import eqsat.graph as g
from eqsat.errors import DTypeError, ShapeError
from eqsat.graph.evaluate import evaluate

RNG = np.random.default_rng(3)


def awkward(shape: tuple[int, ...] = (4, 5, 30)) -> np.ndarray:
    """Ties, NaN, infinities and zeros of both signs."""
    x = np.round(RNG.normal(size=shape), 1).astype("f")
    flat = x.reshape(-1)
    flat[::7], flat[3::11], flat[5::13], flat[1::17] = np.nan, -0.0, 0.0, -np.inf
    return x


def value(tensor: g.Tensor) -> np.ndarray:
    return evaluate([tensor], {})[0]


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_the_order_is_numpys_and_stable(axis: int) -> None:
    x = awkward()
    expected = np.argsort(x, axis=axis, kind="stable")
    np.testing.assert_array_equal(value(g.argsort(g.constant(x), axis)), expected)
    np.testing.assert_array_equal(value(g.sort(g.constant(x), axis)), np.sort(x, axis=axis))


@pytest.mark.parametrize("axis", [0, -1])
def test_downwards_nan_comes_first_and_equals_keep_their_order(axis: int) -> None:
    x = awkward((6, 40))
    n = x.shape[axis]
    back = np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    places = value(g.argsort(g.constant(x), axis, descending=True))
    np.testing.assert_array_equal(places, n - 1 - back)
    values = value(g.sort(g.constant(x), axis, descending=True, stable=False))
    np.testing.assert_array_equal(values, np.flip(np.sort(x, axis=axis), axis))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool", "bfloat16", "float8_e5m2"])
def test_other_dtypes(dtype: str) -> None:
    numbers = RNG.integers(0, 3, (4, 9)).astype("f")
    x = g.astype(g.constant(numbers), dtype)
    known = np.asarray(value(x), "f")
    assert g.sort(x).dtype.name == dtype and g.argsort(x).dtype.name == "int64"
    np.testing.assert_array_equal(np.asarray(value(g.sort(x)), "f"), np.sort(known))
    np.testing.assert_array_equal(value(g.argsort(x)), np.argsort(known, kind="stable"))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4), (1,), (3, 1)])
def test_rows_of_one_element_or_none(shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape), dtype="f").reshape(shape)
    for found in (g.sort(g.constant(x)), g.argsort(g.constant(x))):
        assert value(found).shape == shape
    np.testing.assert_array_equal(value(g.sort(g.constant(x))), x)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
def test_many_elements_come_in_order_with_nan_in_front(largest: bool, dtype: str) -> None:
    x = awkward((6, 40)) if dtype == "float32" else RNG.integers(0, 9, (6, 40)).astype(dtype)
    keys = np.where(np.isnan(x), 0, -x.astype("d") if largest else x.astype("d"))
    order = np.lexsort((keys, ~np.isnan(x)))[..., :21]
    values, places = (value(t) for t in g.top_k(g.constant(x), 21, largest=largest))
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))


def test_the_derivative_goes_back_to_where_elements_came_from() -> None:
    x = RNG.permutation(36).reshape(2, 18) / 7.0
    check(lambda t: g.top_k(t, 10)[0], x=x)
    check(lambda t: g.sort(t * t, descending=True)[:, 2:5], x=x)


def test_errors_name_the_axis() -> None:
    x = g.input("x", (2, 5))
    for function in (g.sort, g.argsort):
        with pytest.raises(ShapeError, match="axis 2"):
            function(x, 2)
        with pytest.raises(ShapeError, match="has no axis to sort along"):
            function(g.input("s", ()))
    with pytest.raises(DTypeError, match="takes numbers along an axis"):
        g.top_k(g.input("y", (40,)) > 0, 20)
