"""Hand-built sample kernels, each with inputs and the answer computed directly in NumPy.

A sample is a function of three extents (m, n, k) and the tiles of those extents; it uses as many as
it has indices. `SAMPLES` lists them all; `arrays` gives the buffers to run a sample on.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from eqsat.graph import index
from eqsat.graph.dtypes import DType, bfloat16, bool_, float16, float32, int32, int64
from eqsat.graph.index import Affine
from eqsat.kernel import (
    Access,
    Axis,
    Buffer,
    Carry,
    Contract,
    Coordinate,
    Guard,
    Kernel,
    Literal,
    Load,
    Map,
    Phase,
    Position,
    Reduce,
    Scan,
    Statement,
    Store,
    Update,
)

Tiles = tuple[int, int, int]
TILES: Tiles = (8, 16, 4)


@dataclass(frozen=True)
class Sample:
    """A kernel, its inputs, and the outputs that NumPy computes from them (in float64)."""

    kernel: Kernel
    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    tolerance: float = 1e-5


class Body:
    """Statements in order; each method appends one and returns its name."""

    def __init__(self, dtype: DType = float32) -> None:
        self.dtype = dtype
        self.statements: list[Statement] = []

    def add(self, kind: type, name: str, indices: str, *rest: object, **more: object) -> str:
        dtype = more.pop("dtype", self.dtype)
        self.statements.append(kind(name, dtype, tuple(indices.split()), *rest, **more))
        return name

    def load(self, name: str, indices: str, access: Access, **more: object) -> str:
        return self.add(Load, name, indices, access, **more)

    def map(self, name: str, indices: str, op: str, *arguments: str, **more: object) -> str:
        return self.add(Map, name, indices, op, arguments, **more)

    def literal(self, name: str, value: float, **more: object) -> str:
        self.statements.append(Literal(name, more.get("dtype", self.dtype), value))
        return name

    def reduce(self, name: str, indices: str, monoid: str, over: str, argument: str) -> str:
        return self.add(Reduce, name, indices, monoid, tuple(over.split()), argument)

    def contract(
        self, name: str, indices: str, over: str, left: str, right: str, operation: str = ""
    ) -> str:
        return self.add(Contract, name, indices, tuple(over.split()), left, right, operation)

    def update(self, name: str, indices: str, *rest: str) -> str:
        return self.add(Update, name, indices, *rest)

    def phase(self, *stores: Store, stream: tuple[Axis, ...] = (), carries: tuple = ()) -> Phase:
        return Phase(stream, tuple(self.statements), tuple(carries), tuple(stores))


def at(buffer: Buffer, *coordinates: str | Affine, **more: tuple) -> Access:
    """The element of a row-major buffer at some coordinates."""
    address, stride = index.const(0), buffer.size
    for coordinate, extent in zip(coordinates, buffer.shape, strict=True):
        stride //= max(extent, 1)
        part = index.var(coordinate) if isinstance(coordinate, str) else coordinate
        address = index.add(address, index.scale(part, stride))
    return Access(buffer.name, address, **more)


def buffers(dtype: DType = float32, **shapes: tuple[int, ...]) -> tuple[Buffer, ...]:
    """One buffer per keyword; those whose name starts with y are outputs."""
    return tuple(
        Buffer(name, shape, dtype, "output" if name.startswith("y") else "input")
        for name, shape in shapes.items()
    )


def normal(*shapes: tuple[int, ...], dtype: DType = float32) -> list[np.ndarray]:
    """Normal(0, 1) arrays of a dtype, the same on every call."""
    random = np.random.default_rng(7)
    return [np.asarray(random.standard_normal(shape)).astype(dtype.numpy) for shape in shapes]


def wide(array: np.ndarray) -> np.ndarray:
    """In float64."""
    return array.astype(np.float64)


def softmax(x: np.ndarray) -> np.ndarray:
    """Along the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def erf(x: np.ndarray) -> np.ndarray:
    from scipy.special import erf as scipy_erf  # imported here: 0.1 s

    return scipy_erf(x)


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
    """y[i,j] = sum_q x[i, j + q - 1] * w[q] with zeros beyond x; every other store is guarded off"""
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
    """y = (t - mean t) / sqrt(var t + 1e-5) * g + c with t = x + r, the mean in a phase of its own"""
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


def matmul(
    m: int,
    n: int,
    k: int,
    tiles: Tiles = TILES,
    dtype: DType = float32,
    operation: str = "",
) -> Sample:
    """y[i,j] = gelu(sum_l x[i,l] w[l,j] + c[j]) in a stream over l"""
    x, w, c, y = buffers(dtype, x=(m, k), w=(k, n), c=(n,), y=(m, n))
    b, end = Body(dtype), Body()
    b.load("a", "i l", at(x, "i", "l"))
    b.load("f", "l j", at(w, "l", "j"))
    b.dtype = float32
    b.contract("p", "i j", "l", "a", "f", operation)
    b.update("next", "i j", "acc", "sum", "p")
    carry = Carry("acc", float32, ("i", "j"), "sum")
    stream = b.phase(stream=(Axis("l", k, tiles[2]),), carries=(carry,))
    end.load("bias", "j", at(c, "j"), dtype=dtype)
    end.map("wide", "j", "cast", "bias")
    end.map("s", "i j", "add", "acc", "wide")
    result = gelu(end, "s", "i j")
    grid = (Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    phases = (stream, end.phase(Store(at(y, "i", "j"), result)))
    p, q, r = normal((m, k), (k, n), (n,), dtype=dtype)
    t = wide(p) @ wide(q) + wide(r)
    answer = 0.5 * t * (1 + erf(t / np.sqrt(2)))
    tolerance = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 2e-2}[dtype.name]
    kernel = Kernel("matmul", (x, w, c, y), grid, (), phases)
    return Sample(kernel, {"x": p, "w": q, "c": r}, {"y": answer}, tolerance)


def gelu(b: Body, x: str, indices: str) -> str:
    """0.5 x (1 + erf(x / sqrt 2)); returns the value's name."""
    for name, value in (("half", 0.5), ("unit", 1.0), ("root", float(np.sqrt(0.5)))):
        b.literal(name, value)
    b.map("g0", indices, "mul", x, "root")
    b.map("g1", indices, "erf", "g0")
    b.map("g2", indices, "add", "g1", "unit")
    b.map("g3", indices, "mul", x, "half")
    return b.map("g4", indices, "mul", "g2", "g3")


def matmul_bfloat16(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """The product of bfloat16 matrices, summed in float32."""
    return matmul(m, n, k, tiles, bfloat16)


def matmul_float16(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """The product of float16 matrices, summed in float32."""
    return matmul(m, n, k, tiles, float16)


def matmul_blas(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """The product by a library call on each tile."""
    return matmul(m, n, k, tiles, operation="cblas_gemm")


def matmul_whole(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """y[i,j] = sum_l relu(x[i,l]) * w[j,l] by one library call per tile, the row's columns inner"""
    x, w, y = buffers(x=(m, k), w=(n, k), y=(m, n))
    b = Body()
    b.load("a", "i l", at(x, "i", "l"))
    b.literal("zero", 0.0)
    b.map("r", "i l", "maximum", "a", "zero")
    b.load("f", "j l", at(w, "j", "l"))
    b.contract("p", "i j", "l", "r", "f", "cblas_gemm")
    phase = b.phase(Store(at(y, "i", "j"), "p"))
    p, q = normal((m, k), (n, k))
    inner = (Axis("j", n, n), Axis("l", k, k))
    kernel = Kernel("matmul_whole", (x, w, y), (Axis("i", m, tiles[0]),), inner, (phase,))
    return Sample(kernel, {"x": p, "w": q}, {"y": np.maximum(wide(p), 0) @ wide(q).T})


def matmul_batched(m: int, n: int, k: int, tiles: Tiles = TILES, operation: str = "") -> Sample:
    """y[b,i,j] = sum_l x[i,b,l] w[b,j,l], three batches in one tile, x read across its rows"""
    x, w, y = buffers(x=(m, 3, k), w=(3, n, k), y=(3, m, n))
    b = Body()
    b.load("a", "i b l", at(x, "i", "b", "l"))
    b.load("f", "b j l", at(w, "b", "j", "l"))
    b.contract("p", "b i j", "l", "a", "f", operation)
    phase = b.phase(Store(at(y, "b", "i", "j"), "p"))
    p, q = normal((m, 3, k), (3, n, k))
    grid = (Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    inner = (Axis("b", 3, 3), Axis("l", k, k))
    answer = np.einsum("ibl,bjl->bij", wide(p), wide(q))
    kernel = Kernel("matmul_batched", (x, w, y), grid, inner, (phase,))
    return Sample(kernel, {"x": p, "w": q}, {"y": answer})


def matmul_batched_blas(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """The batched product by a library call for each batch."""
    return matmul_batched(m, n, k, tiles, "cblas_gemm")


def attention(m: int, n: int, k: int, tiles: Tiles = TILES, operation: str = "") -> Sample:
    """softmax(q k^T / sqrt d + mask) v with all keys in the tile; the heads share rows of q, k, v"""
    q, key, v, mask, y = buffers(
        q=(2, m, 3, k), key=(2, n, 3, k), v=(2, n, 3, k), mask=(2, n), y=(2, m, 3, k)
    )
    b = Body()
    b.load("a", "b h s d", at(q, "b", "s", "h", "d"))
    b.load("c", "b h t d", at(key, "b", "t", "h", "d"))
    b.contract("p", "b h s t", "d", "a", "c", operation)
    b.literal("scale", float(1 / np.sqrt(k)))
    b.map("r", "b h s t", "mul", "p", "scale")
    b.load("o", "b t", at(mask, "b", "t"))
    b.map("l", "b h s t", "add", "r", "o")
    b.reduce("high", "b h s", "max", "t", "l")
    b.map("e", "b h s t", "exp_difference", "l", "high")
    b.reduce("z", "b h s", "sum", "t", "e")
    b.map("w", "b h s t", "div", "e", "z")
    b.load("u", "b h t f", at(v, "b", "t", "h", "f"))
    b.contract("out", "b h s f", "t", "w", "u", operation)
    phase = b.phase(Store(at(y, "b", "s", "h", "f"), "out"))
    grid = (Axis("b", 2, 1), Axis("h", 3, 1), Axis("s", m, tiles[0]))
    inner = (Axis("t", n, n), Axis("d", k, k), Axis("f", k, k))
    kernel = Kernel("attention", (q, key, v, mask, y), grid, inner, (phase,))
    inputs, answer = _attention_data(m, n, k)
    return Sample(kernel, inputs, {"y": answer}, 1e-4)


def attention_blas(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """Attention with both products by library calls."""
    return attention(m, n, k, tiles, "cblas_gemm")


def _attention_data(m: int, n: int, k: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    arrays_ = normal((2, m, 3, k), (2, n, 3, k), (2, n, 3, k), (2, n))
    arrays_[3][:, 1:][arrays_[3][:, 1:] > 1] = -np.inf
    q, key, v, mask = (wide(array) for array in arrays_)
    logits = np.einsum("bshd,bthd->bhst", q, key) / np.sqrt(k) + mask[:, None, None, :]
    answer = np.einsum("bhst,bthf->bshf", softmax(logits), v)
    return dict(zip(("q", "key", "v", "mask"), arrays_, strict=True)), answer


def attention_online(m: int, n: int, k: int, tiles: Tiles = TILES, operation: str = "") -> Sample:
    """Flash attention: a stream over keys that carries the maximum, the weights and the sum"""
    q, key, v, mask, y = buffers(
        q=(2, m, 3, k), key=(2, n, 3, k), v=(2, n, 3, k), mask=(2, n), y=(2, m, 3, k)
    )
    b, end = Body(), Body()
    b.load("a", "b h s d", at(q, "b", "s", "h", "d"))
    b.load("c", "b h t d", at(key, "b", "t", "h", "d"))
    b.contract("p", "b h s t", "d", "a", "c", operation)
    b.literal("scale", float(1 / np.sqrt(k)))
    b.map("r", "b h s t", "mul", "p", "scale")
    b.load("o", "b t", at(mask, "b", "t"))
    b.map("l", "b h s t", "add", "r", "o")
    b.reduce("top", "b h s", "max", "t", "l")
    b.update("high", "b h s", "hi", "max", "top")
    b.map("shrink", "b h s", "exp_difference", "hi", "high")
    b.map("e", "b h s t", "exp_difference", "l", "high")
    b.reduce("sum", "b h s", "sum", "t", "e")
    b.update("weights", "b h s", "z", "sum", "sum", "shrink")
    b.load("u", "b h t f", at(v, "b", "t", "h", "f"))
    b.contract("part", "b h s f", "t", "e", "u", operation)
    b.update("next", "b h s f", "acc", "sum", "part", "shrink")
    rows = ("b", "h", "s")
    carries = (
        Carry("hi", float32, rows, "max"),
        Carry("z", float32, rows, "sum", "hi"),
        Carry("acc", float32, (*rows, "f"), "sum", "hi"),
    )
    stream = b.phase(stream=(Axis("t", n, tiles[1]),), carries=carries)
    end.map("out", "b h s f", "div", "acc", "z")
    last = end.phase(Store(at(y, "b", "s", "h", "f"), "out"))
    grid = (Axis("b", 2, 1), Axis("h", 3, 1), Axis("s", m, tiles[0]))
    inner = (Axis("d", k, k), Axis("f", k, k))
    kernel = Kernel("attention_online", (q, key, v, mask, y), grid, inner, (stream, last))
    inputs, answer = _attention_data(m, n, k)
    return Sample(kernel, inputs, {"y": answer}, 1e-4)


def attention_online_blas(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """Flash attention with both products by library calls, the second rescaled in place."""
    return attention_online(m, n, k, tiles, "cblas_gemm")


SAMPLES: dict[str, Callable[..., Sample]] = {
    sample.__name__: sample
    for sample in (
        elementwise_chain, elementwise_float16, elementwise_bfloat16, broadcast, transpose, reshape,
        window, gather, scatter, row_reduce, column_reduce, integer_reduce, softmax_resident,
        softmax_online, layer_norm, argmax, prefix_sum, matmul, matmul_float16, matmul_bfloat16,
        matmul_blas, matmul_whole, matmul_batched, matmul_batched_blas, attention, attention_blas,
        attention_online, attention_online_blas,
    )
}  # fmt: skip


def arrays(sample: Sample, guard: int = 0) -> dict[str, np.ndarray]:
    """Buffers by name: the inputs, and outputs filled with NaN (integers: with -77).

    With a `guard`, each is flat and lies that many elements inside a larger array of such filling.
    """
    result = {}
    for buffer in sample.kernel.buffers:
        filling = np.nan if buffer.dtype.kind == "float" else -77
        memory = np.full(buffer.size + 2 * guard, filling).astype(buffer.dtype.numpy)
        array = memory[guard : guard + buffer.size]
        if buffer.role == "input":
            array[:] = sample.inputs[buffer.name].ravel()
        result[buffer.name] = array if guard else array.reshape(buffer.shape)
    return result


def check(sample: Sample, found: dict[str, np.ndarray]) -> None:
    """Assert that the outputs are the expected ones, NaN where NaN is expected."""
    for name, expected in sample.expected.items():
        assert_close(found[name].reshape(expected.shape), expected, sample.tolerance)


def assert_close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Equal for integers; else within `tolerance` of each value, or of 1 for smaller ones."""
    if found.dtype.kind in "iub":
        np.testing.assert_array_equal(found, expected)
        return
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(wide(found), expected, rtol=tolerance, atol=tolerance)
