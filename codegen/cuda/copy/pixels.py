"""Tiles of pixels that the tensor memory accelerator copies as runs through rows and images.

What a run reads of an image is a shifted rectangle of places, every `step`th of them: at its end
the run goes on in the next row, and then in the next image. Places outside the image are zero, as
those of padding are. Source: PTX ISA, tensors, im2col mode; CUDA driver API,
cuTensorMapEncodeIm2col.
"""

from collections.abc import Collection, Mapping

from eqsat.graph.index import bounds, const, free_names
from eqsat.kernel.ir import Axis, Buffer, Load
from eqsat.layout.needs import MOST_STEP
from eqsat.layout.pixels import PixelAxis, PixelWalk, pixel_walk
from eqsat.terms.algebra import Read

from ..place.box import (
    PERIOD,
    UNIT,
    WIDTHS,
    Dimension,
    TensorBox,
    ends_in_zeros,
    is_aligned,
)
from ..prelude.asynchronous import MOST_DIMENSIONS

INVOCATION = "cp.async.bulk.tensor.4d.shared::cluster.global.im2col"
MOST_PIXELS = 1024  # of a copy
CORNER_BITS = {3: 16, 4: 8, 5: 5}  # of a signed corner, and of an unsigned place within a window
LEAST_DIMENSIONS = min(CORNER_BITS)


def pixel_box(
    load: Load,
    buffer: Buffer,
    axes: Mapping[str, Axis],
    points: Mapping[str, int],
    inner: str,
    summed: Collection[str],
    outer: str = "",
) -> TensorBox | None:
    """The box of a load of pixels with channels `inner`; None where it is anything else, or the
    accelerator cannot copy it. `points`: the tile's extents by index, padding included. With
    `outer`, the index of terms, it has a run of each of them.
    """
    access, size = load.access, buffer.dtype.itemsize
    tiled = [i for i in load.indices if i not in (inner, outer) and points[i] > 1]
    plain = not access.coordinates and not load.fill and load.dtype == buffer.dtype
    if len(tiled) != 1 or not plain or not ends_in_zeros(load, axes, points, summed):
        return None
    (pixels,), extents = tiled, {i: axis.extent for i, axis in axes.items()}
    read = Read(buffer.name, buffer.dtype, access.address, access.guards)
    walk = pixel_walk(read, extents, pixels)
    if (
        walk is None
        or walk.channel.alone != inner
        or not is_aligned(walk.channel.place, axes, size)
    ):
        return None
    width = next((w for w in WIDTHS if points[inner] * size % w == 0), 0) // size
    if not width or any({inner, pixels} & free_names(axis.within) for axis in walk.axes):
        return None
    channels = Dimension(walk.channel.extent, 1, width, 1, walk.channel.place)
    dimensions = (channels, *_images(walk, buffer))
    if not _legal(dimensions, walk, size, extents) or points[pixels] > MOST_PIXELS:
        return None
    runs, apart = points.get(outer, 1), _places_between(walk, outer)
    if runs > 1 and (not apart or points[pixels] * width * size % PERIOD):
        return None
    order = (outer, pixels, inner) if runs > 1 else (pixels, inner)
    return TensorBox(
        buffer.name, buffer.dtype, walk.offset, dimensions, order, {i: points[i] for i in order},
        width, pixels=points[pixels], runs=runs, apart=apart,
    )  # fmt: skip


def _places_between(walk: PixelWalk, terms: str) -> int:
    """How many places along the axis that no pixel walks from a term to the next; 0 where the index
    of terms moves something else.
    """
    return dict(walk.apart.place.terms).get(terms, 0) if walk.apart is not None else 0


def _images(walk: PixelWalk, buffer: Buffer) -> list[Dimension]:
    """The dimensions of images, and at last that of their number: beyond it pixels are in none, or
    in the next image where a tile is of one.
    """
    *inside, last = walk.axes
    if walk.apart is not None:
        image = Dimension(walk.apart.extent, walk.apart.stride, 1, 1, walk.apart.place, True)
        return [*map(_dimension, walk.axes), image]
    if last.is_plain and inside:
        count = Dimension(last.extent, last.stride, 1, 1, last.start)
        return [*map(_dimension, inside), count]
    unit = UNIT // buffer.dtype.itemsize
    alone = Dimension(1, -(-buffer.size // unit) * unit, 1, 1, const(0))
    return [*map(_dimension, walk.axes), alone]


def _dimension(axis: PixelAxis) -> Dimension:
    last = axis.first + axis.step * (axis.count - 1)
    corners = (axis.first, last - (axis.extent - 1))
    return Dimension(
        axis.extent, axis.stride, 1, axis.step, axis.start, True, corners=corners,
        within=axis.within,
    )  # fmt: skip


def _legal(
    dimensions: tuple[Dimension, ...], walk: PixelWalk, size: int, extents: Mapping[str, int]
) -> bool:
    """The limits of a tensor map for such copies."""
    bits = CORNER_BITS.get(len(dimensions), 0)
    return (
        LEAST_DIMENSIONS <= len(dimensions) <= MOST_DIMENSIONS
        and walk.offset >= 0
        and walk.offset * size % UNIT == 0
        and all(d.stride * size % UNIT == 0 for d in dimensions[1:])
        and all(0 < d.stride * size < 1 << 40 for d in dimensions)
        and all(0 < d.extent < 1 << 32 and d.step <= MOST_STEP for d in dimensions)
        and all(-(1 << bits - 1) <= c < 1 << bits - 1 for d in dimensions for c in d.corners)
        and all(bounds(d.within, extents)[1] < 1 << bits for d in dimensions)
    )
