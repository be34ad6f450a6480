"""Products of a batch whose points lie side by side in memory, and rows of several short names.

Programs are planned for a device on which nothing but the operations of a warpgroup is fast, and
run on the tile interpreter.
"""

from dataclasses import replace

import numpy as np
import pytest
from fast_products import FAST, H200, fast, normal, planned, run, traced

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.driver import plan
from eqsat.errors import TraceError
from eqsat.explain.explanation import Explanation, from_json, to_json
from eqsat.explain.replay import check as check_trace
from eqsat.graph.dtypes import as_dtype, bfloat16
from eqsat.planned import Planned
from eqsat.program import Launch
from eqsat.specs import ParallelProcessingUnit

pytestmark = pytest.mark.usefixtures("shared_search")

TOGETHER = "rows together"


def einsum(text: str, *shapes: tuple[int, ...], dtype: str = "bfloat16") -> g.Tensor:
    """Of inputs a and b."""
    a, b = (g.input(name, shape, dtype) for name, shape in zip("ab", shapes, strict=True))
    return g.einsum(text, a, b)


def is_right(program: Planned, out: g.Tensor, *shapes: tuple[int, ...]) -> None:
    """Of small whole numbers every sum is exact in the factors' dtype."""
    dtype = as_dtype(out.dtype.name).numpy
    a, b = (np.rint(normal(*shape)).astype(dtype) for shape in shapes)
    (wanted,) = g.evaluate([out], {"a": a, "b": b})
    np.testing.assert_array_equal(run(program, a=a, b=b).astype(float), wanted.astype(float))


def is_turned(launch: Launch) -> bool:
    return any(rule.startswith("turn ") for rule in launch.kernel.rules)


def replay(explanation: Explanation, program: Planned, spec: ParallelProcessingUnit) -> None:
    check_trace(explanation, program.segments, program.search.rules, spec)


def holds(program: Planned, spec: ParallelProcessingUnit) -> Explanation:
    """The program's trace, which is replayed."""
    explanation = from_json(to_json(program.explain()))
    replay(explanation, program, spec)
    return explanation


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("ikc,jkc->ijc", ((70, 40, 24), (66, 40, 24))),
        ("kic,kjc->ijc", ((40, 136, 16), (40, 128, 16))),
        ("ikbc,jkbc->ijbc", ((64, 24, 3, 5), (65, 24, 3, 5))),
    ],
)
def test_a_batch_that_lies_side_by_side_is_turned_outward(text, shapes):
    out = einsum(text, *shapes)
    program = planned(out, candidates=64)
    first = program.parts.launches[0]
    found = [program.parts.launches, *first.alternatives]
    chosen = next(each for each in found if any(map(is_turned, each)))
    program = replace(program, parts=replace(program.parts, launches=tuple(chosen)))
    *_, main, last = chosen
    assert is_turned(main) and not is_turned(last)
    assert any(rule.startswith("substitute_wgmma") for rule in main.kernel.rules)
    is_right(program, out, *shapes)


def test_a_large_one_takes_little_more_than_its_copies_and_its_trace_holds():
    out = einsum("ikc,jkc->ijc", (256, 256, 128), (256, 256, 128))
    program = plan(out, H200, cache=Cache(None))
    bytes_ = 3 * 256 * 256 * 128 * 2
    assert sum(launch.seconds for launch in program.parts.launches) < 4 * bytes_ / (
        H200.memory("dram").sustained_gb_per_s * 1e9
    )
    operations = {one.name: one for one in H200.operations}
    for launch in program.parts.launches:
        assert compile_cubin(emit(launch.kernel, operations).text, "sm_90a").spills == 0
    explanation = holds(program, H200)
    (segment,) = explanation.segments
    lost = replace(segment, kernels=segment.kernels[:-1])  # nothing puts them in order
    with pytest.raises(TraceError):
        replay(replace(explanation, segments=(lost,)), program, H200)


def test_a_batch_that_lies_outermost_is_stored_as_it_is():
    out = einsum("cik,cjk->cij", (24, 70, 40), (24, 66, 40))
    program = planned(out, candidates=16)
    (first,) = program.parts.launches
    assert not any(is_turned(launch) for each in first.alternatives for launch in each)


def together(out: g.Tensor, spec: ParallelProcessingUnit = FAST) -> Planned:
    """The program, of whose last kernel rows are together."""
    program = planned(out, spec)
    assert TOGETHER in program.parts.launches[-1].kernel.rules
    return program


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("sic,sjd->ijcd", ((48, 9, 16), (48, 5, 32))),
        ("bsx,xhe->bhse", ((2, 65, 48), (48, 5, 16))),
        ("xsc,xk->ckse", None),
    ],
)
def test_short_rows_that_lie_side_by_side_fill_a_tile(text, shapes):
    if shapes is None:  # a value that something is added to where it is stored
        a, b = g.input("a", (48, 9, 16), "bfloat16"), g.input("b", (48, 64), "bfloat16")
        shapes = ((48, 9, 16), (48, 64))
        out = g.einsum("xsc,xk->cks", a, b) + 1.0
    else:
        out = einsum(text, *shapes)
    program = together(out)
    is_right(program, out, *shapes)
    traced(program, {TOGETHER: ""})


def test_whole_lines_are_stored_of_rows_together():
    out = einsum("sic,sjd->ijcd", (128, 256, 32), (128, 256, 32))
    program = plan(out, H200, cache=Cache(None))
    (main,) = program.parts.launches
    assert TOGETHER in main.kernel.rules
    operations = {one.name: one for one in H200.operations}
    assert "*reinterpret_cast<Pack<unsigned short, 8>*>(p_y0" in emit(main.kernel, operations).text


def test_halves_of_sectors_are_put_together_before_they_are_stored():
    """Eight heads side by side are 16 bytes, of which a thread has all."""
    out = einsum("bihd,bjhd->bijh", (16, 256, 8, 64), (16, 256, 8, 64))
    (first, *_) = plan(out, H200, cache=Cache(None), candidates=24).parts.launches
    alone = (each[0].kernel for each in first.alternatives if len(each) == 1)
    texts = (emit(one, {one.name: one for one in H200.operations}).text for one in alone)
    text = next(one for one in texts if "Pack<unsigned short, 8>*>(p_y0" in one)
    (stored,) = (line for line in text.splitlines() if "Pack<unsigned short, 8>*>(p_y0" in line)
    assert "(patch + " in stored


@pytest.mark.parametrize("text", ["ki,kj->ij", "cki,ckj->cij"])
def test_a_matrix_times_its_transpose_is_prepared_once(text):
    shape = (72, 45) if text[0] == "k" else (3, 72, 45)
    a = g.input("a", shape, "bfloat16")
    program = planned(g.einsum(text, a, a), fast("bf16"))
    *before, main = program.parts.launches
    assert len(before) == 1 and "prepare x1" in main.kernel.rules
    given = np.rint(normal(*shape)).astype(bfloat16.numpy)
    wide = given.astype(float)
    np.testing.assert_array_equal(run(program, a=given).astype(float), np.einsum(text, wide, wide))
    holds(program, FAST)


def test_a_square_times_itself_is_prepared_twice():
    a = g.input("a", (45, 45), "bfloat16")
    program = planned(a @ a, fast("bf16"))
    assert "prepare x2" in program.parts.launches[-1].kernel.rules
    given = np.rint(normal(45, 45)).astype(bfloat16.numpy)
    wide = given.astype(float)
    np.testing.assert_array_equal(run(program, a=given).astype(float), wide @ wide)
