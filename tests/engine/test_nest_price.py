"""Tiles of loop nests: what they keep fits the cache of a core, and runs in memory are long."""

import math

import pytest

import eqsat
from eqsat.cache.store import Cache
from eqsat.codegen.cpu.values import Values
from eqsat.kernel.ir import Contract, Kernel
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")
CPU = load("cpu")


def only_kernel(output: eqsat.Tensor) -> Kernel:
    (kernel,) = eqsat.compile(output, CPU, cache=Cache(None)).kernels
    return kernel


def copied_bytes(kernel: Kernel) -> int:
    """Of what a tile copies of an image before it is multiplied: windows, or places once."""
    invocations = {one.name: one.invocation_name for one in CPU.operations}
    (sliding,) = Values(kernel, invocations).windows.values() or (None,)
    if sliding:
        return sliding.room * sliding.load.dtype.itemsize
    tile = {axis.name: min(axis.tile, axis.extent) for axis in kernel.axes().values()}
    copied = next(s for s in kernel.statements() if s.name == "x1")
    return math.prod(tile[name] for name in copied.indices) * copied.dtype.itemsize


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_copied_factor_fits_the_cache_of_a_core(layout: str) -> None:
    shape = (8, 64, 56, 56) if layout == "NCHW" else (8, 56, 56, 64)
    x, w = eqsat.input("x", shape), eqsat.input("w", (64, 64, 3, 3))
    kernel = only_kernel(eqsat.conv(x, w, padding=1, layout=layout))
    assert copied_bytes(kernel) <= CPU.memory("l2").size_bytes


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_what_lies_together_stays_in_a_tile(layout: str) -> None:
    shape = (8, 128, 56, 56) if layout == "NCHW" else (8, 56, 56, 128)
    x, w = eqsat.input("x", shape), eqsat.input("w", (128, 1, 3, 3))
    kernel = only_kernel(eqsat.conv(x, w, padding=1, groups=128, layout=layout))
    assert all(axis.tile == axis.extent for axis in kernel.grid[-2:])
    assert not any(getattr(s, "operation", "") for s in kernel.statements())
    assert kernel.tiles >= CPU.processors


def test_a_nest_that_turns_is_cut_for_every_core() -> None:
    kernel = only_kernel(eqsat.input("x", (4096, 4096)).T + 0.5)
    assert kernel.tiles >= CPU.processors


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((8, 3, 224, 224), (32, 3, 3, 3), {"stride": 2}),  # no row lies together
        ((2, 8, 16, 32, 32), (16, 8, 3, 3, 3), {}),
        ((16, 32, 2048), (64, 32, 5), {}),
    ],
)
def test_copies_of_windows_stay_near(
    x: tuple[int, ...], w: tuple[int, ...], options: dict[str, int]
) -> None:
    """They are multiplied by a library, from a cache that it reads fast."""
    images, weights = eqsat.input("x", x), eqsat.input("w", w)
    kernel = only_kernel(eqsat.conv(images, weights, padding=1, **options))
    (product,) = (s for s in kernel.statements() if isinstance(s, Contract))
    assert "gemm" in product.operation and copied_bytes(kernel) <= CPU.memory("l2").size_bytes
