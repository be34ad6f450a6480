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


def offset(kind: str, x: E.Tensor, w: E.Tensor, r: E.Tensor) -> E.Tensor:
    """Sums of differences from numbers near all of x."""
    return {
        "number": lambda: (x - 1000.0) @ w,
        "row": lambda: (x - r) @ w,
        "mean": lambda: E.mean(x + (-r), axis=1),
        "entropy": lambda: E.sum(E.softmax(x) * E.log_softmax(x), axis=1),
    }[kind]()


@pytest.mark.parametrize("kind", ["number", "row", "mean", "entropy"])
@pytest.mark.parametrize("precision", ["exact", "default"])
def test_differences_from_numbers_near_by_keep_their_digits(kind, precision):
    shapes = {"x": (30, 40), "w": (40, 7), "r": (30, 1)}
    x, w, r = (E.input(name, shape) for name, shape in shapes.items())
    data = (1000 + 0.01 * RANDOM.standard_normal((30, 40))).astype(np.float32)
    weights = RANDOM.standard_normal((40, 7)).astype(np.float32)
    every = {"x": data, "w": weights, "r": np.full((30, 1), 1000, np.float32)}
    out = offset(kind, x, w, r)
    (wanted,) = E.evaluate([out], every, np.float64)
    program = E.compile(out, cache=E.Cache(None), precision=precision)
    found = program(**{a.name: every[a.name] for a in program.arguments})
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_a_mirrored_window_beside_a_sum_over_its_names_is_stored_as_it_is():
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    x = E.input("x", data.shape)
    z = E.compute((3, 4), lambda i, j: x.at(i, i - j, fill=0.0)) + x
    found, _ = E.compile((z, E.sum(x * x)), cache=E.Cache(None))(data)
    np.testing.assert_array_equal(found, E.evaluate([z], {"x": data})[0])


def test_positions_beside_long_integers_are_as_long():
    data = np.array([[1 << 40], [-(1 << 40)], [(1 << 32) + 1]])
    x = E.input("x", data.shape, "int64")
    for one in (E.arange(3) < x, E.arange(3) == x, E.where(E.arange(3) < x, 1.0, 0.0)):
        np.testing.assert_array_equal(ran(one, data), E.evaluate([one], {"x": data})[0])


def test_sums_of_short_integers_that_wrap_have_the_range_of_their_dtype():
    data = np.arange(10) % 2 == 0
    c = E.input("c", (10,), "bool")
    e = E.where(c, E.constant(np.int8(100)), E.constant(np.int8(99)))
    out = (E.astype(e + e, "int64") - 198) * (1 << 24)
    np.testing.assert_array_equal(ran(out, data), E.evaluate([out], {"c": data})[0])


@pytest.mark.parametrize("find", [E.take, E.searchsorted])
def test_positions_are_looked_up(find):
    at = np.array([0, 3, 3, 4])
    np.testing.assert_array_equal(ran(find(E.arange(5), E.input("i", (4,), "int64")), at), at)
