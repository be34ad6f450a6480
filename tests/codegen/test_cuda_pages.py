"""Boxes that begin where values in memory say, and streams that end where one says."""

from dataclasses import replace

import pytest
from cuda_cases import case
from cuda_emulation import emulate
from kernel_building import arrays, check
from paged_cases import paged, paged_cases
from pipeline_cases import OPERATIONS

from eqsat.codegen import oracle
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import int32
from eqsat.kernel.ir import Map
from eqsat.kernel.ir import check as check_kernel

CASES = list(paged_cases())
PAGED = [c for c in CASES if c.name.startswith("paged")]  # the oracle looks at all chunks


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return emulate([c.kernel for c in CASES], tmp_path_factory.mktemp("p"), OPERATIONS)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[c.name for c in CASES])
def test_a_kernel_gives_its_answer(emulator, number):
    sample = CASES[number].sample
    for blocks, schedule in ((1, 0), (2, 2), (3, 3)):
        found = arrays(sample)
        emulator.run(number, found, blocks, schedule)
        check(sample, found)


@pytest.mark.parametrize("c", PAGED, ids=lambda c: c.name)
def test_the_oracle_agrees(c):
    check_kernel(c.kernel)
    found = arrays(c.sample)
    oracle.run(c.kernel, found)
    check(c.sample, found)


def test_each_page_of_a_tile_is_one_copy():
    """As many rows as chunk and page have in common."""
    found = {c.name: emit(c.kernel, OPERATIONS).maps for c in PAGED}
    pages = {name: [(box.pages, box.each) for box in maps[1:3]] for name, maps in found.items()}
    assert pages == {
        "paged-16": [(4, 16)] * 2, "paged-8": [(4, 8)] * 2, "paged-32": [(1, 32)] * 2,
        "paged-128": [(1, 64)] * 2,
    }  # fmt: skip


def test_a_length_in_memory_ends_the_stream():
    """The thread that copies and those that compute read it."""
    for c in CASES:
        lines = emit(c.kernel, OPERATIONS).text.splitlines()
        assert sum("last_chunk = min(" in line for line in lines) == 2 * c.name.startswith("until")


def test_pages_compile_without_spills():
    for c in CASES[:2]:
        assert not compile_cubin(emit(c.kernel, OPERATIONS).text, "sm_90a").spills


def test_rows_that_are_no_period_of_the_swizzle_are_no_box():
    short = case("short", paged(70, 64, 64, (64, 32), 4), 128, 2)
    with pytest.raises(UnsupportedError, match=r"is no box of key .* eight rows\. Choose"):
        emit(short.kernel, OPERATIONS)


def test_pages_that_tiles_compute_are_no_box():
    """The thread that copies reads memory; what others reduce it does not know."""
    kernel = CASES[0].kernel
    phase = kernel.phases[1]
    body = list(phase.body)
    (at,) = (n for n, s in enumerate(body) if s.name == "page")
    body[at] = replace(body[at], name="number")
    body.insert(at + 1, Map("page", int32, ("j",), "add", ("number", "hi")))
    changed = replace(phase, body=tuple(body))
    phases = (kernel.phases[0], changed, *kernel.phases[2:])
    with pytest.raises(UnsupportedError, match="is no box of key"):
        emit(replace(kernel, phases=phases), OPERATIONS)
