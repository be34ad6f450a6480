"""Whole programs on the GPU at hand, against the graph's meaning in float64."""

import numpy as np
import pytest

import eqsat
import eqsat.graph as G
from eqsat.graph.evaluate import evaluate

from .programs import PROGRAMS, several_kernels, tensor

pytestmark = pytest.mark.gpu

TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def sample(argument, seed):
    generator = np.random.default_rng(seed)
    dtype = argument.dtype
    if dtype.kind == "float":
        return generator.standard_normal(argument.shape).astype(dtype.numpy)
    if dtype.kind == "bool":
        return generator.random(argument.shape) < 0.5
    low = 0 if dtype.kind == "uint" or argument.name == "i" else -5
    return generator.integers(low, 6, argument.shape).astype(dtype.numpy)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    outputs = PROGRAMS[name]()
    program = eqsat.compile(outputs, eqsat.specs.from_device())
    arrays = {a.name: sample(a, i) for i, a in enumerate(program.arguments)}
    results = program(**arrays)
    references = evaluate(outputs, arrays, float_dtype=np.float64)
    for output, result, reference in zip(outputs, results, references, strict=True):
        if not isinstance(result, np.ndarray):  # of a program without inputs, on the device
            result = result.get()
        assert result.shape == output.shape
        if output.dtype.kind == "float":
            tolerance = TOLERANCE[output.dtype.name]
            scale = np.abs(reference[np.isfinite(reference)]).max(initial=1.0)
            np.testing.assert_allclose(
                result.astype(np.float64), reference, rtol=tolerance, atol=tolerance * scale
            )
        else:
            np.testing.assert_array_equal(result, reference)


def test_several_kernels_replay_with_new_inputs():
    program = eqsat.compile(several_kernels(), eqsat.specs.from_device())
    for seed in range(3):
        arrays = {a.name: sample(a, 10 * seed + i) for i, a in enumerate(program.arguments)}
        (result,) = program(**arrays)
        assert np.isfinite(result).all()
        np.testing.assert_allclose(result.sum(axis=0), 1.0, rtol=1e-4)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    ("shape", "k", "dtype"),
    [
        ((500, 2000), 10, "float32"),
        ((3, 70001), 50, "float32"),
        ((40, 300), 256, "bfloat16"),
        ((2, 33000), 5, "int8"),
        ((7, 129), 100, "float64"),
        ((2, 70000), 9, "int64"),
    ],
)
def test_the_first_of_rows(shape, k, dtype, largest):
    """Of whole rows and of parts, with many that are equal."""
    x = tensor("x", *shape, dtype=dtype)
    values, places = G.top_k(x, k, largest=largest)
    program = eqsat.compile([values, places], eqsat.specs.from_device())
    assert [call.method for call in program.calls] == ["select_parts"]
    arrays = {"x": sample(program.arguments[0], 7)}
    for found, wanted in zip(program(**arrays), evaluate([values, places], arrays), strict=True):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))
