"""Medians and quantiles along axes: elements of the sorted axis, interpolated."""

from collections.abc import Sequence
from math import nan, prod
from typing import Any

import numpy as np

from eqsat.errors import ArgumentError, DTypeError, ShapeError
from eqsat.graph.build import TensorLike, as_tensor, cast, constant
from eqsat.graph.elementwise import add, divide, isnan, multiply, subtract, where
from eqsat.graph.manipulation import moveaxis, reshape
from eqsat.graph.movement import normalise_axes
from eqsat.graph.positions import take
from eqsat.graph.reductions import Axis
from eqsat.graph.sorting import sort
from eqsat.graph.tensor import Tensor, weak_composition


def median(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The middle element in order over the axes, or the mean of both; NaN if any element is NaN.

    x: floats; of 16-bit ones the mean is float32, rounded once. DTypeError for others, ShapeError
    over an empty axis.
    """
    with weak_composition("median"):
        x, axes, rows = _ordered_rows("median", x, axis)
        low, high = (rows.shape[-1] - 1) // 2, rows.shape[-1] // 2
        found = rows[..., low]
        if low < high:
            found = divide(add(found, rows[..., high]), 2.0)
        return _finished(x, axes, rows, found, keepdims)


def quantile(
    x: TensorLike,
    q: float | Sequence[float] | np.ndarray,
    axis: Axis = None,
    keepdims: bool = False,
) -> Tensor:
    """The elements at the fractions q of the order over the axes; NaN if any element is NaN.

    Between two elements it is linear. x: floats, whose dtype the result has; 16-bit ones are
    interpolated in float32, rounded once. q: a number from 0 to 1, or several, whose axes come
    first in the result. ArgumentError for others, DTypeError for an x that is not float, ShapeError
    over an empty axis.
    """
    fractions = _fractions(q)
    with weak_composition("quantile"):
        x, axes, rows = _ordered_rows("quantile", x, axis)
        last = rows.shape[-1] - 1
        at = fractions * last
        low = np.floor(at).astype(np.int64)
        share = constant((at - low).astype(rows.dtype.numpy))
        a, b = _elements(rows, low), _elements(rows, np.minimum(low + 1, last))
        # From the nearer one: both are met where they should be. An infinity times 0 is NaN.
        gap = subtract(b, a)
        near = add(a, multiply(gap, share))
        far = subtract(b, multiply(gap, subtract(1.0, share)))
        found = where(share == 0.0, a, where(share < 0.5, near, far))
        found = moveaxis(found, range(found.ndim - at.ndim, found.ndim), range(at.ndim))
        return _finished(x, axes, rows, found, keepdims)


def _fractions(q: Any) -> np.ndarray:
    """The fractions as float64; ArgumentError unless they are numbers from 0 to 1."""
    given = np.asarray(None if isinstance(q, Tensor) else q)
    if given.dtype.kind not in "fiu" or not np.all((given >= 0) & (given <= 1)):
        raise ArgumentError(f"quantile: q is {q}. Give a number from 0 to 1, or several of them.")
    return given.astype(np.float64)


def _ordered_rows(op: str, x: TensorLike, axis: Axis) -> tuple[Tensor, tuple[int, ...], Tensor]:
    """x, its axes, and their elements in order along one last axis, in the dtype to compute in."""
    x = as_tensor(x)
    if x.dtype.kind != "float":
        raise DTypeError(f"{op}: takes floating dtypes, got {x}. Convert with astype first.")
    axes = normalise_axes(axis, x.ndim, op, str(x))
    length = prod(x.shape[d] for d in axes)
    if length == 0:
        raise ShapeError(f"{op}: over axes {axes} of {x} there is no element. Use 1 or more.")
    kept = tuple(n for d, n in enumerate(x.shape) if d not in axes)
    last = moveaxis(x, axes, range(x.ndim - len(axes), x.ndim))
    rows = sort(reshape(last, (*kept, length)))
    return x, axes, cast(rows, x.dtype.compute)


def _elements(rows: Tensor, places: np.ndarray) -> Tensor:
    """rows[..., places]"""
    return take(rows, places, -1) if places.ndim else rows[..., int(places)]


def _finished(
    x: Tensor, axes: tuple[int, ...], rows: Tensor, found: Tensor, keepdims: bool
) -> Tensor:
    """What was found, like x, with the axes kept if wanted; NaN of rows with NaN, which is last."""
    found = cast(where(isnan(rows[..., -1]), nan, found), x.dtype)
    if not keepdims:
        return found
    front = found.shape[: found.ndim - rows.ndim + 1]
    return reshape(found, (*front, *(1 if d in axes else n for d, n in enumerate(x.shape))))
