"""What reads through overlapping windows cost a thread: registers, and lines that its warp reads.

Neighbouring points of a thread share what their windows overlap. The emitter gives a thread points
side by side along an outer axis, and lanes of a warp points side by side in memory.
"""

import numpy as np

from eqsat.algebra import Read, Term
from eqsat.rates import Array
from eqsat.relayout import WalkedAxis, walked_axes
from eqsat.tiling import LINE, Tiling

MOST_PLACES = 64  # elements that a thread holds for its points
LANES = 32


def windowed(tiling: Tiling, term: Term) -> tuple[WalkedAxis, ...]:
    """The axes of a read whose windows overlap along some; none where threads share no tile, or
    the tile's factors lie in memory that it shares.
    """
    read = term.args[0] if term.op == "read" else None
    if not isinstance(read, Read) or not tiling.pricer.overlap or tiling.blocking is None:
        return ()
    axes = () if tiling.blocking.staged else walked_axes(read, tiling.form.extents)
    return axes if axes and any(axis.slides for axis in axes) else ()


def held_elements(tiling: Tiling, term: Term, axes: tuple[WalkedAxis, ...]) -> Array:
    """Elements that each thread reads of such a read, one load each."""
    assert tiling.blocking is not None
    inside = tiling.tile_points(tiling.grid) / tiling.blocking.threads
    points = np.maximum(inside, 1.0)
    windows = tiling.tile_points(tiling.form.facts.free(term) & ~tiling.grid)
    alone = points * windows
    shared = alone
    for axis in axes:
        moving, span, width = _window(tiling, axis)
        if axis.slides and axis.stride > 1 and moving:
            side = np.minimum(tiling.tiles[moving], points)
            step = _step(axis, moving)
            own = points / side * windows / width * (step * (side - 1) + span)
            shared = np.minimum(shared, own)
    return np.where(shared <= MOST_PLACES, shared, alone)


def lines_read(tiling: Tiling, term: Term, axes: tuple[WalkedAxis, ...]) -> Array:
    """Lines of memory that all warps together touch in loads of such a read."""
    assert tiling.blocking is not None
    size = tiling.form.facts.dtype(term).itemsize
    lanes, beside, apart = tiling.shape, size * tiling.shape, 0.0
    for axis in axes:
        moving, _, width = _window(tiling, axis)
        if axis.stride == 1 and moving:
            lanes = np.minimum(tiling.tiles[moving], LANES)
            beside = lanes * _step(axis, moving) * size
            apart = 1 - 1 / width  # of the places in a window, those off a line's start
    each = LANES / lanes * (np.ceil(beside / LINE) + apart)
    warps = tiling.tiles_in_all() * tiling.blocking.threads / LANES
    return warps * held_elements(tiling, term, axes) * np.minimum(each, LANES)


def _step(axis: WalkedAxis, name: str) -> int:
    return next(step for atom, step in axis.place.terms if str(atom) == name)


def _window(tiling: Tiling, axis: WalkedAxis) -> tuple[str, Array, Array]:
    """The grid name that moves windows along an axis, if it is one; places of a window, and points
    in it.
    """
    mask = tiling.form.facts.universe.mask
    moving = [str(atom) for atom, _ in axis.place.terms if str(atom) in tiling.tiles]
    span, width = tiling.shape, tiling.shape
    for atom, step in axis.place.terms:
        if str(atom) not in tiling.tiles:
            points = tiling.tile_points(mask([str(atom)]))
            span, width = span + step * (points - 1), width * points
    return (moving[0] if len(moving) == 1 else ""), span, width
