"""Sample kernels without contractions: elementwise, movement, reductions, scans.

A sample is a function of three extents (m, n, k) and the tiles of those extents; it uses as many as
it has indices.
"""

import numpy as np
from kernel_building import TILES, Body, Sample, Tiles, at, buffers, normal, softmax, wide

from eqsat.graph import index
from eqsat.graph.dtypes import DType, bfloat16, bool_, float16, float32, int32, int64
from eqsat.kernel.ir import (
    Access,
    Axis,
    Buffer,
    Carry,
    Coordinate,
    Guard,
    Kernel,
    Position,
    Reduce,
    Scan,
    Store,
)


def elementwise_chain(m: int, n: int, k: int, tiles: Tiles = TILES, dtype: DType = float32):
    """y[i,j] = max(x[i,j] * 2 + tanh(x[i,j]), 0)"""
    x, y = buffers(dtype, x=(m, n), y=(m, n))
    b = Body(dtype)
    b.load("a", "i j", at(x, "i", "j"))
    b.literal("two", 2.0)
    b.literal("zero", 0.0)
    b.map("d", "i j", "mul", "a", "two")
    b.map("t", "i j", "tanh", "a")
    b.map("s", "i j", "add", "d", "t")
    b.map("r", "i j", "maximum", "s", "zero")
    phase = b.phase(Store(at(y, "i", "j"), "r"))
    grid = (Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    (a,) = normal((m, n), dtype=dtype)
    answer = np.maximum(2 * wide(a) + np.tanh(wide(a)), 0)
    tolerance = 1e-5 if dtype.itemsize > 2 else 1e-2
    kernel = Kernel("elementwise_chain", (x, y), grid, (), (phase,))
    return Sample(kernel, {"x": a}, {"y": answer}, tolerance)


def elementwise_float16(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """The chain on float16."""
    return elementwise_chain(m, n, k, tiles, float16)


def elementwise_bfloat16(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """The chain on bfloat16."""
    return elementwise_chain(m, n, k, tiles, bfloat16)


def broadcast(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """y[i,j] = u[i] * v[j] + u[i] and y_row[i,j] = u[i]: a store wider than its value"""
    u, v, y, y_row = buffers(u=(m,), v=(n,), y=(m, n), y_row=(m, n))
    b = Body()
    b.load("a", "i", at(u, "i"))
    b.load("c", "j", at(v, "j"))
    b.map("p", "i j", "mul", "a", "c")
    b.map("s", "i j", "add", "p", "a")
    phase = b.phase(Store(at(y, "i", "j"), "s"), Store(at(y_row, "i", "j"), "a"))
    grid = (Axis("i", m, 1), Axis("j", n, tiles[1]))
    p, q = normal((m,), (n,))
    rows = wide(p)[:, None]
    expected = {"y": rows * wide(q) + rows, "y_row": np.broadcast_to(rows, (m, n))}
    kernel = Kernel("broadcast", (u, v, y, y_row), grid, (), (phase,))
    return Sample(kernel, {"u": p, "v": q}, expected)


def transpose(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """y[j,i] = x[i,j]"""
    x, y = buffers(x=(m, n), y=(n, m))
    b = Body()
    b.load("a", "i j", at(x, "i", "j"))
    phase = b.phase(Store(at(y, "j", "i"), "a"))
    grid = (Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    (a,) = normal((m, n))
    return Sample(Kernel("transpose", (x, y), grid, (), (phase,)), {"x": a}, {"y": wide(a).T})


def reshape(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """y[e] = x[e % m, e // m]: the transpose of x, flat, by quotient and remainder"""
    x, y = buffers(x=(m, n), y=(m * n,))
    e = index.var("e")
    b = Body()
    b.load("a", "e", at(x, index.mod(e, m), index.floordiv(e, m)))
    phase = b.phase(Store(at(y, "e"), "a"))
    (a,) = normal((m, n))
    kernel = Kernel("reshape", (x, y), (Axis("e", m * n, 3 * tiles[1]),), (), (phase,))
    return Sample(kernel, {"x": a}, {"y": wide(a).T.ravel()})


def window(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """y[i,j] = sum_q x[i, j + q - 1] * w[q] with zeros beyond x; odd columns stay"""
    x, w, y = buffers(x=(m, n), w=(3,), y=(m, n))
    column = index.add(index.var("j"), index.var("q"), index.const(-1))
    even = Guard(index.mod(index.var("j"), 2), 0, 1)
    b = Body()
    b.load("a", "i j q", at(x, "i", column, guards=(Guard(column, 0, n),)))
    b.load("f", "q", at(w, "q"))
    b.map("p", "i j q", "mul", "a", "f")
    b.reduce("s", "i j", "sum", "q", "p")
    phase = b.phase(Store(at(y, "i", "j", guards=(even,)), "s"))
    grid = (Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    a, f = normal((m, n), (3,))
    padded = np.pad(wide(a), ((0, 0), (1, 1)))
    answer = sum(padded[:, q : q + n] * wide(f)[q] for q in range(3))
    answer[:, 1::2] = np.nan
    kernel = Kernel("window", (x, w, y), grid, (Axis("q", 3, 3),), (phase,))
    return Sample(kernel, {"x": a, "w": f}, {"y": answer})


def gather(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """y[i,j] = table[id[i], j], -1 where the id is out of range"""
    table, y = buffers(table=(5, n), y=(m, n))
    ids = Buffer("ids", (m,), int64, "input")
    b = Body()
    b.load("r", "i", at(ids, "i"), dtype=int64)
    access = Access("table", index.var("j"), (), (Coordinate("r", n, 5),))
    b.load("a", "i j", access, fill=-1)
    phase = b.phase(Store(at(y, "i", "j"), "a"))
    grid = (Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    (a,) = normal((5, n))
    rows = np.random.default_rng(3).integers(-2, 7, m)
    rows[:1] = 2**62
    answer = wide(a)[np.clip(rows, 0, 4)]
    answer[(rows < 0) | (rows >= 5)] = -1
    kernel = Kernel("gather", (table, ids, y), grid, (), (phase,))
    return Sample(kernel, {"table": a, "ids": rows}, {"y": answer})


def scatter(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """y[to[i], j] = x[i, j]; a row sent out of range is dropped"""
    x, y = buffers(x=(m, n), y=(m, n))
    to = Buffer("to", (m,), int32, "input")
    b = Body()
    b.load("r", "i", at(to, "i"), dtype=int32)
    b.load("a", "i j", at(x, "i", "j"))
    store = Store(Access("y", index.var("j"), (), (Coordinate("r", n, m),)), "a")
    grid = (Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    (a,) = normal((m, n))
    rows = np.random.default_rng(3).permutation(m).astype(np.int32) + 1
    answer = np.full((m, n), np.nan)
    answer[rows[rows < m]] = a[rows < m]
    kernel = Kernel("scatter", (x, to, y), grid, (), (b.phase(store),))
    return Sample(kernel, {"x": a, "to": rows}, {"y": answer})


def row_reduce(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """y_sum[i] = sum_j x[i,j] ** 2, y_max[i] = max_j x[i,j]; row 0 has a NaN"""
    x, y_sum, y_max = buffers(x=(m, n), y_sum=(m,), y_max=(m,))
    b = Body()
    b.load("a", "i j", at(x, "i", "j"))
    b.map("q", "i j", "square", "a")
    b.reduce("s", "i", "sum", "j", "q")
    b.reduce("h", "i", "max", "j", "a")
    phase = b.phase(Store(at(y_sum, "i"), "s"), Store(at(y_max, "i"), "h"))
    (a,) = normal((m, n))
    a[0, n // 2] = np.nan
    expected = {"y_sum": (wide(a) ** 2).sum(1), "y_max": wide(a).max(1)}
    grid, inner = (Axis("i", m, tiles[0]),), (Axis("j", n, n),)
    kernel = Kernel("row_reduce", (x, y_sum, y_max), grid, inner, (phase,))
    return Sample(kernel, {"x": a}, expected)


def column_reduce(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """y[j] = sum_i x[i,j] in a stream over i"""
    x, y = buffers(x=(m, n), y=(n,))
    b, end = Body(), Body()
    b.load("a", "i j", at(x, "i", "j"))
    b.reduce("s", "j", "sum", "i", "a")
    b.update("next", "j", "total", "sum", "s")
    carry = Carry("total", float32, ("j",), "sum")
    stream = b.phase(stream=(Axis("i", m, tiles[0]),), carries=(carry,))
    (a,) = normal((m, n))
    store = Store(at(y, "j"), "total")
    grid = (Axis("j", n, tiles[1]),)
    kernel = Kernel("column_reduce", (x, y), grid, (), (stream, end.phase(store)))
    return Sample(kernel, {"x": a}, {"y": wide(a).sum(0)})


def row_reduction(dtype: DType, monoid: str, shape: tuple[int, int]) -> Kernel:
    """y[i] = monoid_j x[i,j] for any dtype"""
    x, y = buffers(dtype, x=shape, y=shape[:1])
    b = Body(dtype)
    b.load("a", "i j", at(x, "i", "j"))
    b.reduce("s", "i", monoid, "j", "a")
    phase = b.phase(Store(at(y, "i"), "s"))
    grid, inner = (Axis("i", shape[0], TILES[0]),), (Axis("j", shape[1], shape[1]),)
    return Kernel(f"row_{monoid}", (x, y), grid, inner, (phase,))


def integer_reduce(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """y[i] = (sum_j x[i,j]) // (min_j x[i,j]) in wrapping int32, streamed over two axes"""
    x, y = buffers(int32, x=(m, n, k), y=(m,))
    b, end = Body(int32), Body(int32)
    b.load("a", "i j l", at(x, "i", "j", "l"))
    b.reduce("s", "i", "sum", "j l", "a")
    b.reduce("h", "i", "min", "j l", "a")
    b.update("next", "i", "total", "sum", "s")
    b.update("least", "i", "low", "min", "h")
    carries = (Carry("total", int32, ("i",), "sum"), Carry("low", int32, ("i",), "min"))
    streams = (Axis("j", n, tiles[1]), Axis("l", k, tiles[2]))
    stream = b.phase(stream=streams, carries=carries)
    end.map("q", "i", "floor_divide", "total", "low")
    a = np.random.default_rng(5).integers(-(2**31), 2**31, (m, n, k)).astype(np.int32)
    a[0] = np.maximum(a[0], 0)
    a[0, 0, 0] = 0
    total, low = a.sum((1, 2), dtype=np.int32), a.min((1, 2))
    with np.errstate(all="ignore"):
        answer = total // low
    phases = (stream, end.phase(Store(at(y, "i"), "q")))
    kernel = Kernel("integer_reduce", (x, y), (Axis("i", m, tiles[0]),), (), phases)
    return Sample(kernel, {"x": a}, {"y": answer})


def softmax_resident(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """Softmax of rows that lie wholly in the tile."""
    x, y = buffers(x=(m, n), y=(m, n))
    b = Body()
    b.load("a", "i j", at(x, "i", "j"))
    b.reduce("h", "i", "max", "j", "a")
    b.map("d", "i j", "sub", "a", "h")
    b.map("e", "i j", "exp", "d")
    b.reduce("z", "i", "sum", "j", "e")
    b.map("p", "i j", "div", "e", "z")
    phase = b.phase(Store(at(y, "i", "j"), "p"))
    (a,) = normal((m, n))
    grid, inner = (Axis("i", m, tiles[0]),), (Axis("j", n, n),)
    kernel = Kernel("softmax_resident", (x, y), grid, inner, (phase,))
    return Sample(kernel, {"x": a}, {"y": softmax(wide(a))})


def softmax_online(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """Softmax with a running maximum; the first chunk of row 0 is -inf throughout"""
    x, y = buffers(x=(m, n + tiles[1]), y=(m, n + tiles[1]))
    axis = Axis("j", n + tiles[1], tiles[1])
    b, end = Body(), Body()
    b.load("a", "i j", at(x, "i", "j"))
    b.reduce("c", "i", "max", "j", "a")
    b.update("high", "i", "h", "max", "c")
    b.map("scale", "i", "exp_difference", "h", "high")
    b.map("e", "i j", "exp_difference", "a", "high")
    b.reduce("s", "i", "sum", "j", "e")
    b.update("total", "i", "z", "sum", "s", "scale")
    carries = (Carry("h", float32, ("i",), "max"), Carry("z", float32, ("i",), "sum", "h"))
    first = b.phase(stream=(axis,), carries=carries)
    end.load("r", "i j", at(x, "i", "j"))
    end.map("t", "i j", "exp_difference", "r", "h")
    end.map("p", "i j", "div", "t", "z")
    second = end.phase(Store(at(y, "i", "j"), "p"), stream=(axis,))
    (a,) = normal((m, n + tiles[1]))
    a[0, : tiles[1]] = -np.inf
    kernel = Kernel("softmax_online", (x, y), (Axis("i", m, tiles[0]),), (), (first, second))
    return Sample(kernel, {"x": a}, {"y": softmax(wide(a))})


def layer_norm(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """y = (t - mean t) / sqrt(var t + 1e-5) * g + c, t = x + r, the mean in a phase of its own"""
    x, r, g, c, y = buffers(x=(m, n), r=(m, n), g=(n,), c=(n,), y=(m, n))
    b, end = Body(), Body()
    b.load("a", "i j", at(x, "i", "j"))
    b.load("o", "i j", at(r, "i", "j"))
    b.map("t", "i j", "add", "a", "o")
    b.reduce("s", "i", "sum", "j", "t")
    b.literal("count", float(n))
    b.map("mean", "i", "div", "s", "count")
    end.map("d", "i j", "sub", "t", "mean")
    end.map("q", "i j", "square", "d")
    end.reduce("v", "i", "sum", "j", "q")
    end.map("w", "i", "div", "v", "count")
    end.literal("eps", 1e-5)
    end.map("u", "i", "add", "w", "eps")
    end.map("inv", "i", "rsqrt", "u")
    end.map("e", "i j", "mul", "d", "inv")
    end.load("gain", "j", at(g, "j"))
    end.load("bias", "j", at(c, "j"))
    end.map("f", "i j", "mul", "e", "gain")
    end.map("p", "i j", "add", "f", "bias")
    second = end.phase(Store(at(y, "i", "j"), "p"))
    arrays_ = dict(zip("xrgc", normal((m, n), (m, n), (n,), (n,)), strict=True))
    t = wide(arrays_["x"]) + wide(arrays_["r"])
    d = t - t.mean(1, keepdims=True)
    scaled = d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5)
    answer = scaled * wide(arrays_["g"]) + wide(arrays_["c"])
    grid, inner = (Axis("i", m, tiles[0]),), (Axis("j", n, n),)
    kernel = Kernel("layer_norm", (x, r, g, c, y), grid, inner, (b.phase(), second))
    return Sample(kernel, arrays_, {"y": answer}, 1e-4)


def argmax(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """y[i] = min_j of the j where x[i,j] is the maximum of its row"""
    x, y = buffers(float32, x=(m, n))[0], Buffer("y", (m,), int64, "output")
    b = Body()
    b.load("a", "i j", at(x, "i", "j"))
    b.reduce("h", "i", "max", "j", "a")
    b.map("same", "i j", "equal", "a", "h", dtype=bool_)
    b.add(Position, "place", "i j", index.var("j"), dtype=int64)
    b.literal("none", n, dtype=int64)
    b.map("where", "i j", "where", "same", "place", "none", dtype=int64)
    b.add(Reduce, "first", "i", "min", ("j",), "where", dtype=int64)
    (a,) = normal((m, n))
    a = np.round(a)
    grid, inner = (Axis("i", m, tiles[0]),), (Axis("j", n, n),)
    phase = b.phase(Store(at(y, "i"), "first"))
    kernel = Kernel("argmax", (x, y), grid, inner, (phase,))
    return Sample(kernel, {"x": a}, {"y": a.argmax(1)})


def prefix_sum(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """y[i,j] = sum_{q <= j} x[i,q], a scan of each chunk plus the carried total"""
    x, y = buffers(x=(m, n), y=(m, n))
    b = Body()
    b.load("a", "i j", at(x, "i", "j"))
    b.add(Scan, "c", "i j", "sum", "j", "a")
    b.map("p", "i j", "add", "c", "total")
    b.reduce("s", "i", "sum", "j", "a")
    b.update("next", "i", "total", "sum", "s")
    carry = Carry("total", float32, ("i",), "sum")
    stream = (Axis("j", n, tiles[1]),)
    phase = b.phase(Store(at(y, "i", "j"), "p"), stream=stream, carries=(carry,))
    (a,) = normal((m, n))
    kernel = Kernel("prefix_sum", (x, y), (Axis("i", m, tiles[0]),), (), (phase,))
    return Sample(kernel, {"x": a}, {"y": wide(a).cumsum(1)}, 1e-4)


def prefix_product(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """y[i,j] = prod_{q <= i} x[q,j], down the columns of a tile that holds all rows"""
    x, y = buffers(x=(m, n), y=(m, n))
    b = Body()
    b.load("a", "i j", at(x, "i", "j"))
    b.add(Scan, "c", "i j", "prod", "i", "a")
    b.map("p", "i j", "neg", "c")
    phase = b.phase(Store(at(y, "i", "j"), "p"))
    (a,) = normal((m, n))
    grid, inner = (Axis("j", n, tiles[1]),), (Axis("i", m, m),)
    kernel = Kernel("prefix_product", (x, y), grid, inner, (phase,))
    return Sample(kernel, {"x": a}, {"y": -wide(a).cumprod(0)}, 1e-4)
