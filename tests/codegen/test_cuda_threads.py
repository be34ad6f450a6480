"""Threads that none of a value's indices uses: one of them stores it."""

import numpy as np
import pytest
from cuda_emulation import COMPILER, emulate, run_between_guards
from kernel_building import Body, Sample, at, buffers
from pipeline_cases import OPERATIONS

from eqsat.codegen.cuda.emit import choose
from eqsat.codegen.cuda.place.threads import Factor, are_digits, between, thread_digits
from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import bfloat16, float32
from eqsat.kernel.ir import Axis, Buffer, Kernel, Store


def test_runs_between_those_that_are_used():
    """In no run are both lanes and warps, or threads of two blocks; radices need not be twos."""

    def thread(*places: tuple[int, int]) -> list[Factor]:
        return [Factor("thread", count, stride) for stride, count in places]

    assert between(thread((4, 8), (192, 2)), 384, 384) == thread((1, 4), (32, 6))
    assert between(thread((32, 6)), 384, 384) == thread((1, 32), (192, 2))
    assert between([], 256, 128) == thread((1, 32), (32, 4), (128, 2))
    assert between(thread((1, 32), (32, 4), (128, 2)), 256, 128) == []
    assert between([], 16, 16) == thread((1, 16))


def test_digits_end_where_what_is_used_ends():
    """Twelve warps of which rows take four and columns three: an index of neither takes threes."""
    fragments = [Factor("thread", 4, 1), Factor("thread", 8, 4)]
    warps = [Factor("thread", 3, 32), Factor("thread", 4, 96)]
    lanes = [(1, 2), (2, 2), (4, 2), (8, 2), (16, 2)]
    assert thread_digits(384) == [*lanes, (32, 2), (64, 2), (128, 3)]
    assert thread_digits(384, used=[*fragments, *warps]) == [*lanes, (32, 3), (96, 2), (192, 2)]
    assert are_digits([*fragments, *warps])
    assert not are_digits([Factor("thread", 2, 32), warps[1]])  # 2 of 3: not of each four
    assert not are_digits([fragments[1], fragments[1]])


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


def scaled_rows() -> Sample:
    """sum(r) * a b: of twelve warps four lie along rows, so three sum up parts of each."""
    a, b = buffers(bfloat16, a=(64, 16), b=(16, 32))
    r = Buffer("r", (64, 64), float32, "input")
    y = Buffer("y", (64, 32), float32, "output")
    body = Body()
    body.load("a", "i k", at(a, "i", "k"), dtype=bfloat16, memory="shared")
    body.load("b", "k j", at(b, "k", "j"), dtype=bfloat16, memory="shared")
    body.contract("p", "i j", "k", "a", "b", "mma_m16n8k16_bf16")
    body.load("r", "i l", at(r, "i", "l"))
    body.reduce("s", "i", "sum", "l", "r")
    body.map("v", "i j", "mul", "p", "s")
    phase = body.phase(Store(at(y, "i", "j"), "v"))
    grid, inner = (Axis("i", 64, 64), Axis("j", 32, 32)), (Axis("k", 16, 16), Axis("l", 64, 64))
    kernel = Kernel("scaled", (a, b, r, y), grid, inner, (phase,), threads=384)
    random = np.random.default_rng(2)
    values = {x.name: random.integers(-3, 4, x.shape).astype(x.dtype.numpy) for x in (a, b, r)}
    left, right = (values[x].astype(np.float32) for x in "ab")
    wanted = (left @ right) * values["r"].sum(1, keepdims=True)
    return Sample(kernel, values, {"y": wanted}, 1e-6)


@pytest.mark.skipif(COMPILER is None, reason="no g++ on this machine")
def test_sums_over_threads_that_columns_use_are_whole(tmp_path):
    sample = scaled_rows()
    _, found = choose(sample.kernel, OPERATIONS)
    assert are_digits(found.spread("il")) and not found.unused("il")
    run_between_guards(emulate([sample.kernel], tmp_path, OPERATIONS), 0, sample)


def test_rows_of_two_products_make_no_value():
    """Both lie over the same threads, as rows of fragments do: no thread has all pairs of them."""
    shapes = {"a": (16, 16), "b": (16, 8), "c": (16, 16), "d": (16, 8)}
    inputs = buffers(bfloat16, **shapes)
    y = Buffer("y", (16, 16), float32, "output")
    body = Body()
    for buffer, rows in zip(inputs, ("i k", "k j", "l k", "k j"), strict=True):
        place = at(buffer, *rows.split())
        body.load(buffer.name, rows, place, dtype=bfloat16, memory="shared")
    body.contract("p", "i j", "k", "a", "b", "mma_m16n8k16_bf16")
    body.contract("q", "l j", "k", "c", "d", "mma_m16n8k16_bf16")
    body.map("v", "i l j", "mul", "p", "q")
    body.reduce("s", "i l", "sum", "j", "v")
    phase = body.phase(Store(at(y, "i", "l"), "s"))
    grid = (Axis("i", 16, 16), Axis("l", 16, 16))
    inner = (Axis("j", 8, 8), Axis("k", 16, 16))
    kernel = Kernel("pairs", (*inputs, y), grid, inner, (phase,), threads=32)
    with pytest.raises(UnsupportedError, match="i, l over the same threads"):
        choose(kernel, OPERATIONS)
