"""The kernels on which the CUDA target is tested, each with its inputs and its answer."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from kernel_building import Body, Sample, at, buffers, normal
from kernel_building import arrays as sample_arrays
from kernel_outer import distances
from kernel_products import attention_online, matmul, matmul_batched, scaled_pairs
from kernels import SAMPLES
from narrow_cases import narrow_rows

from eqsat.codegen import oracle
from eqsat.graph import index
from eqsat.graph.dtypes import DTYPES, DType, bfloat16, float16, float32, float64, int8, int32
from eqsat.graph.ops import OPS
from eqsat.kernel.ir import (
    Access,
    Axis,
    Buffer,
    Carry,
    Coordinate,
    Guard,
    Kernel,
    Load,
    Phase,
    Store,
)

BF16 = "mma.sync.aligned.m16n8k16.row.col"
K8 = "mma.sync.aligned.m16n8k8.row.col"
K4 = "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32"
S8 = "mma.sync.aligned.m16n8k32.row.col"
SIZES = ((7, 16, 5), (8, 15, 4), (33, 37, 19), (1, 1, 1), (9, 17, 11))


@dataclass(frozen=True)
class Case:
    """A kernel for a block of GPU threads, and the sample that it came from."""

    name: str
    sample: Sample
    kernel: Kernel


def case(name: str, sample: Sample, threads: int = 64, stages: int = 0, shared: bool = False):
    """The sample's kernel with threads, ring stages in its streams, and loads made shared."""
    phases = []
    for phase in sample.kernel.phases:
        body = tuple(
            replace(s, memory="shared") if shared and isinstance(s, Load) else s for s in phase.body
        )
        depth = stages if stages and phase.stream else phase.stages
        phases.append(replace(phase, body=body, stages=depth))
    plain = "".join(c if c.isalnum() else "_" for c in name)
    kernel = replace(sample.kernel, name=plain, threads=threads, phases=tuple(phases))
    return Case(name, sample, kernel)


def scalar_cases() -> Iterator[Case]:
    """Every sample without a library call, loads in registers and in shared memory."""
    for name, build in SAMPLES.items():
        if "cblas" in repr(build(1, 1, 1).kernel):
            continue
        for size in SIZES:
            label = f"{name}-{'x'.join(map(str, size))}"
            yield case(label, build(*size))
            yield case(f"{label}-shared", build(*size), threads=96, stages=3, shared=True)
        yield case(f"{name}-wide", build(3, 256, 64, (2, 256, 32)), threads=128)


def matrix_cases() -> Iterator[Case]:
    """Matrix operations: every operand form, tiles that fit and tiles that do not."""
    for size in ((33, 37, 19), (64, 64, 32), (1, 1, 1), (17, 24, 40)):
        for tiles in ((32, 16, 16), (48, 40, 32)):
            label = f"{'x'.join(map(str, (*size, *tiles)))}"
            for stages in (1, 2, 3):
                sample = matmul(*size, tiles, bfloat16, BF16)
                yield case(f"matmul-bf16-{label}-stages{stages}", sample, 128, stages)
            yield case(f"matmul-f16-{label}", matmul(*size, tiles, float16, K8), 32)
            sample = replace(matmul(*size, tiles, float32, K8), tolerance=2e-2)
            yield case(f"matmul-tf32-{label}", sample, 96)
            yield case(f"product-s8-{label}", product(size, tiles, int8, int32, S8), 64, 2)
            yield case(f"transposed-{label}", product(size, tiles, bfloat16, float32, BF16, True))
        for operation in (K8, K4):
            batched = replace(matmul_batched(*size, (32, 16, 8), operation), tolerance=2e-2)
            yield case(f"batched-{label}-{operation[22:24]}", batched)
            online = replace(attention_online(*size, (32, 16, 8), operation), tolerance=2e-2)
            yield case(f"attention-tf32-{label}-{operation[22:24]}", online, 64, 2)
        for threads in (32, 64, 256):
            yield case(f"flash-{label}-{threads}", flash(*size, (32, 32, 1)), threads, 2)
        yield case(f"normalised-{label}", normalised(*size, (32, 16, 16)), 64)
    for size in ((6, 9, 20), (3, 21, 8), (1, 1, 1)):
        for tiles in ((2, 4, 16), (1, 14, 8), (3, 8, 32), (4, 20, 16)):
            label = f"{'x'.join(map(str, (*size, *tiles)))}"
            sample = convolution(*size, tiles, BF16)
            yield case(f"convolution-{label}", sample, 64, 2)
            sample = convolution(*size, tiles, BF16, doubled=True)
            yield case(f"convolution-computed-{label}", sample, 128, 2)
            yield case(f"convolution-scalar-{label}", convolution(*size, tiles, ""), 64, 3)


def product(
    size: tuple[int, int, int],
    tiles: tuple[int, int, int],
    dtype: DType,
    result: DType,
    operation: str,
    transposed: bool = False,
) -> Sample:
    """y[i,j] = sum_l x[i,l] w[l,j], or from x[l,i] and w[j,l], of size m, n, k"""
    m, n, k = size
    shapes = {"x": (k, m), "w": (n, k)} if transposed else {"x": (m, k), "w": (k, n)}
    x, w = buffers(dtype, **shapes)
    y = Buffer("y", (m, n), result, "output")
    b, end = Body(dtype), Body(result)
    b.load("a", "i l", at(x, "l", "i") if transposed else at(x, "i", "l"))
    b.load("f", "l j", at(w, "j", "l") if transposed else at(w, "l", "j"))
    b.dtype = result
    b.contract("p", "i j", "l", "a", "f", operation)
    b.update("next", "i j", "acc", "sum", "p")
    carry = Carry("acc", result, ("i", "j"), "sum")
    stream = b.phase(stream=(Axis("l", k, tiles[2]),), carries=(carry,))
    grid = (Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    phases = (stream, end.phase(Store(at(y, "i", "j"), "acc")))
    random = np.random.default_rng(3)
    p, q = (random.integers(-9, 9, b.shape).astype(dtype.numpy) for b in (x, w))
    a, b = (array.astype(np.int64) for array in ((p.T, q.T) if transposed else (p, q)))
    return Sample(Kernel("product", (x, w, y), grid, (), phases), {"x": p, "w": q}, {"y": a @ b})


def flash(m: int, n: int, k: int, tiles: tuple[int, int, int], operation: str = BF16) -> Sample:
    """bfloat16 attention over a stream of keys, the weights cast for the second product"""
    q, key, v, y = buffers(bfloat16, q=(m, k), key=(n, k), v=(n, k), y=(m, k))
    start, b, end = Body(bfloat16), Body(), Body()
    start.load("a", "i d", at(q, "i", "d"), memory="shared")
    b.load("c", "j d", at(key, "j", "d"), dtype=bfloat16)
    b.load("u", "j f", at(v, "j", "f"), dtype=bfloat16)
    b.contract("p", "i j", "d", "a", "c", operation)
    b.reduce("top", "i", "max", "j", "p")
    b.update("high", "i", "hi", "max", "top")
    b.map("shrink", "i", "exp_difference", "hi", "high")
    b.map("e", "i j", "exp_difference", "p", "high")
    b.reduce("sum", "i", "sum", "j", "e")
    b.update("weights", "i", "z", "sum", "sum", "shrink")
    b.map("w", "i j", "cast", "e", dtype=bfloat16)
    b.contract("part", "i f", "j", "w", "u", operation)
    b.update("next", "i f", "acc", "sum", "part", "shrink")
    carries = (
        Carry("hi", float32, ("i",), "max"),
        Carry("z", float32, ("i",), "sum", "hi"),
        Carry("acc", float32, ("i", "f"), "sum", "hi"),
    )
    stream = b.phase(stream=(Axis("j", n, tiles[1]),), carries=carries)
    end.map("out", "i f", "div", "acc", "z")
    phases = (start.phase(), stream, end.phase(Store(at(y, "i", "f"), "out")))
    inner = (Axis("d", k, k), Axis("f", k, k))
    kernel = Kernel("flash", (q, key, v, y), (Axis("i", m, tiles[0]),), inner, phases)
    random = np.random.default_rng(5)
    arrays = [random.standard_normal(s.shape).astype(bfloat16.numpy) for s in (q, key, v)]
    wide = [a.astype(np.float64) for a in arrays]
    scores = wide[0] @ wide[1].T
    e = np.exp(scores - scores.max(1, keepdims=True))
    answer = e @ wide[2] / e.sum(1, keepdims=True)
    return Sample(kernel, dict(zip(("q", "key", "v"), arrays, strict=True)), {"y": answer}, 2e-2)


def normalised(m: int, n: int, k: int, tiles: tuple[int, int, int]) -> Sample:
    """y[i,j] = sum_l bf16(x[i,l] / |x[i]|) bf16(2 w[l,j]), both factors computed in the tile"""
    x, w, y = buffers(x=(m, k), w=(k, n), y=(m, n))
    start, b, end = Body(), Body(), Body()
    start.load("x0", "i t", at(x, "i", "t"))
    start.map("x1", "i t", "square", "x0")
    start.reduce("s", "i", "sum", "t", "x1")
    b.load("a", "i l", at(x, "i", "l"))
    b.map("r", "i", "rsqrt", "s")
    b.map("a1", "i l", "mul", "a", "r")
    b.map("a2", "i l", "cast", "a1", dtype=bfloat16)
    b.load("f", "l j", at(w, "l", "j"))
    b.literal("two", 2.0)
    b.map("f1", "l j", "mul", "f", "two")
    b.map("f2", "l j", "cast", "f1", dtype=bfloat16)
    b.contract("p", "i j", "l", "a2", "f2", BF16)
    b.update("next", "i j", "acc", "sum", "p")
    carry = Carry("acc", float32, ("i", "j"), "sum")
    stream = b.phase(stream=(Axis("l", k, tiles[2]),), carries=(carry,))
    phases = (start.phase(), stream, end.phase(Store(at(y, "i", "j"), "acc")))
    grid = (Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    kernel = Kernel("normalised", (x, w, y), grid, (Axis("t", k, k),), phases)
    random = np.random.default_rng(6)
    p, q = (random.standard_normal(b.shape).astype(np.float32) for b in (x, w))
    unit = p / np.sqrt((p * p).sum(1, keepdims=True))
    answer = unit.astype(np.float64) @ (2 * q.astype(np.float64))
    return Sample(kernel, {"x": p, "w": q}, {"y": answer}, 3e-2)


def convolution(
    height: int,
    width: int,
    channels: int,
    tiles: tuple[int, int, int],
    operation: str,
    doubled: bool = False,
) -> Sample:
    """y[p,q,h,o] = sum x[p+r-1,q+s-1,c] w[r,s,c,h,o] in a stream over r, s, c; two row and two
    column indices; `doubled`: of 2 x, computed in the tile"""
    x, w, y = buffers(
        bfloat16,
        x=(height, width, channels),
        w=(3, 3, channels, 2, 5),
        y=(height, width, 2, 5),
    )
    b, end = Body(bfloat16), Body()
    down, right = (index.add(index.var(a), index.var(c), index.const(-1)) for a, c in ("pr", "qs"))
    guards = (Guard(down, 0, height), Guard(right, 0, width))
    b.load("a", "p q r s c", at(x, down, right, "c", guards=guards), memory="shared")
    b.load("f", "r s c h o", at(w, "r", "s", "c", "h", "o"), memory="shared")
    if doubled:
        b.map("a2", "p q r s c", "add", "a", "a")
    b.dtype = float32
    b.contract("m", "p q h o", "r s c", "a2" if doubled else "a", "f", operation)
    b.update("next", "p q h o", "acc", "sum", "m")
    carry = Carry("acc", float32, ("p", "q", "h", "o"), "sum")
    axes = (Axis("r", 3, 1), Axis("s", 3, 3), Axis("c", channels, tiles[2]))
    stream = b.phase(stream=axes, carries=(carry,))
    end_phase = end.phase(Store(at(y, "p", "q", "h", "o"), "acc"))
    grid = (Axis("p", height, tiles[0]), Axis("q", width, tiles[1]))
    inner = (Axis("h", 2, 2), Axis("o", 5, 5))
    kernel = Kernel("convolution", (x, w, y), grid, inner, (stream, end_phase))
    random = np.random.default_rng(9)
    p, q = (random.integers(-3, 4, b.shape).astype(bfloat16.numpy) for b in (x, w))
    padded = np.pad(p.astype(np.int64), ((1, 1), (1, 1), (0, 0)))
    answer = np.zeros(y.shape)
    for r in range(3):
        for s in range(3):
            part = padded[r : r + height, s : s + width]
            answer += np.einsum("pqc,cho->pqho", part, q[r, s].astype(np.int64))
    return Sample(kernel, {"x": p, "w": q}, {"y": answer * (1 + doubled)}, 1e-2)


def elementwise_cases() -> Iterator[Case]:
    """Every elementwise op on every dtype that it takes, and every cast; values with edges."""
    for dtype in DTYPES:
        yield case(f"ops-{dtype}", all_ops(dtype), 32)


def edge_values(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of some ordinary and extreme values."""
    if dtype.kind == "float":
        values = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1.5, 3.0, 0.3, -7.25, np.inf, -np.inf, np.nan]
    elif dtype.kind == "bool":
        values = [False, True]
    else:
        limits = np.iinfo(dtype.numpy)
        values = [0, 1, 2, 3, 7, 31, limits.max, limits.max - 1]
        values += [-1, -2, -7, limits.min, limits.min + 1] if dtype.kind == "int" else []
    one = np.array(values).astype(dtype.numpy)
    a, b = (grid.ravel() for grid in np.meshgrid(one, one, indexing="ij"))
    return np.ascontiguousarray(a), np.ascontiguousarray(b)


def all_ops(dtype: DType) -> Sample:
    """One output for each op that takes the dtype, named after it; answers from the oracle."""
    a, b = edge_values(dtype)
    n = a.size
    inputs = [Buffer(name, (n,), dtype, "input") for name in ("x", "w")]
    b_ = Body(dtype)
    b_.load("x", "i", at(inputs[0], "i"))
    b_.load("w", "i", at(inputs[1], "i"))
    outputs, stores = [], []
    unary = ["x"], ["x", "w"]
    b_.map("c", "i", "equal", "x", "w", dtype=oracle_bool())
    for op in OPS.values():
        if not op.elementwise:
            continue
        for result in DTYPES if op.name == "cast" else (None,):
            operands = ["c", "x", "w"] if op.name == "where" else unary[op.arity - 1]
            given = oracle_result(op, dtype, result)
            if given is None:
                continue
            name = f"{op.name}_{given}"
            b_.map(name, "i", op.name, *operands, dtype=given)
            outputs.append(Buffer(f"y_{name}", (n,), given, "output"))
            stores.append(Store(at(outputs[-1], "i"), name))
    phase = Phase((), tuple(b_.statements), (), tuple(stores))
    kernel = Kernel("ops", (*inputs, *outputs), (Axis("i", n, 64),), (), (phase,))
    sample = Sample(kernel, {"x": a, "w": b}, {})
    found = sample_arrays(sample)
    oracle.run(kernel, found)
    narrow = {"float16": 2e-3, "bfloat16": 1e-2, "float8_e4m3fn": 2**-4, "float8_e5m2": 2**-3}
    tolerance = (narrow | {"float64": 1e-12}).get(dtype.name, 2e-6)
    return replace(sample, expected={b.name: found[b.name] for b in outputs}, tolerance=tolerance)


def oracle_bool() -> DType:
    return next(dtype for dtype in DTYPES if dtype.kind == "bool")


def oracle_result(op, dtype: DType, target: DType | None) -> DType | None:
    """The dtype of an op's result on operands of `dtype`, or None where it takes no such."""

    @dataclass(frozen=True)
    class Operand:
        shape: tuple[int, ...]
        dtype: DType

    operands = [Operand((1,), dtype)] * op.arity
    if op.name == "where":
        operands[0] = Operand((1,), oracle_bool())
    if op.name == "cast":
        undefined = dtype.kind == "float" and target.kind in ("int", "uint")
        return None if undefined else target  # NaN and inf have no integer value
    try:
        return op.dtype(op.name, operands, {}, None)
    except TypeError:
        return None


def other_cases() -> Iterator[Case]:
    """What the samples do not show: several stores, float to integer casts, wide reductions."""
    yield case("float-to-int", float_to_int(), 32)
    for size in ((5, 700), (1, 1), (9, 257)):
        yield case(f"matvec-{size[0]}x{size[1]}", matvec(*size), 128)
        for shared in (False, True):
            label = f"gather-sum-{size[0]}x{size[1]}-{shared}"
            yield case(label, gather_sum(*size), 64, 3, shared)
    for n, dtype, stages in ((7, float32, 1), (40, float16, 1), (64, float32, 3)):
        yield case(f"records-{n}", records(37, n, dtype, 8), 64, stages)
    yield case("distances", distances(37, 45), 64)
    for dtype in (float32, float64):
        yield case(f"angles-{dtype}", angles(50, dtype), 32)
    yield case("scaled-pairs", scaled_pairs(37, 45, 24), 256)
    yield case("records-of-steps", records(37, 20, float32, 1), 64, 2)
    yield case("staged-steps", staged_steps(40, 64, 13), 64, 2)
    for dtype in DTYPES:
        yield case(f"totals-{dtype}", totals(dtype), 128)
    for name in ("row_scan", "row_recurrence"):
        yield case(f"{name}-of-long-rows", SAMPLES[name](2, 1300, 1, (1, 1, 1)), 64)
        yield case(f"{name}-by-warps", SAMPLES[name](5, 512, 1, (2, 1, 1)), 128)
    for threads in (32, 128):
        yield case(f"recurrence-{threads}", SAMPLES["recurrence"](40, 13, 16, (32, 1, 1)), threads)


def matvec(m: int, k: int) -> Sample:
    """y[i] = sum_l x[i,l] w[l] in a stream; the threads' parts are joined after it"""
    x, w, y = buffers(x=(m, k), w=(k,), y=(m,))
    b, end = Body(), Body()
    b.load("a", "i l", at(x, "i", "l"))
    b.load("f", "l", at(w, "l"))
    b.contract("p", "i", "l", "a", "f")
    b.update("next", "i", "acc", "sum", "p")
    stream = (Axis("l", k, 128),)
    phase = b.phase(stream=stream, carries=(Carry("acc", float32, ("i",), "sum"),))
    phases = (phase, end.phase(Store(at(y, "i"), "acc")))
    p, q = normal((m, k), (k,))
    answer = p.astype(np.float64) @ q
    kernel = Kernel("matvec", (x, w, y), (Axis("i", m, 4),), (), phases)
    return Sample(kernel, {"x": p, "w": q}, {"y": answer}, 1e-4)


def staged_steps(m: int, n: int, k: int) -> Sample:
    """y[i] = sum_lj x[i,l] w[j,l] in single steps over l; w is copied ahead as tiles"""
    x, w, y = buffers(x=(m, k), w=(n, k), y=(m,))
    b, end = Body(), Body()
    b.load("f", "j l", at(w, "j", "l"), memory="shared")
    b.load("a", "i l", at(x, "i", "l"))
    b.contract("p", "i", "j l", "a", "f")
    b.update("next", "i", "acc", "sum", "p")
    carry = Carry("acc", float32, ("i",), "sum")
    phase = b.phase(stream=(Axis("l", k, 1),), carries=(carry,))
    phases = (phase, end.phase(Store(at(y, "i"), "acc")))
    p, q = normal((m, k), (n, k))
    answer = p.astype(np.float64) @ q.sum(axis=0, dtype=np.float64)
    inner = (Axis("j", n, n),)
    kernel = Kernel("staged_steps", (x, w, y), (Axis("i", m, 16),), inner, phases)
    return Sample(kernel, {"x": p, "w": q}, {"y": answer}, 1e-4)


def gather_sum(m: int, k: int) -> Sample:
    """y[j] = sum_l w[l] x[ids[l],j] where ids[l] is in range, in a stream over l"""
    x, w = buffers(x=(6, m), w=(k,))
    ids, y = Buffer("ids", (k,), int32, "input"), Buffer("y", (m,), float32, "output")
    b, end = Body(), Body()
    b.load("f", "l", at(w, "l"))
    b.load("r", "l", at(ids, "l"), dtype=int32)
    row = Access("x", index.var("j"), coordinates=(Coordinate("r", m, 6),))
    b.load("a", "l j", row)
    b.map("p", "l j", "mul", "a", "f")
    b.reduce("s", "j", "sum", "l", "p")
    b.update("next", "j", "acc", "sum", "s")
    stream = (Axis("l", k, 16),)
    phase = b.phase(stream=stream, carries=(Carry("acc", float32, ("j",), "sum"),))
    phases = (phase, end.phase(Store(at(y, "j"), "acc")))
    p, q = normal((6, m), (k,))
    rows = np.random.default_rng(4).integers(-1, 7, k).astype(np.int32)
    exists = (rows >= 0) & (rows < 6)
    answer = (q.astype(np.float64) * exists) @ p[np.clip(rows, 0, 5)]
    kernel = Kernel("gather_sum", (x, ids, w, y), (Axis("j", m, 4),), (), phases)
    return Sample(kernel, {"x": p, "ids": rows, "w": q}, {"y": answer}, 1e-4)


def records(m: int, n: int, dtype: DType, stream: int) -> Sample:
    """y[i] = sum_j (x[i,0] + x[i,3]) t[ids[j],2] t[ids[j],1], -1 for either out of range; y_next[i]
    = x[i+1,2] - x[i+1,1], 0 at the end: fields of records that do not all exist
    """
    x, t = Buffer("x", (m, 4), dtype, "input"), Buffer("t", (6, 4), dtype, "input")
    ids, (y, z) = Buffer("ids", (n,), int32, "input"), buffers(y=(m,), y_next=(m,))
    b, end = Body(), Body()
    b.load("r", "j", at(ids, "j"), dtype=int32)
    for field in (2, 1):
        row = Access("t", index.const(field), coordinates=(Coordinate("r", 4, 6),))
        b.load(f"t{field}", "j", row, fill=-1)
    for field in (0, 3):
        b.load(f"x{field}", "i", at(x, "i", index.const(field)))
    b.map("u", "i", "add", "x0", "x3")
    b.map("v", "j", "mul", "t1", "t2")
    b.map("p", "i j", "mul", "u", "v")
    b.reduce("s", "i", "sum", "j", "p")
    b.update("next", "i", "acc", "sum", "s")
    following = index.add(index.var("i"), index.const(1))
    exists = (Guard(following, 0, m),)
    for field in (1, 2):
        end.load(f"z{field}", "i", at(x, following, index.const(field), guards=exists), fill=7)
    end.map("w", "i", "sub", "z2", "z1")
    phase = b.phase(stream=(Axis("j", n, stream),), carries=(Carry("acc", float32, ("i",), "sum"),))
    phases = (phase, end.phase(Store(at(y, "i"), "acc"), Store(at(z, "i"), "w")))
    p, q = normal((m, 4), (6, 4), dtype=dtype)
    rows = np.random.default_rng(4).integers(-1, 7, n).astype(np.int32)
    taken = q.astype("d")[np.clip(rows, 0, 5)]
    products = np.where((rows >= 0) & (rows < 6), taken[:, 1] * taken[:, 2], 1.0)
    after = np.append(p[1:].astype("d"), np.full((1, 4), 7.0), axis=0)
    whole = (p[:, 0].astype("d") + p[:, 3]) * products.sum()
    answers = {"y": whole, "y_next": after[:, 2] - after[:, 1]}
    kernel = Kernel("records", (x, t, ids, y, z), (Axis("i", m, 16),), (), phases)
    return Sample(kernel, {"x": p, "t": q, "ids": rows}, answers, 1e-4)


def angles(n: int, dtype: DType) -> Sample:
    """y[i] = sin(x[i]) cos(x[i]) + sin(z[i])"""
    x, z, y = (Buffer(name, (n,), dtype, "output" if name == "y" else "input") for name in "xzy")
    b = Body(dtype)
    b.load("a", "i", at(x, "i"))
    b.load("b", "i", at(z, "i"))
    b.map("s", "i", "sin", "a")
    b.map("p", "i", "mul", "s", b.map("c", "i", "cos", "a"))
    b.map("r", "i", "add", "p", b.map("t", "i", "sin", "b"))
    values = [np.linspace(-9, 9, n).astype(dtype.numpy), np.linspace(0, 40, n).astype(dtype.numpy)]
    first, other = (one.astype("d") for one in values)
    answer = np.sin(first) * np.cos(first) + np.sin(other)
    kernel = Kernel(
        "angles", (x, z, y), (Axis("i", n, 16),), (), (b.phase(Store(at(y, "i"), "r")),)
    )
    return Sample(kernel, dict(zip("xz", values, strict=True)), {"y": answer}, 1e-5)


def float_to_int() -> Sample:
    """Casts of ordinary floats to every integer dtype"""
    x = Buffer("x", (50,), float32, "input")
    b = Body()
    b.load("a", "i", at(x, "i"))
    outputs, stores = [], []
    values = np.linspace(-99, 99, 50, dtype=np.float32)
    for dtype in DTYPES:
        if dtype.kind == "int":
            b.map(dtype.name, "i", "cast", "a", dtype=dtype)
            outputs.append(Buffer(f"y_{dtype}", (50,), dtype, "output"))
            stores.append(Store(at(outputs[-1], "i"), dtype.name))
    kernel = Kernel("casts", (x, *outputs), (Axis("i", 50, 16),), (), (b.phase(*stores),))
    answers = {y.name: values.astype(y.dtype.numpy) for y in outputs}
    return Sample(kernel, {"x": values}, answers)


def totals(dtype: DType) -> Sample:
    """Sum, product, maximum and minimum of 5 rows of 300, by whole blocks, one row per tile"""
    x = Buffer("x", (5, 300), dtype, "input")
    b = Body(dtype)
    b.load("a", "i j", at(x, "i", "j"))
    values = np.ones((5, 300), dtype.numpy)
    values[:, ::77] = 0 if dtype.kind == "bool" else 2
    outputs, stores, answers = [], [], {}
    for monoid, function in oracle.MONOIDS.items():
        b.reduce(monoid, "i", monoid, "j", "a")
        outputs.append(Buffer(f"y_{monoid}", (5,), dtype, "output"))
        stores.append(Store(at(outputs[-1], "i"), monoid))
        wide = values.astype(dtype.compute.numpy)
        answer = function.reduce(wide, axis=1, dtype=wide.dtype).astype(dtype.numpy)
        answers[outputs[-1].name] = answer.astype(wide.dtype)
    inner = (Axis("j", 300, 300),)
    kernel = Kernel("totals", (x, *outputs), (Axis("i", 5, 2),), inner, (b.phase(*stores),))
    return Sample(kernel, {"x": values}, answers, 1e-12)


@cache
def all_cases() -> list[Case]:
    cases = [*scalar_cases(), *matrix_cases(), *elementwise_cases(), *other_cases()]
    cases += [case(name, *rest) for name, *rest in narrow_rows()]
    assert len({c.kernel.name for c in cases}) == len(cases)
    return cases
