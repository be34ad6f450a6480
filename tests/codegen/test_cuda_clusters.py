"""Tiles that blocks of a cluster compute together: their text, and run in lockstep on the CPU."""

from dataclasses import replace

import pytest
from cluster_cases import cluster_cases
from cuda_cases import case
from cuda_emulation import asked, emulate, run_between_guards
from kernels import SAMPLES

from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.errors import UnsupportedError
from eqsat.kernel.text import show

CASES = cluster_cases()
NUMBERS = [  # by default rows of each length over 2, 8 or 4 blocks, by turns
    pytest.param(n, id=c.name, marks=pytest.mark.slow if (n + n // 3 + n // 12) % 3 else [])
    if not c.name.startswith("totals")
    else pytest.param(n, id=c.name)
    for n, c in enumerate(CASES)
]


@pytest.fixture(scope="module")
def emulator(request, tmp_path_factory):
    """Of the cases that run, and their numbers."""
    numbers = sorted({*asked(request, test_a_cluster_gives_the_answer)})
    kernels = [CASES[number].kernel for number in numbers]
    return emulate(kernels, tmp_path_factory.mktemp("clusters")), numbers


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("schedule", range(2))
def test_a_cluster_gives_the_answer(emulator, number, schedule):
    compiled, numbers = emulator
    run_between_guards(compiled, numbers.index(number), CASES[number].sample, schedule=schedule)


def test_blocks_exchange_what_they_reduce():
    kernels = [c.kernel for c in CASES]
    texts = [emit(kernel).text for kernel in kernels]
    exchanged = [text.count("reduce_blocks<") for text in texts]
    assert sum(count > 0 for count in exchanged) > len(CASES) // 2
    for kernel, text in zip(kernels, texts, strict=True):
        assert f"__cluster_dims__({kernel.cluster}, 1, 1)" in text
        assert emit(kernel).grid == kernel.tiles * kernel.cluster
        assert f"cluster {kernel.cluster}" in show(kernel).splitlines()[1]


@pytest.mark.parametrize("c", CASES[::9], ids=lambda c: c.name)
def test_nvrtc_takes_it(c):
    assert compile_cubin(emit(c.kernel).text, "sm_90a").spills == 0


@pytest.mark.parametrize("name", ["matmul", "row_scan", "prefix_sum"])
def test_what_one_block_does_by_itself_is_refused(name):
    kernel = replace(case(name, SAMPLES[name](8, 9, 10)).kernel, cluster=2)
    with pytest.raises(UnsupportedError, match=r"clusters of 2\. Give each tile one"):
        emit(kernel)
