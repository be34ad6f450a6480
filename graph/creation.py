"""The array API's creation functions: constants, viewed at a shape, and positions."""

from collections.abc import Sequence
from math import ceil, isfinite

from eqsat.errors import DTypeError, ShapeError
from eqsat.graph.arguments import as_integer
from eqsat.graph.build import (
    TensorLike,
    as_number,
    as_tensor,
    cast,
    constant,
    expand,
    iota,
    plain_scalar,
    view,
)
from eqsat.graph.dtypes import DTypeLike, Scalar, as_dtype, as_float_dtype, result_type
from eqsat.graph.elementwise import add, equal, greater_equal, multiply, where
from eqsat.graph.index import var
from eqsat.graph.movement import normalise_shape, output_names
from eqsat.graph.positions import Indices, as_index
from eqsat.graph.tensor import Tensor, weak_composition


def full(shape: int | Sequence[int], value: Scalar, dtype: DTypeLike | None = None) -> Tensor:
    """One value everywhere."""
    return _filled("full", shape, value, dtype)


def _filled(op: str, shape: int | Sequence[int], value: Scalar, dtype: DTypeLike | None) -> Tensor:
    return expand(constant(plain_scalar(value), dtype), normalise_shape(shape, op))


def zeros(shape: int | Sequence[int], dtype: DTypeLike | None = "float32") -> Tensor:
    """0 everywhere."""
    return _filled("zeros", shape, 0, as_float_dtype(dtype))


def ones(shape: int | Sequence[int], dtype: DTypeLike | None = "float32") -> Tensor:
    """1 everywhere."""
    return _filled("ones", shape, 1, as_float_dtype(dtype))


def full_like(x: TensorLike, value: Scalar, dtype: DTypeLike | None = None) -> Tensor:
    """One value everywhere, with the shape of x, and its dtype unless one is given."""
    x = as_tensor(x)
    return full(x.shape, value, x.dtype if dtype is None else dtype)


def zeros_like(x: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """0 everywhere, with the shape of x, and its dtype unless one is given."""
    return full_like(x, 0, dtype)


def ones_like(x: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """1 everywhere, with the shape of x, and its dtype unless one is given."""
    return full_like(x, 1, dtype)


def arange(
    start: int | float,
    stop: int | float | None = None,
    step: int | float = 1,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """start, start + step, ... below stop (above it for a negative step)."""
    start, step = as_number(start, "arange: the bound"), as_number(step, "arange: the step")
    start, stop = (0, start) if stop is None else (start, as_number(stop, "arange: the bound"))
    if step == 0:
        raise ShapeError("arange: step 0 never reaches the stop. Use a positive or negative step.")
    if not (isfinite(step) and isfinite((stop - start) / step)):
        raise ShapeError(
            f"arange: from {start} to {stop} by {step} there is no number of positions. Give "
            f"finite numbers."
        )
    with weak_composition("arange"):
        count = max(ceil((stop - start) / step), 0)
        wanted = result_type(start, stop, step) if dtype is None else as_dtype(dtype)
        if wanted.kind == "bool":
            raise DTypeError("arange: bool holds no positions. Use an integer or float dtype.")
        exact = all(isinstance(value, int) for value in (start, step))
        position = iota((count,), 0)
        if exact:
            return cast(_affine(position, step, start), wanted)
        if wanted.kind != "float":
            raise DTypeError(f"arange: {start} and {step} are floats, {wanted} is not. Use ints.")
        return cast(_affine(cast(position, as_dtype("float64")), step, start), wanted)


def _affine(position: Tensor, step: Scalar, start: Scalar) -> Tensor:
    scaled = position if step == 1 else multiply(position, step)
    return scaled if start == 0 else add(scaled, start)


def linspace(
    start: float,
    stop: float,
    num: int,
    dtype: DTypeLike | None = "float32",
    endpoint: bool = True,
) -> Tensor:
    """`num` evenly spaced values from start to stop, which is the last one if `endpoint`."""
    (count,) = normalise_shape(as_integer(num, "linspace: num"), "linspace")
    start, stop = (as_number(one, "linspace: the bound") for one in (start, stop))
    with weak_composition("linspace"):
        gaps = count - 1 if endpoint else count
        step = (stop - start) / gaps if gaps > 0 else 0.0
        position = iota((count,), 0)
        values = _affine(cast(position, as_dtype("float64")), float(step), float(start))
        if endpoint and count > 1:
            values = where(equal(position, count - 1), float(stop), values)
        return cast(values, as_float_dtype(dtype))


def eye(
    n_rows: int, n_cols: int | None = None, k: int = 0, dtype: DTypeLike | None = "float32"
) -> Tensor:
    """1 where column - row = k, else 0."""
    shape = normalise_shape((n_rows, n_rows if n_cols is None else n_cols), "eye")
    k = as_integer(k, "eye: k")
    with weak_composition("eye"):
        return cast(equal(iota(shape, 1), _affine(iota(shape, 0), 1, k)), as_float_dtype(dtype))


def one_hot(indices: Indices, count: int, dtype: DTypeLike | None = "float32") -> Tensor:
    """1 where the position along a new last axis of extent `count` is the index, else 0.

    indices: integers of any shape. One that is negative, or not below `count`, has no 1. ShapeError
    for a negative count, DTypeError for indices that are no integers.
    """
    index, count = as_index(indices, "one_hot: indices"), as_integer(count, "one_hot: count")
    shape = normalise_shape((*index.shape, count), "one_hot")
    with weak_composition("one_hot"):
        own = view(index, shape, [var(name) for name in output_names(index.ndim)])
        return cast(equal(own, iota(shape, index.ndim)), as_float_dtype(dtype))


def tril(x: TensorLike, k: int = 0) -> Tensor:
    """x where column - row <= k, else 0, of the last two axes."""
    x, k = _matrix("tril", x), as_integer(k, "tril: k")
    with weak_composition("tril"):
        row, column = iota(x.shape, x.ndim - 2), iota(x.shape, x.ndim - 1)
        return where(greater_equal(_affine(row, 1, k), column), x, zeros_like(x))


def triu(x: TensorLike, k: int = 0) -> Tensor:
    """x where column - row >= k, else 0, of the last two axes."""
    x, k = _matrix("triu", x), as_integer(k, "triu: k")
    with weak_composition("triu"):
        row, column = iota(x.shape, x.ndim - 2), iota(x.shape, x.ndim - 1)
        return where(greater_equal(column, _affine(row, 1, k)), x, zeros_like(x))


def _matrix(op: str, x: TensorLike) -> Tensor:
    x = as_tensor(x)
    if x.ndim < 2:
        raise ShapeError(f"{op}: {x} has {x.ndim} dimensions; 2 are needed. Use expand_dims first.")
    return x
