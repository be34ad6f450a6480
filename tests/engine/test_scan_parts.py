"""Long scans in parts: sums of parts, and scans of parts that begin with those before them."""

import json

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen import oracle
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.driver import plan
from eqsat.explain.explanation import from_json, to_json
from eqsat.explain.replay import check as check_trace
from eqsat.graph.evaluate import evaluate
from eqsat.planned import Planned
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")

H200 = load("h200")
OPERATIONS = {operation.name: operation for operation in H200.operations}


def planned(result: g.Tensor, count: int = 1) -> Planned:
    return plan([result], H200, candidates=count, cache=Cache(None))


def in_parts(one: Planned) -> bool:
    return any("split" in rule for launch in one.parts.launches for rule in launch.kernel.rules)


def answer(one: Planned, data: np.ndarray) -> np.ndarray:
    """What the kernels leave, one after the other, by the tile interpreter."""
    parts, arrays = one.parts, {}
    for name, buffer in parts.buffers.items():
        filling = np.nan if buffer.dtype.kind == "float" else 77
        arrays[name] = np.full(buffer.shape, filling).astype(buffer.dtype.numpy)
    arrays[parts.arguments[0].buffer] = data
    for launch in parts.launches:
        own = zip(launch.kernel.buffers, launch.buffers, strict=True)
        oracle.run(launch.kernel, {buffer.name: arrays[name] for buffer, name in own}, OPERATIONS)
    return arrays[parts.outputs[0][0]]


def weighted(x: g.Tensor) -> g.Tensor:
    return 2.0 * g.cumulative_sum(g.exp(0.0 * x) * x, axis=0) + x


def ends(x: g.Tensor) -> g.Tensor:
    """From the end, of what is no zero beyond it."""
    return g.cumulative_sum(g.flip(x + 1.0, axis=0), axis=0)


PROGRAMS = {
    "whole parts": (lambda x: g.cumulative_sum(x, axis=0), (65536,), "float32"),
    "a shorter last part": (lambda x: g.cumulative_sum(x, axis=1), (3, 50257), "float32"),
    "along columns": (lambda x: g.cumulative_sum(x, axis=0), (30000, 4), "float32"),
    "of what is computed": (weighted, (50000,), "float32"),
    "backwards": (ends, (33001,), "float32"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_parts_give_the_scan(name):
    build, shape, dtype = PROGRAMS[name]
    result = build(g.input("x", shape, dtype))
    data = np.random.default_rng(0).integers(-3, 4, shape).astype(dtype)
    one = planned(result)
    assert in_parts(one) and len(one.parts.launches) == 2
    (expected,) = evaluate([result], {"x": data}, float_dtype=np.float64)
    found = answer(one, data).reshape(expected.shape)
    np.testing.assert_array_equal(found.astype(np.float64), expected)  # sums of integers are exact
    launch = one.parts.launches[-1]
    assert compile_cubin(emit(launch.kernel, OPERATIONS).text, "sm_90a").data


@pytest.mark.parametrize(("rows", "columns"), [(8192, 16384), (64, 4096)])
def test_rows_that_tiles_hold_stay_whole(rows, columns):
    one = planned(g.cumulative_sum(g.input("x", (rows, columns)), axis=1))
    assert not in_parts(one) and len(one.parts.launches) == 1


@pytest.mark.parametrize("shape", [(2, 1_000_000), (10, 500_000)])
def test_parts_of_few_long_rows_lie_whole_in_a_tile(shape):
    """Each is scanned by all threads of its tile; what parts before it add lies in one row."""
    one = planned(g.cumulative_sum(g.input("x", shape), axis=1))
    sums, scans = (launch.kernel for launch in one.parts.launches)
    assert not any("stream" in rule and rule.endswith(" 1") for rule in scans.rules)
    assert sums.buffers[-1].shape[0] == shape[0]


def test_parts_take_a_fraction_of_the_steps():
    """A tile of a million steps waits for each; 245 tiles of 4096 do not."""
    one = planned(g.cumulative_sum(g.input("x", (1_000_000,)), axis=0))
    assert sum(launch.seconds for launch in one.parts.launches) < 2e-5


@pytest.mark.parametrize(
    "shape", [(8192, 512), pytest.param((4, 16384, 64), marks=pytest.mark.slow)]
)
def test_scans_of_few_columns_are_in_parts(shape):
    """Else each of few threads steps through all."""
    one = planned(g.cumulative_sum(g.input("x", shape), axis=-2))
    assert in_parts(one)
    assert sum(launch.seconds for launch in one.parts.launches) < 3e-5


def test_the_trace_of_parts_holds():
    one = planned(g.cumulative_sum(g.input("x", (65536,)), axis=0))
    explanation = one.explain()
    restored = from_json(json.loads(json.dumps(to_json(explanation))))
    assert check_trace(restored, one.segments, one.search.rules, one.search.spec) > 0
    last = [kernel.trace.steps[-1].rule for kernel in explanation.segments[0].kernels]
    assert last[0] == "split"
