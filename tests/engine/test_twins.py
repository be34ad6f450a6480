"""Kernels of values that differ in buffers, and in where these are read: those that a search of
their own finds.
"""

import numpy as np
import pytest
from fast_products import planned, run

import eqsat.graph as g
from eqsat import solve
from eqsat.kernel import Kernel
from eqsat.planned import Planned
from eqsat.twins import Twins

pytestmark = pytest.mark.usefixtures("shared_search")
STEPS = 5


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


PROGRAMS = (loop, gated)
SHAPES = {"x": (STEPS, 128, 128), "h": (64, 128), "a": (128, 128), "b": (128, 128)}


def built(function) -> g.Tensor:
    x, h, a, b = (g.input(n, shape, "bfloat16") for n, shape in SHAPES.items())
    return function(x[:, :64] if function is loop else x, h, a, b)


def kernels(program: Planned) -> list[Kernel]:
    return [launch.kernel for launch in program.parts.launches]


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_they_are_those_of_a_search_of_their_own(function, monkeypatch):
    searched = {"twins": 0, "alone": 0}

    def counted(kind: str, schedule):
        def call(*given):
            searched[kind] += 1
            return schedule(*given)

        return call

    monkeypatch.setattr(solve, "Twins", lambda facts, own: Twins(facts, counted("twins", own)))
    program = planned(built(function))
    monkeypatch.setattr(solve, "Twins", lambda facts, own: counted("alone", own))
    assert kernels(program) == kernels(planned(built(function)))
    assert searched["twins"] < searched["alone"]
    rng = np.random.default_rng(0)
    values = {n: rng.standard_normal(shape) / 8 for n, shape in SHAPES.items()}
    values = {n: value.astype(g.bfloat16.numpy) for n, value in values.items()}
    (wanted,) = g.evaluate([built(function)], values, np.float64)
    found = run(program, **values).astype(np.float64)
    assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()


def test_an_explanation_tells_where_each_came_from():
    explanation = planned(built(loop)).explain()
    assert sum(len(segment.kernels) for segment in explanation.segments) >= STEPS
