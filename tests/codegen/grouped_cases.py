"""Products over windows of several groups of channels beside each other, from shared memory."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from cuda_cases import BF16, Case, case
from kernel_building import Body, Sample, at, buffers

from eqsat.graph import index
from eqsat.graph.dtypes import DType, bfloat16, float32
from eqsat.kernel.ir import Axis, Buffer, Carry, Guard, Kernel, Phase, Store


@dataclass(frozen=True)
class Grouped:
    """y[h,w,g,o] of x[h,w,g,c] and f[g,o,c,r,s], or of both with h and w last: `first`; `tiles` of
    h, w, g, o; `stream` of r, s.
    """

    height: int
    width: int
    groups: int
    into: int
    out: int
    window: tuple[int, int]
    tiles: tuple[int, int, int, int]
    step: int = 1
    pad: int = 1
    first: bool = False
    operation: str = ""
    stream: dict[str, int] = field(default_factory=dict)
    dtype: DType = bfloat16
    threads: int = 64

    @property
    def label(self) -> str:
        sizes = (self.height, self.width, self.groups, self.into, self.out, *self.window)
        kind = "first" if self.first else "last"
        chunks = "".join(f"{n}{size}" for n, size in self.stream.items())
        tiles = "x".join(map(str, self.tiles))
        how = "mma" if self.operation else str(self.dtype)
        return f"{'x'.join(map(str, sizes))}-{self.step}{self.pad}-{kind}-{how}-{tiles}-{chunks}"

    def sample(self) -> Sample:
        """The kernel, and its answer."""
        r, s = self.window
        down = (self.height + 2 * self.pad - r) // self.step + 1
        right = (self.width + 2 * self.pad - s) // self.step + 1
        order = (2, 3, 0, 1) if self.first else (0, 1, 2, 3)
        sizes = (self.height, self.width, self.groups, self.into)
        results = (down, right, self.groups, self.out)
        x, f = buffers(
            self.dtype,
            x=tuple(sizes[n] for n in order),
            f=(self.groups, self.out, self.into, r, s),
        )
        y = Buffer("y", tuple(results[n] for n in order), float32, "output")
        places = [
            index.add(
                index.scale(index.var(a), self.step),
                index.add(index.var(b), index.const(-self.pad)),
            )
            for a, b in ("hr", "ws")
        ]
        guards = tuple(Guard(place, 0, size) for place, size in zip(places, sizes[:2], strict=True))
        b, end = Body(self.dtype), Body(float32)
        read = at(x, *((*places, "g", "c")[n] for n in order), guards=guards if self.pad else ())
        b.load("a", "h w g c r s", read, memory="shared")
        b.load("k", "g o c r s", at(f, *"gocrs"), memory="shared")
        b.dtype = float32
        b.contract("p", "h w g o", "c r s", "a", "k", self.operation)
        stored = Store(at(y, *("hwgo"[n] for n in order)), "p" if not self.stream else "sum")
        grid = tuple(Axis(*one) for one in zip("hwgo", results, self.tiles, strict=True))
        whole = {"c": self.into, "r": r, "s": s}
        inner = tuple(Axis(n, size, size) for n, size in whole.items() if n not in self.stream)
        phases: tuple[Phase, ...] = (b.phase(stored),)
        if self.stream:
            b.update("next", "h w g o", "sum", "sum", "p")
            carry = Carry("sum", float32, tuple("hwgo"), "sum")
            stream = tuple(Axis(n, whole[n], size) for n, size in self.stream.items())
            phases = (b.phase(stream=stream, carries=(carry,)), end.phase(stored))
        random = np.random.default_rng(5)
        p = random.integers(-4, 5, sizes).astype(self.dtype.numpy)
        q = random.integers(-3, 4, f.shape).astype(self.dtype.numpy)
        pads = ((self.pad, self.pad),) * 2 + ((0, 0),) * 2
        padded = np.pad(p.astype(float), pads)
        answer = np.zeros(results)
        for i in range(r):
            for j in range(s):
                part = padded[
                    i : i + self.step * down : self.step, j : j + self.step * right : self.step
                ]
                answer += np.einsum(
                    "hwgc,goc->hwgo", part[:down, :right], q[..., i, j].astype(float)
                )
        kernel = Kernel("grouped", (x, f, y), grid, inner, phases)
        return Sample(kernel, {"x": p.transpose(order), "f": q}, {"y": answer.transpose(order)})


def grouped_cases() -> Iterator[Case]:
    """Steps, windows, streams of their places; tiles that fit and tiles that do not."""
    shapes = [
        Grouped(9, 13, 5, 4, 4, (3, 3), (4, 8, 4, 4)),
        Grouped(9, 13, 5, 4, 4, (3, 3), (4, 8, 4, 4), dtype=float32),
        Grouped(8, 16, 4, 4, 4, (3, 2), (4, 4, 4, 4), step=2, pad=0),
        Grouped(10, 18, 1, 4, 2, (3, 3), (4, 16, 1, 2), pad=0, threads=96),
        Grouped(6, 34, 1, 2, 1, (3, 3), (1, 32, 1, 1), pad=0, threads=96, first=True),
        Grouped(9, 13, 5, 4, 4, (3, 3), (4, 8, 4, 4), stream={"r": 1}),
        Grouped(9, 13, 3, 6, 5, (3, 5), (4, 8, 2, 5), pad=2, stream={"s": 1}),
        Grouped(9, 13, 3, 4, 4, (5, 3), (4, 8, 2, 4), stream={"r": 2}),
        Grouped(9, 13, 5, 4, 4, (3, 3), (4, 8, 2, 4), first=True),
        Grouped(9, 13, 5, 4, 4, (3, 3), (4, 8, 2, 4), first=True, step=2, stream={"s": 1}),
        Grouped(9, 18, 3, 8, 8, (3, 3), (4, 16, 2, 8), operation=BF16),
        Grouped(9, 18, 3, 8, 8, (3, 3), (2, 16, 3, 8), step=2, operation=BF16),
        Grouped(9, 18, 3, 8, 8, (3, 3), (2, 16, 2, 8), operation=BF16, stream={"r": 1}),
        Grouped(13, 33, 1, 16, 8, (5, 4), (2, 16, 1, 8), step=2, operation=BF16, stream={"r": 1}),
        Grouped(9, 69, 1, 16, 8, (3, 5), (2, 16, 1, 8), step=4, pad=2, operation=BF16),
        Grouped(7, 18, 1, 16, 16, (3, 19), (2, 16, 1, 16), pad=9, operation=BF16),
        Grouped(9, 18, 3, 16, 12, (3, 3), (2, 16, 2, 16), operation=BF16, stream={"s": 1}),
        Grouped(9, 18, 3, 16, 8, (3, 3), (2, 16, 2, 8), first=True, operation=BF16),
    ]
    for one in shapes:
        for stages in (1, 3) if one.stream else (1,):
            yield case(f"grouped-{one.label}-{stages}", one.sample(), one.threads, stages)
