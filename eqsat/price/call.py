"""Products of a tile that a library computes: in how many calls, and what each takes besides."""

from collections.abc import Mapping

import numpy as np

from eqsat.price.rates import Array, Contraction
from eqsat.price.slid import slid
from eqsat.price.tiling import Tiling
from eqsat.specs import ParallelOperation
from eqsat.terms.algebra import Read, Term

DEPTH, HEIGHT = 256, 252  # points of a sum, and rows, for which a library has factors in order
VECTOR = 64  # bytes of a register, at the most
SMALL = 1e6  # multiply-adds of a call that, on some machines, reads its factors where they lie
LIBRARY = "cblas_gemm"  # what such an operation is invoked as
RANGES = 4  # of tiles, for each core
COPIED = 0.5  # of what another call takes to copy its factors: nothing on a Xeon, all on an EPYC


def call_seconds(
    tiling: Tiling, operation: ParallelOperation, found: Contraction, work: Array
) -> Array:
    """Seconds of all calls besides the `work` of their multiply-adds: one for each tile, each point
    of a batch, and each of the rows or columns that are not one index in memory. Columns are
    multiplied by whole vectors.

    A call copies its factors into its own order: read, from a core's own cache where that holds
    them beside their copy, written, read again; a small one of a library not on all machines. What
    it has of the right one at a time it reads for some rows after others, from the cache that cores
    share where a core's own does not hold it. Windows are multiplied where they lie, and what is
    between their rows.
    """
    sides = [(found.left, found.rows), (found.right, found.columns)]
    windows = slid(tiling, operation, found)
    if windows and windows.side is found.left:
        sides.reverse()
    (rows, down), (columns, right) = (_together(tiling, side, own) for side, own in sides)
    summed = tiling.tile_points(found.summed)
    itemsize = tiling.form.facts.dtype(found.right).itemsize
    held, vector = (rows + columns) * summed * itemsize, VECTOR / itemsize
    whole = np.ceil(columns / vector) * vector / columns
    if windows:
        columns, right = np.ceil(windows.columns / vector) * vector, tiling.shape
        held, whole = rows * summed * itemsize, columns / tiling.tile_points(sides[1][1])
    calls = tiling.tile_points(found.batch) * down * right * tiling.tiles_in_all()
    spec, pricer = tiling.spec, tiling.pricer
    shared, own = pricer.cache.sustained_gb_per_s, pricer.private.sustained_gb_per_s / 2
    read = np.where(held <= pricer.private.size_bytes / 2, own, shared)
    packing = held * spec.processors * (1 / read + 1 / own) / 1e9
    for (side, _), points in zip(sides, (rows, columns), strict=True):
        if not windows and _is_far(tiling, side):  # nothing is multiplied meanwhile
            far = 1 / pricer.dram.sustained_gb_per_s - 1 / read
            packing = packing + points * summed * itemsize * spec.processors * far / 1e9
    depth = np.minimum(summed, DEPTH)
    lost = (columns + np.minimum(rows, HEIGHT)) * depth * itemsize > pricer.private.size_bytes
    again = np.where(lost, np.ceil(rows / HEIGHT) - 1, 0.0) * columns * summed * itemsize
    packing = packing + again * spec.processors / (shared * 1e9)
    small = rows * columns * summed <= SMALL
    small = small & (operation.invocation_name == LIBRARY)
    copies = calls * np.where(small, COPIED, 1.0)
    if windows:  # what is the same for all tiles is copied once for a range of them
        left = tiling.form.facts.free(sides[0][0])
        once = tiling.points(left) <= tiling.tile_points(left)
        copies = np.where(
            once & (down * tiling.tile_points(found.batch) == 1),
            np.minimum(calls, RANGES * spec.processors),
            copies,
        )
    beginning = calls * operation.latency_cycles / spec.cycles_per_s
    return work * (whole - 1) + (beginning + copies * packing) / spec.processors


def _is_far(tiling: Tiling, side: Term) -> bool:
    """Whether a factor is read from memory, as no cache has room for it."""
    size = tiling.points(tiling.form.facts.free(side)) * tiling.form.facts.dtype(side).itemsize
    return side.op == "read" and size >= tiling.pricer.cache.size_bytes / 2


def _together(tiling: Tiling, side: Term, own: int) -> tuple[Array, Array]:
    """Rows of a factor that one call takes, and how many calls take all of a tile's: names are one
    index where those inside are whole and lie next to each other.
    """
    names = tiling.form.facts.universe.members(own)
    strides = _strides(side)
    points, calls = tiling.shape, tiling.shape
    one, inner, tile = tiling.shape > 0, "", tiling.shape
    for name in sorted(names, key=lambda name: abs(strides.get(name, 0))):
        if inner:
            extent = tiling.form.extents[inner]
            apart = strides and strides.get(name) != strides.get(inner, 0) * extent
            one = one & (tile >= extent) & (not apart)
        tile = tiling.tile_points(tiling.form.facts.universe.mask([name]))
        points = np.where(one, points * tile, points)
        calls = np.where(one, calls, calls * tile)
        inner = name
    return points, calls


def _strides(side: Term) -> Mapping[str, int]:
    """Elements from one point of each name of a factor to the next; none for what is computed,
    which lies in a tile as it is asked for.
    """
    read = side.args[0] if side.op == "read" else None
    return {str(atom): step for atom, step in read.address.terms} if isinstance(read, Read) else {}
