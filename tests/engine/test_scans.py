"""Scans as streams: which kernels recurrences become, and that these give the right answers."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.driver import compile, plan
from eqsat.graph.evaluate import evaluate, topological
from eqsat.graph.index import Affine, var
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Kernel, Load, Phase, Scan
from eqsat.specs import load
from eqsat.terms.algebra import Facts, Read, Renaming, Term, Universe
from eqsat.terms.reindex import push

pytestmark = pytest.mark.usefixtures("shared_search")
FULL = (8, 2048, 2048, 16)
SMALL = (2, 7, 6, 4)


def selective_scan(batch: int, steps: int, channels: int, states: int, dtype="float32") -> Tensor:
    """h_t = exp(dt_t a) h_(t-1) + dt_t b_t x_t; y_t = sum_n c_t[n] h_t[n]: Mamba's recurrence."""
    x, dt = (g.input(name, (batch, steps, channels), dtype) for name in ("x", "dt"))
    b, c = (g.input(name, (batch, steps, states), dtype) for name in "bc")
    a = g.input("a", (channels, states), dtype)
    decay = g.exp(dt[:, :, :, None] * a)
    h = g.affine_scan(decay, (dt * x)[:, :, :, None] * b[:, :, None, :], axis=1)
    return g.sum(h * c[:, :, None, :], axis=3)


def gated(dtype: str = "float32") -> Tensor:
    """What a Mamba block makes of it: the input added, a gate."""
    y, z, d = (
        selective_scan(*SMALL, dtype),
        g.input("z", SMALL[:3], dtype),
        g.input("d", (6,), dtype),
    )
    return (y + z * d) * g.silu(z)


def planned(output: Tensor, spec: str) -> list[Kernel]:
    return [launch.kernel for launch in plan(output, load(spec), cache=Cache(None)).parts.launches]


def stepped(kernel: Kernel) -> Phase:
    """The stream of single steps of a kernel."""
    (phase,) = (p for p in kernel.phases if [axis.tile for axis in p.stream] == [1])
    return phase


@pytest.mark.parametrize("spec", ["cpu", "h200", "a100"])
def test_a_selective_scan_is_one_kernel_that_steps_along_time(spec: str) -> None:
    """Nothing of four dimensions is stored, and only the states are carried."""
    (kernel,) = planned(selective_scan(*FULL), spec)
    phase = stepped(kernel)
    assert [axis.extent for axis in phase.stream] == [2048]
    assert sorted(b.size for b in kernel.buffers) == sorted(
        [8 * 2048 * 2048] * 3 + [8 * 2048 * 16] * 2 + [2048 * 16]
    )
    (carry,) = phase.carries
    assert len(carry.indices) == 3
    assert len([s for s in phase.body if isinstance(s, Load)]) == 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_loads_ahead_and_spills_nothing(dtype: str) -> None:
    """Each thread has states of its own, in registers; no thread does another's work again."""
    (kernel,) = planned(selective_scan(*FULL, dtype), "h200")
    source = emit(kernel)
    cubin = compile_cubin(source.text, "sm_90a")
    assert not cubin.spills and cubin.registers <= 128 and source.shared_bytes <= 32768
    assert "load_ahead(next + slot, slot);" in source.text and "copy_async" in source.text
    carry = stepped(kernel).carries[0].name
    tile = {axis.name: axis.tile for axis in (*kernel.grid, *kernel.inner)}
    held = np.prod([tile[name] for name in stepped(kernel).carries[0].indices])
    assert f"float v_{carry}[{held // kernel.threads}];" in source.text


def test_long_rows_are_read_once_and_written_once() -> None:
    (kernel,) = planned(g.cumulative_sum(g.input("x", (8192, 16384)), axis=1), "h200")
    assert [type(s) for s in kernel.statements()] == [Load, Scan]
    source = emit(kernel)
    assert source.text.count("block_barrier();") == 2  # in all, for a whole row
    assert "Pack<float, 4>" in source.text and not compile_cubin(source.text, "sm_90a").spills


def test_recurrences_along_rows_are_read_once_and_written_once() -> None:
    a, b = (g.input(name, (4096, 4096)) for name in "ab")
    (kernel,) = planned(g.affine_scan(g.sigmoid(a), b, axis=1), "h200")
    assert [type(s) for s in kernel.statements()].count(Scan) == 1
    source = emit(kernel)
    assert "Composed" in source.text and "Pack<float, 4>" in source.text
    assert not compile_cubin(source.text, "sm_90a").spills


@pytest.mark.parametrize(("axis", "few"), [(1, True), (0, False)])
def test_a_cpu_walks_few_rows_side_by_side_or_whole_lines_across_them(axis: int, few: bool) -> None:
    """Rows lie apart in memory: a line of each is read for many steps, if it stays in the cache."""
    (kernel,) = planned(g.cumulative_prod(g.input("x", (2048, 2048)), axis), "cpu")
    (tiled,) = kernel.grid
    assert tiled.tile <= 4 if few else tiled.tile >= 64


def test_two_scans_of_a_tile_have_scopes_of_their_own() -> None:
    sums = g.cumulative_sum(g.tanh(g.cumulative_sum(g.input("x", (8,)), axis=0)), axis=0)
    (kernel,) = planned(sums, "h200")
    assert [type(s) for s in kernel.statements()].count(Scan) == 2
    compile_cubin(emit(kernel).text, "sm_90a")


A, B = g.input("a", (5, 9, 3)), g.input("b", (5, 9, 3))
W = g.input("w", (3, 4))
PROGRAMS: dict[str, tuple[int, Callable[[], Tensor]]] = {
    "gated": (1, gated),
    "gated, bfloat16": (1, lambda: gated("bfloat16")),
    "an initial state": (1, lambda: g.affine_scan(A, B, 1, g.input("h", (5, 3)))),
    "a product of the states": (1, lambda: g.affine_scan(A, B, 1) @ W),
    "factors from a product": (1, lambda: g.affine_scan(g.sigmoid(A @ W @ W.mT), B, 1)),
    "a sum over the steps": (1, lambda: g.sum(g.affine_scan(A, B, 1), 1)),
    "softmax of the states": (1, lambda: g.softmax(g.affine_scan(A, B, 1), 1)),
    "a variance of the states": (1, lambda: g.var(g.affine_scan(A, B, 1), 1)),
    "where the largest state is": (1, lambda: g.argmax(g.affine_scan(A, B, 1), 1)),
    "of its own states": (1, lambda: g.affine_scan(A, g.affine_scan(A, B, 1), 1)),
    "of a prefix sum": (1, lambda: g.affine_scan(A, g.cumulative_sum(B, 1), 1)),
    "along two axes": (2, lambda: g.affine_scan(g.affine_scan(A, B, 1), B, 0)),
    "from the end": (
        2,
        lambda: g.flip(g.affine_scan(g.flip(A, axis=1), g.flip(B, axis=1), 1), axis=1),
    ),
    "along axes taken together": (
        3,
        lambda: g.reshape(g.affine_scan(*(g.reshape(x, (45, 3)) for x in (A, B)), 0), (5, 9, 3)),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_oracle_agrees_with_the_graph(name: str) -> None:
    """`most`: kernels; fewer are better."""
    most, build = PROGRAMS[name]
    output = build()
    program = compile(output, replace(load("cpu"), target="oracle"), cache=Cache(None))
    assert len(program.kernels) <= most
    agrees(program, output)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_numba_agrees_with_the_graph(dtype: str) -> None:
    output = gated(dtype)
    program = compile(output, load("cpu"), cache=Cache(None))
    assert len(program.kernels) == 1
    agrees(program, output)


def test_derivatives_of_a_selective_scan_agree() -> None:
    y = selective_scan(*SMALL)
    inputs = [t for t in topological([y]) if t.op == "input"]
    found = g.grad(g.sum(g.square(y)), inputs)
    agrees(compile(found, replace(load("cpu"), target="oracle"), cache=Cache(None)), *found)


def agrees(program: Callable[..., object], *outputs: Tensor) -> None:
    random = np.random.default_rng(3)
    feeds = {
        t.attributes["name"]: (0.5 * random.standard_normal(t.shape)).astype(t.dtype.numpy)
        for t in topological(outputs)
        if t.op == "input"
    }
    found = program(**feeds)
    found = found if isinstance(found, tuple | list) else (found,)
    for array, wanted, tensor in zip(found, evaluate(outputs, feeds), outputs, strict=True):
        near = 1e-5 if tensor.dtype.itemsize == 4 else 2e-2
        wide = np.asarray(array, np.float64), np.asarray(wanted, np.float64)
        np.testing.assert_allclose(*wide, rtol=near, atol=near)


def test_a_scan_read_at_other_indices_may_be_read_so_again() -> None:
    """flip(flip(scan)): a scan stays where it is, and the two re-indexings become one."""
    universe = Universe()
    i, j, k = (universe.add(5) for _ in range(3))
    scan = Term("scan_sum", universe.mask([i]), Term("read", Read("x", g.float32, var(i))))
    once = push(Renaming((i,), (Affine(((j, -1),), 4),)), scan, Facts(universe))
    assert once.op == "reindex"
    twice = push(Renaming((j,), (Affine(((k, -1),), 4),)), once, Facts(universe))
    assert twice == Term("reindex", Renaming((i,), (var(k),)), scan)


@pytest.mark.parametrize("axis", [0, 1])
def test_scans_of_shifted_scans_have_a_plan(axis):
    """The gradient of products multiplies a scan from the end with a shifted one from the start."""
    x = g.input("x", (5, 7))
    weights = g.astype(g.iota((5, 7), 1), "float32")
    gradient = g.grad(g.sum(g.cumulative_prod(x, axis) * weights), x)
    values = np.random.default_rng(4).uniform(0.6, 1.6, (5, 7)).astype(np.float32)
    (expected,) = evaluate([gradient], {"x": values}, np.float64)
    found = compile(gradient, "cpu", cache=Cache(None))(values)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("shape", [(64, 4096, 256), (4, 4096, 4096), (256, 512, 512)])
def test_steps_have_no_more_threads_than_states(shape: tuple[int, ...]) -> None:
    """Warps beyond them would ask for what others do."""
    planned = plan([g.cumulative_sum(g.input("x", shape), axis=1)], load("h200"), cache=Cache(None))
    (launch,) = planned.parts.launches
    kernel = launch.kernel
    assert isinstance(kernel, Kernel) and kernel.phases[0].stream
    states = np.prod([axis.tile for axis in kernel.grid])
    assert kernel.threads <= max(32, states)


def test_rows_that_are_scanned_beside_shorter_elements_are_moved_in_vectors() -> None:
    x, m = g.input("x", (64, 16384)), g.input("m", (64, 16384), "uint8")
    total = g.cumulative_sum(x * g.astype(m, "float32"), axis=1)
    source = compile(total, "h200", cache=Cache(None)).source()
    for dtype in ("float", "unsigned char"):
        assert f"Pack<{dtype}, 4> pack" in source
