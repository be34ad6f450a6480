"""The tile interpreter against direct NumPy, and contractions through an operation's semantics."""

import kernels
import numpy as np
import pytest

from eqsat.codegen.oracle import run
from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import BY_NAME
from eqsat.kernel.ir import Axis, Kernel, Store
from eqsat.kernel.ir import check as well_formed
from eqsat.specs.frozen_table import FrozenTable
from eqsat.specs.model import ParallelOperation
from eqsat.specs.semantics import OperationSemantics

EXTENTS = [(1, 1, 1), (7, 15, 3), (8, 16, 4), (9, 17, 5), (13, 37, 11)]


@pytest.mark.parametrize("extents", EXTENTS, ids=str)
@pytest.mark.parametrize("name", kernels.SAMPLES)
def test_samples(name: str, extents: tuple[int, int, int]) -> None:
    sample = kernels.SAMPLES[name](*extents)
    well_formed(sample.kernel)
    arrays = kernels.arrays(sample)
    run(sample.kernel, arrays)
    kernels.check(sample, arrays)


def operation(semantics: str, **extents: int) -> ParallelOperation:
    """A made-up operation of a warp."""
    return ParallelOperation(
        name="cblas_gemm",
        supported_by="warp",
        supported_data_types=(FrozenTable({"a": "float32", "b": "float32", "d": "float32"}),),
        latency_cycles=1,
        throughput_per_cycle=1,
        throughput_group="warp",
        semantics=OperationSemantics.parse(semantics),
        extents=FrozenTable(extents),
    )


@pytest.mark.parametrize("semantics", ["d[m,n] += a[m,k] * b[k,n]", "z[q,r] += x[s,q] * y[r,s]"])
@pytest.mark.parametrize("extents", [0, 3, 16])
@pytest.mark.parametrize("name", ["matmul_blas", "matmul_batched_blas", "attention_online_blas"])
def test_contraction_by_semantics(name: str, extents: int, semantics: str) -> None:
    names = OperationSemantics.parse(semantics).index_names
    table = {"cblas_gemm": operation(semantics, **dict.fromkeys(names, extents))}
    sample = kernels.SAMPLES[name](9, 17, 5)
    arrays = kernels.arrays(sample)
    run(sample.kernel, arrays, table)
    kernels.check(sample, arrays)


def test_operation_that_is_no_contraction_is_refused() -> None:
    sample = kernels.matmul_blas(2, 2, 2)
    table = {"cblas_gemm": operation("d[i] = a[i] + b[i]", i=4)}
    with pytest.raises(UnsupportedError, match=r"cblas_gemm .* is no product of two matrices"):
        run(sample.kernel, kernels.arrays(sample), table)


def test_one_operation_among_several_is_left_plain() -> None:
    sample = kernels.matmul_blas(5, 6, 7)
    arrays = kernels.arrays(sample)
    run(sample.kernel, arrays, {"another": operation("d[m,n] += a[m,k] * b[k,n]", m=1, n=1, k=1)})
    kernels.check(sample, arrays)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint8", "bool"])
@pytest.mark.parametrize("monoid", ["sum", "prod", "max", "min"])
def test_empty_reduction_is_the_identity(dtype: str, monoid: str) -> None:
    kind = BY_NAME[dtype]
    expected = {
        "sum": 0,
        "prod": 1,
        "max": {"float32": -np.inf, "bfloat16": -np.inf, "int8": -128}.get(dtype, 0),
        "min": {"float32": np.inf, "bfloat16": np.inf, "int8": 127, "uint8": 255}.get(dtype, 1),
    }
    found = {"x": np.empty((3, 0), kind.numpy), "y": np.zeros(3, kind.numpy)}
    run(kernels.row_reduction(kind, monoid, (3, 0)), found)
    np.testing.assert_array_equal(found["y"].astype(float), float(expected[monoid]))


def test_no_tiles_leave_memory_alone() -> None:
    sample = kernels.matmul(0, 5, 3)
    found = kernels.arrays(sample)
    before = {name: array.copy() for name, array in found.items()}
    run(sample.kernel, found)
    for name, array in found.items():
        np.testing.assert_array_equal(array, before[name])


def test_sixteen_bit_values_round_only_at_casts_and_stores() -> None:
    x, y, y_cast = kernels.buffers(BY_NAME["float16"], x=(1,), y=(1,), y_cast=(1,))
    b = kernels.Body(BY_NAME["float16"])
    b.load("a", "i", kernels.at(x, "i"))
    b.map("s", "i", "mul", "a", "a")
    b.map("t", "i", "cast", "s")
    b.map("d", "i", "sub", "s", "a")
    b.map("e", "i", "sub", "t", "a")
    phase = b.phase(Store(kernels.at(y, "i"), "d"), Store(kernels.at(y_cast, "i"), "e"))
    kernel = Kernel("rounding", (x, y, y_cast), (Axis("i", 1, 1),), (), (phase,))
    value = np.float16(1.001)
    found = {"x": np.array([value]), "y": np.zeros(1, "f2"), "y_cast": np.zeros(1, "f2")}
    run(kernel, found)
    exact = np.float32(value) * np.float32(value)
    assert found["y"][0] == np.float16(exact - np.float32(value))
    assert found["y_cast"][0] == np.float16(np.float32(np.float16(exact)) - np.float32(value))
    assert found["y"][0] != found["y_cast"][0]


def test_inputs_must_be_contiguous() -> None:
    sample = kernels.transpose(4, 6, 1)
    arrays = kernels.arrays(sample)
    arrays["x"] = np.asfortranarray(arrays["x"])
    with pytest.raises(ValueError, match="buffer x is not C-contiguous"):
        run(sample.kernel, arrays)
