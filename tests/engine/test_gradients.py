"""Gradients as programs: compiled for the CPU, and of random graphs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from random_graphs import Graph, graphs

import eqsat
import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.graph.tensor import Tensor
from eqsat.saturate.saturation import Limits
from eqsat.specs import ParallelProcessingUnit, cpu

ORACLE = replace(cpu(), target="oracle")
SETTINGS = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
STEP = 1e-4
FEW = Limits(rounds=2)
pytestmark = pytest.mark.usefixtures("shared_search")
RNG = np.random.default_rng(11)


def draw(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


# --- random graphs --------------------------------------------------------------------------------


def losses(graph: Graph) -> tuple[Tensor, list[Tensor], dict[str, np.ndarray]]:
    """A scalar of the float outputs, the float inputs, and arrays that lie on no kink.

    Inputs of 16 bits are left out: a small step from one rounds to nothing.
    """
    rng = np.random.default_rng(5)
    outputs = [v.tensor for v in graph.outputs if v.is_float]
    assume(outputs)
    nodes = g.evaluate.__globals__["input_nodes"](outputs)
    wanted = [x for x in nodes.values() if x.dtype.kind == "float" and x.dtype.itemsize > 2]
    assume(wanted)
    arrays = {}
    for name, x in nodes.items():
        array = graph.arrays[name]
        moved = array + rng.uniform(-0.2, 0.2, array.shape) if x.dtype.kind == "float" else array
        arrays[name] = np.asarray(moved).astype(array.dtype)
    parts = [
        g.sum(g.astype(y, "float64") * g.constant(rng.uniform(0.5, 2, y.shape))) for y in outputs
    ]
    return sum(parts[1:], parts[0]), wanted, arrays


def slopes_agree(graph: Graph) -> None:
    """The gradient times a small step is what the loss gains by it, in float64."""
    loss, wanted, arrays = losses(graph)
    rng = np.random.default_rng(6)
    low, high = dict(arrays), dict(arrays)
    for x in wanted:
        name, step = x.attributes["name"], STEP * rng.uniform(-1, 1, x.shape)
        low[name] = (arrays[name] - step).astype(x.dtype.numpy)
        high[name] = (arrays[name] + step).astype(x.dtype.numpy)
    gradient = g.evaluate(g.grad(loss, wanted), arrays, np.float64)
    gain = sum(
        float(np.sum(slope * (high[name].astype(np.float64) - low[name])))
        for slope, name in zip(gradient, (x.attributes["name"] for x in wanted), strict=True)
    )
    (before,), (after,) = (g.evaluate([loss], at, np.float64) for at in (low, high))
    size = sum(float(np.abs(slope).sum()) for slope in gradient) + abs(float(before))
    assert abs(gain - (after - before)) <= 1e-5 * STEP * (1 + size), graph


@settings(SETTINGS, max_examples=80)
@given(graphs(10))
def test_slopes(graph: Graph) -> None:
    slopes_agree(graph)


@pytest.mark.slow
@settings(SETTINGS, max_examples=1000)
@given(graphs(20))
def test_many_slopes(graph: Graph) -> None:
    slopes_agree(graph)


def compiled_agrees(graph: Graph, unit: ParallelProcessingUnit) -> None:
    """A program of the loss and its gradient gives what the graph means."""
    loss, wanted, arrays = losses(graph)
    assume(all(x.dtype.name in ("float32", "float64", "int32", "bool") for x in wanted))
    outputs = (loss, *g.grad(loss, wanted))
    program = eqsat.compile(outputs, unit, cache=Cache(None))
    given = {argument.name: arrays[argument.name] for argument in program.arguments}
    for found, wide in zip(program(**given), g.evaluate(outputs, arrays, np.float64), strict=True):
        scale = 1 + np.abs(wide).max(initial=0)
        assert np.abs(found - wide).max(initial=0) <= 1e-2 * scale, graph


@settings(SETTINGS, max_examples=6)
@given(graphs(8))
def test_random_gradients_on_the_oracle(graph: Graph) -> None:
    compiled_agrees(graph, ORACLE)


@pytest.mark.slow
@settings(SETTINGS, max_examples=100)
@given(graphs(12))
def test_many_random_gradients_on_the_oracle(graph: Graph) -> None:
    compiled_agrees(graph, ORACLE)


# --- models on the CPU ----------------------------------------------------------------------------


def step(*arrays: np.ndarray):
    """Inputs a, b, ... like the arrays, and what runs a loss and its gradient on the CPU."""
    inputs = [g.input(name, a.shape, a.dtype) for name, a in zip("abcdef", arrays, strict=False)]

    def run(loss: Tensor) -> list[np.ndarray]:
        wanted = [x for x in inputs if x.dtype.kind == "float"]
        program = eqsat.compile((loss, *g.grad(loss, wanted)), cpu(), inputs=inputs, limits=FEW)
        return [np.asarray(value) for value in program(*arrays)]

    return *inputs, run


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def near(found: list[np.ndarray], *expected: np.ndarray) -> None:
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5)


@pytest.mark.slow  # tests/examples/test_train.py compiles one too
def test_an_mlp_with_cross_entropy() -> None:
    arrays = draw(17, 12), draw(12, 20), draw(20), draw(20, 10), draw(10), RNG.integers(0, 10, 17)
    x, w, b, v, c, t, run = step(*arrays)
    found = run(g.cross_entropy(g.relu(x @ w + b) @ v + c, t))
    x, w, b, v, c = (a.astype(np.float64) for a in arrays[:5])
    hidden = x @ w + b
    logits = np.maximum(hidden, 0) @ v + c
    row = np.arange(17), arrays[5]
    loss = -np.log(softmax(logits)[row]).mean()
    slope = softmax(logits)
    slope[row] -= 1
    slope /= 17
    inner = slope @ v.T * (hidden > 0)
    near(found, loss, inner @ w.T, x.T @ inner, inner.sum(0),
         np.maximum(hidden, 0).T @ slope, slope.sum(0))  # fmt: skip


@pytest.mark.slow
def test_a_layer_norm() -> None:
    arrays = draw(9, 16), draw(16), draw(16), draw(9, 16)
    x, w, b, y, run = step(*arrays)
    found = run(g.sum(g.layer_norm(x, w, b) * y))
    x, w, b, y = (a.astype(np.float64) for a in arrays)
    spread = 1 / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    normal = (x - x.mean(1, keepdims=True)) * spread
    slope = y * w
    along = slope - slope.mean(1, keepdims=True) - normal * (slope * normal).mean(1, keepdims=True)
    out = normal * w + b
    near(found, (out * y).sum(), along * spread, (y * normal).sum(0), y.sum(0), out)


def test_causal_attention() -> None:
    arrays = draw(2, 7, 5), draw(2, 7, 5), draw(2, 7, 5), draw(2, 7, 5)
    q, k, v, y, run = step(*arrays)
    found = run(g.sum(g.attention(q, k, v, causal=True) * y))
    q, k, v, y = (a.astype(np.float64) for a in arrays)
    scores = np.where(np.tri(7, dtype=bool), q @ k.swapaxes(1, 2) / np.sqrt(5), -np.inf)
    p = softmax(scores)
    slope = y @ v.swapaxes(1, 2)
    slope = p * (slope - (p * slope).sum(-1, keepdims=True)) / np.sqrt(5)
    out = p @ v
    near(found, (out * y).sum(), slope @ k, slope.swapaxes(1, 2) @ q, p.swapaxes(1, 2) @ y, out)


@pytest.mark.slow
@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution(stride: int) -> None:
    size = -(-6 // stride)
    arrays = draw(2, 3, 6, 6), draw(4, 3, 3, 3), draw(2, 4, size, size)
    x, w, y, run = step(*arrays)
    found = run(g.sum(g.conv(x, w, stride=stride, padding=1) * y))
    x, w, y = (a.astype(np.float64) for a in arrays)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    out, by_x, by_w = np.zeros(y.shape), np.zeros(padded.shape), np.zeros(w.shape)
    for r in range(3):
        for s in range(3):
            place = np.s_[:, :, r : r + stride * size : stride, s : s + stride * size : stride]
            out += np.einsum("nchw,oc->nohw", padded[place], w[:, :, r, s])
            by_x[place] += np.einsum("nohw,oc->nchw", y, w[:, :, r, s])
            by_w[:, :, r, s] = np.einsum("nohw,nchw->oc", y, padded[place])
    near(found, (out * y).sum(), by_x[:, :, 1:-1, 1:-1], by_w, out)


def test_an_embedding() -> None:
    arrays = draw(11, 6), RNG.integers(-11, 11, (3, 8)), draw(3, 8, 6)
    table, at, y, run = step(*arrays)
    found = run(g.sum(g.embedding(table, at) * y))
    expected = np.zeros((11, 6))
    np.add.at(expected, arrays[1], arrays[2])
    near(found, (arrays[0][arrays[1]] * arrays[2]).sum(), expected, arrays[0][arrays[1]])
