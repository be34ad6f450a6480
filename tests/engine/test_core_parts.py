"""Long sums of few results on a CPU: a part for each core, one pass where no cache helps."""

import numpy as np
import pytest

import eqsat
from eqsat import graph as G
from eqsat import specs

pytestmark = pytest.mark.usefixtures("shared_search")

LONG = 1 << 23


def planned(make, *shape: int):
    x = eqsat.input("x", shape)
    return eqsat.compile(make(x), specs.load("cpu"))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: G.sum(x), lambda x: x.sum()),
        (lambda x: G.argmax(x), lambda x: x.argmax()),
        (lambda x: G.logsumexp(x, axis=0), lambda x: np.log(np.exp(x).sum())),
        (lambda x: G.var(x), lambda x: x.var()),
    ],
    ids=["sum", "argmax", "logsumexp", "variance"],
)
def test_each_core_reduces_a_part(make, expected):
    program = planned(make, LONG)
    assert any("split i0 2" in kernel.rules for kernel in program.kernels)
    x = np.random.default_rng(1).standard_normal(LONG).astype("f4")
    np.testing.assert_allclose(program(x), expected(x.astype("f8")), rtol=2e-3)


@pytest.mark.parametrize("shape", [(1000,), (2, LONG // 2)])
def test_short_sums_and_those_of_a_result_for_each_core_are_whole(shape):
    program = planned(lambda x: G.sum(x, axis=-1), *shape)
    assert len(program.kernels) == 1


def test_a_row_that_no_cache_holds_is_not_passed_over_in_one_kernel():
    assert len(planned(G.softmax, LONG).kernels) > 1
    assert len(planned(G.softmax, LONG // 1024, 1024).kernels) == 1


@pytest.mark.parametrize("rows", [pytest.param(2048, marks=pytest.mark.slow), 2047])
def test_what_lies_along_the_axis_is_stored_by_the_kernel_of_its_part(rows):
    """Gradients by rows, and by what all rows share: one pass, in two parts."""
    x, d = (eqsat.input(name, (rows, 256)) for name in "xd")
    w = eqsat.input("w", (256,))
    outputs = list(G.grad(G.sum(G.layer_norm(x, w) * d), [x, w]))
    program = eqsat.compile(outputs, specs.load("cpu"))
    first, last = program.kernels
    assert [len(k.phases[-1].stores) for k in (first, last)] == [2, 1]
    assert "split i0 2" in first.rules and first.tiles == 2
    rng = np.random.default_rng(2)
    arrays = {a.name: rng.standard_normal(a.shape).astype("f4") for a in program.arguments}
    for found, exact in zip(program(**arrays), G.evaluate(outputs, arrays, "f8"), strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)
    assert "not traced" not in program.explain()
