"""Products with one row: offered to operations on matrices, and what is left as it is."""

from dataclasses import replace

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.oracle import run
from eqsat.driver import plan
from eqsat.errors import TraceError
from eqsat.explain.replay import check
from eqsat.graph.dtypes import DType, bfloat16, float32
from eqsat.graph.index import row_major
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Contract, Kernel
from eqsat.price.pricer import Pricer
from eqsat.price.rates import Blocking
from eqsat.schedule.region import Region
from eqsat.schedule.single_rows import with_single_rows
from eqsat.specs import load
from eqsat.terms.algebra import Facts, Read, Term, Universe
from eqsat.terms.form import Form, Stored, form

pytestmark = pytest.mark.usefixtures("shared_search")

H200 = load("h200")


def bf16(**shapes: tuple[int, ...]) -> list[Tensor]:
    return [g.input(name, shape, bfloat16) for name, shape in shapes.items()]


def kernels(output: Tensor) -> list[Kernel]:
    return [one.kernel for one in plan([output], H200, cache=Cache(None)).parts.launches]


def operations(kernel: Kernel) -> list[str]:
    return [s.operation for s in kernel.statements() if isinstance(s, Contract)]


def product(left: tuple[DType, str], right: tuple[DType, str], over: str, out: str) -> Form:
    """sum over names of left * right, of names of extents 3, 300 and 5, widened to float32."""
    universe = Universe()
    own = {letter: universe.add(extent) for letter, extent in {"m": 3, "k": 300, "n": 5}.items()}

    def read(buffer: str, dtype: DType, letters: str) -> Term:
        address = row_major([own[letter] for letter in letters], universe.extents)
        term = Term("read", Read(buffer, dtype, address))
        return term if dtype == float32 else Term("cast", "float32", term)

    factors = Term("mul", read("x0", *left), read("x1", *right))
    term = Term("reduce_sum", universe.mask([own[letter] for letter in over]), factors)
    stored = Stored("y0", term, tuple(own[letter] for letter in out), float32)
    return form((stored,), Facts(universe))


def test_a_vector_is_a_matrix_of_one_row() -> None:
    made = product((bfloat16, "k"), (bfloat16, "kn"), "k", "n")
    wide = with_single_rows(made)
    assert wide is not None
    (one,), (term,) = wide.stored, [t for t in wide.terms if t.op == "reduce_sum"]
    row, *rest = one.names
    assert wide.extents[row] == 1 and tuple(rest) == made.stored[0].names
    left, right = wide.contraction(term) or ()
    assert wide.facts.free(left) & ~wide.facts.free(right) == wide.facts.universe.mask([row])
    assert one.address(wide.extents) != made.stored[0].address(made.extents)
    for name in wide.grid:  # where the row is the only one, each element lies where it lay
        assert name == row or name in made.grid


@pytest.mark.parametrize(
    "left, right, out",
    [
        ((bfloat16, "mk"), (bfloat16, "kn"), "mn"),  # a matrix already
        ((bfloat16, "nk"), (bfloat16, "nk"), "n"),  # neither has a name that the other lacks
        ((float32, "k"), (bfloat16, "kn"), "n"),  # an operation would round the wider one
    ],
)
def test_what_is_left_as_it_is(left: tuple[DType, str], right: tuple[DType, str], out: str) -> None:
    assert with_single_rows(product(left, right, "k", out)) is None


def test_a_long_product_with_one_row_is_copied_ahead() -> None:
    x, w = bf16(x=(1, 4096), w=(4096, 4096))
    (kernel,) = kernels(x @ w)
    assert ["wgmma" in operation for operation in operations(kernel)] == [True]
    assert "single rows" in kernel.rules
    assert max(phase.stages for phase in kernel.phases) > 1


def test_its_tiles_have_the_rows_that_an_operation_takes() -> None:
    """Of a tile of 32 rows the next tile's would be copied as well."""
    w, x = bf16(w=(4096, 4096), x=(4096, 1))
    (kernel,) = kernels(w @ x)
    assert max(axis.tile for axis in kernel.grid) >= 64


@pytest.mark.parametrize("out", ["n", "mn"])
def test_a_place_for_operands_is_no_gain_where_there_are_none(out: str) -> None:
    """Where threads read both factors into registers, stages in shared memory change nothing."""
    made = product((bfloat16, "k" if out == "n" else "mk"), (bfloat16, "kn"), "k", out)
    one = np.ones(1)
    tiles = {name: one * made.extents[name] for name in made.grid}
    blocking = Blocking({made.reduced[0]: 64 * one}, 128 * one, 2 * one, True, one, one, 0 * one)
    staged, plain = (
        float(Pricer(H200, frozenset()).price(made, tiles, how).seconds[0])
        for how in (blocking, replace(blocking, staged=False))
    )
    assert (staged == plain) == (out == "n")


def test_a_short_one_is_not() -> None:
    x, w = bf16(x=(1, 64), w=(64, 4096))
    assert all("single rows" not in kernel.rules for kernel in kernels(x @ w))


def test_one_query_of_each_head_is_a_row_of_its_own() -> None:
    """Decoding, each head with keys of its own: both products by operations on matrices."""
    q, k, v = bf16(q=(8, 32, 1, 64), k=(8, 32, 2048, 64), v=(8, 32, 2048, 64))
    (kernel,) = kernels(g.attention(q, k, v))
    assert len(operations(kernel)) == 2
    assert all("wgmma" in operation for operation in operations(kernel))


@pytest.mark.parametrize(
    "shape", [pytest.param((1, 512, 256), marks=pytest.mark.slow), (1, 520, 264)]
)
def test_the_answer_is_the_products(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    x, w = bf16(x=(m, k), w=(k, n))
    launches = plan([x @ w], H200, candidates=6, cache=Cache(None)).parts.launches
    found = [launches[0], *(other[0] for other in launches[0].alternatives if len(other) == 1)]
    wide = [one.kernel for one in found if "single rows" in one.kernel.rules]
    wide = [one for one in wide if {b.role for b in one.buffers} == {"input", "output"}]
    assert wide
    random = np.random.default_rng(3)
    given = [random.integers(-3, 4, s).astype(bfloat16.numpy) for s in ((m, k), (k, n))]
    expected = given[0].astype(np.float64) @ given[1].astype(np.float64)
    for kernel in wide:
        arrays = {"x0": given[0], "x1": given[1], "y0": np.zeros((m, n), bfloat16.numpy)}
        run(kernel, {b.name: arrays[b.name] for b in kernel.buffers})
        np.testing.assert_array_equal(arrays["y0"], expected.astype(bfloat16.numpy))


def test_every_step_is_explained_and_holds() -> None:
    x, w = bf16(x=(1, 512), w=(512, 512))
    planned = plan([x @ w], H200, cache=Cache(None))
    explanation = planned.explain("vector")
    assert explanation.notes == ()
    (segment,) = explanation.segments
    assert any(kernel.recast for kernel in segment.kernels)
    search = planned.search
    assert check(explanation, planned.segments, search.rules, search.spec) > 0
    without = tuple(replace(kernel, recast="") for kernel in segment.kernels)
    changed = replace(explanation, segments=(replace(segment, kernels=without),))
    with pytest.raises(TraceError):
        check(changed, planned.segments, search.rules, search.spec)


def test_a_matrix_has_no_single_row_to_explain() -> None:
    made = product((bfloat16, "mk"), (bfloat16, "kn"), "k", "mn")
    with pytest.raises(TraceError, match="has no form 'single rows'"):
        _ = Region(made.stored, made.facts, H200, recast="single rows").made
