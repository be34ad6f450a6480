"""Reductions whose results share what they are computed of: what they are, how they are planned."""

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.place.placement import place, unique_names
from eqsat.codegen.oracle import run
from eqsat.driver import plan
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Kernel, Load
from eqsat.specs import load
from eqsat.terms.outer_reductions import Outer

pytestmark = pytest.mark.usefixtures("shared_search")

H200 = load("h200")


def given(name: str, *shape: int, dtype: str = "float32") -> Tensor:
    return g.input(name, shape, dtype)


def pairs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of x against rows of y."""
    return g.expand_dims(x, 1), g.expand_dims(y, 0)


def launched(*outputs: Tensor) -> list[Kernel]:
    return [one.kernel for one in plan(outputs, H200, cache=Cache(None)).parts.launches]


def outers(kernel: Kernel) -> list[Outer]:
    operations = {operation.name: operation for operation in H200.operations}
    return [*place(unique_names(kernel), operations).outer.values()]


X, Y = given("x", 512, 48), given("y", 384, 48)
A, B = pairs(X, Y)
NARROW = pairs(*(given(name, n, 48, dtype="bfloat16") for name, n in (("x", 512), ("y", 384))))
P, Q = given("p", 3, 128, 40), given("q", 3, 96, 40)
SHARED = {
    "squares of differences": g.sum((A - B) ** 2, axis=-1),
    "largest of differences": g.max(g.abs(A - B), axis=-1),
    "least of sums": g.min(A + B, axis=-1),
    "products of sums": g.prod(A + B, axis=-1),
    "with weights": g.sum(
        (g.expand_dims(given("a", 2048, 48), 1) - g.expand_dims(given("b", 1536, 48), 0)) ** 2
        * given("w", 48),
        axis=-1,
    ),
    "of rows that are scaled": g.sum(g.abs(A / g.expand_dims(given("s", 512, 1), 1) - B), axis=-1),
    "rounded before": g.sum(g.abs(NARROW[0] - NARROW[1]), axis=-1),
    "in batches": g.max(
        g.abs(g.expand_dims(given("p", 3, 128, 40), 2) - g.expand_dims(given("q", 3, 96, 40), 1)),
        -1,
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_results_share_what_they_are_computed_of(name: str) -> None:
    (kernel,) = launched(SHARED[name])
    (found,) = outers(kernel)
    assert len(found.sides) == (3 if name == "with weights" else 2)
    assert {s.memory for s in kernel.statements() if isinstance(s, Load)} >= {"shared"}


@pytest.mark.parametrize(
    "result",
    [
        g.max(g.abs(A - B) * given("m", 512, 384, 48), axis=-1),  # one spans all there is
        g.max(g.abs(X - g.expand_dims(given("v", 48), 0)), axis=1),  # results of one index
        g.sum(g.astype(A > 0, "float32") * 2.0 + 0.0 * A, axis=-1),  # one side
    ],
)
def test_what_shares_nothing(result: Tensor) -> None:
    assert not [one for kernel in launched(result) for one in outers(kernel)]


def test_what_others_read_too_is_no_part_of_it() -> None:
    apart = g.abs(A - B)
    for kernel in launched(g.max(apart, axis=-1), apart):
        assert not outers(kernel)


def test_the_nearest_of_some_points_are_found_in_one_kernel() -> None:
    """Distances in registers, of which each row keeps the place of the least."""
    x, y = given("x", 1000, 33), given("y", 70, 33)
    a, b = pairs(x, y)
    result = g.argmin(g.sum((a - b) ** 2, axis=-1), axis=-1)
    assert any(outers(kernel) for kernel in launched(result))


def test_a_chunk_is_reduced_into_what_is_carried() -> None:
    """Shortest ways of two steps: a stream of sums, the least of which stay in registers."""
    x, y = given("x", 2048, 2048), given("y", 2048, 2048)
    (kernel,) = launched(g.min(g.expand_dims(x, 2) + g.expand_dims(y, 0), axis=1))
    assert any(phase.stream and phase.carries for phase in kernel.phases)
    assert [one.reduce.monoid for one in outers(kernel)] == ["min"]


def test_a_recurrence_shares_nothing_as_it_goes_point_by_point() -> None:
    """Inputs of states are products of what steps and states have: read ahead, as all is."""
    x, steps, b = (given(n, 8, 2048, last) for n, last in (("x", 2048), ("t", 2048), ("b", 16)))
    decay = g.exp(steps[:, :, :, None] * given("a", 2048, 16))
    drive = (steps * x)[:, :, :, None] * b[:, :, None, :]
    (kernel,) = launched(g.sum(g.affine_scan(decay, drive, axis=1), axis=3))
    assert [axis.tile for phase in kernel.phases for axis in phase.stream] == [1]
    assert not outers(kernel)


@pytest.mark.parametrize("spec", ["h200", pytest.param("a100", marks=pytest.mark.slow)])
def test_the_answer_is_the_same(spec: str) -> None:
    x, y = given("x", 300, 70), given("y", 70, 200)
    result = g.min(g.expand_dims(x, 2) + g.expand_dims(y, 0), axis=1)
    launches = plan([result], load(spec), cache=Cache(None)).parts.launches
    random = np.random.default_rng(5)
    p, q = (random.standard_normal(s).astype(np.float32) for s in ((300, 70), (70, 200)))
    arrays = {"x0": p, "x1": q, "y0": np.zeros((300, 200), np.float32)}
    for launch in launches:
        for buffer in launch.kernel.buffers:
            arrays.setdefault(buffer.name, np.zeros(buffer.shape, buffer.dtype.numpy))
        run(launch.kernel, arrays)
    assert np.array_equal(arrays["y0"], (p[:, :, None] + q[None]).min(1))
