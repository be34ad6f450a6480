"""The k largest and smallest elements, against a stable sort of NumPy."""

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.driver import compile, plan
from eqsat.errors import DTypeError, ShapeError
from eqsat.graph.evaluate import evaluate

RNG = np.random.default_rng(8)


def awkward() -> np.ndarray:
    """Rows with ties, NaN, and infinities."""
    x = np.round(RNG.normal(size=(6, 40)), 1).astype("f")
    x[1, [3, 30]] = np.nan
    x[2, 1:], x[3], x[4, ::2] = -np.inf, 2.0, np.inf
    return x


def sorted_out(x: np.ndarray, k: int, largest: bool) -> tuple[np.ndarray, np.ndarray]:
    """The expected values and positions along the last axis."""
    keys = np.where(np.isnan(x), 0, -x.astype("d") if largest else x.astype("d"))
    order = np.lexsort((keys, ~np.isnan(x)))[..., :k]
    return np.take_along_axis(x, order, -1), order


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_elements_come_in_order_with_their_positions(k: int, largest: bool) -> None:
    x = awkward()
    found = evaluate([*g.top_k(g.constant(x), k, largest=largest)], {})
    for one, expected in zip(found, sorted_out(x, k, largest), strict=True):
        np.testing.assert_array_equal(one, expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "float16", "float8_e4m3fn"])
def test_other_dtypes_and_axes(dtype: str) -> None:
    numbers = RNG.integers(0, 9, (5, 3, 4)).astype("f")
    values, places = g.top_k(g.astype(g.constant(numbers), dtype), 5, axis=0)
    assert (values.dtype.name, places.dtype.name) == (dtype, "int64")
    found = evaluate([g.astype(values, "float32"), places], {})
    expected = sorted_out(np.moveaxis(numbers, 0, -1), 5, True)
    for one, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, np.moveaxis(wanted, -1, 0))


@pytest.mark.usefixtures("shared_search")
def test_a_compiled_selection_is_the_same() -> None:
    x = awkward()
    outputs = g.top_k(g.input("x", x.shape), 2)
    found = compile(outputs, "cpu", cache=Cache(None))(x)
    for one, expected in zip(found, sorted_out(x, 2, True), strict=True):
        np.testing.assert_array_equal(one, expected)


@pytest.mark.usefixtures("shared_search")
def test_experts_are_chosen_by_a_kernel_each_at_most() -> None:
    outputs = g.top_k(g.softmax(g.input("x", (4096, 64))), 2)
    assert len(plan(outputs, "h200", cache=Cache(None)).parts.launches) <= 4


def test_the_derivative_reaches_the_chosen() -> None:
    x = g.input("x", (2, 5))
    values, _ = g.top_k(x, 2)
    (found,) = evaluate(
        [g.grad(g.sum(values * values), x)], {"x": np.array([[1, 5, 2, 4, 3]] * 2, "f")}
    )
    np.testing.assert_array_equal(found, [[0, 10, 0, 8, 0]] * 2)


def test_errors_say_what_was_wrong() -> None:
    x = g.input("x", (2, 5))
    for k in (0, 6):
        with pytest.raises(ShapeError, match=rf"k is {k}; axis 1 of .* has 5 elements"):
            g.top_k(x, k)
    with pytest.raises(ShapeError, match="takes numbers along an axis"):
        g.top_k(g.input("s", ()), 1)
    with pytest.raises(DTypeError, match="takes numbers along an axis"):
        g.top_k(x > 0, 1)
