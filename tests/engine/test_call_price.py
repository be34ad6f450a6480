"""Products that a library computes: in how many calls."""

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.driver import compile, plan
from eqsat.graph import Tensor
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")
CPU = load("cpu")


def outer(points: int, names: tuple[int, int]) -> Tensor:
    """Outer products of the features of each two points, summed over 32 rows."""
    a, b = (g.input(n, (32, points, size)) for n, size in zip("ab", names, strict=True))
    return g.einsum("sic,sjd->ijcd", a, b)


@pytest.mark.parametrize("names", [(16, 16), (8, 24)])
def test_rows_that_are_one_index_are_one_call(names):
    """No 9216 calls of 8 x 8 x 32: tiles have all features of a point, whose rows lie beside those
    of the next.
    """
    (launch,) = plan(outer(48, names), CPU, cache=Cache(None)).parts.launches
    axes = launch.kernel.grid
    assert [axis.tile for axis in axes[2:]] == [*names]
    assert all(axis.tile > 1 for axis in axes[:2])


def test_it_is_right():
    out = outer(12, (16, 8))
    program = compile(out, CPU, cache=Cache(None))
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((32, 12, 16), "f"), rng.standard_normal((32, 12, 8), "f")
    calls = [one for one in program.source().splitlines() if "(True, False, " in one]
    assert [len(call) - len(call.lstrip()) for call in calls] == [8]  # in the loop over tiles alone
    wanted = np.einsum("sic,sjd->ijcd", a.astype(float), b.astype(float))
    np.testing.assert_allclose(program(a, b), wanted, atol=1e-4)


def test_scores_of_attention_are_not_stored():
    """Routines wait to write what they have made, and what is read again is near."""
    q, k, v = (g.input(name, (1, 8, 1024, 64)) for name in "qkv")
    assert len(plan(g.attention(q, k, v), CPU, cache=Cache(None)).parts.launches) == 1
