"""Programs for a device on which nothing but the operations of a warpgroup is fast, and their runs
on the tile interpreter.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.kernel_json import decode, encode
from eqsat.cache.store import Cache
from eqsat.codegen import oracle
from eqsat.codegen.cuda.emit import emit
from eqsat.driver import plan
from eqsat.errors import TraceError
from eqsat.explain.explanation import Explanation, from_json, to_json
from eqsat.explain.replay import check as check_trace
from eqsat.kernel.ir import check
from eqsat.planned import Planned
from eqsat.specs import ParallelProcessingUnit, load

H200 = load("h200")


def fast(kind: str) -> ParallelProcessingUnit:
    """H200 with slow multiply-adds, of matrix operations those of warpgroups and of a kind alone,
    and launches that cost nothing.
    """
    unit = replace(H200, graph_launch_latency_us=1e-9, launch_latency_us=1e-9)
    for one in unit.operations:
        if one.semantics and one.semantics.contraction and f"{kind}_ss" not in one.name:
            unit = unit.without_operation(one.name)
        elif "fma" in one.implements:
            unit = unit.replace_operation(one.name, implements={**one.implements, "fma": 1e4})
    return unit


FAST = fast("bf16")


def planned(out: g.Tensor, spec: ParallelProcessingUnit = FAST, **options: str) -> Planned:
    return plan(out, spec, cache=Cache(None), **options)


def run(program: Planned, **given: np.ndarray) -> np.ndarray:
    """What the program's kernels, emitted too, leave in its output."""
    memory: dict[str, np.ndarray] = {}
    for argument in program.parts.arguments:
        memory[argument.buffer] = given[argument.name].astype(argument.dtype.numpy)
    operations = {one.name: one for one in H200.operations}
    for launch in program.parts.launches:
        check(launch.kernel)
        emit(launch.kernel, operations)
        assert decode(encode(launch.kernel)) == launch.kernel
        named = {}
        for buffer, name in zip(launch.kernel.buffers, launch.buffers, strict=True):
            if name not in memory:
                memory[name] = np.full(buffer.shape, 77).astype(buffer.dtype.numpy)
            named[buffer.name] = memory[name]
        oracle.run(launch.kernel, named)
    ((name, shape, _),) = program.parts.outputs
    return memory[name].reshape(shape)


def traced(
    program: Planned, names: Mapping[str, str], spec: ParallelProcessingUnit = FAST
) -> Explanation:
    """A program's explanation: its trace holds, through JSON too, and does not where kernels say
    that they are over other names.
    """
    explanation = from_json(to_json(program.explain()))
    check_trace(explanation, program.segments, program.search.rules, spec)
    (segment,) = explanation.segments
    assert any(kernel.recast in names for kernel in segment.kernels)
    kernels = tuple(replace(k, recast=names.get(k.recast, k.recast)) for k in segment.kernels)
    changed = replace(explanation, segments=(replace(segment, kernels=kernels),))
    with pytest.raises(TraceError):
        check_trace(changed, program.segments, program.search.rules, spec)
    return explanation


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
