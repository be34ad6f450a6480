"""Threads that none of a value's indices uses: one of them stores it."""

import numpy as np
import pytest
from cuda_emulation import COMPILER, emulate, run_between_guards
from kernel_building import Body, Sample, at, buffers
from pipeline_cases import OPERATIONS

from eqsat.codegen.cuda_emit import choose
from eqsat.codegen.cuda_threads import Factor, between
from eqsat.graph.dtypes import bfloat16, float32
from eqsat.kernel import Axis, Buffer, Kernel, Store


def test_runs_between_those_that_are_used():
    """In no run are both lanes and warps, or threads of two blocks; radices need not be twos."""

    def thread(*places: tuple[int, int]) -> list[Factor]:
        return [Factor("thread", count, stride) for stride, count in places]

    assert between(thread((4, 8), (192, 2)), 384, 384) == thread((1, 4), (32, 6))
    assert between(thread((32, 6)), 384, 384) == thread((1, 32), (192, 2))
    assert between([], 256, 128) == thread((1, 32), (32, 4), (128, 2))
    assert between(thread((1, 32), (32, 4), (128, 2)), 256, 128) == []
    assert between([], 16, 16) == thread((1, 16))


def rows_beside_a_product() -> Sample:
    """a b and r + r: twelve warps lie in two rows of six, of which one stores each sum."""
    a, b = buffers(bfloat16, a=(64, 16), b=(16, 144))
    r = Buffer("r", (64,), float32, "input")
    y = Buffer("y", (64, 144), float32, "output")
    z = Buffer("z", (64,), float32, "output")
    body = Body()
    body.load("a", "i k", at(a, "i", "k"), dtype=bfloat16, memory="shared")
    body.load("b", "k j", at(b, "k", "j"), dtype=bfloat16, memory="shared")
    body.contract("p", "i j", "k", "a", "b", "mma_m16n8k16_bf16")
    body.load("r", "i", at(r, "i"))
    body.map("twice", "i", "add", "r", "r")
    phase = body.phase(Store(at(y, "i", "j"), "p"), Store(at(z, "i"), "twice"))
    grid, inner = (Axis("i", 64, 64), Axis("j", 144, 144)), (Axis("k", 16, 16),)
    kernel = Kernel("rows", (a, b, r, y, z), grid, inner, (phase,), threads=384)
    random = np.random.default_rng(2)
    values = {x.name: random.integers(-3, 4, x.shape).astype(x.dtype.numpy) for x in (a, b, r)}
    left, right = (values[x].astype(np.float32) for x in "ab")
    return Sample(kernel, values, {"y": left @ right, "z": values["r"] * 2}, 1e-6)


@pytest.mark.skipif(COMPILER is None, reason="no g++ on this machine")
def test_a_row_is_stored_whatever_the_warps_along_its_columns(tmp_path):
    sample = rows_beside_a_product()
    _, found = choose(sample.kernel, OPERATIONS)
    assert [f.count for f in found.unused("i")] == [4, 6]
    run_between_guards(emulate([sample.kernel], tmp_path, OPERATIONS), 0, sample)
