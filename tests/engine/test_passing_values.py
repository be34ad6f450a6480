"""Values that threads make element by element, and hold none of, in prices and schedules."""

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.driver import plan
from eqsat.kernel.ir import Kernel, Map, Reduce
from eqsat.planned import Planned
from eqsat.schedule.placed import _computed
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")
H200 = load("h200")


def planned(out: g.Tensor) -> Planned:
    return plan([out], H200, cache=Cache(None))


def distances(n: int, m: int, d: int) -> g.Tensor:
    """Squares of what lies between points, added up over coordinates."""
    x, y = g.input("x", (n, d)), g.input("y", (m, d))
    return g.sum(g.square(g.expand_dims(x, 1) - y), axis=2)


def held(kernel: Kernel) -> set[str]:
    return {s.op if isinstance(s, Map) else type(s).__name__ for s in _computed(kernel)}


def test_what_one_sum_alone_reads_is_not_held():
    (launch,) = planned(g.sqrt(distances(512, 512, 16))).parts.launches
    assert {s.op for s in launch.kernel.statements() if isinstance(s, Map)} >= {"sub", "sqrt"}
    assert "sqrt" in held(launch.kernel) and "sub" not in held(launch.kernel)
    assert any(isinstance(s, Reduce) for s in _computed(launch.kernel))


def test_responsibilities_of_a_mixture_are_one_kernel():
    """What points times centres times coordinates are takes no registers, so that rows fit."""
    x, m, s = (g.input(name, (n, 16)) for name, n in (("x", 262144), ("m", 64), ("s", 64)))
    near = g.sum(g.square((g.expand_dims(x, 1) - m) * g.exp(s)), axis=2)
    assert len(planned(g.softmax(g.input("p", (64,)) - 0.5 * near)).parts.launches) == 1


def test_rows_of_few_results_cost_what_their_sectors_do():
    """A row of 8 of 8192 distances is one sector, however long the row is that they lie in."""
    values, _ = g.top_k(g.input("d", (8192, 8192)), 8, largest=False)
    launches = planned(values).parts.launches
    sectors = 8192 * 8 * 32 / (H200.main_memory.bandwidth_gb_per_s * 1e9)
    assert launches[-1].seconds < 4 * (sectors + H200.graph_launch_latency_us * 1e-6)


def swept(x: g.Tensor) -> g.Tensor:
    """The mean of what lies around each place."""
    p = g.pad(x, ((1, 1), (1, 1)))
    return 0.25 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:])


def test_each_sweep_of_a_stencil_costs_what_the_first_does():
    """What a kernel leaves has a size, as inputs have: neighbours come from a cache."""
    x = g.input("x", (8192, 8192))
    launches = planned(swept(swept(swept(swept(x))))).parts.launches
    first, second = (launch.seconds for launch in launches)  # of two sweeps each
    assert np.isclose(first, second, rtol=0.02)


def test_two_sweeps_are_one_where_their_neighbours_are_near():
    """Each place is read a few times more, from the cache, but nothing lies in memory between."""
    x = g.input("x", (8192, 8192))
    (once,), (twice,) = (planned(y).parts.launches for y in (swept(x), swept(swept(x))))
    assert twice.seconds < 1.8 * once.seconds
