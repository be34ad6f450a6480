"""Which tiles of windows lie in boxes that an operation which is started reads its factors from."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eqsat.graph.index import free_names
from eqsat.layout.needs import MOST_BOX, MOST_STEP
from eqsat.layout.pixels import pixel_axes
from eqsat.layout.relayout import WalkedAxis, walked_axes
from eqsat.price.rates import Contraction
from eqsat.price.tiling import Tiling
from eqsat.terms.algebra import Read

ROWS, TOGETHER = 64, 8  # of an operation; of these that follow each other in a tile


def out_of_box(tiling: Tiling, found: Contraction) -> NDArray[np.bool_]:
    """Where no box holds what a tile has of a factor: several windows and several places within,
    unless the operation reads its rows from wherever they begin; or windows whose first and last
    place lie too far apart on an axis with ends.
    """
    overlap, extents, mask = tiling.shape < 0, tiling.form.extents, tiling.form.facts.universe.mask
    for side, own in ((found.left, found.rows), (found.right, found.columns)):
        read = side.args[0]
        if not isinstance(read, Read):
            continue
        walked = walked_axes(read, extents)
        once = _rows_in_groups(tiling, walked, own) if walked else tiling.shape < 0
        for axis in (axis for axis in pixel_axes(read, extents) or () if axis.slides):
            names = (mask([name]) for name in free_names(axis.place))
            overlap |= (sum(tiling.tile_points(name) > 1 for name in names) > 1) & ~once
        for guard in read.guards if walked else ():
            steps = [(mask([str(name)]), abs(by)) for name, by in guard.expression.terms]
            reaches = [((tiling.tile_points(name) - 1) * by, by) for name, by in steps]
            overlap |= sum(reach for reach, _ in reaches) >= MOST_BOX
            for reach, by in reaches:
                overlap |= (reach > 0) & (by > MOST_STEP)
    return overlap


def _rows_in_groups(tiling: Tiling, axes: Sequence[WalkedAxis], own: int) -> NDArray[np.bool_]:
    """Where the rows of an operation lie by eight in a tile that has each place of some axes once,
    and these evenly apart: along the last of a factor's own names, and along the one before.
    """
    steps = {str(atom): step for axis in axes for atom, step in axis.place.terms}
    names = [name for name in tiling.form.grid if tiling.bit[name] & own]
    found, before = tiling.shape < 0, tiling.shape < 0
    for name in names:
        length = tiling.tiles[name]
        alone = (length > ROWS / 2) | before & (length == TOGETHER)
        found = np.where(length > 1, alone & (steps.get(name) == 1), found)
        before = np.where(length > 1, length % TOGETHER == 0, before)
    return found
