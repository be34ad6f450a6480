"""Values in memory in the order in which kernels after them would copy them."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import eqsat.graph as g
from eqsat import specs
from eqsat.cache.store import Cache
from eqsat.codegen.targets import TARGETS
from eqsat.cut.laid import copied, order_copied
from eqsat.driver import plan
from eqsat.errors import TraceError
from eqsat.explain.replay import check
from eqsat.graph.index import Affine, add, const, row_major, scale, var
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Access, Axis, Buffer, Kernel, Load, Phase, Store
from eqsat.planned import Planned
from eqsat.program import Program

pytestmark = pytest.mark.usefixtures("shared_search")
RNG = np.random.default_rng(31)
BF16 = g.bfloat16
CHANNELS = 64
Build = Callable[[Tensor, list[Tensor]], Tensor]


def weights(count: int) -> list[Tensor]:
    return [g.input(f"w{i}", (CHANNELS, CHANNELS, 3, 3), BF16) for i in range(count)]


def chain(x: Tensor, ws: list[Tensor]) -> Tensor:
    for w in ws:
        x = g.relu(g.conv(x, w, padding=1))
    return x


def residual(x: Tensor, ws: list[Tensor]) -> Tensor:
    for a, b in zip(ws[::2], ws[1::2], strict=True):
        x = g.relu(g.conv(g.relu(g.conv(x, a, padding=1)), b, padding=1) + x)
    return x


def computed(x: Tensor, ws: list[Tensor]) -> Tensor:
    return g.conv(g.gelu(x) * 2, ws[0], padding=1)


@cache
def planned_once(build: Build, count: int, unit: str = "a100") -> Planned:
    x = g.input("x", (8, CHANNELS, 28, 28), BF16)
    return plan(build(x, weights(count)), specs.load(unit), cache=Cache(None))


def copies(planned: Planned) -> list[str]:
    """What kernels copy into another order: buffers of the program."""
    found = []
    for launch in planned.parts.launches:
        kernel = launch.kernel
        if isinstance(kernel, Kernel) and copied(kernel):
            names = [buffer.name for buffer in kernel.buffers]
            found.append(launch.buffers[names.index(copied(kernel))])
    return found


def laid(planned: Planned) -> list[tuple[int, ...]]:
    """The shapes of computed values that lie with the channels last."""
    own = [b for b in planned.parts.buffers.values() if b.role == "temporary"]
    return [b.shape for b in own if "prepared" not in b.name and b.shape[-1] == CHANNELS]


@pytest.mark.parametrize(
    ("build", "count", "values", "unit"),
    [(chain, 2, 1, "h200"), (residual, 4, 3, "a100"), (computed, 1, 1, "a100")],
    ids=["chain", "blocks", "computed"],
)
def test_only_arguments_are_copied(build: Build, count: int, values: int, unit: str) -> None:
    planned = planned_once(build, count, unit)
    assert {*copies(planned)} <= {a.buffer for a in planned.parts.arguments}
    assert len(laid(planned)) == values
    assert not planned.explain().notes  # the checker agrees, too


@pytest.mark.parametrize(("build", "count"), [(chain, 2), (residual, 4), (computed, 1)])
def test_they_are_right(build: Build, count: int) -> None:
    x = g.input("x", (4, CHANNELS, 16, 18), BF16)
    outputs, unit = [build(x, weights(count))], specs.load("a100")
    planned = plan(outputs, unit, cache=Cache(None))
    assert laid(planned)
    parts, backend = planned.parts, TARGETS["oracle"].backend(unit, None)
    program = Program(parts, backend, outputs, planned.report, planned.explain)
    arrays = {
        a.name: (RNG.standard_normal(a.shape) / 24).astype(BF16.numpy) for a in program.arguments
    }
    (found,), (exact,) = program(**arrays), g.evaluate(outputs, arrays, np.float64)
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=0.05, atol=0.003)


def copy(order: str, extents: dict[str, int], shift: int = 0) -> Kernel:
    """A kernel that copies a buffer over a, b, c into another order of these."""
    shape = tuple(extents.values())
    x, y = Buffer("x", shape, BF16, "input"), Buffer("y", shape, BF16, "output")
    load = Load("v", BF16, tuple("abc"), Access("x", row_major("abc", extents)))
    where = add(row_major(order, extents), const(shift))
    phase = Phase((), (load,), stores=(Store(Access("y", where), "v"),))
    grid = tuple(Axis(name, extent, extent) for name, extent in extents.items())
    return Kernel("copy", (x, y), grid, (), (phase,))


@pytest.mark.parametrize("order", ["abc", "acb", "bac", "bca", "cab", "cba"])
def test_the_order_of_a_copy_is_told(order: str) -> None:
    extents = {"a": 3, "b": 1, "c": 4}
    kernel = copy(order, extents)
    assert copied(kernel) == "x"
    assert [n for n in order_copied(kernel, "abc", extents) if n != "b"] == [
        *order.replace("b", "")
    ]
    assert order_copied(copy(order, extents, 1), "abc", extents) == ()  # it lies beyond a number


def test_axes_that_a_kernel_has_as_one_are_told() -> None:
    extents = {"a": 3, "b": 4, "c": 5}
    kernel = copy("abc", extents)
    (phase,) = kernel.phases
    load = replace(phase.body[0], indices=("a", "p"), access=Access("x", strides(a=20, p=1)))
    store = Store(Access("y", strides(p=3, a=1)), "v")
    grid = (Axis("a", 3, 3), Axis("p", 20, 20))
    merged = replace(kernel, grid=grid, phases=(replace(phase, body=(load,), stores=(store,)),))
    assert order_copied(merged, "abc", extents) == ("b", "c", "a")


def strides(**by: int) -> Affine:
    return add(*(scale(var(name), n) for name, n in by.items()))


def test_a_table_and_outputs_stay_as_they_are() -> None:
    x, at = g.input("x", (8, CHANNELS, 28, 28), BF16), g.input("at", (5,), "int32")
    ws = weights(4)
    y = residual(x, ws[:2])
    for other in (y, g.take(y, at, axis=0)):
        planned = plan([residual(y, ws[2:]), other], specs.load("a100"), cache=Cache(None))
        assert not any(one.orders for one in planned.segments)


def test_segments_that_disagree_are_told() -> None:
    planned = planned_once(residual, 4)
    first, second = planned.segments
    (crosses,) = first.stored
    assert first.orders == second.orders == {crosses: (0, 2, 3, 1)}
    other = replace(second, orders={crosses: (0, 1, 3, 2)})
    with pytest.raises(TraceError, match="segment 2 has another order of the axes"):
        rules, spec = planned.search.rules, planned.search.spec
        check(planned.explain(), (first, other), rules, spec)


def test_an_output_that_is_read_in_windows_is_explained() -> None:
    """It lies where the graph has it, whatever reads it."""
    x = g.input("x", (2, CHANNELS, 8, 8), BF16)
    a, b = weights(2)
    y = g.relu(g.conv(x, a, padding=1))
    planned = plan([y, g.conv(y, b, padding=1)], specs.load("a100"), cache=Cache(None))
    assert not planned.explain().notes and not laid(planned)


@pytest.mark.parametrize(
    "moved",
    [
        lambda y: y[:, :, 1:, 2:],
        lambda y: g.flip(y, axis=3),
        lambda y: g.flip(y, axis=1),
        lambda y: g.pad(y, ((0, 0), (0, 0), (2, 1), (0, 3)), 1),
    ],
    ids=["sliced", "mirrored", "channels reversed", "padded"],
)
def test_windows_over_what_was_moved_are_explained(moved: Callable[[Tensor], Tensor]) -> None:
    """The guards of a window bound the digits of its place, shifted or mirrored, and what they ask
    need not be asked again of what is padded.
    """
    x = g.input("x", (2, CHANNELS, 8, 8), BF16)
    a, b = weights(2)
    planned = plan(
        g.conv(moved(g.relu(g.conv(x, a, padding=1))), b, padding=1),
        specs.load("a100"),
        cache=Cache(None),
    )
    record = planned.explain()
    assert not record.notes
    check(record, planned.segments, planned.search.rules, planned.search.spec)
