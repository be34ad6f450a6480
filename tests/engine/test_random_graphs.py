"""Random graphs through the whole path, against the graph's own meaning in float64."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from random_graphs import Graph, Value, graphs

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda import emit as cuda_emit
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.driver import compile, plan
from eqsat.graph.tensor import Tensor
from eqsat.program import Program
from eqsat.specs import ParallelProcessingUnit, cpu, from_device, load

ORACLE = replace(cpu(), target="oracle")
SETTINGS = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
pytestmark = pytest.mark.usefixtures("shared_search")


def unwritten(tensor: Tensor) -> np.ndarray:
    """An output array that shows which elements were never written, as far as its dtype can."""
    filling = {"float": np.nan, "bool": True}.get(tensor.dtype.kind, 77)
    return np.full(tensor.shape, filling, tensor.dtype.numpy)


def compiled(outputs: Sequence[Tensor], unit: ParallelProcessingUnit = ORACLE) -> Program:
    return compile(tuple(outputs), unit, cache=Cache(None))


def check(graph: Graph, unit: ParallelProcessingUnit = ORACLE) -> None:
    """Compile, run into arrays of NaN, compare within the error that rounding may reach."""
    tensors = [output.tensor for output in graph.outputs]
    out = tuple(map(unwritten, tensors))
    compiled(tensors, unit)(**graph.arrays, out=out)
    expected = g.evaluate(tensors, graph.arrays, np.float64)
    for output, result, reference in zip(graph.outputs, out, expected, strict=True):
        if not output.is_float:
            assert np.array_equal(result, reference), graph
            continue
        distance = np.abs(result.astype(np.float64) - reference)
        near = (distance <= 2 * output.error + 1e-12) | (result == reference)
        assert near.all(), f"off by {distance.max()}, allowed {2 * output.error}: {graph}"


@settings(SETTINGS, max_examples=25)
@given(graphs())
def test_graphs_on_the_oracle(graph: Graph) -> None:
    check(graph)


@pytest.mark.slow
@settings(SETTINGS, max_examples=500)
@given(graphs(20))
def test_many_graphs_on_the_oracle(graph: Graph) -> None:
    check(graph)


@settings(SETTINGS, max_examples=6, phases=(Phase.generate,))
@given(graphs())
def test_graphs_on_the_cpu(graph: Graph) -> None:
    check(graph, cpu())


@pytest.mark.slow
@settings(SETTINGS, max_examples=25, phases=(Phase.generate,))
@given(graphs())
def test_more_graphs_on_the_cpu(graph: Graph) -> None:
    check(graph, cpu())


# --- what random graphs found --------------------------------------------------------------------


def compiles_for_cuda(graph: Graph) -> None:
    """The kernels for a GPU compile without one, and no thread spills registers."""
    unit = load("h200")
    operations = {operation.name: operation for operation in unit.operations}
    planned = plan([output.tensor for output in graph.outputs], unit, cache=Cache(None))
    for launch in planned.parts.launches:
        source = cuda_emit.emit(launch.kernel, operations)
        assert compile_cubin(source.text, unit.architecture).spills == 0, source.text


@settings(SETTINGS, max_examples=4, phases=(Phase.generate,))
@given(graphs())
def test_graphs_compile_for_a_gpu(graph: Graph) -> None:
    compiles_for_cuda(graph)


@pytest.mark.slow
@settings(SETTINGS, max_examples=25, phases=(Phase.generate,))
@given(graphs())
def test_more_graphs_compile_for_a_gpu(graph: Graph) -> None:
    compiles_for_cuda(graph)


@pytest.mark.gpu
@settings(SETTINGS, max_examples=25, phases=(Phase.generate,))
@given(graphs())
def test_graphs_on_the_gpu(graph: Graph) -> None:
    tensors = [output.tensor for output in graph.outputs]
    results = compiled(tensors, from_device())(**graph.arrays)
    expected = g.evaluate(tensors, graph.arrays, np.float64)
    for output, result, reference in zip(graph.outputs, results, expected, strict=True):
        if not isinstance(result, np.ndarray):  # of a graph without inputs, on the device
            result = result.get().view(output.tensor.dtype.numpy)
        distance = np.abs(result.astype(np.float64) - reference.astype(np.float64))
        allowed = 2 * output.error + 1e-12 if output.is_float else 0
        assert ((distance <= allowed) | (result == reference)).all(), graph


def agree(*outputs: Tensor, tolerance: float = 1e-5, **arrays: np.ndarray) -> None:
    """The outputs on the oracle are those of the graph."""
    check(Graph(tuple(Value(output, error=tolerance) for output in outputs), arrays))


def numbers(*shape: int) -> np.ndarray:
    return np.linspace(-2, 3, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def test_an_output_given_twice_is_written_twice() -> None:
    x = g.input("x", ())
    y = g.tanh(x)
    agree(y, y, y, x, x, x=numbers())


def test_kernels_with_equal_outputs_are_joined_without_a_clash() -> None:
    """Names of one kernel were renamed to those of another, two of them to the same."""
    x, z = g.input("x", (), "float16"), g.input("z", (), "float16")
    spread = g.broadcast_to(g.tanh(g.where(g.constant(True), x, z)), (3, 2))
    arrays = {name: np.float16(0.5).reshape(()) for name in "xz"}
    agree(spread, spread, g.tanh(g.broadcast_to(x, (2, 2))), tolerance=1e-2, **arrays)


@pytest.mark.parametrize("axis", [0, 1])
def test_views_of_a_prefix_sum_read_it_from_memory(axis: int) -> None:
    x = g.input("x", (3, 4))
    sums = g.cumulative_sum(x, axis)
    padded = g.pad(sums, ((1, 0), (2, 1)), value=1.5)
    agree(sums, g.flip(sums, axis=axis), sums[1:, ::2], padded, sums.T, x=numbers(3, 4))


def test_a_prefix_sum_seen_only_through_a_view() -> None:
    x = g.input("x", (3, 4))
    agree(g.flip(g.cumulative_sum(g.exp(x), 1), axis=1), x=numbers(3, 4), tolerance=1e-3)


def test_rows_of_a_view_are_gathered() -> None:
    """By permuting, by slicing beside the axis, by repeating, and by a copy where it must be."""
    x, at = g.input("x", (3, 4)), g.input("at", (5,), "int64")
    agree(
        g.take(x.T, at, axis=0),
        g.take(x[:, 1:], at, axis=0),
        g.take(x[1:], at, axis=0),
        g.take(g.flip(x, axis=0), at, axis=0),
        g.take(g.pad(x, ((1, 0), (0, 0))), at, axis=0),
        g.take(g.reshape(x, (4, 3)), at, axis=0),
        g.take(g.broadcast_to(x[0], (6, 4)), at, axis=0),
        g.take(g.broadcast_to(g.input("s", ()), (2, 2)), at, axis=1),
        x=numbers(3, 4),
        at=np.array([0, -1, 2, 1, -2]),
        s=numbers(),
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64"])
def test_an_index_past_the_ends_reads_the_nearest_row(dtype: str) -> None:
    x, at = g.input("x", (3, 2)), g.input("at", (6,), dtype)
    far = [0, 3, 100, 2, 1, 7] if dtype == "uint8" else [0, 3, 100, -4, -100, -1]
    agree(g.take(x, at, axis=0), x=numbers(3, 2), at=np.array(far, dtype))


def test_a_negative_zero_is_not_a_zero() -> None:
    """egglog takes the two for one number."""
    x = g.input("x", (3,))
    program = compiled((x / g.constant(-0.0), x / g.constant(0.0)))
    below, above = program(np.array([1, -2, 3], np.float32))
    assert below.tolist() == [-np.inf, np.inf, -np.inf] and above.tolist() == (-below).tolist()
