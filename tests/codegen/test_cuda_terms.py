"""Products of terms that lie in memory: in the emulator, through the oracle, through NVRTC."""

import re
from dataclasses import replace

import pytest
from cuda_emulation import emulate
from kernel_building import arrays, check
from pipeline_cases import OPERATIONS
from terms_cases import large, terms_cases

from eqsat.codegen import oracle
from eqsat.codegen.cpu import emit as numba_emit
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.fit import misfit
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.errors import UnsupportedError
from eqsat.kernel.ir import Contract
from eqsat.kernel.ir import check as check_kernel
from eqsat.specs import load

CASES = list(terms_cases())


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return emulate([c.kernel for c in CASES], tmp_path_factory.mktemp("terms"), OPERATIONS)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[c.name for c in CASES])
def test_a_kernel_gives_its_answer(emulator, number):
    sample = CASES[number].sample
    for blocks, schedule in ((1, 0), (3, 2)):
        found = arrays(sample)
        emulator.run(number, found, blocks, schedule)
        check(sample, found)


@pytest.mark.parametrize("c", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("operations", [None, OPERATIONS], ids=["plain", "by semantics"])
def test_the_oracle_agrees(c, operations):
    check_kernel(c.kernel)
    found = arrays(c.sample)
    oracle.run(c.kernel, found, operations)
    check(c.sample, found)


@pytest.mark.parametrize("whole", ["", "x"])
def test_large_tiles_compile_without_spills_and_products_overlap(whole):
    c = large(whole)
    assert misfit(c.kernel, load("h200")) == ""
    source = emit(c.kernel, OPERATIONS)
    assert source.text.count("step > 0") == 2  # each sum of a chunk starts anew
    cubin = compile_cubin(source.text, "sm_90a")
    assert not cubin.spills and not re.search("C75[0-9]{2}", cubin.log), cubin.log


def test_a_slot_is_let_go_of_before_the_sums_of_its_chunk_are_joined():
    """The products are waited for, so that it is the slot at hand, not the one before."""
    text = emit(large().kernel, OPERATIONS).text
    loop = text[text.rindex("for (int chunk") :]
    release = re.search(r"barrier_arrive\w*\(barriers \+ \d+ \+ slot_0,", loop)
    assert release and loop.index("products_wait<0>") < release.start() < loop.index("is_finite")
    assert loop.count("barrier_arrive") == 1


def by_warps(operation: str):
    """The first case by another operation."""

    def change(s):
        return replace(s, operation=operation) if isinstance(s, Contract) else s

    kernel = CASES[0].kernel
    phases = [replace(p, body=tuple(map(change, p.body))) for p in kernel.phases]
    return replace(kernel, phases=tuple(phases))


def test_what_cannot_multiply_stored_terms_is_refused():
    with pytest.raises(UnsupportedError, match=r"no operation of a warpgroup\. Choose another"):
        emit(by_warps("mma_m16n8k16_bf16"), OPERATIONS)
    with pytest.raises(UnsupportedError, match=r"terms that lie in memory; the CPU target .*Split"):
        numba_emit.emit(by_warps(""), {})
