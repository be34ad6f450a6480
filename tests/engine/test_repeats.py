"""Launches that compute what one before them has are left out."""

from dataclasses import replace
from functools import cache

import pytest
from fast_products import H200, planned

import eqsat.graph as g
from eqsat.kernel.ir import Contract, Kernel
from eqsat.program import Launch, Parts
from eqsat.repeats import without_repeats

pytestmark = pytest.mark.usefixtures("shared_search")


@cache
def gated(other: str) -> Parts:
    """A product of two convolutions, each by a kernel of its own, of one array or of two."""
    x, y = (g.input(name, (16, 512, 4096), "bfloat16") for name in ("x", other))
    w, v = (g.input(name, (512, 512, 3), "bfloat16") for name in "wv")
    second = g.conv(x if other == "x" else y, v, padding=1)
    return planned(g.conv(x, w, padding=1) * g.sigmoid(second), H200).parts


def products(parts: Parts) -> list[Launch]:
    return [
        one
        for one in parts.launches
        if isinstance(one.kernel, Kernel)
        and any(isinstance(s, Contract) for s in one.kernel.statements())
    ]


def test_what_two_products_have_laid_out_is_laid_out_once():
    """Both read the copy that the first one's region made; the other is neither made nor kept."""
    every, found = gated("x"), without_repeats(gated("x"))
    first, second = ({n for n in one.buffers if "prepared" in n} for one in products(every))
    assert len(first) == len(second) == 2 and not first & second
    once, again = ({n for n in one.buffers if "prepared" in n} for one in products(found))
    (shared,) = once & again
    assert once == first and len(again & second) == 1
    (missing,) = every.buffers.keys() - found.buffers.keys()
    assert missing in second
    assert [one.buffers for one in found.launches if one.buffers[-1] == shared]
    assert len(found.launches) == len(every.launches) - 1


def test_what_differs_or_has_alternatives_stays():
    two = gated("y")
    assert without_repeats(two).launches == two.launches
    last = replace(gated("x").launches[-1], alternatives=(gated("x").launches[-1:],))
    several = replace(gated("x"), launches=(*gated("x").launches[:-1], last))
    assert without_repeats(several) is several
