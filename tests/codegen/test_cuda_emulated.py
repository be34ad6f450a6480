"""Emitted CUDA, run on the CPU in lockstep, against the answers."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from cuda_cases import all_cases
from cuda_emulation import COMPILER, Emulator
from float64_cases import early_cases, hopper_cases
from kernel_building import arrays, check
from mask_cases import masked_cases

from eqsat.codegen.cuda_emit import emit

CASES = [*all_cases(), *early_cases(), *hopper_cases(), *masked_cases()]
GROUPS = 2
GUARD = 64


@pytest.fixture(scope="module")
def emulators(tmp_path_factory):
    """The cases in groups, each compiled at once; groups compile side by side."""
    if COMPILER is None:
        pytest.skip("no g++ on this machine")

    def build(group):
        kernels = [c.kernel for c in CASES[group::GROUPS]]
        sources = [emit(kernel) for kernel in kernels]
        return Emulator(kernels, sources, tmp_path_factory.mktemp(f"group{group}"))

    with ThreadPoolExecutor(GROUPS) as pool:
        return list(pool.map(build, range(GROUPS)))


@pytest.mark.parametrize("number", range(len(CASES)), ids=[c.name for c in CASES])
def test_a_kernel_gives_its_answer(emulators, number):
    sample = CASES[number].sample
    found = arrays(sample, GUARD)
    edges = {name: array.base.copy() for name, array in found.items()}
    emulators[number % GROUPS].run(number // GROUPS, found)
    check(sample, found)
    for name, array in found.items():
        for part in (slice(None, GUARD), slice(-GUARD, None)):
            assert array.base[part].tobytes() == edges[name][part].tobytes(), name


def test_chunks_that_a_mask_leaves_out_are_no_part_of_the_loop():
    for c in masked_cases():
        text = emit(c.kernel).text
        assert "for (int chunk = first_chunk; chunk < last_chunk; ++chunk)" in text
        assert ("copy_ahead(first_chunk + 0)" in text) == (c.kernel.phases[1].stages > 1)
