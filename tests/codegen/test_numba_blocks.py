"""Stores across what is read: loops in blocks, where both have whole ones."""

import numpy as np
import pytest

import eqsat
from eqsat.cache.store import Cache
from eqsat.codegen.cpu.emit import BLOCK
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")

RNG = np.random.default_rng(0)


TURNS = (
    ((64, 48), (1, 0), True),
    ((64, 50), (1, 0), False),
    ((50, 64), (1, 0), False),
    ((3, 32, 16), (0, 2, 1), True),
    ((2, 16, 8, 32), (0, 3, 1, 2), True),
    ((7, 11, 13), (2, 0, 1), False),
)
DTYPES = ("float32", "float64", "int8", "bool")


@pytest.mark.parametrize(  # by default each dtype on the first, each of the others with one dtype
    ("shape", "order", "blocks", "dtype"),
    [
        pytest.param(*turn, dtype, marks=[] if n in (0, at + 2, at + 4) else pytest.mark.slow)
        for n, turn in enumerate(TURNS)
        for at, dtype in enumerate(DTYPES)
    ],
)
def test_axes_change_places(shape, order, blocks, dtype) -> None:
    x = eqsat.input("x", shape, dtype)
    turned = eqsat.permute_dims(x, order)
    array = RNG.integers(-100, 100, shape).astype(dtype)
    other = eqsat.logical_not(turned) if dtype == "bool" else turned + turned
    program = eqsat.compile([turned, other], load("cpu"), cache=Cache(None))
    expected = array.transpose(order)
    found, more = program(array)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(more, ~expected if dtype == "bool" else expected + expected)
    assert (f"in range({BLOCK[1]}):" in program.source()) >= blocks


def test_several_stores_and_reads_along_either_axis() -> None:
    x, y = (eqsat.input(name, (96, 80)) for name in "xy")
    a, b = (RNG.standard_normal((96, 80)).astype(np.float32) for _ in range(2))
    outputs = {"sum": x.T + y.T, "mixed": x.T * 2.0, "guarded": eqsat.pad(x, [(0, 16), (0, 0)]).T}
    found = eqsat.compile(outputs, load("cpu"), cache=Cache(None))(a, b)
    np.testing.assert_array_equal(found["sum"], a.T + b.T)
    np.testing.assert_array_equal(found["mixed"], a.T * np.float32(2))
    np.testing.assert_array_equal(found["guarded"], np.pad(a, [(0, 16), (0, 0)]).T)
