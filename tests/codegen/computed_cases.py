"""Kernels with factors that a block computes in shared memory of what lies in memory."""

from collections.abc import Iterator

import numpy as np
from cuda_cases import BF16, Case, case
from kernel_building import Body, Sample, at, buffers

from eqsat.graph.dtypes import bfloat16, float32, int8
from eqsat.kernel.ir import Axis, Buffer, Carry, Kernel, Store


def dequantised(m: int, n: int, k: int, tiles: tuple[int, int, int], shift: int) -> Sample:
    """y[i,j] = sum_l x[i,l] bf16(w[l,j] - shift) in a stream over l; w in 8 bits"""
    x = Buffer("x", (m, k), bfloat16, "input")
    w = Buffer("w", (k, n), int8, "input")
    (y,) = buffers(y=(m, n))
    b, end = Body(), Body()
    b.load("a", "i l", at(x, "i", "l"), dtype=bfloat16, memory="shared")
    b.load("q", "l j", at(w, "l", "j"), dtype=int8)
    b.map("f", "l j", "cast", "q", dtype=bfloat16)
    if shift:
        b.literal("c", float(shift), dtype=bfloat16)
        b.map("g", "l j", "sub", "f", "c", dtype=bfloat16)
    b.contract("p", "i j", "l", "a", "g" if shift else "f", BF16)
    b.update("next", "i j", "acc", "sum", "p")
    carry = Carry("acc", float32, ("i", "j"), "sum")
    stream = b.phase(stream=(Axis("l", k, tiles[2]),), carries=(carry,))
    grid = (Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    phases = (stream, end.phase(Store(at(y, "i", "j"), "acc")))
    random = np.random.default_rng(m + n + k)
    p = random.integers(-8, 8, (m, k)).astype(bfloat16.numpy)
    q = random.integers(-128, 128, (k, n)).astype(np.int8)
    answer = p.astype(np.float64) @ (q.astype(np.float64) - shift)
    kernel = Kernel("dequantised", (x, w, y), grid, (), phases)
    return Sample(kernel, {"x": p, "w": q}, {"y": answer}, 1e-6)


def computed_cases() -> Iterator[Case]:
    """Whole and partial tiles, one chunk and several, and rows of which no vector is aligned."""
    for m, n, k, tiles, shift, threads, stages in (
        (16, 128, 256, (16, 64, 64), 0, 128, 3),
        (16, 128, 256, (16, 64, 64), 3, 128, 1),
        (7, 72, 200, (16, 64, 64), 3, 96, 2),  # no whole tiles, and more warps than columns
        (33, 40, 64, (32, 32, 64), 0, 64, 2),  # one chunk
        (9, 40, 99, (16, 32, 32), 3, 64, 3),  # rows of which no element is copied by itself
        (5, 33, 100, (16, 32, 32), 0, 64, 2),  # rows of which no vector is aligned
    ):
        sample = dequantised(m, n, k, tiles, shift)
        yield case(f"dequantised-{m}x{n}x{k}-{shift}", sample, threads, stages)
