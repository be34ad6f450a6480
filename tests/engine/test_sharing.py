"""Blocks that copy factors for each other: which schedules have them, and what that costs."""

from dataclasses import replace

import pytest
from test_clusters import without_clusters

import eqsat.graph as g
from eqsat.codegen.cuda.emit import emit
from eqsat.driver import plan
from eqsat.kernel.ir import Kernel
from eqsat.kernel.text import show
from eqsat.kernel.tile_order import in_bands, in_runs, run_axes
from eqsat.planned import Launch
from eqsat.specs import ParallelProcessingUnit, load

pytestmark = pytest.mark.usefixtures("shared_search")

H200 = load("h200")
OPERATIONS = {operation.name: operation for operation in H200.operations}


def candidates(result: g.Tensor, spec: ParallelProcessingUnit, count: int = 8) -> list[Launch]:
    """The first kernel of each candidate."""
    first, *_ = plan([result], spec, candidates=count).parts.launches
    return [first, *(other[0] for other in first.alternatives)]


def product(m: int, n: int, k: int) -> g.Tensor:
    return g.input("x", (m, k), "bfloat16") @ g.input("w", (k, n), "bfloat16")


def test_a_large_product_may_share_copies():
    found = candidates(product(4096, 4096, 4096), H200)
    shared = [one.kernel for one in found if one.kernel.multicast > 1]
    assert shared and len(shared) < len(found)
    for kernel in shared:
        assert "share 2" in kernel.rules and "copies for 2" in show(kernel)
        assert "copy_box_to_all" in emit(kernel, OPERATIONS).text


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(load("a100"), marks=pytest.mark.slow, id="a100"),
        pytest.param(without_clusters(), id="h200 without"),
    ],
)
def test_a_spec_without_clusters_has_none(spec):
    found = candidates(product(1024, 1024, 1024), spec, 4)
    assert all(one.kernel.multicast == 1 for one in found)


@pytest.mark.slow
def test_a_slow_cache_makes_it_pay():
    """The fewer bytes a second the cache gives, the more copies that are spared are worth."""

    def gain(bandwidth: float) -> float:
        memories = tuple(
            replace(m, bandwidth_gb_per_s=bandwidth) if m.name == "l2" else m
            for m in H200.memory_domains
        )
        found = candidates(product(2048, 2048, 2048), replace(H200, memory_domains=memories))
        best = {n: min(o.seconds for o in found if o.kernel.multicast == n) for n in (1, 2)}
        return best[1] / best[2]

    assert gain(6000) > 1.1 > gain(20000)


def causal(m: int, d: int) -> g.Tensor:
    q, k, v = (g.input(name, (4, m, d), "bfloat16") for name in "qkv")
    scores = g.where(g.tril(g.ones((m, m), dtype="bool")), q @ k.mT, -float("inf"))
    return g.softmax(scores, axis=-1) @ v


@pytest.mark.slow
def test_tiles_of_different_lengths_do_not():
    found = candidates(causal(2048, 64), H200)
    assert all(one.kernel.multicast == 1 for one in found)


def test_they_leave_room_for_other_schedules():
    """8-bit products, most tiles of which need too many registers, are multiplied as such."""
    a, b = (g.input(name, (8192, 8192), "float8_e4m3fn") for name in "ab")
    found = candidates(g.astype(a @ b.T, "bfloat16"), H200, 2)
    assert all("f8" in " ".join(one.kernel.rules) for one in found)


def test_products_of_warps_do_not():
    """Their threads copy for themselves."""
    spec = H200
    for operation in H200.operations:
        spec = spec.without_operation(operation.name) if operation.asynchronous else spec
    found = candidates(product(1024, 1024, 1024), spec, 4)
    assert found and all(one.kernel.multicast == 1 for one in found)
    kernel = replace(found[0].kernel, multicast=2)
    assert in_runs(kernel, spec).multicast == 1


def banded(kernel: Kernel, count: int) -> Kernel:
    return in_runs(in_bands(replace(kernel, multicast=count), H200), H200)


def test_runs_of_tiles_lie_along_one_axis():
    kernel = candidates(product(2048, 2048, 2048), H200, 1)[0].kernel
    two = banded(kernel, 2)
    (axis,) = run_axes(two, 2)
    assert axis.name == kernel.grid[0].name and two.band % 2 == 0


def test_bands_of_parts_are_as_wide_as_those_of_what_the_parts_have():
    """A part of the columns is one point of the grid, and has as much to read as a tile of them."""
    x, w = g.input("x", (1024, 8192), "bfloat16"), g.input("w", (8192, 8192), "bfloat16")
    sums = g.sum(g.sigmoid(g.astype(x @ w.T, "float32")), axis=1)
    kernel = candidates(sums, H200, 1)[0].kernel
    (parts, rows), (columns,) = kernel.cut[-2:], kernel.inner
    assert parts.tile == 1 and parts.count > 16
    read = (kernel.band * columns.extent, H200.processors / kernel.band * rows.tile)
    assert 0.5 < read[0] / read[1] < 2.0


def test_tiles_of_odd_number_are_shared_along_the_other_axis_or_repeated():
    kernel = candidates(product(2048, 2048, 2048), H200, 1)[0].kernel
    first, second = kernel.grid
    odd = replace(kernel, grid=(replace(first, extent=first.tile * 3), second))
    (axis,) = run_axes(across := banded(odd, 2), 2)
    assert axis.name == second.name and across.across and not across.repeats
    both = replace(odd, grid=(odd.grid[0], replace(second, extent=second.tile * 9)))
    (axis,) = run_axes(repeated := banded(both, 2), 2)
    assert axis.name == second.name == repeated.repeats  # one in ten, not one in four
    assert (repeated.tiles, repeated.all_turns) == (27, 30)
    assert f"copies for 2, the last along {axis.name} twice" in show(repeated)


def test_results_that_are_added_up_are_not_computed_twice():
    kernel = candidates(product(2048, 2048, 2048), H200, 1)[0].kernel
    first, second = kernel.grid
    odd = (replace(first, extent=first.tile * 3), replace(second, extent=second.tile * 9))
    phases = tuple(
        replace(phase, stores=tuple(replace(store, monoid="sum") for store in phase.stores))
        for phase in kernel.phases
    )
    assert banded(replace(kernel, grid=odd, phases=phases), 2).multicast == 1
