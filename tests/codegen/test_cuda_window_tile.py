"""Tiles of overlapping windows in shared memory: answers, places that lie there once."""

import re

import pytest
from cuda_emulation import asked, emulate, run_between_guards
from grouped_cases import grouped_cases

from eqsat.codegen.cuda_emit import emit

CASES = list(grouped_cases())


@pytest.fixture(scope="module")
def emulator(request, tmp_path_factory):
    numbers = asked(request, test_a_kernel_gives_its_answer)
    return emulate([CASES[n].kernel for n in numbers], tmp_path_factory.mktemp("grouped")), numbers


@pytest.mark.parametrize("number", [pytest.param(n, id=c.name) for n, c in enumerate(CASES)])
def test_a_kernel_gives_its_answer(emulator, number):
    """Also beside memory that holds NaN: nothing outside the array is read or written."""
    compiled, numbers = emulator
    run_between_guards(compiled, numbers.index(number), CASES[number].sample)


def found(label: str):
    (one,) = (c for c in CASES if c.name.startswith(f"grouped-{label}"))
    return emit(one.kernel)


def test_places_that_windows_share_lie_in_memory_once():
    """4 x 8 windows of 3 x 3 are 6 x 10 places, each of four channels of four groups."""
    source = found("9x13x5x4x4x3x3-11-last-bfloat16-4x8x4x4--1")
    places, points, weights = 6 * 10 * 16, 4 * 8 * 16 * 9, 4 * 4 * 4 * 9
    assert 2 * (places + weights) <= source.shared_bytes < points + 2 * weights


def test_windows_of_an_operation_are_taken_apart_where_elements_lie_along_one():
    """It reads eight elements at once, from units of 16 bytes."""
    source = found("9x18x3x16x8x3x3-11-first-mma-2x16x2x8--1")
    points = 2 * 16 * 2 * 16 * 9
    assert source.shared_bytes >= 2 * points


def test_rows_of_a_fragment_lie_in_different_banks():
    """Of two groups of 16 channels, padded: neighbours lie an odd number of units apart."""
    source = found("9x18x3x8x8x3x3-11-last-mma-4x16x2x8--1")
    steps = re.findall(
        r"load_matrix_x4\(left\[block\], s_a \+ .*?lane % 8\)\) \* (\d+)", source.text
    )
    assert steps and all(int(step) * 2 // 16 % 2 for step in steps)
