"""Sample kernels with contractions: matrix products and attention.

A sample is a function of three extents (m, n, k) and the tiles of those extents; it uses as many as
it has indices.
"""

from dataclasses import replace

import numpy as np
from kernel_building import TILES, Body, Sample, Tiles, at, buffers, erf, normal, softmax, wide

from eqsat.graph import index
from eqsat.graph.dtypes import DType, bfloat16, bool_, float16, float32, int32
from eqsat.kernel.ir import Axis, Carry, Kernel, Position, Store


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


def matmul_triangle(m: int, n: int, k: int, tiles: Tiles = TILES, operation: str = "") -> Sample:
    """What of the product lies at j <= i"""
    whole = matmul(m, n, k, tiles, operation=operation)
    x, w, _, y = whole.kernel.buffers
    product = {"y": wide(whole.inputs["x"]) @ wide(whole.inputs["w"])}
    inputs = {name: whole.inputs[name] for name in "xw"}
    return triangle(Sample(replace(whole.kernel, buffers=(x, w, y)), inputs, product, 1e-4))


def matmul_triangle_blas(m: int, n: int, k: int, tiles: Tiles = TILES) -> Sample:
    """The triangle by a library call on each tile."""
    return matmul_triangle(m, n, k, tiles, "cblas_gemm")


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
    """softmax(q k^T / sqrt d + mask) v with all keys in the tile; heads share the rows"""
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


def scaled_pairs(m: int, n: int, k: int) -> Sample:
    """y[i,j] = sum_l 1 / c (sum_p x[p,i,l] w[l,j]): a factor of the sum is one number."""
    x, w, y = buffers(x=(4, m, k), w=(k, n), y=(m, n))
    b = Body()
    b.literal("c", 5.0)
    b.map("r", "", "reciprocal", "c")
    b.load("parts", "i l p", at(x, "p", "i", "l"))
    b.reduce("a", "i l", "sum", "p", "parts")
    b.load("f", "l j", at(w, "l", "j"), memory="shared")
    b.map("pair", "i j l", "mul", "a", "f")
    b.map("scaled", "i j l", "mul", "r", "pair")
    b.reduce("s", "i j", "sum", "l", "scaled")
    grid, inner = (Axis("i", m, 16), Axis("j", n, 32)), (Axis("l", k, k), Axis("p", 4, 4))
    kernel = Kernel("pairs", (x, w, y), grid, inner, (b.phase(Store(at(y, "i", "j"), "s")),))
    parts, other = normal((4, m, k), (k, n))
    answer = wide(parts).sum(0) @ wide(other) / 5
    return Sample(kernel, {"x": parts, "w": other}, {"y": answer}, 1e-5)


def triangle(sample: Sample) -> Sample:
    """Of a product y[i,j] what lies at j <= i, and 7 above that."""
    kernel = sample.kernel
    stream, _ = kernel.phases
    y, b = kernel.buffers[-1], Body()
    for i in "ij":
        b.add(Position, f"at_{i}", i, index.var(i), dtype=int32)
    b.map("below", "i j", "greater_equal", "at_i", "at_j", dtype=bool_)
    b.literal("above", 7.0)
    b.map("result", "i j", "where", "below", "acc", "above")
    phases = (stream, b.phase(Store(at(y, "i", "j"), "result")))
    answer = np.where(np.tri(*y.shape, dtype=bool), sample.expected["y"], 7)
    return replace(sample, kernel=replace(kernel, phases=phases), expected={"y": answer})
