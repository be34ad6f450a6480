"""Index maps of the movement operations: pure functions from shapes to coordinates.

A map says, for each dimension of the operand, which coordinate is read for the output position
(i0, i1, ...). Each function here returns the output shape and the coordinates, or coordinates only.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, SupportsIndex, cast

from eqsat.errors import DTypeError, ShapeError
from eqsat.graph.arguments import as_integer, as_integers, entries, is_integer
from eqsat.graph.index import (
    Affine,
    add,
    const,
    floordiv,
    mod,
    scale,
    simplify,
    sub,
    substitute,
    var,
    within,
)

Shape = tuple[int, ...]
Coordinates = tuple[Affine, ...]


def output_names(ndim: int) -> tuple[str, ...]:
    """The names i0, i1, ... of the output dimensions."""
    return tuple(f"i{axis}" for axis in range(ndim))


def output_extents(shape: Shape) -> dict[str, int]:
    """The extent of each output name."""
    return dict(zip(output_names(len(shape)), shape, strict=True))


def positions(shape: Shape) -> Coordinates:
    """The output position itself, one coordinate per dimension (0 where the extent is 1)."""
    names = output_names(len(shape))
    return tuple(const(0) if n == 1 else var(name) for name, n in zip(names, shape, strict=True))


def canonical(coordinates: Sequence[Affine], shape: Shape) -> Coordinates:
    """The same map, each coordinate simplified over the output shape."""
    extents = output_extents(shape)
    return tuple(simplify(coordinate, extents) for coordinate in coordinates)


def in_bounds(coordinates: Sequence[Affine], shape: Shape, operand_shape: Shape) -> bool:
    """Whether every read of the map is proved to fall inside the operand."""
    if prod(shape) == 0:
        return True
    extents = output_extents(shape)
    return all(within(c, extents, n) for c, n in zip(coordinates, operand_shape, strict=True))


def compose(outer: Sequence[Affine], inner: Sequence[Affine], shape: Shape) -> Coordinates:
    """The map that reads through `outer` (into the middle) and then through `inner`."""
    middle = dict(zip(output_names(len(outer)), outer, strict=True))
    extents = output_extents(shape)
    return tuple(substitute(coordinate, middle, extents) for coordinate in inner)


def is_permutation(coordinates: Sequence[Affine], shape: Shape, operand_shape: Shape) -> bool:
    """Whether the map only reorders dimensions: each output name is one coordinate, once."""
    names = output_names(len(shape))
    if len(coordinates) != len(names):
        return False
    used: list[str] = []
    for coordinate, n in zip(coordinates, operand_shape, strict=True):
        for name, extent in zip(names, shape, strict=True):
            if coordinate == var(name) and extent == n and name not in used:
                used.append(name)
                break
        else:
            return False
    return True


def broadcast(operand_shape: Shape, shape: Shape) -> Coordinates | None:
    """The map of `broadcast_to`, or None where the shapes do not allow it."""
    offset = len(shape) - len(operand_shape)
    if offset < 0:
        return None
    if any(n not in (1, m) for n, m in zip(operand_shape, shape[offset:], strict=True)):
        return None
    names = output_names(len(shape))[offset:]
    return tuple(
        const(0) if n == 1 else var(name) for n, name in zip(operand_shape, names, strict=True)
    )


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape | None:
    """The common shape by the standard's broadcasting rule, or None."""
    ndim = max((len(shape) for shape in shapes), default=0)
    result: list[int] = []
    for axis in range(-ndim, 0):
        sizes = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(sizes) > 1:
            return None
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def flatten(position: Sequence[Affine], shape: Shape) -> Affine:
    """The row-major position of `position` in an array of `shape`."""
    flat = const(0)
    for coordinate, n in zip(position, shape, strict=True):
        flat = add(scale(flat, n), coordinate)
    return flat


def unflatten(flat: Affine, shape: Shape, extents: Mapping[str, int]) -> Coordinates:
    """The coordinates, in an array of `shape`, of a row-major position."""
    coordinates: list[Affine] = []
    for axis, n in enumerate(shape):
        stride = max(prod(shape[axis + 1 :]), 1)
        coordinates.append(mod(floordiv(flat, stride, extents), max(n, 1), extents))
    return tuple(coordinates)


def reshape(operand_shape: Shape, shape: Shape) -> Coordinates:
    """The map of a row-major reshape between shapes of the same size."""
    if prod(shape) == 0:
        return (const(0),) * len(operand_shape)
    return unflatten(flatten(positions(shape), shape), operand_shape, output_extents(shape))


def permute(operand_shape: Shape, axes: Sequence[int]) -> tuple[Shape, Coordinates]:
    """The map whose output dimension d is operand dimension axes[d]."""
    names = output_names(len(axes))
    source = {axis: name for name, axis in zip(names, axes, strict=True)}
    shape = tuple(operand_shape[axis] for axis in axes)
    return shape, tuple(var(source[axis]) for axis in range(len(operand_shape)))


def flip(shape: Shape, axes: Sequence[int]) -> Coordinates:
    """The map that reverses `axes`."""
    return tuple(
        sub(const(n - 1), coordinate) if axis in axes else coordinate
        for axis, (n, coordinate) in enumerate(zip(shape, positions(shape), strict=True))
    )


def roll(shape: Shape, shifts: Mapping[int, int]) -> Coordinates:
    """The map that shifts each axis of `shifts` cyclically towards higher positions."""
    extents = output_extents(shape)
    return tuple(
        mod(sub(c, const(shifts[axis])), max(n, 1), extents) if axis in shifts else c
        for axis, (n, c) in enumerate(zip(shape, positions(shape), strict=True))
    )


def pad(shape: Shape, widths: Sequence[tuple[int, int]]) -> tuple[Shape, Coordinates]:
    """The map that surrounds an array by (before, after) extra positions per axis."""
    padded = tuple(n + before + after for n, (before, after) in zip(shape, widths, strict=True))
    names = output_names(len(shape))
    return padded, tuple(
        sub(var(name), const(before)) for name, (before, _) in zip(names, widths, strict=True)
    )


def slice_axis(n: int, key: slice) -> tuple[int, int, int]:
    """start, step and length of a slice of an axis of n positions, as Python counts them."""
    bounds = [None if one is None else _bound(one) for one in (key.start, key.stop, key.step)]
    if bounds[2] == 0:
        raise ShapeError("index: the step of a slice is 0. Use a step of at least 1, or below 0.")
    start, stop, step = slice(*bounds).indices(n)
    return start, step, len(range(start, stop, step))


def _bound(one: Any) -> int:
    """A bound or step of a slice as an int; DTypeError unless it is an integer."""
    if not is_integer(one):
        raise DTypeError(
            f"index: the bound {one!s:.80} of a slice is no integer. Slices are fixed when a "
            f"program is built: give integers, or use take, where or compute for positions that "
            f"are values."
        )
    return as_integer(one, "index: the bound")


BasicKey = SupportsIndex | slice | None


def key_parts(key: Any) -> tuple[Any, ...]:
    """The entries of an index key."""
    return cast(tuple[Any, ...], key) if isinstance(key, tuple) else (key,)


def expand_ellipsis(key: Any, ndim: int, what: str) -> list[object]:
    """The key as a list with one entry per axis (None entries, which add an axis, apart)."""
    parts = key_parts(key)
    dots = [at for at, part in enumerate(parts) if part is Ellipsis]
    given = sum(part is not None and part is not Ellipsis for part in parts)
    if len(dots) > 1 or given > ndim:
        raise ShapeError(
            f"index: {given} indices{' and more than one ...' if len(dots) > 1 else ''} for {what} "
            f"of {ndim} dimensions. Give at most one index per dimension and one Ellipsis."
        )
    at = dots[0] if dots else len(parts)
    return [*parts[:at], *[slice(None)] * (ndim - given), *parts[at + 1 :]]


def basic_index(shape: Shape, parts: Sequence[BasicKey], what: str) -> tuple[Shape, Coordinates]:
    """The map of integers, slices of any step and None (a new axis); `parts` covers every axis."""
    new_shape: list[int] = []
    coordinates: list[Affine] = []
    for part in parts:
        if part is None:
            new_shape.append(1)
            continue
        axis = len(coordinates)
        n = shape[axis]
        if isinstance(part, slice):
            start, step, length = slice_axis(n, part)
            position = var(f"i{len(new_shape)}")
            coordinates.append(add(scale(position, step), const(start)))
            new_shape.append(length)
        else:
            coordinates.append(const(wrap_index(part.__index__(), n, axis, what)))
    return tuple(new_shape), tuple(coordinates)


def wrap_index(at: int, n: int, axis: int, what: str) -> int:
    """The position that `at` means, where negative numbers count from the end."""
    if not -n <= at < n:
        raise ShapeError(
            f"index: {at} is outside axis {axis} of {what}, which has {n} positions. "
            f"Use {-n} to {n - 1}."
            if n
            else f"index: axis {axis} of {what} is empty; {at} cannot be read. Use a slice."
        )
    return at % n


def normalise_axis(axis: Any, ndim: int, op: str, what: str) -> int:
    """The axis counted from the front; ShapeError outside the dimensions."""
    axis = as_integer(axis, f"{op}: axis", f" of {what}", "Give an axis number.")
    if not -ndim <= axis < ndim:
        limit = f"Use {-ndim} to {ndim - 1}." if ndim else "A 0-d tensor has no axes."
        raise ShapeError(f"{op}: axis {axis} is outside {what} of {ndim} dimensions. {limit}")
    return axis % ndim


def normalise_axes(
    axis: SupportsIndex | Sequence[SupportsIndex] | None, ndim: int, op: str, what: str
) -> tuple[int, ...]:
    """Axes in the order given, counted from the front; None means all of them."""
    if axis is None:
        return tuple(range(ndim))
    given = entries(axis)
    axes = tuple(normalise_axis(one, ndim, op, what) for one in given)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{op}: axis {given} of {what} repeats an axis. Name each axis once.")
    return axes


def normalise_shape(shape: SupportsIndex | Sequence[SupportsIndex], op: str) -> Shape:
    """The shape as a tuple of non-negative ints."""
    limit = "Extents are integers of at least 0."
    given = as_integers(shape, f"{op}: the extent", f" of the shape {shape}", limit)
    for n in given:
        if n < 0:
            raise ShapeError(f"{op}: shape {given} has the extent {n}. {limit}")
    return given
