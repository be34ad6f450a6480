"""Grouped convolutions: groups that lie together in one tile, weights laid out for whoever reads
them; the order of prices, as measured.

Microseconds on an H200 in bfloat16, of kernels that differ in tiles and stages.
"""

import re

import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import emit
from eqsat.driver import plan
from eqsat.graph.dtypes import bfloat16, float32
from eqsat.graph.index import add, const, scale, var
from eqsat.kernel.ir import Contract, Guard
from eqsat.layout.prepare import preparations
from eqsat.specs import load
from eqsat.terms.algebra import Facts, Read, Term, Universe
from eqsat.terms.form import Stored, form

pytestmark = pytest.mark.usefixtures("shared_search")
H200 = load("h200")


def grouped(
    images: int, channels: int, side: int, groups: int, layout: str, window: int = 3
) -> g.Tensor:
    """A convolution of as many channels to as many, the image as large."""
    first = layout == "NCHW"
    shape = (images, channels, side, side) if first else (images, side, side, channels)
    x = g.input("x", shape, "bfloat16")
    w = g.input("w", (channels, channels // groups, window, window), "bfloat16")
    return g.conv(x, w, padding=window // 2, groups=groups, layout=layout)


def planned(y: g.Tensor):
    launches = plan([y], H200, cache=Cache(None)).parts.launches
    products = [s for one in launches for s in one.kernel.statements() if isinstance(s, Contract)]
    assert len(products) == 1
    return launches, products[0]


@pytest.mark.parametrize(("channels", "side"), [(128, 56), (256, 28)])
def test_groups_that_lie_together_are_in_one_tile(channels: int, side: int) -> None:
    """Of four and of eight channels, 64 bytes at least."""
    launches, product = planned(grouped(32, channels, side, 32, "NHWC"))
    each = channels // 32
    (group,) = (
        a for a in launches[-1].kernel.grid if a.extent == 32 and a.name in product.indices[3:]
    )
    assert 64 <= group.tile * each * 2 <= 256


def test_groups_of_sixteen_channels_are_multiplied_by_warps() -> None:
    """11 microseconds, where boxes of 32 bytes take 20; weights have what is summed last."""
    launches, product = planned(grouped(32, 512, 14, 32, "NHWC"))
    assert "m16n8k16" in product.operation
    assert len(launches) == 2
    operations = {one.name: one for one in H200.operations}
    text = emit(launches[-1].kernel, operations).text
    assert re.search(r"load_matrix_x[24]\(right", text)


def test_windows_in_rows_are_held_by_threads_that_share_them() -> None:
    """45 microseconds where three places along rows come one after the other, 139 where a thread
    holds all 96 elements, 190 where it reads each place anew.
    """
    launches, product = planned(grouped(32, 128, 56, 32, "NCHW"))
    assert not product.operation
    (found,) = (line for line in emit(launches[-1].kernel).text.splitlines() if "float w_" in line)
    assert int(found.split("[")[1].split("]")[0]) <= 64


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_windows_that_reach_over_the_whole_image_have_a_plan(layout: str) -> None:
    """One window down, two to the right."""
    first = layout == "NCHW"
    x = g.input("x", (2, 8, 9, 11) if first else (2, 9, 11, 8))
    w = g.input("w", (8, 4, 5, 5))
    y = g.conv(x, w, stride=2, groups=2, dilation=2, layout=layout)
    assert y.size == 2 * 8 * 2 and len(planned(y)[0]) <= 2


def test_copies_of_one_factor_in_different_orders_are_told_apart() -> None:
    """Of 16 channels to 16, what threads read last and what an operation sums are as many."""
    names = {"n": 16, "g": 4, "o": 16, "i": 28, "j": 28, "c": 16, "r": 5, "s": 5}
    universe = Universe(list(names), names)
    places = [add(var(a), var(b), const(-2)) for a, b in ("ir", "js")]
    image = add(
        scale(var("n"), 64 * 784), scale(var("g"), 16 * 784), scale(var("c"), 784),
        scale(places[0], 28), places[1],
    )  # fmt: skip
    guards = tuple(Guard(place, 0, 28) for place in places)
    weights = add(
        scale(var("g"), 6400),
        scale(var("o"), 400),
        scale(var("c"), 25),
        scale(var("r"), 5),
        var("s"),
    )
    read = [
        Term("cast", "float32", Term("read", Read(name, bfloat16, address, own)))
        for name, address, own in (("x", image, guards), ("w", weights, ()))
    ]
    value = Term("reduce_sum", universe.mask("crs"), Term("mul", *read))
    made = form([Stored("y", value, tuple("ngoij"), float32)], Facts(universe))
    found = [p for p in preparations(made, H200) if p.source.args[0].buffer == "w"]
    orders = {one.stored[0].names[-1] for one in found}
    assert orders == {"c", "o"}
    for one in found:
        alike = [other for other in found if other.buffer == one.buffer]
        assert {other.copy for other in alike} == {one.copy}
