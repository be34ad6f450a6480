"""Windows that threads take whole: answers, and what the compiler knows of places."""

import re

import pytest
from cuda_emulation import asked, emulate, run_between_guards
from taken_cases import taken_cases

from eqsat.codegen.cuda.emit import emit

CASES = list(taken_cases())


@pytest.fixture(scope="module")
def emulator(request, tmp_path_factory):
    numbers = asked(request, test_a_kernel_gives_its_answer)
    return emulate([CASES[n].kernel for n in numbers], tmp_path_factory.mktemp("taken")), numbers


@pytest.mark.parametrize("number", [pytest.param(n, id=c.name) for n, c in enumerate(CASES)])
def test_a_kernel_gives_its_answer(emulator, number):
    """Also beside memory that holds NaN: nothing outside the array is read or written."""
    compiled, numbers = emulator
    run_between_guards(compiled, numbers.index(number), CASES[number].sample)


def text(label: str) -> str:
    (one,) = (c for c in CASES if c.name.startswith(f"taken-{label}"))
    return emit(one.kernel).text


@pytest.mark.parametrize("number", [pytest.param(n, id=c.name) for n, c in enumerate(CASES)])
def test_no_thread_asks_for_its_place_within_a_window(number):
    """Bases of these are numbers, each in a branch where several threads share a window."""
    source = emit(CASES[number].kernel).text
    bases = re.findall(r"int copy_base_k = ([^;]*);", source[: source.index("s_f = ")])
    assert bases and all(base.isdigit() for base in bases)


def test_elements_side_by_side_are_written_together():
    """16 bytes of a window of 27 elements, whose row is 32 long; not where rows lie together."""
    wide = "reinterpret_cast<Pack<unsigned short, 8>*>(s_a"
    assert wide in text("2x9x3-311-last-bfloat16-32by128")
    assert wide not in text("2x9x3-311-first-bfloat16-32by128")


def test_threads_beyond_rows_share_windows():
    """128 threads copy 32 rows: each a quarter of a window, in units of eight elements."""
    source = text("2x9x3-311-last-bfloat16-32by128")
    for part in range(0, 32, 8):
        assert f"if (int(threadIdx.x) / 32 * 8 == {part})" in source
        assert f"constexpr int copy_base_k = {part};" in source


@pytest.mark.parametrize(
    ("channels", "size"), [("6-320", 4), ("6-311", 4), ("4-311", 8), ("8-311", 16)]
)
def test_channels_of_a_place_are_copied_together(channels, size):
    """Also where padding is asked for, which all channels of a place lack or have."""
    (source,) = {text(c.name[6:]) for c in CASES if f"x{channels}-" in c.name}
    assert f"copy_async<{size}>(s_a" in source
