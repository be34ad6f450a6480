"""Loads of pixels: windows over images of any shape, their outputs one index."""

from math import prod
from random import Random

from eqsat.graph import index
from eqsat.graph.dtypes import DType, bfloat16
from eqsat.graph.index import Affine
from eqsat.kernel import Access, Axis, Buffer, Guard, Load

PIXELS, CHANNELS = "p", "c"
Made = tuple[Load, Buffer, dict[str, Axis], dict[str, int]]


def images(
    batch: int,
    sizes: tuple[int, ...],
    channels: int,
    windows: tuple[int, ...],
    steps: tuple[int, ...],
    apart: tuple[int, ...],
    pads: tuple[tuple[int, int], ...],
    tiles: tuple[int, int],
    dtype: DType = bfloat16,
) -> Made:
    """The load of a tile of pixels and channels of x[n, *sizes, c]: each pixel of the outputs reads
    step i + apart r - pad along each axis; of an axis that is never read outside there is no guard.
    """
    outputs = tuple(
        (size + sum(pad) - far * (window - 1) - 1) // step + 1
        for size, window, step, far, pad in zip(sizes, windows, steps, apart, pads, strict=True)
    )
    extents = {PIXELS: batch * prod(outputs), CHANNELS: channels}
    taps = [f"r{axis}" for axis in range(len(sizes))]
    extents |= dict(zip(taps, windows, strict=True))
    number, below = index.var(PIXELS), prod(outputs)
    address = index.scale(_digit(number, below, batch, extents), prod(sizes) * channels)
    guards: list[Guard] = []
    for axis, size in enumerate(sizes):
        below //= outputs[axis]
        place = index.add(
            index.scale(_digit(number, below, outputs[axis], extents), steps[axis]),
            index.scale(index.var(taps[axis]), apart[axis]),
            index.const(-pads[axis][0]),
        )
        rest = prod(sizes[axis + 1 :]) * channels
        address = index.add(address, index.scale(place, rest))
        guards += [Guard(place, 0, size)] if any(pads[axis]) else []
    address = index.add(address, index.var(CHANNELS))
    axes = {i: Axis(i, extent, 1) for i, extent in extents.items()}
    for i, tile in zip((PIXELS, CHANNELS), tiles, strict=True):
        axes[i] = Axis(i, extents[i], min(tile, extents[i]))
    load = Load("a", dtype, tuple(axes), Access("x", address, tuple(guards)), 0, "shared")
    buffer = Buffer("x", (batch, *sizes, channels), dtype, "input")
    points = {i: 1 for i in axes} | dict(zip((PIXELS, CHANNELS), tiles, strict=True))
    return load, buffer, axes, points


def _digit(number: Affine, below: int, count: int, extents: dict[str, int]) -> Affine:
    return index.mod(index.floordiv(number, below, extents), count, extents)


def random_images(random: Random) -> Made:
    """Such a load with windows that fit."""
    rank = random.choice((1, 2, 2, 2, 3))
    many = range(rank)
    windows = tuple(random.choice((1, 2, 3, 3, 5)) for _ in many)
    apart = tuple(random.choice((1, 1, 2)) for _ in many)
    spans = [far * (window - 1) + 1 for far, window in zip(apart, windows, strict=True)]
    pads = tuple((random.randrange(span), random.randrange(span)) for span in spans)
    sizes = tuple(span + random.randrange(9) for span in spans)
    steps = tuple(random.choice((1, 1, 2, 3)) for _ in many)
    channels, chunk = random.choice(((64, 64), (64, 32), (16, 16), (128, 64), (96, 64)))
    tile = random.choice((16, 24, 64, 128, 192))
    batch = random.randrange(1, 5)
    return images(batch, sizes, channels, windows, steps, apart, pads, (tile, chunk))
