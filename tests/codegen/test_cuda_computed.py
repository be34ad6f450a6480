"""Factors that a block computes of what lies in memory, loaded a chunk ahead in vectors."""

import numpy as np
import pytest
from cuda_cases import BF16, case
from cuda_emulation import COMPILER, emulate, run_between_guards
from kernel_building import Body, Sample, arrays, at, buffers, check
from pipeline_cases import OPERATIONS

from eqsat.codegen import oracle
from eqsat.codegen.cuda_compile import compile_cubin
from eqsat.codegen.cuda_emit import emit
from eqsat.graph.dtypes import bfloat16, float32, int8
from eqsat.kernel import Axis, Buffer, Carry, Kernel, Store

pytestmark = pytest.mark.usefixtures("shared_search")


def dequantised(m: int, n: int, k: int, tiles: tuple[int, int, int], shift: int) -> Sample:
    """y[i,j] = sum_l x[i,l] bf16(w[l,j] - shift) in a stream over l; w in 8 bits"""
    x = Buffer("x", (m, k), bfloat16, "input")
    w = Buffer("w", (k, n), int8, "input")
    (y,) = buffers(y=(m, n))
    b, end = Body(), Body()
    b.load("a", "i l", at(x, "i", "l"), dtype=bfloat16, memory="shared")
    b.load("q", "l j", at(w, "l", "j"), dtype=int8)
    b.map("f", "l j", "cast", "q", dtype=bfloat16)
    b.literal("c", float(shift), dtype=bfloat16)
    b.map("g", "l j", "sub", "f", "c", dtype=bfloat16)
    b.contract("p", "i j", "l", "a", "g" if shift else "f", BF16)
    b.update("next", "i j", "acc", "sum", "p")
    if not shift:
        b.statements = [s for s in b.statements if s.name not in ("c", "g")]
    carry = Carry("acc", float32, ("i", "j"), "sum")
    stream = b.phase(stream=(Axis("l", k, tiles[2]),), carries=(carry,))
    grid = (Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    phases = (stream, end.phase(Store(at(y, "i", "j"), "acc")))
    random = np.random.default_rng(m + n + k)
    p = random.integers(-8, 8, (m, k)).astype(bfloat16.numpy)
    q = random.integers(-128, 128, (k, n)).astype(np.int8)
    answer = p.astype(np.float64) @ (q.astype(np.float64) - shift)
    kernel = Kernel("dequantised", (x, w, y), grid, (), phases)
    return Sample(kernel, {"x": p, "w": q}, {"y": answer}, 1e-6)


CASES = [
    case(f"dequantised-{m}x{n}x{k}-{shift}", dequantised(m, n, k, tiles, shift), threads, stages)
    for m, n, k, tiles, shift, threads, stages in (
        (16, 128, 256, (16, 64, 64), 0, 128, 3),
        (16, 128, 256, (16, 64, 64), 3, 128, 1),
        (7, 72, 200, (16, 64, 64), 3, 96, 2),  # no whole tiles, and more warps than columns
        (33, 40, 64, (32, 32, 64), 0, 64, 2),  # one chunk
        (5, 33, 100, (16, 32, 32), 0, 64, 2),  # rows of which no vector is aligned
    )
]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return emulate([c.kernel for c in CASES], tmp_path_factory.mktemp("computed"), OPERATIONS)


@pytest.mark.skipif(COMPILER is None, reason="no g++ on this machine")
@pytest.mark.parametrize("number", range(len(CASES)), ids=[c.name for c in CASES])
def test_a_kernel_gives_its_answer(emulator, number):
    for blocks, schedule in ((1, 0), (3, 3)):
        run_between_guards(emulator, number, CASES[number].sample, blocks, schedule)


@pytest.mark.parametrize("c", CASES, ids=[c.name for c in CASES])
def test_the_oracle_agrees(c):
    found = arrays(c.sample)
    oracle.run(c.kernel, found)
    check(c.sample, found)


def test_vectors_of_the_next_chunk_are_loaded_beside_products():
    text = emit(CASES[0].kernel, OPERATIONS).text
    loop = text[text.index("for (int chunk = 0") :]
    assert "auto load_" in text[: text.index("for (int chunk = 0")]
    assert loop.index("(chunk + 1);") < loop.index("mma_sync_aligned")
    assert "auto load_" not in emit(CASES[-1].kernel, OPERATIONS).text  # single elements


def test_what_is_rounded_as_it_is_stored_is_not_rounded_before():
    text = emit(CASES[0].kernel, OPERATIONS).text
    assert "round_bfloat16(" not in text[text.index("__global__") :]


def test_they_compile():
    for c in CASES[:3]:
        assert compile_cubin(emit(c.kernel, OPERATIONS).text, "sm_90a").data
