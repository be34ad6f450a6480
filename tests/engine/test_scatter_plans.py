"""What becomes of sums over segments: values combined in memory where that is faster, and right."""

from dataclasses import replace

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda import emit as cuda_emit
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.driver import compile, plan
from eqsat.errors import TraceError
from eqsat.explain.replay import check as replayed
from eqsat.graph.evaluate import evaluate
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Kernel, Store
from eqsat.specs import ParallelProcessingUnit, cpu, load

pytestmark = pytest.mark.usefixtures("shared_search")
RNG = np.random.default_rng(2)
ORACLE = {
    "cpu": replace(cpu(), target="oracle"),
    "h200": replace(load("h200"), target="oracle"),
}
MANY = 1 << 20


def combined(kernels: tuple[Kernel, ...]) -> list[Store]:
    """The stores that combine values in memory."""
    return [s for k in kernels for phase in k.phases for s in phase.stores if s.monoid]


def planned(output: Tensor, spec: ParallelProcessingUnit | str) -> tuple[Kernel, ...]:
    parts = plan(output, spec, cache=Cache(None)).parts
    return tuple(launch.kernel for launch in parts.launches)


def check(
    output: Tensor, spec: ParallelProcessingUnit, scatters: int, **inputs: np.ndarray
) -> None:
    """The program has so many scatters, and gives what the graph means."""
    program = compile(output, spec, cache=Cache(None))
    assert len(combined(program.kernels)) == scatters
    (expected,) = evaluate([output], inputs)
    with np.errstate(invalid="ignore"):
        result = program(**inputs)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    if expected.dtype.kind == "i":
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(program(**inputs), result)


@pytest.mark.parametrize("spec", ["cpu", "h200", pytest.param("a100", marks=pytest.mark.slow)])
def test_large_ones_are_scatters_and_tiny_ones_are_not(spec: str) -> None:
    x, ids = g.input("x", (MANY,)), g.input("ids", (MANY,), "int32")
    for output in (
        g.histogram(x, 256, 0.0, 1.0),
        g.segment_sum(x, ids, 1000),
        g.segment_min(g.input("n", (MANY,), "int16"), ids, 1000),
        g.segment_max(g.input("h", (MANY,), "float16"), ids, 1000),
        g.scatter_add(g.input("t", (1000,)), ids, x),
    ):
        assert combined(planned(output, spec))
    few, own = g.input("x", (16,)), g.input("ids", (16,), "int64")
    for output in (g.segment_sum(few, own, 4), g.histogram(few, 4, 0.0, 1.0)):
        (kernel,) = planned(output, spec)
        assert not combined((kernel,))


def test_what_fits_is_combined_by_groups_that_stay() -> None:
    """On a GPU few places are combined in shared memory first, many in memory at once."""
    x, ids = g.input("x", (MANY,)), g.input("ids", (MANY,), "int32")
    first, kernel = planned(g.segment_sum(x, ids, 1000), "h200")
    assert not combined((first,)) and kernel.resident > 1
    assert [store.memory for store in combined((kernel,))] == ["shared"]
    _, kernel = planned(g.segment_sum(x, ids, 1 << 18), "h200")
    assert kernel.resident == 0
    assert [store.memory for store in combined((kernel,))] == [""]


def test_without_operations_that_combine_there_are_no_scatters() -> None:
    output = g.segment_sum(g.input("x", (MANY,)), g.input("ids", (MANY,), "int32"), 256)
    assert combined(planned(output, load("cpu")))
    assert not combined(planned(output, load("cpu").without_operation("scalar_combine")))


def test_a_joined_kernel_combines_sums_and_counts() -> None:
    points, ids = g.input("points", (MANY, 32)), g.input("ids", (MANY,), "int64")
    count = g.astype(g.bincount(ids, 64), "float32")
    mean = g.segment_sum(points, ids, 64) / g.maximum(count, 1.0)[:, None]
    for spec in ("cpu", "h200"):
        assert len(combined(planned(mean, spec))) == 2


def test_kernels_compile_for_the_gpu() -> None:
    x, ids = g.input("x", (MANY, 64)), g.input("ids", (MANY,), "int64")
    unit = load("h200")
    operations = {operation.name: operation for operation in unit.operations}
    for output in (g.histogram(x, 256, 0.0, 1.0), g.segment_sum(x, ids, 256)):
        for kernel in planned(output, unit):
            source = cuda_emit.emit(kernel, operations)
            assert compile_cubin(source.text, unit.architecture, kernel.rules).data


@pytest.mark.parametrize("spec", ORACLE)
@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_segments_on_the_oracle(spec: str, name: str) -> None:
    """Ids outside the range are left out; a NaN stays in its segment; empty segments are empty."""
    points = 80_000
    x = RNG.normal(size=points).astype("float32")
    ids = RNG.integers(-3, 300, points).astype("int64")
    ids[ids == 77] = 78
    x[np.flatnonzero(ids == 5)[0]] = np.nan
    make = {"sum": g.segment_sum, "max": g.segment_max, "min": g.segment_min}[name]
    output = make(g.input("x", (points,)), g.input("ids", (points,), "int64"), 290)
    check(output, ORACLE[spec], 1, x=x, ids=ids)


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_of_large_integers(name: str) -> None:
    """Numbers that no float64 has, and segments without any."""
    x = RNG.integers(-(1 << 62), 1 << 62, (70_000, 2))
    ids = RNG.integers(0, 300, len(x)).astype("int32")
    ids[ids == 77] = 78
    make = {"max": g.segment_max, "min": g.segment_min}[name]
    output = make(g.input("x", x.shape, "int64"), g.input("ids", ids.shape, "int32"), 300)
    check(output, ORACLE["h200"], 1, x=x, ids=ids)


@pytest.mark.parametrize("threads", [pytest.param("1", marks=pytest.mark.slow), "3"])
def test_segments_on_threads(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQSAT_NUM_THREADS", threads)
    points = 60_000
    x = RNG.normal(size=(points, 4)).astype("float32")
    ids = RNG.integers(-3, 60, points).astype("int64")
    x[np.flatnonzero(ids == 5)[0], 1] = np.nan
    given = g.input("x", x.shape), g.input("ids", (points,), "int64")
    check(g.segment_sum(*given, 50), cpu(), 1, x=x, ids=ids)
    check(g.bincount(given[1], 50), cpu(), 1, ids=ids)
    check(g.histogram(given[0], 40, -3.0, 3.0), cpu(), 1, x=x)


def test_several_axes_of_ids_and_a_target() -> None:
    target = RNG.normal(size=(6, 500)).astype("float32")
    index = RNG.integers(-500, 500, (300, 20)).astype("int32")
    updates = RNG.normal(size=(6, 300, 20)).astype("float32")
    given = (
        g.input("t", target.shape),
        g.input("i", index.shape, "int32"),
        g.input("u", updates.shape),
    )
    check(g.scatter_add(*given, axis=1), cpu(), 1, t=target, i=index, u=updates)


def test_places_counted_in_a_narrower_dtype() -> None:
    """A comparison of int32 with arange of int32 is one of the positions themselves."""
    points = 30_000
    ids, x = g.input("ids", (points,), "int32"), g.input("x", (points, 3))
    member = g.astype(g.expand_dims(ids, 1) == g.arange(200, dtype="int32"), "float32")
    given = {
        "ids": RNG.integers(-9, 220, points).astype("int32"),
        "x": RNG.normal(size=(points, 3)).astype("float32"),
    }
    check(member.T @ x, ORACLE["cpu"], 1, **given)


def test_empty_inputs() -> None:
    x, ids = g.input("x", (0, 3)), g.input("ids", (0,), "int64")
    result = compile(g.segment_sum(x, ids, 4), cpu(), cache=Cache(None))(
        x=np.ones((0, 3), "float32"), ids=np.zeros(0, "int64")
    )
    np.testing.assert_array_equal(result, np.zeros((4, 3)))


def test_the_gradient_of_a_lookup_is_a_scatter() -> None:
    """Of an embedding: rows of slopes added at the rows that were read."""
    table, ids = g.input("table", (5000, 16)), g.input("ids", (20_000,), "int64")
    slope = g.input("slope", (20_000, 16))
    (found,) = g.grad(g.sum(g.take(table, ids, axis=0) * slope), [table])
    assert combined(planned(found, "cpu")) and combined(planned(found, "h200"))


def test_a_step_of_k_means_updates_by_scatters() -> None:
    points, centres = g.input("points", (MANY, 64)), g.input("centres", (256, 64))
    near = g.argmin(g.sum(centres * centres, axis=1) - 2.0 * (points @ centres.T), axis=1)
    member = g.astype(g.expand_dims(near, 1) == g.arange(256), "float32")
    counts = g.maximum(g.sum(member, axis=0), 1.0)
    mean = (member.T @ points) / g.expand_dims(counts, 1)
    for spec in ("cpu", "h200"):
        kernels = planned(mean, spec)
        assert len(combined(kernels)) == 2
        assert len([k for k in kernels if combined((k,))]) == 1  # sums and counts in one kernel


def test_it_is_explained() -> None:
    """Every step is replayed, and that each scatter finds the identity where it combines."""
    x, ids = g.input("x", (MANY,)), g.input("ids", (MANY,), "int32")
    text = compile(g.segment_sum(x, ids, 1000), load("h200"), cache=Cache(None)).explain()
    assert "scatter_selected" in text and "not traced" not in text


def test_a_trace_without_the_kernel_that_writes_the_identity_is_refused() -> None:
    x, ids = g.input("x", (MANY,)), g.input("ids", (MANY,), "int32")
    made = plan(g.segment_sum(x, ids, 1000), cpu(), cache=Cache(None))
    explanation = made.explain("sums", made.parts.launches)
    (segment,) = explanation.segments
    without = replace(explanation, segments=(replace(segment, kernels=segment.kernels[1:]),))
    with pytest.raises(TraceError, match="reads y0 prepared, which no kernel stores so"):
        replayed(without, made.segments, made.search.rules, made.search.spec)


@pytest.mark.parametrize("spec", ["cpu", pytest.param("h200", marks=pytest.mark.slow)])
def test_products_that_a_stream_adds_up_are_combined(spec: str) -> None:
    """The gradient of a lookup by what products of it leave: at the scatter they are a carry."""
    table, w = g.input("table", (32000, 256)), g.input("w", (256, 256))
    ids, x = g.input("ids", (4096,), "int32"), g.input("x", (4096, 256))
    loss = g.sum(g.tanh(g.take(table, ids, axis=0) @ w) * x)
    (gradient,) = g.grad(loss, [table])
    assert combined(planned(gradient, spec))
    table, w = g.input("table", (90, 48)), g.input("w", (48, 40))
    x, y = g.input("x", (300, 40)), g.input("y", (300, 48))
    ids = g.input("ids", (300,), "int32")
    sums = g.segment_sum(x @ w.T + y, ids, 90)
    normal = {name: RNG.standard_normal(shape).astype("float32") for name, shape in
              {"w": (48, 40), "x": (300, 40), "y": (300, 48)}.items()}  # fmt: skip
    given = {**normal, "ids": RNG.integers(0, 90, 300).astype("int32")}
    program = compile(sums, ORACLE[spec], cache=Cache(None))
    (expected,) = evaluate([sums], given)
    np.testing.assert_allclose(program(**given), expected, rtol=1e-4, atol=1e-4)
