"""Memory of large results: used again when nothing refers to it, never before."""

import gc

import numpy as np
import pytest

import eqsat
from eqsat.cache.store import Cache
from eqsat.codegen.host.memory import ALIGNED, LEAST_BYTES, MOST_BYTES, HostMemory
from eqsat.graph.dtypes import bfloat16
from eqsat.specs import load

ROWS = LEAST_BYTES // 4 // 256


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("dtype", (np.dtype("float32"), np.dtype("int8"), bfloat16.numpy))
def test_memory_is_used_again(dtype: np.dtype) -> None:
    memory, shape = HostMemory(), (4 * ROWS, 256)
    first = memory.empty(shape, dtype)
    assert first.shape == shape and first.dtype == dtype and first.flags.carray
    where = address(first)
    assert where % ALIGNED == 0
    other = memory.empty(shape, dtype)
    assert abs(address(other) - where) >= first.nbytes
    del first
    gc.collect()
    assert address(memory.empty(shape, dtype)) == where


def test_a_view_keeps_it() -> None:
    memory = HostMemory()
    for view in (lambda a: a[3:, ::2], lambda a: a.T.reshape(-1)[5:], lambda a: memoryview(a[1])):
        first = memory.empty((ROWS, 256), np.dtype("float32"))
        where, part = address(first), view(first)
        del first
        gc.collect()
        for _ in range(2):
            other = memory.empty((ROWS, 256), np.dtype("float32"))
            assert address(other) != where or not np.shares_memory(other, np.asarray(part))
        del part


def test_what_waits_has_a_limit() -> None:
    memory = HostMemory()
    large = [memory.empty((MOST_BYTES // 4,), np.dtype("uint8")) for _ in range(6)]
    places = [address(one) for one in large]
    del large
    gc.collect()
    again = [memory.empty((MOST_BYTES // 4,), np.dtype("uint8")) for _ in range(4)]
    assert {address(one) for one in again} <= {*places}
    assert memory.empty((3,), np.dtype("uint8")).flags.owndata  # small ones are NumPy's own


def test_results_stay_as_they_were_given() -> None:
    x = eqsat.input("x", (ROWS, 256))
    program = eqsat.compile(x + 1.0, load("cpu"), cache=Cache(None))
    given = [program(np.full((ROWS, 256), n, np.float32)) for n in range(3)]
    rows = [one[7] for one in given]
    del given
    gc.collect()
    for n in range(3, 6):
        np.testing.assert_array_equal(program(np.full((ROWS, 256), n, np.float32)), n + 1)
    np.testing.assert_array_equal(np.stack(rows)[:, 0], [1, 2, 3])
