"""Tiles of windows that the tensor memory accelerator copies: each place of an axis once.

Windows that overlap share most of what they read. An operation of a warpgroup reads rows of a tile
from wherever its descriptor says, since units are permuted by where they lie in shared memory: for
each place in a window the same rows further on.
"""

from collections.abc import Collection, Mapping

from eqsat.kernel.ir import Axis, Buffer, Load
from eqsat.layout.relayout import WalkedAxis, first_place, walked_axes
from eqsat.terms.algebra import Read

from ..place.box import WIDTHS, Dimension, TensorBox, ends_in_zeros, is_aligned, is_legal
from .window_tile import number_of_places


def window_box(
    load: Load,
    buffer: Buffer,
    axes: Mapping[str, Axis],
    points: Mapping[str, int],
    inner: str,
    summed: Collection[str],
) -> TensorBox | None:
    """The box of a load with `inner` innermost of which several indices walk one axis; None where
    none do, or the accelerator cannot copy it. `points`: the tile's extents by index, padding
    included.
    """
    access, size = load.access, buffer.dtype.itemsize
    plain = not access.coordinates and not load.fill and not load.rest
    if not plain or load.dtype != buffer.dtype or not ends_in_zeros(load, axes, points, summed):
        return None
    read = Read(buffer.name, buffer.dtype, access.address, access.guards)
    walked = walked_axes(read, {i: axis.extent for i, axis in axes.items()})
    if not walked:
        return None
    *outer, channel = walked
    tiled = [i for i in load.indices if points[i] > 1 and i != inner]
    tiled.sort(key=lambda i: i not in summed)  # rows of an operation follow each other
    own = [[i for i in tiled if i in axis.names] for axis in outer]
    width = next((w for w in WIDTHS if points[inner] * size % w == 0), 0) // size
    if max(map(len, own), default=0) < 2 or channel.alone != inner or channel.stride != 1:
        return None
    rows = {_numbering(axis, names): axis for axis, names in zip(outer, own, strict=True) if names}
    backwards = any(step < 0 for axis in outer for _, step in axis.place.terms)
    if not width or backwards or "" in rows or not is_aligned(channel.place, axes, size):
        return None
    last = {i: max(map(tiled.index, {*tiled} & {*axis.names})) for i, axis in rows.items()}
    order, sizes = sorted(rows, key=last.__getitem__), number_of_places(rows, points)
    first = Dimension(channel.extent, 1, width, 1, channel.place)
    beside = [_dimension(rows[i], sizes[i]) for i in reversed(order)]
    beside += [_dimension(axis, 1) for axis, names in zip(outer, own, strict=True) if not names]
    offset = first_place(read, walked)
    if not is_legal((first, *beside), offset, size):
        return None
    steps = {along: dict(axis.place.terms) for along, axis in rows.items()}
    slid = [(i, along, step[i]) for along, step in steps.items() for i in tiled if i in step]
    return TensorBox(
        buffer.name, buffer.dtype, offset, (first, *beside), (*order, inner),
        {**points, **sizes}, width, slid=tuple(one for one in slid if one[0] != one[1]),
    )  # fmt: skip


def _numbering(axis: WalkedAxis, names: Collection[str]) -> str:
    """The index of an axis that numbers its places, one by one; empty where none does."""
    steps = dict(axis.place.terms)
    return next((i for i in names if steps[i] == 1), "")


def _dimension(axis: WalkedAxis, places: int) -> Dimension:
    return Dimension(axis.extent, axis.stride, places, 1, axis.place, True)
