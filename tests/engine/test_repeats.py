"""Launches that compute what one before them has are left out."""

from types import SimpleNamespace

import numpy as np
import pytest
from fast_products import normal, planned, run

import eqsat.graph as g
from eqsat.graph.dtypes import bfloat16
from eqsat.kernel.ir import Contract, Kernel
from eqsat.repeats import without_repeats

pytestmark = pytest.mark.usefixtures("shared_search")
SHAPES = {"x": (2, 48, 20, 24), "y": (2, 48, 20, 24), "w": (40, 48, 3, 3), "v": (40, 48, 3, 3)}


def gated(other: str) -> g.Tensor:
    """A product of two convolutions, each by a kernel of its own, of one image or of two."""
    x, y, w, v = (g.input(name, SHAPES[name], "bfloat16") for name in ("x", other, "w", "v"))
    image = x if other == "x" else y
    return g.conv(x, w, padding=1) * g.sigmoid(g.conv(image, v, padding=1))


def test_what_two_products_have_laid_out_is_laid_out_once():
    """An image of both; its copy stays as long as the second one reads it."""
    out = gated("x")
    program = planned(out)
    found = without_repeats(program.parts)
    assert len(found.launches) == len(program.parts.launches) - 1
    products = [
        launch
        for launch in found.launches
        if isinstance(launch.kernel, Kernel)
        and any(isinstance(s, Contract) for s in launch.kernel.statements())
    ]
    first, second = ({*launch.buffers} for launch in products)
    (shared,) = (n for n in first & second if "prepared" in n)
    assert {*found.buffers} >= {n for launch in found.launches for n in launch.buffers}
    assert len(found.buffers) == len(program.parts.buffers) - 1 and shared in found.buffers
    given = {n: np.rint(2 * normal(*SHAPES[n])).astype(bfloat16.numpy) for n in ("x", "w", "v")}
    plain, once = (run(SimpleNamespace(parts=p), **given) for p in (program.parts, found))
    np.testing.assert_array_equal(once, plain)


def test_what_differs_or_has_alternatives_stays():
    two = planned(gated("y")).parts
    assert without_repeats(two).launches == two.launches
    several = planned(gated("x"), candidates=2).parts
    assert without_repeats(several) is several
