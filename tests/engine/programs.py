"""Small tensor programs by name, each at extents small enough to evaluate every e-node."""

from collections.abc import Callable
from math import inf

import numpy as np

import eqsat.graph as g
from eqsat.graph.tensor import Tensor

Outputs = Tensor | tuple[Tensor, ...]
PROGRAMS: dict[str, Callable[[], Outputs]] = {}
RNG = np.random.default_rng(7)


def program(function: Callable[[], Outputs]) -> Callable[[], Outputs]:
    """Enter a program in the table under its function's name."""
    PROGRAMS[function.__name__] = function
    return function


def inputs(dtype: str = "float32", **shapes: tuple[int, ...]) -> list[Tensor]:
    """An input for each name."""
    return [g.input(name, shape, dtype) for name, shape in shapes.items()]


@program
def matrices_times_vector() -> Outputs:
    a, b, v = inputs(a=(2, 3), b=(3, 4), v=(4,))
    return (a @ b) @ v


@program
def sum_of_matmul() -> Outputs:
    a, b = inputs(a=(2, 3), b=(3, 4))
    return g.sum(a @ b, 1), g.sum(a @ b)


@program
def trace_of_matmul() -> Outputs:
    a, b = inputs(a=(3, 2), b=(2, 3))
    return g.trace(a @ b)


@program
def equal_extents() -> Outputs:
    a, b, c = inputs(a=(3, 3), b=(3, 3), c=(3, 3))
    return a @ b @ c + a.T, g.sum(a @ a, 0), (a @ b).T @ a


@program
def two_projections() -> Outputs:
    x, w, u = inputs(x=(2, 3), w=(3, 4), u=(3, 4))
    return x @ w + x @ u


@program
def swiglu() -> Outputs:
    x, w, u, d = inputs(x=(2, 3), w=(3, 4), u=(3, 4), d=(4, 3))
    return (g.silu(x @ w) * (x @ u)) @ d


@program
def rms_norm_then_matmul() -> Outputs:
    x, s, w = inputs(x=(2, 4), s=(4,), w=(4, 3))
    return g.rms_norm(x, s) @ w


@program
def layer_norm_then_matmul() -> Outputs:
    x, s, b, w = inputs(x=(2, 4), s=(4,), b=(4,), w=(4, 3))
    return g.layer_norm(x, s, b) @ w


@program
def lora() -> Outputs:
    x, w, a, b = inputs(x=(2, 3), w=(3, 4), a=(3, 1), b=(1, 4))
    c, d = inputs(c=(3, 2), d=(2, 4))
    return x @ w + (x @ a) @ b, x @ w + (x @ c) @ d * 0.5


@program
def softmax() -> Outputs:
    (x,) = inputs(x=(3, 4))
    return g.softmax(x), g.log_softmax(x), g.logsumexp(x, 0)


@program
def softmax_of_shifted() -> Outputs:
    x, c = inputs(x=(3, 4), c=(3, 1))
    return g.softmax(x + c), g.softmax(x * 2.0 + 3.0, 0)


@program
def layer_norm() -> Outputs:
    x, s, b = inputs(x=(3, 4), s=(4,), b=(4,))
    return g.layer_norm(x, s, b)


@program
def masked_attention() -> Outputs:
    """One row of the mask hides every key."""
    q, k, v = inputs(q=(2, 3, 2), k=(2, 4, 2), v=(2, 4, 2))
    mask = np.where(RNG.random((3, 4)) < 0.5, 0.0, -inf).astype(np.float32)
    mask[1] = -inf
    return g.attention(q, k, v, mask=g.constant(mask))


@program
def causal_attention() -> Outputs:
    q, k, v = inputs(q=(2, 3, 2), k=(2, 3, 2), v=(2, 3, 2))
    return g.attention(q, k, v, causal=True)


@program
def grouped_attention() -> Outputs:
    q, k, v = inputs(q=(4, 2, 2), k=(2, 3, 2), v=(2, 3, 2))
    return g.attention(q, k, v)


@program
def self_attention() -> Outputs:
    """Queries, keys and values of one input: extents that are equal, and x met by itself."""
    x, w = inputs(x=(3, 2), w=(2, 2))
    return g.attention(x @ w, x, x @ w)


@program
def cross_entropy() -> Outputs:
    (x,) = inputs(x=(3, 4))
    t = g.input("t", (3,), "int64")
    return g.cross_entropy(x, t)


@program
def convolution() -> Outputs:
    x, w = inputs(x=(1, 2, 5), w=(2, 2, 3))
    return g.conv(x, w, padding=1), g.conv(x, w, stride=2)


@program
def pooling() -> Outputs:
    (x,) = inputs(x=(1, 2, 4, 4))
    return g.max_pool(x, 2), g.avg_pool(x, 2)


@program
def gelu_mlp() -> Outputs:
    x, w, b, u = inputs(x=(2, 3), w=(3, 4), b=(4,), u=(4, 3))
    return g.gelu(x @ w + b) @ u + x


@program
def transformer_block() -> Outputs:
    x, wq, wk, wv, wo = inputs(x=(3, 4), wq=(4, 4), wk=(4, 4), wv=(4, 4), wo=(4, 4))
    w1, w2, s, b = inputs(w1=(4, 3), w2=(3, 4), s=(4,), b=(4,))
    h = g.layer_norm(x, s, b)
    heads = [g.permute_dims(g.reshape(h @ w, (3, 2, 2)), (1, 0, 2)) for w in (wq, wk, wv)]
    mixed = g.reshape(g.permute_dims(g.attention(*heads), (1, 0, 2)), (3, 4))
    x = x + mixed @ wo
    return x + g.gelu(g.layer_norm(x, s, b) @ w1, approximate="tanh") @ w2


@program
def argmax() -> Outputs:
    (x,) = inputs(x=(3, 4))
    return g.argmax(x, 1), g.argmin(x @ x.T, 0)


@program
def gram() -> Outputs:
    (x,) = inputs(x=(3, 2))
    return x @ x.T, g.sum(x @ x.T, 1), g.exp(x) @ g.exp(x).T


@program
def moved_between() -> Outputs:
    x, w = inputs(x=(3, 4), w=(4, 3))
    h = x @ w
    return (
        g.flip(h, axis=1) @ x,
        g.concat([h, h[:, 1:]], 1),
        g.sum(g.pad(h, ((1, 1), (0, 2)), value=1.5) * 2.0, 0),
        h[::2, 1:] * g.roll(h, 1, axis=0)[1:, :2],
    )


@program
def moved_and_shared() -> Outputs:
    (x,) = inputs(x=(3, 3))
    e = g.exp(x)
    total = g.sum(e, 0)
    return g.pad(total, ((1, 1),))[1:4] * e, e + e.T, g.sum(e * g.flip(e, axis=0), 1), e @ e[::-1]


@program
def integers() -> Outputs:
    a, b = inputs("int8", a=(2, 3), b=(3, 4))
    c, d = inputs("int32", c=(2, 3), d=(3, 4))
    e = g.input("e", (2, 4), "int32")
    return a @ b, g.sum(c @ d * e, 1), c @ d + c @ (d + 1), g.max(c + 7, 1), c // 3 * 3 + c % 3


@program
def half_precision() -> Outputs:
    x, w = inputs("float16", x=(2, 3), w=(3, 4))
    y, s = inputs("bfloat16", y=(2, 4), s=(4,))
    z = g.input("z", (2, 4), "float32")
    return g.gelu(x @ w), g.rms_norm(y, s), g.softmax(y) * s, g.astype(x @ w, "float32") + z


@program
def embedded() -> Outputs:
    table, w = inputs(table=(4, 3), w=(3, 2))
    at = g.input("at", (2,), "int64")
    return g.embedding(table, at) @ w, g.cumulative_sum(g.take(table, at, axis=1), axis=0)


@program
def mean_of_product() -> Outputs:
    a, b, c = inputs(a=(2, 3), b=(2,), c=(3,))
    return g.mean(a * g.expand_dims(b, 1) * c, 1), g.sum(c * 2.0 + g.sum(a, 0)), g.var(a, 1)
