"""Products whose blocks copy for each other what the tiles of their cluster share."""

from collections.abc import Iterator
from dataclasses import replace

from cuda_cases import Case, case
from pipeline_cases import at_once, attention, batched, biased, convolution, gemm, swiglu

from eqsat.graph.dtypes import bfloat16, float8_e4m3fn, float32


def multicast_cases() -> Iterator[Case]:
    """Factors along either axis, in whole parts and in slices; partial tiles; several tiles for
    each block, teams that take turns, chains of products, boxes that lie there for a whole tile.
    """
    for layout in ("nt", "nn", "tn"):
        for stages in (1, 3):
            sample = gemm(256, 104, 136, (64, 64, 64), 64, layout, out=bfloat16)
            one = case(f"down-{layout}-{stages}", sample, 128, stages)
            yield shared(one, 2, band=4)
    yield shared(case("across", gemm(200, 256, 72, (64, 64, 32), 64), 128, 2), 2)
    yield shared(case("across-parts", gemm(136, 512, 72, (128, 128, 64), 64, "tn"), 256, 2), 4)
    yield shared(case("edge", gemm(250, 70, 72, (64, 64, 64), 64, "nt"), 128, 2), 2, band=2)
    yield shared(case("four", gemm(512, 72, 80, (64, 64, 32), 64, "nn"), 128, 3), 4, band=4)
    yield shared(case("tf32", gemm(128, 72, 80, (64, 64, 32), 64, dtype=float32), 128, 3), 2, 2)
    parts = gemm(128, 72, 336, (64, 64, 256), 64, dtype=float8_e4m3fn)
    yield shared(case("parts", parts, 128, 2), 2, band=2)
    yield shared(case("batched", batched(128, 104, 40, (64, 64, 32), 64), 128, 2), 2, band=2)
    yield shared(case("at-once", at_once(128, 104, 40, (64, 64), 64), 128), 2, band=2)
    yield shared(case("swiglu", swiglu(128, 104, 40, (64, 64, 32), 64), 128, 2), 2, band=2)
    yield shared(case("biased", biased(128, 56, 40, (64, 32, 32), 32), 128, 3), 2, band=2)
    for k, stages in ((200, 3), (136, 4)):
        sample = gemm(256, 520, k, (64, 256, 64), 256, "nn", out=bfloat16)
        yield shared(case(f"two-teams-{k}", sample, 128, stages), 2, band=4)
    yield shared(case("attention", attention(256, 80, 64, (64, 32)), 128, 2), 2)
    yield shared(case("attention-added", attention(512, 77, 64, (128, 32), "added"), 256, 2), 2)
    yield shared(case("convolution", convolution((9, 10, 24, 64), (4, 16, 16), 32), 128, 3), 2)

    # tiles of odd number: runs along the other axis, and tiles that are computed again
    for name, m, n, own in (
        ("across", 190, 248, {"across": True, "band": 2}),
        ("again", 190, 104, {"repeats": "i", "band": 2}),
        ("again-across", 190, 304, {"repeats": "j", "across": True, "band": 4}),
        ("again-last", 64, 184, {"repeats": "j"}),
    ):
        sample = gemm(m, n, 72, (64, 64, 32), 64, "nn", out=bfloat16)
        one = shared(case(f"odd-{name}", sample, 128, 3), 2)
        yield replace(one, kernel=replace(one.kernel, **own))
    one = shared(case("odd-batched", batched(190, 104, 40, (64, 64, 32), 64), 128, 2), 2, band=2)
    yield replace(one, kernel=replace(one.kernel, repeats="i"))

    for rows in (168, 200, 192):  # the last tile has a part of a slice, one and a part, one
        sample = gemm(rows, 256, 72, (128, 64, 32), 64, "nt")
        yield shared(case(f"edge-{rows}", sample, 128, 2), 2)
    for n, stages in ((168, 1), (280, 2)):  # of the last tile along n one part of two
        sample = gemm(256, n, 72, (64, 128, 64), 64, "nn")
        yield shared(case(f"edge-parts-{n}", sample, 128, stages), 2, band=4)


def shared(c: Case, blocks: int, band: int = 1) -> Case:
    """The case with clusters of so many blocks."""
    return replace(c, kernel=replace(c.kernel, multicast=blocks, band=band))
