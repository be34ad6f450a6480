"""Attention over pages that a table names, and over as many keys as a number in memory says."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from cuda_cases import Case, case
from kernel_building import Body, Sample, at, wide
from pipeline_cases import attention

from eqsat.graph import index
from eqsat.graph.dtypes import bfloat16, bool_, int32
from eqsat.kernel.ir import Access, Buffer, Coordinate, Load, Position

LOADS = {"c": "key", "u": "v"}


def paged(m: int, n: int, d: int, tiles: tuple[int, int], rows: int) -> Sample:
    """As `attention`, key j being row j % rows of page table[j // rows]. The last page is none, and
    read as zeros; pages that the table lacks are NaN.
    """
    sample, pages = attention(m, n, d, tiles), n // rows + 3
    table = Buffer("table", (n // rows,), int32, "input")
    numbers = np.random.default_rng(2).permutation(pages)[: n // rows].astype(np.int32)
    numbers[-1:] = pages  # beyond the last one
    page = Load("page", int32, ("j",), at(table, index.floordiv(index.var("j"), rows)))

    def change(s):
        if s.name not in LOADS:
            return [s]
        row = index.scale(index.mod(index.var("j"), rows), d)
        address = index.add(row, index.var(s.indices[1]))
        access = Access(LOADS[s.name], address, (), (Coordinate("page", rows * d, pages),))
        return [page, replace(s, access=access)] if s.name == "c" else [replace(s, access=access)]

    phases = [
        replace(phase, body=tuple(new for s in phase.body for new in change(s)))
        for phase in sample.kernel.phases
    ]
    caches = {name: np.full((pages, rows, d), np.nan, bfloat16.numpy) for name in LOADS.values()}
    for name, cache in caches.items():
        given = sample.inputs[name].reshape(-1, rows, d)
        cache[numbers[:-1]] = given[:-1]
    buffers = [
        Buffer(b.name, caches[b.name].shape, b.dtype, b.role) if b.name in caches else b
        for b in sample.kernel.buffers
    ]
    kernel = replace(
        sample.kernel, buffers=(*buffers[:-1], table, buffers[-1]), phases=tuple(phases)
    )
    q, key, v = (wide(sample.inputs[name]) for name in ("q", "key", "v"))
    key[-rows:] = v[-rows:] = 0
    scores = q @ key.T
    e = np.exp(scores - scores.max(1, keepdims=True))
    answer = e @ v / e.sum(1, keepdims=True)
    inputs = {**sample.inputs, **caches, "table": numbers}
    return Sample(kernel, inputs, {"y": answer}, sample.tolerance)


def until(m: int, n: int, d: int, tiles: tuple[int, int], length: int) -> Sample:
    """`attention` to the first `length` keys, a number in memory; keys of later chunks are NaN."""
    sample = attention(m, n, d, tiles)
    given, b = Buffer("length", (1,), int32, "input"), Body()
    b.add(Position, "at_j", "j", index.var("j"), dtype=int32)
    b.load("length", "", at(given, index.const(0)), dtype=int32)
    b.map("live", "j", "less", "at_j", "length", dtype=bool_)
    b.literal("never", -np.inf)
    b.map("masked", "i j", "where", "live", "p", "never")

    def change(s):
        if s.name == "top":
            return [*b.statements, replace(s, argument="masked")]
        return [replace(s, arguments=("masked", "high"))] if s.name == "e" else [s]

    phases = [
        replace(phase, body=tuple(new for s in phase.body for new in change(s)))
        for phase in sample.kernel.phases
    ]
    buffers = sample.kernel.buffers
    kernel = replace(
        sample.kernel, buffers=(*buffers[:-1], given, buffers[-1]), phases=tuple(phases)
    )
    q, key, v = (wide(sample.inputs[name]) for name in ("q", "key", "v"))
    scores = q @ key[:length].T
    e = np.exp(scores - scores.max(1, keepdims=True))
    answer = e @ v[:length] / e.sum(1, keepdims=True)
    inputs = {**sample.inputs, "length": np.array([length], np.int32)}
    for name in LOADS.values():
        inputs[name] = inputs[name].copy()
        inputs[name][-(-length // tiles[1]) * tiles[1] :] = np.nan
    return Sample(kernel, inputs, {"y": answer}, sample.tolerance)


def paged_cases() -> Iterator[Case]:
    """Chunks of several pages, the last of fewer; of one; of a part of a page. One chunk to all."""
    for n, chunk, rows, stages in (
        (80, 64, 16, 2),
        (72, 32, 8, 3),
        (96, 32, 32, 1),
        (256, 64, 128, 2),
    ):
        yield case(f"paged-{rows}", paged(70, n, 64, (64, chunk), rows), 128, stages)
    for length in (1, 48, 50, 152):
        yield case(f"until-{length}", until(70, 152, 64, (64, 48), length), 128, 2)
