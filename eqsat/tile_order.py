"""The order of tiles: those that run together should share what they read."""

from dataclasses import replace
from math import sqrt

from eqsat.kernel import Kernel, Load
from eqsat.specs import ParallelProcessingUnit


def in_bands(kernel: Kernel, spec: ParallelProcessingUnit) -> Kernel:
    """The kernel with its tiles in bands, where its last two cut axes each have loads of their own.

    As many tiles as there are processors then form a rectangle about as high as wide.
    """
    cut = [axis for axis in kernel.grid if axis.count > 1]
    if len(cut) < 2 or spec.group(spec.tile_group).max_resident <= 1:
        return kernel
    rows, columns = cut[-2:]
    loads = [set(s.indices) for s in kernel.statements() if isinstance(s, Load)]
    along = any(rows.name in own and columns.name not in own for own in loads)
    across = any(columns.name in own and rows.name not in own for own in loads)
    if not (along and across):
        return kernel
    height = round(sqrt(spec.processors * columns.tile / rows.tile))
    return replace(kernel, band=max(1, min(height, rows.count)))
