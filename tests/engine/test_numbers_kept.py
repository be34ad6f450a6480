"""Programs whose answers a law, a mask or a wrapped integer once changed."""

import numpy as np
import pytest

import eqsat as E

pytestmark = pytest.mark.usefixtures("shared_search")
RANDOM = np.random.default_rng(5)


def ran(out: E.Tensor, *arrays: np.ndarray, **options: str) -> np.ndarray:
    return E.compile(out, cache=E.Cache(None), **options)(*arrays)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("far", [100.0, 1e4])
def test_a_covariance_far_from_zero(far, shared):
    x = E.input("x", (200, 16))
    data = (RANDOM.standard_normal((200, 16)) + far).astype(np.float32)

    def apart() -> E.Tensor:
        return x - E.mean(x, axis=0, keepdims=True)

    one = apart()
    other = one if shared else apart()
    wide = data.astype("d") - data.astype("d").mean(0)
    found = ran(one.mT @ other, data)
    assert np.abs(found - wide.T @ wide).max() < 200 * np.spacing(np.float32(far)) + 1e-3


@pytest.mark.parametrize("size", [1e4, 1e7])
def test_rows_of_a_softmax_of_large_logits_sum_to_one(size):
    x, w = E.input("x", (16, 128)), E.input("w", (128, 32))
    data = np.zeros((16, 128), np.float32)
    data[:, 0] = size
    total = ran(E.softmax(x @ w), data, np.ones((128, 32), np.float32)).sum(1)
    np.testing.assert_allclose(total, 1, rtol=1e-5)


def test_padding_beside_a_finite_mask():
    s, padding, i = E.input("s", (6, 6)), E.input("padding", (6,)), E.arange(6)
    out = E.softmax(E.where(i[:, None] >= i[None, :], s + padding, -1e9))
    none = np.where(np.arange(6) < 2, -np.inf, 0).astype(np.float32)
    found = ran(out, np.zeros((6, 6), np.float32), none)
    np.testing.assert_allclose(found[0], [0, 0.2, 0.2, 0.2, 0.2, 0.2], rtol=1e-6)


def test_distances_of_bytes():
    a, b = E.input("a", (64,), "uint8"), E.input("b", (64,), "uint8")
    left, right = (RANDOM.integers(0, 256, 64).astype(np.uint8) for _ in "ab")
    for compared in (lambda d: d < 100, lambda d: d >= 100):
        with np.errstate(over="ignore"):
            expected = compared(np.abs(left - right))
        np.testing.assert_array_equal(ran(compared(E.abs(a - b)), left, right), expected)


def test_integers_that_are_never_zero_are_true():
    x = E.input("x", (8,), "int32")
    truth = E.astype(x % 3 + 2, "bool")
    ones = ran(E.astype(truth, "int32") == 1, np.arange(8, dtype=np.int32))
    assert ones.all()
    assert (ran(E.minimum(E.astype(truth, "int32"), 2), np.arange(8, dtype=np.int32)) == 1).all()


def test_masks_by_fractions_cast_to_integers():
    c, s = E.input("c", (4, 8), "bool"), E.input("s", (4, 8))
    none = E.astype(E.where(c, 0.5, 0.0), "int32") > 0
    out = E.softmax(E.where(none, s, -1e9))
    data = RANDOM.standard_normal((4, 8)).astype(np.float32)
    np.testing.assert_allclose(ran(out, np.ones((4, 8), bool), data), 0.125, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8"])
def test_integers_wrap_where_they_are_compared_too(dtype):
    limits = np.iinfo(dtype)
    x = E.input("x", (64,), dtype)
    most = np.full(64, limits.max, dtype)
    assert not ran(x + 1 > x, most).any()
    assert not ran((x * 2) // 2 == x, most).any()
    assert ran(-x == x, np.full(64, limits.min, dtype)).all()
    assert ran(E.max(x + 1), most) == limits.min


def test_a_half_power_of_negative_zero():
    x = E.input("x", (3,))
    found = ran(1 / x**2.5, np.array([-0.0, 0.0, 4.0], np.float32))
    np.testing.assert_array_equal(found, np.array([np.inf, np.inf, 1 / 32], np.float32))


def test_divisions_are_none_by_reciprocals_where_nothing_else_is_rounded():
    x = E.input("x", (5, 4))
    rows = np.full((5, 4), 1e-40, np.float32)
    rows[:, 1] = 0
    found = ran(x / E.max(x, axis=1, keepdims=True), rows, precision="exact")
    np.testing.assert_array_equal(found, rows / rows.max(1, keepdims=True))
