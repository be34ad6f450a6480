"""The axes that a read walks, found from its address, windows among them."""

import pytest

from eqsat.graph.dtypes import bfloat16
from eqsat.graph.index import add, const, evaluate, floordiv, mod, scale, var
from eqsat.kernel.ir import Guard
from eqsat.layout.relayout import composed_axes, first_place, in_order, points, walked_axes
from eqsat.terms.algebra import Read

EXTENTS = {"n": 4, "c": 6, "p": 10, "q": 11, "r": 3, "s": 3}


def address(**strides: int):
    return add(*(scale(var(name), stride) for name, stride in strides.items()))


def window(padding: int, step: int = 1) -> Read:
    """An image of 6 channels of 10 x 11 read by windows of 3 x 3."""
    down = add(scale(var("p"), step), var("r"), const(-padding))
    across = add(scale(var("q"), step), var("s"), const(-padding))
    where = add(address(n=660, c=110), scale(down, 11), across)
    guards = (Guard(down, 0, 10), Guard(across, 0, 11)) if padding else ()
    return Read("x", bfloat16, where, guards)


@pytest.mark.parametrize(("padding", "step"), [(1, 1), (1, 2), (0, 1), (0, 2), (2, 3)])
def test_axes_are_found_from_windows(padding, step):
    read = window(padding, step)
    extents = dict(EXTENTS)
    if not padding:
        extents |= {"p": (10 - 3) // step + 1, "q": (11 - 3) // step + 1}
    axes = walked_axes(read, extents)
    assert axes is not None
    assert [axis.stride for axis in axes] == [660, 110, 11, 1]
    assert [axis.alone for axis in axes] == ["n", "c", "", ""]
    overlap = step < 3
    assert [axis.slides for axis in axes] == [False, False, overlap, overlap]
    assert axes[0].extent == 4 and axes[1].extent == 6
    assert axes[2].extent <= 10 and axes[3].extent <= 11
    assert points(axes) <= 4 * 6 * 10 * 11 and first_place(read, axes) == 0
    moved = in_order(read, "y", (axes[0], axes[2], axes[3], axes[1]), 8)
    assert dict(moved.address.terms)["c"] == 1 and moved.guards == read.guards
    assert dict(moved.address.terms)["s"] == 8


def test_what_does_not_tell_its_axes_is_left():
    extents = {"i": 4, "j": 5}
    assert walked_axes(Read("x", bfloat16, address(i=5, j=-1)), extents) is None
    diagonal = Guard(add(var("i"), var("j")), 0, 5)  # j walks two axes
    assert walked_axes(Read("x", bfloat16, address(i=5, j=6), (diagonal,)), extents) is None
    halves = Guard(floordiv(var("i"), 2), 0, 2)  # a transposed convolution reads every other
    assert walked_axes(Read("x", bfloat16, address(i=5, j=1), (halves,)), extents) is None
    late = Guard(var("j"), 1, 5)
    assert walked_axes(Read("x", bfloat16, address(i=5, j=1), (late,)), extents) is None
    assert walked_axes(Read("x", bfloat16, address(i=5), (), 0, 1, 7), extents) is None


def test_parts_of_an_axis_do_not_slide():
    along = add(var("i"), scale(var("p"), 3))
    (axis,) = (
        walked_axes(Read("x", bfloat16, along, (Guard(along, 0, 10),)), {"i": 3, "p": 4}) or ()
    )
    assert not axis.slides and not axis.alone and axis.extent == 10


def test_axes_are_found_of_what_windows_walk_in_quotients():
    """Windows of 3 places over 2 x 10 pixels that come of 10 channels' halves, edges around."""
    along = add(var("q"), var("s"), const(-1))
    extents = {"n": 4, "c": 6, "q": 20, "s": 3}
    half, rest = floordiv(along, 2), mod(along, 2, extents)
    where = add(address(n=660, c=40), scale(half, 3), scale(rest, 20), const(7))
    read = Read("x", bfloat16, where, (Guard(along, 0, 20),))
    assert walked_axes(read, extents) is None
    axes = composed_axes(read, extents)
    assert axes is not None and [axis.extent for axis in axes] == [4, 6, 20]
    assert axes[2].place == along and axes[2].slides and axes[0].alone == "n"
    copied = add(
        const(first_place(read, axes)), *(a.address(n) for a, n in zip(axes, "abd", strict=True))
    )
    for n, c, q, s in ((0, 0, 1, 0), (3, 5, 19, 1), (1, 2, 7, 2)):
        here = {"n": n, "c": c, "q": q, "s": s}
        there = dict(zip("abd", (evaluate(axis.place, here) for axis in axes), strict=True))
        assert evaluate(copied, there) == evaluate(where, here)


def test_a_place_that_several_steps_lead_to():
    """Of steps of 2 over rows that come of two halves: the half and what is left of a place."""
    place = add(scale(var("i"), 2), var("h"), scale(var("k"), 2), const(-2))
    where = add(address(i=10, h=120, k=10), const(-10))
    extents = {"i": 6, "h": 2, "k": 3}
    read = Read("x", bfloat16, where, (Guard(place, 0, 12),))
    (axis,) = composed_axes(read, extents) or ()
    copied = add(const(first_place(read, (axis,))), axis.address("p"))
    assert axis.extent == 12 and axis.slides
    for i, h, k in ((0, 0, 1), (0, 1, 1), (5, 1, 1), (3, 0, 2)):
        here = {"i": i, "h": h, "k": k}
        assert evaluate(copied, {"p": evaluate(place, here)}) == evaluate(where, here)
    odd = add(scale(var("i"), 3), scale(var("h"), 2))
    assert composed_axes(Read("x", bfloat16, where, (Guard(odd, 0, 12),)), extents) is None


def test_a_name_inside_a_quotient_and_beside_it_tells_no_axis():
    extents = {"i": 6, "j": 3}
    half = floordiv(add(var("i"), var("j")), 2)
    assert composed_axes(Read("x", bfloat16, add(half, address(i=9))), extents) is None
    axes = composed_axes(Read("x", bfloat16, add(half, address(i=9, j=9))), extents)
    assert axes is not None and [axis.extent for axis in axes] == [8]
    both = add(half, scale(floordiv(var("i"), 3), 50))
    assert composed_axes(Read("x", bfloat16, both), extents) is None
