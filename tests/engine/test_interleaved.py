"""Values that repeat along an axis, and values stored by twos: how their tiles lie."""

import numpy as np
import pytest
from fast_products import H200, normal, planned, run

import eqsat.graph as g
from eqsat.codegen.cuda.emit import emit
from eqsat.graph.evaluate import input_nodes
from eqsat.graph.index import Mod
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Kernel, Load
from eqsat.specs import ParallelProcessingUnit

pytestmark = pytest.mark.usefixtures("shared_search")


def kernel_of(out: Tensor) -> Kernel:
    (launch,) = planned(out, H200).parts.launches
    return launch.kernel


def points(kernel: Kernel) -> int:
    """Of a tile."""
    return int(np.prod([axis.tile for axis in kernel.grid]))


def turned(a: Tensor, b: Tensor) -> Tensor:
    """Products of complex numbers, their parts side by side."""
    (p, q), (r, s) = ((x[..., 0], x[..., 1]) for x in (a, b))
    return g.stack([p * r - q * s, p * s + q * r], axis=-1)


PROGRAMS = {
    "tiled": lambda n: g.tile(g.input("x", (n, n), "bfloat16"), (4, 3)),
    "repeated": lambda n: g.reshape(
        g.broadcast_to(g.input("x", (n, n), "float32")[None], (3, n, n)), (3 * n, n)
    ),
    "complex": lambda n: turned(*(g.input(name, (n * n, 2), "float32") for name in "xy")),
    "interleaved": lambda n: g.stack([g.input(c, (n, n), "float32") for c in "xyz"], axis=-1),
}


def without_products() -> ParallelProcessingUnit:
    """One whose threads multiply by themselves what lies in memory."""
    unit = H200
    for one in H200.operations:
        if one.semantics and one.semantics.contraction:
            unit = unit.without_operation(one.name)
    return unit


@pytest.mark.parametrize("name", PROGRAMS)
def test_its_tiles_are_long_and_hold_no_remainders(name):
    kernel = kernel_of(PROGRAMS[name](2048))
    assert points(kernel) >= 768
    loads = [s for s in kernel.statements() if isinstance(s, Load)]
    assert loads
    assert not any(isinstance(a, Mod) for s in loads for a, _ in s.access.address.terms)


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_right(name):
    out = PROGRAMS[name](24)
    arrays = {n: normal(*x.shape).astype(x.dtype.numpy) for n, x in input_nodes([out]).items()}
    (wanted,) = g.evaluate([out], arrays)
    np.testing.assert_allclose(
        run(planned(out, H200), **arrays).astype(float), wanted.astype(float), rtol=1e-6
    )


def test_what_a_thread_reads_fits_into_its_registers():
    """A filter of 25 places reads as many values for each point, and holds them until used."""
    x, w = g.input("x", (4096, 4096), "float32"), g.input("w", (5, 5), "float32")
    wide = g.pad(x, ((2, 2), (2, 2)))
    places = [(i, j) for i in range(5) for j in range(5)]
    out = sum(
        (w[i, j] * wide[i : i + 4096, j : j + 4096] for i, j in places[1:]),
        w[0, 0] * wide[:4096, :4096],
    )
    kernel = kernel_of(out)
    registers = H200.memory("registers").limit_per_group_bytes
    assert points(kernel) / kernel.threads * len(places) * 4 <= registers


def test_neighbours_around_the_edges_are_neighbours():
    """What is read at (i + 1) % n is priced as what is read at i + 1."""
    x = g.input("x", (8192, 8192), "uint8")
    near = [g.roll(g.roll(x, i, axis=0), j, axis=1) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    (launch,) = planned(sum(near[1:], near[0]), H200).parts.launches
    assert launch.seconds < 2e-4


def source_of(out: Tensor) -> str:
    return emit(kernel_of(out), {one.name: one for one in H200.operations}).text


def test_what_is_repeated_along_two_axes_is_stored_in_whole_words():
    x = g.input("x", (64, 64, 64), "float32")
    text = source_of(g.repeat(g.repeat(x, 2, axis=1), 2, axis=2))
    assert "*reinterpret_cast<Pack<float, 4>*>(p_y0" in text


def test_windows_of_a_factor_are_summed_by_one_thread():
    x, d, w = (
        g.input(name, shape)
        for name, shape in (
            ("x", (32, 128, 56, 56)), ("d", (128, 1, 3, 3)), ("w", (128, 128, 1, 1))
        )
    )  # fmt: skip
    unit = without_products()
    both = planned(g.conv(g.relu(g.conv(x, d, padding=1, groups=128)), w), unit)
    (launch,) = both.parts.launches
    text = emit(launch.kernel, {}).text
    body = text[text.index("__global__") :]
    assert "multiply_add" in body and "reduce_" not in body


def test_factors_in_shared_memory_are_read_in_whole_words():
    x, y = g.input("x", (1_000_000, 128)), g.input("y", (1_000_000, 128))
    text = emit(planned(x.mT @ y, without_products()).parts.launches[0].kernel, {}).text
    assert "const Pack<float, 4> pack = *reinterpret_cast<const Pack<float, 4>*>(s_" in text
