"""Products whose right factor threads of their own convert, from tiles that are copied."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from cuda_cases import Case, case
from kernel_building import Body, Sample, at, buffers, wide
from pipeline_cases import attention, by, integers

from eqsat.graph.dtypes import (
    DType,
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    int8,
    uint8,
)
from eqsat.kernel.ir import Axis, Buffer, Carry, Kernel, Load, Map, Store

KEPT = {"key": "c", "v": "u"}  # what the kernel of attention calls keys and values


def scaled_weights(
    size: tuple[int, int, int],
    tiles: tuple[int, int, int],
    columns: int,
    kept: DType,
    across: bool = False,
    along: str = "",
    dtype: DType = bfloat16,
) -> Sample:
    """y[i,j] = sum_l x[i,l] round(w[l,j] s), w of another dtype and stored [j,l], or [l,j] if
    `across`; s one for each j or l that it lies `along`, none where that is empty.
    """
    m, n, k = size
    (x,) = buffers(dtype, x=(m, k))
    (w,) = buffers(kept, w=(k, n) if across else (n, k))
    s = Buffer("s", ({"j": n, "l": k}.get(along, 1),), float32, "input")
    y = Buffer("y", (m, n), float32, "output")
    start, b, end = Body(), Body(dtype), Body()
    own = start if along == "j" else b  # what no chunk moves is loaded before
    if along:
        own.load("by", along, at(s, along), dtype=float32)
    b.load("a", "i l", at(x, "i", "l"))
    b.load("f", "l j", at(w, *("lj" if across else "jl")), dtype=kept)
    made = "f"
    if along:
        b.map("wide", "l j", "cast", "f", dtype=float32)
        made = b.map("scaled", "l j", "mul", "wide", "by", dtype=float32)
    b.map("made", "l j", "cast", made)
    b.dtype = float32
    b.contract("p", "i j", "l", "a", "made", by(columns, dtype))
    b.update("next", "i j", "acc", "sum", "p")
    carry = Carry("acc", float32, ("i", "j"), "sum")
    phases = [b.phase(stream=(Axis("l", k, tiles[2]),), carries=(carry,))]
    if along == "j":
        phases.insert(0, start.phase())
    phases.append(end.phase(Store(at(y, "i", "j"), "acc")))
    p, q = *integers(x.shape, dtype=dtype), *integers(w.shape, dtype=kept)
    if kept == uint8:
        q = (np.arange(w.size) % 256).reshape(w.shape).astype(np.uint8)
    u = np.resize([1.5, 2.0, -0.5], s.shape).astype(np.float32)
    factor = wide(q if across else q.T)
    if along:
        factor = (factor * (u if along == "j" else u[:, None])).astype(dtype.numpy)
    grid = (Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    used = (x, w, *([s] if along else []), y)
    kernel = Kernel("converted", used, grid, (), tuple(phases))
    inputs = {"x": p, "w": q, **({"s": u} if along else {})}
    return Sample(kernel, inputs, {"y": wide(p) @ wide(factor)}, 1e-6)


def cached(m: int, n: int, d: int, tiles: tuple[int, int], kept: DType, mask: str = "") -> Sample:
    """Attention to keys and values of another dtype."""
    sample = attention(m, n, d, tiles, mask)
    names = dict(zip(KEPT.values(), KEPT, strict=True))
    phases = []
    for phase in sample.kernel.phases:
        body = []
        for s in phase.body:
            if s.name in names and isinstance(s, Load):
                body.append(replace(s, name=f"{s.name}_kept", dtype=kept))
                s = Map(s.name, bfloat16, s.indices, "cast", (f"{s.name}_kept",))
            body.append(s)
        phases.append(replace(phase, body=tuple(body)))
    stored = [replace(b, dtype=kept) if b.name in KEPT else b for b in sample.kernel.buffers]
    kernel = replace(sample.kernel, phases=tuple(phases), buffers=tuple(stored))
    inputs = {
        name: a.astype(kept.numpy) if name in KEPT else a for name, a in sample.inputs.items()
    }
    q, key, v = (wide(inputs[name]) for name in ("q", "key", "v"))
    scores = q @ key.T
    if mask:
        i, j = np.ogrid[:m, :n]
        scores = np.where(j <= i, scores, -np.inf)
    e = np.exp(scores - scores.max(1, keepdims=True))
    return Sample(kernel, inputs, {"y": e @ v / e.sum(1, keepdims=True)}, sample.tolerance)


def converted_cases() -> Iterator[Case]:
    for kept in (float8_e4m3fn, float8_e5m2, int8, uint8):
        sample = scaled_weights((72, 40, 192), (64, 32, 64), 32, kept)
        yield case(f"converted-{kept.name}", sample, 128, 3)
    for along, across in (("j", False), ("j", True), ("l", False), ("l", True)):
        size, tiles = (136, 144, 192), (128, 128, 64)
        sample = scaled_weights(size, tiles, 64, float8_e4m3fn, across, along)
        name = f"converted-{'across' if across else 'along'}-by-{along}"
        yield case(name, sample, 256, 2)
    rows = scaled_weights((72, 72, 176), (64, 64, 64), 64, float16, True, "l", float16)
    yield case("converted-16-bits", rows, 128, 4)  # two teams take turns
    once = scaled_weights((64, 40, 64), (64, 32, 64), 32, int8)
    yield case("converted-one-chunk", once, 128, 1)
    for kept, mask in ((float8_e4m3fn, ""), (int8, "causal")):
        name = f"cached-{kept.name}{f'-{mask}' * bool(mask)}"
        yield case(name, cached(72, 136, 64, (64, 32), kept, mask), 128, 2)
    yield case("cached-wide", cached(64, 80, 128, (64, 64), float8_e5m2), 128, 3)
