"""Factors of products that are stored first, where kernels that compute them take far longer; and
reductions that are stored beside others of the same points.
"""

import numpy as np
import pytest
from fast_products import H200, normal, planned

import eqsat
import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.kernel.ir import Contract, Kernel, Load, Map, Reduce
from eqsat.program import Launch

pytestmark = pytest.mark.usefixtures("shared_search")


def launches(outputs) -> tuple[Launch, ...]:
    return planned(outputs, H200).parts.launches


def operations(kernel: Kernel) -> set[str]:
    """The matrix operations of a kernel."""
    return {s.operation for s in kernel.statements() if isinstance(s, Contract) and s.operation}


def seconds(outputs) -> float:
    return sum(launch.seconds for launch in launches(outputs))


def plain(m: int, n: int, k: int, dtype: str = "float32") -> float:
    """Seconds of a product of what lies in memory."""
    return seconds(g.input("x", (m, k), dtype) @ g.input("w", (k, n), dtype))


@pytest.mark.parametrize(
    "function", [pytest.param(g.tanh, marks=pytest.mark.slow), lambda x: g.maximum(x, 0.0)]
)
def test_a_computed_float32_factor_is_stored_for_products_of_terms(function):
    x, w = g.input("x", (2048, 2048)), g.input("w", (2048, 2048))
    found = launches(function(x) @ w)
    assert any("wgmma" in one for one in operations(found[-1].kernel))
    assert sum(one.seconds for one in found) < 1.15 * plain(2048, 2048, 2048)


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
def test_joined_factors_are_stored(dtype):
    parts = [g.input(name, (16384, 512), dtype) for name in "abc"]
    found = launches(g.concat(parts, axis=-1) @ g.input("w", (1536, 1024), dtype))
    assert any("wgmma" in one for one in operations(found[-1].kernel))
    assert sum(one.seconds for one in found) < 1.6 * plain(16384, 1024, 1536, dtype)


def test_gathered_rows_are_stored_for_products_of_terms():
    table, ids = g.input("table", (32000, 256)), g.input("ids", (4096,), "int32")
    first, *_, last = launches(g.take(table, ids, axis=0) @ g.input("w", (256, 256)))
    assert not operations(first.kernel) and operations(last.kernel)
    assert not any(load.access.coordinates for load in loads(last.kernel))


@pytest.mark.slow
def test_sums_of_weights_are_stored_as_the_weights_lie():
    """Means of columns of a product are products with sums of columns of weights."""
    x, w = g.input("x", (1024, 4096), "bfloat16"), g.input("w", (4096, 4096), "bfloat16")
    products = g.reshape(g.astype(x @ w.T, "float32"), (1024, 256, 16))
    found = launches(g.max(g.gelu(g.mean(products, axis=2)), axis=1))
    (read,) = loads(found[0].kernel)
    (store,) = found[0].kernel.phases[-1].stores
    (last,) = [str(atom) for atom, stride in read.access.address.terms if stride == 1]
    assert (last, 1) in store.access.address.terms
    assert [bool(operations(one.kernel)) for one in found[:2]] == [False, True]


def loads(kernel: Kernel) -> list[Load]:
    return [s for s in kernel.statements() if isinstance(s, Load)]


@pytest.mark.slow
def test_a_variance_is_not_computed_beside_a_product():
    """Each tile of columns would read them all again."""
    x, y = g.input("x", (2048, 512)), g.input("y", (2048, 512))
    x, y = x - g.mean(x, axis=0), y - g.mean(y, axis=0)
    deviations = g.expand_dims(g.std(x, axis=0), 1) * g.std(y, axis=0)
    for launch in launches(x.T @ y / 2048.0 / deviations):
        summed = {s.over for s in launch.kernel.statements() if isinstance(s, Reduce)}
        assert not (summed and operations(launch.kernel))


def log_softmax(x: g.Tensor) -> g.Tensor:
    x = g.astype(x, "float32") / 2.0
    x = x - g.max(x, axis=1, keepdims=True)
    return x - g.log(g.sum(g.exp(x), axis=1, keepdims=True))


def distilled(rows: int, columns: int, dtype: str) -> g.Tensor:
    s, t = (log_softmax(g.input(name, (rows, columns), dtype)) for name in "st")
    return g.sum(g.exp(t) * (t - s)) / float(rows)


def test_maxima_are_stored_beside_what_is_summed_below_them():
    """Rows are read twice, not once for each of four reductions and once more."""
    found = launches(distilled(8192, 32000, "bfloat16"))
    read = sum(b.bytes for one in found for b in one.kernel.buffers if b.role == "input")
    assert read <= 4.01 * 8192 * 32000 * 2
    assert not any(s.op == "reciprocal" for one in found for s in one.kernel.statements()
                   if isinstance(s, Map))  # fmt: skip


def test_a_distillation_loss_is_right():
    given = {"s": (some := normal(37, 93)), "t": some[::-1].copy()}  # else the loss is 0
    out = distilled(37, 93, "float32")
    (wanted,) = g.evaluate([out], given)
    program = eqsat.compile(out, spec="cpu", cache=Cache(None))
    np.testing.assert_allclose(program(**given), wanted, rtol=1e-5)
