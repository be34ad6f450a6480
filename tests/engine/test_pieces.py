"""Joined axes by the number of a piece: what belongs to one piece is computed once."""

from dataclasses import replace

import numpy as np
import pytest
from fast_products import H200, normal, planned, run, traced

import eqsat
import eqsat.graph as g
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.kernel.ir import Kernel, Load, Map
from eqsat.planned import Planned

pytestmark = pytest.mark.usefixtures("shared_search")

PIECES = "in pieces"


def rotated(x: g.Tensor, c: g.Tensor, s: g.Tensor) -> g.Tensor:
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return g.concat([a * c - b * s, b * c + a * s], axis=-1)


def rotated_whole(x: g.Tensor, c: g.Tensor, s: g.Tensor) -> g.Tensor:
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return x * g.concat([c, c], axis=-1) + g.concat([-b, a], axis=-1) * g.concat([s, s], axis=-1)


def waves(x: g.Tensor, c: g.Tensor, s: g.Tensor) -> g.Tensor:
    y = x[:, :, :3]
    return g.concat([y, *(f(y * 2.0**k) for k in range(3) for f in (g.sin, g.cos))], axis=-1)


def unequal(x: g.Tensor, c: g.Tensor, s: g.Tensor) -> g.Tensor:
    """Pieces of 16, 8 and 8: the first one is two, of which reads stay guarded."""
    return g.concat([x, g.exp(c) + x[..., :8], s * x[..., 8:]], axis=-1)


def inverted(x: g.Tensor, c: g.Tensor, s: g.Tensor) -> g.Tensor:
    """The later half first, by comparisons of other kinds."""
    at = g.arange(16)
    late = g.where(at > 7, x, g.sqrt(g.abs(x)))
    return g.where(at <= 7, late * 2.0, g.exp(late))


def gathered(x: g.Tensor, c: g.Tensor, s: g.Tensor) -> g.Tensor:
    rows = g.take(c, g.astype(g.abs(s[:, 0]) * 2.0, "int32"), axis=0)
    return g.concat([x[..., :8] + rows, x[..., 8:] - rows], axis=-1)


def beside_sums(x: g.Tensor, c: g.Tensor, s: g.Tensor) -> g.Tensor:
    total = g.sum(x, axis=-1, keepdims=True)
    return g.concat([x[..., :8] / total, total * x[..., 8:]], axis=-1)


PROGRAMS = (rotated, rotated_whole, waves, unequal, inverted, gathered, beside_sums)
SHAPES = {"x": (5, 21, 16), "c": (21, 8), "s": (21, 8)}


def program_of(function, **sizes: int) -> tuple[Planned, list[g.Tensor]]:
    out = function(*(g.input(name, shape) for name, shape in SHAPES.items()))
    return in_pieces(out), [out]


def in_pieces(out: g.Tensor) -> Planned:
    """The best program whose last kernel has pieces as a name."""
    program = planned(out, H200, candidates=64)
    first = program.parts.launches[0]
    found = [program.parts.launches, *first.alternatives]
    chosen = next(launches for launches in found if PIECES in launches[-1].kernel.rules)
    return replace(program, parts=replace(program.parts, launches=tuple(chosen)))


SELDOM = (rotated_whole, inverted, beside_sums)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(f, marks=pytest.mark.slow if f in SELDOM else (), id=f.__name__)
        for f in PROGRAMS
    ],
)
def test_joined_values_are_those_that_were_joined(function):
    program, outputs = program_of(function)
    given = {name: normal(*shape) for name, shape in SHAPES.items()}
    given = {name: given[name] for name in (a.name for a in program.parts.arguments)}
    (wanted,) = g.evaluate(outputs, {name: normal(*shape) for name, shape in SHAPES.items()})
    np.testing.assert_allclose(run(program, **given), wanted, rtol=2e-6, atol=2e-6)
    on_host = eqsat.compile(outputs[0], spec="cpu", cache=eqsat.Cache(None))
    np.testing.assert_allclose(on_host(**given), wanted, rtol=2e-6, atol=2e-6)


def points(kernel: Kernel, op: str) -> list[int]:
    """Points of the tile at which a kernel computes each value of an operation."""
    axes = kernel.axes()
    every = (s for s in kernel.statements() if isinstance(s, Map) and s.op == op)
    return [int(np.prod([axes[i].extent for i in s.indices])) for s in every]


def test_each_piece_is_computed_once_and_the_best_plan_knows_it():
    x = g.input("x", (65536, 3))
    out = g.concat([f(x * 2.0**k) for k in range(6) for f in (g.sin, g.cos)], axis=-1)
    (launch,) = planned(out, H200).parts.launches
    assert PIECES in launch.kernel.rules
    assert points(launch.kernel, "sin") == points(launch.kernel, "cos") == [65536 * 3] * 6
    source = emit(launch.kernel, {one.name: one for one in H200.operations}).text
    assert compile_cubin(source, "sm_90a").spills == 0
    assert source.count("given_or_zero(p_x") == 1  # read once for all pieces


def test_positions_that_wrap_around_tell_no_piece():
    """Some lie below zero after an addition."""
    x, i = g.input("x", (16,)), g.arange(16, dtype="int32")
    out = g.concat([g.where(i + 2147483640 > 0, x, 0.0), x])
    found = eqsat.compile(out, spec="cpu", cache=eqsat.Cache(None))(np.ones(16, np.float32))
    assert found.tolist() == [1.0] * 8 + [0.0] * 8 + [1.0] * 16


def test_reads_of_one_piece_have_no_guards():
    x, c = g.input("x", (4, 32, 2048, 128), "bfloat16"), g.input("c", (2048, 64), "bfloat16")
    (launch,) = planned(rotated(x, c, c), H200).parts.launches
    assert PIECES in launch.kernel.rules
    loads = [s for s in launch.kernel.statements() if isinstance(s, Load)]
    assert loads and not any(s.access.guards for s in loads)


@pytest.mark.parametrize(
    "joined",
    [
        lambda x: g.concat([x[..., :7], x], axis=-1),  # no size but 1 divides both
        lambda x: g.sum(g.concat([x, x * x], axis=-1), axis=-1),  # no axis of what is stored
        pytest.param(  # too many
            lambda x: g.concat([x * float(n) for n in range(17)], axis=-1), marks=pytest.mark.slow
        ),
        lambda x: g.stack([x, x * x], axis=-1),  # a name already
        lambda x: x + 1.0,
    ],
)
def test_other_axes_stay_as_they_are(joined):
    program = planned(joined(g.input("x", (64, 64))), H200, candidates=32)
    first = program.parts.launches[0]
    every = [program.parts.launches, *first.alternatives]
    assert not any(PIECES in one.kernel.rules for launches in every for one in launches)


def test_a_trace_says_that_a_kernel_is_in_pieces():
    out = rotated(*(g.input(name, shape) for name, shape in SHAPES.items()))
    program = in_pieces(out)
    traced(program, {PIECES: ""}, H200)
