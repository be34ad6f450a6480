"""Sorting along an axis: `sort` and `argsort` of the array API standard."""

from eqsat.errors import ShapeError
from eqsat.graph.build import TensorLike, as_tensor, build, cast, constant, expand
from eqsat.graph.dtypes import bool_, int64, uint8
from eqsat.graph.manipulation import moveaxis
from eqsat.graph.movement import normalise_axis
from eqsat.graph.ordered import ordered
from eqsat.graph.tensor import Tensor, weak_composition


def sort(x: TensorLike, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The elements in order along an axis. x: any real dtype or bool; the result is like x.

    NaN comes last, or first where descending. Zeros of either sign are equal, and which of them
    comes first is left open. `stable` changes nothing that can be seen. ShapeError for a scalar and
    for an axis that x lacks.
    """
    del stable
    x = as_tensor(x)
    axis = _checked("sort", x, axis)
    if x.shape[axis] < 2 or x.size == 0:
        return x
    with weak_composition("sort"):
        rows = moveaxis(_comparable(x), axis, -1)
        found = build("sort", (rows,), {"descending": bool(descending)})
        return cast(moveaxis(found, -1, axis), x.dtype)


def argsort(x: TensorLike, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The positions that sort x along an axis, int64, shaped as x.

    Equal elements come in the order of their positions, whether or not `stable` asks for it, either
    way; NaN last, or first where descending. Errors are those of `sort`.
    """
    del stable
    x = as_tensor(x)
    axis = _checked("argsort", x, axis)
    if x.shape[axis] < 2 or x.size == 0:
        return expand(constant(0, int64), x.shape)
    with weak_composition("argsort"):
        rows = moveaxis(_comparable(x), axis, -1)
        return moveaxis(ordered(rows, bool(descending), rows.shape[-1]), -1, axis)


def _checked(op: str, x: Tensor, axis: int) -> int:
    if x.ndim == 0:
        raise ShapeError(f"{op}: {x} has no axis to sort along. Reshape it to one dimension first.")
    return normalise_axis(axis, x.ndim, op, str(x))


def _comparable(x: Tensor) -> Tensor:
    return cast(x, uint8) if x.dtype == bool_ else x
