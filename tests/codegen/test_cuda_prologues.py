"""Left factors computed in registers: read as fragments, in pairs where each step is rounded."""

import re

import pytest
from cuda_cases import case
from cuda_emulation import COMPILER, emulate, run_between_guards
from kernel_building import Body, arrays, at, buffers, check
from pipeline_cases import OPERATIONS, by, scaled
from prologue_cases import prologue, prologue_cases

from eqsat.codegen import oracle
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import bfloat16
from eqsat.kernel.ir import Axis, Kernel, Store
from eqsat.kernel.ir import check as check_kernel

pytestmark = pytest.mark.usefixtures("shared_search")

CASES = list(prologue_cases())


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return emulate([c.kernel for c in CASES], tmp_path_factory.mktemp("prologues"), OPERATIONS)


@pytest.mark.skipif(COMPILER is None, reason="no g++ on this machine")
@pytest.mark.parametrize("number", range(len(CASES)), ids=[c.name for c in CASES])
def test_a_kernel_gives_its_answer(emulator, number):
    for blocks, schedule in ((1, 0), (3, 3)):
        run_between_guards(emulator, number, CASES[number].sample, blocks, schedule)


@pytest.mark.parametrize("c", CASES, ids=lambda c: c.name)
def test_the_oracle_agrees(c):
    check_kernel(c.kernel)
    found = arrays(c.sample)
    oracle.run(c.kernel, found)
    check(c.sample, found)


def loop(kernel) -> str:
    """The text of the computing threads' loop over chunks."""
    text = emit(kernel, OPERATIONS).text
    return text[text.rindex("for (int chunk") : text.rindex("products_wait<0>")]


@pytest.mark.parametrize("c", CASES, ids=lambda c: c.name)
def test_neighbours_along_the_sum_are_computed_together(c):
    """Each fragment is one ldmatrix; a value that nothing rounds has elements of its own."""
    text = loop(c.kernel)
    transposed = "_transposed" if "-t-" in c.name else ""
    assert f"load_matrix_x4{transposed}(f_a" in text
    assert ("pair_" in text) == (c.name != "prologue-partial")
    assert ("v_made" in text) == (c.name == "prologue-partial")


def test_the_factor_of_rows_is_no_pair():
    rows = case("rows", scaled(128, 64, 128, (64, 64, 64), 64, memory="registers"), 128, 2)
    text = emit(rows.kernel, OPERATIONS).text
    assert "pair_" not in text and "pack_bfloat16(" in text


def test_what_a_pair_is_made_of_may_be_used_again():
    """The sums of squares read the same fragments, after the products are on their way."""
    (kernel,) = (c.kernel for c in CASES if c.name == "prologue-n-beside")
    text = loop(kernel)
    assert text.index("products_commit") < text.index("half_of(f_a")


def test_a_step_waits_for_the_one_that_read_its_registers():
    """Four steps of a chunk: all groups but the last three are done."""
    for tile, last in ((64, "3"), (16, "0")):
        one = case("steps", prologue("mul", (64, 32, 256), (64, 32, tile), 32), 128, 2)
        assert re.findall(r"products_wait<(\d)>", loop(one.kernel)) == [last]


def test_they_compile():
    for c in CASES[::3]:
        assert compile_cubin(emit(c.kernel, OPERATIONS).text, "sm_90a").spills == 0


def test_a_factor_that_threads_hold_otherwise_is_refused():
    """(a b) b, and sums of all products of rows: k lies over lanes, as columns, and j beside it."""
    a, b = buffers(bfloat16, a=(64, 64), b=(48, 64))
    y, z = buffers(y=(64, 64), z=(64,))
    body = Body()
    body.load("a", "i k", at(a, "i", "k"), dtype=bfloat16, memory="shared")
    body.load("b", "j k", at(b, "j", "k"), dtype=bfloat16, memory="shared")
    body.contract("p", "i j", "k", "a", "b", "")
    body.map("narrow", "i j", "cast", "p", dtype=bfloat16)
    body.contract("q", "i k", "j", "narrow", "b", by(64, held=True))
    body.map("both", "i j k", "mul", "a", "b")
    body.reduce("all", "i", "sum", "j k", "both")
    phase = body.phase(Store(at(y, "i", "k"), "q"), Store(at(z, "i"), "all"))
    inner = (Axis("j", 48, 48), Axis("k", 64, 64))
    kernel = Kernel("held", (a, b, y, z), (Axis("i", 64, 64),), inner, (phase,), threads=128)
    with pytest.raises(UnsupportedError, match="threads hold narrow as others use it along j"):
        emit(kernel, OPERATIONS)
