"""Rows that a cluster of blocks holds: which schedules have one, what it costs, its trace."""

import json
from dataclasses import replace

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.codegen import oracle
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.driver import plan
from eqsat.explain.explanation import from_json, to_json
from eqsat.explain.replay import check as check_trace
from eqsat.kernel.ir import Kernel
from eqsat.kernel.text import show
from eqsat.specs import ParallelProcessingUnit, load

pytestmark = pytest.mark.usefixtures("shared_search")

H200 = load("h200")
ROWS, LONG = 128, 131072


def rows(dtype: str = "float32", m: int = ROWS, n: int = LONG) -> g.Tensor:
    return g.input("x", (m, n), dtype)


def kernels(result: g.Tensor, spec: ParallelProcessingUnit = H200) -> list[Kernel]:
    return [launch.kernel for launch in plan([result], spec).parts.launches]


def softmax(x: g.Tensor) -> g.Tensor:
    return g.softmax(x, axis=-1)


def normed(x: g.Tensor) -> g.Tensor:
    """Rows about their mean, by their mean square."""
    about = x - g.mean(x, axis=1, keepdims=True)
    return about / g.sqrt(g.mean(about * about, axis=1, keepdims=True) + 1e-5)


def shares(x: g.Tensor) -> g.Tensor:
    return x / g.sum(g.abs(x), axis=1, keepdims=True)


@pytest.mark.parametrize("build", [softmax, shares, normed], ids=lambda b: b.__name__)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_long_row_is_read_once(build, dtype):
    (kernel,) = kernels(build(rows(dtype)))
    assert kernel.cluster > 1
    assert f"cluster {kernel.cluster}" in show(kernel)
    cubin = compile_cubin(emit(kernel).text, "sm_90a")
    assert cubin.spills == 0


def test_rows_that_one_block_holds_have_none():
    (kernel,) = kernels(softmax(rows(m=4096, n=4096)))
    assert kernel.cluster == 1


def without_clusters() -> ParallelProcessingUnit:
    groups = tuple(
        replace(group, contains="block") if group.name == "grid" else group
        for group in H200.parallel_groups
        if group.name != "cluster"
    )
    return replace(
        H200,
        parallel_groups=groups,
        operations=tuple(o for o in H200.operations if o.supported_by != "cluster"),
    )


@pytest.mark.parametrize("spec", [load("a100"), without_clusters()], ids=["a100", "h200 without"])
def test_a_spec_without_clusters_has_two_passes(spec):
    assert [kernel.cluster for kernel in kernels(softmax(rows()), spec)] == [1, 1]


@pytest.mark.slow
def test_a_slow_barrier_or_slow_starts_keep_from_clusters():
    for change in ({"barrier_latency_cycles": 30000}, {"start_interval_cycles": 1000}):
        groups = tuple(
            replace(group, **change) if group.name == "cluster" else group
            for group in H200.parallel_groups
        )
        found = kernels(softmax(rows()), replace(H200, parallel_groups=groups))
        assert all(kernel.cluster == 1 for kernel in found), change


def test_its_trace_is_replayed():
    planned = plan([softmax(rows())], H200)
    explanation = planned.explain()
    (record,) = explanation.segments[0].kernels
    assert any(step.rule == "cluster" for step in record.trace.steps)
    restored = from_json(json.loads(json.dumps(to_json(explanation))))
    rules, spec = planned.search.rules, planned.search.spec
    assert check_trace(restored, planned.segments, rules, spec) > 0


def test_the_interpreter_runs_it():
    x = g.input("x", (2, 9001), "float32")
    (kernel,) = kernels(softmax(x))
    clustered = replace(kernel, cluster=4)
    values = np.random.default_rng(0).standard_normal((2, 9001)).astype(np.float32)
    arrays = {"x0": values, "y0": np.full_like(values, np.nan)}
    oracle.run(clustered, arrays)
    wide = np.exp(values.astype(np.float64))
    np.testing.assert_allclose(arrays["y0"], wide / wide.sum(1, keepdims=True), rtol=1e-5)
