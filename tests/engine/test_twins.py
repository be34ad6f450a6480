"""Kernels of values that differ in buffers, and in where these are read: those that a search of
their own finds.
"""

from collections.abc import Callable
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from fast_products import planned, run

import eqsat.graph as g
from eqsat import solve
from eqsat.cut.twins import Twins
from eqsat.cut.variants import Schedule
from eqsat.kernel.ir import Kernel
from eqsat.planned import Planned
from eqsat.schedule.scheduling import Predicted
from eqsat.terms.algebra import Facts

pytestmark = pytest.mark.usefixtures("shared_search")
STEPS = 4


def loop(x: g.Tensor, h: g.Tensor, a: g.Tensor, b: g.Tensor) -> g.Tensor:
    """A step for each slice of an input."""
    for t in range(STEPS):
        h = g.tanh(x[t] @ a + h @ b)
    return h


def gated(x: g.Tensor, h: g.Tensor, a: g.Tensor, b: g.Tensor) -> g.Tensor:
    """Every other step from other rows of the slice, none of which begins where a line does."""
    for t in range(STEPS):
        h = g.sigmoid(h @ b) * (x[t, t % 2 : t % 2 + 64] @ a)
    return h


SHAPES = {"x": (STEPS, 128, 128), "h": (64, 128), "a": (128, 128), "b": (128, 128)}


def built(function) -> g.Tensor:
    x, h, a, b = (g.input(n, shape, "bfloat16") for n, shape in SHAPES.items())
    return function(x[:, :64] if function is loop else x, h, a, b)


def kernels(program: Planned) -> list[Kernel]:
    return [launch.kernel for launch in program.parts.launches]


@cache
def counted(function: Callable[..., g.Tensor], twins: bool) -> tuple[Planned, int]:
    """The plan of a program, twins searched for once or each by itself, and how many were."""
    searches = 0

    def made(facts: Facts, own: Schedule, constants: set[str]) -> Schedule:
        def schedule(*given: Any) -> list[Predicted]:
            nonlocal searches
            searches += 1
            return own(*given)

        return Twins(facts, schedule, constants) if twins else schedule

    with patch.object(solve, "Twins", made):
        return planned(built(function)), searches


@pytest.mark.parametrize("function", [loop, pytest.param(gated, marks=pytest.mark.slow)])
def test_they_are_those_of_a_search_of_their_own(function):
    program, searches = counted(function, True)
    alone, more = counted(function, False)
    assert kernels(program) == kernels(alone) and searches < more
    rng = np.random.default_rng(0)
    values = {n: rng.standard_normal(shape) / 8 for n, shape in SHAPES.items()}
    values = {n: value.astype(g.bfloat16.numpy) for n, value in values.items()}
    (wanted,) = g.evaluate([built(function)], values, np.float64)
    found = run(program, **values).astype(np.float64)
    assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()


@pytest.mark.slow
def test_an_explanation_tells_where_each_came_from():
    explanation = counted(loop, True)[0].explain()
    assert sum(len(segment.kernels) for segment in explanation.segments) >= STEPS
