"""How tiles are spread over threads, and what the emitter does at the edges of its range."""

import re
from dataclasses import replace

import numpy as np
import pytest
from cuda_cases import BF16, angles, case, product
from cuda_emulation import COMPILER, Emulator
from kernel_building import Body, Sample, arrays, at, buffers, check
from kernel_outer import distances
from kernel_products import matmul
from kernel_rows import softmax_online
from kernels import SAMPLES

from eqsat.codegen.cuda.emit import choose, emit
from eqsat.codegen.cuda.place.distribution import Factor, cover, thread_digits
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import bfloat16, float32, int8, int32
from eqsat.kernel.ir import Axis, Kernel, Store
from eqsat.schedule.placed import with_room
from eqsat.specs import load
from eqsat.specs.model import ParallelOperation

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no g++ on this machine")


def distribution(sample: Sample, threads: int, **more: bool):
    return choose(case("k", sample, threads, **more).kernel)[1]


def test_contiguous_elements_go_to_vectors_then_lanes():
    d = distribution(SAMPLES["elementwise_chain"](64, 4096, 1, (4, 1024, 1)), 256)
    assert [f for f in d.factors["j"] if f.count > 1] == [
        Factor("register", 4),
        Factor("thread", 2, 128),
        Factor("thread", 32, 1),
        Factor("register", 4),
    ]
    assert d.padded("i") == 4 and d.registers("i") == 1


def test_odd_rows_are_read_element_by_element():
    d = distribution(SAMPLES["elementwise_chain"](64, 4095, 1, (4, 1024, 1)), 256)
    assert d.vector("j") == 1


def test_bfloat16_vectors_hold_eight():
    d = distribution(SAMPLES["elementwise_bfloat16"](64, 4096, 1, (4, 1024, 1)), 128)
    assert d.vector("j") == 8


def test_a_thread_has_all_coordinates_of_a_point_where_most_work_lacks_them():
    d = distribution(distances(64, 64), 128)
    assert d.registers("c") == 3 and not d.spread("c")


def test_threads_of_a_scalar_product_stay_within_its_tile():
    """96 columns are 8 threads of 3 vectors, not 32 of which 8 have nothing."""
    d = distribution(matmul(256, 480, 64, (128, 96, 32)), 256, shared=True)
    assert (d.padded("i"), d.padded("j")) == (128, 96)


@pytest.mark.parametrize(
    ("tiles", "blocks"),
    [((128, 96, 32), 2), ((256, 256, 16), 0), ((128, 128, 128), 0)],
)
def test_multiply_adds_ask_for_as_many_blocks_as_keep_arithmetic_busy(tiles, blocks):
    """Not with 256 sums a thread, nor with 256 KB of factors."""
    sample = matmul(1024, 1024, 512, tiles)
    kernel = case("k", sample, 256, stages=2, shared=True).kernel
    assert with_room(kernel, load("h200")).beside == blocks


def test_a_scalar_product_makes_squares_of_registers():
    d = distribution(matmul(512, 512, 512, (128, 128, 16)), 256, shared=True)
    assert d.registers("i") == d.registers("j") == 8 and not d.spread(["l"])


def test_only_the_last_chunk_asks_which_of_its_points_exist(tmp_path):
    """A loop of its own; not of few chunks, nor where all are whole."""

    def chunks_of(extent: int) -> Sample:
        made = softmax_online(4, extent - 256, 0, (1, 256))
        return replace(made, kernel=replace(made.kernel, threads=128))

    sample = chunks_of(1100)
    source = emit(sample.kernel)
    text = source.text
    whole, last = "chunk = 0; chunk < 4;", "chunk = 4; chunk < 5;"
    assert text.count(whole) == text.count(last) == 2  # its statistics, and what it stores
    begin, end = text.index(whole), text.index(last)
    assert "< 1100" not in text[begin:end] and "< 1100" in text[end:]
    for extent in (512, 600, 1024):
        other = emit(chunks_of(extent).kernel).text
        assert other.count("for (int chunk") == 2
    if COMPILER is None:
        pytest.skip("no g++ on this machine")
    found = arrays(sample, 64)
    Emulator([sample.kernel], [source], tmp_path).run(0, found)
    check(sample, found)


def test_the_sine_and_cosine_of_an_angle_are_found_at_once():
    text = emit(case("both", angles(50, float32), 32).kernel).text
    assert re.findall(r"\b(?:sin|cos|sincos)f\(", text) == ["sincosf(", "sinf("]


def test_a_matrix_operation_gives_its_fragments():
    d = distribution(matmul(512, 512, 512, (128, 128, 32), bfloat16, BF16), 256)
    assert d.spread(["i"]) == [Factor("thread", 8, 4), Factor("thread", 2, 128)]
    assert d.spread(["j"]) == [Factor("thread", 4, 1), Factor("thread", 4, 32)]
    assert d.registers("i") * d.registers("j") == 64


def test_values_of_two_indices_use_different_threads():
    for name in SAMPLES:
        kernel = case("k", SAMPLES[name](33, 37, 19), 192).kernel
        if "cblas" in repr(kernel):
            continue
        placement, d = choose(kernel)
        for value, indices in placement.indices.items():
            if placement.where[value] == "registers":
                used = [f for i in indices for f in d.spread([i])]
                threads = np.arange(192)
                places = {tuple(t // f.stride % f.count for f in used) for t in threads}
                assert len(places) == np.prod([f.count for f in used], dtype=int), (name, value)


def test_digits_of_a_thread_number():
    assert thread_digits(96) == [(1, 2), (2, 2), (4, 2), (8, 2), (16, 2), (32, 3)]
    d = cover([("i", 16), ("j", 64)], 8, 128)
    assert d.padded("i") == 16 and d.padded("j") == 64 and not d.unused(["i", "j"])


def test_an_empty_grid_has_no_blocks():
    kernel = case("k", SAMPLES["elementwise_chain"](0, 5, 1)).kernel
    source = emit(kernel)
    assert source.grid == 0
    compile_cubin(source.text, "sm_80")


def copying(rows: int) -> Kernel:
    """y = x, rows of 32768 float32"""
    x, y = buffers(x=(rows, 2**15), y=(rows, 2**15))
    b = Body()
    b.load("a", "i j", at(x, "i", "j"))
    grid = (Axis("i", rows, 1), Axis("j", 2**15, 1024))
    return Kernel("copy", (x, y), grid, (), (b.phase(Store(at(y, "i", "j"), "a")),), threads=128)


def test_addresses_beyond_31_bits_are_64_bit():
    small, large = (emit(copying(rows)).text for rows in (2**15, 2**16))
    assert "long long)(" not in small and "(long long)(" in large
    compile_cubin(large, "sm_90a")


def test_a_product_without_columns_is_refused_with_the_way_out():
    x, w, y = buffers(bfloat16, x=(8, 16), w=(16,), y=(8,))
    b = Body(bfloat16)
    b.load("a", "i l", at(x, "i", "l"))
    b.load("f", "l", at(w, "l"))
    b.dtype = float32
    b.contract("p", "i", "l", "a", "f", BF16)
    phase = b.phase(Store(at(y, "i"), "p"))
    inner = (Axis("i", 8, 8), Axis("l", 16, 16))
    with pytest.raises(UnsupportedError, match="f brings no index of its own to the result"):
        emit(Kernel("k", (x, w, y), (), inner, (phase,), threads=32))


NATIVE = """
__device__ __forceinline__ void made_up(float& d0, float& d1, float& d2, float& d3,
                                        const unsigned* a, const unsigned* b) {
    float d[4] = {d0, d1, d2, d3};
    const int lane = threadIdx.x % 32;
    for (int n = 0; n < 4; ++n) {
        for (int k = 0; k < 16; ++k) {
            const int quad = k % 8 / 2, half = k / 8, shift = k % 2 * 16;
            const unsigned x = __shfl_sync(~0u, n < 2 ? a[2 * half] : a[2 * half + 1],
                                           lane / 4 * 4 + quad);
            const unsigned y = __shfl_sync(~0u, b[half], (lane % 4 * 2 + n % 2) * 4 + quad);
            d[n] += from_bfloat16((unsigned short)(x >> shift)) *
                    from_bfloat16((unsigned short)(y >> shift));
        }
    }
    d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}
"""


@needs_compiler
def test_a_native_implementation_takes_the_instructions_place(tmp_path):
    operation = ParallelOperation(
        name="made_up",
        supported_by="warp",
        supported_data_types=({"a": "bfloat16", "b": "bfloat16", "d": "float32"},),
        latency_cycles=1,
        throughput_per_cycle=1,
        throughput_group="block",
        extents={"m": 16, "n": 8, "k": 16},
        native_implementation={"cuda": NATIVE},
    )
    sample = product((20, 12, 30), (32, 16, 16), bfloat16, float32, "made_up")
    kernel = case("native", sample).kernel
    source = emit(kernel, {"made_up": operation})
    assert "mma" not in source.text
    compile_cubin(source.text, "sm_90a")
    found = arrays(sample)
    Emulator([kernel], [source], tmp_path).run(0, found)
    check(sample, found)


@needs_compiler
def test_the_emulator_notices_a_missing_barrier(tmp_path):
    sample = matmul(33, 37, 19)
    kernel = case("racy", sample, shared=True).kernel
    source = emit(kernel)
    racy = replace(source, text=source.text.replace("block_barrier();", ""))
    assert racy.text != source.text
    found = arrays(sample)
    Emulator([kernel], [racy], tmp_path).run(0, found)
    with pytest.raises(AssertionError):
        check(sample, found)


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 6, 8])
def test_vectors_that_go_on_in_the_next_row_have_a_power_of_two(rows):
    """y[i, j] = x[j, i] with two columns: no vector of six elements of 16 bits."""
    x, y = buffers(bfloat16, x=(2, rows), y=(rows, 2))
    b = Body(bfloat16)
    b.load("a", "i j", at(x, "j", "i"))
    grid = (Axis("i", rows, rows), Axis("j", 2, 2))
    phase = b.phase(Store(at(y, "i", "j"), "a"))
    text = emit(Kernel("k", (x, y), grid, (), (phase,), threads=512)).text
    assert {int(n) for n in re.findall(r"Pack<[^,]*, (\d+)>", text)} <= {1, 2, 4, 8}


@pytest.mark.parametrize("columns", [8, 16])
def test_lanes_move_runs_that_fill_a_vector_one_by_one(columns):
    """y[i, j] = int8(x[i] + z[j]): a row of z fills several vectors, one of y half of one."""
    x, z = buffers(int32, x=(256,), z=(columns,))
    (y,) = buffers(int8, y=(256, columns))
    b = Body(int32)
    b.load("a", "i", at(x, "i"))
    b.load("c", "j", at(z, "j"))
    b.map("s", "i j", "add", "a", "c")
    b.dtype = int8
    b.map("n", "i j", "cast", "s")
    phase = b.phase(Store(at(y, "i", "j"), "n"))
    grid = (Axis("i", 256, 256), Axis("j", columns, columns))
    kernel = Kernel("k", (x, z, y), grid, (), (phase,), threads=256)
    _, found = choose(kernel)
    assert found.vector("i") >= 1 and emit(kernel).text
