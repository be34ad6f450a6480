"""Whole programs on the GPU at hand, against the graph's meaning in float64."""

import numpy as np
import pytest

import eqsat
import eqsat.graph as G
from eqsat.graph.evaluate import evaluate

pytestmark = pytest.mark.gpu

TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def tensor(name, *shape, dtype="float32"):
    return G.input(name, shape, dtype)


def sample(argument, seed):
    generator = np.random.default_rng(seed)
    dtype = argument.dtype
    if dtype.kind == "float":
        return generator.standard_normal(argument.shape).astype(dtype.numpy)
    if dtype.kind == "bool":
        return generator.random(argument.shape) < 0.5
    low = 0 if dtype.kind == "uint" else -5
    return generator.integers(low, 6, argument.shape).astype(dtype.numpy)


def check(outputs, **inputs):
    """Compile for the device, run, and compare every output with the float64 reference."""
    outputs = outputs if isinstance(outputs, list) else [outputs]
    program = eqsat.compile(outputs, eqsat.specs.from_device())
    arrays = {a.name: sample(a, i) for i, a in enumerate(program.arguments)} | inputs
    results = program(**arrays)
    references = evaluate(outputs, arrays, float_dtype=np.float64)
    for output, result, reference in zip(outputs, results, references, strict=True):
        result = np.asarray(result)
        assert result.shape == output.shape
        if output.dtype.kind == "float":
            tolerance = TOLERANCE[output.dtype.name]
            scale = np.abs(reference[np.isfinite(reference)]).max(initial=1.0)
            np.testing.assert_allclose(
                result.astype(np.float64), reference, rtol=tolerance, atol=tolerance * scale
            )
        else:
            np.testing.assert_array_equal(result, reference)


SIZES = [(1, 1, 1), (17, 31, 23), (64, 128, 32), (129, 257, 65), (128, 128, 512)]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("m,n,k", SIZES)
def test_matmul(m, n, k, dtype):
    check(tensor("a", m, k, dtype=dtype) @ tensor("b", k, n, dtype=dtype))


def test_integer_matmul():
    a, b = tensor("a", 33, 70, dtype="int8"), tensor("b", 70, 65, dtype="int8")
    check(G.astype(a, "int32") @ G.astype(b, "int32"))


def test_batched_transposed_matmul():
    check(tensor("a", 3, 40, 70).mT @ tensor("b", 3, 40, 50))


@pytest.mark.parametrize("shape", [(1, 1), (5, 1000), (33, 4097), (300, 17)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows(shape, dtype):
    x = tensor("x", *shape, dtype=dtype)
    gain, bias = (tensor(n, shape[1], dtype=dtype) for n in ("g", "b"))
    check([G.softmax(x, axis=-1), G.layer_norm(x, gain, bias), G.sum(x, axis=0), G.max(x)])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_attention(causal, dtype):
    q, k, v = (tensor(n, 2, 4, 75, 32, dtype=dtype) for n in "qkv")
    check(G.attention(q, k, v, causal=causal))


def test_fused_epilogues():
    x, w, b, r = tensor("x", 100, 64), tensor("w", 64, 130), tensor("b", 130), tensor("r", 100, 130)
    check(G.gelu(x @ w + b) + r)
    check(G.silu(x @ w) * (x @ tensor("u", 64, 130)))
    check(G.rms_norm(x, tensor("g", 64)) @ w)


def test_algebra():
    a, b, v = tensor("a", 90, 80), tensor("b", 80, 70), tensor("v", 70)
    check((a @ b) @ v)
    check(G.sum(a @ b, axis=1))
    check(a @ b + tensor("d", 90, 80) @ b)


def test_views():
    x = tensor("x", 20, 30)
    check([x.T, x[::-1, 2:20:3], G.concat([x[:5], x[9:]], axis=0), G.roll(x, 3, axis=1)])
    check(G.reshape(x, (15, 40)) * 2.0)


def test_convolution_and_pooling():
    x, w = tensor("x", 2, 6, 15, 17), tensor("w", 8, 6, 3, 3)
    check([G.conv(x, w, stride=2, padding=1), G.max_pool(x, 3, stride=2)])


def test_gather_scan_and_search():
    table, index = tensor("t", 50, 33), tensor("i", 12, dtype="int64")
    x = tensor("x", 9, 500)
    check(G.take(table, index, axis=0), i=np.arange(12, dtype=np.int64) * 4)
    check([G.cumulative_sum(x, axis=1), G.argmax(x, axis=1)])


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8"])
def test_integers(dtype):
    a, b = tensor("a", 1000, dtype=dtype), tensor("b", 1000, dtype=dtype)
    check([a + b, a * b, a // b, a % b, a & b, a ^ b, G.maximum(a, b), a < b, G.sum(a)])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_functions(dtype):
    x = tensor("x", 999, dtype=dtype)
    names = "exp expm1 tanh erf sin cos atan floor round sign abs square".split()
    check([getattr(G, name)(x) for name in names])
    check([G.sqrt(G.abs(x)), G.log1p(G.abs(x)), G.isnan(x), G.where(x > 0, x, -x)])


def test_empty_and_scalar():
    check([tensor("e", 0, 4) + 1.0, G.sum(tensor("f", 3, 0), axis=1), tensor("s") * 2.0])


def test_several_kernels_replay_with_new_inputs():
    x, w = tensor("x", 64, 64), tensor("w", 64, 64)
    program = eqsat.compile(
        G.softmax(G.layer_norm(G.tanh(x @ w) @ w, tensor("g", 64), tensor("b", 64)) @ w, axis=0),
        eqsat.specs.from_device(),
    )
    for seed in range(3):
        arrays = {a.name: sample(a, 10 * seed + i) for i, a in enumerate(program.arguments)}
        result = program(**arrays)
        assert np.isfinite(result).all()
        np.testing.assert_allclose(result.sum(axis=0), 1.0, rtol=1e-4)
