"""The tiles of a last wave in parts: where that is offered, chosen, and what it needs."""

from dataclasses import replace

import numpy as np
import pytest

import eqsat.graph as eg
from eqsat import driver
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.oracle import run
from eqsat.explain.explanation import Explanation
from eqsat.graph import nn
from eqsat.graph.dtypes import bfloat16, int32
from eqsat.kernel.ir import Kernel
from eqsat.program import workspace
from eqsat.schedule.stream_k import fit
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")

H200 = load("h200")


def product(m: int, n: int, k: int) -> eg.Tensor:
    return eg.input("a", (m, k), bfloat16) @ eg.input("b", (k, n), bfloat16)


def kernels(tensor: eg.Tensor, spec=H200, count: int = 6) -> list[Kernel]:
    """The best kernels of a program of one."""
    (launch,) = driver.plan([tensor], spec, candidates=count, cache=Cache(None)).parts.launches
    return [launch.kernel, *(other[0].kernel for other in launch.alternatives)]


def test_a_small_last_wave_is_parted():
    """400 tiles of 128 x 128: 4 of them after three waves."""
    first, *_ = kernels(product(2560, 2560, 2560))
    assert first.tiles % H200.processors * first.stream_k <= H200.processors
    assert first.stream_k and first.blocks == H200.processors
    sums, given = first.workspace
    assert sums.shape[0] == given.shape[0] == first.tiles % H200.processors * first.stream_k
    assert given.role == "zeroed" and given.dtype == int32


@pytest.mark.parametrize("size", [2048, pytest.param(4096, marks=pytest.mark.slow)])
def test_tiles_that_fill_their_waves_stay_whole(size):
    first, *_ = kernels(product(size, size, size))
    assert not first.stream_k and not first.workspace and not first.blocks


@pytest.mark.slow
def test_what_is_rescaled_stays_whole():
    """Rows of attention: 136 tiles of 128."""
    q, k, v = (eg.input(name, (17, 1024, 128), bfloat16) for name in "qkv")
    found = kernels(nn.softmax(q @ eg.matrix_transpose(k)) @ v, count=2)
    assert all(not kernel.stream_k for kernel in found)


def test_room_is_for_the_sums_of_products_of_products():
    """Of 198 tiles, 66 in two parts: a block's sums are the tile of its results."""
    q, k, v = (eg.input(name, (2, 9, 2048, 64), bfloat16) for name in "qkv")
    first, *_ = kernels(eg.sigmoid(0.125 * (q @ eg.matrix_transpose(k))) @ v, count=1)
    assert first.stream_k == 2 and first.tiles == 198
    sums, _ = first.workspace
    assert sums.shape == (132, 192 * 64)
    operations = {operation.name: operation for operation in H200.operations}
    assert "take_sums" in emit(first, operations).text


def test_which_waves_fit():
    assert fit(136, 4, 132) and fit(4, 4, 132) and fit(33, 4, 132)
    assert not fit(132, 2, 132)  # no tile is over
    assert not fit(132 + 67, 2, 132)  # parts of more than a wave
    assert not fit(132 * 10 + 4, 4, 132)  # a last wave is little of all


def test_the_oracle_gives_the_answer_and_parts_are_explained():
    small = tuple(replace(g, count=5) if g.name == "block" else g for g in H200.parallel_groups)
    spec = replace(H200, parallel_groups=small)
    a = eg.input("a", (384, 2048), bfloat16)
    b = eg.input("b", (2048, 768), bfloat16)
    planned = driver.plan([eg.tanh(0.01 * (a @ b))], spec, candidates=8, cache=Cache(None))
    (launch,) = planned.parts.launches
    found = [one[0] for one in ((launch,), *launch.alternatives) if one[0].kernel.stream_k]
    assert found
    rng = np.random.default_rng(0)
    given = {
        n: rng.standard_normal(s).astype(bfloat16.numpy)
        for n, s in (("a", a.shape), ("b", b.shape))
    }
    expected = np.tanh(0.01 * given["a"].astype(np.float64) @ given["b"].astype(np.float64))
    kernel = found[0].kernel
    arrays = {buffer.name: np.zeros(buffer.shape, buffer.dtype.numpy) for buffer in kernel.buffers}
    inputs = [buffer.name for buffer in kernel.buffers if buffer.role == "input"]
    arrays |= dict(zip(inputs, given.values(), strict=True))
    run(kernel, arrays, {o.name: o for o in spec.operations})
    (output,) = (b.name for b in kernel.buffers if b.role == "output")
    np.testing.assert_allclose(arrays[output].astype(np.float64), expected, atol=2e-2)
    story = planned.explain("program", (found[0],))
    assert isinstance(story, Explanation)


def test_the_workspace_is_zero_where_kernels_ask_so():
    planned = driver.plan([product(2560, 2560, 2560)], H200, cache=Cache(None))

    class Backend:
        def constant(self, value):
            return value

        def empty(self, shape, dtype):
            return np.full(shape, 7, dtype.numpy)

    used = {name for launch in planned.parts.launches for name in launch.buffers}
    made = workspace(planned.parts, Backend(), used)
    sums, given = planned.parts.launches[0].kernel.workspace
    by_shape = {array.shape: array for array in made.values()}
    assert len(made) == 2
    assert not by_shape[given.shape].any() and by_shape[sums.shape].all()


def test_room_for_sums_has_the_name_of_the_kernel_as_it_runs() -> None:
    """Plans that were compared give kernels other names; a trace is checked against those."""
    x = eg.input("x", (1, 32, 5, 6, 7), "bfloat16")
    a, b = (eg.input(name, (32, 32, 3, 3, 3), "bfloat16") for name in "ab")
    planned = driver.plan(
        eg.conv(eg.relu(eg.conv(x, a, padding=1)), b, padding=1), "h200", cache=Cache(None)
    )
    kernels = [launch.kernel for launch in planned.parts.launches]
    streamed = [kernel for kernel in kernels if kernel.stream_k]
    assert len(streamed) == 2
    for kernel in streamed:
        assert all(buffer.name.startswith(f"{kernel.name}_") for buffer in kernel.buffers[-2:])
    assert not planned.explain().notes
