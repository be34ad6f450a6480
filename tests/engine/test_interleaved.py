"""Values that repeat along an axis, and values stored by twos: how their tiles lie."""

import numpy as np
import pytest
from fast_products import H200, normal, planned, run

import eqsat.graph as g
from eqsat.graph.evaluate import input_nodes
from eqsat.graph.index import Mod
from eqsat.graph.tensor import Tensor
from eqsat.kernel import Kernel, Load


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
