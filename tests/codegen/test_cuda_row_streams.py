"""Streams over rows that are reduced by themselves: normalised, stored, and summed over all rows
in one loop.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from cuda_emulation import COMPILER, emulate, run_between_guards
from kernel_building import Sample, arrays, check, normal, wide
from terms import Terms

from eqsat.codegen import oracle
from eqsat.codegen.cpu import target as numba_target
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.graph.dtypes import DType, bfloat16, float32
from eqsat.kernel.ir import Buffer, Kernel
from eqsat.kernel.ir import check as check_kernel
from eqsat.lower.lowering import Schedule, lower
from eqsat.terms.algebra import Facts, Term, Universe
from eqsat.terms.form import Stored, form


@dataclass(frozen=True)
class Case:
    """Rows and columns, rows of a chunk, threads; `shared`: whether warps share a row."""

    rows: int
    columns: int
    chunk: int
    threads: int
    shared: bool
    dtype: DType = float32

    def __str__(self) -> str:
        size = f"{self.rows}x{self.columns}-{self.dtype.name}"
        return f"{size}-by-{self.chunk}-in-{self.threads}"

    @property
    def sample(self) -> Sample:
        """y[i,j] = x / |x_i| * w[j], norms[i] = |x_i|^2, sums[j] = sum_i y d, and greatest[j]."""
        over = Universe(["i", "j"], {"i": self.rows, "j": self.columns})
        t, kind = Terms(over), self.dtype.name

        def read(buffer: str, names: str) -> Term:
            found = t.read(buffer, names, kind)
            return found if self.dtype == float32 else t.cast("float32", found)

        x, w, d = read("x", "ij"), read("w", "j"), read("d", "ij")
        norm = t.sum("j", Term("mul", x, x))
        y = Term("mul", Term("mul", x, w), Term("rsqrt", norm))
        stored = (
            Stored("y", y, ("i", "j"), float32),
            Stored("norms", norm, ("i",), float32),
            Stored("sums", t.sum("i", Term("mul", y, d)), ("j",), float32),
            Stored("greatest", t.max("i", y), ("j",), float32),
        )
        made = form(stored, Facts(over))
        shapes = {"x": "ij", "w": "j", "d": "ij", "y": "ij", "norms": "i", "sums": "j"}
        buffers = {
            name: Buffer(
                name,
                tuple(over.extents[n] for n in names),
                self.dtype if name in "xwd" else float32,
                "input" if name in "xwd" else "output",
            )
            for name, names in (shapes | {"greatest": "j"}).items()
        }
        schedule = Schedule({}, {"i": self.chunk}, threads=self.threads)
        kernel = lower("rows", made, schedule, buffers, "h200")
        given = dict(
            zip("xwd", normal(*(buffers[n].shape for n in "xwd"), dtype=self.dtype), strict=True)
        )
        a, b, c = (wide(given[name]) for name in "xwd")
        norms = (a * a).sum(1)
        answer = a * b / np.sqrt(norms)[:, None]
        expected = {"y": answer, "norms": norms}
        expected |= {"sums": (answer * c).sum(0), "greatest": answer.max(0)}
        return Sample(kernel, given, expected, 1e-5)

    @property
    def kernel(self) -> Kernel:
        return self.sample.kernel


CASES = (
    Case(13, 64, 4, 128, False),  # a row of each warp, the last chunk short
    Case(24, 256, 8, 128, False, bfloat16),
    Case(9, 500, 2, 128, True),
    Case(17, 1000, 1, 256, True, bfloat16),
    Case(11, 2048, 2, 128, True, bfloat16),  # too much work to be unrolled
    Case(6, 33, 2, 32, False),
)
BY_NAME = pytest.mark.parametrize("number", range(len(CASES)), ids=[*map(str, CASES)])


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return emulate([c.kernel for c in CASES], tmp_path_factory.mktemp("row-streams"), {})


@BY_NAME
@pytest.mark.skipif(COMPILER is None, reason="no g++ on this machine")
def test_a_kernel_gives_its_answer(emulator, number):
    for blocks, schedule in ((1, 0), (1, 3)):
        run_between_guards(emulator, number, CASES[number].sample, blocks, schedule)


@BY_NAME
def test_the_oracle_agrees(number):
    sample = CASES[number].sample
    check_kernel(sample.kernel)
    found = arrays(sample)
    oracle.run(sample.kernel, found)
    check(sample, found)


@pytest.mark.parametrize("number", [0, 2], ids=[str(CASES[0]), str(CASES[2])])
def test_the_cpu_agrees(number, tmp_path):
    sample = CASES[number].sample
    found = arrays(sample)
    numba_target.load(sample.kernel, tmp_path)([found[b.name] for b in sample.kernel.buffers])
    check(sample, found)


@BY_NAME
def test_all_is_done_in_one_loop_which_copies_ahead(number):
    """Where a warp has its rows alone, none waits for others before the loop is done."""
    case = CASES[number]
    streams = [phase for phase in case.kernel.phases if phase.stream]
    assert [len(phase.stores) for phase in streams] == [2]
    source = emit(case.kernel, {})
    head, _, loop = source.text.rpartition("for (int first = 0")
    assert "copy_async<" in head
    body = loop[: loop.rindex("wait_copies<0>")]
    across = {name for name in ("reduce_warps", "reduce_alike") if name in body}
    assert across == (
        {"reduce_alike" if case.threads > 128 else "reduce_warps"} if case.shared else set()
    )
    assert not compile_cubin(source.text, "sm_90a").spills
