"""Products whose left factor is windows of few channels, numbered through rows and images."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from cuda_cases import BF16, Case, case
from kernel_building import Body, Sample, at, buffers

from eqsat.graph.dtypes import DType, bfloat16, float16, float32
from eqsat.graph.index import add, const, floordiv, mod, scale, simplify, var
from eqsat.kernel.ir import Axis, Guard, Kernel, Store


@dataclass(frozen=True)
class Taken:
    """y[i, j] over k of x at pixel i and place k of a window, times w[j, k]; channels `first` or
    last in memory, `pad` zeros on each side.
    """

    images: int
    side: int
    channels: int
    window: int
    step: int
    pad: int
    rows: int
    threads: int
    first: bool = False
    dtype: DType = bfloat16

    @property
    def name(self) -> str:
        """What tells it from others."""
        shape = f"{self.images}x{self.side}x{self.channels}-{self.window}{self.step}{self.pad}"
        order = "first" if self.first else "last"
        return f"taken-{shape}-{order}-{self.dtype}-{self.rows}by{self.threads}"

    def sample(self) -> Sample:
        """The kernel and its answer."""
        side, channels, window, step = self.side, self.channels, self.window, self.step
        out = (side + 2 * self.pad - window) // step + 1
        pixels, points, columns = self.images * out * out, window * window * channels, 16
        order = (0, 3, 1, 2) if self.first else (0, 1, 2, 3)
        shape = (self.images, side, side, channels)
        x, w = buffers(self.dtype, x=tuple(shape[n] for n in order), w=(columns, points))
        (y,) = buffers(float32, y=(pixels, columns))
        i, k = var("i"), var("k")
        within = mod(k, window * window) if self.first else floordiv(k, channels)
        channel = floordiv(k, window * window) if self.first else mod(k, channels)
        places = [
            add(scale(pixel, step), place, const(-self.pad))
            for pixel, place in (
                (mod(floordiv(i, out), out), mod(floordiv(within, window), window)),
                (mod(i, out), mod(within, window)),
            )
        ]
        guards = tuple(Guard(place, 0, side) for place in places) if self.pad else ()
        place = (floordiv(i, out * out), *places, channel)
        b = Body(self.dtype)
        extents = {"i": pixels, "k": points}
        access = at(x, *(place[n] for n in order), guards=guards)
        b.load("a", "i k", replace(access, address=simplify(access.address, extents)))
        b.load("f", "j k", at(w, "j", "k"))
        b.dtype = float32
        b.contract("p", "i j", "k", "a", "f", BF16)
        grid = (Axis("i", pixels, self.rows), Axis("j", columns, columns))
        phase = b.phase(Store(at(y, "i", "j"), "p"))
        kernel = Kernel("taken", (x, w, y), grid, (Axis("k", points, points),), (phase,))
        random = np.random.default_rng(6)
        p = random.integers(-9, 10, shape).astype(self.dtype.numpy)
        q = random.integers(-3, 4, w.shape).astype(self.dtype.numpy)
        pads = ((0, 0), (self.pad, self.pad), (self.pad, self.pad), (0, 0))
        padded = np.pad(p.astype(float), pads)
        found = np.lib.stride_tricks.sliding_window_view(padded, (window, window), (1, 2))
        found = found[:, ::step, ::step]  # images, rows, columns, channels, places
        found = found if self.first else np.moveaxis(found, 3, 5)
        answer = found.reshape(pixels, points) @ q.astype(float).T
        return Sample(kernel, {"x": p.transpose(order), "w": q}, {"y": answer}, 1e-2)


def taken_cases() -> Iterator[Case]:
    """Rows that fill threads, or leave some to places in windows or idle; windows of odd sizes."""
    for one in (
        Taken(2, 9, 3, 3, 1, 1, 32, 128),
        Taken(2, 9, 3, 3, 1, 1, 96, 128),
        Taken(3, 8, 3, 3, 1, 1, 96, 192),
        Taken(3, 8, 5, 3, 2, 1, 64, 256),
        Taken(2, 10, 1, 5, 1, 0, 128, 64),
        Taken(2, 10, 1, 5, 1, 2, 48, 128),
        Taken(2, 9, 6, 3, 2, 0, 32, 256),
        Taken(2, 9, 6, 3, 1, 1, 64, 128),
        Taken(2, 9, 4, 3, 1, 1, 64, 192),
        Taken(2, 9, 8, 3, 1, 1, 32, 128),
        Taken(2, 9, 3, 7, 2, 3, 64, 128, dtype=float16),
        Taken(2, 9, 3, 3, 1, 1, 32, 128, first=True),
        Taken(3, 8, 3, 3, 1, 1, 96, 192, first=True),
        Taken(2, 10, 5, 3, 2, 1, 64, 128, first=True, dtype=float16),
    ):
        yield case(one.name, one.sample(), one.threads)
