"""Sample kernels that scan: states carried from step to step, and rows that lie in a tile."""

import numpy as np
from kernel_building import TILES, Body, Sample, Tiles, at, buffers, normal, wide

from eqsat.graph.dtypes import float32
from eqsat.graph.meanings import affine_scan
from eqsat.kernel.ir import Axis, Carry, Kernel, Scan, Store


def recurrence(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """h[t,i,s] = a[t,i] w[i,s] h[t-1,i,s] + x[t,i] u[t,s]; y[t,i] = sum_s h[t,i,s] u[t,s]"""
    a, x, w, u, y = buffers(a=(n, m), x=(n, m), w=(m, k), u=(n, k), y=(n, m))
    start, b = Body(), Body()
    start.load("w0", "i s", at(w, "i", "s"))
    b.load("a0", "t i", at(a, "t", "i"))
    b.map("f", "t i s", "mul", "a0", "w0")
    b.load("x0", "t i", at(x, "t", "i"))
    b.load("u0", "t s", at(u, "t", "s"))
    b.map("g", "t i s", "mul", "x0", "u0")
    b.reduce("f1", "i s", "prod", "t", "f")
    b.reduce("g1", "i s", "prod", "t", "g")
    b.update("next", "i s", "h", "sum", "g1", "f1")
    b.map("p", "t i s", "mul", "next", "u0")
    b.reduce("sum", "t i", "sum", "s", "p")
    carry = Carry("h", float32, ("i", "s"), "sum")
    stream = b.phase(Store(at(y, "t", "i"), "sum"), stream=(Axis("t", n, 1),), carries=(carry,))
    kernel = Kernel(
        "recurrence",
        (a, x, w, u, y),
        (Axis("i", m, tiles[0]),),
        (Axis("s", k, k),),
        (start.phase(), stream),
    )
    arrays = normal((n, m), (n, m), (m, k), (n, k))
    arrays[0] *= 0.5
    state, answer = np.zeros((m, k)), np.zeros((n, m))
    factor, drive, weight, read = map(wide, arrays)
    for t in range(n):
        state = factor[t, :, None] * weight * state + drive[t, :, None] * read[t]
        answer[t] = state @ read[t]
    return Sample(kernel, dict(zip("axwu", arrays, strict=True)), {"y": answer}, 1e-4)


def row_scan(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """y[i,j] = sum_{q <= j} x[i,q], rows whole in a tile"""
    x, y = buffers(x=(m, n), y=(m, n))
    b = Body()
    b.load("a", "i j", at(x, "i", "j"))
    b.add(Scan, "c", "i j", "sum", "j", "a")
    phase = b.phase(Store(at(y, "i", "j"), "c"))
    (a,) = normal((m, n))
    kernel = Kernel("row_scan", (x, y), (Axis("i", m, tiles[0]),), (Axis("j", n, n),), (phase,))
    return Sample(kernel, {"x": a}, {"y": wide(a).cumsum(1)}, 1e-4)


def row_recurrence(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """y[i,j] = a[i,j] * y[i,j-1] + x[i,j], rows whole in a tile"""
    a, x, y = buffers(a=(m, n), x=(m, n), y=(m, n))
    b = Body()
    b.load("f", "i j", at(a, "i", "j"))
    b.load("o", "i j", at(x, "i", "j"))
    b.add(Scan, "h", "i j", "sum", "j", "o", "f")
    phase = b.phase(Store(at(y, "i", "j"), "h"))
    arrays = normal((m, n), (m, n))
    arrays[0][:, ::3] *= 1e-3
    grid, inner = (Axis("i", m, tiles[0]),), (Axis("j", n, n),)
    kernel = Kernel("row_recurrence", (a, x, y), grid, inner, (phase,))
    answer = affine_scan(*map(wide, arrays), 1)
    return Sample(kernel, dict(zip("ax", arrays, strict=True)), {"y": answer}, 1e-4)
