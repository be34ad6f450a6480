"""Products of which the last tiles are in parts of their chunks."""

from collections.abc import Iterator
from dataclasses import replace

from cuda_cases import Case, case
from pipeline_cases import batched, biased, convolution, gemm, gradient, swiglu

from eqsat.graph.dtypes import bfloat16, float8_e4m3fn, float32
from eqsat.schedule.stream_k import fit, with_workspace
from eqsat.specs import ParallelGroup, load

H200 = load("h200")


def stream_k_cases() -> Iterator[Case]:
    """Parts of all tiles, and of those after whole waves; teams that take turns; several sums; as
    many parts as chunks; rings of one slot; chains of products.
    """
    for layout in ("nt", "nn", "tn"):
        for stages in (1, 3):
            sample = gemm(248, 104, 328, (64, 64, 64), 64, layout, out=bfloat16)
            yield in_parts(case(f"several-{layout}-{stages}", sample, 128, stages), 2, 6)
    yield in_parts(case("one-tile", gemm(64, 64, 328, (64, 64, 32), 64), 128, 2), 4, 5)
    yield in_parts(case("few-chunks", gemm(64, 56, 72, (64, 64, 64), 64), 128, 2), 2, 7)
    yield in_parts(case("two-groups", gemm(136, 264, 200, (128, 128, 64), 64, "tn"), 256, 2), 4, 5)
    yield in_parts(case("tf32", gemm(128, 72, 80, (64, 64, 32), 64, dtype=float32), 128, 3), 2, 3)
    parts = gemm(128, 72, 1008, (64, 64, 256), 64, dtype=float8_e4m3fn)
    yield in_parts(case("parts", parts, 128, 2), 3, 3)
    yield in_parts(case("batched", batched(128, 104, 200, (64, 64, 32), 64), 128, 2), 2, 10)
    yield in_parts(case("swiglu", swiglu(128, 104, 200, (64, 64, 32), 64), 128, 2), 3, 3)
    yield in_parts(case("biased", biased(128, 56, 200, (64, 32, 32), 32), 128, 3), 3, 3)
    for k, stages in ((200, 3), (456, 4)):
        sample = gemm(256, 520, k, (64, 256, 64), 256, "nn", out=bfloat16)
        yield in_parts(case(f"two-teams-{k}", sample, 128, stages), 2, 5)
    for size, stages in (
        ((200, 232, 64), 3),
        ((200, 296, 48), 4),
    ):  # products of a chunk in a chain
        yield in_parts(case(f"chain-{stages}", gradient(*size, (64, 32)), 128, stages), 3, 3)
    yield in_parts(case("convolution", convolution((9, 10, 24, 64), (4, 16, 16), 32), 128, 3), 4, 5)


def in_parts(c: Case, parts: int, blocks: int) -> Case:
    """The case with so many blocks, the last of its tiles in parts."""
    assert fit(c.kernel.tiles, parts, blocks), c.name
    kernel = replace(c.kernel, stream_k=parts)
    kernel = with_workspace(kernel, replace(H200, parallel_groups=_with_blocks(blocks)))
    return replace(c, kernel=kernel, sample=replace(c.sample, kernel=kernel))


def _with_blocks(count: int) -> tuple[ParallelGroup, ...]:
    groups = H200.parallel_groups
    return tuple(replace(g, count=count) if g.name == "block" else g for g in groups)
