"""What reads of a point's neighbours cost on a GPU, and which tiles that leads to."""

from itertools import product
from math import prod

import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.place.roles import neighbours
from eqsat.driver import plan
from eqsat.program import Launch
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")

H200 = load("h200")


def found(places: list[tuple[int, ...]], size: int, count: int = 1) -> list[Launch]:
    """The best kernels for a sum over the neighbours of each point of a cube."""
    u, inside = g.input("u", (size, size, size)), size - 2
    terms = [
        u[i : i + inside, j : j + inside, k : k + inside] * (1.0 + i + 2 * j + 3 * k)
        for i, j, k in places
    ]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    first, *_ = plan([total], H200, candidates=count, cache=Cache(None)).parts.launches
    return [first, *(other[0] for other in first.alternatives)]


def shared(launch: Launch) -> int:
    """Points of a thread that share what they read of neighbours."""
    axes = launch.kernel.axes()
    return prod(axes[name].tile for name in neighbours(launch.kernel))


def test_threads_share_what_their_points_read_of_neighbours():
    """Of 27 neighbours, 2 x 4 points of a thread read 72 cells in place of 216."""
    (best,) = found(list(product(range(3), repeat=3)), 130)
    assert shared(best) == 8 and len(neighbours(best.kernel)) == 2
    assert emit(best.kernel).text.count("float near_") == 3


def test_more_is_shared_the_sooner_a_kernel_ends():
    kernels = found(list(product(range(3), repeat=3)), 130, 24)
    seconds = {count: one.seconds for one in reversed(kernels) if (count := shared(one))}
    assert len(seconds) > 1 and min(seconds, key=seconds.get) == max(seconds)


def test_neighbours_along_rows_alone_are_read_by_lanes_side_by_side():
    (best,) = found([(1, 1, k) for k in range(3)], 130)
    assert not neighbours(best.kernel) and "near_" not in emit(best.kernel).text


def test_neighbours_that_may_be_missing_are_shared_and_priced_so():
    x = g.input("x", (512, 4096))
    blurred = g.compute(
        (512, 4096), lambda i, j: x.at(i - 1, j, fill=0) + x[i, j] + x.at(i + 1, j, fill=0)
    )
    (best,) = plan([blurred], H200, cache=Cache(None)).parts.launches
    assert neighbours(best.kernel) == {"i0"} and emit(best.kernel).text.count("float near_") == 1
    assert best.kernel.axes()["i0"].tile > 1
