"""Kernels whose float32 factors are rounded, or split into terms, on the way to an operation."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from kernel_building import Body, Sample, at, buffers
from kernel_products import attention_online, matmul_batched

from eqsat.graph.dtypes import float32
from eqsat.kernel.ir import Axis, Carry, Contract, Kernel, Store
from eqsat.layout.narrow import TERMS, nearest

K16 = "mma.sync.aligned.m16n8k16.row.col"
K8 = "mma.sync.aligned.m16n8k8.row.col"
K4 = "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32"
FORMS = ((K8, "tfloat32"), (K4, "tfloat32"), (K16, "bfloat16"), (K8, "bfloat16"))
SPLIT = 3e-6

Rows = Iterator[tuple[str, Sample, int, int]]


def product(m: int, n: int, k: int, tiles: tuple[int, int, int], data: str) -> Sample:
    """y[i,j] = sum_l x[i,l] w[l,j]; `data` is normal, wide, or special"""
    x, w, y = buffers(x=(m, k), w=(k, n), y=(m, n))
    b, end = Body(), Body()
    b.load("a", "i l", at(x, "i", "l"))
    b.load("f", "l j", at(w, "l", "j"))
    b.contract("p", "i j", "l", "a", "f", K8)
    b.update("next", "i j", "acc", "sum", "p")
    carry = Carry("acc", float32, ("i", "j"), "sum")
    stream = b.phase(stream=(Axis("l", k, tiles[2]),), carries=(carry,))
    grid = (Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    kernel = Kernel(
        "product", (x, w, y), grid, (), (stream, end.phase(Store(at(y, "i", "j"), "acc")))
    )
    p, q = DATA[data](np.random.default_rng(m + k), (m, k), (k, n))
    with np.errstate(invalid="ignore"):
        answer = p.astype(np.float64) @ q.astype(np.float64)
    return Sample(kernel, {"x": p, "w": q}, {"y": answer}, SPLIT)


def _normal(random, left, right):
    return tuple(random.standard_normal(s).astype(np.float32) for s in (left, right))


def _wide(random, left, right):
    """Scales of rows and columns that differ by 30 decades, and a result near 1."""
    p, q = _normal(random, left, right)
    scale = 10.0 ** random.uniform(-15, 15, left[1])
    return (p * scale).astype(np.float32), (q / scale[:, None]).astype(np.float32)


def _special(random, left, right):
    """Rows with infinities, NaN and the largest number; a right factor of ones and zeros."""
    p, q = _normal(random, left, right)
    q = np.sign(np.round(q)).astype(np.float32)
    largest = np.finfo(np.float32).max
    p[0, :] = 0
    p[0, left[1] // 2] = largest
    for row, value in zip(range(1, left[0]), (np.inf, -np.inf, np.nan), strict=False):
        p[row, row % left[1]] = value
    if left[0] > 4:
        p[4, 0] = np.uint32(0x7F800001).view(np.float32)  # NaN in its lowest bit
    return p, q


DATA = {"normal": _normal, "wide": _wide, "special": _special}


def narrowed(sample: Sample, operation: str, narrow: str, terms: int) -> Sample:
    """The sample with its products done so."""

    def change(s):
        if not isinstance(s, Contract) or not s.operation:
            return s
        return replace(s, operation=operation, narrow=narrow, terms=terms)

    phases = [replace(p, body=tuple(map(change, p.body))) for p in sample.kernel.phases]
    return replace(sample, kernel=replace(sample.kernel, phases=tuple(phases)))


def rounded(sample: Sample, narrow: str) -> Sample:
    """The sample's answer from rounded factors."""
    x, w = (nearest(sample.inputs[name], narrow).astype(np.float64) for name in "xw")
    return replace(sample, expected={"y": x @ w})


def narrow_rows() -> Rows:
    """(name, sample, threads, stages)"""
    shapes = (
        ((33, 37, 19), (48, 40, 32)),
        ((17, 24, 40), (32, 16, 16)),
        ((1, 1, 1), (16, 16, 16)),
    )
    for operation, narrow in FORMS:
        label = f"{narrow}-{operation[22:25].rstrip('.')}"
        terms = TERMS[narrow]
        for size, tiles in shapes:
            sample = product(*size, tiles, "normal")
            name = f"{label}-{size[0]}"
            yield f"{name}-split", narrowed(sample, operation, narrow, terms), 128, 2
            once = narrowed(rounded(sample, narrow), operation, narrow, 1)
            yield f"{name}-rounded", once, 64, 1
        for data in ("wide", "special"):
            sample = product(19, 24, 40, (16, 16, 32), data)
            yield f"{label}-{data}", narrowed(sample, operation, narrow, terms), 64, 1
        batched = replace(matmul_batched(33, 37, 19, (32, 16, 8), operation), tolerance=SPLIT)
        yield f"{label}-batched", narrowed(batched, operation, narrow, terms), 64, 0
        online = replace(attention_online(33, 37, 19, (32, 16, 8), operation), tolerance=1e-5)
        yield f"{label}-attention", narrowed(online, operation, narrow, terms), 64, 2
