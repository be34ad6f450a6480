"""Boxes that blocks of a cluster copy for each other: on the CPU, and their text."""

import re
from dataclasses import replace

import pytest
from cuda_cases import case
from cuda_emulation import COMPILER, SCHEDULES, Emulator, emulate, run_between_guards
from kernel_building import arrays, check
from kernels import SAMPLES
from multicast_cases import multicast_cases, shared
from pipeline_cases import OPERATIONS, attention, gemm

from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.codegen.cuda.run.launch import Launch
from eqsat.errors import UnsupportedError
from eqsat.kernel.text import show

CASES = list(multicast_cases())


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return emulate([c.kernel for c in CASES], tmp_path_factory.mktemp("multicast"), OPERATIONS)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[c.name for c in CASES])
def test_a_cluster_gives_the_answer(emulator, number):
    """Of one cluster that takes every tile, and of two."""
    kernel = CASES[number].kernel
    for clusters, schedule in ((1, 0), (1, 2), (2, 3)):
        blocks = clusters * kernel.multicast
        run_between_guards(emulator, number, CASES[number].sample, blocks, schedule)


def test_what_is_shared_is_copied_once():
    for c in CASES:
        source = emit(c.kernel, OPERATIONS)
        assert re.search(rf"copy_box_to_all_\dd<{c.kernel.multicast}>\(", source.text), c.name
        assert f"__cluster_dims__({c.kernel.multicast}, 1, 1)" in source.text
        assert f"copies for {c.kernel.multicast}" in show(c.kernel).splitlines()[1]
    texts = {c.name: emit(c.kernel, OPERATIONS).text for c in CASES}
    assert "tile_j + rank * 64" in texts["two-teams-200"]  # every other part
    assert "tile_i + rank * 32" in texts["across"]


@pytest.mark.parametrize("c", CASES[::4], ids=lambda c: c.name)
def test_nvrtc_takes_it(c):
    assert compile_cubin(emit(c.kernel, OPERATIONS).text, "sm_90a").spills == 0


def test_whole_clusters_are_launched():
    c = CASES[0]
    source = replace(emit(c.kernel, OPERATIONS), grid=1000, resident=1)
    for processors, blocks in ((132, 132), (131, 130), (7, 6)):
        assert Launch(c.kernel, source, None, processors).blocks == blocks


def test_tiles_in_another_order_are_refused():
    odd = case("odd", gemm(192, 64, 40, (64, 64, 32), 64), 128, 2)
    with pytest.raises(UnsupportedError, match="no run"):
        emit(shared(odd, 2).kernel, OPERATIONS)
    rows = case("rows", SAMPLES["row_reduce"](8, 9, 10), 64)
    with pytest.raises(UnsupportedError, match="no operation of a warpgroup"):
        emit(shared(rows, 2).kernel, OPERATIONS)
    causal = case("causal", attention(256, 80, 64, (64, 32), "causal"), 128, 2)
    with pytest.raises(UnsupportedError, match="different numbers of chunks"):
        emit(shared(causal, 2).kernel, OPERATIONS)


DOWN = next(c for c in CASES if c.name == "down-nt-3")
STRIPPED = {
    "other blocks' slots": (r"barrier_wait\([^;]*parity_0 \^ 1\);", ""),
    "their release": (r"barrier_arrive_in\(([^;]*?), threadIdx.x % 32, threadIdx.x % 32 < 2",
                      r"barrier_arrive_in(\1, cluster_rank(), threadIdx.x % 32 < 2"),
    "their barriers": (r"cluster_arrive_relaxed\(\);\s*cluster_wait\(\);", ""),
    "their end": (r"for \(int last = 0; last < 3", "for (int last = 0; last < 0"),
    "their part": (r"rank \* ", "0 * "),
}  # fmt: skip


@pytest.fixture(scope="module")
def stripped(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("no g++ on this machine")
    source, sources = emit(DOWN.kernel, OPERATIONS), []
    for pattern, instead in STRIPPED.values():
        text, count = re.subn(pattern, instead, source.text)
        assert count and text != source.text
        sources.append(replace(source, text=text))
    kernels = [DOWN.kernel] * len(sources)
    return Emulator(kernels, sources, tmp_path_factory.mktemp("stripped"))


@pytest.mark.parametrize("what", STRIPPED)
def test_the_emulator_sees_what_is_missing(stripped, what):
    with pytest.raises(AssertionError):
        for schedule in range(SCHEDULES):
            found = arrays(DOWN.sample, 64)
            stripped.run(list(STRIPPED).index(what), found, 2, schedule)
            check(DOWN.sample, found)
