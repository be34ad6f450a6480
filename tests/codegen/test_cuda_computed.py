"""Factors that a block computes of what lies in memory, loaded a chunk ahead in vectors."""

import pytest
from computed_cases import computed_cases
from cuda_emulation import COMPILER, emulate, run_between_guards
from kernel_building import arrays, check
from pipeline_cases import OPERATIONS

from eqsat.codegen import oracle
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.run.compile import compile_cubin

pytestmark = pytest.mark.usefixtures("shared_search")


CASES = list(computed_cases())


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
    assert "auto load_" in emit(CASES[-1].kernel, OPERATIONS).text  # single elements too


def test_elements_too_short_for_a_copy_are_read_a_chunk_ahead():
    odd = next(c for c in CASES if "x99-" in c.name)
    text = emit(odd.kernel, OPERATIONS).text
    before, loop = text.split("for (int chunk = 0", 1)
    assert "load_a(0);" in before and "copy_async" not in text
    assert loop.index("load_a(chunk + 1);") < loop.index("mma_sync_aligned")
    assert "p_x[" in before and "p_x[" not in loop


def test_what_is_rounded_as_it_is_stored_is_not_rounded_before():
    text = emit(CASES[0].kernel, OPERATIONS).text
    assert "round_bfloat16(" not in text[text.index("__global__") :]


def test_they_compile():
    for c in CASES[:3]:
        assert compile_cubin(emit(c.kernel, OPERATIONS).text, "sm_90a").data
