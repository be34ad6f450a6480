"""Runs of pixels that the tensor memory accelerator copies, against the accesses they stand for."""

from itertools import product
from random import Random

import numpy as np
import pytest
from cuda_async_emulation import tensor_map
from cuda_emulation import emulate, run_between_guards
from pipeline_cases import OPERATIONS
from pixel_cases import CHANNELS, PIXELS, Made, images, pixel_cases, random_images, read

from eqsat.codegen.cuda.copy.pixels import pixel_box
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.place.box import TensorBox, tensor_box
from eqsat.graph.index import evaluate


def found(made: Made) -> TensorBox | None:
    load, buffer, axes, points = made
    return pixel_box(load, buffer, axes, points, CHANNELS, {CHANNELS})


def copied(box: TensorBox, memory: np.ndarray, at: dict[str, int]) -> np.ndarray:
    """What a copy leaves by the definition of the mode: from the first pixel's place on, in steps
    to the end of each axis, then from its beginning; each shifted by its place in a window.
    """
    channels, *inside, images = box.dimensions
    place = [int(evaluate(d.coordinate, at)) for d in inside]
    image = int(evaluate(images.coordinate, at))
    c = int(evaluate(channels.coordinate, at)) + np.arange(box.width)
    rows = np.zeros((box.pixels, box.width), memory.dtype)
    for row in range(box.pixels):
        read = [p + int(evaluate(d.within, at)) for p, d in zip(place, inside, strict=True)]
        exists = image < images.extent
        exists &= all(0 <= r < d.extent for r, d in zip(read, inside, strict=True))
        address = box.offset + image * images.stride + c
        address += sum(r * d.stride for r, d in zip(read, inside, strict=True))
        if exists:
            here = c < channels.extent
            rows[row] = np.where(here, memory[np.where(here, address, 0)], 0)
        for axis, d in enumerate(inside):
            place[axis] += d.step
            if place[axis] <= d.extent - 1 + d.corners[1]:
                break
            place[axis] = d.corners[0]
        else:
            image += 1
    return rows


def assert_same(made: Made, box: TensorBox, random: Random) -> None:
    """Equal wherever a tile has pixels, and zero beyond the channels."""
    load, buffer, axes, points = made
    memory = np.arange(1, buffer.size + 1)
    tensor_map(box, np.zeros(buffer.size, box.dtype.numpy))  # as legal as the driver wants it
    tiles = list(product(*(range(0, axis.extent, axis.tile) for axis in axes.values())))
    for first in random.sample(tiles, min(3, len(tiles))):
        at = dict(zip(axes, first, strict=True))
        pixels, channels = np.indices((points[PIXELS], box.width))
        values = {**at, PIXELS: at[PIXELS] + pixels, CHANNELS: at[CHANNELS] + channels}
        inside = values[CHANNELS] < axes[CHANNELS].extent
        wanted = np.where(inside, read(load, memory, values), 0)
        rows = min(points[PIXELS], axes[PIXELS].extent - at[PIXELS])
        np.testing.assert_array_equal(copied(box, memory, at)[:rows], wanted[:rows])


def test_a_run_holds_what_the_access_reads():
    random, ranks = Random(5), set[int]()
    for _ in range(120):
        made = random_images(random)
        box = found(made)
        if box is not None:
            ranks.add(len(box.dimensions))
            assert tensor_box(*made, CHANNELS, {CHANNELS}) is None
            assert_same(made, box, random)
    assert ranks == {3, 4, 5}


SQUARE = {
    "batch": 2, "sizes": (7, 7), "channels": 64, "windows": (3, 3), "steps": (1, 1),
    "apart": (1, 1), "pads": ((1, 1), (1, 1)), "tiles": (64, 64),
}  # fmt: skip


def test_a_run_goes_through_rows_and_images():
    made = images(**SQUARE)
    box = found(made)
    assert box is not None and box.pixels == 64 and [d.box for d in box.dimensions] == [64, 1, 1, 1]
    assert [d.corners for d in box.dimensions[1:-1]] == [(-1, -1), (-1, -1)]
    assert_same(made, box, Random(0))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"channels": 60, "tiles": (64, 64)}, "rows lie no whole units apart"),
        ({"tiles": (2048, 64), "batch": 90}, "more pixels than one copy takes"),
        ({"steps": (9, 1), "sizes": (80, 7)}, "steps of nine"),
        ({"sizes": (300, 7), "windows": (130, 3), "pads": ((129, 0), (1, 1))}, "a far corner"),
        ({"sizes": (600, 7), "windows": (2, 3), "apart": (256, 1)}, "a far place in a window"),
        ({"sizes": (5, 5, 5, 5), "windows": (3,) * 4, "steps": (1,) * 4, "apart": (1,) * 4,
          "pads": ((1, 1),) * 4}, "four axes of an image"),
    ],
)  # fmt: skip
def test_what_the_accelerator_cannot_copy_is_no_run(change, why):
    assert found(images(**(SQUARE | change))) is None, why


def test_rows_that_are_not_walked_as_windows_are_no_run():
    load, buffer, axes, points = images(**SQUARE)
    assert pixel_box(load, buffer, axes, points | {"r0": 2}, CHANNELS, {CHANNELS}) is None
    assert pixel_box(load, buffer, axes, points, "r0", {CHANNELS}) is None


CASES = pixel_cases()


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return emulate([c.kernel for c in CASES], tmp_path_factory.mktemp("pixels"), OPERATIONS)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[c.name for c in CASES])
def test_a_kernel_gives_its_answer(emulator, number):
    """Also beside memory that holds NaN: nothing outside the array is read or written."""
    assert "copy_pixels_" in emit(CASES[number].kernel, OPERATIONS).text
    run_between_guards(emulator, number, CASES[number].sample)
