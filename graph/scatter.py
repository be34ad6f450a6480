"""Sums over segments, counts and scattered sums, composed from comparisons and reductions.

Each is a reduction of what a comparison with an index selects, `sum_i where(ids[i] == s, x[i], 0)`;
the compiler finds the scatter. An id outside the result's range selects nothing.
"""

from math import isfinite

import numpy as np

from eqsat.errors import ArgumentError, DTypeError, ShapeError
from eqsat.graph.arguments import as_integer
from eqsat.graph.build import TensorLike, as_number, as_tensor, cast, constant, expand, iota, view
from eqsat.graph.dtypes import int32, int64, neutral
from eqsat.graph.elementwise import (
    add,
    astype,
    bitwise_invert,
    equal,
    floor,
    greater_equal,
    less_equal,
    logical_and,
    maximum,
    minimum,
    multiply,
    subtract,
    where,
)
from eqsat.graph.index import var
from eqsat.graph.movement import normalise_axis, output_names
from eqsat.graph.positions import Indices as Ids
from eqsat.graph.positions import as_index, count_from_end
from eqsat.graph.reductions import accumulation_dtype, reduce
from eqsat.graph.tensor import Tensor, weak_composition


def segment_sum(x: TensorLike, ids: Ids, num_segments: int) -> Tensor:
    """out[s] = the sum of the x[i] with ids[i] == s; 0 for an empty segment.

    x has the shape of `ids` followed by any other; the result has num_segments in place of the
    former. Dtypes as for `sum`. An id below 0 or from num_segments on belongs to no segment.
    ShapeError where the shapes do not fit, DTypeError for ids that are no integers.
    """
    with weak_composition("segment_sum"):
        x, index, num_segments = _checked("segment_sum", x, ids, num_segments)
        result = accumulation_dtype(x.dtype, None)
        wide = cast(cast(x, result), result.compute)
        chosen = _selected(wide, index, num_segments, constant(0, wide.dtype))
        return cast(reduce("reduce_sum", chosen, tuple(range(index.ndim))), result)


def segment_max(x: TensorLike, ids: Ids, num_segments: int) -> Tensor:
    """out[s] = the largest of the x[i] with ids[i] == s, NaN if any is NaN; -inf, or the least
    number of an integer dtype, for an empty segment. Shapes, ids and errors as for `segment_sum`.
    """
    return _extreme("segment_max", x, ids, num_segments)


def segment_min(x: TensorLike, ids: Ids, num_segments: int) -> Tensor:
    """out[s] = the smallest of the x[i] with ids[i] == s, NaN if any is NaN; inf, or the largest
    number of an integer dtype, for an empty segment. Shapes, ids and errors as for `segment_sum`.
    """
    return _extreme("segment_min", x, ids, num_segments)


def bincount(ids: Ids, num_bins: int, weights: TensorLike | None = None) -> Tensor:
    """out[b] = how many ids equal b, as int64; with weights of the shape of `ids`, their sum.

    `ids` may have any shape. One below 0 or from num_bins on is counted nowhere. Errors as for
    `segment_sum`.
    """
    with weak_composition("bincount"):
        index, num_bins = as_index(ids), as_integer(num_bins, "bincount: num_bins")
        if num_bins < 0:
            raise ShapeError(f"bincount: {num_bins} bins are no extent. Give 0 or more.")
        one = constant(np.int64(1))
        x = expand(one, index.shape) if weights is None else as_tensor(weights)
        if x.shape != index.shape:
            raise ShapeError(
                f"bincount: weights {x} differ in shape from ids {index}. Give a weight for each."
            )
        return segment_sum(x, index, num_bins)


def histogram(x: TensorLike, num_bins: int, low: float, high: float) -> Tensor:
    """out[b] = how many of x lie in bin b of num_bins equal ones from low to high, as int64.

    A bin holds its lower edge, the last one both; what lies outside, or is NaN, is counted nowhere.
    A number within rounding of an edge may fall on either side of it. x may have any shape; it is
    taken as float. ArgumentError unless low < high.
    """
    low, high = (as_number(edge, "histogram: the edge") for edge in (low, high))
    num_bins = as_integer(num_bins, "histogram: num_bins")
    if not (isfinite(low) and isfinite(high) and low < high):
        raise ArgumentError(
            f"histogram: from low={low} to high={high} there are no bins. Give finite low < high."
        )
    with weak_composition("histogram"):
        values = as_tensor(x)
        values = values if values.dtype.kind == "float" else astype(values, "float64")
        values = cast(values, values.dtype.compute)
        inside = logical_and(greater_equal(values, low), less_equal(values, high))
        place = multiply(subtract(where(inside, values, low), low), num_bins / (high - low))
        index = minimum(astype(floor(place), int64), num_bins - 1)
        return bincount(where(inside, index, -1), num_bins)


def scatter_add(target: TensorLike, index: Ids, updates: TensorLike, axis: int = 0) -> Tensor:
    """target with updates added at the positions `index` along an axis; equal positions add up.

    `updates` has the shape of `index` in place of the axis, as the result of `take` has. Negative
    indices count from the end; what lies past the ends is left out. The result has target's dtype,
    which that of updates must be.
    """
    target, updates = as_tensor(target), as_tensor(updates)
    axis = normalise_axis(axis, target.ndim, "scatter_add", str(target))
    index = as_index(index)
    if updates.dtype != target.dtype:
        raise DTypeError(
            f"scatter_add: updates {updates} and target {target} differ in dtype. Use astype."
        )
    before, after = target.shape[:axis], target.shape[axis + 1 :]
    if updates.shape != before + index.shape + after:
        raise ShapeError(
            f"scatter_add: updates {updates} should have the shape {before + index.shape + after}: "
            f"that of {target} with that of the index {index} in place of axis {axis}."
        )
    with weak_composition("scatter_add"):
        ids = count_from_end(index, target.shape[axis])
        inner, own = range(axis, axis + ids.ndim), output_names(updates.ndim + 1)
        shape = (*before, target.shape[axis], *ids.shape, *after)
        moved = [var(name) for d, name in enumerate(own) if d != axis]
        hit = equal(
            view(cast(ids, int64), shape, [var(own[d + 1]) for d in inner]), iota(shape, axis)
        )
        wide = cast(view(updates, shape, moved), target.dtype.compute)
        chosen = where(hit, wide, constant(0, wide.dtype))
        total = reduce("reduce_sum", chosen, tuple(d + 1 for d in inner))
        return cast(add(cast(target, total.dtype), total), target.dtype)


def _checked(op: str, x: TensorLike, ids: Ids, num_segments: int) -> tuple[Tensor, Tensor, int]:
    """x and the ids as tensors that fit, and the number of segments."""
    x, index = as_tensor(x), as_index(ids)
    num_segments = as_integer(num_segments, f"{op}: num_segments")
    if num_segments < 0:
        raise ShapeError(f"{op}: {num_segments} segments are no extent. Give 0 or more.")
    if x.shape[: index.ndim] != index.shape:
        raise ShapeError(
            f"{op}: ids {index} are no leading part of {x}. Give an id for each position of its "
            f"first axes."
        )
    return x, index, num_segments


def _selected(x: Tensor, ids: Tensor, count: int, other: Tensor) -> Tensor:
    """where(ids == s, x, other) over the axes of the ids, s, and the rest of x."""
    shape = (*ids.shape, count, *x.shape[ids.ndim :])
    names = [var(name) for name in output_names(len(shape))]
    wide = view(cast(ids, int64), shape, names[: ids.ndim])
    hit = equal(wide, iota(shape, ids.ndim))
    return where(hit, view(x, shape, [*names[: ids.ndim], *names[ids.ndim + 1 :]]), other)


def _extreme(op: str, x: TensorLike, ids: Ids, count: int) -> Tensor:
    with weak_composition(op):
        x, index, count = _checked(op, x, ids, count)
        largest = op == "segment_max"
        if x.dtype == int64 and not largest:  # targets combine what is greater alone
            return bitwise_invert(_extreme("segment_max", bitwise_invert(x), ids, count))
        least = neutral("max" if largest else "min", x.dtype)
        if 0 in index.shape:
            return expand(constant(least, x.dtype), (count, *x.shape[index.ndim :]))
        # Narrow numbers are compared as wide ones, which memory can combine.
        small = x.dtype.kind in {"int", "uint"} and x.dtype.itemsize < int32.itemsize
        wide = int32 if small else x.dtype.compute
        empty = constant(neutral("max" if largest else "min", wide), wide)
        chosen = _selected(cast(x, wide), index, count, empty)
        found = reduce("reduce_max" if largest else "reduce_min", chosen, tuple(range(index.ndim)))
        if small:  # of an empty segment
            found = (maximum if largest else minimum)(found, constant(least, wide))
        return cast(found, x.dtype)
