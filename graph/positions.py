"""Elements at positions that tensors tell: gathers, and places in what is ordered."""

from collections.abc import Sequence

import numpy as np

from eqsat.errors import DTypeError, ShapeError
from eqsat.graph import movement
from eqsat.graph.build import TensorLike, as_tensor, cast, constant, expand, gather, promote, view
from eqsat.graph.dtypes import int64
from eqsat.graph.elementwise import (
    add,
    equal,
    isnan,
    less,
    less_equal,
    logical_and,
    logical_or,
    where,
)
from eqsat.graph.index import var
from eqsat.graph.movement import normalise_axis, output_names
from eqsat.graph.ordered import along_rows
from eqsat.graph.tensor import Tensor, weak_composition

Indices = Tensor | np.ndarray | Sequence[int]


def take(x: TensorLike, indices: Indices, axis: int | None = None) -> Tensor:
    """The positions `indices` along an axis; negative ones count from the end.

    The result has the shape of `indices` in place of the axis. An index past the ends is
    unspecified by the standard: here it reads the nearest position, and raises ShapeError where
    the indices are constants. `axis` may be left out if x has one dimension.
    """
    x = as_tensor(x)
    if axis is None and x.ndim != 1:
        raise ShapeError(f"take: {x} has {x.ndim} dimensions. Say which axis.")
    axis = normalise_axis(0 if axis is None else axis, x.ndim, "take", str(x))
    index = as_index(indices)
    _check_constant(x, index, axis)
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    shape = before + index.shape + after
    names = output_names(len(shape))
    with weak_composition("take"):
        inner = range(len(before), len(before) + index.ndim)
        position = count_from_end(index, x.shape[axis])
        position = view(position, shape, [var(names[d]) for d in inner])
        coordinates = [var(names[d]) for d in range(len(before))]
        trailing = [var(names[d + len(before) + index.ndim]) for d in range(len(after))]
        return gather(x, position, axis, [*coordinates, None, *trailing])


def take_along_axis(x: TensorLike, indices: Indices, axis: int = -1) -> Tensor:
    """Of each row along an axis the elements at positions of its own.

    `indices` has as many dimensions as x; extents of the other axes are broadcast. The result has
    as many elements along the axis as the indices. Negative positions count from the end, and those
    past the ends read as for `take`.
    """
    x, index = as_tensor(x), as_index(indices)
    rows = f"take_along_axis: {index} along axis {axis} of {x}"
    if index.ndim != x.ndim:
        raise ShapeError(
            f"{rows}: they differ in dimensions. Use take for positions that all rows share."
        )
    axis = normalise_axis(axis, x.ndim, "take_along_axis", str(x))
    _check_constant(x, index, axis)
    own = tuple(1 if d == axis else n for d, n in enumerate(x.shape))
    shape = movement.broadcast_shapes([own, index.shape])
    if shape is None:
        raise ShapeError(f"{rows}: the other axes must be equal or 1. Reshape one of them.")
    with weak_composition("take_along_axis"):
        return along_rows(x, expand(count_from_end(index, x.shape[axis]), shape), axis)


def searchsorted(
    x1: TensorLike, x2: TensorLike, /, *, side: str = "left", sorter: Indices | None = None
) -> Tensor:
    """For each of x2 how many elements of x1 come before it, int64: by bisection.

    x1: one dimension, in ascending order, or in that of `sorter`. side: "left" counts those that
    are less, "right" those that are equal too. x2: any shape, which the result has. NaN comes last.
    """
    x1 = as_tensor(x1)
    if x1.ndim != 1 or side not in ("left", "right"):
        raise ShapeError(
            f"searchsorted: takes one ordered dimension and a side, 'left' or 'right', got {x1} "
            f"and {side!r}."
        )
    with weak_composition("searchsorted"):
        values = x1 if sorter is None else take(x1, sorter)
        values, wanted = promote("searchsorted", values, x2)
        found, left = expand(constant(0, int64), wanted.shape), values.shape[0]
        while left:
            step = max(left // 2, 1)
            further = add(found, step)
            read = take(values, further - 1)
            found = where(_comes_before(read, wanted, side), further, found)
            left -= step if left > 1 else 1
        return found


def _comes_before(read: Tensor, wanted: Tensor, side: str) -> Tensor:
    """Whether an element is less than the one wanted, or equal to it on its right side."""
    passed = less(read, wanted) if side == "left" else less_equal(read, wanted)
    if read.dtype.kind != "float":
        return passed
    last = isnan(wanted)
    return logical_or(passed, last if side == "right" else logical_and(last, equal(read, read)))


def as_index(indices: Indices, what: str = "index") -> Tensor:
    """The indices as an integer tensor; DTypeError for other dtypes. An empty list has int64."""
    index = as_tensor(indices)
    if index.size == 0 and isinstance(indices, list | tuple):
        index = constant(indices, int64)
    if index.dtype.kind not in ("int", "uint"):
        hint = (
            "A mask gives a shape that depends on values: use where instead."
            if index.dtype.kind == "bool"
            else "Use astype(., int64) first."
        )
        raise DTypeError(f"{what}: {index} is not integer. {hint}")
    return index


def _check_constant(x: Tensor, indices: Tensor, axis: int) -> None:
    """Raise ShapeError for constant indices past the ends of an axis."""
    extent, value = x.shape[axis], np.asarray(indices.attributes.get("value", ()))
    beyond = value[(value < -extent) | (value >= extent)]
    if beyond.size:
        raise ShapeError(
            f"index: {beyond.flat[0]} is past the ends of axis {axis} of {x}, which has "
            f"{extent} elements. Use indices from {-extent} to {extent - 1}."
        )


def count_from_end(index: Tensor, n: int) -> Tensor:
    """where(index < 0, index + n, index): negative indices count from the end."""
    if index.dtype.kind == "uint":
        return index
    wide = cast(index, int64)  # n may not fit the index's own dtype
    return where(less(wide, 0), add(wide, n), wide)
