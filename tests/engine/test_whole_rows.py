"""What products leave, reduced in their kernel: rows that a tile has whole, or parts of them."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from fast_products import FAST, H200, normal, planned, run, traced
from terms import Terms, mul, universe

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.driver import plan
from eqsat.graph.dtypes import as_dtype, bfloat16
from eqsat.planned import Planned
from eqsat.schedule.whole_rows import kernels_of_whole_rows, with_whole_rows
from eqsat.terms.algebra import Facts, Term
from eqsat.terms.form import Stored, form

pytestmark = pytest.mark.usefixtures("shared_search")

WHOLE = "whole rows"
# Kernels that are slow to start, and no cache for what they leave.
SLOW = replace(FAST, graph_launch_latency_us=50.0).replace_memory("l2", size_bytes=1 << 14)
Function = Callable[[g.Tensor, g.Tensor], g.Tensor]
REDUCED: dict[str, tuple[Function, int]] = {
    "max": (lambda x, w: g.max(x @ w, axis=1), 72),
    "max-parts": (lambda x, w: g.max(x @ w, axis=1), 520),
    "columns": (lambda x, w: g.sum(g.relu(x @ w), axis=0), 72),
    "logsumexp": (lambda x, w: g.logsumexp(x @ w, axis=1), 300),
    "layer-norm": (lambda x, w: g.layer_norm(x @ w), 72),
    "argmax": (lambda x, w: g.argmax(x @ w, axis=1), 136),
}


def factors(n: int) -> tuple[g.Tensor, g.Tensor]:
    return g.input("x", (150, 1040), "bfloat16"), g.input("w", (1040, n), "bfloat16")


def over_whole_rows(out: g.Tensor) -> Planned:
    """The best program of which a kernel has whole rows."""
    program = planned(out, SLOW, candidates=48)
    launches = program.parts.launches
    for place, first in enumerate(launches):
        after = launches[place + 1 + first.followers :]
        for own in (launches[place : place + 1 + first.followers], *first.alternatives):
            if any(WHOLE in launch.kernel.rules for launch in own):
                chosen = (*launches[:place], *own, *after)
                return replace(program, parts=replace(program.parts, launches=chosen))
    raise AssertionError([launch.kernel.rules for launch in launches])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ("max", "layer-norm") else name
        for name in REDUCED
    ],
)
def test_what_products_leave_is_reduced_in_their_kernel(name):
    reduced, n = REDUCED[name]
    x, w = factors(n)
    out = reduced(x, w)
    program = over_whole_rows(out)
    whole = {"x": np.rint(normal(*x.shape)), "w": np.rint(normal(*w.shape))}
    given = {key: value.astype(bfloat16.numpy) for key, value in whole.items()}
    (wanted,) = g.evaluate([out], given)
    found, scale = run(program, **given).astype(float), np.abs(wanted.astype(float)).max()
    np.testing.assert_allclose(found / scale, wanted.astype(float) / scale, atol=8e-3)


def test_rows_of_a_long_product_are_not_stored():
    x, w = g.input("x", (8192, 4096), "bfloat16"), g.input("w", (4096, 8192), "bfloat16")
    program = plan(g.logsumexp(x @ w, axis=1), H200, cache=Cache(None))
    first, last = program.parts.launches
    assert WHOLE in first.kernel.rules
    stored = [b for b in first.kernel.buffers if b.role != "input"]
    assert [len(b.shape) for b in stored] == [2, 2] and stored[0].shape[1] == 8192
    assert stored[0].shape[0] in (32, 64, 128)  # parts of 256, 128 or 64 points
    operations = {one.name: one for one in H200.operations}
    for launch in (first, last):
        assert compile_cubin(emit(launch.kernel, operations).text, "sm_90a").spills == 0


def test_a_trace_says_that_rows_are_whole():
    x, w = g.input("x", (256, 4096), "bfloat16"), g.input("w", (4096, 192), "bfloat16")
    program = plan(g.max(x @ w, axis=1), SLOW, cache=Cache(None))
    traced(program, {WHOLE: ""})


def test_rows_are_whole_for_long_products_inside_loops_alone():
    """Not where the sum inside is short, nor where it is none of products."""
    over = universe(6, 1000, 300, 100)
    t = Terms(over)
    facts = Facts(over)

    def kernels(term):
        names = over.members(facts.free(term))
        return kernels_of_whole_rows(form([Stored("y", term, names, as_dtype("float32"))], facts))

    long = t.sum("j", mul(t.read("a", "ij"), t.read("b", "jk")))
    first, rest = kernels(t.max("k", long))
    assert first.held and not rest.held and len(first.grid) == 2
    short = t.sum("t", mul(t.read("c", "it"), t.read("d", "tj")))
    assert kernels(t.max("j", short)) == ()
    assert kernels(t.max("i", t.sum("j", Term("exp", t.read("a", "ij"))))) == ()
    made = form([Stored("y", long, ("i", "k"), as_dtype("float32"))], facts)
    assert with_whole_rows(made) is None
