"""Elements at positions, places in order, running products, differences and grids, as NumPy's."""

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.errors import EqsatError
from eqsat.graph.tensor import Tensor

RNG = np.random.default_rng(7)
X = RNG.standard_normal((4, 9, 5)).astype(np.float32)
SIGNED = np.array([0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, 1e-40, -1e-40], np.float32)


def given(**arrays: np.ndarray) -> list[Tensor]:
    return [g.input(name, one.shape, one.dtype.name) for name, one in arrays.items()]


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shared", [False, True])
def test_positions_of_each_row(axis: int, shared: bool) -> None:
    shape = [1 if shared else n for n in X.shape]
    shape[axis] = 7
    at = RNG.integers(-X.shape[axis], X.shape[axis], shape)
    x, places = given(x=X, at=at)
    (found,) = g.evaluate([g.take_along_axis(x, places, axis)], {"x": X, "at": at})
    whole = np.broadcast_to(at, [7 if d == axis % 3 else n for d, n in enumerate(X.shape)])
    np.testing.assert_array_equal(found, np.take_along_axis(X, whole, axis))


def test_positions_repeat_rows_and_end_at_the_last() -> None:
    at = np.array([[0, 2, 9], [1, -1, 3]], np.int32)
    row = X[0, :1]
    x, places = given(x=row, at=at)
    (found,) = g.evaluate([g.take_along_axis(x, places, 1)], {"x": row, "at": at})
    np.testing.assert_array_equal(found, row[0][[[0, 2, 4], [1, 4, 3]]])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 64, 100])
def test_places_in_order(side: str, count: int) -> None:
    order = np.sort(RNG.integers(0, 40, count)).astype(np.float32)
    order[count - 1 :] = np.nan
    wanted = np.concatenate([RNG.integers(-3, 43, 30), [np.nan, np.inf]]).astype(np.float32)
    x1, x2 = given(x=order, v=wanted)
    (found,) = g.evaluate([g.searchsorted(x1, x2, side=side)], {"x": order, "v": wanted})
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, np.searchsorted(order, wanted, side))


def test_places_in_an_order_told_by_a_sorter() -> None:
    values, wanted = RNG.permutation(50), RNG.integers(0, 50, (3, 4))
    x1, x2 = given(x=values, v=wanted)
    places = g.searchsorted(x1, x2, sorter=g.argsort(x1))
    (found,) = g.evaluate([places], {"x": values, "v": wanted})
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_running_products(axis: int) -> None:
    (x,) = given(x=X)
    nodes = [g.cumulative_prod(x, axis), g.cumulative_prod(x, axis, include_initial=True)]
    found, begun = g.evaluate(nodes, {"x": X})
    wanted = np.cumprod(X, axis)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    np.testing.assert_allclose(np.delete(begun, 0, axis), wanted, rtol=1e-5)
    assert (begun.take(0, axis) == 1).all()


def test_running_products_of_whole_numbers_and_of_what_is_not_finite() -> None:
    whole = np.array([1, -2, 3, 100, 7], np.int8)
    wild = np.array([np.inf, 2, -1, 0, 3, np.nan, 1], np.float32)
    found = g.evaluate(
        [g.cumulative_prod(x) for x in given(a=whole, b=wild)], {"a": whole, "b": wild}
    )
    assert found[0].dtype == np.int64
    np.testing.assert_array_equal(found[0], np.cumprod(whole, dtype=np.int64))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found[1], np.cumprod(wild))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("n", [0, 1, 3])
def test_differences(axis: int, n: int) -> None:
    (x,) = given(x=X)
    nodes = [g.diff(x, axis, n), g.diff(x, axis, n, prepend=x, append=x)]
    found = g.evaluate(nodes, {"x": X})
    np.testing.assert_array_equal(found[0], np.diff(X, n, axis))
    np.testing.assert_array_equal(found[1], np.diff(X, n, axis, X, X))


def test_differences_of_bool() -> None:
    flags = np.array([True, True, False, True])
    (found,) = g.evaluate([g.diff(given(f=flags)[0])], {"f": flags})
    np.testing.assert_array_equal(found, np.diff(flags))


@pytest.mark.parametrize("indexing", ["xy", "ij"])
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_grids(indexing: str, count: int) -> None:
    lines = {f"x{n}": np.arange(n + 2) for n in range(count)}
    nodes = g.meshgrid(*given(**lines), indexing=indexing)
    wanted = np.meshgrid(*lines.values(), indexing=indexing)
    for found, one in zip(g.evaluate(nodes, lines) if nodes else [], wanted, strict=True):
        np.testing.assert_array_equal(found, one)


def test_signs() -> None:
    (x,) = given(x=SIGNED)
    bits, copied = g.evaluate([g.signbit(x), g.copysign(2.0, x)], {"x": SIGNED})
    np.testing.assert_array_equal(bits, np.signbit(SIGNED))
    np.testing.assert_array_equal(copied, np.copysign(np.float32(2), SIGNED))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x, at: g.take_along_axis(x, at[0], 0), "differ in dimensions"),
        (lambda x, at: g.take_along_axis(x, at, 3), "axis 3 is outside"),
        (lambda x, at: g.take_along_axis(x, at, 1), "must be equal or 1"),
        (lambda x, at: g.take_along_axis(x, x, 0), "is not integer"),
        (lambda x, _: g.take_along_axis(x, np.full((4, 1, 5), 9), 1), "past the ends"),
        (lambda x, _: g.searchsorted(x, x), "one ordered dimension"),
        (lambda x, _: g.searchsorted(x[0, 0], x, side="both"), "'both'"),
        (lambda x, _: g.cumulative_prod(x), "Say which axis"),
        (lambda x, _: g.diff(x, 5), "axis 5 is outside"),
        (lambda x, _: g.diff(x, 0, -1), "n is -1"),
        (lambda x, _: g.meshgrid(x), "of one dimension"),
        (lambda x, _: g.meshgrid(x[0, 0], indexing="yx"), "'yx'"),
        (lambda _, at: g.signbit(at), "int64"),
    ],
)  # fmt: skip
def test_what_is_refused(call, said: str) -> None:
    x, at = g.input("x", (4, 9, 5)), g.input("at", (3, 2, 5), "int64")
    with pytest.raises(EqsatError, match=said):
        call(x, at)
