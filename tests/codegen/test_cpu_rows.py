"""Products by rows on the CPU target: few rows pass over the right factor together."""

import re

import numpy as np
import pytest

import eqsat
import eqsat.graph as g
from eqsat.specs import ParallelProcessingUnit, load

CPU = load("cpu")


def without_routines() -> ParallelProcessingUnit:
    spec = CPU
    for operation in CPU.operations:
        if operation.invocation_name in {"cblas_gemm", "vector_gemm"}:
            spec = spec.without_operation(operation.name)
    return spec


BARE = without_routines()


def values(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "i":
        return random.integers(-9, 9, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def order(source: str, names: list[str]) -> list[str]:
    """The loops over these names, in the order in which they begin."""
    return re.findall(rf"for ({'|'.join(names)})_\d+ in", source)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "float16"])
@pytest.mark.parametrize(("m", "k", "n"), [(2, 65, 40), (3, 100, 257), (5, 96, 33), (16, 200, 64)])
def test_few_rows_pass_over_the_right_factor_together(m, k, n, dtype):
    x, w = g.input("x", (m, k), dtype), g.input("w", (k, n), dtype)
    program = eqsat.compile([x @ w], spec=BARE, inputs=[x, w])
    a, b = values((m, k), dtype, 1), values((k, n), dtype, 2)
    (found,) = program(x=a, w=b)
    wide = np.float64 if np.dtype(dtype).kind == "f" else np.int64
    tolerance = {"float16": 2e-2, "float32": 2e-4}.get(dtype, 1e-9)
    np.testing.assert_allclose(found, a.astype(wide) @ b.astype(wide), tolerance, 10 * tolerance)


def test_rows_are_inside_the_sum():
    x, w = g.input("x", (4, 4096), "float32"), g.input("w", (4096, 1024), "float32")
    program = eqsat.compile([x @ w], spec=BARE, inputs=[x, w])
    begun = order(program.source(), ["i0", "i2"])
    assert begun.index("i2") < len(begun) - 1 and begun[begun.index("i2") + 1] == "i0"


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x, w, b: g.silu(x @ w + b), id="epilogue"),
        pytest.param(lambda x, w, b: g.silu(x) @ w + b, id="prologue"),
        pytest.param(lambda x, w, b: g.softmax(x @ w, axis=-1) + b, id="softmax"),
        pytest.param(lambda x, w, b: (x @ w) @ g.matrix_transpose(w) @ w + b, id="chain"),
        pytest.param(lambda x, w, b: g.tril(x @ w) + b, id="mask"),
        pytest.param(lambda x, w, b: x[::-1, 1:] @ w[1:, :] + g.flip(b), id="views"),
        pytest.param(lambda x, w, b: (x @ w) * g.sigmoid((x * 2) @ w) + b, id="two products"),
        pytest.param(lambda x, w, b: g.max(x @ w + b, axis=0), id="maxima"),
    ],
)
@pytest.mark.parametrize("m", [3, 8])
def test_what_is_around_such_products_stays_as_it_is(function, m):
    x, w = g.input("x", (m, 130), "float32"), g.input("w", (130, 77), "float32")
    b = g.input("b", (77,), "float32")
    result = function(x, w, b)
    inputs = {"x": values((m, 130), "float32", 3), "w": values((130, 77), "float32", 4) / 12}
    inputs["b"] = values((77,), "float32", 5)
    (found,) = eqsat.compile([result], spec=BARE, inputs=[x, w, b])(**inputs)
    (expected,) = eqsat.compile([result], spec=CPU, inputs=[x, w, b])(**inputs)
    np.testing.assert_allclose(found, expected, 1e-4, 1e-4)


def test_rows_of_a_batch_have_factors_of_their_own():
    x, w = g.input("x", (6, 4, 90), "float32"), g.input("w", (6, 90, 50), "float32")
    a, b = values((6, 4, 90), "float32", 6), values((6, 90, 50), "float32", 7)
    (found,) = eqsat.compile([x @ w], spec=BARE, inputs=[x, w])(x=a, w=b)
    np.testing.assert_allclose(found, a @ b, 1e-4, 1e-4)
