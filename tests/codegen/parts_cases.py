"""Products of 8-bit floats by operations whose sums have few bits: in parts where they are long."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from cuda_cases import Case, case
from kernel_building import Sample, wide
from pipeline_cases import attention, by, gemm

from eqsat.graph.dtypes import DType, float8_e4m3fn, float8_e5m2
from eqsat.kernel.ir import Contract, Load

FACTORS = {"q": "a", "key": "c"}  # what the kernel of attention calls the factors of scores


def eight_bit_scores(
    m: int, n: int, d: int, tiles: tuple[int, int], kinds: tuple[DType, DType]
) -> Sample:
    """Attention whose queries and keys are 8-bit floats of these kinds, multiplied as they are."""
    sample = attention(m, n, d, tiles)
    dtypes = dict(zip(FACTORS, kinds, strict=True))
    loads = {FACTORS[name]: dtype for name, dtype in dtypes.items()}

    def change(s):
        if isinstance(s, Load) and s.name in loads:
            return replace(s, dtype=loads[s.name])
        if isinstance(s, Contract) and s.left in loads:
            return replace(s, operation=by(tiles[1], kinds[0]))
        return s

    phases = [replace(p, body=tuple(map(change, p.body))) for p in sample.kernel.phases]
    used = [replace(b, dtype=dtypes.get(b.name, b.dtype)) for b in sample.kernel.buffers]
    kernel = replace(sample.kernel, phases=tuple(phases), buffers=tuple(used))
    inputs = {
        name: a.astype(dtypes[name].numpy) if name in dtypes else a
        for name, a in sample.inputs.items()
    }
    q, key, v = (wide(inputs[name]) for name in ("q", "key", "v"))
    scores = q @ key.T
    e = np.exp(scores - scores.max(1, keepdims=True))
    return Sample(kernel, inputs, {"y": e @ v / e.sum(1, keepdims=True)}, sample.tolerance)


def parts_cases() -> Iterator[Case]:
    """Sums of several parts, of one, and of no more points than one, which stay in the operation;
    scores that a later product's factor is computed from.
    """
    for name, size, tiles, columns, threads, stages in (
        ("parts", (70, 50, 336), (64, 64, 256), 64, 128, 2),  # two of a chunk, of the last one
        ("parts-of-rows", (200, 72, 272), (128, 64, 128), 32, 128, 3),  # four fragments
        ("parts-of-teams", (130, 136, 144), (128, 64, 64), 64, 256, 2),  # chunks shorter than one
        ("parts-alone", (64, 64, 144), (64, 64, 256), 64, 128, 1),
        ("short-sums", (70, 136, 128), (64, 64, 64), 64, 128, 2),
        ("short-sums-alone", (64, 64, 64), (64, 64, 64), 64, 128, 1),
    ):
        for dtype, other in ((float8_e4m3fn, float8_e4m3fn), (float8_e4m3fn, float8_e5m2)):
            sample = gemm(*size, tiles, columns, dtype=dtype, other=other)
            yield case(f"{name}-{other.name[7:]}", sample, threads, stages)
    sample = gemm(70, 136, 208, (64, 128, 128), 128, dtype=float8_e5m2, other=float8_e4m3fn)
    yield case("parts-turned", sample, 128, 2)
    yield case("parts-across", gemm(80, 50, 144, (64, 64, 64), 64, "tt", float8_e4m3fn), 128, 2)
    for name, size, tiles, kinds, threads in (
        ("scores", (72, 136, 64), (64, 64), (float8_e4m3fn, float8_e4m3fn), 128),
        ("scores-mixed", (130, 72, 128), (128, 32), (float8_e5m2, float8_e4m3fn), 256),
        ("parts-of-scores", (64, 80, 160), (64, 32), (float8_e4m3fn, float8_e4m3fn), 128),
    ):
        yield case(name, eight_bit_scores(*size, tiles, kinds), threads, 2)
