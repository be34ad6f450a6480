"""Vectors that begin at any element: answers of rows of odd lengths, what is moved how."""

import re
from dataclasses import replace

import numpy as np
import pytest
from cuda_cases import case
from cuda_emulation import emulate, run_between_guards
from exchange_cases import integers
from kernel_building import Body, Sample, arrays, at, buffers, check, wide

from eqsat.codegen.cuda.emit import choose, emit
from eqsat.codegen.oracle import run
from eqsat.graph import index
from eqsat.graph.dtypes import (
    DType,
    bfloat16,
    float16,
    float32,
    float64,
    int8,
    int64,
    uint8,
)
from eqsat.kernel.ir import Access, Axis, Carry, Coordinate, Guard, Kernel, Store

WHOLE = 10**6


def gained(m: int, n: int, tile: tuple[int, int], dtype: DType, first: int = 0) -> Sample:
    """y[i,j] = x[i,j+first] + g[j], and y_sum[i] of these where a tile has whole rows"""
    x, g, y = buffers(dtype, x=(m, n + first), g=(n,), y=(m, n))
    (y_sum,) = buffers(dtype, y_sum=(m,))
    b = Body(dtype)
    b.load("a", "i j", at(x, "i", index.add(index.var("j"), index.const(first))))
    b.load("c", "j", at(g, "j"))
    b.map("s", "i j", "add", "a", "c")
    stores = [Store(at(y, "i", "j"), "s")]
    if tile[1] >= n:
        b.reduce("t", "i", "sum", "j", "s")
        stores.append(Store(at(y_sum, "i"), "t"))
    p, q = integers(x) // 4, integers(g) // 4
    expected = wide(p[:, first:]) + wide(q)
    results = {"y": expected}
    if tile[1] >= n:
        results["y_sum"] = expected.sum(1)
    elif dtype.kind == "float":
        results["y_sum"] = np.full(m, np.nan)
    else:
        results["y_sum"] = np.full(m, -77).astype(dtype.numpy)
    if dtype.kind != "float":
        results = {name: value.astype(dtype.numpy) for name, value in results.items()}
    grid = (Axis("i", m, tile[0]), Axis("j", n, min(tile[1], n)))
    kernel = Kernel("gained", (x, g, y, y_sum), grid, (), (b.phase(*stores),))
    return Sample(kernel, {"x": p, "g": q}, results, 1e-2)


def summed(m: int, n: int, chunk: int, dtype: DType) -> Sample:
    """y[i] = sum of x[i,j], streamed along j"""
    (x,) = buffers(dtype, x=(m, n))
    (y,) = buffers(float32, y=(m,))
    b, end = Body(dtype), Body(float32)
    b.load("a", "i j", at(x, "i", "j"))
    b.dtype = float32
    b.map("w", "i j", "cast", "a")
    b.reduce("t", "i", "sum", "j", "w")
    b.update("next", "i", "acc", "sum", "t")
    carries = (Carry("acc", float32, ("i",), "sum"),)
    stream = b.phase(stream=(Axis("j", n, chunk),), carries=carries)
    p = integers(x)
    kernel = Kernel(
        "summed", (x, y), (Axis("i", m, 2),), (), (stream, end.phase(Store(at(y, "i"), "acc")))
    )
    return Sample(kernel, {"x": p}, {"y": wide(p).sum(1)})


def gathered(rows: int, m: int, n: int, dtype: DType) -> Sample:
    """y[i,j] = t[at[i],j] for i >= 1, and y_max[i] of each row"""
    t, y, y_max = buffers(dtype, t=(rows, n), y=(m, n), y_max=(m,))
    (at_rows,) = buffers(int64, i=(m,))
    b = Body(dtype)
    b.load("r", "i", at(at_rows, "i"), dtype=int64)
    b.load("a", "i j", Access("t", index.var("j"), coordinates=(Coordinate("r", n, rows),)))
    b.reduce("h", "i", "max", "j", "a")
    guards = (Guard(index.var("i"), 1, m),)
    phase = b.phase(Store(at(y, "i", "j", guards=guards), "a"), Store(at(y_max, "i"), "h"))
    p, chosen = integers(t), np.random.default_rng(5).integers(0, rows, m)
    answer = wide(p)[chosen]
    expected = {"y": answer.copy(), "y_max": answer.max(1)}
    expected["y"][0] = np.nan
    grid = (Axis("i", m, 1), Axis("j", n, n))
    kernel = Kernel("gathered", (t, at_rows, y, y_max), grid, (), (phase,))
    return Sample(kernel, {"t": p, "i": chosen}, expected)


CASES = [
    case("gathered", gathered(7, 5, 1021, bfloat16), 64),
    *(
        case(f"rows-{dtype}-{m}x{n}", gained(m, n, (1, WHOLE), dtype), threads)
        for dtype in (bfloat16, float16, int8, uint8)
        for m, n, threads in ((5, 1021, 64), (3, 2047, 128), (7, 511, 32), (2, 4095, 256))
    ),
    *(
        case(f"cut-{dtype}-{tile[0]}x{tile[1]}", gained(9, 1543, tile, dtype), threads)
        for dtype in (bfloat16, int8)
        for tile, threads in (((1, 512), 32), ((4, 128), 32), ((2, 1024), 64), ((8, 128), 64))
    ),
    *(
        case(f"view-{first}", gained(6, 1016, (1, WHOLE), bfloat16, first), 128)
        for first in (1, 3, 7)
    ),
    *(
        case(f"summed-{n}-{chunk}", summed(5, n, chunk, bfloat16), 64)
        for n, chunk in ((1023, 512), (511, 512), (4001, 512))
    ),
]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return emulate([c.kernel for c in CASES], tmp_path_factory.mktemp("anywhere"))


@pytest.mark.parametrize("number", range(len(CASES)), ids=[c.name for c in CASES])
def test_a_kernel_gives_its_answer(emulator, number):
    run_between_guards(emulator, number, CASES[number].sample)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[c.name for c in CASES])
def test_the_oracle_agrees(number):
    found = arrays(CASES[number].sample)
    run(CASES[number].kernel, found)
    check(CASES[number].sample, found)


def moved(kernel: Kernel) -> tuple[set[str], set[str]]:
    """The buffers that are loaded, and stored, in vectors that begin anywhere."""
    text = emit(kernel).text
    loads = re.findall(r"= vectors_around<[^>]*>\(p_(\w+),", text)
    return {*loads}, {*re.findall(r"store_(?:anywhere|some)<[^>]*>\(p_(\w+)", text)}


def test_rows_of_odd_lengths_are_moved_in_whole_vectors():
    for c in CASES:
        if c.name.startswith(("rows", "cut", "gathered")):
            assert moved(c.kernel)[1] == {"y"}, c.name
        assert moved(c.kernel)[0] & {"x", "t"}, c.name


@pytest.mark.parametrize(
    ("sample", "why"),
    [
        (gained(5, 1024, (1, WHOLE), bfloat16), "aligned vectors serve"),
        (gained(5, 1021, (1, WHOLE), float32), "elements of four bytes fill lines"),
        (gained(5, 1021, (1, WHOLE), float64), "no words are shifted"),
        (gained(5, 1100, (1, WHOLE), bfloat16), "vectors of two words serve"),
        (gained(5, 1025, (1, WHOLE), bfloat16), "half of what threads hold would not exist"),
        (gained(5, 511, (1, WHOLE), int8), "half of the threads would have nothing to do"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_others_are_not(sample, why):
    assert moved(case("other", sample, 128).kernel) == (set(), set())


def test_what_may_be_missing_within_a_row_goes_by_element():
    sample = gained(5, 1021, (1, WHOLE), bfloat16)
    kernel = case("guarded", sample, 128).kernel
    (phase,) = kernel.phases
    guards = (Guard(index.var("j"), 3, 1000),)

    def guarded(access: Access) -> Access:
        return replace(access, guards=guards) if access.buffer == "x" else access

    body = tuple(
        replace(s, access=guarded(s.access)) if hasattr(s, "access") else s for s in phase.body
    )
    kernel = replace(kernel, phases=(replace(phase, body=body),))
    assert moved(kernel) == (set(), set())


def test_columns_of_streamed_rows_go_by_element():
    """Few of their loads are under way at a time."""
    x, y = buffers(bfloat16, x=(512, 1021), y=(1021,))
    b, end = Body(bfloat16), Body(bfloat16)
    b.load("a", "i j", at(x, "i", "j"))
    b.reduce("t", "j", "sum", "i", "a")
    b.update("next", "j", "acc", "sum", "t")
    carries = (Carry("acc", bfloat16, ("j",), "sum"),)
    stream = b.phase(stream=(Axis("i", 512, 64),), carries=carries)
    phases = (stream, end.phase(Store(at(y, "j"), "acc")))
    kernel = Kernel("columns", (x, y), (Axis("j", 1021, 128),), (), phases, threads=128)
    assert moved(kernel) == (set(), set())


def test_threads_hold_whole_vectors_only_where_all_accesses_move_them():
    kernel = next(c.kernel for c in CASES if c.name.startswith("rows"))
    assert choose(kernel)[1].vector("j") == 8
    assert choose(case("wide", gained(5, 1021, (1, WHOLE), float32), 64).kernel)[1].vector("j") == 1
