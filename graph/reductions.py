"""The array API's reductions, statistics, searches and prefix sums, composed from four monoids.

Sums and products of 16-bit floats accumulate in float32; those of small integers and of bool in
int64, as the standard says.
"""

from collections.abc import Callable, Sequence
from math import prod as product
from typing import SupportsIndex

from eqsat.errors import DTypeError, ShapeError
from eqsat.graph.build import (
    TensorLike,
    as_number,
    as_tensor,
    broadcast,
    build,
    cast,
    constant,
    expand,
    iota,
    promote,
)
from eqsat.graph.creation import full
from eqsat.graph.dtypes import DType, DTypeLike, as_dtype, int64
from eqsat.graph.elementwise import (
    astype,
    divide,
    equal,
    logical_or,
    not_equal,
    sqrt,
    square,
    subtract,
    where,
)
from eqsat.graph.manipulation import concat, reshape
from eqsat.graph.movement import normalise_axes, normalise_axis
from eqsat.graph.ops import check_not_empty
from eqsat.graph.tensor import Tensor, weak_composition

Axis = SupportsIndex | Sequence[SupportsIndex] | None
NOWHERE = (1 << 31) - 1  # beyond any position of an axis that is not longer
FAR = 1 << 52  # beyond any position, and a whole number in floats


def reduce(
    op: str, x: TensorLike, axis: Axis, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """One of the primitives reduce_sum, reduce_prod, reduce_max, reduce_min over the axes; of one
    element each, the element. name: the function to name in errors.
    """
    x, name = as_tensor(x), name or op.removeprefix("reduce_")
    axes = tuple(sorted(normalise_axes(axis, x.ndim, name, str(x))))
    if op in ("reduce_max", "reduce_min"):
        check_not_empty(name, x, axes)
    if product(x.shape[d] for d in axes) == 1:
        return reshape(x, tuple(n for d, n in enumerate(x.shape) if keepdims or d not in axes))
    result = build(op, (x,), {"axes": axes})
    if keepdims:
        return reshape(result, tuple(1 if d in axes else n for d, n in enumerate(x.shape)))
    return result


def sum(
    x: TensorLike, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False
) -> Tensor:
    """The sum; in int64 for integers and bool, in x's own dtype for floats, unless one is given."""
    return _accumulate("reduce_sum", x, axis, dtype, keepdims)


def prod(
    x: TensorLike, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False
) -> Tensor:
    """The product; dtypes as for `sum`."""
    return _accumulate("reduce_prod", x, axis, dtype, keepdims)


def _accumulate(
    op: str, x: TensorLike, axis: Axis, dtype: DTypeLike | None, keepdims: bool
) -> Tensor:
    x = as_tensor(x)
    result = accumulation_dtype(x.dtype, dtype)
    wide = cast(cast(x, result), result.compute)
    return cast(reduce(op, wide, axis, keepdims), result)


def accumulation_dtype(dtype: DType, wanted: DTypeLike | None) -> DType:
    """The dtype of a sum: the one wanted, else int64 for integers and bool, else the same."""
    if wanted is not None:
        result = as_dtype(wanted)
        if result.kind == "bool":
            raise DTypeError("sum: bool holds no sum. Use any, or an integer or float dtype.")
        return result
    return dtype if dtype.kind == "float" else int64


def max(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The largest element; NaN if any is NaN. ShapeError over an empty axis."""
    return reduce("reduce_max", x, axis, keepdims)


def min(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The smallest element; NaN if any is NaN. ShapeError over an empty axis."""
    return reduce("reduce_min", x, axis, keepdims)


def any(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether some element is not 0; False over an empty axis."""
    with weak_composition("any"):
        return _logical("any", "reduce_max", x, axis, keepdims, False)


def all(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether every element is not 0; True over an empty axis."""
    with weak_composition("all"):
        return _logical("all", "reduce_min", x, axis, keepdims, True)


def _logical(name: str, op: str, x: TensorLike, axis: Axis, keepdims: bool, empty: bool) -> Tensor:
    x = as_tensor(x)
    axes = normalise_axes(axis, x.ndim, name, str(x))
    if product(x.shape[d] for d in axes) == 0:
        ones = [1 if d in axes else n for d, n in enumerate(x.shape)]
        shape = ones if keepdims else [n for d, n in enumerate(x.shape) if d not in axes]
        return full(shape, empty)
    return reduce(op, astype(x, "bool"), axis, keepdims)


def mean(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The arithmetic mean of floats; of 16-bit floats in float32, rounded once."""
    with weak_composition("mean"):
        x = as_tensor(x)
        wide, axes = _wide_float("mean", x, axis)
        if _count(x, axes) == 1:
            return reduce("reduce_sum", x, axes, keepdims)
        return cast(_mean(wide, axes, keepdims), x.dtype)


def var(
    x: TensorLike, axis: Axis = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The mean squared distance from the mean, divided by count - correction."""
    with weak_composition("var"):
        x = as_tensor(x)
        wide, axes = _wide_float("var", x, axis)
        return cast(_var(wide, axes, correction, keepdims), x.dtype)


def std(
    x: TensorLike, axis: Axis = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The square root of `var`."""
    with weak_composition("std"):
        x = as_tensor(x)
        wide, axes = _wide_float("std", x, axis)
        return cast(sqrt(_var(wide, axes, correction, keepdims)), x.dtype)


def _wide_float(op: str, x: Tensor, axis: Axis) -> tuple[Tensor, tuple[int, ...]]:
    """x in the dtype to compute in, and its axes."""
    if x.dtype.kind != "float":
        raise DTypeError(f"{op}: takes floating dtypes, got {x}. Convert with astype first.")
    return cast(x, x.dtype.compute), normalise_axes(axis, x.ndim, op, str(x))


def _count(x: Tensor, axes: tuple[int, ...]) -> int:
    return product(x.shape[d] for d in axes)


def _mean(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    return divide(reduce("reduce_sum", x, axes, keepdims), float(_count(x, axes)))


def _var(x: Tensor, axes: tuple[int, ...], correction: float, keepdims: bool) -> Tensor:
    distance = subtract(x, _mean(x, axes, keepdims=True))
    degrees = float(_count(x, axes) - as_number(correction, "var: the correction"))
    total = reduce("reduce_sum", square(distance), axes, keepdims)
    return divide(total, degrees if degrees > 0 else 0.0)


def argmax(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The int64 position of the first largest element (or first NaN)."""
    with weak_composition("argmax"):
        return _first_hit("argmax", "reduce_max", x, axis, keepdims)


def argmin(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The int64 position of the first smallest element (or first NaN)."""
    with weak_composition("argmin"):
        return _first_hit("argmin", "reduce_min", x, axis, keepdims)


def _first_hit(op: str, extreme: str, x: TensorLike, axis: int | None, keepdims: bool) -> Tensor:
    """The first position of the extreme along the axis, or of all elements."""
    x = as_tensor(x)
    ndim = x.ndim
    if axis is None:
        check_not_empty(op, x, range(ndim))
        x, axis = reshape(x, (x.size,)), 0
        kept: tuple[int, ...] = (1,) * ndim
    else:
        axis = normalise_axis(axis, ndim, op, str(x))
        check_not_empty(op, x, (axis,))
        kept = tuple(1 if d == axis else n for d, n in enumerate(x.shape))
    first = first_of(x, reduce(extreme, x, axis, keepdims=True), iota(x.shape, axis), axis)
    return reshape(first, kept) if keepdims else first


def beyond(extent: int) -> int:
    """More than any position of an axis."""
    return NOWHERE if extent <= NOWHERE else FAR


def first_of(x: Tensor, value: Tensor, places: Tensor, axis: int) -> Tensor:
    """min over the axis of places where x has that value or is NaN; beyond them if none is."""
    hit = equal(x, value)
    if x.dtype.kind == "float":
        hit = logical_or(hit, not_equal(x, x))
    return reduce("reduce_min", where(hit, places, beyond(x.shape[axis])), axis)


def count_nonzero(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """How many elements are not 0, as int64."""
    with weak_composition("count_nonzero"):
        x = as_tensor(x)
        axes = normalise_axes(axis, x.ndim, "count_nonzero", str(x))
        return sum(astype(x, "bool"), axes, keepdims=keepdims)


def cumulative_sum(
    x: TensorLike,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> Tensor:
    """The sums of the first 1, 2, ... elements along the axis; of 0 too if `include_initial`.

    Dtypes as for `sum`. `axis` may be left out if x has one dimension.
    """
    first = 0 if include_initial else None
    return _cumulative("cumulative_sum", x, axis, dtype, first, _running_sums)


def cumulative_prod(
    x: TensorLike,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> Tensor:
    """The products of the first 1, 2, ... elements along the axis; of 0 too if `include_initial`.

    Dtypes as for `prod`. `axis` may be left out if x has one dimension. Parts of a row may be
    multiplied before they meet: one that overflows gives NaN where 0 came before it.
    """
    first = 1 if include_initial else None
    return _cumulative("cumulative_prod", x, axis, dtype, first, _running_products)


def _running_sums(x: Tensor, axis: int) -> Tensor:
    return build("scan_sum", (x,), {"axis": axis})


def _running_products(x: Tensor, axis: int) -> Tensor:
    """As states of a recurrence, of which the first has none before it to multiply."""
    begins = equal(iota(x.shape, axis), 0)
    steps = (where(begins, 1, x), where(begins, x, 0))
    return build("scan_affine", steps, {"axis": axis})


def _cumulative(
    op: str,
    x: TensorLike,
    axis: int | None,
    dtype: DTypeLike | None,
    first: int | None,
    scan: Callable[[Tensor, int], Tensor],
) -> Tensor:
    """The scan of x along the axis, after `first` unless that is None."""
    x = as_tensor(x)
    if x.ndim == 0 or (axis is None and x.ndim != 1):
        raise ShapeError(f"{op}: {x} has {x.ndim} dimensions. Say which axis of 1 or more.")
    axis = normalise_axis(0 if axis is None else axis, x.ndim, op, str(x))
    result = accumulation_dtype(x.dtype, dtype)
    with weak_composition(op):
        wide = cast(cast(x, result), result.compute)
        found = scan(wide, axis) if x.shape[axis] else wide
        if first is not None:
            shape = tuple(1 if d == axis else n for d, n in enumerate(x.shape))
            found = concat([expand(constant(first, wide.dtype), shape), found], axis)
        return cast(found, result)


def affine_scan(
    a: TensorLike, b: TensorLike, axis: int, initial: TensorLike | None = None
) -> Tensor:
    """The states h_t = a_t * h_(t-1) + b_t along the axis: a linear recurrence.

    a, b: numbers, promoted to one dtype and broadcast to one shape, which is the result's. initial:
    the state before the first, 0 unless given; of the result's shape without the axis, or
    broadcast to it. States of 16-bit floats are carried in float32 and rounded once. A kernel need
    not write a, b or the states to memory where they are computed and used step by step.

    ShapeError where shapes do not broadcast or have no such axis, DTypeError for bool.
    """
    with weak_composition("affine_scan"):
        factors, offsets = broadcast("affine_scan", *promote("affine_scan", a, b))
        dtype, shape = factors.dtype, factors.shape
        if dtype.kind == "bool":
            raise DTypeError(
                f"affine_scan: takes numeric dtypes, got {factors} and {offsets}. Convert with "
                f"astype first."
            )
        axis = normalise_axis(axis, len(shape), "affine_scan", str(factors))
        factors, offsets = cast(factors, dtype.compute), cast(offsets, dtype.compute)
        if initial is not None:
            first = _initial_state(as_tensor(initial, dtype), dtype, shape, axis)
            begun = factors * cast(first, dtype.compute) + offsets
            offsets = where(equal(iota(shape, axis), 0), begun, offsets)
        states = build("scan_affine", (factors, offsets), {"axis": axis})
        return cast(states, dtype)


def _initial_state(initial: Tensor, dtype: DType, shape: tuple[int, ...], axis: int) -> Tensor:
    """The state before the first step, at every step."""
    own = shape[:axis] + shape[axis + 1 :]
    if initial.dtype != dtype:
        raise DTypeError(
            f"affine_scan: the initial state {initial} is not {dtype}, the states' dtype. Convert "
            f"with astype first."
        )
    kept = (*own[:axis], 1, *own[axis:])
    return expand(reshape(expand(initial, own), kept), shape)
