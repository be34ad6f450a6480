"""Kernels whose tiles clusters compute: rows in registers, carried and plain, awkward lengths."""

from dataclasses import replace

from cuda_cases import Case, case, totals
from kernels import SAMPLES

from eqsat.graph.dtypes import bfloat16, bool_, float32, float64, int64

ROWS = ("softmax_resident", "softmax_online", "layer_norm", "argmax", "row_reduce", "gather")
SIZES = ((5, 1031, 1031), (3, 512, 512), (2, 300, 300), (1, 1, 1))


def cluster_cases() -> list[Case]:
    """Rows over 2, 4 and 8 blocks; tiles of a row and of several, by whose threads rows are split
    as well; each monoid and several dtypes; what needs no exchange.
    """
    found = []
    for name in ROWS:
        for size in SIZES:
            for blocks, tiles in ((2, (1, 2048, 2048)), (8, (4, 2048, 2048)), (4, (1, 64, 64))):
                label = f"{name}-{'x'.join(map(str, (*size, blocks, *tiles)))}"
                found.append(_cluster(case(label, SAMPLES[name](*size, tiles), 64), blocks))
    for dtype in (float32, float64, bfloat16, int64, bool_):
        found.append(_cluster(case(f"totals_{dtype}", totals(dtype), 32), 4))
    return found


def _cluster(one: Case, blocks: int) -> Case:
    return replace(one, kernel=replace(one.kernel, cluster=blocks))
