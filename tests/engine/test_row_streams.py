"""One loop over rows for all that has them: what is stored of each, and sums over all of them."""

import numpy as np
import pytest
from terms import Terms, universe

import eqsat.graph as g
from eqsat import specs
from eqsat.cache.store import Cache
from eqsat.codegen.targets import TARGETS
from eqsat.driver import plan
from eqsat.graph.dtypes import float32
from eqsat.kernel.ir import Kernel
from eqsat.price import row as row_price
from eqsat.price.latency import Latency
from eqsat.price.pricer import Pricer
from eqsat.price.rates import Blocking
from eqsat.program import Program
from eqsat.terms.algebra import Facts, Term
from eqsat.terms.form import Form, Stored, form, loops, passes, stored_in

OVER = universe(64, 32, 8, 2)
T = Terms(OVER)
X, D = T.read("x", "ij"), T.read("d", "ij")


def of(*values: tuple[Term, str]) -> Form:
    stored = (Stored(f"y{n}", t, tuple(names), float32) for n, (t, names) in enumerate(values))
    return form(stored, Facts(OVER))


SCALED = Term("mul", X, Term("rsqrt", T.sum("j", Term("mul", X, X))))


def test_rows_and_sums_over_them_are_one_loop():
    made = of((SCALED, "ij"), (T.sum("i", Term("mul", SCALED, D)), "j"))
    assert (made.grid, made.reduced, made.nested) == ((), ("i",), ("j",))
    assert not made.held and made.row_points == 32
    streamed = OVER.mask(["i"])
    assert [stored_in(made, one, streamed) in loops(made, streamed) for one in made.stored] == [
        True,
        False,
    ]
    assert {*passes(made, streamed).values()} == {1}


def test_a_value_that_needs_the_sum_of_its_own_name_is_another_pass():
    centred = Term("sub", X, T.sum("i", X))
    made = of((centred, "ij"), (T.sum("i", Term("mul", X, D)), "j"))
    streamed = OVER.mask(["i"])
    first, second = (stored_in(made, one, streamed) for one in made.stored)
    assert first not in loops(made, streamed) and second not in loops(made, streamed)
    assert max(passes(made, streamed).values()) == 2


def test_a_product_of_matrices_keeps_its_own_tiles():
    product = T.sum("k", Term("mul", T.read("a", "ik"), T.read("b", "kj")))
    made = of((product, "ij"), (T.sum("i", Term("mul", X, D)), "j"))
    assert made.row_points == 1


def test_what_is_ready_before_a_stream_of_the_same_names_is_stored_there():
    """exp(x) beside the sum of each row: x is read once."""
    made = of((Term("exp", X), "ij"), (T.sum("j", X), "i"))
    streamed = OVER.mask(["j"])
    assert stored_in(made, made.stored[0], streamed) in loops(made, streamed)
    assert {*passes(made, streamed).values()} == {1}


def norm_gradients(m: int, n: int) -> list[g.Tensor]:
    x, w, d = (g.input("x", (m, n)), g.input("w", (n,)), g.input("d", (m, n)))
    centred = x - g.mean(x, axis=1, keepdims=True)
    y = centred * g.rsqrt(g.mean(centred * centred, axis=1, keepdims=True) + 1e-5) * w
    return [*g.grad(g.sum(y * d), [x, w])]


def sums_of_softmax(m: int, n: int) -> list[g.Tensor]:
    return [g.sum(g.softmax(g.input("x", (m, n)), axis=1), axis=0)]


@pytest.mark.usefixtures("shared_search")
@pytest.mark.parametrize("program", [norm_gradients, sums_of_softmax], ids=lambda f: f.__name__)
def test_a_plan_reads_rows_once(program):
    spec = specs.load("h200")
    found = plan(program(8192, 1024), spec, cache=Cache(None)).parts
    first, joined = (launch.kernel for launch in found.launches)
    assert isinstance(first, Kernel) and isinstance(joined, Kernel) and joined.joins
    (stream,) = (phase for phase in first.phases if phase.stream)
    assert len(stream.stores) == (program is norm_gradients)


@pytest.mark.usefixtures("shared_search")
@pytest.mark.parametrize("program", [norm_gradients, sums_of_softmax], ids=lambda f: f.__name__)
def test_the_oracle_agrees(program):
    """At rows that no chunk nor part divides."""
    outputs, spec = program(5003, 500), specs.load("h200")
    planned = plan(outputs, spec, cache=Cache(None))
    backend = TARGETS["oracle"].backend(spec, None)
    run = Program(planned.parts, backend, outputs, planned.report, planned.explain)
    random = np.random.default_rng(0)
    given = {a.name: random.standard_normal(a.shape).astype("float32") for a in run.arguments}
    for found, answer in zip(run(**given), g.evaluate(outputs, given, np.float64), strict=True):
        np.testing.assert_allclose(found, answer, rtol=1e-3, atol=1e-4 * np.abs(answer).max())


def tiling(rows: list[float], threads: list[float], columns: int = 1024) -> Latency:
    """Tiles of a stream over so many rows of a chunk, in so many threads."""
    over = universe(4096, columns, 8, 2)
    t = Terms(over)
    x, d = t.read("x", "ij"), t.read("d", "ij")
    scaled = Term("mul", x, Term("rsqrt", t.sum("j", Term("mul", x, x))))
    stored = (
        Stored("y", scaled, ("i", "j"), float32),
        Stored("s", t.sum("i", Term("mul", scaled, d)), ("j",), float32),
    )
    one = np.ones(len(rows))
    blocking = Blocking({"i": np.array(rows)}, np.array(threads), one, False, one, one, 0 * one)
    pricer = Pricer(specs.load("h200"), frozenset())
    return Latency(pricer, form(stored, Facts(over)), {}, blocking)


def test_warps_that_share_a_row_wait_for_each_other():
    alone, shared = row_price.chunk_cycles(tiling([4, 4], [128, 256]))
    assert alone == 0 < shared


def test_chunks_that_no_slots_hold_wait_for_memory():
    held, long = row_price.chunk_cycles(tiling([4, 32], [128, 128]))
    assert held == 0 < long


def test_sums_that_threads_share_cost_more_the_fewer_elements_each_has():
    of = tiling([4, 4, 4], [128, 256, 512])
    inner = next(t for t in of.form.terms if t.op == "reduce_sum" and t not in of.form.phase)
    (outer,) = of.form.phase
    found = row_price.summed_across(of, inner)
    assert 1 < found[0] < found[1] < found[2]
    np.testing.assert_array_equal(row_price.summed_across(of, outer), 1)


def test_few_warps_take_longer_for_what_they_issue():
    few, more, many = row_price.own_seconds(
        tiling([4, 4, 4], [32, 128, 1024]), np.full(3, 1e-5), np.full(3, 132.0)
    )
    assert few > more > many == pytest.approx(1e-5)
