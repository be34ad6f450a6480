"""Boxes of overlapping windows, of which operations of a warpgroup read shifted rows."""

import re
from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest
from cuda_async_emulation import tensor_map
from cuda_emulation import emulate, run_between_guards
from pipeline_cases import OPERATIONS
from pixel_cases import read
from window_box_cases import WHOLE, Images, convolved, window_box_cases

from eqsat.codegen.cuda.copy.box_tile import box_tile
from eqsat.codegen.cuda.copy.window_box import window_box
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.place.box import TensorBox
from eqsat.errors import UnsupportedError
from eqsat.graph.index import evaluate
from eqsat.kernel.ir import Kernel, Load

CASES = window_box_cases()


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return emulate([c.kernel for c in CASES], tmp_path_factory.mktemp("windows"), OPERATIONS)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[c.name for c in CASES])
def test_a_kernel_gives_its_answer(emulator, number):
    """Also beside memory that holds NaN: nothing outside the array is read or written."""
    assert "place < " in emit(CASES[number].kernel, OPERATIONS).text
    run_between_guards(emulator, number, CASES[number].sample)


def test_a_tile_has_each_place_once():
    """8 x 8 windows of 3 x 3 are 10 x 10 places."""
    (source,) = (emit(c.kernel, OPERATIONS) for c in CASES if c.name == "windows-eights")
    (expected,) = re.findall(r"barrier_expect\(.*, (\d+)\);", source.text)
    assert int(expected) == 2 * 64 * (10 * 10 + 9 * 16)


def test_rows_that_lie_unevenly_are_refused():
    """Of rows of 16 pixels two groups of eight lie together, the next two a row of places on."""
    images = Images(2, (11, 18), 64, 24, (3, 3), pad=1)
    kernel = convolved(images, {"h": 4, "w": 16, "o": 16, "c": 64, **WHOLE}, 16).kernel
    with pytest.raises(UnsupportedError, match="do not lie in the tile by 8, evenly"):
        emit(replace(kernel, threads=128), OPERATIONS)


def found(kernel: Kernel) -> tuple[Load, TensorBox | None]:
    (load,) = (s for s in kernel.statements() if s.name == "a")
    assert isinstance(load, Load)
    axes = kernel.axes()
    points = {i: min(axes[i].tile, axes[i].extent) for i in load.indices}
    summed = {i for i in axes if i.startswith("r") or i == "c"}
    return load, window_box(load, kernel.buffer("x"), axes, points, "c", summed)


def random_windows(random: Random) -> Kernel:
    rank = random.choice((1, 2, 2, 3))
    windows = tuple(random.choice((1, 2, 3)) for _ in range(rank))
    apart, pad = random.choice((1, 1, 2)), random.choice((0, 1, 2))
    sizes = tuple(apart * (w - 1) + 1 + random.randrange(9) for w in windows)
    steps = (*(random.choice((1, 1, 2)) for _ in range(rank - 1)), 1)
    images = Images(2, sizes, random.choice((32, 64, 96)), 8, windows, steps, apart, pad)
    tiles = {name: random.choice((1, 2, 4, 8)) for name in images.axes}
    tiles |= {f"r{name}": random.choice((1, 3)) for name in images.axes}
    tiles |= {f"r{name}": w for name, w in zip(images.axes, windows, strict=True) if w == 2}
    return convolved(images, tiles | {"n": random.choice((1, 2)), "c": 32, "o": 8}, 8).kernel


def test_a_tile_holds_what_the_access_reads():
    """Wherever a point of the tile lies in it, for tiles of random windows."""
    random, count = Random(3), 0
    for _ in range(80):
        kernel = random_windows(random)
        load, box = found(kernel)
        if box is None:
            continue
        count += 1
        assert_same(kernel, load, box, random)
    assert count > 25


def assert_same(kernel: Kernel, load: Load, box: TensorBox, random: Random) -> None:
    axes, buffer = kernel.axes(), kernel.buffer("x")
    tensor_map(box, np.zeros(buffer.size, box.dtype.numpy))  # as legal as the driver wants it
    memory, tile = np.arange(1, buffer.size + 1), box_tile("t", box, 1)
    tiles = list(product(*(range(0, axes[i].extent, axes[i].tile) for i in load.indices)))
    points = {i: min(axes[i].tile, axes[i].extent) for i in load.indices}
    for first in random.sample(tiles, min(2, len(tiles))):
        at = dict(zip(load.indices, first, strict=True))
        rows = copied(box, memory, at)
        local = dict(zip(load.indices, np.indices(tuple(points.values())), strict=True))
        values = {i: at[i] + local[i] for i in load.indices}
        inside = np.all([values[i] < axes[i].extent for i in load.indices], axis=0)
        place = sum(local[i] * tile.strides.get(i, 0) for i in load.indices if i != "c")
        held = rows[place, local["c"]]
        np.testing.assert_array_equal(held[inside], read(load, memory, values)[inside])


def copied(box: TensorBox, memory: np.ndarray, at: dict[str, int]) -> np.ndarray:
    """What the accelerator copies: zero outside the tensor."""
    coordinates = [int(evaluate(d.coordinate, at)) for d in box.dimensions]
    shape = [d.box for d in reversed(box.dimensions)]
    grid = np.indices(shape)[::-1]
    address, exists = np.full(shape, box.offset), np.ones(shape, bool)
    for d, first, own in zip(box.dimensions, coordinates, grid, strict=True):
        address = address + (first + own) * d.stride
        exists &= (first + own >= 0) & (first + own < d.extent)
    found = np.where(exists, memory[np.clip(address, 0, memory.size - 1)], 0)
    return found.reshape(-1, box.width)
