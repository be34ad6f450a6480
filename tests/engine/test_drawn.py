"""Candidates that are drawn at random from all legal ones, whatever their price."""

from functools import cache

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.fit import misfit
from eqsat.driver import compile, plan
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")


def product() -> g.Tensor:
    return g.input("a", (512, 1024), "bfloat16") @ g.input("b", (1024, 768), "bfloat16")


def drawn_of(seed: int, count: int, store: Cache | None = None):
    (launch,) = plan(
        product(), "h200", cache=store or Cache(None), candidates=2, drawn=count, seed=seed
    ).parts.launches
    return launch, [other for other in launch.alternatives if other[0].drawn]


@cache
def twelve():
    return drawn_of(0, 12)


def test_they_are_other_kernels_that_fit() -> None:
    launch, drawn = twelve()
    kernels = [launch.kernel, *(other[-1].kernel for other in launch.alternatives)]
    assert len(drawn) == 12 and len(launch.alternatives) == 13 and not launch.drawn
    assert len({repr(other) for other in launch.alternatives}) == 13
    spec = load("h200")
    assert not any(misfit(kernel, spec) for kernel in kernels)
    (plain,) = plan(product(), "h200", cache=Cache(None), candidates=2).parts.launches
    assert plain.kernel == launch.kernel and plain.alternatives == launch.alternatives[:1]


def test_their_price_is_no_reason() -> None:
    launch, drawn = twelve()
    prices = [sum(one.seconds for one in other) for other in drawn]
    assert prices != sorted(prices) and max(prices) > 3 * launch.seconds


def test_a_seed_draws_the_same_again_and_another_others(tmp_path) -> None:
    store = Cache(tmp_path)
    first, again = (drawn_of(3, 12, store)[1] for _ in range(2))
    assert first == again != twelve()[1]
    assert all(launches[0].drawn for launches in again)


def test_each_computes_the_same_on_the_host() -> None:
    x = g.input("x", (33, 70))
    array = np.random.default_rng(0).normal(size=(33, 70)).astype("f")
    program = compile(g.softmax(x), "cpu", cache=Cache(None), candidates=1, drawn=3, tune=True)
    (expected,) = g.evaluate([g.softmax(x)], {"x": array})
    np.testing.assert_allclose(program(array), expected, rtol=1e-5)
    assert program.parts.launches[0].measured
