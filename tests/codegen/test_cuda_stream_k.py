"""Blocks that have parts of tiles: on the CPU, and their text."""

import re
from dataclasses import replace

import pytest
from cuda_cases import case
from cuda_emulation import COMPILER, SCHEDULES, Emulator, emulate, run_between_guards
from kernel_building import arrays, check
from kernels import SAMPLES
from multicast_cases import shared
from pipeline_cases import OPERATIONS, attention, gemm
from sass_products import disassembled, touched_early
from stream_k_cases import in_parts, stream_k_cases

from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.errors import UnsupportedError
from eqsat.kernel.text import show

CASES = list(stream_k_cases())


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return emulate([c.kernel for c in CASES], tmp_path_factory.mktemp("stream_k"), OPERATIONS)


@pytest.mark.parametrize(  # by default two schedules of opposite ways, by turns
    ("schedule", "number"),
    [
        pytest.param(
            schedule,
            number,
            id=f"{schedule}-{c.name}",
            marks=[] if number % 4 in (schedule, 3 - schedule) else pytest.mark.slow,
        )
        for schedule in range(SCHEDULES)
        for number, c in enumerate(CASES)
    ],
)
def test_shares_give_the_answer(emulator, number, schedule):
    run_between_guards(emulator, number, CASES[number].sample, schedule=schedule)


def test_a_launch_leaves_what_the_next_one_needs(emulator):
    """What says that sums are there is zero again."""
    for number in range(0, len(CASES), 3):
        sample, found = CASES[number].sample, arrays(CASES[number].sample)
        emulator.run(number, found)
        given = found[sample.kernel.buffers[-1].name]
        assert not given.any()
        for name in sample.expected:
            found[name].fill(0)
        emulator.run(number, found)
        check(sample, found)


def test_a_share_that_is_not_waited_for_shows(tmp_path):
    """The emulator would notice blocks that wait for later ones, and sums that are left out."""
    if COMPILER is None:
        pytest.skip("no g++ on this machine")
    c = CASES[0]
    source = emit(c.kernel, OPERATIONS)
    faults = (
        ("gridDim.x - 1 - blockIdx.x", "blockIdx.x", "a later block"),
        ("(share + 1) * 4096", "(share + 0) * 4096", "Mismatched|location"),
        ("first_chunk = share % 2 *", "first_chunk = share % 2 * 0 *", "Mismatched|later"),
    )
    assert all(right in source.text for right, _, _ in faults)
    broken = [replace(source, text=source.text.replace(*fault[:2])) for fault in faults]
    emulator = Emulator([c.kernel] * len(faults), broken, tmp_path)
    for number, (_, _, told) in enumerate(faults):
        with pytest.raises(AssertionError, match=told):
            run_between_guards(emulator, number, c.sample)


@pytest.mark.parametrize("c", CASES[::3], ids=lambda c: c.name)
def test_nvrtc_takes_it(c):
    """And what it makes of sums reads none while a product still writes it."""
    source = emit(c.kernel, OPERATIONS)
    cubin = compile_cubin(source.text, "sm_90a")
    assert cubin.spills == 0 and touched_early(disassembled(cubin.data)) == []
    assert source.grid == c.kernel.blocks and not source.resident
    assert f"last tiles in {c.kernel.stream_k} parts" in show(c.kernel).splitlines()[1]


@pytest.mark.parametrize(
    "c",
    [pytest.param(c, marks=[pytest.mark.slow] if n % 2 else []) for n, c in enumerate(CASES)],
    ids=lambda c: c.name,
)
def test_products_run_on_while_others_are_started(c):
    """A compiler that cannot tell that sums stay alone has each product wait for the one before."""
    log = compile_cubin(emit(c.kernel, OPERATIONS).text, "sm_90a").log
    assert "serialized" not in log


def test_teams_still_take_turns():
    texts = {c.name: emit(c.kernel, OPERATIONS).text for c in CASES}
    assert "item % 2 != turn" in texts["two-teams-200"]
    assert "item % 2 != turn" not in texts["two-groups"]
    assert len(re.findall("give_sums<128>\\(", texts["swiglu"])) == 2


def test_room_for_every_sum():
    c = CASES[0]
    *others, sums, given = c.kernel.buffers
    small = replace(sums, shape=(sums.shape[0], sums.shape[1] // 2))
    with pytest.raises(UnsupportedError, match="and room for"):
        emit(replace(c.kernel, buffers=(*others, small, given)), OPERATIONS)
    assert sums.shape == (4, 64 * 64)  # of 8 tiles and 6 blocks two, in two parts each


def test_what_cannot_be_shared_is_refused():
    causal = case("causal", attention(256, 80, 64, (64, 32), "causal"), 128, 2)
    rows = case("rows", SAMPLES["row_reduce"](8, 9, 10), 64)
    pairs = shared(case("pairs", gemm(128, 64, 40, (64, 64, 32), 64), 128, 2), 2)
    short = case("short", gemm(64, 64, 72, (64, 64, 64), 64), 128, 2)
    for c in (causal, rows, pairs, short):
        alone = in_parts(c, 3, 3 * c.kernel.tiles).kernel
        with pytest.raises(UnsupportedError, match="Give each block whole tiles"):
            emit(alone, OPERATIONS)
