"""Loads of pixels: windows over images of any shape, their outputs one index."""

from dataclasses import replace
from math import prod
from random import Random

import numpy as np
from cuda_cases import Case, case
from kernel_building import Body, Sample, at
from pipeline_cases import by, integers, wide

from eqsat.graph import index
from eqsat.graph.dtypes import DType, bfloat16, float32
from eqsat.graph.index import Affine, evaluate
from eqsat.kernel.ir import Access, Axis, Buffer, Carry, Guard, Kernel, Load, Store

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
    backwards: bool = False,
) -> Made:
    """The load of a tile of pixels and channels of x[n, *sizes, c]: each pixel of the outputs reads
    step i + apart r - pad along each axis, its window from the other end where it is walked
    `backwards`; of an axis that is never read outside there is no guard.
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
            index.scale(index.var(taps[axis]), -apart[axis] if backwards else apart[axis]),
            index.const(apart[axis] * (windows[axis] - 1) if backwards else 0),
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
    size = (batch, sizes, channels, windows, steps, apart, pads, (tile, chunk))
    return images(*size, backwards=random.random() < 0.3)


def read(load: Load, memory: np.ndarray, values: dict[str, np.ndarray]) -> np.ndarray:
    """The access at points, zero where a guard fails."""
    exists = np.ones(np.broadcast_shapes(*(np.shape(v) for v in values.values())), bool)
    for guard in load.access.guards:
        value = evaluate(guard.expression, values)
        exists &= (guard.lower <= value) & (value < guard.upper)
    address = np.where(exists, evaluate(load.access.address, values), 0)
    return np.where(exists, memory[np.clip(address, 0, memory.size - 1)], 0)


def convolved(made: Made, columns: int, stored: DType) -> Sample:
    """y[p, o] = sum of the pixels' windows times w[o, window, c], in a stream over channels and
    places in the window.
    """
    load, x, axes, _ = made
    taps = [i for i in axes if i not in (PIXELS, CHANNELS)]
    out = columns + columns // 2  # a tile is partial
    extents = [axes[i].extent for i in (*taps, CHANNELS)]
    w = Buffer("w", (out, *extents), bfloat16, "input")
    y = Buffer("y", (axes[PIXELS].extent, out), stored, "output")
    b, end, over = Body(bfloat16), Body(), f"{CHANNELS} {' '.join(taps)}"
    b.statements.append(replace(load, indices=(PIXELS, CHANNELS, *taps)))
    b.load("f", f"o {over}", at(w, "o", *taps, CHANNELS), memory="shared")
    b.dtype = float32
    b.contract("m", f"{PIXELS} o", over, "a", "f", by(columns))
    b.update("next", f"{PIXELS} o", "acc", "sum", "m")
    carry = Carry("acc", float32, (PIXELS, "o"), "sum")
    stream = b.phase(stream=(axes[CHANNELS], *(axes[i] for i in taps)), carries=(carry,))
    end_phase = end.phase(Store(at(y, PIXELS, "o"), "acc"))
    grid = (axes[PIXELS], Axis("o", out, columns))
    kernel = Kernel("convolution", (x, w, y), grid, (), (stream, end_phase))
    p, q = integers(x.shape, w.shape, dtype=bfloat16)
    points = np.indices([axes[i].extent for i in (PIXELS, *taps, CHANNELS)], sparse=True)
    values = dict(zip((PIXELS, *taps, CHANNELS), points, strict=True))
    seen = read(load, wide(p).ravel(), values)
    answer = np.tensordot(seen, wide(q), (tuple(range(1, seen.ndim)), tuple(range(1, q.ndim))))
    return Sample(kernel, {"x": p, "w": q}, {"y": answer}, 1e-6)


def pixel_cases() -> list[Case]:
    """Convolutions over pixels: partial tiles, steps, small images, chunks."""
    wanted = (
        ("same", (2, (9, 7), 64, (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1))), (64, 64), 64),
        ("step", (2, (9, 12), 32, (3, 3), (2, 2), (1, 1), ((1, 1), (0, 1))), (64, 32), 32),
        ("apart", (3, (8, 8), 64, (3, 3), (1, 1), (2, 1), ((2, 2), (1, 1))), (64, 32), 64),
        ("line", (3, (37,), 64, (5,), (1,), (1,), ((2, 2),)), (64, 64), 64),
        ("volume", (1, (4, 5, 6), 64, (3,) * 3, (1,) * 3, (1,) * 3, ((1, 1),) * 3), (64, 64), 64),
        ("valid", (2, (9, 9), 96, (3, 3), (1, 1), (1, 1), ((0, 0), (0, 0))), (64, 64), 64),
    )  # fmt: skip
    return [
        case(f"pixels-{name}", convolved(images(*size, tiles), columns, float32), 128, 3)
        for name, size, tiles, columns in wanted
    ]
