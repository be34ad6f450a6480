"""Windows that threads take whole: what of an address tells them, and plans that do."""

import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.driver import plan
from eqsat.graph.dtypes import bfloat16
from eqsat.graph.index import add, const, floordiv, mod, scale, simplify, var
from eqsat.layout.relayout import is_run, overlapping, window_rows
from eqsat.specs import load
from eqsat.terms.algebra import Read

pytestmark = pytest.mark.usefixtures("shared_search")
H200 = load("h200")
EXTENTS = {"i": 2 * 14 * 14, "k": 27}


def pixels(channels: int) -> Read:
    """3 x 3 windows of 14 x 14 places of some channels, padded, by numbers of pixels."""
    i, k = var("i"), var("k")
    down = add(mod(floordiv(i, 14), 14), floordiv(k, 3 * channels), const(-1))
    across = add(mod(i, 14), mod(floordiv(k, channels), 3), const(-1))
    place = add(scale(floordiv(i, 196), 196), scale(down, 14), across)
    address = add(scale(place, channels), mod(k, channels))
    return Read("x", bfloat16, simplify(address, EXTENTS | {"k": 9 * channels}))


@pytest.mark.parametrize(("channels", "part"), [(3, 1 / 3), (5, 1 / 3), (8, 1.0), (64, 1.0)])
def test_of_neighbours_that_no_vectors_copy_two_thirds_are_the_same(channels, part):
    """A run of three places, one step on; whole vectors of channels are no single elements."""
    assert overlapping(pixels(channels)) == pytest.approx(part)


def test_weights_in_another_order_are_one_run():
    """w[o, c, r, s] by places r, s, c of a window: each output's 27 lie together."""
    o, k = var("o"), var("k")
    by_place = add(scale(mod(k, 3), 9), floordiv(k, 3))
    address = simplify(add(scale(o, 27), by_place), {"o": 64, "k": 27})
    assert is_run(address, (("k", 27),))
    assert not is_run(address, ())  # a chunk of them does not
    apart = simplify(add(scale(o, 270), scale(by_place, 10)), {"o": 64, "k": 27})
    assert not is_run(apart, (("k", 27),))


def test_rows_of_windows_are_told_from_places_within():
    near, guards = pixels(3).address, [add(mod(var("i"), 14), floordiv(var("k"), 9))]
    assert window_rows(near, guards, {"k"}, 2) == {"i": 3}
    assert not window_rows(near, guards, set(), 2)  # nothing is within
    assert not window_rows(pixels(64).address, guards, {"k"}, 2)  # 128 bytes apart
    plain = add(scale(var("i"), 3), var("k"))
    assert not window_rows(plain, [], {"k"}, 2)  # nothing is asked


@pytest.mark.parametrize(
    ("layout", "shape", "weights", "options"),
    [
        ("NHWC", (16, 128, 128, 6), (48, 6, 5, 5), {"padding": 2}),
        pytest.param(
            "NCHW", (16, 3, 16, 64, 64), (16, 3, 3, 3, 3), {"padding": 1}, marks=pytest.mark.slow
        ),
        pytest.param(
            "NCHW", (64, 3, 224, 224), (32, 3, 3, 3), {"padding": 1, "stride": 2},
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_convolutions_of_few_channels_are_one_kernel(layout, shape, weights, options):
    """In such tiles 35, 58 and 31 microseconds on an H200; 104, 113 and 62 with copies of all
    windows in memory first, or by lanes along a window.
    """
    x, w = g.input("x", shape, "bfloat16"), g.input("w", weights, "bfloat16")
    program = plan(g.conv(x, w, layout=layout, **options), H200, cache=Cache(None))
    (launch,) = program.parts.launches
    assert "one sum" in launch.kernel.rules
