"""Kernels whose contractions are computed by warpgroups from tiles that a producer copies ahead."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from cuda_cases import Case, case, flash
from kernel_building import Body, Sample, at, buffers, normal, wide
from kernel_products import matmul, triangle

from eqsat.graph import index
from eqsat.graph.dtypes import (
    DType,
    bfloat16,
    bool_,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    int8,
    int32,
    uint8,
)
from eqsat.kernel.ir import Axis, Buffer, Carry, Contract, Guard, Kernel, Position, Store
from eqsat.specs import load

OPERATIONS = {operation.name: operation for operation in load("h200").operations}
KINDS = {
    bfloat16: ("k16", "bf16", float32),
    float16: ("k16", "f16", float32),
    float32: ("k8", "tf32", float32),
    int8: ("k32", "i8", int32),
    uint8: ("k32", "i8", int32),
    float8_e4m3fn: ("k32", "f8", float32),
    float8_e5m2: ("k32", "f8", float32),
}
Tiles = tuple[int, int, int]


def by(columns: int, dtype: DType = bfloat16, held: bool = False) -> str:
    """The spec's operation of so many columns, or the instruction where the spec has none."""
    k, name, result = KINDS[dtype]
    operation = f"wgmma_m64n{columns}{k}_{name}_{'rs' if held else 'ss'}"
    kind = "s32" if result == int32 else "f32"
    instruction = f"wgmma.mma_async.sync.aligned.m64n{columns}{k}.{kind}.{name}.{name}"
    return operation if operation in OPERATIONS else instruction


def integers(*shapes: tuple[int, ...], dtype: DType) -> list[np.ndarray]:
    """Small integers: sums of their products are exact."""
    random = np.random.default_rng(11)
    return [random.integers(-4, 5, shape).astype(dtype.numpy) for shape in shapes]


def gemm(
    m: int,
    n: int,
    k: int,
    tiles: Tiles,
    columns: int,
    layout: str = "nt",
    dtype: DType = bfloat16,
    out: DType | None = None,
    held: bool = False,
    other: DType | None = None,
) -> Sample:
    """y[i,j] = sum_l x[i,l] w[l,j]; `layout`: n or t for each factor, as BLAS has it, row-major;
    w is of dtype `other` where that is given.
    """
    result = KINDS[dtype][2]
    down, right = layout
    (x,) = buffers(dtype, x=(m, k) if down == "n" else (k, m))
    (w,) = buffers(other or dtype, w=(k, n) if right == "n" else (n, k))
    y = Buffer("y", (m, n), out or result, "output")
    b, end = Body(dtype), Body(result)
    b.load("a", "i l", at(x, "i", "l") if down == "n" else at(x, "l", "i"))
    b.dtype = other or dtype
    b.load("f", "l j", at(w, "l", "j") if right == "n" else at(w, "j", "l"))
    b.dtype = result
    b.contract("p", "i j", "l", "a", "f", by(columns, dtype, held))
    b.update("next", "i j", "acc", "sum", "p")
    carry = Carry("acc", result, ("i", "j"), "sum")
    stream = b.phase(stream=(Axis("l", k, tiles[2]),), carries=(carry,))
    grid = (Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    phases = (stream, end.phase(Store(at(y, "i", "j"), "acc")))
    (p,), (q,) = integers(x.shape, dtype=dtype), integers(w.shape, dtype=other or dtype)
    left, right_ = (a if side == "n" else a.T for a, side in zip((p, q), layout, strict=True))
    answer = (wide(left) @ wide(right_)).astype(result.numpy if not out else np.float64)
    tolerance = 4e-3 if out == bfloat16 else 1e-6
    kernel = Kernel("gemm", (x, w, y), grid, (), phases)
    return Sample(kernel, {"x": p, "w": q}, {"y": answer}, tolerance)


def at_once(m: int, n: int, k: int, tiles: tuple[int, int], columns: int) -> Sample:
    """y[b,i,j] = sum_l x[b,i,l] w[b,l,j], all of the sum inside each tile"""
    x, w = buffers(bfloat16, x=(5, m, k), w=(5, k, n))
    y = Buffer("y", (5, m, n), float32, "output")
    b = Body(bfloat16)
    b.load("a", "b i l", at(x, "b", "i", "l"))
    b.load("f", "b l j", at(w, "b", "l", "j"))
    b.dtype = float32
    b.contract("p", "b i j", "l", "a", "f", by(columns))
    grid = (Axis("b", 5, 1), Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    p, q = integers(x.shape, w.shape, dtype=bfloat16)
    inner, phases = (Axis("l", k, k),), (b.phase(Store(at(y, "b", "i", "j"), "p")),)
    kernel = Kernel("at_once", (x, w, y), grid, inner, phases)
    return Sample(kernel, {"x": p, "w": q}, {"y": wide(p) @ wide(q)}, 1e-6)


def batched(m: int, n: int, k: int, tiles: Tiles, columns: int) -> Sample:
    """y[b,h,i,j] = sum_l x[b,i,h,l] w[b,j,h,l]: two batch axes, which lie about the rows"""
    x, w = buffers(bfloat16, x=(2, m, 3, k), w=(2, n, 3, k))
    y = Buffer("y", (2, 3, m, n), float32, "output")
    b, end = Body(bfloat16), Body()
    b.load("a", "b h i l", at(x, "b", "i", "h", "l"))
    b.load("f", "b h l j", at(w, "b", "j", "h", "l"))
    b.dtype = float32
    b.contract("p", "b h i j", "l", "a", "f", by(columns))
    b.update("next", "b h i j", "acc", "sum", "p")
    carry = Carry("acc", float32, ("b", "h", "i", "j"), "sum")
    stream = b.phase(stream=(Axis("l", k, tiles[2]),), carries=(carry,))
    phases = (stream, end.phase(Store(at(y, "b", "h", "i", "j"), "acc")))
    grid = (Axis("b", 2, 1), Axis("h", 3, 1), Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    p, q = integers(x.shape, w.shape, dtype=bfloat16)
    answer = np.einsum("bihl,bjhl->bhij", wide(p), wide(q))
    kernel = Kernel("batched", (x, w, y), grid, (), phases)
    return Sample(kernel, {"x": p, "w": q}, {"y": answer}, 1e-6)


def stacked(rows: tuple[int, int], n: int, k: int, tiles: Tiles, columns: int) -> Sample:
    """y[h,i,j] = sum_l x[l,h,i] w[j,l]: two indices of rows, of a factor across the sum"""
    (heads, m), (below, along, stream) = rows, tiles
    x, w, y = buffers(float32, x=(k, heads, m), w=(n, k), y=(heads, m, n))
    b, end = Body(float32), Body()
    b.load("a", "l h i", at(x, "l", "h", "i"))
    b.load("f", "l j", at(w, "j", "l"))
    b.contract("p", "h i j", "l", "a", "f", by(columns, float32, held=True))
    b.update("next", "h i j", "acc", "sum", "p")
    carry = Carry("acc", float32, ("h", "i", "j"), "sum")
    phase = b.phase(stream=(Axis("l", k, stream),), carries=(carry,))
    grid = (Axis("h", heads, below), Axis("i", m, along), Axis("j", n, columns))
    p, q = integers(x.shape, w.shape, dtype=float32)
    phases = (phase, end.phase(Store(at(y, "h", "i", "j"), "acc")))
    kernel = Kernel("stacked", (x, w, y), grid, (), phases)
    return Sample(kernel, {"x": p, "w": q}, {"y": np.einsum("lhi,jl->hij", wide(p), wide(q))}, 1e-6)


def swiglu(m: int, n: int, k: int, tiles: Tiles, columns: int) -> Sample:
    """y = silu(x g^T) * (x u): two products of one left factor"""
    x, g, u, y = buffers(bfloat16, x=(m, k), g=(n, k), u=(k, n), y=(m, n))
    b, end = Body(bfloat16), Body()
    b.load("a", "i l", at(x, "i", "l"))
    b.load("gate", "l j", at(g, "j", "l"))
    b.load("up", "l j", at(u, "l", "j"))
    b.dtype = float32
    for name, factor in (("p", "gate"), ("q", "up")):
        b.contract(name, "i j", "l", "a", factor, by(columns))
        b.update(f"next_{name}", "i j", f"acc_{name}", "sum", name)
    carries = tuple(Carry(f"acc_{name}", float32, ("i", "j"), "sum") for name in "pq")
    stream = b.phase(stream=(Axis("l", k, tiles[2]),), carries=carries)
    end.literal("one", 1.0)
    end.map("minus", "i j", "neg", "acc_p")
    end.map("e", "i j", "exp", "minus")
    end.map("below", "i j", "add", "e", "one")
    end.map("silu", "i j", "div", "acc_p", "below")
    end.map("out", "i j", "mul", "silu", "acc_q")
    grid = (Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    phases = (stream, end.phase(Store(at(y, "i", "j"), "out")))
    p, q, r = normal((m, k), (n, k), (k, n), dtype=bfloat16)
    gate, up = wide(p) @ wide(q).T, wide(p) @ wide(r)
    answer = gate / (1 + np.exp(-gate)) * up
    kernel = Kernel("swiglu", (x, g, u, y), grid, (), phases)
    return Sample(kernel, {"x": p, "g": q, "u": r}, {"y": answer}, 1e-2)


def scaled(
    m: int,
    n: int,
    k: int,
    tiles: Tiles,
    columns: int,
    side: str = "left",
    memory: str = "registers",
) -> Sample:
    """y[i,j] = sum_l bf16(x[i,l] s[l] t[i]) w[j,l]: one factor computed in registers, from factors
    of rows and of the sum in such `memory`
    """
    x, w, s, t = buffers(bfloat16, x=(m, k), w=(n, k), s=(k,), t=(m,))
    y = Buffer("y", (m, n), float32, "output")
    b, end = Body(bfloat16), Body()
    b.load("a", "i l", at(x, "i", "l"), memory="shared")
    b.load("f", "l j", at(w, "j", "l"))
    b.load("by_k", "l", at(s, "l"), memory=memory)
    b.load("by_row", "i", at(t, "i"), memory=memory)
    b.dtype = float32
    for name, argument in (("a1", "a"), ("s1", "by_k"), ("t1", "by_row")):
        b.map(name, {"a": "i l", "by_k": "l", "by_row": "i"}[argument], "cast", argument)
    b.map("a2", "i l", "mul", "a1", "s1")
    b.map("a3", "i l", "mul", "a2", "t1")
    b.map("a4", "i l", "cast", "a3", dtype=bfloat16)
    pair = ("a4", "f") if side == "left" else ("f", "a4")
    b.contract("p", "i j", "l", *pair, by(columns, held=True))
    b.update("next", "i j", "acc", "sum", "p")
    carry = Carry("acc", float32, ("i", "j"), "sum")
    stream = b.phase(stream=(Axis("l", k, tiles[2]),), carries=(carry,))
    grid = (Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    phases = (stream, end.phase(Store(at(y, "i", "j"), "acc")))
    p, q, u, v = integers((m, k), (n, k), (k,), (m,), dtype=bfloat16)
    answer = (wide(p) * wide(u) * wide(v)[:, None]) @ wide(q).T
    kernel = Kernel("scaled", (x, w, s, t, y), grid, (), phases)
    return Sample(kernel, {"x": p, "w": q, "s": u, "t": v}, {"y": answer}, 1e-6)


def attention(m: int, n: int, d: int, tiles: tuple[int, int], mask: str = "") -> Sample:
    """Attention over a stream of keys, the weights in registers; scores + mask[i,j] with the mask
    `added`, those of j <= i with `causal`, of i - 40 < j <= i with `window`
    """
    sample = flash(m, n, d, (*tiles, 1))
    names = {"p": by(tiles[1]), "part": by(d, held=True)}
    b, given = Body(), Buffer("mask", (m, n), float32, "input")
    values = np.zeros((m, n), np.float32)
    if mask == "added":
        b.load("mask", "i j", at(given, "i", "j"))
        b.map("sum_p", "i j", "add", "p", "mask")
        (values,) = normal((m, n))
        values[:, 1:][values[:, 1:] > 1] = -np.inf
    elif mask:
        for i in "ij":
            b.add(Position, f"at_{i}", i, index.var(i), dtype=int32)
        b.map("live", "i j", "greater_equal", "at_i", "at_j", dtype=bool_)
        if mask == "window":
            b.literal("far", 40, dtype=int32)
            b.map("until", "j", "add", "at_j", "far", dtype=int32)
            b.map("near", "i j", "less", "at_i", "until", dtype=bool_)
            b.map("causal", "i j", "logical_and", "live", "near", dtype=bool_)
        b.literal("never", -np.inf)
        b.map("sum_p", "i j", "where", b.statements[-2].name, "p", "never")
        i, j = np.ogrid[:m, :n]
        values[(j > i) | ((mask == "window") & (i - j >= 40))] = -np.inf

    def change(s):
        if isinstance(s, Contract):
            s = replace(s, operation=names[s.name])
        if mask and s.name == "top":
            return [*b.statements, replace(s, argument="sum_p")]
        if mask and s.name == "e":
            return [replace(s, arguments=("sum_p", "high"))]
        return [s]

    phases = [
        replace(phase, body=tuple(s for old in phase.body for s in change(old)))
        for phase in sample.kernel.phases
    ]
    kernel = replace(sample.kernel, phases=tuple(phases))
    inputs = sample.inputs
    if mask == "added":
        kernel = replace(kernel, buffers=(*kernel.buffers[:-1], given, kernel.buffers[-1]))
        inputs = {**inputs, "mask": values}
    q, key, v = (wide(sample.inputs[name]) for name in ("q", "key", "v"))
    scores = q @ key.T + values
    e = np.exp(scores - scores.max(1, keepdims=True))
    answer = e @ v / e.sum(1, keepdims=True)
    return Sample(kernel, inputs, {"y": answer}, sample.tolerance)


def gradient(m: int, n: int, d: int, tiles: tuple[int, int], causal: bool = False) -> Sample:
    """sum_j (a b)[i,j] * ((c e)[i,j] + t[j]) * b[j,k], where j <= i if `causal`: two products come
    first, and the last one multiplies what one of them has read.
    """
    kinds = {"a": (m, d), "b": (n, d), "c": (m, d), "e": (n, d)}
    t, y = buffers(t=(n,), y=(m, d))
    a, b, c, e = (Buffer(name, shape, bfloat16, "input") for name, shape in kinds.items())
    start, body = Body(), Body()
    for one in (a, c):
        start.load(one.name, "i k", at(one, "i", "k"), dtype=bfloat16, memory="shared")
    for i in "ij":
        body.add(Position, f"at_{i}", i, index.var(i), dtype=int32)
    body.map("live", "i j", "greater_equal", "at_i", "at_j", dtype=bool_)
    body.load("b", "j k", at(b, "j", "k"), dtype=bfloat16, memory="shared")
    body.contract("p", "i j", "k", "a", "b", by(tiles[1]))
    body.load("t", "j", at(t, "j"))
    body.load("e", "j k", at(e, "j", "k"), dtype=bfloat16, memory="shared")
    body.contract("q", "i j", "k", "c", "e", by(tiles[1]))
    body.map("moved", "i j", "add", "q", "t")
    body.map("both", "i j", "mul", "p", "moved")
    body.literal("none", 0.0)
    if causal:
        body.map("both_live", "i j", "where", "live", "both", "none")
    body.map("narrow", "i j", "cast", body.statements[-1 - (not causal)].name, dtype=bfloat16)
    body.contract("part", "i k", "j", "narrow", "b", by(d, held=True))
    body.update("sum", "i k", "acc", "sum", "part")
    stream = (Axis("j", n, tiles[1]),)
    carry = Carry("acc", float32, ("i", "k"), "sum")
    phases = (
        start.phase(),
        body.phase(stream=stream, carries=(carry,)),
        Body().phase(Store(at(y, "i", "k"), "acc")),
    )
    random = np.random.default_rng(7)  # few ones: what is rounded to bfloat16 is small enough
    values = {x: random.choice([-1, 0, 0, 0, 1], shape) for x, shape in kinds.items()}
    values = {x: value.astype(bfloat16.numpy) for x, value in values.items()}
    values["t"] = random.integers(-3, 4, n).astype(np.float32)
    p, q = (wide(values[x]) @ wide(values[z]).T for x, z in ("ab", "ce"))
    weights = p * (q + values["t"])
    if causal:
        weights *= np.arange(m)[:, None] >= np.arange(n)
    kernel = Kernel(
        "gradient", (a, b, c, e, t, y), (Axis("i", m, tiles[0]),), (Axis("k", d, d),), phases
    )
    return Sample(kernel, values, {"y": weights @ wide(values["b"])}, 1e-6)


def two_sums(m: int, n: int, d: int, tiles: tuple[int, int]) -> Sample:
    """sum_j s[i,j] b[j,k] and sum_j (a b)[i,j] * s[i,j] * b[j,k]: a factor of the first sum is
    there before the product that the other waits for.
    """
    a, b = (Buffer(x, shape, bfloat16, "input") for x, shape in (("a", (m, d)), ("b", (n, d))))
    s, y, y2 = buffers(s=(m, n), y=(m, d), y2=(m, d))
    start, body = Body(), Body()
    start.load("a", "i k", at(a, "i", "k"), dtype=bfloat16, memory="shared")
    body.load("b", "j k", at(b, "j", "k"), dtype=bfloat16, memory="shared")
    body.load("s", "i j", at(s, "i", "j"))
    body.map("first", "i j", "cast", "s", dtype=bfloat16)
    body.contract("part_y", "i k", "j", "first", "b", by(d, held=True))
    body.update("sum_y", "i k", "acc_y", "sum", "part_y")
    body.contract("p", "i j", "k", "a", "b", by(tiles[1]))
    body.map("both", "i j", "mul", "p", "s")
    body.map("narrow", "i j", "cast", "both", dtype=bfloat16)
    body.contract("part_z", "i k", "j", "narrow", "b", by(d, held=True))
    body.update("sum_z", "i k", "acc_z", "sum", "part_z")
    carries = tuple(Carry(f"acc_{name}", float32, ("i", "k"), "sum") for name in "yz")
    phases = (
        start.phase(),
        body.phase(stream=(Axis("j", n, tiles[1]),), carries=carries),
        Body().phase(Store(at(y, "i", "k"), "acc_y"), Store(at(y2, "i", "k"), "acc_z")),
    )
    random = np.random.default_rng(11)
    drawn = {x: random.choice([-1, 0, 0, 1], shape) for x, shape in (("a", (m, d)), ("b", (n, d)))}
    values = {x: value.astype(bfloat16.numpy) for x, value in drawn.items()}
    values["s"] = random.integers(-1, 2, (m, n)).astype(np.float32)
    weights = (wide(values["a"]) @ (wide_b := wide(values["b"])).T) * values["s"]
    grid, given = (Axis("i", m, tiles[0]),), (a, b, s, y, y2)
    kernel = Kernel("two_sums", given, grid, (Axis("k", d, d),), phases)
    return Sample(kernel, values, {"y": values["s"] @ wide_b, "y2": weights @ wide_b}, 1e-6)


def convolution(
    shape: tuple[int, int, int, int],
    tiles: Tiles,
    columns: int,
    step: int = 1,
    stored: DType = float32,
    images: int = 0,
) -> Sample:
    """y[p,q,o] = sum x[step p+r-1, step q+s-1, c] w[r,s,c,o] in a stream over r, s, c; of so many
    `images`, where that is given, each.
    """
    height, width, channels, out = shape
    rows, cells = -(-height // step), -(-width // step)
    batch, several, of = ("b ", ("b",), (images,)) if images else ("", (), ())
    x, w = buffers(bfloat16, x=(*of, height, width, channels), w=(3, 3, channels, out))
    y = Buffer("y", (*of, rows, cells, out), stored, "output")
    b, end = Body(bfloat16), Body()
    down, right = (
        index.add(index.scale(index.var(a), step), index.var(c), index.const(-1))
        for a, c in ("pr", "qs")
    )
    guards = (Guard(down, 0, height), Guard(right, 0, width))
    b.load("a", f"{batch}p q r s c", at(x, *several, down, right, "c", guards=guards))
    b.load("f", "r s c o", at(w, "r", "s", "c", "o"))
    b.dtype = float32
    b.contract("m", f"{batch}p q o", "r s c", "a", "f", by(columns))
    b.update("next", f"{batch}p q o", "acc", "sum", "m")
    carry = Carry("acc", float32, (*several, "p", "q", "o"), "sum")
    axes = (Axis("r", 3, 1), Axis("s", 3, 1), Axis("c", channels, tiles[2]))
    stream = b.phase(stream=axes, carries=(carry,))
    phases = (stream, end.phase(Store(at(y, *several, "p", "q", "o"), "acc")))
    grid = (Axis("p", rows, tiles[0]), Axis("q", cells, tiles[1]), Axis("o", out, columns))
    grid = (*(Axis("b", images, 1) for _ in several), *grid)
    kernel = Kernel("convolution", (x, w, y), grid, (), phases)
    p, q = integers(x.shape, w.shape, dtype=bfloat16)
    padded = np.pad(wide(p), (*((0, 0) for _ in several), (1, 1), (1, 1), (0, 0)))
    answer = np.zeros(y.shape)
    for r in range(3):
        for s in range(3):
            part = padded[..., r : r + height : step, s : s + width : step, :]
            answer += part @ wide(q)[r, s]
    return Sample(kernel, {"x": p, "w": q}, {"y": answer}, 1e-6 if stored == float32 else 4e-3)


def biased(m: int, n: int, k: int, tiles: Tiles, columns: int) -> Sample:
    """gelu(x w + bias) in bfloat16"""
    return matmul(m, n, k, tiles, bfloat16, by(columns))


def banded(c: Case, band: int, **more: bool) -> Case:
    """The case with its tiles in another order."""
    return replace(c, kernel=replace(c.kernel, band=band, **more))


def pipeline_cases() -> Iterator[Case]:
    """Awkward sizes of every family: tiles that are partial, alone, several for each block."""
    for layout, size in (("nt", (70, 50, 40)), ("nn", (70, 56, 40)), ("tt", (72, 50, 40))):
        for stages in (1, 2, 4):
            sample = gemm(*size, (64, 64, 16 * stages), 64, layout)
            yield case(f"gemm-{layout}-{stages}", sample, 128, stages)
    sample = gemm(200, 136, 72, (64, 32, 32), 32, "tn", out=bfloat16)
    yield banded(case("gemm-tn-banded", sample, 128, 3), 2)
    yield banded(case("gemm-nt-banded", gemm(321, 99, 48, (64, 32, 32), 32), 128, 2), 4)
    yield case("gemm-tall", gemm(152, 64, 40, (128, 64, 32), 64, "tn"), 128, 2)
    yield case("gemm-two-rows", gemm(150, 64, 40, (128, 64, 64), 64, "nn"), 256, 2)
    yield case("gemm-two-columns", gemm(64, 136, 40, (64, 128, 32), 64, "tn"), 256, 2)
    yield case("gemm-wide", gemm(64, 256, 80, (64, 256, 64), 256, "tn", out=bfloat16), 128, 2)
    yield case("gemm-turned", gemm(13, 136, 40, (16, 128, 32), 16), 128, 3)
    yield case("gemm-triangle", triangle(gemm(200, 180, 96, (64, 64, 32), 64)), 128, 3)
    yield case("gemm-one", gemm(1, 1, 8, (64, 16, 16), 16), 128, 2)
    yield case("gemm-long-chunk", gemm(64, 32, 136, (64, 32, 128), 32), 128, 2)
    yield case("gemm-f16", gemm(70, 50, 40, (64, 48, 32), 48, dtype=float16), 128, 3)
    yield case("gemm-tf32", gemm(70, 50, 44, (64, 56, 16), 56, dtype=float32), 128, 2)
    yield case("gemm-tf32-wide", gemm(70, 50, 44, (128, 64, 32), 64, dtype=float32), 256, 2)
    yield case("gemm-s8", gemm(70, 50, 80, (64, 64, 64), 64, dtype=int8), 128, 2)
    for layout in ("tt", "nn"):  # a factor that lies across the sum is gathered into registers
        for stages in (1, 3):
            sample = gemm(136, 72, 40, (128, 64, 16), 64, layout, float32, held=True)
            yield case(f"gemm-tf32-{layout}-{stages}", sample, 256, stages)
    sample = gemm(72, 264, 72, (64, 256, 32), 256, "tt", float32, held=True)
    yield case("gemm-tf32-across-wide", sample, 128, 3)
    sample = gemm(136, 72, 40, (128, 64, 32), 64, "tt", float32, held=True)
    yield case("gemm-tf32-across-rows", sample, 128, 2)  # two fragments of a thread
    yield case("gemm-tf32-across-stacked", stacked((5, 40), 50, 40, (2, 32, 16), 64), 128, 2)
    yield case("gemm-s8-across", gemm(80, 50, 80, (64, 64, 64), 64, "tt", int8), 128, 2)
    sample = gemm(70, 50, 80, (64, 64, 64), 64, dtype=int8, other=uint8)
    yield case("gemm-s8-u8", sample, 128, 2)
    yield case("batched", batched(70, 50, 40, (64, 64, 32), 64), 128, 2)
    yield banded(case("in-turn", batched(130, 70, 40, (64, 64, 32), 64), 128, 2), 4, uneven=True)
    yield case("at-once", at_once(70, 104, 40, (64, 64), 64), 128)
    yield case("at-once-wide", at_once(70, 256, 128, (64, 256), 256), 128)  # no room for two tiles
    yield case("swiglu", swiglu(70, 104, 40, (64, 64, 32), 64), 128, 2)
    yield case("biased", biased(70, 56, 40, (64, 32, 32), 32), 128, 3)
    for side in ("left", "right"):
        for stages in (1, 3):
            sample = scaled(70, 50, 72, (64, 64, 32), 64, side)
            yield case(f"scaled-{side}-{stages}", sample, 128, stages)
    for size, tile in (((70, 50, 200), 128), ((136, 50, 72), 128), ((256, 50, 200), 48)):
        sample = scaled(*size, (128, 64, tile), 64, memory="shared")
        yield case(f"scaled-shared-{size[0]}", sample, 256, 2)
    yield case("attention-odd", attention(136, 77, 64, (128, 32), "added"), 256, 2)
    shorter = case("attention-shorter", attention(200, 80, 64, (64, 32), "causal"), 128, 2)
    yield banded(shorter, 1, uneven=True)
    yield case("attention-alone", attention(70, 80, 64, (64, 32)), 128, 1)
    for mask in ("", "added", "causal", "window"):
        for size, tiles in (((70, 80, 64), (64, 32)), ((130, 152, 48), (128, 48))):
            sample = attention(*size, tiles, mask)
            name = f"attention-{size[2]}-{mask or 'plain'}"
            yield case(name, sample, 2 * tiles[0] if mask else 128, 2)
    for causal in (False, True):  # of 48 rows what is copied for one stream begins in another line
        for size, tiles, stages in (((70, 96, 64), (64, 32), 3), ((130, 192, 48), (128, 64), 4)):
            name = f"gradient-{size[2]}-{'causal' if causal else 'plain'}"
            sample = gradient(*size, tiles, causal)
            yield case(name, sample, 2 * tiles[0], stages)
    yield case("gradient-held", gradient(130, 192, 64, (128, 64)), 256, 7)  # a block to itself
    yield case("two-sums", two_sums(70, 160, 64, (64, 32)), 128, 3)
    yield case("gradient-two-slots", gradient(70, 96, 64, (64, 32)), 128, 2)
    yield case("convolution", convolution((9, 10, 24, 40), (4, 16, 16), 32), 128, 3)
    for k, stages in ((200, 3), (136, 3), (144, 4), (264, 3)):  # chunks and slots of a team's tile
        sample = gemm(200, 264, k, (64, 256, 64), 256, "nt" if k % 16 else "nn", out=bfloat16)
        yield banded(case(f"two-teams-{k}", sample, 128, stages), 1, uneven=k == 144)
    yield case("two-teams-biased", biased(70, 520, 136, (64, 256, 64), 256), 128, 3)
    yield from stored_by_boxes()
    yield case("convolution-strided", convolution((11, 13, 16, 32), (8, 8, 16), 32, 2), 128, 2)


def stored_by_boxes() -> Iterator[Case]:
    """Tiles that reach beyond the result, in areas of each swizzle; rows along two indices."""
    for name, size, tiles, stages in (
        ("clipped", (150, 200, 72), (128, 128, 32), 2),
        ("two-areas", (136, 264, 72), (128, 256, 64), 4),  # as much as fits, of four passes
        ("two-rows", (300, 136, 40), (256, 128, 32), 2),
        ("half-lines", (150, 88, 40), (128, 32, 32), 2),
        ("quarter-lines", (150, 40, 40), (128, 16, 32), 2),
    ):
        sample = gemm(*size, tiles, tiles[1], "nn", out=bfloat16)
        yield case(f"boxes-{name}", sample, 256, stages)
    sample = gemm(150, 200, 72, (128, 128, 32), 128, dtype=float16, out=float16)
    yield case("boxes-f16", sample, 256, 2)
    for name, tiles, step in (("image", (8, 16, 16), 1), ("image-strided", (16, 8, 16), 2)):
        sample = convolution((19, 21, 24, 72), tiles, 64, step, bfloat16)
        yield case(f"boxes-{name}", sample, 256, 2)
    sample = convolution((12, 13, 24, 72), (8, 16, 16), 64, 1, bfloat16, images=2)
    yield case("boxes-images", sample, 256, 2)
