"""Convolutions of few channels on a GPU: tiles that hold all that their windows read, once."""

import re
from math import prod

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import emit
from eqsat.driver import plan
from eqsat.kernel.ir import Contract, Kernel
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")
H200 = load("h200")
OPERATIONS = {one.name: one for one in H200.operations}


def kernels(image, weights, layout="NHWC", dtype="bfloat16", **options) -> list[Kernel]:
    x, w = g.input("x", image, dtype), g.input("w", weights, dtype)
    out = g.conv(x, w, layout=layout, **options)
    return [launch.kernel for launch in plan([out], H200, cache=Cache(None)).parts.launches]


def product(kernel: Kernel) -> Contract:
    (found,) = (s for s in kernel.statements() if isinstance(s, Contract))
    return found


@pytest.mark.parametrize(
    ("image", "weights", "options"),
    [
        pytest.param((4, 256, 256, 24), (24, 24, 3, 3), {"padding": 1}, id="24 channels"),
        pytest.param((8, 200, 200, 16), (32, 16, 7, 7), {"padding": 3, "stride": 2}, id="in steps"),
    ],
)
def test_a_tile_holds_windows_of_few_channels_whole(image, weights, options):
    """One tile of rows of pixels, of which several windows read each: no stream, a few rows."""
    *copies, main = kernels(image, weights, **options)
    assert len(copies) == 1 and "x1" not in {b.name for b in main.buffers}  # weights alone
    assert product(main).operation.startswith("mma") and not main.phases[0].stream
    images, down, across, _ = (axis.tile for axis in main.grid)
    assert down > 1 and across >= 16
    windows = images * down * across * prod(weights[1:])
    assert emit(main, OPERATIONS).shared_bytes < windows  # half as many bytes as all windows have


def test_channels_are_laid_innermost_for_operations_that_threads_wait_for():
    *copies, main = kernels((4, 8, 256, 256), (32, 8, 5, 5), "NCHW", padding=2)
    assert len(copies) == 2 and product(main).operation.startswith("mma")
    assert "load_matrix_x4(" in emit(main, OPERATIONS).text
    assert not main.phases[0].stream


def test_an_operation_sums_along_channels_however_long_windows_are():
    """16 channels lie together, 31 places of a window do not: no element is read by itself."""
    *_, main = kernels((4, 16, 65536), (32, 16, 31), "NCHW", padding=15)
    text = emit(main, OPERATIONS).text
    assert len(re.findall(r"load_matrix_x[24]\((left|right)", text)) == 2
    assert "& 65535u" not in text


def test_windows_moved_by_steps_are_read_from_permuted_units():
    """Rows an even number of units apart would meet in a bank, however a tile is padded."""
    *_, main = kernels((8, 512, 512, 16), (64, 16, 8, 8), padding=2, stride=4)
    (stream,) = main.phases[0].stream
    assert (stream.tile, stream.extent) == (1, 8)  # a row of places at a time
    text = emit(main, OPERATIONS).text
    (read,) = re.findall(
        r"load_matrix_x4\((?:left|right)\[block\], s_x\d \+ permuted<2>\((.+)\)\);", text
    )
    apart = int(re.search(r"lane % 8\)\) \* (\d+)", read).group(1))
    places = apart * np.arange(8)
    units = (places ^ (places // 64 % 8 * 8)) // 8
    assert apart % 64 == 0 and len({*(units % 8)}) == 8


@pytest.mark.parametrize(
    ("image", "weights", "options"),
    [
        pytest.param((16, 128, 128, 64), (64, 64, 3, 3), {"padding": 1}, id="64 channels"),
        pytest.param((4, 256, 256, 32), (32, 32, 3, 3), {"padding": 1}, id="32 channels"),
        pytest.param((8, 56, 56, 64), (64, 64, 5, 5), {"padding": 2}, id="5 x 5"),
        pytest.param((2, 24, 24, 24, 64), (64, 64, 3, 3, 3), {"padding": 1}, id="volumes"),
    ],
)
def test_boxes_have_each_place_of_windows_once(image, weights, options):
    """An operation that is started reads shifted rows of one box for several places in windows."""
    *_, main = kernels(image, weights, **options)
    contract = product(main)
    assert contract.operation.startswith("wgmma")
    axes = main.axes()
    whole = [i for i in contract.over if axes[i].tile > 1 and axes[i].extent == weights[2]]
    text = emit(main, OPERATIONS).text
    assert whole and "copy_box_" in text and "int place = 0" in text
    (slot,) = {int(n) for n in re.findall(r"barrier_expect\(.*, (\d+)\);", text)}
    pixels = prod(axis.tile for axis in main.grid[:-1])
    assert slot < 2 * prod(axes[i].tile for i in contract.over) * pixels  # of each place anew


def test_a_box_has_no_part_of_the_channels():
    """48 of them are 32 and 16 beyond: chunks of 16, or all."""
    *_, main = kernels((16, 128, 128, 48), (48, 48, 3, 3), padding=1)
    (channels,) = (
        axis for axis in main.axes().values() if axis.extent == 48 and axis not in main.grid
    )
    assert channels.tile in (16, 48)
