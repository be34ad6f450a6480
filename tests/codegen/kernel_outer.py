"""Sample kernels of reductions whose results share what they are computed of, as products do."""

import numpy as np
from kernel_building import TILES, Body, Sample, Tiles, at, buffers, normal, wide

from eqsat.graph.dtypes import bfloat16, float32
from eqsat.kernel.ir import Axis, Carry, Kernel, Store


def farthest(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """y[i,j] = max_l |x[i,l] - w[j,l]| of bfloat16, in a stream over l"""
    x, w = buffers(bfloat16, x=(m, k), w=(n, k))
    (y,) = buffers(y=(m, n))
    b, end = Body(bfloat16), Body()
    b.load("a", "i l", at(x, "i", "l"))
    b.load("f", "j l", at(w, "j", "l"))
    b.dtype = float32
    b.map("p", "i l", "cast", "a")
    b.map("q", "j l", "cast", "f")
    b.map("apart", "i j l", "sub", "p", "q")
    b.map("far", "i j l", "abs", "apart")
    b.reduce("most", "i j", "max", "l", "far")
    b.update("next", "i j", "acc", "max", "most")
    carry = Carry("acc", float32, ("i", "j"), "max")
    stream = b.phase(stream=(Axis("l", k, tiles[2]),), carries=(carry,))
    grid = (Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    phases = (stream, end.phase(Store(at(y, "i", "j"), "acc")))
    kernel = Kernel("farthest", (x, w, y), grid, (), phases)
    p, q = normal((m, k), (n, k), dtype=bfloat16)
    answer = abs(wide(p)[:, None] - wide(q)[None]).max(-1)
    return Sample(kernel, {"x": p, "w": q}, {"y": answer})


def scaled_distances(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """y[i,j] = sum_l s[l] (r[i] x[i,l] - w[l,j])^2: three sides, one of them computed"""
    x, r, s, w, y = buffers(x=(m, k), r=(m,), s=(k,), w=(k, n), y=(m, n))
    b = Body()
    b.load("a", "i l", at(x, "i", "l"))
    b.load("row", "i", at(r, "i"))
    b.load("weight", "l", at(s, "l"))
    b.load("f", "l j", at(w, "l", "j"))
    b.map("p", "i l", "mul", "a", "row")
    b.map("apart", "i j l", "sub", "p", "f")
    b.map("square", "i j l", "mul", "apart", "apart")
    b.map("term", "i j l", "mul", "square", "weight")
    b.reduce("d", "i j", "sum", "l", "term")
    grid = (Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    body = b.phase(Store(at(y, "i", "j"), "d"))
    kernel = Kernel("scaled_distances", (x, r, s, w, y), grid, (Axis("l", k, k),), (body,))
    p, q, t, v = normal((m, k), (m,), (k,), (k, n))
    apart = (wide(p) * wide(q)[:, None])[:, :, None] - wide(v)[None]
    answer = (apart**2 * wide(t)[None, :, None]).sum(1)
    return Sample(kernel, {"x": p, "r": q, "s": t, "w": v}, {"y": answer}, 1e-4)


def distances(m: int, n: int) -> Sample:
    """y[i] = sum_j rsqrt(1 + sum_c (x[i,c] - z[j,c])^2) of three coordinates c"""
    x, z, y = buffers(x=(m, 3), z=(n, 3), y=(m,))
    b, end = Body(), Body()
    b.load("p", "i c", at(x, "i", "c"))
    b.load("q", "j c", at(z, "j", "c"))
    b.literal("one", 1.0)
    b.map("d", "i j c", "sub", "p", "q")
    b.map("e", "i j c", "mul", "d", "d")
    b.reduce("f", "i j", "sum", "c", "e")
    b.map("h", "i j", "rsqrt", b.map("g", "i j", "add", "f", "one"))
    b.reduce("s", "i", "sum", "j", "h")
    b.update("next", "i", "acc", "sum", "s")
    phase = b.phase(stream=(Axis("j", n, 8),), carries=(Carry("acc", float32, ("i",), "sum"),))
    phases = (phase, end.phase(Store(at(y, "i"), "acc")))
    first, other = normal((m, 3), (n, 3))
    squares = (first.astype("d")[:, None] - other.astype("d")) ** 2
    answer = (1 / np.sqrt(1 + squares.sum(-1))).sum(-1)
    kernel = Kernel("distances", (x, z, y), (Axis("i", m, 16),), (Axis("c", 3, 3),), phases)
    return Sample(kernel, {"x": first, "z": other}, {"y": answer}, 1e-4)
