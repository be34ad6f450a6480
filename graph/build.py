"""Builders of single primitives: every node of a graph is made by `build`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any
from typing import cast as cast_type

import numpy as np

from eqsat.errors import ArgumentError, DTypeError, ShapeError
from eqsat.graph import movement
from eqsat.graph.dtypes import (
    DType,
    DTypeLike,
    Scalar,
    as_dtype,
    as_float_dtype,
    check_scalar,
    iinfo,
    int64,
    result_type,
)
from eqsat.graph.index import Affine, free_names
from eqsat.graph.names import check_identifier
from eqsat.graph.ops import OPS, Given
from eqsat.graph.tensor import Coordinate, Tensor, current_label

MOST_BYTES = 2**63 - 1  # of a tensor, and of what a reduction goes over
TensorLike = Tensor | Coordinate | np.ndarray | np.generic | Scalar


def build(
    op: str,
    operands: Sequence[Tensor],
    attributes: Mapping[str, Any] | None = None,
    shape: tuple[int, ...] | None = None,
    dtype: DType | None = None,
) -> Tensor:
    """One node, its shape and dtype by the rules of the op table."""
    row = OPS[op]
    attributes = attributes or {}
    for x in operands:
        if not isinstance(x, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DTypeError(
                f"{op}: got a value of type {type(x).__name__}, not a tensor. Use constant() first."
            )
    assert len(operands) == row.arity, f"{op} takes {row.arity} operands"
    given = Given(shape, dtype)
    result_dtype = row.dtype(op, operands, attributes, given)
    result_shape = row.shape(op, operands, attributes, given)
    _check_size(op, result_shape, result_dtype)
    return Tensor(op, tuple(operands), attributes, result_shape, result_dtype, current_label())


def _check_size(op: str, shape: tuple[int, ...], dtype: DType) -> None:
    """Raise ShapeError for a tensor whose bytes an int64 does not count."""
    size = prod(shape) * dtype.itemsize
    if size > MOST_BYTES:
        raise ShapeError(
            f"{op}: {dtype}[{', '.join(map(str, shape))}] is of {size:.1e} bytes; places in memory "
            f"are counted in int64, up to 2**63 - 1. Use smaller extents, or a part at a time."
        )


def input(name: str, shape: int | Sequence[int], dtype: DTypeLike | None = "float32") -> Tensor:
    """A value that the caller gives when the program runs.

    The name must be a plain ASCII identifier of at most 64 characters, no Python keyword, since it
    reaches generated source; IdentifierError otherwise.
    """
    check_identifier(name)
    shape = movement.normalise_shape(shape, f"input {name}")
    return build("input", (), {"name": str(name)}, shape, as_float_dtype(dtype))


def constant(value: Any, dtype: DTypeLike | None = None) -> Tensor:
    """A value fixed in the graph: a copy of an array, a nested list or a scalar.

    Arrays keep their dtype, or are converted as `astype` does; Python scalars and lists take bool,
    int64 or float32 unless a dtype is given. DTypeError for Python integers that it does not hold,
    ArgumentError for masked arrays.
    """
    if isinstance(value, Tensor):
        raise DTypeError(f"constant: {value} is a tensor already. Use it as it is, or astype.")
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(
            "constant: a masked array would lose its mask. Give .filled(value), or the mask as a "
            "constant of its own."
        )
    typed = isinstance(value, np.ndarray | np.generic)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ShapeError(
            f"constant: the nested list is ragged ({error}). Use equal lengths on each level."
        ) from error
    integers = not typed and _holds_integers(array)
    if array.dtype.kind in "OSUMm" and not integers:
        raise DTypeError(
            f"{value!r} is no number, nor a list or array of numbers. Give one, or a tensor where "
            f"a function takes one."
        )
    if dtype is None:
        default = {"f": "float32", "b": "bool"}
        named = int64 if integers else default.get(array.dtype.kind, array.dtype)
        dtype = array.dtype if typed else named
    wanted = as_dtype(dtype)
    if integers:
        array = _as_stored(array, wanted)
    with np.errstate(all="ignore"):
        copy = np.array(array, dtype=wanted.numpy)
    copy.flags.writeable = False
    return build("constant", (), {"value": copy})


def _holds_integers(array: np.ndarray) -> bool:
    """Whether an array made of Python numbers holds integers; NumPy has no dtype for large ones."""
    if array.dtype.kind == "O":
        return all(isinstance(one, int) for one in array.flat)
    return array.dtype.kind in "iu"


def _as_stored(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Python integers as an array that NumPy converts; DTypeError where the dtype lacks them."""
    if dtype.kind in ("int", "uint") and array.size:
        limits = iinfo(dtype)
        least, largest = int(array.min()), int(array.max())
        if least < limits.min or largest > limits.max:
            wider = "a float dtype" if dtype == int64 else "a wider dtype"
            raise DTypeError(
                f"constant: {largest if largest > limits.max else least} does not fit {dtype}, "
                f"which holds {limits.min} to {limits.max}. Give {wider}."
            )
    try:
        large = array.dtype.kind == "O" and dtype.kind != "int"
        return array.astype(np.float64) if large else array
    except OverflowError:
        raise DTypeError(
            f"constant: an integer past 1.8e308 does not fit {dtype}. Give it as a float: inf."
        ) from None


def iota(shape: Sequence[int], axis: int) -> Tensor:
    """int64 positions along `axis`, over `shape`."""
    shape = movement.normalise_shape(shape, "iota")
    axis = movement.normalise_axis(axis, len(shape), "iota", f"shape {shape}")
    return build("iota", (), {"axis": axis}, shape)


def cast(x: Tensor, dtype: DType) -> Tensor:
    """The values in another dtype; the operand itself where the dtype is the same."""
    return x if x.dtype == dtype else build("cast", (x,), {"dtype": dtype})


def as_tensor(value: Any, dtype: DType | None = None) -> Tensor:
    """A tensor as it is; an index expression's value; anything else as a constant."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Coordinate):
        return value.value()
    if isinstance(value, np.ndarray):
        return constant(value)
    return constant(value, dtype)


def promote(op: str, *values: Any) -> tuple[Tensor, ...]:
    """The values as tensors of one dtype; scalars (Python's and NumPy's) are weak."""
    tensors = [value if is_scalar(value) else as_tensor(value) for value in values]
    typed = [tensor for tensor in tensors if isinstance(tensor, Tensor)]
    weak = [plain_scalar(value) for value in tensors if not isinstance(value, Tensor)]
    try:
        dtype = result_type(*(tensor.dtype for tensor in typed), *weak)
    except DTypeError as error:
        listed = ", ".join(str(t) if isinstance(t, Tensor) else repr(t) for t in tensors)
        raise DTypeError(f"{op}({listed}): {error}") from None
    return tuple(
        cast(value, dtype) if isinstance(value, Tensor) else constant(plain_scalar(value), dtype)
        for value in tensors
    )


def is_scalar(value: Any) -> bool:
    """Whether the value is a Python or NumPy scalar, which promotes weakly."""
    return isinstance(value, bool | int | float | np.generic)


def plain_scalar(value: Any) -> Scalar:
    """The Python scalar of the same value."""
    if isinstance(value, np.generic):
        scalar = cast_type(Any, value)
        plain: Any = scalar.item()
        if scalar.dtype.kind in "cSUMmO":
            raise DTypeError(f"{scalar!r} is no real number. Give a Python or NumPy one.")
        return plain if isinstance(plain, bool | int | float) else float(scalar)  # bfloat16
    return value


def as_number(value: Any, what: str) -> Scalar:
    """The Python number of the same value; DTypeError, naming `what`, for anything else."""
    number = cast_type(Any, value)[()] if isinstance(value, np.ndarray) else value
    if not is_scalar(number):
        raise DTypeError(f"{what} {value!r} is no number. Give a Python or NumPy number.")
    return plain_scalar(number)


def broadcast(op: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors viewed at their common shape; ShapeError where there is none."""
    shape = movement.broadcast_shapes([tensor.shape for tensor in tensors])
    if shape is None:
        listed = " and ".join(map(str, tensors))
        raise ShapeError(
            f"{op}: {listed} do not broadcast: counted from the right, axes must be equal or 1. "
            f"Use reshape, expand_dims or permute_dims to line them up."
        )
    return tuple(expand(tensor, shape) for tensor in tensors)


def expand(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The tensor viewed at a shape that it broadcasts to; the operand itself where equal."""
    if x.shape == shape:
        return x
    coordinates = movement.broadcast(x.shape, shape)
    if coordinates is None:
        raise ShapeError(
            f"broadcast_to: {x} does not broadcast to {shape}: counted from the right, its axes "
            f"must be equal or 1. Use reshape or expand_dims first."
        )
    return view(x, shape, coordinates)


def elementwise(op: str, *values: Any) -> Tensor:
    """A primitive of the values, promoted to one dtype and broadcast to one shape."""
    return build(op, broadcast(op, *promote(op, *values)))


def select(condition: Any, a: Any, b: Any) -> Tensor:
    """where(condition, a, b) with a and b promoted, and all three broadcast."""
    return build("where", broadcast("where", as_tensor(condition), *promote("where", a, b)))


def view(
    x: Tensor, shape: Sequence[int], coordinates: Sequence[Affine], fill: Scalar | None = None
) -> Tensor:
    """Read `x` at `coordinates`, quasi-affine in the output position i0, i1, ...

    Where a coordinate can leave `x`, `fill` is read; without one that is a ShapeError. A view of a
    view is one view where that is exact, and the identity is `x` itself.
    """
    shape = tuple(shape)
    assert len(coordinates) == x.ndim, f"view of {x} with {len(coordinates)} coordinates"
    coordinates = movement.canonical(coordinates, shape)
    inside = movement.in_bounds(coordinates, shape, x.shape)
    if not inside and fill is None:
        raise ShapeError(
            f"view: coordinates [{', '.join(map(str, coordinates))}] over {shape} are not proved "
            f"to stay inside {x}. Narrow the shape, or give a fill."
        )
    fill = None if inside or fill is None else _fill_value(fill, x)
    if x.op == "view":
        composed = _compose(x, shape, coordinates, fill)
        if composed is not None:
            return composed
    if fill is None and x.shape == shape and coordinates == movement.positions(shape):
        return x
    return build("view", (x,), {"coordinates": coordinates, "fill": fill}, shape)


def _compose(
    x: Tensor, shape: tuple[int, ...], coordinates: Sequence[Affine], fill: Scalar | None
) -> Tensor | None:
    """The view of the view `x` as one view of x's operand, or None where it is not exact.

    Exact if the outer map stays inside x (then x's own fill is kept), or if x only permutes.
    """
    operand, inner = x.operands[0], x.attributes
    if fill is not None:
        if not movement.is_permutation(inner["coordinates"], x.shape, operand.shape):
            return None
    else:
        fill = inner["fill"]
    composed = movement.compose(coordinates, inner["coordinates"], shape)
    if fill is None and not movement.in_bounds(composed, shape, operand.shape):
        return None
    return view(operand, shape, composed, fill)


def _fill_value(fill: Scalar, x: Tensor) -> Scalar:
    fill = as_number(fill, f"view of {x}: the fill")
    try:
        check_scalar(fill, x.dtype)
    except DTypeError as error:
        raise DTypeError(f"view of {x} with fill {fill!r}: {error}") from None
    return float(fill) if x.dtype.kind == "float" else fill


def varying_axes(x: Tensor) -> list[int]:
    """The axes along which a view may vary; all of any other tensor."""
    if x.op != "view":
        return list(range(x.ndim))
    used = frozenset[str]().union(*map(free_names, x.attributes["coordinates"]))
    return [axis for axis, name in enumerate(movement.output_names(x.ndim)) if name in used]


def with_operands(tensor: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
    """The same operation of other operands; the tensor itself where they are its own."""
    same = all(a is b for a, b in zip(operands, tensor.operands, strict=True))
    return tensor if same else replace(tensor, operands=operands)


def number_of(x: Tensor) -> Tensor | None:
    """The one number of a constant, or of a view of one."""
    while x.op == "view" and x.attributes["fill"] is None:
        (x,) = x.operands
    if x.op != "constant" or x.size != 1:
        return None
    return constant(x.attributes["value"].reshape(()), x.dtype)


def is_number(x: Tensor, value: float) -> bool:
    """Whether x is that number at every position."""
    number = number_of(x)
    return number is not None and number.attributes["value"].item() == value


def gather(
    table: Tensor,
    index: Tensor,
    axis: int,
    coordinates: Sequence[Affine | None],
) -> Tensor:
    """Read `table` at `coordinates`, and along `axis` at the value of `index` (already of the
    output shape, non-negative; values past the end read the last position)."""
    assert coordinates[axis] is None and len(coordinates) == table.ndim
    shape = index.shape
    others = [c for c in coordinates if c is not None]
    simple = iter(movement.canonical(others, shape))
    attributes = {
        "axis": axis,
        "coordinates": tuple(None if c is None else next(simple) for c in coordinates),
    }
    sizes = tuple(n for d, n in enumerate(table.shape) if d != axis)
    if not movement.in_bounds(others, shape, sizes):
        raise ShapeError(
            f"gather: coordinates [{', '.join(map(str, others))}] over {shape} are not proved to "
            f"stay inside {table}. Narrow the shape."
        )
    return build("gather", (table, index), attributes)


__all__ = [
    "TensorLike", "as_number", "as_tensor", "broadcast", "build", "cast", "constant",
    "elementwise", "expand", "gather", "input", "iota", "is_number", "is_scalar", "number_of",
    "plain_scalar", "promote", "select", "varying_axes", "view",
]  # fmt: skip
