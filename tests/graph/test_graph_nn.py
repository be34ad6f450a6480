"""The compositions of neural networks against float64 formulae written here with NumPy alone."""

import math

import numpy as np
import pytest

from eqsat import graph
from eqsat.errors import DTypeError, ShapeError
from eqsat.graph.evaluate import topological

rng = np.random.default_rng(3)
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def given(name, shape, dtype="float64", low=-3.0, high=3.0):
    node = graph.input(name, shape, dtype)
    return node, rng.uniform(low, high, shape).astype(node.dtype.numpy)


def agree(node, inputs, expected, dtype="float64"):
    (found,) = graph.evaluate([node], inputs)
    assert found.dtype == node.dtype.numpy and found.shape == node.shape
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(found.astype("f8"), expected, rtol=tolerance, atol=tolerance)


def np_softmax(x, axis=-1):
    weights = np.exp(x - x.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


def np_sigmoid(x):
    return 1 / (1 + np.exp(-x))


def np_gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def np_gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def np_layer_norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


POINTWISE = [
    (graph.relu, lambda x: np.maximum(x, 0)),
    (graph.sigmoid, np_sigmoid),
    (graph.silu, lambda x: x * np_sigmoid(x)),
    (graph.gelu, np_gelu),
    (lambda x: graph.gelu(x, "tanh"), np_gelu_tanh),
    (graph.softmax, np_softmax),
    (lambda x: graph.softmax(x, 0), lambda x: np_softmax(x, 0)),
    (graph.log_softmax, lambda x: np.log(np_softmax(x))),
    (lambda x: graph.logsumexp(x, 1), lambda x: np.log(np.exp(x).sum(1))),
    (lambda x: graph.logsumexp(x, keepdims=True), lambda x: np.log(np.exp(x).sum(keepdims=True))),
    (graph.layer_norm, np_layer_norm),
    (graph.rms_norm, lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)),
    (graph.mean, np.mean),
    (lambda x: graph.var(x, 0, correction=1), lambda x: x.var(0, ddof=1)),
    (lambda x: graph.std(x, -1, keepdims=True), lambda x: x.std(-1, keepdims=True)),
]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", range(len(POINTWISE)))
def test_on_a_matrix(case, dtype):
    function, formula = POINTWISE[case]
    x, a = given("x", (5, 33), dtype)
    agree(function(x), {"x": a}, formula(a.astype("f8")), dtype)


def test_extreme_values():
    x = graph.input("x", (3, 2), "float32")
    a = np.array([[1e4, -1e4], [-np.inf, 0], [-np.inf, -np.inf]], "f4")
    soft, total = graph.evaluate([graph.softmax(x), graph.logsumexp(x, -1)], {"x": a})
    np.testing.assert_array_equal(soft[:2], [[1, 0], [0, 1]])
    assert np.isnan(soft[2]).all()
    np.testing.assert_array_equal(total, [1e4, 0, -np.inf])
    y = graph.input("y", (1000,), "float16")
    (spread,) = graph.evaluate([graph.var(y)], {"y": np.linspace(300, 500, 1000).astype("f2")})
    assert spread == pytest.approx(np.linspace(300, 500, 1000).var(), rel=1e-2)


def test_normalisation_parameters():
    x, a = given("x", (4, 6))
    w, b = given("w", (6,))
    c, d = given("c", (6,))
    agree(graph.layer_norm(x, w, c), {"x": a, "w": b, "c": d}, np_layer_norm(a) * b + d)
    with pytest.raises(ShapeError, match=r"weight w .* widens x float64\[6\] to"):
        graph.layer_norm(graph.input("x", (6,), "float64"), graph.input("w", (4, 6), "float64"))


def np_attention(q, k, v, causal=False, mask=None):
    k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    scores = scores if mask is None else scores + mask
    if causal:
        queries, keys = scores.shape[-2:]
        allowed = np.tril(np.ones((queries, keys), bool), keys - queries)
        scores = np.where(allowed, scores, -np.inf)
    return np_softmax(scores) @ v


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(dtype, kv_heads, causal):
    q, a = given("q", (2, 4, 5, 8), dtype, -1, 1)
    k, b = given("k", (2, kv_heads, 7, 8), dtype, -1, 1)
    v, c = given("v", (2, kv_heads, 7, 3), dtype, -1, 1)
    mask, m = given("m", (1, 1, 5, 7), dtype, -1, 1)
    wide = [x.astype("f8") for x in (a, b, c)]
    inputs = {"q": a, "k": b, "v": c, "m": m}
    agree(graph.attention(q, k, v, causal), inputs, np_attention(*wide, causal), dtype)
    masked = graph.attention(q, k, v, causal, mask=mask)
    agree(masked, inputs, np_attention(*wide, causal, m.astype("f8")), dtype)
    kept = m > -0.5
    kept[..., 0] = True
    seen = graph.attention(q, k, v, causal, mask=graph.constant(kept))
    agree(seen, inputs, np_attention(*wide, causal, np.where(kept, 0.0, -np.inf)), dtype)


def test_attention_refuses_what_does_not_fit():
    q, k = graph.input("q", (2, 4, 5, 8)), graph.input("k", (2, 3, 7, 8))
    for call, message in [
        (lambda: graph.attention(q, k, k), "3 kv heads of k .* do not divide the 4 heads of q"),
        (lambda: graph.attention(q, k[..., :4], k), "must agree in the last axis"),
        (lambda: graph.attention(q, q, k), "as many keys"),
        (
            lambda: graph.attention(q, q, q, mask=graph.zeros((5, 6))),
            "does not broadcast to the sc",
        ),
        (lambda: graph.attention(q, q[:, :, :0], q[:, :, :0]), "there are no keys"),
    ]:
        with pytest.raises(ShapeError, match=message):
            call()
    with pytest.raises(DTypeError, match="attention mask: takes floating dtypes"):
        graph.attention(q, q, q, mask=graph.ones((5, 5), "int32"))


def np_conv(x, w, stride, padding, dilation, groups):
    """Position by position, channels first."""
    rank = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *[(padding, padding)] * rank])
    spans = [dilation * (k - 1) + 1 for k in w.shape[2:]]
    sizes = [(n - span) // stride + 1 for n, span in zip(x.shape[2:], spans, strict=True)]
    result = np.zeros((x.shape[0], w.shape[0], *sizes))
    each = w.shape[0] // groups
    for at in np.ndindex(*sizes):
        window = tuple(
            slice(i * stride, i * stride + span, dilation)
            for i, span in zip(at, spans, strict=True)
        )
        for o in range(w.shape[0]):
            first = o // each * w.shape[1]
            patch = x[(slice(None), slice(first, first + w.shape[1]), *window)]
            result[(slice(None), o, *at)] = (patch * w[o]).reshape(len(x), -1).sum(1)
    return result


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    "rank, stride, padding, dilation, groups",
    [(1, 1, 0, 1, 1), (2, 1, 1, 1, 1), (2, 2, 1, 1, 2), (2, 1, 2, 2, 4), (3, 2, 0, 1, 2),
     (1, 3, 4, 2, 4)],
)  # fmt: skip
def test_conv(layout, rank, stride, padding, dilation, groups):
    size = (9, 7, 5)[:rank]
    x, a = given("x", (2, 4, *size))
    w, b = given("w", (8, 4 // groups, *(3, 2, 3)[:rank]))
    bias, c = given("bias", (8,))
    inputs = {"x": a, "w": b, "bias": c}
    expected = np_conv(a, b, stride, padding, dilation, groups) + c.reshape(-1, *[1] * rank)
    if layout == "NHWC":
        x = graph.input("x", (2, *size, 4), "float64")
        inputs["x"], expected = np.moveaxis(a, 1, -1), np.moveaxis(expected, 1, -1)
    node = graph.conv(x, w, bias, stride, padding, dilation, groups, layout)
    agree(node, inputs, expected)
    assert node.label == "conv"


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("window", [1, 2, 3, 4])
@pytest.mark.parametrize("stride, padding, more, dilation, groups", [
    (1, 0, 0, 1, 1), (2, 1, 1, 1, 1), (3, 1, 0, 2, 2), (2, 0, 1, 2, 4), (3, 1, 2, 1, 2),
])  # fmt: skip
def test_conv_transpose_adds_each_position_to_a_window(
    layout, window, stride, padding, more, dilation, groups
):
    x, a = given("x", (2, 4, 3, 5))
    w, b = given("w", (4, 3, window, window))
    bias, c = given("bias", (3 * groups,))
    span = dilation * (window - 1) + 1
    full = np.zeros((2, 3 * groups, *(stride * (n - 1) + span + more for n in (3, 5))))
    each = 4 // groups
    for i, j, r, s, q in np.ndindex(3, 5, window, window, groups):
        own, out = slice(q * each, (q + 1) * each), slice(3 * q, 3 * q + 3)
        at = (i * stride + r * dilation, j * stride + s * dilation)
        full[:, out, *at] += a[:, own, i, j] @ b[own, :, r, s]
    height, width = full.shape[2:]
    expected = full[:, :, padding : height - padding, padding : width - padding]
    expected = expected + c[:, None, None]
    inputs = {"x": a, "w": b, "bias": c}
    if layout == "NHWC":
        x = graph.input("x", (2, 3, 5, 4), "float64")
        inputs["x"], expected = np.moveaxis(a, 1, -1), np.moveaxis(expected, 1, -1)
    node = graph.conv_transpose(x, w, bias, stride, padding, more, dilation, groups, layout)
    agree(node, inputs, expected)
    assert node.label == "conv_transpose"


def test_conv_transpose_refuses_what_does_not_fit():
    x, w = graph.ones((1, 4, 5, 5)), graph.ones((4, 2, 3, 3))
    for call, message in (
        (lambda: graph.conv_transpose(x, w[:2]), "has 4 channels, weight .* takes 2 in 1 groups"),
        (lambda: graph.conv_transpose(x, w, groups=3), "Groups must divide the channels evenly"),
        (lambda: graph.conv_transpose(x, w[0]), r"Use \(channels, out channels / groups, \*window"),
        (
            lambda: graph.conv_transpose(x, w, padding=4),
            "gives spatial extents .* Use less padding",
        ),
        (lambda: graph.conv_transpose(x, w, output_padding=-1), "output_padding -1 for 2 spatial"),
        (lambda: graph.conv_transpose(x, w, graph.ones((5,))), "for 2 output channels"),
    ):
        with pytest.raises(ShapeError, match=message):
            call()


def test_conv_in_16_bits_and_named_padding():
    x, a = given("x", (1, 3, 8, 8), "bfloat16")
    w, b = given("w", (4, 3, 3, 3), "bfloat16", -0.5, 0.5)
    node = graph.conv(x, w, padding="same")
    assert node.shape == (1, 4, 8, 8)
    expected = np_conv(a.astype("f8"), b.astype("f8"), 1, 1, 1, 1)
    agree(node, {"x": a, "w": b}, expected, "bfloat16")
    assert graph.conv(x, w, padding="same", stride=3).shape == (1, 4, 3, 3)
    assert graph.conv(x, w, padding="valid").shape == (1, 4, 6, 6)
    assert graph.conv(x, w, padding=[(0, 1), 2]).shape == (1, 4, 7, 10)


def test_conv_refuses_what_does_not_fit():
    x, w = graph.input("x", (1, 4, 8, 8)), graph.input("w", (6, 4, 3, 3))
    for call, message in [
        (lambda: graph.conv(x, w, groups=2), "has 4 channels, weight w .* takes 4 in each of 2 gr"),
        (lambda: graph.conv(x, w, stride=0), "stride 0 for 2 spatial axes"),
        (lambda: graph.conv(x, w, padding=-1), "padding -1 for 2 spatial axes"),
        (lambda: graph.conv(x, w, padding="full"), 'Use "same", "valid" or numbers'),
        (
            lambda: graph.conv(x, w, dilation=4),
            "window of 9 positions on spatial axis 0 exceeds the",
        ),
        (lambda: graph.conv(x, w[0], layout="NCHW"), "which has 2 spatial axes"),
        (lambda: graph.conv(x, w, graph.ones((5,))), "for 6 output channels"),
        (lambda: graph.conv(x, w, layout="HWC"), 'Use "NCHW" or "NHWC"'),
        (lambda: graph.max_pool(x[0, 0], 2), "at least one spatial axis"),
        (lambda: graph.avg_pool(x, (2, 2, 2)), "window .2, 2, 2. for 2 spatial axes"),
    ]:
        with pytest.raises(ShapeError, match=message):
            call()


def test_pooling():
    x, a = given("x", (2, 3, 7, 6))
    blocks = a[:, :, :6, :6].reshape(2, 3, 3, 2, 3, 2)
    agree(graph.max_pool(x, 2), {"x": a}, blocks.max((3, 5)))
    agree(graph.avg_pool(x, 2), {"x": a}, blocks.mean((3, 5)))
    padded = np.pad(a, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    agree(graph.max_pool(x, 3, 2, 1), {"x": a}, np.nanmax(windows, (-1, -2)))
    agree(graph.avg_pool(x, 3, 2, 1), {"x": a}, np.nansum(windows, (-1, -2)) / 9)
    inside = graph.avg_pool(x, 3, 2, 1, count_padding=False)
    agree(inside, {"x": a}, np.nanmean(windows, (-1, -2)))
    last = graph.max_pool(graph.permute_dims(x, (0, 2, 3, 1)), 2, layout="NHWC")
    agree(last, {"x": a}, blocks.max((3, 5)).transpose(0, 2, 3, 1))
    ints = graph.max_pool(graph.input("n", (1, 1, 2), "int8"), 3, 1, 1)
    (found,) = graph.evaluate([ints], {"n": np.array([[[-128, -5]]], "i1")})
    assert found.tolist() == [[[-5, -5]]]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_cross_entropy(dtype):
    x, a = given("x", (6, 10), dtype)
    target = np.array([0, 9, 3, 3, 7, 1])
    t = graph.input("t", (6,), "int64")
    each = -np.log(np_softmax(a.astype("f8")))[np.arange(6), target]
    inputs = {"x": a, "t": target}
    agree(graph.cross_entropy(x, t), inputs, each.mean(), dtype)
    agree(graph.cross_entropy(x, t, reduction="none"), inputs, each, dtype)
    agree(graph.cross_entropy(x.T, t, axis=0, reduction="sum"), inputs, each.sum(), dtype)
    kept = each[target != 3].mean()
    agree(graph.cross_entropy(x, t, ignore_index=3), inputs, kept, dtype)
    with pytest.raises(ShapeError, match="Use the shape of the logits less that axis"):
        graph.cross_entropy(x, t[:5])
    with pytest.raises(ShapeError, match='Use "mean", "sum" or "none"'):
        graph.cross_entropy(x, t, reduction="max")


def test_labels_name_the_composition():
    x = graph.input("x", (2, 3, 4))
    assert graph.exp(x).label == ""
    assert graph.softmax(x).label == "softmax"
    assert (x @ x.mT).label == "matmul"
    labels = {node.label for node in topological([graph.attention(x, x, x)])}  # fmt: skip
    assert labels == {"", "attention", "attention/softmax"}
    assert graph.embedding(x, graph.constant([1])).label == "embedding"
    with pytest.raises(DTypeError, match="softmax: takes floating dtypes, got n int8"):
        graph.softmax(graph.input("n", (3,), "int8"))
    with pytest.raises(DTypeError, match='Use "none" or "tanh"'):
        graph.gelu(x, "erf")
    assert graph.exp(x).label == ""  # an error inside a composition leaves no label behind


def test_the_float64_reference_of_a_float32_graph():
    x, a = given("x", (4, 50), "float32")
    (found,) = graph.evaluate([graph.layer_norm(x)], {"x": a}, np.float64)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, np_layer_norm(a.astype("f8")), rtol=1e-6)
