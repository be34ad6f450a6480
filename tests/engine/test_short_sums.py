"""Products of short sums: what their results cost to write decides."""

import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import emit
from eqsat.driver import plan
from eqsat.graph import Tensor
from eqsat.kernel.ir import Kernel
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")
H200 = load("h200")


def last(out: Tensor) -> Kernel:
    """The kernel that stores the result."""
    return plan(out, H200, cache=Cache(None)).parts.launches[-1].kernel


def product(m: int, n: int, k: int) -> Tensor:
    """Of bfloat16."""
    return g.input("a", (m, k), "bfloat16") @ g.input("b", (k, n), "bfloat16")


@pytest.mark.parametrize("turned", [False, True])
def test_threads_hold_neighbours_of_what_is_stored(turned):
    """Measured 39 microseconds on an H200, 56 where rows of operations lie along memory: these are
    written element by element.
    """
    out = product(16384, 4096, 64)
    kernel = last(g.matrix_transpose(out) if turned else out)
    source = emit(kernel, {one.name: one for one in H200.operations}).text
    assert "wgmma" in source and "Pack<unsigned short, 1> pack;" not in source


@pytest.mark.parametrize(("m", "n", "k"), [(8192, 8192, 32), (16384, 4096, 16), (65536, 320, 64)])
def test_no_bytes_that_are_written_wait_for_room_to_read(m, n, k):
    """Tiles are no smaller than for longer sums, though little of a factor is under way: measured
    38 microseconds with 160 x 128 of 8192 x 8192 x 32 on an H200, 59 with 16 x 256.
    """
    tiles = [axis.tile for axis in last(product(m, n, k)).grid]
    assert min(tiles) >= 64


def test_work_on_results_keeps_as_many_threads_busy_as_it_needs():
    """Two blocks at once of 128 threads that compute take 53 to 59 microseconds on an H200 for a
    GELU of 65536 x 32 x 512, where 384 threads that copy for themselves take 39.
    """
    bias = g.input("c", (512,), "bfloat16")
    kernel = last(g.gelu(product(65536, 512, 32) + bias))
    producer = "wgmma" in " ".join(kernel.rules)
    assert kernel.threads >= 256 or not producer


def test_few_blocks_hide_no_copies_of_single_elements():
    """Measured 124 microseconds on an H200 with one block of 384 threads at once, 76 to 82 with
    several of fewer.
    """
    x, w = g.input("x", (32, 3, 224, 224), "bfloat16"), g.input("w", (64, 3, 3, 3), "bfloat16")
    assert last(g.conv(x, w, padding=1)).threads < 384
