"""The order of prices where windows overlap, and of products that share no factors, as measured.

Seconds on an H200, of kernels that differ in tiles alone: of a 3 x 3 maximum with step 2 over
float32[4096, 112, 112], a 3 x 3 sum with weights over float32[32, 144, 56, 56].
"""

from math import prod

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.driver import plan
from eqsat.graph.dtypes import float32
from eqsat.graph.index import add, const, scale, var
from eqsat.kernel.ir import Contract, Guard, Kernel, Load
from eqsat.price.pricer import Pricer
from eqsat.price.rates import Blocking
from eqsat.price.tiling import Tiling
from eqsat.price.window import held_elements, windowed
from eqsat.specs import load
from eqsat.terms.algebra import Facts, Read, Term, Universe
from eqsat.terms.form import Form, Stored, form

pytestmark = pytest.mark.usefixtures("shared_search")
H200 = load("h200")


def pooled(planes: int, side: int, step: int, weighted: bool = False) -> Form:
    """y[c,i,j] over r, s of x[c, step i + r - 1, step j + s - 1]: the largest, or weighted sums"""
    out = side // step
    names = {"c": planes, "i": out, "j": out, "r": 3, "s": 3}
    universe = Universe(list(names), names)
    places = [add(scale(var(a), step), var(b), const(-1)) for a, b in ("ir", "js")]
    address = add(scale(var("c"), side * side), scale(places[0], side), places[1])
    guards = tuple(Guard(place, 0, side) for place in places)
    x = Term("read", Read("x", float32, address, guards))
    over = universe.mask("rs")
    value = Term("reduce_max", over, x)
    if weighted:
        weights = add(scale(var("c"), 9), scale(var("r"), 3), var("s"))
        w = Term("read", Read("w", float32, weights))
        value = Term("contract", over, w, x, "")
    return form([Stored("y", value, tuple("cij"), float32)], Facts(universe))


def seconds(made: Form, side: int, *choices: tuple[int, int, int]) -> list[float]:
    """Prices of tiles of c, i and j, of 128 threads."""
    columns = [np.array(column, float) for column in zip(*choices, strict=True)]
    tiles = dict(zip("cij", columns, strict=True))
    one = np.ones(len(choices))
    blocking = Blocking({}, 128 * one, one, False, one, one, 0 * one)
    pricer = Pricer(H200, frozenset(), {"x": 4 * made.extents["c"] * side**2})
    return pricer.price(made, tiles, blocking).seconds.tolist()


def test_of_pooling_wide_tiles_of_four_points_a_thread_are_the_fastest() -> None:
    """Measured 61, 71 and 82 microseconds."""
    found = seconds(pooled(4096, 112, 2), 112, (2, 8, 32), (1, 8, 32), (1, 16, 16))
    assert found == sorted(found) and found[-1] > 1.08 * found[0]


def test_of_weighted_windows_rows_side_by_side_are_faster_than_points_that_share_none() -> None:
    """Measured 35, 40 and 57 microseconds."""
    made = pooled(32 * 144, 56, 1, weighted=True)
    found = seconds(made, 56, (4, 8, 32), (2, 8, 32), (16, 1, 32))
    assert found == sorted(found) and found[-1] > 1.2 * found[0]


@pytest.mark.parametrize(
    ("tile", "elements"),
    [((2, 8, 32), 18), ((4, 8, 32), 30), ((16, 1, 32), 36), ((64, 8, 32), 128 * 9)],
)
def test_a_thread_holds_what_its_points_share_once(tile, elements: int) -> None:
    """R rows of 3 x 3 windows: 3 (R + 2) elements; all of them where that is too many."""
    made = pooled(32 * 144, 56, 1, weighted=True)
    one = np.ones(1)
    tiles = {name: one * size for name, size in zip("cij", tile, strict=True)}
    blocking = Blocking({}, 128 * one, one, False, one, one, 0 * one)
    tiling = Tiling(Pricer(H200, frozenset()), made, tiles, blocking)
    (x,) = (t for t in made.terms if windowed(tiling, t))
    assert held_elements(tiling, x, windowed(tiling, x)).tolist() == [elements]


def test_of_windows_too_large_to_hold_a_thread_holds_those_along_a_row() -> None:
    """Channels last, 7 x 7: of four pixels and eight channels ten places at a time, seven times.
    Measured on an H200, 77 microseconds; 98 and 108 with two pixels for each thread.
    """
    x = g.input("x", (32, 56, 56, 128), "bfloat16")
    w = g.input("w", (128, 1, 7, 7), "bfloat16")
    y = g.conv(x, w, padding=3, groups=128, layout="NHWC")
    kernel = plan(y, H200, cache=Cache(None)).parts.launches[-1].kernel
    assert isinstance(kernel, Kernel)
    tile = prod(axis.tile for axis in kernel.grid)
    assert tile == 32 * kernel.threads and kernel.grid[-1].tile >= 8


@pytest.mark.parametrize("turned", [False, True])
def test_a_matrix_times_a_vector_is_read_into_registers(turned: bool) -> None:
    """Measured 246 microseconds against 364 through shared memory."""
    a, v = g.input("a", (8192, 16384)), g.input("v", (8192 if turned else 16384,))
    product = v @ a if turned else a @ v
    kernels = [one.kernel for one in plan(product, H200, cache=Cache(None)).parts.launches]
    statements = [s for kernel in kernels for s in kernel.statements()]
    assert not any(isinstance(s, Contract) for s in statements)
    assert all(s.memory == "registers" for s in statements if isinstance(s, Load))


def test_short_sums_with_weights_are_products_that_each_thread_adds_up() -> None:
    x, w = g.input("x", (32, 144, 56, 56)), g.input("w", (144, 1, 3, 3))
    (launch,) = plan(g.conv(x, w, padding=1, groups=144), H200, cache=Cache(None)).parts.launches
    (product,) = (s for s in launch.kernel.statements() if isinstance(s, Contract))
    assert not product.operation
    assert all(s.memory == "registers" for s in launch.kernel.statements() if isinstance(s, Load))


@pytest.mark.parametrize("side", [9, 13, 31])
def test_large_windows_are_streamed_along_rows_and_shared_across_them(side: int) -> None:
    """A thread holds what the windows of its points share, of one place along rows or some."""
    x, w = g.input("x", (32, 96, 56, 56)), g.input("w", (96, 1, side, side))
    product = g.conv(x, w, padding=side // 2, groups=96)
    for value in (product, g.max_pool(x, side, stride=1, padding=side // 2)):
        (launch,) = plan([value], H200, cache=Cache(None)).parts.launches
        ((stream,),) = (phase.stream for phase in launch.kernel.phases if phase.stream)
        (whole,) = launch.kernel.inner
        assert stream.tile * whole.tile <= 64 and stream.extent % stream.tile == 0
        assert stream.name > whole.name


def test_a_long_window_of_one_axis_has_a_plan() -> None:
    x, w = g.input("x", (8, 64, 4096)), g.input("w", (64, 1, 127))
    (launch,) = plan([g.conv(x, w, padding=63, groups=64)], H200, cache=Cache(None)).parts.launches
    once = 2 * 8 * 64 * 4096 * 4 / (H200.main_memory.bandwidth_gb_per_s * 1e9)
    assert launch.seconds < 40 * once


@pytest.mark.parametrize("far", [1, 64])
def test_neighbours_of_a_point_come_from_memory_once(far: int) -> None:
    """Rows a little apart are in a cache still; arrays apart are not."""
    x = g.input("x", (8192 + 2 * far, 8192))
    rows = [x[n * far : n * far + 8192] for n in range(3)]
    (near,) = plan([rows[0] + rows[1] + rows[2]], H200, cache=Cache(None)).parts.launches
    y, z = g.input("y", (8192, 8192)), g.input("z", (8192, 8192))
    (apart,) = plan([rows[0] + y + z], H200, cache=Cache(None)).parts.launches
    (halves,) = plan([x[:4096] + x[4096:8192]], H200, cache=Cache(None)).parts.launches
    once = 2 * 8192 * 8192 * 4 / (H200.main_memory.bandwidth_gb_per_s * 1e9)
    assert near.seconds < 1.6 * once < 2.0 * once < apart.seconds
    assert halves.seconds > 0.7 * once


def test_long_sums_through_windows_are_spread_over_threads() -> None:
    """Each thread of 256 that sum over 56 x 56 places has about as many of them as its share."""
    names = {"c": 32, "r": 3, "s": 3, "i": 56, "j": 56}
    universe = Universe(list(names), names)
    places = [add(var(a), var(b), const(-1)) for a, b in ("ir", "js")]
    address = add(scale(var("c"), 56 * 56), scale(places[0], 56), places[1])
    x = Term("read", Read("x", float32, address, tuple(Guard(p, 0, 56) for p in places)))
    d = Term("read", Read("d", float32, add(scale(var("c"), 3136), scale(var("i"), 56), var("j"))))
    value = Term("reduce_sum", universe.mask("ij"), Term("mul", x, d))
    made = form([Stored("y", value, tuple("crs"), float32)], Facts(universe))
    one = np.ones(1)
    tiles = {"c": one, "r": one, "s": one}
    blocking = Blocking({}, 256 * one, one, False, one, one, 0 * one)
    tiling = Tiling(Pricer(H200, frozenset()), made, tiles, blocking)
    held = held_elements(tiling, x, windowed(tiling, x))
    assert 3136 / 256 <= held[0] <= 2 * 3136 / 256


def test_windows_are_summed_before_an_operation_multiplies_the_sums() -> None:
    """Its threads share no window: each would read all places of each by itself."""
    x, d, w = (
        g.input(name, shape, "float16")
        for name, shape in (
            ("x", (32, 192, 56, 56)), ("d", (192, 1, 3, 3)), ("w", (32, 192, 1, 1))
        )
    )  # fmt: skip
    launches = plan(g.conv(g.relu(g.conv(x, d, padding=1, groups=192)), w), H200).parts.launches
    assert len(launches) == 2
    assert sum(launch.seconds for launch in launches) < 6e-5


@pytest.mark.parametrize("points", [16, 32])
def test_a_tile_has_short_rows_enough_for_all_threads(points: int) -> None:
    """A softmax over some experts for each of many tokens takes what memory does, and little more;
    windows as short have tiles of their own.
    """
    shape = (1 << 24) // points, points
    x, y = g.input("x", shape, "float16"), g.input("y", (64, 16, 256, 256))
    (launch,) = plan(g.softmax(x), H200, cache=Cache(None)).parts.launches
    memory = 2 * 2 * prod(shape) / 4.3e12
    assert launch.seconds < 1.2 * memory and isinstance(launch.kernel, Kernel)
    assert launch.kernel.grid[0].tile * points >= 16 * launch.kernel.threads
    (pooled,) = plan(g.max_pool(y, 4, stride=1), H200, cache=Cache(None)).parts.launches
    assert isinstance(pooled.kernel, Kernel)
    assert all(axis.tile < 128 for axis in pooled.kernel.grid)
