"""Kernels of warpgroups and producers: in the emulator, through the oracle, through NVRTC."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice, product

import numpy as np
import pytest
from cuda_cases import case
from cuda_emulation import COMPILER, SCHEDULES, Emulator, asked, emulate, run_between_guards
from kernel_building import Body, arrays, at, buffers, check
from parts_cases import parts_cases
from pipeline_cases import (
    OPERATIONS,
    attention,
    convolution,
    gemm,
    pipeline_cases,
    scaled,
    swiglu,
)

from eqsat.codegen import oracle
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.fit import misfit
from eqsat.codegen.cuda.place.distribution import WARP
from eqsat.codegen.cuda.place.exchange import bank_passes
from eqsat.codegen.cuda.place.registers import MOST_REGISTERS, PRODUCER_REGISTERS, registers_of
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.codegen.cuda.run.launch import Launch
from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import bfloat16, float8_e4m3fn, float32, int8
from eqsat.kernel.ir import Buffer, Store
from eqsat.kernel.ir import check as check_kernel
from eqsat.specs import load

CASES = [*pipeline_cases(), *parts_cases()]
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no g++ on this machine")


# Cases that others by default are like: in layouts, stages, formats, sides, sizes or masks.
SELDOM = {
    *("gemm-nt-4", "gemm-nn-1", "gemm-nn-4", "gemm-tt-1", "gemm-tt-2", "gemm-tf32-wide"),
    *("gemm-tf32-tt-3", "gemm-tf32-nn-1", "parts-e5m2", "parts-of-rows-e4m3fn"),
    *("parts-of-teams-e5m2", "parts-alone-e4m3fn", "scaled-left-1", "scaled-right-3"),
    *("scaled-shared-136", "attention-64-added", "attention-48-plain", "attention-48-causal"),
    *("gradient-48-plain", "gradient-64-causal", "gradient-held", "two-teams-136", "two-teams-264"),
    *("boxes-two-rows", "boxes-image", "boxes-quarter-lines"),
}
assert {c.name for c in CASES} >= SELDOM
NUMBERS = [
    pytest.param(n, id=c.name, marks=pytest.mark.slow if c.name in SELDOM else [])
    for n, c in enumerate(CASES)
]


@pytest.fixture(scope="module")
def emulator(request, tmp_path_factory):
    """Of the cases that run, and their numbers."""
    numbers = asked(request, test_a_kernel_gives_its_answer)
    kernels = [CASES[number].kernel for number in numbers]
    return emulate(kernels, tmp_path_factory.mktemp("pipeline"), OPERATIONS), numbers


@pytest.mark.parametrize("number", NUMBERS)
def test_a_kernel_gives_its_answer(emulator, number):
    """By one block that takes every tile, and by three."""
    compiled, numbers = emulator
    sample = CASES[number].sample
    for blocks, schedule in ((1, 0), (1, 2), (3, 3)):
        run_between_guards(compiled, numbers.index(number), sample, blocks, schedule)


@pytest.mark.parametrize("c", CASES, ids=lambda c: c.name)
def test_the_oracle_agrees(c):
    check_kernel(c.kernel)
    found = arrays(c.sample)
    oracle.run(c.kernel, found)
    check(c.sample, found)


def test_cases_show_what_they_are_for():
    texts = {c.name: emit(c.kernel, OPERATIONS).text for c in CASES}
    held = {name for name, text in texts.items() if "_held<" in text}
    kinds = ("scaled", "attention", "gradient", "two-sums", "scores", "parts-of-scores")
    assert held == {n for n in texts if n.startswith(kinds)}
    for layout, template in (("nt", "<0, 0>"), ("nn", "<0, 1>"), ("tt", "<1, 0>")):
        assert template in texts[f"gemm-{layout}-2"]
    assert "<1, 1>" in texts["gemm-wide"] and "tile_j" in texts["gemm-turned"]
    for swizzle in (1, 2, 3):
        assert any(f", {swizzle});\n" in text for text in texts.values()), swizzle
    later = {name for name, text in texts.items() if "products_wait<1>" in text}
    assert {"gemm-nt-2", "swiglu", "convolution"} <= later
    assert not later & {"gemm-nt-1", "attention-alone"}
    kept = {name for name, text in texts.items() if "packed_0" in text}  # for the next chunk
    across = {"gemm-tf32-tt", "gemm-tf32-nn", "gemm-tf32-across", "gemm-s8-across"}
    gathered = {n for n in texts if n.rpartition("-")[0] in across or n in across}
    assert gathered == {n for n in texts if "_held(v_" in texts[n]}
    alone = {"attention-alone", "gradient-two-slots", *(n for n in gathered if n.endswith("-1"))}
    attentions = {n for n in texts if n.startswith(("attention", "gradient", "scores"))}
    assert (attentions | gathered) - alone <= kept <= held | gathered
    assert {n for n in texts if "first_chunk" in texts[n]} == {
        "attention-shorter",
        "gemm-triangle",
        *(f"attention-{d}-{mask}" for d in (48, 64) for mask in ("causal", "window")),
        *(f"gradient-{d}-causal" for d in (48, 64)),
    }
    assert {n for n in texts if "int round" in texts[n]} == {
        "attention-shorter",
        "in-turn",
        "two-teams-144",
    }
    assert "copy_box_3d" in texts["convolution"]
    assert "map_mask" in texts["attention-48-added"] and "patch" in texts["biased"]
    assert "band" in texts["gemm-nt-banded"]
    teams = {name for name, text in texts.items() if "turn = " in text}
    stored = {name for name, text in texts.items() if "store_box_" in text}
    assert {n for n in texts if n.startswith("boxes")} <= stored
    assert not stored & teams, "another team multiplies meanwhile"
    assert "store_box_3d" in texts["boxes-image"] and "store_box_3d" in texts["boxes-image-strided"]
    parts = {name for name, text in texts.items() if "_part" in text or "sums[" in text}
    assert parts == {name for name in texts if name.startswith("parts")}
    assert not parts & later
    assert {"short-sums-e4m3fn", "scores", "scores-mixed"} <= later
    assert teams - {"gemm-tf32-across-wide"} == {n for n in texts if n.startswith("two-teams")}


def test_first_products_of_a_chunk_run_beside_the_last_one_of_the_chunk_before():
    """Which reads the slot before; whole chunks ask for no point's place."""
    texts = {c.name: emit(c.kernel, OPERATIONS).text for c in CASES if c.name[:4] == "grad"}
    chained = {name for name, text in texts.items() if "products_wait<2>" in text}
    assert chained == texts.keys() - {"gradient-two-slots"}
    for name, text in texts.items():
        assert "map_t" in text and ("s_b_before" in text) == (name in chained)
        assert ("(true ? " in text) == name.endswith("causal")
    held = {name for name, text in texts.items() if "load_matrix_x4(first_0" in text}
    assert {"gradient-held"} <= held < chained, "where an SM has room for one block alone"


def test_queries_are_let_go_of_before_the_last_products():
    """The next tile's are copied beside them, and beside what is stored."""
    body = emit(ATTENTION.kernel, OPERATIONS).text.rpartition("packed_0[")[0]
    loop, _, rest = body.rpartition("for (int chunk")
    release, last = "barrier_arrive(barriers + 1 + slot_0", "products_begin();"
    assert release not in loop and rest.index(release) < rest.rindex(last)


def test_the_next_tiles_are_copied_while_one_is_stored():
    """Where a tile is nothing but its boxes, and those of several are a part of shared memory;
    queries, which lie there beside a stream, have the room of one.
    """
    texts = {c.name: emit(c.kernel, OPERATIONS).text for c in CASES}
    assert "if (++slot_0 == 4)" in texts["at-once"]
    assert "constexpr int slot_0 = 0;" in texts["at-once-wide"]
    assert "constexpr int slot_0 = 0;" in texts["attention-64-plain"]


@pytest.mark.parametrize(
    ("tiles", "resident", "uneven", "blocks"),
    [(512, 2, False, 256), (512, 1, False, 132), (512, 2, True, 264), (264, 2, False, 264),
     (265, 2, False, 264), (100, 2, False, 100)],
)  # fmt: skip
def test_blocks_that_share_a_processor_have_as_many_tiles(tiles, resident, uneven, blocks):
    source = replace(emit(ATTENTION.kernel, OPERATIONS), grid=tiles, resident=resident)
    kernel = replace(ATTENTION.kernel, uneven=uneven)
    assert Launch(kernel, source, None, 132).blocks == blocks


@pytest.mark.parametrize(
    ("n", "stages", "resident"), [(32 * 31, 2, 2), (32 * 32, 2, 0), (32 * 32, 3, 2)]
)
def test_no_block_stays_where_tiles_are_long(n, stages, resident):
    """Two blocks of an SM: each fills its rings while the other computes."""
    long = case("long", attention(70, n, 64, (64, 32)), 128, stages)
    assert emit(long.kernel, OPERATIONS).resident == resident


@pytest.mark.parametrize("name", ["gemm-tf32-tt-3", "gemm-tf32-across-wide"])
def test_lanes_that_gather_meet_in_no_bank(name):
    """Two rows at once from each of eight rows of k: half a warp reads 128 bytes in one pass."""
    (text,) = (emit(c.kernel, OPERATIONS).text for c in CASES if c.name == name)
    places = re.findall(r"place_\d_0_0\[block\] = s_\w+ \+ (.*);", text)
    assert len(places) == 2 and "place_0_1_0" not in text
    for place, warp in product(places, range(4)):
        written = place.replace("int(threadIdx.x)", "thread").replace("/", "//")
        found = [eval(written, {"thread": 32 * warp + n, "block": 0}) for n in range(WARP)]
        assert bank_passes(np.array(found), 2, 4) == 2


# the emulator sees what is missing

GEMM = case("stripped", gemm(70, 96, 200, (64, 32, 32), 32), 128, 2)
ATTENTION = case("stripped_attention", attention(70, 80, 64, (64, 32)), 128, 2)
STAGED = scaled(256, 50, 200, (128, 64, 48), 64, memory="shared")  # the block copies factors
STAGED = case("stripped_staged", STAGED, 256, 2)
PARTS = gemm(70, 50, 336, (64, 64, 256), 64, dtype=float8_e4m3fn)
PARTS = case("stripped_parts", PARTS, 128, 2)
STORED = gemm(136, 264, 72, (128, 256, 64), 256, "tn", out=bfloat16)  # two passes of two areas
STORED = case("stripped_stored", STORED, 256, 4)
STRIPPED = {
    "full": (GEMM, r"barrier_wait\([^;]*, parity_0\);", ""),
    "empty": (GEMM, r"barrier_wait\([^;]*parity_0 \^ 1\);", ""),
    "parity": (GEMM, r"slot_0 = 0, parity_0 \^= 1", "slot_0 = 0"),
    "expect": (GEMM, r"barrier_expect\(([^,]*), .*\);", r"barrier_expect(\1, 64);"),
    "release": (GEMM, r"barrier_arrive\(.*\);", ""),
    "early release": (GEMM, r"barrier_arrive\([^,]*,", "barrier_arrive(barriers + 2 + slot_0,"),
    "set up": (GEMM, r"__syncthreads\(\);", ""),
    "begin": (GEMM, r"products_begin\(\);", ""),
    "last wait": (GEMM, r"products_wait<0>\(\);", ""),
    "every wait": (GEMM, r"products_wait<\d>\(\);", ""),
    "swizzle": (GEMM, r", 512, 2\);", ", 512, 3);"),
    "score wait": (ATTENTION, r"products_commit\(\);\s*products_wait<0>\(\);", ""),
    "later wait": (ATTENTION, r"products_wait<1>\(\);", ""),
    "carry wait": (ATTENTION, r"products_wait<0>\(\);\s*__syncwarp", "__syncwarp"),
    "query wait": (ATTENTION, r"barrier_wait\([^;]*, parity_0\);", ""),
    "part wait": (PARTS, r"products_wait<0>\(\);", ""),
    "part begin": (PARTS, r"products_begin\(\);", ""),
    "part kept": (PARTS, r"step > first\)", "1)"),
    "own tile read": (STAGED, r"block_barrier\(\);(\s*\{\s*const int copy_base)", r"\1"),
    "areas read": (STORED, r"boxes_read\(\);", ""),
    "areas written": (STORED, r"shared_written\(\);", ""),
    "areas of all lanes": (STORED, r"(shared_written\(\);)\s*__syncwarp\(\);", r"\1"),
    "boxes committed": (STORED, r"boxes_commit\(\);", ""),
    "boxes stored": (STORED, r"boxes_stored\(\);", ""),
    "areas swizzled": (STORED, r"\^ \(\(matrix_row\) >> 0 & 7\)", ""),
    "own tile written": (STAGED, r"block_barrier\(\);(\s*float v_s1)", r"\1"),
}


@pytest.fixture(scope="module")
def stripped(tmp_path_factory):
    kernels, sources = [], []
    for c, pattern, fresh in STRIPPED.values():
        source = emit(c.kernel, OPERATIONS)
        head, body = source.text.split('extern "C"')
        text = head + 'extern "C"' + re.sub(pattern, fresh, body)
        assert text != source.text, pattern
        kernels.append(c.kernel)
        sources.append(replace(source, text=text))
    return Emulator(kernels, sources, tmp_path_factory.mktemp("stripped"))


@needs_compiler
@pytest.mark.parametrize("what", STRIPPED)
def test_the_emulator_notices(stripped, what):
    """In one schedule or another; each takes all tiles by one block."""
    sample = STRIPPED[what][0].sample
    with pytest.raises(AssertionError):
        for schedule in range(SCHEDULES):
            found = arrays(sample)
            stripped.run(list(STRIPPED).index(what), found, 1, schedule)
            check(sample, found)


@needs_compiler
def test_a_deadlock_is_told(stripped):
    with pytest.raises(AssertionError, match=r"deadlock: thread 0 waits for a barrier \(line"):
        stripped.run(list(STRIPPED).index("release"), arrays(GEMM.sample), 1)


# what the compiler makes of them


def large_cases():
    """Tiles as they are chosen for large products."""
    for layout in ("nt", "tn"):
        yield case(layout, gemm(256, 256, 512, (128, 256, 64), 256, layout, out=bfloat16), 256, 4)
    yield case("teams", gemm(512, 512, 512, (128, 192, 64), 192, "tn", out=bfloat16), 128, 5)
    yield case("tall", gemm(256, 256, 512, (256, 128, 64), 128, out=bfloat16), 256, 4)
    yield case("swiglu", swiglu(256, 256, 512, (128, 128, 64), 128), 256, 4)
    yield case("scaled", scaled(256, 256, 512, (128, 128, 64), 128), 256, 4)
    yield case("attention", attention(256, 512, 128, (128, 128)), 256, 2)
    yield case("convolution", convolution((16, 16, 128, 128), (8, 16, 64), 128), 256, 4)
    yield case("tf32", gemm(256, 256, 512, (128, 128, 32), 128, dtype=float32), 256, 4)
    yield case("s8", gemm(256, 256, 512, (128, 128, 128), 128, dtype=int8), 256, 4)


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_large_kernels_compile_without_spills_and_products_overlap(every):
    """C7510 and its kin: the compiler waits between products of its own accord."""

    def build(c):
        source = emit(c.kernel, OPERATIONS)
        return c, source, compile_cubin(source.text, "sm_90a")

    with ThreadPoolExecutor(2) as pool:
        built = list(pool.map(build, islice(large_cases(), 0, None, every)))
    assert not [(c.name, cubin.log) for c, _, cubin in built if cubin.spills]
    assert not [(c.name, cubin.log) for c, _, cubin in built if re.search("C75[0-9]{2}", cubin.log)]
    for c, source, cubin in built:
        threads = source.threads - 128  # that compute
        launch, _ = registers_of(threads, source.resident)
        (producing,) = map(int, re.findall(r"fewer_registers<(\d+)>\(\);", source.text))
        (computing,) = map(int, re.findall(r"more_registers<(\d+)>\(\);", source.text))
        given = cubin.registers * source.threads - producing * 128
        assert cubin.registers <= launch
        assert computing * threads <= given, f"{c.name} waits for registers for ever"


@pytest.mark.parametrize("producing", PRODUCER_REGISTERS)
@pytest.mark.parametrize("blocks", (1, 2))
@pytest.mark.parametrize("threads", (128, 256, 384, 512))
def test_registers_move_from_the_producer_to_those_who_compute(threads, blocks, producing):
    launch, computing = registers_of(threads, blocks, producing)
    assert launch % 8 == computing % 8 == 0
    assert producing < min(launch, MOST_REGISTERS) <= computing <= MOST_REGISTERS
    assert blocks * launch * (threads + 128) <= 65536
    assert threads * computing + 128 * producing <= launch * (threads + 128)


def test_a_producer_keeps_what_others_do_not_need():
    """Beside 64 sums of a thread more than beside 192, or 96 of three teams."""
    for tile, threads, kept in (
        ((128, 128, 64), 256, 40),
        ((192, 128, 64), 128, 24),
        ((192, 192, 64), 384, 24),
        ((192, 64, 64), 384, 40),
    ):
        c = case("kept", gemm(512, 768, 512, tile, tile[1]), threads, 3)
        assert f"fewer_registers<{kept}>" in emit(c.kernel, OPERATIONS).text


def test_what_does_not_fit_is_told_before_it_is_compiled():
    spec = load("h200")

    def fit(tiles, columns, threads, stages):
        return misfit(
            case("fit", gemm(512, 512, 512, tiles, columns), threads, stages).kernel, spec
        )

    assert fit((128, 256, 64), 256, 256, 4) == ""
    assert fit((128, 256, 64), 256, 256, 5) == "shared memory"
    assert fit((128, 256, 64), 256, 128, 3) == "registers"
    assert fit((256, 256, 64), 256, 512, 3) == "registers"  # an instruction holds 128 of the 96
    assert fit((128, 200, 64), 256, 256, 3) == ""
    bad = case("strides", gemm(64, 60, 64, (64, 64, 64), 64, "nn"), 128, 2).kernel
    assert misfit(bad, spec) == "what the target can express"


def test_sums_are_held_until_what_is_loaded_beside_them_is_added():
    """y = bfloat16(x w) + r: each thread has its sums and its points of r at once."""
    spec = load("h200")

    def with_residual(tiles, columns):
        c = case("residual", gemm(512, 768, 512, tiles, columns), 128, 4)
        stream, _ = c.kernel.phases
        (r,) = buffers(bfloat16, r=(512, 768))
        y, end = Buffer("y", (512, 768), bfloat16, "output"), Body(bfloat16)
        end.map("rounded", "i j", "cast", "acc")
        end.load("other", "i j", at(r, "i", "j"))
        end.map("both", "i j", "add", "rounded", "other")
        phases = (stream, end.phase(Store(at(y, "i", "j"), "both")))
        return replace(c.kernel, buffers=(*c.kernel.buffers[:2], r, y), phases=phases)

    fitting, large = with_residual((128, 128, 64), 128), with_residual((128, 192, 64), 192)
    assert misfit(fitting, spec) == ""
    assert compile_cubin(emit(fitting, OPERATIONS).text, "sm_90a").spills == 0
    assert misfit(large, spec) == "registers"
    assert compile_cubin(emit(large, OPERATIONS).text, "sm_90a").spills > 0


def test_what_no_warpgroup_can_compute_is_refused_with_the_way_out():
    bad = case("strides", gemm(64, 60, 64, (64, 64, 64), 64, "nn"), 128, 2)
    with pytest.raises(UnsupportedError, match=r"no box of w .* multiples of 16 bytes\. Choose"):
        emit(bad.kernel, OPERATIONS)
    rows = case("rows", gemm(64, 64, 64, (64, 64, 64), 64, "tn", dtype=int8), 128, 2)
    with pytest.raises(UnsupportedError, match=r"f is not contiguous along the sum\. Choose"):
        emit(rows.kernel, OPERATIONS)
    few = case("few", gemm(64, 64, 64, (64, 64, 64), 64), 96, 2)
    with pytest.raises(UnsupportedError, match=r"has 96 threads; its matrix operation takes 128"):
        emit(few.kernel, OPERATIONS)
    for threads in (192, 1024):
        odd = case("odd", gemm(64, 64, 64, (64, 64, 64), 64), threads, 2)
        with pytest.raises(UnsupportedError, match=rf"{threads} threads .* of 128 up to 896\."):
            emit(odd.kernel, OPERATIONS)
