"""Sums beside products: of rows or of columns they are free, of both they are computed again."""

import pytest
from fast_products import H200

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.driver import plan
from eqsat.kernel.ir import Contract, Kernel, Reduce

pytestmark = pytest.mark.usefixtures("shared_search")


def scores(q_norm: bool, k_norm: bool) -> g.Tensor:
    """softmax(q k) v of eight heads of 1592 x 96 and 1224 x 96, some of them normalised."""
    rows = {"q": 1592, "k": 1224, "v": 1224}
    q, k, v = (g.input(name, (1, 8, n, 96), "float16") for name, n in rows.items())
    q = g.rms_norm(q) if q_norm else q
    k = g.rms_norm(k) if k_norm else k
    return g.softmax(q @ k.mT * 0.1) @ v


def sides_summed(kernel: Kernel) -> int:
    """How many sides of a product by an operation are summed over what it sums over."""
    statements = list(kernel.statements())
    found = [0]
    for product in statements:
        if isinstance(product, Contract) and product.operation:
            own = [s for s in statements if isinstance(s, Reduce) and {*s.over} & {*product.over}]
            sides = {frozenset(s.indices) for s in own if {*s.indices} < {*product.indices}}
            found.append(len(sides))
    return max(found)


@pytest.mark.parametrize(
    ("q_norm", "k_norm"), [(True, True), pytest.param(True, False, marks=pytest.mark.slow)]
)
def test_norms_of_both_factors_are_not_computed_beside_their_product(q_norm, k_norm):
    program = plan(scores(q_norm, k_norm), H200, cache=Cache(None))
    kernels = [launch.kernel for launch in program.parts.launches]
    assert all(isinstance(kernel, Kernel) and sides_summed(kernel) < 2 for kernel in kernels)
    assert sum(launch.seconds for launch in program.parts.launches) < 60e-6


def test_the_norm_of_one_factor_is():
    x, w = g.input("x", (4096, 1024), "bfloat16"), g.input("w", (1024, 4096), "bfloat16")
    (launch,) = plan(g.rms_norm(x) @ w, H200, cache=Cache(None)).parts.launches
    assert sides_summed(launch.kernel) == 1
