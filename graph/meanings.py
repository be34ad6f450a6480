"""The NumPy meaning of the primitives that are not one NumPy function."""

from collections.abc import Sequence

import numpy as np

from eqsat.graph.dtypes import Scalar
from eqsat.graph.index import Affine, evaluate, free_names, open_grid
from eqsat.graph.movement import Shape, output_extents, output_names


def erf(x: np.ndarray) -> np.ndarray:
    """The error function."""
    import scipy.special as special  # takes 0.1 s to import  # pyright: ignore[reportMissingTypeStubs]

    return np.asarray(special.erf(x))


def rsqrt(x: np.ndarray) -> np.ndarray:
    """1 / sqrt(x)."""
    return np.reciprocal(np.sqrt(x))


def power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a ** b; integers wrap, and a negative integer power is the exact quotient, cut to 0."""
    if a.dtype.kind != "i":
        return np.power(a, b)
    negative = np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (b & 1), 0)).astype(a.dtype)
    return np.where(b < 0, negative, np.power(a, np.maximum(b, 0)))


def affine_scan(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
    """h_t = a_t * h_(t-1) + b_t along an axis, from h = 0."""
    factors, states = np.moveaxis(a, axis, 0), np.moveaxis(b.copy(), axis, 0)
    for t in range(1, len(states)):
        states[t] += factors[t] * states[t - 1]
    return np.moveaxis(states, 0, axis)


def order(x: np.ndarray, descending: bool, count: int) -> np.ndarray:
    """Positions of the first `count` elements in order along the last axis, int64.

    Equal elements as they come; NaN last, or first where descending.
    """
    if not descending:
        return np.argsort(x, axis=-1, kind="stable")[..., :count]
    back = np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    return (x.shape[-1] - 1 - back)[..., :count]


def sorted_rows(x: np.ndarray, descending: bool) -> np.ndarray:
    """The elements in order along the last axis; NaN last, or first where descending."""
    return np.take_along_axis(x, order(x, descending, x.shape[-1]), -1)


def iota(shape: Shape, axis: int) -> np.ndarray:
    """The position along `axis`, at every position of `shape`."""
    n = shape[axis]
    column = np.arange(n, dtype=np.int64).reshape(
        [n if d == axis else 1 for d in range(len(shape))]
    )
    return np.broadcast_to(column, shape)


def read_view(
    operand: np.ndarray, coordinates: Sequence[Affine], shape: Shape, fill: Scalar | None
) -> np.ndarray:
    """The operand read at `coordinates` for each position of `shape`; `fill` outside it."""
    axes, array = read_used_axes(operand, coordinates, shape, fill)
    expanded = array.reshape([n if axis in axes else 1 for axis, n in enumerate(shape)])
    return np.broadcast_to(expanded, shape)


def read_used_axes(
    operand: np.ndarray, coordinates: Sequence[Affine], shape: Shape, fill: Scalar | None
) -> tuple[tuple[int, ...], np.ndarray]:
    """The view over only those output axes on which it depends: those axes, and the array."""
    names = output_names(len(shape))
    extents = output_extents(shape)
    used = frozenset[str]().union(*(free_names(c) for c in coordinates))
    axes = tuple(axis for axis, name in enumerate(names) if name in used)
    compact = tuple(shape[axis] for axis in axes)
    if 0 in compact or 0 in shape:
        return axes, np.zeros(compact, operand.dtype)
    order = [names[axis] for axis in axes]
    if fill is None and all(isinstance(a, str) for c in coordinates for a, _ in c.terms):
        return axes, _strided(operand, coordinates, order, compact)
    grid = open_grid(order, extents)
    where = [np.asarray(evaluate(c, grid)) for c in coordinates]
    if fill is None:
        return axes, np.broadcast_to(operand[tuple(where)], compact)
    inside = np.ones((1,) * len(compact), bool)
    for at, n in zip(where, operand.shape, strict=True):
        inside = inside & (at >= 0) & (at < n)
    if operand.size == 0:
        return axes, np.full(compact, fill, operand.dtype)
    clipped = tuple(np.clip(at, 0, n - 1) for at, n in zip(where, operand.shape, strict=True))
    values = np.where(inside, operand[clipped], np.asarray(fill, operand.dtype))
    return axes, np.broadcast_to(values, compact)


def gather(
    table: np.ndarray,
    index: np.ndarray,
    axis: int,
    coordinates: Sequence[Affine | None],
    shape: Shape,
) -> np.ndarray:
    """The table read at `coordinates`, and along `axis` at `index` clipped to the table."""
    if 0 in shape:
        return np.zeros(shape, table.dtype)
    names = list(output_names(len(shape)))
    grid = open_grid(names, output_extents(shape))
    where = [
        np.clip(index, 0, table.shape[axis] - 1) if c is None else np.asarray(evaluate(c, grid))
        for c in coordinates
    ]
    return np.broadcast_to(table[tuple(where)], shape)


def _strided(
    operand: np.ndarray, coordinates: Sequence[Affine], names: Sequence[str], shape: Shape
) -> np.ndarray:
    start = operand[tuple(slice(c.constant, c.constant + 1) for c in coordinates)]
    strides = dict.fromkeys(names, 0)
    for coordinate, stride in zip(coordinates, operand.strides, strict=True):
        for atom, coefficient in coordinate.terms:
            assert isinstance(atom, str)
            strides[atom] += coefficient * stride
    steps = tuple(strides[name] for name in names)
    plain = start.view(np.uint8) if start.itemsize == 1 else start  # NumPy knows no name for "f1"
    return np.lib.stride_tricks.as_strided(plain, shape, steps, writeable=False).view(start.dtype)
