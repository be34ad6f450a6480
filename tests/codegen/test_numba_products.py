"""The routine for products of matrices against NumPy, with every width of vector registers."""

import importlib.util
from types import ModuleType

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba import njit

from eqsat.codegen.cpu import products as numba_products

FEATURES = {
    "avx512": {"avx512f": True, "fma": True, "sse2": True},
    "avx2": {"fma": True, "sse2": True},
    "sse2": {"sse2": True},
    "neon": {"neon": True},
}


@pytest.fixture(scope="module")
def module(request) -> ModuleType:
    """The module as it is on a machine with other registers; LLVM has its code run on this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llvm, "get_host_cpu_features", lambda: FEATURES[request.param])
        spec = importlib.util.spec_from_file_location(
            f"{numba_products.__name__}_there", numba_products.__file__
        )
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
    return loaded


def check(multiply, rng: np.random.Generator, m: int, n: int, k: int, dtype: str) -> None:
    """Factors and product as parts of larger arrays, either way round, with and without beta."""
    for turned_a, turned_b, beta in ((0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)):
        a = rng.standard_normal((k, m + 3) if turned_a else (m, k + 3)).astype(dtype)
        b = rng.standard_normal((k, n + 5) if not turned_b else (n, k + 5)).astype(dtype)
        c = rng.standard_normal((m, n + 2)).astype(dtype)
        before = c.copy()
        left = a[:, :m].T if turned_a else a[:, :k]
        right = b[:, :n] if not turned_b else b[:, :k].T
        if not beta:
            c[:, :n] = np.nan
        sizes = (a.shape[1], b.ravel(), b.shape[1], a.dtype.type(beta), c.ravel(), c.shape[1])
        multiply(turned_a, turned_b, m, n, k, a.ravel(), *sizes)
        expected = left.astype("f8") @ right.astype("f8") + beta * before[:, :n]
        error = 4 * np.finfo(dtype).eps * (np.abs(left) @ np.abs(right) + 4)
        assert (np.abs(c[:, :n] - expected) <= error).all(), (m, n, k, turned_a, turned_b)
        np.testing.assert_array_equal(c[:, n:], before[:, n:])


TYPES = ("float32", "float64")


OFTEN = (("avx512", "float32"), ("sse2", "float64"))  # the most, and the fewest, in registers


@pytest.mark.parametrize(
    ("module", "dtype"),
    [
        pytest.param(name, dtype, marks=[] if (name, dtype) in OFTEN else pytest.mark.slow)
        for name in FEATURES
        for dtype in TYPES
    ],
    indirect=["module"],
)
def test_products_of_any_size(module: ModuleType, dtype: str) -> None:
    assert module.VECTOR * module.REGISTERS >= module.ROWS * module.WIDE * module.VECTOR
    rng = np.random.default_rng(7)
    for _ in range(25):
        m, n, k = (int(size) for size in rng.integers(1, [70, 90, 300]))
        check(module._product, rng, m, n, k, dtype)
    check(module._product, rng, 1, 1, 1, dtype)
    check(module._product, rng, 3, 2, 0, dtype)
    check(module._product, rng, module.HEIGHT + 17, 40, module.DEPTH + 1, dtype)
    check(module._product, rng, 30, module.WIDTH + 33, 9, dtype)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_kernels_call_it_by_its_symbol(dtype: str) -> None:
    multiply = numba_products.product_routine(dtype)

    @njit
    def call(turned_a, turned_b, m, n, k, a, ld_a, b, ld_b, beta, c, ld_c):
        multiply(turned_a > 0, turned_b > 0, m, n, k, a, 0, ld_a, b, 0, ld_b, beta, c, 0, ld_c)

    check(call, np.random.default_rng(8), 33, 47, 290, dtype)


def test_what_is_not_finite_stays_in_its_row_and_column() -> None:
    a, b, c = np.ones((20, 40), "f4"), np.ones((40, 50), "f4"), np.empty((20, 50), "f4")
    a[3, 7], b[9, 11] = np.nan, np.inf
    numba_products._product(
        0, 0, 20, 50, 40, a.ravel(), 40, b.ravel(), 50, a[0, 0] - 1, c.ravel(), 50
    )
    expected = np.full((20, 50), 40, "f4")
    expected[:, 11], expected[3] = np.inf, np.nan
    np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [255, 272, 300, 2049, 2063, 2080])
def test_rows_that_begin_between_lines(columns: int, dtype: str) -> None:
    """Rows as far apart as whole vectors, of which the first begins anywhere in a line."""
    rng, rows, depth = np.random.default_rng(9), 17, 5
    lanes = numba_products.VECTOR // np.dtype(dtype).itemsize
    step = -(-columns // lanes) * lanes
    a = rng.integers(-9, 9, (rows, depth)).astype(dtype)
    b = rng.integers(-9, 9, (depth, columns)).astype(dtype)
    whole = np.empty((rows + 2) * step + lanes, dtype)
    line = -whole.ctypes.data % numba_products.VECTOR // whole.itemsize
    for offset in range(lanes):
        whole[:] = -7
        first = line + offset + lanes
        numba_products._product(
            0, 0, rows, columns, depth, a.ravel(), depth, b.ravel(), columns,
            a.dtype.type(0), whole[first:], step,
        )  # fmt: skip
        rest = np.full_like(whole, -7)
        made = rest[first : first + rows * step].reshape(rows, step)
        made[:, :columns] = a @ b
        np.testing.assert_array_equal(whole, rest)
