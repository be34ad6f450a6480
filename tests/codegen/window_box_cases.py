"""Convolutions by warpgroups whose windows lie in one box: each place of an image once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from cuda_cases import Case, case
from kernel_building import Body, Sample, at
from numpy.lib.stride_tricks import sliding_window_view
from pipeline_cases import by, integers, wide

from eqsat.graph import index
from eqsat.graph.dtypes import DType, bfloat16, float32
from eqsat.graph.index import Affine
from eqsat.kernel.ir import Axis, Buffer, Carry, Guard, Kernel, Store

ALONG = "dhw"  # the last names are of an image's axes


@dataclass(frozen=True)
class Images:
    """x[n, *sizes, c] and windows over it: places of each axis, steps, and what is padded."""

    batch: int
    sizes: tuple[int, ...]
    channels: int
    out: int
    windows: tuple[int, ...]
    steps: tuple[int, ...] = ()
    apart: int = 1
    pad: int = 0

    @property
    def axes(self) -> str:
        return ALONG[-len(self.sizes) :]

    def step(self, axis: int) -> int:
        return self.steps[axis] if self.steps else 1

    @property
    def results(self) -> list[int]:
        """Outputs along each axis."""
        spans = [self.apart * (window - 1) + 1 for window in self.windows]
        sizes = enumerate(zip(self.sizes, spans, strict=True))
        return [(size + 2 * self.pad - span) // self.step(n) + 1 for n, (size, span) in sizes]

    def place(self, axis: int) -> Affine:
        """What a place in a window of an output reads."""
        name = self.axes[axis]
        moved = index.scale(index.var(name), self.step(axis))
        within = index.scale(index.var(f"r{name}"), self.apart)
        return index.add(moved, within, index.const(-self.pad))

    def answer(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        rank = len(self.sizes)
        pads = [(0, 0), *[(self.pad, self.pad)] * rank, (0, 0)]
        spans = [self.apart * (window - 1) + 1 for window in self.windows]
        seen = sliding_window_view(np.pad(wide(x), pads), spans, tuple(range(1, rank + 1)))
        taken = [slice(None, None, self.step(n)) for n in range(rank)]
        seen = seen[(slice(None), *taken, slice(None), *[slice(None, None, self.apart)] * rank)]
        return np.tensordot(
            seen, wide(w), (range(rank + 1, 2 * rank + 2), (rank + 1, *range(1, rank + 1)))
        )


def convolved(
    images: Images,
    tiles: Mapping[str, int],
    columns: int,
    dtype: DType = bfloat16,
    order: Sequence[str] = "owc",
) -> Sample:
    """y[n, *, o] = sum of the windows of x times weights that lie in an order: of o, of all places
    in windows (w), of channels; tiles of one point where none is given.
    """
    names, taps = images.axes, [f"r{name}" for name in images.axes]
    extents = {"n": images.batch, **dict(zip(names, images.results, strict=True)), "o": images.out}
    extents |= {**dict(zip(taps, images.windows, strict=True)), "c": images.channels}
    axes = {i: Axis(i, size, min(tiles.get(i, 1), size)) for i, size in extents.items()}
    x = Buffer("x", (images.batch, *images.sizes, images.channels), dtype, "input")
    lies = [name for part in order for name in (taps if part == "w" else [part])]
    w = Buffer("w", tuple(extents[name] for name in lies), dtype, "input")
    y = Buffer("y", (images.batch, *images.results, images.out), float32, "output")
    places = [images.place(axis) for axis in range(len(names))]
    sizes = zip(places, images.sizes, strict=True)
    guards = tuple(Guard(place, 0, size) for place, size in sizes if images.pad)
    results, over = ("n", *names, "o"), (*taps, "c")
    b, end = Body(dtype), Body()
    b.load("a", " ".join(("n", *names, *over)), at(x, "n", *places, "c", guards=guards))
    b.load("f", " ".join(("o", *over)), at(w, *lies))
    b.dtype = float32
    b.contract("m", " ".join(results), " ".join(over), "a", "f", by(columns, dtype))
    b.update("next", " ".join(results), "acc", "sum", "m")
    stream = tuple(axes[i] for i in over if axes[i].count > 1)
    inner = tuple(axes[i] for i in over if axes[i].count == 1)
    grid = tuple(axes[i] for i in results)
    if stream:
        carry = Carry("acc", float32, results, "sum")
        first = b.phase(stream=stream, carries=(carry,))
        phases = (first, end.phase(Store(at(y, *results), "acc")))
    else:
        b.statements.pop()
        phases = (b.phase(Store(at(y, *results), "m")),)
    kernel = Kernel("windows", (x, w, y), grid, inner, phases)
    p, q = integers(x.shape, w.shape, dtype=dtype)
    weights = q.transpose([lies.index(name) for name in ("o", *taps, "c")])
    return Sample(kernel, {"x": p, "w": q}, {"y": images.answer(p, weights)}, 1e-6)


WHOLE = {"rd": 9, "rh": 9, "rw": 9}


def window_box_cases() -> list[Case]:
    """Rows of eight pixels and of many; windows whole and in part; steps, padding, dtypes."""
    square = Images(2, (11, 13), 64, 24, (3, 3), pad=1)
    line = Images(2, (150,), 64, 16, (5,), pad=2)
    eight, many = {"h": 8, "w": 8, "o": 16}, {"h": 1, "w": 64, "o": 16}
    cases = [
        ("eights", square, eight | WHOLE | {"c": 64}, 16, {}, 128),
        ("eights-streamed", square, eight | WHOLE | {"c": 32}, 16, {}, 128),
        ("rows-of-windows", square, eight | {"h": 16, "rw": 3, "c": 64}, 16, {}, 256),
        ("lines", Images(2, (5, 70), 64, 16, (3, 3), pad=1), many | WHOLE | {"c": 64}, 16, {}, 128),
        ("steps", Images(2, (17, 9), 64, 16, (3, 3), (2, 1), pad=1), eight | WHOLE | {"c": 64}, 16,
         {}, 128),
        ("apart", Images(1, (12, 12), 64, 16, (3, 2), apart=2), eight | WHOLE | {"c": 64}, 16, {},
         128),
        ("signal", line, {"w": 128, "rw": 5, "c": 32, "o": 16}, 16, {}, 128),
        ("volume", Images(1, (3, 9, 9), 32, 16, (2, 3, 3), pad=1),
         {"d": 2, **eight, **WHOLE, "c": 32}, 16, {}, 128),
        ("few-channels", Images(2, (9, 9), 16, 16, (3, 3), pad=1), eight | WHOLE | {"c": 16}, 16,
         {}, 128),
        ("part-of-channels", Images(2, (9, 9), 48, 16, (3, 3), pad=1), eight | WHOLE | {"c": 32},
         16, {}, 128),
        ("tf32", Images(2, (9, 9), 32, 16, (3, 3), pad=1), eight | WHOLE | {"c": 32}, 16,
         {"dtype": float32}, 128),
        ("columns-along-memory", square, eight | WHOLE | {"c": 64}, 16, {"order": "wco"}, 128),
        ("turned", Images(2, (17, 9), 64, 64, (3, 3), pad=1),
         {"h": 16, "w": 8, "o": 64, **WHOLE, "c": 64}, 128, {}, 128),
    ]  # fmt: skip
    return [
        case(f"windows-{name}", convolved(images, tiles, columns, **more), threads, 2)
        for name, images, tiles, columns, more, threads in cases
    ]
