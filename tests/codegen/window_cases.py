"""Kernels whose windows overlap: extremes and sums of products, channels first and last."""

from collections.abc import Iterator

import numpy as np
from cuda_cases import Case, case
from kernel_building import Body, Sample, at, buffers

from eqsat.graph import index
from eqsat.graph.dtypes import DType, bfloat16, float32
from eqsat.kernel.ir import Axis, Guard, Kernel, Store

Size = tuple[int, int, int]


def windowed(
    size: Size, window: int, step: int, pad: int, apart: int, tiles: Size, kind: str, dtype: DType
) -> Sample:
    """y[c,i,j] over r, s of x[c, step i + apart r - pad, step j + apart s - pad]: the largest, or
    with weights w[c,r,s] the sum; of `last`, y[i,j,c] of x[..., c]
    """
    channels, height, width = size
    last, weighted = "last" in kind, "sum" in kind
    reach = apart * (window - 1) + 1
    down, right = ((n + 2 * pad - reach) // step + 1 for n in (height, width))
    order = (1, 2, 0) if last else (0, 1, 2)
    x, y = buffers(
        dtype,
        x=tuple(size[n] for n in order),
        y=tuple((channels, down, right)[n] for n in order),
    )
    (w,) = buffers(dtype, w=(channels, window, window))
    rows, columns = (
        index.add(
            index.scale(index.var(a), step), index.scale(index.var(b), apart), index.const(-pad)
        )
        for a, b in ("ir", "js")
    )
    guards = (Guard(rows, 0, height), Guard(columns, 0, width)) if pad else ()
    place, stored = ("c", rows, columns), ("c", "i", "j")
    b = Body(dtype)
    fill = 0 if weighted else float(np.finfo(np.float32).min)
    access = at(x, *(place[n] for n in order), guards=guards)
    b.load("a", "c i j r s", access, fill=fill)
    if weighted:
        b.load("f", "c r s", at(w, "c", "r", "s"))
        b.dtype = float32
        b.contract("m", "c i j", "r s", "f", "a")
    else:
        b.reduce("m", "c i j", "max", "r s", "a")
    phase = b.phase(Store(at(y, *(stored[n] for n in order)), "m"))
    extents = dict(zip("cij", (channels, down, right), strict=True))
    grid = tuple(Axis(n, extents[n], t) for n, t in zip("cij", tiles, strict=True))
    inner = (Axis("r", window, window), Axis("s", window, window))
    kernel = Kernel("windowed", (x, w, y) if weighted else (x, y), grid, inner, (phase,))
    random = np.random.default_rng(4)
    p = random.integers(-9, 10, size).astype(dtype.numpy)
    q = random.integers(-3, 4, w.shape).astype(dtype.numpy)
    padded = np.pad(p.astype(float), ((0, 0), (pad, pad), (pad, pad)), constant_values=fill)
    parts = [
        padded[:, r : r + step * down : step, s : s + step * right : step][:, :down, :right]
        * (q[:, r // apart, s // apart, None, None] if weighted else 1)
        for r in range(0, reach, apart)
        for s in range(0, reach, apart)
    ]
    answer = np.sum(parts, axis=0, dtype=float) if weighted else np.max(parts, axis=0)
    inputs = {"x": p.transpose(order)} | ({"w": q} if weighted else {})
    return Sample(kernel, inputs, {"y": answer.transpose(order)}, 1e-2)


def along(
    size: tuple[int, int],
    window: int,
    pad: int,
    apart: int,
    tiles: tuple[int, int],
    kind: str,
    dtype: DType,
) -> Sample:
    """y[i,j] over s of x[i, j + apart s - pad]: the largest, or with weights w[s] the sum"""
    rows, width = size
    right = width + 2 * pad - apart * (window - 1)
    x, y, w = buffers(dtype, x=size, y=(rows, right), w=(window,))
    column = index.add(index.var("j"), index.scale(index.var("s"), apart), index.const(-pad))
    guards = (Guard(column, 0, width),) if pad else ()
    fill = 0 if kind == "sum" else float(np.finfo(np.float32).min)
    b = Body(dtype)
    b.load("a", "i j s", at(x, "i", column, guards=guards), fill=fill)
    if kind == "sum":
        b.load("f", "s", at(w, "s"))
        b.dtype = float32
        b.contract("m", "i j", "s", "f", "a")
    else:
        b.reduce("m", "i j", "max", "s", "a")
    phase = b.phase(Store(at(y, "i", "j"), "m"))
    grid = (Axis("i", rows, tiles[0]), Axis("j", right, tiles[1]))
    used = (x, w, y) if kind == "sum" else (x, y)
    kernel = Kernel("along", used, grid, (Axis("s", window, window),), (phase,))
    random = np.random.default_rng(window)
    p = random.integers(-9, 10, size).astype(dtype.numpy)
    q = random.integers(-3, 4, window).astype(dtype.numpy)
    padded = np.pad(p.astype(float), ((0, 0), (pad, pad)), constant_values=fill)
    parts = [padded[:, apart * s : apart * s + right] for s in range(window)]
    if kind == "sum":
        parts = [part * float(weight) for part, weight in zip(parts, q, strict=True)]
    answer = np.sum(parts, axis=0) if kind == "sum" else np.max(parts, axis=0)
    inputs = {"x": p} | ({"w": q} if kind == "sum" else {})
    return Sample(kernel, inputs, {"y": answer}, 1e-2)


def long_cases() -> Iterator[Case]:
    """Long windows along memory: rows that are aligned and that are not, ends at any place, places
    apart, tiles that are longer than their threads take at once.
    """
    for kind in ("max", "sum"):
        for dtype in (float32, bfloat16):
            for size, window, pad, apart, tiles in (
                ((3, 600), 31, 0, 1, (1, 256)),
                ((3, 600), 9, 4, 1, (2, 256)),
                ((2, 640), 17, 5, 2, (1, 256)),
                ((3, 333), 12, 3, 1, (1, 128)),
                ((1, 1030), 25, 0, 1, (1, 512)),
                ((2, 40), 33, 16, 1, (2, 512)),
            ):
                label = f"along-{kind}-{dtype}-{window}{pad}{apart}-{size[1]}"
                yield case(label, along(size, window, pad, apart, tiles, kind, dtype), 64)


def window_cases() -> Iterator[Case]:
    """Steps, dilations, with padding and without; tiles that fit and tiles that do not."""
    shapes = ((3, 1, 1, 1), (3, 2, 1, 1), (3, 2, 0, 1), (5, 1, 2, 1), (3, 1, 2, 2), (2, 2, 0, 1))
    for kind in ("max", "sum", "max-last", "sum-last"):
        for dtype in (float32, bfloat16):
            for window, step, pad, apart in shapes:
                for size, tiles in (((3, 17, 21), (2, 8, 32)), ((8, 16, 40), (4, 4, 16))):
                    label = f"{kind}-{dtype}-{window}{step}{pad}{apart}-{size[1]}"
                    sample = windowed(size, window, step, pad, apart, tiles, kind, dtype)
                    yield case(label, sample, 64)
    for dtype in (float32, bfloat16):  # too large to hold at once
        for window, step, size, tiles in (
            (7, 1, (16, 12, 19), (16, 8, 8)),
            (7, 1, (16, 12, 19), (16, 4, 16)),
            (5, 2, (24, 23, 21), (16, 8, 8)),
        ):
            sample = windowed(size, window, step, window // 2, 1, tiles, "sum-last", dtype)
            yield case(f"turns-{dtype}-{window}{step}-{size[1]}x{tiles[2]}", sample, 64)
