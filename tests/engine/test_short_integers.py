"""Positions in 32 bits: which values of a kernel are made of them, what stays as long as it was."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eqsat
import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.oracle import run
from eqsat.driver import plan
from eqsat.graph import index
from eqsat.graph.dtypes import bool_, int32, int64
from eqsat.graph.index import Affine
from eqsat.graph.reductions import FAR, NOWHERE, beyond
from eqsat.kernel.ir import (
    Access,
    Axis,
    Buffer,
    Carry,
    Kernel,
    Literal,
    Map,
    Phase,
    Position,
    Reduce,
    Store,
    Update,
)
from eqsat.lower.short_integers import in_short_integers, joint
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")


def long_values(kernel: Kernel) -> set[str]:
    carries = [carry for phase in kernel.phases for carry in phase.carries]
    return {s.name for s in (*kernel.statements(), *carries) if s.dtype == int64}


@pytest.mark.parametrize("shape", [(64, 5000), (64, 300)])
@pytest.mark.parametrize("find", [g.argmax, pytest.param(g.argmin, marks=pytest.mark.slow)])
def test_a_place_is_found_in_32_bits(find, shape: tuple[int, int]) -> None:
    """Carried along a stream and held in the tile; what is stored is int64."""
    launches = plan(find(g.input("x", shape), axis=1), load("h200"), cache=Cache(None)).parts
    kernels = [launch.kernel for launch in launches.launches]
    assert not any(map(long_values, kernels))
    assert any(s.dtype == int32 for kernel in kernels for s in kernel.statements())
    assert any(b.dtype == int64 for b in kernels[-1].buffers if b.role == "output")


def test_what_lies_beyond_every_position() -> None:
    assert beyond(NOWHERE) == NOWHERE and beyond(NOWHERE + 1) == FAR > 1 << 51


def least(place: Affine, none: int, extent: int = 40) -> Kernel:
    """y = min_j where(place < 5, place, none), carried along chunks of j; y2 = y + none"""
    buffers = tuple(Buffer(name, (1,), int64, "output") for name in ("y", "y2"))
    j = ("j",)
    body = (
        Position("p", int64, j, place),
        Literal("five", int64, 5),
        Literal("none", int64, none),
        Map("few", bool_, j, "less", ("p", "five")),
        Map("w", int64, j, "where", ("few", "p", "none")),
        Reduce("m", int64, (), "min", j, "w"),
        Update("next", int64, (), "acc", "min", "m"),
    )
    stream = Phase((Axis("j", extent, 8),), body, (Carry("acc", int64, (), "min"),))
    sums = (Literal("more", int64, none), Map("far", int64, (), "add", ("acc", "more")))
    stores = tuple(
        Store(Access(b.name, index.const(0)), n)
        for b, n in zip(buffers, ("acc", "far"), strict=True)
    )
    return Kernel("least", buffers, (), (), (stream, Phase((), sums, (), stores)))


@pytest.mark.parametrize(
    ("scale", "offset", "none", "long"),
    [
        (1, 0, 99, set()),
        (-1, 3, NOWHERE, {"far"}),  # whose sum is longer
        (1, 0, FAR, {"none", "w", "m", "next", "acc", "more", "far"}),
        (1 << 30, -2, 7, {"p", "five", "w", "m", "next", "acc", "far"}),
    ],
)
def test_values_that_may_be_longer_stay_so(scale, offset, none, long) -> None:
    kernel = least(index.add(index.scale(index.var("j"), scale), index.const(offset)), none)
    short = in_short_integers(kernel)
    assert long_values(short) == long
    found = [{b.name: np.zeros(1, np.int64) for b in kernel.buffers} for _ in range(2)]
    for one, arrays in zip((kernel, short), found, strict=True):
        run(one, arrays)
    assert found[0] == found[1] and found[0]["y"] == min(offset, offset + 39 * scale)


def test_values_of_memory_stay_as_long_as_they_are() -> None:
    """A minimum of what is read has no known range."""
    x, y = g.input("x", (64, 4096), "int64"), None
    y = g.min(g.where(x > 0, x, NOWHERE), axis=1)
    for launch in plan(y, load("h200"), cache=Cache(None)).parts.launches:
        assert {"read"} and long_values(launch.kernel)


def test_integers_of_32_bits_that_positions_are_compared_with_stay_so() -> None:
    index, x = g.input("index", (64,), "int32"), g.input("x", (64, 300))
    hot = g.arange(300)[None, :] == g.expand_dims(g.astype(index, "int64"), 1)
    (launch,) = plan(g.where(hot, x, -x), load("h200"), cache=Cache(None)).parts.launches
    assert not long_values(launch.kernel)


def test_what_a_shorter_integer_leaves_of_a_position_is_not_its_range() -> None:
    """300 positions in 8 bits wrap: 256 of them are below 44."""
    at = g.astype(g.astype(g.arange(300), "int8"), "int64")
    (found,) = g.evaluate([g.sum(g.astype(at < 44, "int64"))], {})
    program = eqsat.compile(g.sum(g.astype(at < 44, "int64")), spec="cpu", cache=Cache(None))
    assert program() == found


MADE = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floor_divide": np.floor_divide,
    "remainder": np.remainder,
    "shift_right": np.right_shift,
    "bitwise_and": np.bitwise_and,
    "minimum": np.minimum,
    "maximum": np.maximum,
}


@given(st.sampled_from(sorted(MADE)), *(st.integers(-40, 40),) * 2, *(st.integers(0, 25),) * 2)
def test_ranges_hold_whatever_the_operation_is_given(
    op: str, low: int, least: int, up: int, more: int
) -> None:
    found = joint(op, [(low, low + up), (least, least + more)])
    if found is None:
        assert op in {"floor_divide", "remainder", "shift_right", "bitwise_and"}
        return
    a, b = np.ogrid[low : low + up + 1, least : least + more + 1]
    made = MADE[op](a, b)
    assert found[0] <= made.min() and made.max() <= found[1]


@given(st.integers(-40, 40), st.integers(0, 25))
def test_ranges_of_one_value_hold(low: int, up: int) -> None:
    values = np.arange(low, low + up + 1)
    for op, made in (("neg", -values), ("abs", abs(values))):
        assert joint(op, [(low, low + up)]) == (made.min(), made.max())


def test_what_is_made_of_positions_is_computed_in_32_bits() -> None:
    i, j = g.arange(40)[:, None], g.arange(50)[None, :]
    away = g.abs(i - j) * 3 + (i - j) // 7 - (-j) % 5 + (j & 3) - (i >> 1)
    out = g.astype(away, "float32") * g.input("x", (40, 50))
    (launch,) = plan(out, load("h200"), cache=Cache(None)).parts.launches
    assert not long_values(launch.kernel)
    x = np.ones((40, 50), np.float32)
    found = np.zeros((40, 50), np.float32)
    run(launch.kernel, {b.name: found if b.role == "output" else x for b in launch.kernel.buffers})
    (wanted,) = g.evaluate([out], {"x": x})
    np.testing.assert_array_equal(found.reshape(wanted.shape), wanted)
