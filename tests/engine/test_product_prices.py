"""What prices of products know of sizes that tiles, chunks and lines of memory do not divide."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import emit
from eqsat.driver import plan
from eqsat.kernel.ir import Contract, Kernel
from eqsat.program import Launch
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")

H200 = load("h200")


def found(m: int, n: int, k: int, count: int = 1) -> list[Launch]:
    """The best kernels of a product of bfloat16 matrices."""
    product = g.input("x", (m, k), "bfloat16") @ g.input("w", (k, n), "bfloat16")
    first, *_ = plan([product], H200, candidates=count, cache=Cache(None)).parts.launches
    return [first, *(other[0] for other in first.alternatives)]


def waste(kernel: Kernel) -> float:
    """How many times the results there are tiles hold."""
    return float(np.prod([axis.count * axis.tile / axis.extent for axis in kernel.grid]))


SLOW = pytest.mark.slow


@pytest.mark.parametrize("size", [(1024, 4096, 4096), pytest.param((4096, 1024, 4096), marks=SLOW)])
def test_tiles_do_not_reach_far_beyond_a_product(size):
    """Tiles of 192 would fill one wave, a seventh of it with nothing."""
    (best,) = found(*size)
    assert waste(best.kernel) == 1.0


@pytest.mark.parametrize(
    "size",
    [
        (640, 8192, 1024),
        *(pytest.param(size, marks=SLOW) for size in ((1920, 2560, 1280), (512, 14336, 4096))),
    ],
)
def test_matrix_operations_do_not_wait_for_shared_memory(size):
    """A tile of 64 x 128 in a cluster of two reads and writes 384 cycles' worth of bytes for each
    256 of multiplications; one of 128 x 128 has 640 for 512.
    """
    (best,) = found(*size)
    assert min(axis.tile for axis in best.kernel.grid) >= 128


def test_what_lies_beyond_is_paid_for():
    """2049 rows take the tiles of 2112 or more."""
    assert found(2049, 4096, 4096)[0].seconds > 1.01 * found(2048, 4096, 4096)[0].seconds


@SLOW
def test_rows_that_begin_within_lines_take_longer():
    """Rows of 1000 elements are no whole lines apart: boxes touch nearly twice as many."""
    aligned, across = found(1024, 1024, 1024)[0], found(1000, 1000, 1000)[0]
    assert across.seconds > 1.2 * aligned.seconds
    assert found(1000, 1024, 1024)[0].seconds < 1.05 * aligned.seconds  # a count of rows is none


def test_rows_of_boxes_are_whole_lines():
    """A tile of 96 columns of 2 bytes lies there as two boxes of 64; one of 96 along the sum, or of
    64, has no more than it holds.
    """
    product = g.input("x", (1536, 1536), "bfloat16") @ g.input("w", (1536, 1536), "bfloat16")
    (best,) = plan([product], H200, cache=Cache(None)).parts.launches
    assert {axis.tile for axis in best.kernel.grid} == {96, 192} and best.kernel.tiles == 128
    assert emit(best.kernel, {o.name: o for o in H200.operations}).shared_bytes <= 232448


def test_candidates_are_not_all_of_two_tiles():
    tiles = Counter(
        tuple(axis.tile for axis in one.kernel.grid) for one in found(1536, 1536, 1536, 8)
    )
    assert tiles.total() == 8 and len(tiles) > 2


@SLOW
def test_sums_that_parts_leave_take_their_time_to_be_written():
    """8 parts of 512 x 512 floats, at half the rate that the cache is read at."""
    domains = tuple(replace(one, write_fraction=1.0) for one in H200.memory_domains)
    product = g.input("x", (512, 32768), "bfloat16") @ g.input("w", (32768, 512), "bfloat16")
    seconds = []
    for spec in (replace(H200, memory_domains=domains), H200):
        first, _ = plan([product], spec, cache=Cache(None)).parts.launches
        assert first.kernel.grid[0].count == 8
        seconds.append(first.seconds)
    rate = H200.memory("l2").bandwidth_gb_per_s * 1e9
    assert seconds[1] - seconds[0] > 0.9 * 8 * 512 * 512 * 4 / rate


@SLOW
@pytest.mark.parametrize("keys", [1000, 1024])
def test_a_short_cache_is_attended_to_in_parts(keys):
    """One kernel reads keys and values once, in parts that fill the device; another joins them.
    Weights of one row beside the values' columns would be computed for 16 rows by every warp.
    """
    q = g.input("q", (1, 32, 1, 128), "bfloat16")
    k, v = (g.input(name, (1, 8, keys, 128), "bfloat16") for name in "kv")
    first, second = plan([g.attention(q, k, v)], H200, cache=Cache(None)).parts.launches
    assert {"in0", "in1", "in2"} <= {*first.buffers} and "in2" not in second.buffers
    assert first.followers == 1 and first.kernel.tiles >= 32 and second.kernel.tiles >= 32


def test_columns_that_are_no_power_of_two_lie_in_tiles_of_the_next_one():
    """Cut into tiles of 32, columns of 40 would have each weight computed twice."""
    q, k, v = (g.input(name, (64, 1024, 40), "bfloat16") for name in "qkv")
    (best,) = plan([g.attention(q, k, v)], H200, cache=Cache(None)).parts.launches
    (axis,) = (axis for axis in best.kernel.grid if axis.extent == 40)
    assert axis.count == 1


@SLOW
def test_a_chunk_of_few_keys_costs_a_team_what_one_of_many_does():
    """Products of a chunk wait for each other: of 197 keys, two chunks of 128 beat four of 64."""
    q, k, v = (g.input(name, (64, 12, 197, 64), "bfloat16") for name in "qkv")
    (best,) = plan([g.attention(q, k, v)], H200, cache=Cache(None)).parts.launches
    (stream,) = (axis for phase in best.kernel.phases for axis in phase.stream)
    assert stream.tile == 128


@pytest.mark.parametrize(
    ("size", "device"),
    [
        ((300, 4096, 4096), "a100"),
        ((1023, 1025, 1027), "h200"),
        pytest.param((1024, 1024, 1024), "h200", marks=SLOW),
        pytest.param((1024, 1024, 1024), "a100", marks=SLOW),
        pytest.param((300, 4096, 4096), "h200", marks=SLOW),
        pytest.param((1023, 1025, 1027), "a100", marks=SLOW),
    ],
)
def test_float64_products_are_of_matrix_operations(size, device):
    """Copied ahead by all threads: no last tiles in parts, no blocks that copy for each other."""
    m, n, k = size
    product = g.input("x", (m, k), "float64") @ g.input("w", (k, n), "float64")
    launch, *_ = plan([product], load(device), cache=Cache(None)).parts.launches
    (used,) = {s.operation for s in launch.kernel.statements() if isinstance(s, Contract)}
    assert used.endswith("_f64") and launch.kernel.phases[0].stages > 1
    assert not launch.kernel.stream_k and launch.kernel.multicast == 1


def test_threads_that_wait_for_products_take_large_tiles():
    """Two warps of a part of an SM keep its matrix unit busy; larger tiles read factors less."""
    product = g.input("x", (2048, 2048), "float64") @ g.input("w", (2048, 2048), "float64")
    (launch,) = plan([product], H200, cache=Cache(None)).parts.launches
    assert {axis.tile for axis in launch.kernel.grid} == {128} and launch.kernel.threads == 256
    assert launch.seconds < 1.2 * 2 * 2048**3 / 67e12


def test_short_sums_across_lanes_are_left_to_an_operation_of_a_cpu():
    """Sums of 32 products each, of rows of two factors, for another product."""
    a, b, w = (
        g.input(name, (extent, 32, 32)) for name, extent in (("a", 64), ("b", 64), ("w", 16))
    )
    (launch,) = plan(
        g.einsum("bik,bjk,oij->bo", a, b, w), load("cpu"), cache=Cache(None)
    ).parts.launches
    assert all(s.operation for s in launch.kernel.statements() if isinstance(s, Contract))


def test_operations_of_one_unit_take_turns():
    """The power of frames at each frequency, by operations that threads wait for: one product in
    terms of bfloat16 and another of tfloat32 are no faster than both of one kind.
    """
    unit = H200
    for one in H200.operations:
        if one.asynchronous and one.semantics and one.semantics.contraction:
            unit = unit.without_operation(one.name)
        elif "fma" in one.implements:
            unit = unit.replace_operation(one.name, implements={**one.implements, "fma": 1e4})
    x, a, b = (
        g.input(name, shape)
        for name, shape in (("x", (63872, 402)), ("a", (402, 201)), ("b", (402, 201)))
    )
    power = plan([g.square(x @ a) + g.square(x @ b)], unit, cache=Cache(None))
    kinds = (("mma_m16n8k8_tf32", 3), ("mma_m16n8k16_bf16", 6))
    each = min(count / unit.updates_per_s(unit.operation(name)) for name, count in kinds)
    assert sum(launch.seconds for launch in power.parts.launches) > 2 * 63872 * 402 * 201 * each


def test_frames_of_a_signal_are_multiplied_add_by_add():
    """Windows of a row merge into rows of one product, whatever computes it."""
    places = g.expand_dims(g.arange(998), 1) * 160 + g.arange(400)
    frames = g.take(g.input("x", (64, 160000)), places, axis=1)
    (launch,) = plan([frames @ g.input("c", (400, 402))], H200, cache=Cache(None)).parts.launches
    assert "along pixels" in launch.kernel.rules


def test_norms_of_rows_that_every_tile_needs_are_found_once():
    """The nearest of 256 centres: a tile that found their norms would read all of them."""
    x, c = g.input("x", (1_000_000, 64)), g.input("c", (256, 64))
    nearest = g.argmin(g.sum(g.square(c), axis=1) - 2 * (x @ c.mT), axis=1)
    launches = plan([nearest], H200, cache=Cache(None)).parts.launches
    for launch in launches:
        products = [s for s in launch.kernel.statements() if isinstance(s, Contract)]
        assert not products or all(b.shape != (256, 64) for b in launch.kernel.buffers)


def test_parts_that_every_tile_joins_take_few_registers():
    """Statistics of channels over a batch: what joins their parts is at the rate of memory."""
    x = g.input("x", (64, 64, 256, 256))
    centred = x - g.mean(x, axis=(0, 2, 3), keepdims=True)
    spread = g.mean(g.square(centred), axis=(0, 2, 3), keepdims=True)
    *_, last = plan([centred * g.rsqrt(spread + 1e-5)], H200, cache=Cache(None)).parts.launches
    assert last.bottleneck == "dram"
    assert last.seconds < 1.2 * 2 * 4 * x.size / (H200.memory("dram").sustained_gb_per_s * 1e9)
