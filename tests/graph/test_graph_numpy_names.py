"""split, one_hot, kron, cross, median, quantile and round to decimals, against NumPy."""

import numpy as np
import pytest
from finite_differences import check

import eqsat.graph as g
from eqsat.errors import ArgumentError, DTypeError, EqsatError, ShapeError

RNG = np.random.default_rng(11)
x = g.input("x", (5, 6))
flags = x > 0


def value(tensor: g.Tensor) -> np.ndarray:
    return g.evaluate([tensor], {})[0]


def numbers(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    return (RNG.normal(size=shape) * 9).astype(dtype)


@pytest.mark.parametrize("axis", [0, 1, -1, np.int64(-2)])
@pytest.mark.parametrize(
    "sections",
    [1, 2, 3, 4, 7, [2, 4], (4, 2), [-1], [0, 100], [], np.array([1, 3]), np.int64(2)],
    ids=repr,
)
def test_split_gives_numpys_parts(sections, axis) -> None:
    a = numbers((5, 6))
    expected = np.array_split(a, sections, axis)
    found = g.array_split(a, sections, axis)
    assert isinstance(found, list) and len(found) == len(expected)
    for one, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(value(one), wanted)
    if np.ndim(sections) or a.shape[axis] % sections == 0:
        for one, wanted in zip(g.split(a, sections, axis), expected, strict=True):
            np.testing.assert_array_equal(value(one), wanted)


@pytest.mark.parametrize("count", [0, 1, 3, 300])
@pytest.mark.parametrize("indices", [2, [1, 0, 2], [[0], [2]], np.array([2, 1], np.int8), []])
def test_one_hot_is_rows_of_the_identity(indices, count: int) -> None:
    index = np.asarray(indices, np.int64)
    expected = (index[..., None] == np.arange(count)).astype("f")
    np.testing.assert_array_equal(value(g.one_hot(indices, count)), expected)
    for dtype in ("bool", "int8", "bfloat16", "float64"):
        assert g.one_hot(indices, count, dtype).dtype.name == dtype


def test_indices_outside_are_in_no_position() -> None:
    assert not value(g.one_hot([-1, 3], 3)).any()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
@pytest.mark.parametrize(
    ("first", "second"),
    [((2,), (3,)), ((2, 3), (4, 5)), ((2, 3), (4,)), ((3,), (2, 1, 2)), ((), (2, 3)),
     ((2, 0), (3,))],
)  # fmt: skip
def test_kron(first, second, dtype: str) -> None:
    a, b = abs(numbers(first)).astype(dtype), abs(numbers(second)).astype(dtype)
    found = value(g.kron(a, b))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.kron(a, b))


def test_kron_takes_numbers() -> None:
    np.testing.assert_array_equal(value(g.kron(2, np.ones(2, "f"))), [2, 2])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize(
    ("first", "second", "axis"),
    [((3,), (3,), -1), ((4, 3), (3,), -1), ((4, 1, 3), (5, 3), -1), ((3, 4), (3, 1), -2),
     ((0, 3), (3,), -1)],
)  # fmt: skip
def test_cross(first, second, axis: int, dtype: str) -> None:
    a, b = numbers(first, dtype), numbers(second, dtype)
    found = value(g.cross(a, b, axis=axis))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.cross(a, b, axis=axis))


def test_products_of_narrow_floats_are_rounded_once() -> None:
    a, b = (numbers((4, 3), "float16") for _ in range(2))
    wide = [one.astype("f") for one in (a, b)]
    np.testing.assert_array_equal(value(g.cross(a, b)), np.cross(*wide).astype("float16"))
    np.testing.assert_array_equal(value(g.kron(a, b)), np.kron(*wide).astype("float16"))


AXES = [((5,), None), ((6,), 0), ((3, 4), -1), ((3, 4), 0), ((2, 3, 5), (0, -1)), ((2, 3, 4), 1),
        ((2, 3), None), ((), None), ((1, 4), (0,)), ((4, 1), 1)]  # fmt: skip


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shape", "axis"), AXES, ids=repr)
def test_median_and_quantile(shape, axis, dtype: str, keepdims: bool) -> None:
    a = numbers(shape, dtype)
    for b in (a, np.round(a), np.where(a > 9, np.nan, a).astype(dtype)):
        found = value(g.median(b, axis, keepdims))
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.median(b, axis=axis, keepdims=keepdims))
        for q in (0, 0.3, 1.0, [0.1, 0.9], np.array([[0.0, 0.25], [0.5, 1.0]])):
            expected = np.quantile(b, q, axis=axis, keepdims=keepdims)
            found = value(g.quantile(b, q, axis, keepdims))
            assert found.dtype == dtype and found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_the_ends_of_infinite_elements_are_infinite() -> None:
    a = np.array([np.inf, 1.0, -np.inf])
    np.testing.assert_array_equal(value(g.quantile(a, [0, 0.5, 1])), [-np.inf, 1, np.inf])


def test_a_median_of_narrow_floats_is_rounded_once() -> None:
    a = numbers((4, 6), "float16")
    expected = np.median(a.astype("f"), axis=1).astype("float16")
    np.testing.assert_array_equal(value(g.median(a, 1)), expected)


@pytest.mark.parametrize("decimals", [-2, -1, 0, 1, 2, np.int64(3)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64", "uint8"])
def test_round_to_decimals(dtype: str, decimals: int) -> None:
    a = np.concatenate([abs(numbers((40,))), [0.5, 1.5, 2.5, 0.05, 0.15, 15, 25, 35]]).astype(dtype)
    wide = a.astype("f") if dtype == "float16" else a
    found = value(g.round(a, decimals))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.round(wide, decimals).astype(dtype))


def test_gradients_of_what_is_composed() -> None:
    a, b = (RNG.permutation(12).reshape(4, 3) / 7.0 for _ in range(2))
    check(lambda s, t: g.kron(s, t), a=a, b=b[:2])
    check(lambda s, t: g.cross(s * t, t), a=a, b=b)
    check(lambda s: tuple(g.split(s * s, [1, 3])), a=a)
    check(lambda s: tuple(g.array_split(s * s, 2, 1)), a=a)
    check(lambda s: g.median(s * s, 0), a=a)
    check(lambda s: g.median(s), a=a)
    check(lambda s: g.quantile(s * s, [0.1, 0.8], 1), a=a)
    check(lambda s: g.round(s, 1) * s, a=a)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: g.split(x, 4, 1), ShapeError, r"the 6 positions of axis 1 of x .* or array_split"),
        (lambda: g.split(x, 0), ShapeError, r"split: 0 sections of x float32\[5, 6\]\. Use 1 or"),
        (lambda: g.array_split(x, -1), ShapeError, "array_split: -1 sections"),
        (lambda: g.split(x, 2.5), ShapeError, r"the number of sections 2\.5 of x .* no integer"),
        (lambda: g.split(x, [1.5]), ShapeError, r"split: the position 1\.5 of x"),
        (lambda: g.split(x, 2, 2), ShapeError, "split: axis 2 is outside x"),
        (lambda: g.split(x, x), EqsatError, "has no value yet"),
        (lambda: g.one_hot(x, 3), DTypeError, "one_hot: indices: x .* is not integer"),
        (lambda: g.one_hot([1], -1), ShapeError, "one_hot: shape .* has the extent -1"),
        (lambda: g.one_hot([1], 2.0), ShapeError, r"one_hot: count 2\.0 is no integer"),
        (lambda: g.kron(flags, flags), DTypeError, "kron: takes numeric dtypes"),
        (lambda: g.kron(x, [1, 2]), DTypeError, "kron.* no common dtype for float32 and int64"),
        (lambda: g.cross(x, x), ShapeError, "cross: axis -1 of x .* has 6 positions, not 3"),
        (lambda: g.cross(x, x, axis=0), ShapeError, "Count it from the right"),
        (lambda: g.cross(x, x, axis=-3), ShapeError, "cross: axis -3 is outside x"),
        (lambda: g.cross(flags[:, :3], flags[:, :3]), DTypeError, "cross: takes numeric dtypes"),
        (lambda: g.cross(x[:2, :3], x[:3, :3]), ShapeError, "cross: .* do not broadcast"),
        (lambda: g.median(g.zeros((2, 0)), 1), ShapeError, r"median: over axes \(1,\) of .* Use 1"),
        (lambda: g.median(g.zeros(3, "int8")), DTypeError, "median: takes floating dtypes, got"),
        (lambda: g.median(x, 2), ShapeError, "median: axis 2 is outside x"),
        (lambda: g.quantile(x, 1.5), ArgumentError, r"quantile: q is 1\.5\. Give a number from 0"),
        (lambda: g.quantile(x, [0.1, float("nan")]), ArgumentError, "quantile: q is"),
        (lambda: g.quantile(x, x), ArgumentError, "quantile: q is x float32"),
        (lambda: g.quantile(x, "a"), ArgumentError, "quantile: q is a"),
        (lambda: g.round(x, 39), ArgumentError, "round: x .* powers of 10 up to 38. Use -38"),
        (lambda: g.round(x, 1.5), ShapeError, r"round: decimals 1\.5 is no integer"),
        (lambda: g.round(flags, 1), DTypeError, "round: takes floating dtypes"),
    ],
)  # fmt: skip
def test_errors(call, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call()
