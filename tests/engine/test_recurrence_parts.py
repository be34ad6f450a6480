"""Long recurrences in parts: what parts leave, the states between them, and what begins there."""

import json
from collections.abc import Callable
from functools import cache

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
from eqsat.graph.evaluate import evaluate, input_nodes
from eqsat.graph.tensor import Tensor
from eqsat.planned import Planned
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")
H200 = load("h200")
OPERATIONS = {operation.name: operation for operation in H200.operations}


def planned(result: Tensor) -> Planned:
    return plan([result], H200, cache=Cache(None))


def splits(one: Planned) -> list[str]:
    """The last step of each kernel's schedule, where that makes parts of something."""
    lasts = [next(reversed(launch.kernel.rules), "") for launch in one.parts.launches]
    return [rule for rule in lasts if rule.startswith("split")]


def answer(one: Planned, given: dict[str, np.ndarray]) -> np.ndarray:
    """What the kernels leave, one after the other, by the tile interpreter."""
    parts, arrays = one.parts, {}
    for name, buffer in parts.buffers.items():
        filling = np.nan if buffer.dtype.kind == "float" else 77
        arrays[name] = np.full(buffer.shape, filling).astype(buffer.dtype.numpy)
    arrays |= {a.buffer: given[a.name] for a in parts.arguments}
    for launch in parts.launches:
        own = zip(launch.kernel.buffers, launch.buffers, strict=True)
        oracle.run(launch.kernel, {buffer.name: arrays[name] for buffer, name in own}, OPERATIONS)
    ((name, shape, _),) = parts.outputs
    return arrays[name].reshape(shape)


@cache
def x(*shape: int, dtype: str = "float32") -> Tensor:
    return g.input("x", shape, dtype)


def decayed(like: Tensor) -> Tensor:
    return g.full_like(like, 0.9)


def two_at_once() -> Tensor:
    """Two recurrences of one length, of which states are multiplied."""
    a, b = g.input("a", (2, 4096)), x(2, 4096)
    return g.affine_scan(a, b, 1) * g.affine_scan(decayed(b), b + 1.0, 1)


def selective(steps: int, channels: int, states: int) -> Tensor:
    """Mamba's recurrence for one sequence: states are summed up step by step."""
    dt, b = g.input("dt", (steps, channels)), g.input("b", (steps, states))
    a = g.input("a", (channels, states))
    decay = g.exp(-g.abs(g.expand_dims(dt, 2) * a))
    drive = g.expand_dims(dt * x(steps, channels), 2) * g.expand_dims(b, 1)
    return g.sum(g.affine_scan(decay, drive, 0) * g.expand_dims(b, 1), axis=2)


PROGRAMS: dict[str, Callable[[], Tensor]] = {
    "one row": lambda: g.affine_scan(g.input("a", (4096,)), x(4096), 0),
    "a shorter last part": lambda: g.affine_scan(g.input("a", (1, 4099)), x(1, 4099), 1),
    "a factor for all": lambda: g.affine_scan(decayed(x(2, 4096)), 0.1 * x(2, 4096), 1),
    "along columns": lambda: g.affine_scan(g.input("a", (4096, 2)), x(4096, 2), 0),
    "an initial state": lambda: g.affine_scan(
        decayed(x(2, 4096)), x(2, 4096), 1, g.input("h", (2,))
    ),
    "from the end": lambda: g.flip(g.affine_scan(*(g.flip(t) for t in (x(4100), x(4100))), 0)),
    "of what is computed": lambda: 2.0 * g.affine_scan(g.sigmoid(x(4111)), g.exp(x(4111)), 0) + 1.0,
    "two at once": two_at_once,
    "states that are summed up": lambda: selective(2048, 16, 4),
    "whole numbers": lambda: g.affine_scan(x(4096, dtype="int32") % 3, x(4096, dtype="int32"), 0),
    "bfloat16": lambda: g.affine_scan(
        g.sigmoid(x(16400, dtype="bfloat16")), x(16400, dtype="bfloat16"), 0
    ),
}


SELDOM = ("one row", "a factor for all", "of what is computed", "whole numbers")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n in SELDOM else ()) for n in PROGRAMS],
)
def test_parts_give_the_states(name):
    result = PROGRAMS[name]()
    random, given = np.random.default_rng(0), {}
    for node in input_nodes([result]).values():
        whole = node.dtype.kind == "int"
        data = random.integers(-9, 9, node.shape) if whole else random.uniform(-1, 1, node.shape)
        given[node.attributes["name"]] = data.astype(node.dtype.numpy)
    one = planned(result)
    assert len(splits(one)) == 2
    assert len(one.parts.launches) == 3 + (name == "from the end")  # turned round in its own
    (wanted,) = evaluate([result], given, float_dtype=np.float64)
    found, near = answer(one, given), 2e-2 if result.dtype.itemsize == 2 else 2e-5
    near *= max(abs(wanted).max(), 1)
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=0, atol=near)
    for launch in one.parts.launches:
        assert compile_cubin(emit(launch.kernel, OPERATIONS).text, "sm_90a").data


@pytest.mark.parametrize(("rows", "steps"), [(300000, 4096), (64, 40)])
def test_many_states_and_few_steps_stay_whole(rows, steps):
    one = planned(g.affine_scan(g.input("a", (rows, steps)), x(rows, steps), 1))
    assert not splits(one) and len(one.parts.launches) == 1


def test_parts_take_a_fraction_of_the_steps():
    """A thread of a million steps waits for each."""
    one = planned(g.affine_scan(decayed(x(1_000_000)), x(1_000_000), 0))
    assert sum(launch.seconds for launch in one.parts.launches) < 5e-4


def test_the_trace_of_parts_holds():
    one = planned(PROGRAMS["one row"]())
    explanation = one.explain()
    restored = from_json(json.loads(json.dumps(to_json(explanation))))
    assert check_trace(restored, one.segments, one.search.rules, one.search.spec) > 0
    rules = [[step.rule for step in k.trace.steps] for k in explanation.segments[0].kernels]
    assert [steps[-1] == "split" for steps in rules] == [True, True, False]
