"""Kernels whose stores or loads run across the lanes that hold the points."""

from collections.abc import Iterator
from math import prod
from random import Random

import numpy as np
from cuda_cases import BF16, S8, Case, case
from kernel_building import Body, Sample, at, buffers, wide

from eqsat.graph import index
from eqsat.graph.dtypes import (
    DType,
    bfloat16,
    float16,
    float32,
    float64,
    int8,
    int32,
    uint8,
)
from eqsat.kernel.ir import Axis, Buffer, Carry, Guard, Kernel, Store

SIZES = ((33, 37), (64, 64), (1, 100), (130, 257))


def integers(buffer: Buffer) -> np.ndarray:
    """Numbers that every dtype holds and that products and sums of a few hundred keep exact."""
    random = np.random.default_rng(len(buffer.name) + buffer.size)
    return random.integers(-4, 5, buffer.shape).astype(buffer.dtype.numpy)


def transposed(m: int, n: int, tile: tuple[int, int], dtype: DType) -> Sample:
    """y[j,i] = x[i,j]"""
    x, y = buffers(dtype, x=(m, n), y=(n, m))
    b = Body(dtype)
    b.load("a", "i j", at(x, "i", "j"))
    grid = (Axis("i", m, tile[0]), Axis("j", n, tile[1]))
    phase = b.phase(Store(at(y, "j", "i"), "a"))
    a = integers(x)
    answer = a.T if dtype.kind == "int" else wide(a).T
    return Sample(Kernel("transposed", (x, y), grid, (), (phase,)), {"x": a}, {"y": answer})


def permuted(shape: tuple[int, int, int], order: str, tiles: tuple[int, int, int], dtype: DType):
    """x[i,j,k] stored in another order of its indices"""
    names = "ijk"
    x, y = buffers(dtype, x=shape, y=tuple(shape[names.index(name)] for name in order))
    b = Body(dtype)
    b.load("a", "i j k", at(x, *names))
    grid = tuple(Axis(*axis) for axis in zip(names, shape, tiles, strict=True))
    phase = b.phase(Store(at(y, *order), "a"))
    a = integers(x)
    answer = wide(a).transpose([names.index(name) for name in order])
    return Sample(Kernel("permuted", (x, y), grid, (), (phase,)), {"x": a}, {"y": answer})


def split(m: int, n: int, tile: tuple[int, int], dtype: DType) -> Sample:
    """y[j,i] = x[i,j] for i >= 5 and j < n - 3, and y_sum[i,j] = x[i,j] + w[j,i]: loads and stores
    along both, some points of one store left out"""
    x, w, y, y_sum = buffers(dtype, x=(m, n), w=(n, m), y=(n, m), y_sum=(m, n))
    b = Body(dtype)
    b.load("a", "i j", at(x, "i", "j"))
    b.load("c", "i j", at(w, "j", "i"))
    b.map("s", "i j", "add", "a", "c")
    guards = (Guard(index.var("i"), 5, m), Guard(index.var("j"), 0, n - 3))
    stores = (Store(at(y, "j", "i", guards=guards), "a"), Store(at(y_sum, "i", "j"), "s"))
    grid = (Axis("i", m, tile[0]), Axis("j", n, tile[1]))
    p, q = integers(x), integers(w)
    answer = wide(p).T.copy()
    answer[:, :5] = answer[max(n - 3, 0) :] = np.nan
    expected = {"y": answer, "y_sum": wide(p) + wide(q).T}
    kernel = Kernel("split", (x, w, y, y_sum), grid, (), (b.phase(*stores),))
    return Sample(kernel, {"x": p, "w": q}, expected)


def product(
    m: int,
    n: int,
    tiles: tuple[int, int],
    output: DType = bfloat16,
    across: bool = False,
    residual: bool = True,
    operand: DType = bfloat16,
) -> Sample:
    """y = x w + r for matrices of 40 summed points; `across`: y and r transposed"""
    total = float32 if operand == bfloat16 else int32
    x, w = buffers(operand, x=(m, 40), w=(40, n))
    y, r = buffers(output, y=(n, m) if across else (m, n), r=(n, m) if across else (m, n))
    place = ("j", "i") if across else ("i", "j")
    b, end = Body(operand), Body(total)
    b.load("a", "i l", at(x, "i", "l"))
    b.load("f", "l j", at(w, "l", "j"))
    b.dtype = total
    b.contract("p", "i j", "l", "a", "f", BF16 if operand == bfloat16 else S8)
    b.update("next", "i j", "acc", "sum", "p")
    stream = b.phase(stream=(Axis("l", 40, 32),), carries=(Carry("acc", total, ("i", "j"), "sum"),))
    result = "acc"
    if residual:
        end.load("q", "i j", at(r, *place), dtype=output)
        end.map("q1", "i j", "cast", "q")
        result = end.map("s", "i j", "add", "acc", "q1")
    phases = (stream, end.phase(Store(at(y, *place), result)))
    grid = (Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    inputs = {one.name: integers(one) for one in (x, w, r)}
    answer = wide(inputs["x"]) @ wide(inputs["w"])
    answer = (answer.T if across else answer) + residual * wide(inputs["r"])
    if output.kind == "int":
        answer = answer.astype(output.numpy)
    buffers_ = (x, w, r, y)
    return Sample(Kernel("product", buffers_, grid, (), phases), inputs, {"y": answer}, 1e-2)


def beside(b: int, m: int, n: int, tiles: tuple[int, int, int]) -> Sample:
    """y[k,j,i] = x[k,i,j] + w[i,j] and y_w[j,i] = 2 w[i,j]: each warp of a block turns the latter
    by itself, after all of them have the former
    """
    x, w, y, y_w = buffers(float32, x=(b, m, n), w=(m, n), y=(b, n, m), y_w=(n, m))
    body = Body(float32)
    body.load("a", "k i j", at(x, "k", "i", "j"))
    body.load("c", "i j", at(w, "i", "j"))
    body.map("s", "k i j", "add", "a", "c")
    body.map("t", "i j", "add", "c", "c")
    stores = Store(at(y, "k", "j", "i"), "s"), Store(at(y_w, "j", "i"), "t")
    axes = zip("kij", (b, m, n), tiles, strict=True)
    grid = tuple(Axis(*axis) for axis in axes)
    kernel = Kernel("beside", (x, w, y, y_w), grid, (), (body.phase(*stores),))
    p, q = integers(x), integers(w)
    answer = {"y": (wide(p) + wide(q)).transpose(0, 2, 1), "y_w": 2 * wide(q).T}
    return Sample(kernel, {"x": p, "w": q}, answer)


def in_turn(m: int, n: int, tile: tuple[int, int]) -> Sample:
    """y[j,i] = x[i,j], and then, by way of the same memory, y_w[i,j] = w[i,j]"""
    x, w, y, y_w = buffers(float32, x=(m, n), w=(m, n), y=(n, m), y_w=(m, n))
    first, second = Body(float32), Body(float32)
    first.load("a", "i j", at(x, "i", "j"))
    second.load("c", "i j", at(w, "i", "j"), memory="shared")
    phases = first.phase(Store(at(y, "j", "i"), "a")), second.phase(Store(at(y_w, "i", "j"), "c"))
    grid = (Axis("i", m, tile[0]), Axis("j", n, tile[1]))
    kernel = Kernel("in_turn", (x, w, y, y_w), grid, (), phases)
    p, q = integers(x), integers(w)
    return Sample(kernel, {"x": p, "w": q}, {"y": wide(p).T, "y_w": wide(q)})


def exchange_cases() -> Iterator[Case]:
    """Each with points that no lane or tile fills exactly, and some that fit."""
    for dtype in (float32, bfloat16, int8):
        for size in SIZES:
            sample = transposed(*size, (64, 64), dtype)
            yield case(f"transposed-{dtype}-{size[0]}x{size[1]}", sample, 128)
    yield case("transposed-narrow", transposed(40, 129, (16, 128), bfloat16), 192)
    yield case("transposed-wide", transposed(96, 72, (96, 24), float32), 96)
    for order in ("ikj", "kij", "kji", "jki"):
        sample = permuted((5, 36, 50), order, (2, 32, 32), float32 if order[0] == "k" else bfloat16)
        yield case(f"permuted-{order}", sample, 128)
    yield case("beside", beside(8, 64, 64, (2, 64, 64)), 128)
    yield case("in-turn", in_turn(64, 64, (64, 64)), 128)
    yield case("split", split(70, 83, (64, 64), float32), 256)
    yield case("split-even", split(72, 80, (32, 64), bfloat16), 64)
    for size in ((128, 128), (33, 37), (96, 72)):
        for across in (False, True):
            label = f"{size[0]}x{size[1]}-{across}"
            yield case(f"product-{label}", product(*size, (64, 64), across=across), 128, 2)
            sample = product(*size, (48, 80), float32, across, residual=across)
            yield case(f"product-float-{label}", sample, 96, 2)
    narrow = product(80, 64, (64, 64), int8, residual=False, operand=int8)
    yield case("product-int8", narrow, 64, 2)


def drawn_cases(count: int, seed: int) -> Iterator[Case]:
    """y = x + g in another order of its indices, some with x as it was besides: of any extents,
    tiles, dtypes and threads.
    """
    random = Random(seed)
    extents = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 129, 255, 257)
    for number in range(count):
        names = "ijkl"[: random.choice((2, 2, 3, 4))]
        dtype = random.choice((bfloat16, float16, float32, float64, int8, uint8, int32))
        shape: list[int] = []
        tiles: list[int] = []
        for _ in names:
            shape.append(min(random.choice(extents), 12000 // prod(shape)))
            most = max(8192 // prod(tiles), 1)
            tiles.append(min(random.choice((257, 257, 1 << random.randrange(8))), shape[-1], most))
        order = "".join(random.sample(names, len(names)))
        threads = random.choice((32, 64, 128, 256, 512))
        sample = _reordered(names, order, tuple(shape), tiles, dtype, random.random() < 0.5)
        yield case(f"drawn{seed}-{number}", sample, threads)


def _reordered(
    names: str, order: str, shape: tuple[int, ...], tiles: list[int], dtype: DType, both: bool
) -> Sample:
    x, y_z = buffers(dtype, x=shape, y_z=shape)
    g, y = buffers(dtype, g=shape[-1:], y=tuple(shape[names.index(name)] for name in order))
    b, every = Body(dtype), " ".join(names)
    b.load("a", every, at(x, *names))
    b.load("c", names[-1], at(g, names[-1]))
    b.map("s", every, "add", "a", "c")
    stores = [Store(at(y, *order), "s"), Store(at(y_z, *names), "a")][: 1 + both]
    p, q = integers(x) // 2, integers(g) // 2
    answer = (wide(p) + wide(q)).transpose([names.index(name) for name in order])
    expected = dict(zip(("y", "y_z"), (answer, wide(p)), strict=True)) if both else {"y": answer}
    if dtype.kind != "float":
        expected = {name: value.astype(dtype.numpy) for name, value in expected.items()}
    grid = tuple(Axis(*axis) for axis in zip(names, shape, tiles, strict=True))
    kernel = Kernel("drawn", (x, g, y, y_z)[: 3 + both], grid, (), (b.phase(*stores),))
    return Sample(kernel, {"x": p, "g": q}, expected, 1e-2)
