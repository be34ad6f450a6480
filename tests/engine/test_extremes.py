"""Values that are compared with their own extremum: made once, in the kernel that needs them."""

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.driver import compile, plan
from eqsat.kernel.ir import Contract, Load, Reduce

pytestmark = pytest.mark.usefixtures("shared_search")
RNG = np.random.default_rng(2)


def distances(points: int, centres: int, d: int) -> g.Tensor:
    x, c = g.input("x", (points, d)), g.input("c", (centres, d))
    return g.sum(c * c, axis=1) - 2.0 * (x @ c.T)


def test_the_nearest_centre_is_found_where_the_product_is() -> None:
    """No kernel writes a value for each point and centre."""
    near = g.argmin(distances(1_000_000, 256, 64), axis=1)
    parts = plan(near, "h200", cache=Cache(None)).parts
    made = [b for b in parts.buffers.values() if b.role != "input" and 1_000_000 in b.shape]
    assert all(256 not in buffer.shape for buffer in made)
    (last,) = [one.kernel for one in parts.launches if parts.outputs[0][0] in one.buffers]
    assert any(isinstance(s, Reduce) and s.monoid == "min" for s in last.statements())


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("points", "centres", "d"), [(70, 5, 9), (3, 700, 4), (257, 64, 33)])
def test_places_are_right_whatever_rounds(points: int, centres: int, d: int, largest: bool) -> None:
    """Ties and NaN too; a place beyond the row would tell that none equalled its extremum."""
    found = distances(points, centres, d)
    best = g.argmax(found, axis=1) if largest else g.argmin(found, axis=1)
    top = g.max(found, axis=1) if largest else g.min(found, axis=1)
    x = RNG.normal(size=(points, d)).astype("f")
    c = RNG.normal(size=(centres, d)).astype("f")
    x[0], c[-1] = np.nan, c[0]
    places, values = compile((best, top), "cpu", cache=Cache(None))(x=x, c=c)
    wide = (c.astype("d") ** 2).sum(1) - 2 * x.astype("d") @ c.T.astype("d")
    assert places.min() >= 0 and places.max() < centres and places[0] == 0
    chosen = np.take_along_axis(wide, places[:, None], 1)[1:, 0]
    best_of = wide.max(1) if largest else wide.min(1)
    np.testing.assert_allclose(chosen, best_of[1:], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(values[1:], best_of[1:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", ["cpu", "h200", pytest.param("a100", marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", [(4, 100_000), (100_000, 4), (3000, 3000)])
def test_no_kernel_makes_a_value_that_it_compares_with_an_extremum_in_memory(
    spec: str, shape: tuple[int, int]
) -> None:
    x = g.input("x", shape)
    outputs = (g.argmax(g.exp(x) * 3.0 - x, axis=1), g.argmin(g.sin(x) + x * x, axis=0))
    for launch in plan(outputs, spec, cache=Cache(None)).parts.launches:
        for s in launch.kernel.statements():
            if getattr(s, "op", "") == "equal":
                made = {t.name: t for t in launch.kernel.statements()}
                one, other = (made.get(name) for name in s.arguments)
                loads = [isinstance(t, Load) for t in (one, other)]
                assert loads != [False, True], launch.kernel


def test_a_streamed_row_is_met_once() -> None:
    """A long row is carried with its extremum; no second loop computes the product anew."""
    near = g.argmin(distances(64, 100_000, 8), axis=1)
    for spec in ("h200", "a100"):
        for launch in plan(near, spec, cache=Cache(None)).parts.launches:
            loops = [phase for phase in launch.kernel.phases if phase.stream]
            products = [[s for s in phase.body if isinstance(s, Contract)] for phase in loops]
            assert sum(map(bool, products)) <= 1
