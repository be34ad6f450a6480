"""Emitted CUDA, run on the CPU in lockstep, against the answers."""

import re
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest
from cuda_cases import all_cases
from cuda_emulation import COMPILER, Emulator, asked, run_between_guards
from float64_cases import early_cases, hopper_cases
from mask_cases import masked_cases

from eqsat.codegen.cuda.emit import emit

CASES = [*all_cases(), *early_cases(), *hopper_cases(), *masked_cases()]
GROUPS = 2


# What sets cases apart of which the default run has one: where loads lie and how far ahead they
# are copied, an instruction's depth, threads; how a factor is made; of like sizes and tiles one.
APART = (
    (r"-(shared|stages\d|k[48])$", ""),
    (r"^(flash-\d.*)-\d+$", r"\1"),
    (r"^convolution-(computed-|scalar-)", "convolution-"),
    (r"^(\w*float\w+-k\d+)-\d+-", r"\1-"),
    (r"-8x15x4$", "-7x16x5"),  # rows of one tile or fewer; of several
    (r"-9x17x11$", "-33x37x19"),
    (r"^((matmul-\w+|product-s8|transposed)-\d+x\d+x\d+)x[\dx]+$", r"\1"),
)
OF_SIZE = (r"^(f64-\w+)-\d[\dx]+", r"\1")


def family(name: str) -> str:
    """The same for cases that differ in one thing alone."""
    for pattern, kept in [OF_SIZE] if name.startswith("f64") else APART:
        name = re.sub(pattern, kept, name)
    return name


def by_turns() -> set[int]:
    """One case of each family: the first one of one, the second one of the next, and so on."""
    families = defaultdict[str, list[int]](list)
    for number, c in enumerate(CASES):
        families[family(c.name)].append(number)
    alone = {numbers[0] for numbers in families.values() if len(numbers) == 1}
    several = [numbers for numbers in families.values() if len(numbers) > 1]
    return alone | {numbers[turn % len(numbers)] for turn, numbers in enumerate(several)}


OFTEN = by_turns()
NUMBERS = [
    pytest.param(n, id=c.name, marks=[] if n in OFTEN else pytest.mark.slow)
    for n, c in enumerate(CASES)
]


@pytest.fixture(scope="module")
def emulators(request, tmp_path_factory):
    """Of each case that runs, in groups, each compiled at once; groups compile side by side."""
    if COMPILER is None:
        pytest.skip("no g++ on this machine")
    numbers = asked(request, test_a_kernel_gives_its_answer)

    def build(group):
        kernels = [CASES[number].kernel for number in numbers[group::GROUPS]]
        sources = [emit(kernel) for kernel in kernels]
        return Emulator(kernels, sources, tmp_path_factory.mktemp(f"group{group}"))

    with ThreadPoolExecutor(GROUPS) as pool:
        groups = list(pool.map(build, range(GROUPS)))
    return {n: (groups[at % GROUPS], at // GROUPS) for at, n in enumerate(numbers)}


@pytest.mark.parametrize("number", NUMBERS)
def test_a_kernel_gives_its_answer(emulators, number):
    emulator, place = emulators[number]
    run_between_guards(emulator, place, CASES[number].sample)


def test_of_each_family_a_case_is_run_by_default():
    runs = {family(CASES[number].name) for number in OFTEN}
    assert runs == {family(c.name) for c in CASES} and len(OFTEN) == len(runs)


def test_chunks_that_a_mask_leaves_out_are_no_part_of_the_loop():
    for c in masked_cases():
        text = emit(c.kernel).text
        assert "for (int chunk = first_chunk; chunk < last_chunk; ++chunk)" in text
        stages = max(phase.stages for phase in c.kernel.phases if phase.stream)
        assert ("copy_ahead(first_chunk + 0)" in text) == (stages > 1)
        assert bool(re.search(r"< 0\) last_chunk = 0;", text)) == c.name.startswith("triangle")
