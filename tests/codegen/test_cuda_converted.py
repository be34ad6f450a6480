"""Right factors that threads of their own convert: emulated, through the oracle, compiled."""

from dataclasses import replace

import pytest
from converted_cases import converted_cases
from cuda_cases import case
from cuda_emulation import COMPILER, emulate, run_between_guards
from kernel_building import arrays, check
from pipeline_cases import OPERATIONS, gemm

from eqsat.codegen import oracle
from eqsat.codegen.cuda.emit import choose, emit
from eqsat.codegen.cuda.fit import misfit
from eqsat.codegen.cuda.place.warpgroup_operations import WARPGROUP
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.errors import UnsupportedError
from eqsat.kernel.ir import Map
from eqsat.kernel.ir import check as check_kernel
from eqsat.price.conversion import CONVERTING, GROUPS
from eqsat.specs import load

CASES = list(converted_cases())
IDS = [c.name for c in CASES]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return emulate([c.kernel for c in CASES], tmp_path_factory.mktemp("converted"), OPERATIONS)


@pytest.mark.skipif(COMPILER is None, reason="no g++ on this machine")
@pytest.mark.parametrize("number", range(len(CASES)), ids=IDS)
def test_a_kernel_gives_its_answer(emulator, number):
    for blocks, schedule in ((1, 0), (1, 2), (3, 3)):
        run_between_guards(emulator, number, CASES[number].sample, blocks, schedule)


@pytest.mark.parametrize("c", CASES, ids=IDS)
def test_the_oracle_agrees(c):
    check_kernel(c.kernel)
    found = arrays(c.sample)
    oracle.run(c.kernel, found)
    check(c.sample, found)


@pytest.mark.parametrize("c", CASES, ids=IDS)
def test_threads_of_their_own_convert(c):
    """A group for them beside those that compute and the producer's; what they make is never in
    registers of those who multiply.
    """
    source = emit(c.kernel, OPERATIONS)
    teams = 2 if "turn = " in source.text else 1
    assert source.threads == teams * c.kernel.threads + WARPGROUP + GROUPS * CONVERTING
    assert "shared_written();" in source.text and "unpack_" in source.text
    placement, _ = choose(c.kernel, OPERATIONS)
    assert placement.converted == {m.right for m in placement.matrices.values()}
    assert not misfit(c.kernel, load("h200"))


def test_scales_are_asked_for_before_the_copies_are_waited_for():
    for name in ("converted-along-by-j", "converted-across-by-l"):
        (c,) = (c for c in CASES if c.name == name)
        text = emit(c.kernel, OPERATIONS).text
        held = text.index("_held[")
        assert text.index("_held[", held + 1) < text.index("barrier_wait(", held)


def test_scales_that_chunks_share_are_asked_for_once_a_tile():
    """Only those along the sum differ from chunk to chunk."""
    for name, once in (("converted-along-by-j", True), ("converted-across-by-l", False)):
        (c,) = (c for c in CASES if c.name == name)
        text = emit(c.kernel, OPERATIONS).text
        assert (text.index("_held[") < text.index("for (int chunk")) == once


def test_what_no_threads_convert_is_refused():
    (c,) = (c for c in CASES if c.name == "converted-int8")
    with pytest.raises(UnsupportedError, match="blocks that copy for each other"):
        emit(replace(c.kernel, multicast=2), OPERATIONS)
    with pytest.raises(UnsupportedError, match=r"has 768 threads that compute.* up to 640"):
        emit(replace(c.kernel, threads=768), OPERATIONS)
    whole = tuple(
        replace(s, op="negative", arguments=("f",)) if isinstance(s, Map) else s
        for s in c.kernel.phases[0].body
    )
    phases = (replace(c.kernel.phases[0], body=whole), *c.kernel.phases[1:])
    with pytest.raises(UnsupportedError, match="threads make no such tile"):
        emit(replace(c.kernel, phases=phases), OPERATIONS)


def test_kernels_without_such_factors_have_no_such_threads():
    plain = case("plain", gemm(64, 64, 128, (64, 64, 64), 64), 128, 2)
    assert "converter" not in emit(plain.kernel, OPERATIONS).text


def test_they_compile():
    for c in CASES[::2]:
        assert compile_cubin(emit(c.kernel, OPERATIONS).text, "sm_90a").spills == 0
