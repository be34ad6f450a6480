"""The array API's movement functions: each one is a view, or views joined by where."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from eqsat.errors import DTypeError, ShapeError
from eqsat.graph import build as primitives
from eqsat.graph import movement
from eqsat.graph.arguments import as_integer, as_integers, entries, is_several
from eqsat.graph.build import TensorLike, as_tensor, expand, iota, promote, view
from eqsat.graph.dtypes import Scalar
from eqsat.graph.elementwise import less, not_equal, subtract, where
from eqsat.graph.index import floordiv, mod, var
from eqsat.graph.movement import normalise_axes, normalise_axis, output_extents, output_names
from eqsat.graph.positions import take
from eqsat.graph.tensor import Tensor, weak_composition


def broadcast_to(x: TensorLike, shape: int | Sequence[int]) -> Tensor:
    """x repeated along axes of extent 1, and along new axes in front."""
    return expand(as_tensor(x), movement.normalise_shape(shape, "broadcast_to"))


def broadcast_arrays(*tensors: TensorLike) -> tuple[Tensor, ...]:
    """The tensors at their common shape."""
    return primitives.broadcast("broadcast_arrays", *map(as_tensor, tensors))


def reshape(x: TensorLike, shape: int | Sequence[int]) -> Tensor:
    """The same elements in row-major order at another shape; one extent may be -1 (deduced)."""
    x = as_tensor(x)
    given = as_integers(shape, "reshape: the extent", f" of the shape {shape}")
    known = prod(n for n in given if n != -1)
    wanted = given
    if given.count(-1) == 1 and known > 0 and x.size % known == 0:
        wanted = tuple(x.size // known if n == -1 else n for n in given)
    if any(n < 0 for n in wanted) or prod(wanted) != x.size:
        raise ShapeError(
            f"reshape: {x} has {x.size} elements and the shape {given} "
            f"{'cannot hold them' if -1 in given else f'has {prod(given)}'}. "
            f"Use extents whose product is {x.size}, one of which may be -1."
        )
    return view(x, wanted, movement.reshape(x.shape, wanted))


def permute_dims(x: TensorLike, axes: Sequence[int]) -> Tensor:
    """The dimensions reordered: result dimension d is dimension axes[d] of x."""
    x = as_tensor(x)
    order = normalise_axes(entries(axes), x.ndim, "permute_dims", str(x))
    if len(order) != x.ndim:
        raise ShapeError(
            f"permute_dims: {x} has {x.ndim} dimensions, axes {entries(axes)} name {len(order)}. "
            f"Name each axis once."
        )
    return view(x, *movement.permute(x.shape, order))


def matrix_transpose(x: TensorLike) -> Tensor:
    """The last two dimensions swapped."""
    x = as_tensor(x)
    if x.ndim < 2:
        raise ShapeError(
            f"matrix_transpose: {x} has {x.ndim} dimensions; 2 are needed. Use expand_dims first."
        )
    return permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def moveaxis(
    x: TensorLike, source: int | Sequence[int], destination: int | Sequence[int]
) -> Tensor:
    """The axes `source` at the positions `destination`, the others in their order."""
    x = as_tensor(x)
    origin = normalise_axes(source, x.ndim, "moveaxis", str(x))
    target = normalise_axes(destination, x.ndim, "moveaxis", str(x))
    if len(origin) != len(target):
        raise ShapeError(
            f"moveaxis: {len(origin)} axes of {x} for {len(target)} destinations. Give as many."
        )
    order = [axis for axis in range(x.ndim) if axis not in origin]
    for at, axis in sorted(zip(target, origin, strict=True)):
        order.insert(at, axis)
    return permute_dims(x, order)


def expand_dims(x: TensorLike, axis: int | Sequence[int] = 0) -> Tensor:
    """New axes of extent 1 at the positions `axis` of the result."""
    x, given = as_tensor(x), entries(axis)
    count = len(given)
    added = normalise_axes(given, x.ndim + count, "expand_dims", str(x))
    sizes = iter(x.shape)
    return reshape(x, tuple(1 if d in added else next(sizes) for d in range(x.ndim + count)))


def squeeze(x: TensorLike, axis: int | Sequence[int]) -> Tensor:
    """Axes of extent 1 removed; ShapeError where the extent is another."""
    x = as_tensor(x)
    axes = normalise_axes(axis, x.ndim, "squeeze", str(x))
    for one in axes:
        if x.shape[one] != 1:
            raise ShapeError(
                f"squeeze: axis {one} of {x} has {x.shape[one]} positions, not 1. "
                f"Index or reduce that axis instead."
            )
    return reshape(x, tuple(n for d, n in enumerate(x.shape) if d not in axes))


def flip(x: TensorLike, axis: int | Sequence[int] | None = None) -> Tensor:
    """The order along the axes (all by default) reversed."""
    x = as_tensor(x)
    axes = normalise_axes(axis, x.ndim, "flip", str(x))
    return view(x, x.shape, movement.flip(x.shape, axes))


def roll(
    x: TensorLike, shift: int | Sequence[int], axis: int | Sequence[int] | None = None
) -> Tensor:
    """The elements shifted cyclically along the axes; over the flattened tensor without axes."""
    x = as_tensor(x)
    given = as_integers(shift, "roll: the shift", f" of {x}", "Give one for each axis.")
    if axis is None:
        return reshape(roll(reshape(x, -1 if x.size else (0,)), sum(given), 0), x.shape)
    axes = normalise_axes(axis, x.ndim, "roll", str(x))
    shifts = given if is_several(shift) else given * len(axes)
    if len(shifts) != len(axes):
        raise ShapeError(f"roll: {len(shifts)} shifts for {len(axes)} axes of {x}. Give as many.")
    return view(x, x.shape, movement.roll(x.shape, dict(zip(axes, shifts, strict=True))))


def pad(
    x: TensorLike,
    widths: int | tuple[int, int] | Sequence[tuple[int, int]],
    value: Scalar | None = None,
) -> Tensor:
    """x surrounded by (before, after) positions per axis that hold `value`: 0 unless given, False
    of a bool. As in NumPy one pair, or one width, serves all sides.
    """
    x = as_tensor(x)
    if value is None:
        value = False if x.dtype.kind == "bool" else 0
    given = _widths(widths, x.ndim)
    if given is None:
        raise ShapeError(
            f"pad: widths {widths} for {x}. Give one (before, after) pair of at least 0 for each "
            f"of the {x.ndim} axes, or one pair or width for all."
        )
    return view(x, *movement.pad(x.shape, given), fill=value)


def _widths(widths: Any, ndim: int) -> list[tuple[int, int]] | None:
    """The pair of each axis; None where these are no widths of so many."""
    try:
        pairs = np.broadcast_to(np.asarray(widths), (ndim, 2)) if ndim else np.zeros((0, 2), int)
    except ValueError:
        return None
    whole = pairs.dtype.kind in "iu" and not (pairs < 0).any()
    return [(int(before), int(after)) for before, after in pairs] if whole else None


def repeat(x: TensorLike, repeats: int | Sequence[int], axis: int | None = None) -> Tensor:
    """Each position along the axis `repeats` times in a row; flattened first without an axis.

    repeats: one number for all positions, or one for each. ShapeError where they do not fit.
    """
    x = as_tensor(x)
    if axis is None:
        x, axis = reshape(x, (x.size,)), 0
    axis = normalise_axis(axis, x.ndim, "repeat", str(x))
    if isinstance(repeats, Tensor):
        raise ShapeError(
            f"repeat: the repeats {repeats} are values, on which the shape would depend. Give "
            f"integers."
        )
    counts = as_integers(repeats, "repeat: the number of repeats")
    if min(counts, default=0) < 0:
        raise ShapeError(f"repeat: {repeats} repeats of {x}. Use 0 or more.")
    if is_several(repeats) and len(counts) not in (1, x.shape[axis]):
        raise ShapeError(
            f"repeat: {len(counts)} repeats for axis {axis} of {x}. Give one number, or one for "
            f"each of its {x.shape[axis]} positions."
        )
    if len(counts) != 1:
        return take(x, np.repeat(np.arange(len(counts)), np.asarray(counts, np.int64)), axis)
    (count,) = counts
    shape = tuple(n * count if d == axis else n for d, n in enumerate(x.shape))
    coordinates = list(movement.positions(shape))
    coordinates[axis] = floordiv(coordinates[axis], max(count, 1), output_extents(shape))
    return view(x, shape, coordinates)


def tile(x: TensorLike, repetitions: Sequence[int]) -> Tensor:
    """x laid out `repetitions` times along each axis, counted from the right."""
    x, counts = as_tensor(x), movement.normalise_shape(repetitions, "tile")
    ndim = max(x.ndim, len(counts))
    x = reshape(x, (1,) * (ndim - x.ndim) + x.shape)
    counts = (1,) * (ndim - len(counts)) + counts
    shape = tuple(n * count for n, count in zip(x.shape, counts, strict=True))
    coordinates = [
        mod(var(name), max(n, 1), output_extents(shape))
        for name, n in zip(output_names(ndim), x.shape, strict=True)
    ]
    return view(x, shape, coordinates)


def concat(tensors: Sequence[TensorLike], axis: int | None = 0) -> Tensor:
    """The tensors joined along an axis (None: flattened first), after promotion."""
    tensors = _several("concat", tensors)
    if not tensors:
        raise ShapeError("concat: no tensors given. Give at least one.")
    if axis is None:
        return concat([reshape(x, (x.size,)) for x in map(as_tensor, tensors)], 0)
    parts = promote("concat", *tensors)
    axis = normalise_axis(axis, parts[0].ndim, "concat", str(parts[0]))
    rests = {x.shape[:axis] + x.shape[axis + 1 :] for x in parts}
    if len(rests) > 1 or len({x.ndim for x in parts}) > 1:
        raise ShapeError(
            f"concat: {', '.join(map(str, parts))} differ in more than axis {axis}. "
            f"Make the other extents equal first."
        )
    with weak_composition("concat"):
        return _join(parts, axis)


def _join(parts: Sequence[Tensor], axis: int) -> Tensor:
    """where(position < end of part 0, part 0, where(... )), each part shifted to its place."""
    total = sum(x.shape[axis] for x in parts)
    shape = tuple(total if d == axis else n for d, n in enumerate(parts[0].shape))
    kept = [x for x in parts if x.shape[axis]] or list(parts[:1])
    if len(kept) == 1:
        return kept[0]
    position = iota(shape, axis)
    end, result = total, None
    for x in reversed(kept):
        start = end - x.shape[axis]
        widths = [(start, total - end) if d == axis else (0, 0) for d in range(x.ndim)]
        fill = False if x.dtype.kind == "bool" else 0
        shifted = view(x, *movement.pad(x.shape, widths), fill=fill)
        result = shifted if result is None else where(less(position, end), shifted, result)
        end = start
    assert result is not None
    return result


def _several(op: str, tensors: Any) -> Sequence[Any]:
    """The tensors of a sequence of them; DTypeError for anything else."""
    if isinstance(tensors, Tensor) or not is_several(tensors):
        raise DTypeError(f"{op}: got {tensors!r}. Give a list or tuple of tensors.")
    return tuple(tensors)


def stack(tensors: Sequence[TensorLike], axis: int = 0) -> Tensor:
    """The tensors of one shape joined along a new axis, after promotion."""
    tensors = _several("stack", tensors)
    if not tensors:
        raise ShapeError("stack: no tensors given. Give at least one.")
    parts = promote("stack", *tensors)
    if len({x.shape for x in parts}) > 1:
        raise ShapeError(
            f"stack: {', '.join(map(str, parts))} differ in shape. Make them equal first."
        )
    axis = normalise_axis(axis, parts[0].ndim + 1, "stack", str(parts[0]))
    shape = (*parts[0].shape[:axis], len(parts), *parts[0].shape[axis:])
    with weak_composition("stack"):
        layers = [broadcast_to(expand_dims(x, axis), shape) for x in parts]
        result, position = layers[-1], iota(shape, axis)
        for at in reversed(range(len(layers) - 1)):
            result = where(less(position, at + 1), layers[at], result)
        return result


def unstack(x: TensorLike, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis."""
    x = as_tensor(x)
    axis = normalise_axis(axis, x.ndim, "unstack", str(x))
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    return tuple(reshape(slice_axis(x, axis, at, at + 1), shape) for at in range(x.shape[axis]))


def split(x: TensorLike, sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """The parts of x along an axis, as NumPy's `split` has them.

    sections: a number of equal parts, or the positions at which parts end, as bounds of slices:
    [2, 5] gives x[:2], x[2:5] and x[5:]. ShapeError where the parts would differ in length, see
    `array_split`; and for fewer than 1.
    """
    return _split("split", x, sections, axis, equal=True)


def array_split(x: TensorLike, sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """As `split`, but of a number of parts that does not divide the axis the first are longer by 1.

    ShapeError for fewer than 1.
    """
    return _split("array_split", x, sections, axis, equal=False)


def _split(
    op: str, x: TensorLike, sections: int | Sequence[int], axis: int, equal: bool
) -> list[Tensor]:
    x = as_tensor(x)
    axis = normalise_axis(axis, x.ndim, op, str(x))
    extent = x.shape[axis]
    what = f"{op}: the {'position' if is_several(sections) else 'number of sections'}"
    ends = as_integers(sections, what, f" of {x}", "Give a number of parts, or where they end.")
    if not is_several(sections):
        (count,) = ends
        if count < 1:
            raise ShapeError(f"{op}: {count} sections of {x}. Use 1 or more.")
        if equal and extent % count:
            raise ShapeError(
                f"{op}: the {extent} positions of axis {axis} of {x} make no {count} equal parts. "
                f"Use a divisor of {extent}, positions such as [{extent // count}], or array_split."
            )
        length, longer = divmod(extent, count)
        ends = tuple(at * length + min(at, longer) for at in range(1, count))
    bounds = zip((0, *ends), (*ends, extent), strict=True)
    return [slice_axis(x, axis, start, stop) for start, stop in bounds]


def slice_axis(x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    """Positions start to stop - 1 along one axis."""
    key = [slice(start, stop) if d == axis else slice(None) for d in range(x.ndim)]
    return view(x, *movement.basic_index(x.shape, key, str(x)))


def diff(
    x: TensorLike,
    axis: int = -1,
    n: int = 1,
    prepend: TensorLike | None = None,
    append: TensorLike | None = None,
) -> Tensor:
    """What each element along an axis is more than the one before it, `n` times over.

    prepend, append: joined to x along the axis first, unless n is 0. The axis becomes shorter by n.
    Of bool, whether neighbours differ. ShapeError for a negative n.
    """
    x, n = as_tensor(x), as_integer(n, "diff: n")
    axis = normalise_axis(axis, x.ndim, "diff", str(x))
    if n < 0:
        raise ShapeError(f"diff: n is {n}. Use 0 or more.")
    if n == 0:
        return x
    with weak_composition("diff"):
        parts = [part for part in (prepend, x, append) if part is not None]
        found = concat(parts, axis) if len(parts) > 1 else x
        for _ in range(n):
            last = found.shape[axis] - 1
            before, after = slice_axis(found, axis, 0, last), slice_axis(found, axis, 1, last + 1)
            apart = not_equal if found.dtype.kind == "bool" else subtract
            found = apart(after, before)
        return found


def meshgrid(*arrays: TensorLike, indexing: str = "xy") -> list[Tensor]:
    """Coordinates of a grid: each of some one-dimensional tensors along its own axis of all.

    indexing: "ij" gives axes in the order of the tensors, "xy" turns the first two of them round.
    """
    if indexing not in ("xy", "ij"):
        raise ShapeError(f"meshgrid: indexing is {indexing!r}. Use 'xy' or 'ij'.")
    tensors = [as_tensor(x) for x in arrays]
    wrong = [str(x) for x in tensors if x.ndim != 1]
    if wrong:
        raise ShapeError(f"meshgrid: takes tensors of one dimension, got {' and '.join(wrong)}.")
    front = 2 if indexing == "xy" else 0
    order = [*reversed(range(len(tensors))[:front]), *range(len(tensors))[front:]]
    shape = tuple(tensors[at].shape[0] for at in order)
    with weak_composition("meshgrid"):
        own = {
            at: [n if d == axis else 1 for d, n in enumerate(shape)]
            for axis, at in enumerate(order)
        }
        return [expand(reshape(x, own[at]), shape) for at, x in enumerate(tensors)]
