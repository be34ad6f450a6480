"""The derivatives of the functions of neural networks, masks of -inf among them."""

import numpy as np
import pytest
from finite_differences import check

from eqsat import graph as g

RNG = np.random.default_rng(3)
LOGITS = RNG.uniform(-2, 2, (3, 5))
TARGETS = np.array([0, 4, 2])
MASKED = np.where(RNG.random((3, 5)) < 0.4, -np.inf, LOGITS)
MASKED[0] = [-np.inf, -np.inf, 1.0, -np.inf, -np.inf]
HEADS = [RNG.uniform(-1, 1, (2, 4, 3)) for _ in "qkv"]
IMAGE, KERNEL = RNG.uniform(-1, 1, (2, 4, 5, 6)), RNG.uniform(-1, 1, (4, 4, 3, 2))


def normal(*shape):
    return RNG.uniform(-1, 1, shape)


CASES = {
    "relu": lambda: check(g.relu, x=LOGITS),
    "sigmoid": lambda: check(g.sigmoid, x=LOGITS),
    "silu": lambda: check(g.silu, x=LOGITS),
    "gelu": lambda: check(g.gelu, x=LOGITS),
    "gelu by tanh": lambda: check(lambda x: g.gelu(x, "tanh"), x=LOGITS),
    "softmax": lambda: check(g.softmax, x=LOGITS),
    "softmax, first axis": lambda: check(lambda x: g.softmax(x, 0), x=LOGITS),
    "log_softmax": lambda: check(g.log_softmax, x=LOGITS),
    "logsumexp": lambda: check(lambda x: g.logsumexp(x, 1), x=LOGITS),
    "logsumexp of all": lambda: check(g.logsumexp, x=LOGITS),
    "layer_norm": lambda: check(
        g.layer_norm, 2e-6, x=LOGITS, weight=normal(5), bias=normal(5)
    ),
    "rms_norm": lambda: check(g.rms_norm, x=LOGITS, weight=normal(5)),
    "std": lambda: check(lambda x: g.std(x, 1) * g.var(x, 1, 1.0), x=LOGITS),
    "cross_entropy": lambda: check(g.cross_entropy, x=LOGITS, t=TARGETS),
    "cross_entropy, parts": lambda: check(
        lambda x, t: g.cross_entropy(x, t, 0, "none", 1), x=LOGITS, t=np.array([0, 1, 2, 1, 1])
    ),
    "cross_entropy, ignoring": lambda: check(
        lambda x, t: g.cross_entropy(x, t, ignore_index=4), x=LOGITS, t=TARGETS
    ),
    "embedding": lambda: check(g.embedding, x=LOGITS, at=np.array([[0, 2], [2, -1]])),
    "attention": lambda: check(g.attention, q=HEADS[0], k=HEADS[1], v=HEADS[2]),
    "attention, causal": lambda: check(
        lambda q, k, v: g.attention(q, k, v, causal=True), q=HEADS[0], k=HEADS[1], v=HEADS[2]
    ),
    "attention, grouped and masked": lambda: check(
        lambda q, k, v, m: g.attention(q, k, v, mask=m),
        q=HEADS[0], k=HEADS[1][:1], v=HEADS[2][:1], m=normal(4, 4),
    ),
    "hypot, logaddexp": lambda: check(
        lambda x, y: (g.hypot(x, y), g.logaddexp(x, y)), x=normal(4), y=normal(4)
    ),
    "asinh, acosh, atanh": lambda: check(
        lambda x: (g.asinh(x), g.acosh(x + 3.0), g.atanh(x)), x=normal(4)
    ),
    "conv": lambda: check(
        lambda x, w, b: g.conv(x[:, :, :4, :4], w[:2], b, padding=1),
        x=IMAGE[:1], w=KERNEL, b=normal(2),
    ),
    "conv, strided": lambda: check(
        lambda x, w: g.conv(x, w[:2], stride=2, padding="same"), x=IMAGE[:1], w=KERNEL
    ),
    "conv, dilated, grouped, NHWC": lambda: check(
        lambda x, w: g.conv(x, w[:, :2], groups=2, dilation=(1, 2), stride=(2, 1), layout="NHWC"),
        x=IMAGE[:1].transpose(0, 2, 3, 1).copy(), w=KERNEL,
    ),
    "conv, strides that windows overlap by 1 and 2": lambda: check(
        lambda x, w: g.conv(x, w[:2], stride=(2, 1), padding=((1, 0), 1)), x=IMAGE[:1], w=KERNEL
    ),
    "conv_transpose": lambda: check(
        lambda x, w, b: g.conv_transpose(x, w, b, stride=2, padding=1, output_padding=1),
        x=IMAGE[:1, :2, :3, :3], w=normal(2, 2, 3, 3), b=normal(2),
    ),
    "max_pool": lambda: check(lambda x: g.max_pool(x, 3, 2, 1), x=IMAGE[:, :1]),
    "avg_pool": lambda: check(
        lambda x: g.avg_pool(x, 2, padding=1, count_padding=False), x=IMAGE[:, :1]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_derivative(name):
    CASES[name]()


# --- masks of -inf ----------------------------------------------------------------------------


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def test_masked_scores_get_clean_gradients():
    x, w = g.input("x", (3, 5), "float64"), RNG.uniform(1, 2, (3, 5))
    p = softmax(MASKED)
    kept = np.isfinite(MASKED)
    expected = {
        g.sum(g.softmax(x) * g.constant(w)): p * (w - (p * w).sum(-1, keepdims=True)),
        g.sum(g.logsumexp(x, 1) * g.constant(w[:, 0])): p * w[:, :1],
        g.sum(g.where(g.constant(kept), g.log_softmax(x) * g.constant(w), 0.0)): (
            np.where(kept, w, 0) - p * np.where(kept, w, 0).sum(-1, keepdims=True)
        ),
    }
    for loss, gradient in expected.items():
        (found,) = g.evaluate([g.grad(loss, x)], {"x": MASKED})
        np.testing.assert_allclose(found, gradient, atol=1e-14)


def test_cross_entropy_over_masked_classes():
    x, t = g.input("x", (3, 5), "float64"), g.input("t", (3,), "int64")
    targets = np.isfinite(MASKED).argmax(1)
    (found,) = g.evaluate([g.grad(g.cross_entropy(x, t), x)], {"x": MASKED, "t": targets})
    np.testing.assert_allclose(found, (softmax(MASKED) - np.eye(5)[targets]) / 3, atol=1e-15)


def test_the_largest_score_is_no_part_of_the_gradient():
    """Softmax is the same whatever is subtracted: no ties are counted."""
    x = g.input("x", (3, 5))
    for loss in (g.sum(g.square(g.softmax(x))), g.logsumexp(x), g.sum(g.log_softmax(x) * x)):
        before = g.describe([loss]).count("reduce_")
        assert g.describe([g.grad(loss, x)]).count("reduce_max") == 1 <= before


def test_a_causal_mask_of_large_scores():
    q = g.input("q", (1, 4, 2), "float64")
    values = {"q": 50 * RNG.uniform(-1, 1, (1, 4, 2))}
    (found,) = g.evaluate([g.grad(g.sum(g.attention(q, q, q, causal=True)), q)], values)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_narrow_floats_agree_with_float64(dtype):
    x, w = g.input("x", (4, 8), dtype), g.input("w", (8, 5), dtype)
    t = g.constant([0, 4, 2, 1])
    gradient = g.grad(g.cross_entropy(g.layer_norm(g.gelu(x @ w)), t), [x, w])
    arrays = {
        name: RNG.uniform(-1, 1, v.shape).astype(v.dtype.numpy)
        for name, v in {"x": x, "w": w}.items()
    }
    expected = g.evaluate(gradient, arrays, np.float64)
    for narrow, wide in zip(g.evaluate(gradient, arrays), expected, strict=True):
        assert narrow.dtype == x.dtype.numpy
        size = {"float16": 5e-3, "bfloat16": 5e-2, "float32": 1e-6}[dtype]
        assert np.abs(narrow.astype(float) - wide).max() <= size * np.abs(wide).max()


def test_inverse_hyperbolic_derivatives_at_zero_and_far_out():
    values = np.array([-1e200, -2.0, -0.0, 0.0, 2.0, 1e12, 1e200])
    x = g.input("x", values.shape, "float64")
    near, far = g.grad(g.sum(g.asinh(x)), x), g.grad(g.sum(g.acosh(g.abs(x) + 1.5)), x)
    found = g.evaluate([near, far], {"x": values})
    size = np.abs(values) + 1.5
    np.testing.assert_allclose(found[0], 1 / np.hypot(values, 1.0), rtol=1e-12)
    slope = np.sign(values) / (np.sqrt(size - 1) * np.sqrt(size + 1))
    np.testing.assert_allclose(found[1], slope, rtol=1e-12)
