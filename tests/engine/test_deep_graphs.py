"""Programs of many steps, and of steps that use a value again: nothing grows as their paths do."""

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import emit
from eqsat.driver import compile, plan
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")

A = np.random.default_rng(0).uniform(1, 2, 40).astype(np.float32)


def repeated(steps, step):
    """A program of so many steps from its input, and what they give."""
    a = g.input("a", (40,))
    y, expected = a, A.astype(np.float64)
    for _ in range(steps):
        y, expected = step(y, a), step(expected, A.astype(np.float64))
    return y, expected


PROGRAMS = {
    "a chain": (250, lambda y, a: y + 1.0),
    "a value used twice": (30, lambda y, a: 0.5 * (y + a / y)),
    "an input used again": (45, lambda y, a: abs(y) * 0.5 + a),
}


@pytest.mark.parametrize(
    ("name", "times"),
    [
        *((name, 1) for name in PROGRAMS),
        pytest.param("a chain", 2, marks=pytest.mark.slow),
        pytest.param("an input used again", 4, marks=pytest.mark.slow),
    ],
)
def test_many_steps_compile(name: str, times: int) -> None:
    steps, step = PROGRAMS[name]
    y, expected = repeated(times * steps, step)
    program = compile(y, load("cpu"), cache=Cache(None))
    np.testing.assert_allclose(program(A), expected, rtol=1e-4)
    assert program.source().count("\n") < 6000
    planned = plan(y, load("h200"), cache=Cache(None))
    assert all(len(emit(launch.kernel).text) < 200_000 for launch in planned.parts.launches)


@pytest.mark.parametrize("steps", [123, pytest.param(250, marks=pytest.mark.slow)])
def test_a_long_proof_is_shown(steps: int) -> None:
    y, _ = repeated(steps, PROGRAMS["a chain"][1])
    assert str(steps) in compile(y, load("cpu"), cache=Cache(None)).explain()
