"""Loops in ranges: where guards hold at all points, and chunks that masks leave anything of."""

import numpy as np
import pytest

import eqsat
from eqsat.cache.store import Cache
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")

RNG = np.random.default_rng(0)
BETWEEN = "for side"  # the loop over points near one end, and near the other


def compiled(output: eqsat.Tensor) -> eqsat.Program:
    return eqsat.compile(output, load("cpu"), cache=Cache(None))


@pytest.mark.parametrize("size", [3, 15, 16, 40])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (5, 0), (0, 9), (60, 60)])
def test_padding(size: int, before: int, after: int) -> None:
    x = RNG.standard_normal((4, size)).astype(np.float32)
    program = compiled(eqsat.pad(eqsat.input("x", x.shape), [(0, 0), (before, after)]) * 2.0)
    expected = np.pad(x, [(0, 0), (before, after)]) * np.float32(2)
    np.testing.assert_array_equal(program(x), expected)
    long = size + before + after >= 16
    assert (BETWEEN in program.source()) == long


@pytest.mark.parametrize("step", [-2, -1, 2, 3])
def test_steps_of_either_sign(step: int) -> None:
    x = RNG.standard_normal((3, 50)).astype(np.float32)
    padded = eqsat.pad(eqsat.input("x", x.shape), [(0, 0), (7, 8)])
    program = compiled(padded[:, ::step] + 1.0)
    expected = np.pad(x, [(0, 0), (7, 8)])[:, ::step] + np.float32(1)
    np.testing.assert_array_equal(program(x), expected)
    assert BETWEEN in program.source()


@pytest.mark.parametrize(
    ("layout", "stride", "dilation", "width"),
    [
        pytest.param("NCHW", 1, 1, 40, marks=pytest.mark.slow),
        ("NCHW", 2, 1, 41),
        pytest.param("NCHW", 1, 3, 17, marks=pytest.mark.slow),
        ("NHWC", 1, 1, 24),
    ],
)
def test_each_channel_by_itself(layout: str, stride: int, dilation: int, width: int) -> None:
    """Taps at either end of a row are outside; those between are read in vectors."""
    channels = 24
    shape = (2, channels, 9, width) if layout == "NCHW" else (2, 9, width, channels)
    x = RNG.standard_normal(shape).astype(np.float32)
    w = RNG.standard_normal((channels, 1, 3, 3)).astype(np.float32)
    names = eqsat.input("x", shape), eqsat.input("w", w.shape)
    options = {"stride": stride, "padding": dilation, "dilation": dilation, "groups": channels}
    program = compiled(eqsat.conv(*names, layout=layout, **options))
    image = x if layout == "NCHW" else x.transpose(0, 3, 1, 2)
    padded = np.pad(image.astype(np.float64), [(0, 0)] * 2 + [(dilation, dilation)] * 2)
    rows, columns = ((size - 1) // stride + 1 for size in image.shape[2:])

    def tap(i: int, j: int) -> np.ndarray:
        down, across = (
            slice(at * dilation, at * dilation + (count - 1) * stride + 1, stride)
            for at, count in ((i, rows), (j, columns))
        )
        return w[:, 0, i, j, None, None] * padded[:, :, down, across]

    expected = sum(tap(i, j) for i in range(3) for j in range(3))
    found = program(x, w)
    found = found if layout == "NCHW" else found.transpose(0, 3, 1, 2)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert (BETWEEN in program.source()) == (layout == "NCHW")


def test_a_running_sum_keeps_its_order() -> None:
    x = RNG.standard_normal((5, 30)).astype(np.float32)
    padded = eqsat.pad(eqsat.input("x", x.shape), [(0, 0), (3, 4)])
    program = compiled(eqsat.cumulative_sum(padded, axis=1))
    expected = np.cumsum(np.pad(x, [(0, 0), (3, 4)]), axis=1, dtype=np.float32)
    np.testing.assert_allclose(program(x), expected, rtol=1e-5, atol=1e-5)
    assert BETWEEN not in program.source()


def attention(rows: int, keys: int, mask) -> tuple[eqsat.Program, np.ndarray, list[np.ndarray]]:
    """Two heads of 32, with what it should give."""
    q, k, v = (
        RNG.standard_normal((2, n, 32)).astype(np.float32) for n in (rows, keys, keys)
    )  # fmt: skip
    left, right = eqsat.expand_dims(eqsat.arange(rows), 1), eqsat.arange(keys)
    names = [eqsat.input(name, array.shape) for name, array in zip("qkv", (q, k, v), strict=True)]
    scores = names[0] @ eqsat.permute_dims(names[1], (0, 2, 1)) * 0.2
    held = eqsat.where(mask(left, right), scores, -np.inf)
    program = compiled(eqsat.softmax(held, axis=-1) @ names[2])
    exact = q.astype(np.float64) @ k.transpose(0, 2, 1) * 0.2
    exact = np.where(mask(np.arange(rows)[:, None], np.arange(keys)), exact, -np.inf)
    weights = np.exp(exact - exact.max(-1, keepdims=True))
    return program, weights / weights.sum(-1, keepdims=True) @ v, [q, k, v]


MASKS = {
    "causal": lambda i, j: i >= j,
    "anticausal": lambda i, j: i <= j,
    "window": lambda i, j: (i >= j) & (j > i - 90),
}


@pytest.mark.parametrize(
    ("name", "rows", "keys"),
    [
        ("causal", 512, 512),
        ("window", 300, 300),
        ("anticausal", 300, 400),
        pytest.param("causal", 400, 300, marks=pytest.mark.slow),
        pytest.param("window", 512, 512, marks=pytest.mark.slow),
        pytest.param("anticausal", 512, 512, marks=pytest.mark.slow),
    ],
)
def test_chunks_that_a_mask_leaves_nothing_of_are_skipped(name: str, rows: int, keys: int) -> None:
    program, expected, arrays = attention(rows, keys, MASKS[name])
    np.testing.assert_allclose(program(*arrays), expected, rtol=1e-4, atol=1e-5)
    streams = {axis for k in program.kernels for phase in k.phases for axis in phase.stream}
    (axis,) = streams
    assert axis.count > 1 and f"in range(0, {axis.count})" not in program.source()
    poisoned = arrays[2].copy()  # the last keys of the first rows are not looked at
    poisoned[:, -1 if name != "anticausal" else 0] = np.nan
    found = program(arrays[0], arrays[1], poisoned)
    far = slice(0, 40) if name != "anticausal" else slice(rows - 40, rows)
    np.testing.assert_allclose(found[:, far], expected[:, far], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_nothing_is_left_out_without_a_mask() -> None:
    program, expected, arrays = attention(256, 256, lambda i, j: i + j >= 0)
    np.testing.assert_allclose(program(*arrays), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 100_000), (3, 100, 1003), (3, 8193), (3, 5, 20_001)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_long_sum_of_alike_numbers_keeps_its_digits(shape: tuple[int, ...], dtype: str) -> None:
    """One after the other, each would be rounded to what the sum is by then: 2e-4 of a million."""
    x = eqsat.input("x", shape, dtype)
    axes = tuple(range(1, len(shape)))
    wide = eqsat.astype(x, "float32")
    outputs = [eqsat.sum(wide, axis=axes), eqsat.mean(eqsat.square(wide), axis=axes)]
    given = np.full(shape, 0.1, dtype)
    sums, squares = eqsat.compile(outputs, load("cpu"), cache=Cache(None))(given)
    wanted = given.astype(np.float64).reshape(3, -1)
    np.testing.assert_allclose(sums, wanted.sum(1), rtol=4e-6)
    np.testing.assert_allclose(squares, (wanted**2).mean(1), rtol=4e-6)
