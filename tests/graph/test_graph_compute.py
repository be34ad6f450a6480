"""`compute`: the GPU puzzles (github.com/srush/GPU-Puzzles) and the limits of index expressions."""

import numpy as np
import pytest

from eqsat import graph
from eqsat.errors import DTypeError, ShapeError, UnsupportedError
from eqsat.graph import compute, max_over, min_over, prod_over, sum_over, where

N = 7
a, b = graph.input("a", (N,)), graph.input("b", (N,))
m, w = graph.input("m", (4, 6)), graph.input("w", (6, 5))
k = graph.input("k", (3,))
rng = np.random.default_rng(5)
VALUES = {
    name: rng.integers(-5, 6, shape).astype("f4")
    for name, shape in {"a": N, "b": N, "m": (4, 6), "w": (6, 5), "k": 3}.items()
}
A, B, M, W, K = (VALUES[name] for name in "abmwk")
WINDOWS = np.lib.stride_tricks.sliding_window_view(np.pad(A, (2, 0)), 3)

PUZZLES = {
    "map": (lambda: compute(N, lambda i: a[i] + 10), A + 10),
    "zip": (lambda: compute(N, lambda i: a[i] + b[i]), A + B),
    "guards": (
        lambda: compute(N + 3, lambda i: where(i < N, a.at(i, fill=0) + 10, 0)),
        np.pad(A + 10, (0, 3)),
    ),
    "map 2d": (lambda: compute((4, 6), lambda i, j: m[i, j] + 10), M + 10),
    "broadcast": (lambda: compute((N, N), lambda i, j: a[i] + b[j]), A[:, None] + B),
    "blocks": (lambda: compute((2, 3), lambda g, t: a[3 * g + t]), A[:6].reshape(2, 3)),
    "shared": (lambda: compute(N, lambda i: a[N - 1 - i]), A[::-1]),
    "pooling": (
        lambda: compute(N, lambda i: sum_over(3, lambda t: a.at(i - t, fill=0))),
        WINDOWS.sum(1),
    ),
    "dot": (lambda: sum_over(N, lambda i: a[i] * b[i]), A @ B),
    "conv1d": (
        lambda: compute(N, lambda i: sum_over(3, lambda t: a.at(i + t, fill=0) * k[t])),
        np.correlate(np.pad(A, (0, 2)), K),
    ),
    "prefix sum": (
        lambda: compute(N, lambda i: sum_over(N, lambda t: where(t <= i, a[t], 0))),
        A.cumsum(),
    ),
    "axis sum": (lambda: compute(4, lambda i: sum_over(6, lambda j: m[i, j])), M.sum(1)),
    "matmul": (
        lambda: compute((4, 5), lambda i, j: sum_over(6, lambda t: m[i, t] * w[t, j])),
        M @ W,
    ),
    "flatten": (lambda: compute(24, lambda i: m[i // 6, i % 6]), M.reshape(-1)),
    "row maximum": (lambda: compute(4, lambda i: max_over(6, lambda j: m[i, j])), M.max(1)),
    "all of it": (lambda: min_over((4, 6), lambda i, j: m[i, j]), M.min()),
    "product": (lambda: prod_over(3, lambda i: k[i]), K.prod()),
    "nested": (
        lambda: compute(
            4,
            lambda i: sum_over(6, lambda t: m[i, t] * max_over(5, lambda j: w[t, j])),
        ),
        M @ W.max(1),
    ),
    "outer value inside": (
        lambda: compute(4, lambda i: sum_over(6, lambda t: (m[i, t] - m[i, 0]) ** 2)),
        ((M - M[:, :1]) ** 2).sum(1),
    ),
    "from the end": (lambda: compute(4, lambda i: m[i, -1]), M[:, -1]),
    "a function": (lambda: compute(N, lambda i: graph.exp(a[i])), np.exp(A)),
    "one row": (lambda: compute((1, N), lambda i, j: a[3 * i + j]), A[None]),
}  # fmt: skip


@pytest.mark.parametrize("name", PUZZLES)
def test_puzzles(name):
    write, expected = PUZZLES[name]
    node = write()
    (found,) = graph.evaluate([node], VALUES)
    assert found.shape == node.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_matmul_is_the_same_primitives():
    node = compute((4, 5), lambda i, j: sum_over(6, lambda t: m[i, t] * w[t, j]))
    assert [node.op, node.operands[0].op] == ["reduce_sum", "mul"]
    views = node.operands[0].operands
    assert [[str(c) for c in v.attributes["coordinates"]] for v in views] == [
        ["i1", "i0"], ["i0", "i2"],
    ]  # fmt: skip


def test_indices_are_values():
    node = compute((3, 4), lambda i, j: 2 * i - j // 2 + (i + j) % 3 + i * j - (-i))
    i, j = np.indices((3, 4))
    expected = 2 * i - j // 2 + (i + j) % 3 + i * j + i
    np.testing.assert_array_equal(graph.evaluate([node], {})[0], expected)
    assert node.dtype.name == "int64"
    half = compute(4, lambda i: graph.astype(i, "float32") * 0.5, dtype="float16")
    assert graph.evaluate([half], {})[0].tolist() == [0, 0.5, 1, 1.5]
    flags = compute((3, 3), lambda i, j: (i == j) | (i > 1) & (j != 0) | (i + 2 <= j))
    i, j = np.indices((3, 3))
    expected = (i == j) | (i > 1) & (j != 0) | (i + 2 <= j)
    np.testing.assert_array_equal(graph.evaluate([flags], {})[0], expected)
    reverse = compute(3, lambda i: (5 - i) + 7 // (i + 1) + 7 % (i + 1))
    i = np.arange(3)
    expected = 5 - i + 7 // (i + 1) + 7 % (i + 1)
    np.testing.assert_array_equal(graph.evaluate([reverse], {})[0], expected)
    assert graph.evaluate([compute((2, 2), lambda i, j: 3.0)], {})[0].tolist() == [[3, 3], [3, 3]]


def test_reads_at_values_are_gathers():
    order = graph.input("order", (4,), "int32")
    at = np.array([3, 0, -1, 2], "i4")
    node = compute((4, 6), lambda i, j: m[order[i], j])
    (found,) = graph.evaluate([node], {**VALUES, "order": at})
    np.testing.assert_array_equal(found, M[at])
    inner = compute(4, lambda i: sum_over(6, lambda j: m[order[i], j] * m[i, j]))
    (found,) = graph.evaluate([inner], {**VALUES, "order": at})
    np.testing.assert_allclose(found, (M[at] * M).sum(1))
    within = compute(5, lambda j: sum_over(4, lambda i: w[order[i], j]))
    (found,) = graph.evaluate([within], {**VALUES, "order": at})
    np.testing.assert_allclose(found, W[at].sum(0))


def test_reads_that_leave_the_tensor_are_refused():
    with pytest.raises(ShapeError, match=r"reads positions 1 to 7 on axis 0 of a .*has 7. Use .at"):
        compute(N, lambda i: a[i + 1])
    with pytest.raises(ShapeError, match="reads positions -1 to 5"):
        compute(N, lambda i: a[i - 1])
    with pytest.raises(ShapeError, match="index: 6 is outside axis 1"):
        compute(4, lambda i: m[i, 6])
    # Proved by trying every position, where intervals are too wide.
    assert compute(N, lambda i: a[i - 2 * (i // 2)]).shape == (N,)


def test_misuse_is_refused():
    leaked = []
    compute(N, lambda i: leaked.append(i) or a[i])
    order = graph.input("order", (4, 2, 2), "int32")
    for call, message in [
        (lambda: compute(N, lambda j: a[leaked[0]]), "outside the lambda that it was handed to"),
        (lambda: compute(N, lambda j: a[j + leaked[0]]), "two separate lambdas"),
        (lambda: leaked[0].value(), "outside the lambda"),
        (lambda: compute(4, lambda i: m[i]), "1 indices read m .* Give one for each of its 2"),
        (lambda: compute(3, lambda i: a), r"the body gave a float32\[7\] over the index space \(3"),
        (lambda: compute(3, lambda i: compute(2, lambda j: a[j])), "inside another compute"),
        (lambda: compute(N, lambda i: a[i // 0]), "divisors are positive"),
        (lambda: compute(4, lambda i: m[order, i]), "is no value over the index space"),
        (lambda: compute(4, lambda i: m.at(order[i, 0, 0], i, fill=0)), "takes no fill"),
        (lambda: compute(4, lambda i: graph.zeros((4, 4, 4))[order[i, 0, 0], order[i, 1, 1], i]),
         "at 2 tensor values"),
    ]:  # fmt: skip
        with pytest.raises((ShapeError, DTypeError), match=message):
            call()
    with pytest.raises(UnsupportedError, match=r"truth value of equal|truth value of greater"):
        compute(N, lambda i: a[i] if i > 2 else 0)
    with pytest.raises(UnsupportedError, match=r"truth value of the index"):
        compute(N, lambda i: a[i] if i else 0)
    with pytest.raises(DTypeError, match=r"is no index"):
        compute(4, lambda i: m[i, 1.5])
    with pytest.raises(DTypeError, match=r"does not take the dtype int64"):
        compute(N, lambda i: i * 0.5)


@pytest.mark.parametrize("name", ["sum_over", "prod_over", "max_over", "min_over"])
def test_a_wrong_extent_is_told_by_the_function_called(name):
    over = getattr(graph, name)
    with pytest.raises(ShapeError, match=rf"^{name}: shape \(-1,\) has the extent -1"):
        over(-1, lambda k: k)
    if name in ("max_over", "min_over"):
        with pytest.raises(ShapeError, match=rf"^{name}: axis 0 of .* is empty"):
            compute(3, lambda i: over(0, lambda k: i + k))


def test_an_index_is_a_value_in_every_operation():
    i = np.arange(6)
    for body in (
        lambda i: i**2,
        lambda i: 2**i,
        lambda i: (i << 1) + (1 << i),
        lambda i: (i >> 1) + (64 >> i),
        lambda i: (i & 3) + (5 & i),
        lambda i: (i | 4) + (1 | i),
        lambda i: (i ^ 3) + (5 ^ i),
        lambda i: ~i,
        lambda i: abs(i - 3),
        lambda i: divmod(i, 4)[0] + divmod(i, 4)[1],
        lambda i: divmod(7, i + 1)[0] + divmod(7, i + 1)[1],
        lambda i: np.int64(2) * i + np.int64(1),
    ):
        (found,) = graph.evaluate([graph.compute(6, body)], {})
        np.testing.assert_array_equal(found, body(i))
    v = graph.input("v", (6,))
    assert graph.compute(6, lambda i: v[+i]).shape == (6,)
    with pytest.raises(DTypeError, match="div: takes floating dtypes"):
        graph.compute(6, lambda i: 1 / i)
