"""Stores and loads through patches of warps or blocks: answers, lines of memory, banks, refusals.

Accesses are measured where they happen: the emitted source runs on the CPU with every vector
access noted, lane by lane.
"""

import re
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pytest
from cuda_cases import BF16, case
from cuda_emulation import COMPILER, Emulator, emulate, run_between_guards
from exchange_cases import drawn_cases, exchange_cases, permuted, product, transposed
from kernel_building import Sample, arrays, check
from kernel_products import matmul
from kernels import SAMPLES

from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import choose, emit
from eqsat.codegen.cuda.place.distribution import Distribution, Factor
from eqsat.codegen.cuda.place.exchange import exchange_for
from eqsat.codegen.cuda.place.square import Side, Square, square
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.driver import plan
from eqsat.graph import functions, input
from eqsat.graph.dtypes import bfloat16, float32
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no g++ on this machine")
CASES = list(exchange_cases())


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return emulate([c.kernel for c in CASES], tmp_path_factory.mktemp("exchange"))


@pytest.mark.parametrize("number", range(len(CASES)), ids=[c.name for c in CASES])
def test_a_kernel_gives_its_answer(emulator, number):
    run_between_guards(emulator, number, CASES[number].sample)


@needs_compiler
@pytest.mark.parametrize(
    ("seed", "count"), [(1, 24), *(pytest.param(n, 100, marks=pytest.mark.slow) for n in (2, 3, 4))]
)
def test_drawn_kernels_give_their_answers(seed, count, tmp_path):
    cases = list(drawn_cases(count, seed))
    drawn = emulate([c.kernel for c in cases], tmp_path)
    for number, one in enumerate(cases):
        run_between_guards(drawn, number, one.sample)


def assert_no_spills(cases):
    def build(item):
        kernel, arch = item
        return kernel.name, arch, compile_cubin(emit(kernel).text, arch)

    pairs = [(c.kernel, arch) for c in cases for arch in ("sm_80", "sm_90a")]
    with ThreadPoolExecutor(2) as pool:
        cubins = list(pool.map(build, pairs))
    assert not [(name, arch, cubin.log) for name, arch, cubin in cubins if cubin.spills]


def test_some_cases_compile_without_spills():
    names = ("transposed-bfloat16-33x37", "product-33x37-True", "product-128x128-False")
    assert_no_spills([c for c in CASES if c.name in names])


@pytest.mark.slow
def test_all_cases_compile_without_spills():
    assert_no_spills(CASES)


def test_transposed_results_and_residuals_are_exchanged_and_rows_are_not():
    exchanged = {c.name: emit(c.kernel).text for c in CASES}
    assert "block_barrier" in exchanged["transposed-float32-33x37"]
    assert all("__syncwarp" in exchanged[name] for name in ("product-33x37-True", "product-int8"))
    rows = ("elementwise_chain", "softmax_resident", "layer_norm", "broadcast", "attention")
    for name in rows:
        kernel = case(name, SAMPLES[name](64, 256, 64, (4, 256, 64)), 128).kernel
        assert "patch" not in emit(kernel).text, name


@needs_compiler
@pytest.mark.parametrize("wait", ["__syncwarp();", "block_barrier();"])
def test_the_emulator_notices_that_threads_do_not_wait(wait, tmp_path):
    if wait == "__syncwarp();":
        sample = product(33, 37, (64, 64))
    else:
        sample = transposed(33, 37, (64, 64), float32)
    kernel = case("racy", sample, 128).kernel
    source = emit(kernel)
    body = source.text.index("__global__")
    assert wait in source.text[body:]
    text = source.text[:body] + source.text[body:].replace(wait, "")
    found = arrays(sample)
    Emulator([kernel], [replace(source, text=text)], tmp_path).run(0, found)
    with pytest.raises(AssertionError):
        check(sample, found)


# what a warp's accesses touch

NOTE = """
static FILE* const notes = fopen("PATH", "w");
template <typename T> static T* noted(bool store, const void* p) {
    const long long offset = (const unsigned char*)p - shared;
    const bool inside = offset >= 0 && offset < (long long)sizeof shared;
    fprintf(notes, "%d %d %d %d %lld\\n", threadIdx.x, int(inside), int(store), int(sizeof(T)),
            inside ? offset : (long long)p);
    fflush(notes);
    return (T*)p;
}
"""


VECTOR = re.compile(r"reinterpret_cast<(const )?(Pack<[^>]*>)\*>\(")


@dataclass(frozen=True)
class WarpAccess:
    """One instruction of a warp: the bytes that its lanes touch."""

    shared: bool
    store: bool
    starts: np.ndarray
    bytes: int

    @property
    def touched(self) -> np.ndarray:
        return np.unique(self.starts[:, None] + np.arange(self.bytes))

    @property
    def shortest_run(self) -> int:
        """Bytes of the shortest contiguous piece."""
        touched = self.touched
        return min(len(run) for run in np.split(touched, np.flatnonzero(np.diff(touched) > 1) + 1))

    @property
    def sectors(self) -> int:
        return len(np.unique(self.touched // 32))

    @property
    def conflicts(self) -> float:
        """Passes over the 32 banks, in units of what the bytes alone need."""
        together = min(32, 128 // max(self.bytes, 4))
        passes = 0
        for first in range(0, len(self.starts), together):
            words = self.starts[first : first + together, None] // 4 + np.arange(
                max(self.bytes // 4, 1)
            )
            passes += np.bincount(np.unique(words) % 32).max()
        return passes / max(1, len(self.starts) // together)


def accesses(sample: Sample, threads: int, buffers: str, folder) -> list[WarpAccess]:
    """The first block's vector accesses to its warps' patches and to some buffers."""
    kernel = case("noted", sample, threads).kernel
    source = emit(kernel)
    text = "\n".join(
        VECTOR.sub(lambda m: f"noted<{m[2]}>({'false' if m[1] else 'true'}, ", line)
        if re.search(rf"\b(patch|{buffers})\b", line)
        else line
        for line in source.text.splitlines()
    )
    log = folder / "accesses"
    source = replace(source, text=NOTE.replace("PATH", str(log)) + text, grid=1)
    found = arrays(sample)
    for name, array in found.items():  # on lines, as device memory is
        memory = np.zeros(array.nbytes + 128, np.uint8)
        first = -memory.ctypes.data % 128
        aligned = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
        aligned[...] = array
        found[name] = aligned
    Emulator([kernel], [source], folder).run(0, found)
    lanes = defaultdict(list)
    for line in log.read_text().splitlines():
        thread, *what = map(int, line.split())
        lanes[thread].append(what)
    result = []
    for warp in range(0, threads, 32):
        rows = [lanes[warp + lane] for lane in range(32)]
        for together in zip(*rows, strict=True):
            (kind,) = {tuple(one[:3]) for one in together}
            starts = np.array([one[3] for one in together])
            result.append(WarpAccess(bool(kind[0]), bool(kind[1]), starts, kind[2]))
    return result


MEASURED = {
    "transpose": (lambda: transposed(512, 512, (64, 64), float32), 128),
    "transpose-256": (lambda: transposed(512, 512, (64, 64), float32), 256),
    "permute": (lambda: permuted((128, 32, 128), "jik", (16, 1, 128), bfloat16), 128),
    "epilogue": (lambda: product(128, 128, (128, 128)), 256),
    "epilogue-across": (lambda: product(128, 128, (128, 128), across=True), 256),
    "epilogue-float": (lambda: product(128, 128, (128, 128), float32, residual=False), 256),
}


@needs_compiler
@pytest.mark.parametrize("name", MEASURED)
def test_full_tiles_move_whole_sectors_without_conflicts(name, tmp_path):
    build, threads = MEASURED[name]
    buffers = "p_y|p_r" if name.startswith("epilogue") else "p_y|p_x"
    found = accesses(build(), threads, buffers, tmp_path)
    memory = [a for a in found if not a.shared]
    assert {a.store for a in memory} == ({True} if name == "epilogue-float" else {False, True})
    for a in memory:
        assert a.shortest_run >= (128 if name.startswith("transpose") else 64), (a.store, a.bytes)
        assert a.sectors * 32 == len(a.touched) and a.bytes >= 8
    assert all(a.conflicts <= 2 for a in found if a.shared)
    assert bool([a for a in found if a.shared]) == (name != "permute")


def test_a_transpose_is_planned_with_square_tiles():
    x = input("x", (16384, 16384), "float32")
    planned = plan([functions.matrix_transpose(x)], load("h200"), cache=Cache(None))
    (launch,) = planned.parts.launches
    kernel = launch.kernel
    assert {axis.tile for axis in kernel.grid} <= {64, 128}
    distribution = choose(kernel)[1]
    held = np.prod([distribution.registers(axis.name) for axis in kernel.grid])
    assert held * 4 >= 64  # bytes that each thread has on the way


def test_squares_have_rows_as_long_as_their_threads_hold():
    wide = Side(4096, 4, 4)
    assert square(wide, wide, 32) == Square(lanes=8, vector=4, across=4, outer=2, inner=4)
    assert square(wide, wide, 16) == Square(lanes=8, vector=4, across=4, outer=1, inner=4)
    odd = Side(4096, 1, 4)
    assert square(odd, odd, 64) == Square(lanes=32, vector=1, across=1, outer=32, inner=1)
    assert square(wide, Side(4, 4, 4), 32) is None


def test_a_patch_is_part_of_the_shared_memory_that_a_kernel_asks_for():
    sample = matmul(1024, 1024, 1024, (128, 128, 32), bfloat16, BF16)
    one = case("one", sample, 256, 1).kernel
    source = emit(one)
    assert "patch" in source.text
    tiles = (128 * 40 + 32 * 136) * 2
    assert source.shared_bytes == max(tiles, 8 * 2048)


def test_results_of_warpgroups_leave_in_whole_lines():
    """rows: warpgroups x blocks x 4 warps x 2 x 8 lanes; columns: blocks x 4 lanes x 2"""
    kernel = case("plain", permuted((1, 256, 256), "ijk", (1, 128, 256), bfloat16), 256).kernel
    placement, _ = choose(kernel)
    rows = (Factor("thread", 2, 128), Factor("thread", 4, 32), Factor("register", 2))
    columns = (Factor("register", 32), Factor("thread", 4, 1), Factor("register", 2))
    factors = {"i": (), "j": (*rows, Factor("thread", 8, 4)), "k": columns}
    layout = Distribution(256, factors)
    access = kernel.phases[0].stores[0].access
    found = exchange_for(kernel, placement, layout, access, ["i", "j", "k"])
    assert found and found.along == "k" and found.length * 2 == 128 and found.width == 8
    assert found.count == 16 and found.bytes == 2048 and found.bank_passes() == (1, 4)
