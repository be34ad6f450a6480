"""Compositions after NumPy's names, compiled for this machine, against NumPy."""

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.driver import compile

pytestmark = pytest.mark.usefixtures("shared_search")
RNG = np.random.default_rng(2)
A = (RNG.normal(size=(7, 12)) * 9).astype("f")
B = RNG.normal(size=(3, 2)).astype("f")
N = RNG.integers(-1, 6, (7, 2))


def parts(x, b, n):
    return (*g.split(x * 2, [5, 6], 1), *g.array_split(x, 3))


def products(x, b, n):
    return g.kron(b, x), g.cross(x[:, :3], g.exp(b).mT[:1, :])


def order(x, b, n):
    return g.median(x, 1), g.median(x), g.quantile(x, [0.1, 0.75], 0), g.quantile(x * 2, 0.3)


def rounding(x, b, n):
    return g.round(x, 1), g.round(x, -1), g.round(n * 7, -1), g.one_hot(n, 5, "int8")


def expected_parts(x, b, n):
    return (*np.split(x * 2, [5, 6], 1), *np.array_split(x, 3))


def expected_products(x, b, n):
    return np.kron(b, x), np.cross(x[:, :3], np.exp(b).T[:1])


def expected_order(x, b, n):
    quantiles = np.quantile(x, [0.1, 0.75], 0).astype("f"), np.quantile(x * 2, 0.3)
    return np.median(x, 1), np.median(x), *quantiles


def expected_rounding(x, b, n):
    hot = n[..., None] == np.arange(5)
    return np.round(x, 1), np.round(x, -1), np.round(n * 7, -1), hot.astype("i1")


CASES = {
    parts: expected_parts, products: expected_products, order: expected_order,
    rounding: expected_rounding,
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__)
def test_compiled_results_are_numpys(case) -> None:
    inputs = [g.input(name, a.shape, a.dtype) for name, a in zip("xbn", (A, B, N), strict=True)]
    outputs = case(*inputs)
    program = compile(outputs, "cpu", inputs=inputs, cache=Cache(None))
    for found, wanted in zip(program(A, B, N), CASES[case](A, B, N), strict=True):
        assert found.shape == np.shape(wanted) and found.dtype == np.asarray(wanted).dtype
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)
