"""Sums beside what they are of: one kernel stores both, in parts that fill the device."""

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.driver import plan
from eqsat.kernel.ir import Kernel, Load, Reduce
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")

H200 = load("h200")
X, Y, Z = (g.input(name, (4096, 4096), "float32") for name in "xyz")


def kernels(*outputs: g.Tensor, precision: str = "default") -> list[Kernel]:
    found = plan(list(outputs), H200, cache=Cache(None), precision=precision).parts.launches
    return [launch.kernel for launch in found]


def stored(kernel: Kernel) -> set[str]:
    """The buffers that a kernel writes."""
    return {store.access.buffer for phase in kernel.phases for store in phase.stores}


def large(kernel: Kernel, names: set[str]) -> set[str]:
    """Those of a kernel's buffers that are as large as an input."""
    return {name for name in names if kernel.buffer(name).size >= X.size}


def read(kernel: Kernel) -> set[str]:
    """The buffers that a kernel reads."""
    return {s.access.buffer for s in kernel.statements() if isinstance(s, Load)}


def loss_and_gradient() -> tuple[g.Tensor, g.Tensor]:
    loss = g.mean(g.square(X - Y))
    return loss, g.grad(loss, [X])[0]


@pytest.mark.parametrize(
    "outputs",
    [lambda: (g.relu(X), g.sum(g.relu(X))), loss_and_gradient],
    ids=["activation", "loss"],
)
def test_a_sum_of_all_that_is_stored_takes_no_second_look(outputs):
    """One kernel stores the values and the sums of its parts, another adds these up."""
    first, joining = kernels(*outputs())
    assert large(first, stored(first)) and first.tiles >= H200.processors
    assert not large(joining, read(joining))


def test_what_waits_for_norms_reads_the_least_that_lies_in_memory():
    """Both moments are stored before the norms are known: what follows reads them, not the three
    arrays that they came of.
    """
    first_moment, second_moment = 0.9 * X + 0.1 * Y, 0.999 * Z + 0.001 * Y * Y
    step = first_moment / (g.sqrt(second_moment) + 1e-6)
    scaled = step * g.rsqrt(g.sum(step * step))
    before, after = kernels(first_moment, second_moment, scaled)
    assert len(large(before, read(before))) == 3 and len(large(before, stored(before))) == 2
    assert large(after, read(after)) == large(before, stored(before))


def test_what_is_pooled_is_convolved_over_whole_rows_of_pixels():
    """The windows of a pool part the pixels' names; where the convolution is stored, they are one
    again.
    """
    images = g.input("images", (32, 64, 56, 56), "bfloat16")
    weights = g.input("weights", (128, 64, 3, 3), "bfloat16")
    found = kernels(g.max_pool(g.relu(g.conv(images, weights, padding=1)), 2))
    product = next(k for k in found if k.name == "k0")
    assert 56 * 56 in [axis.extent for axis in product.grid]
    pool = found[-1]
    assert any(isinstance(s, Reduce) for phase in pool.phases for s in phase.body)


def test_norms_of_columns_are_summed_once():
    """Threads that multiply would exchange them in each chunk, for each tile of rows."""
    points = g.input("points", (16384, 128), "bfloat16")
    centres = g.input("centres", (4096, 128), "bfloat16")
    squares = g.sum(g.square(g.astype(centres, "float32")), axis=1)
    nearest = g.argmin(squares - 2.0 * g.astype(points @ centres.T, "float32"), axis=1)
    norms, _ = kernels(nearest)
    assert [norms.buffer(name).shape for name in stored(norms)] == [(4096,)]


def test_chunks_of_rows_stay_in_registers():
    """Of three arrays, 32 rows of 1024 at once would not."""
    a, b, c = (g.input(name, (32768, 1024), "float32") for name in "abc")

    def distance(u: g.Tensor, v: g.Tensor) -> g.Tensor:
        return g.sqrt(g.sum(g.square(u - v), axis=1))

    first, _ = kernels(g.mean(g.maximum(distance(a, b) - distance(a, c) + 1.0, 0.0)))
    (stream,) = (phase.stream for phase in first.phases if phase.stream)
    rows = [axis.tile for axis in stream]
    assert rows == [16]


@pytest.mark.parametrize("shape", [(16384, 4096), (4096, 4096)], ids=["tall", "square"])
def test_sums_over_rows_and_over_columns_come_of_one_look(shape):
    """Parts of the rows, each of which lies in a tile whole; of a square too, where names of both
    sums are as long.
    """
    x = g.input("x", shape, "bfloat16")
    wide = g.astype(x, "float32")
    first, joining = kernels(g.sum(wide, axis=0), g.max(wide, axis=1))
    assert "x0" in read(first) and "x0" not in read(joining)


def test_what_threads_multiply_is_in_whole_vectors_of_rows():
    """Tiles of 256 rows would leave 384 threads 11 each, which they read one by one."""
    x, w = g.input("x", (65536, 512), "float32"), g.input("w", (65536, 64), "float32")
    product = kernels(x.T @ w, precision="exact")[0]
    results = [axis.tile for axis in product.grid if axis.tile > 1]
    assert np.prod(results) / product.threads % 16 == 0
