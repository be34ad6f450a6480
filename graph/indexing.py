"""What `x[key]` and `x.at(...)` mean."""

from typing import Any

import numpy as np

from eqsat.errors import DTypeError, ShapeError
from eqsat.graph import movement
from eqsat.graph.arguments import is_integer
from eqsat.graph.build import view
from eqsat.graph.dtypes import Scalar
from eqsat.graph.positions import take
from eqsat.graph.tensor import Coordinate, Tensor


def read(x: Tensor, key: Any, fill: Scalar | None = None) -> Tensor:
    """x at a key of integers, slices, None and Ellipsis; or at one integer tensor; or, inside
    `compute`, at index expressions (with `fill` where they leave x)."""
    parts = movement.key_parts(key)
    for part in parts:
        if isinstance(part, Coordinate):
            return part.read(x, parts, fill)
    expanded = movement.expand_ellipsis(key, x.ndim, str(x))
    if any(isinstance(part, Tensor | np.ndarray | list) for part in expanded):
        return _read_by_tensor(x, expanded)
    for part in expanded:
        if part is not None and not isinstance(part, slice) and not is_integer(part):
            raise DTypeError(
                f"index: {part!r} of {x} is no index. Use integers, slices, None, ... or one "
                f"integer tensor; use where for a mask."
            )
    return view(x, *movement.basic_index(x.shape, expanded, str(x)))  # pyright: ignore[reportArgumentType]


def _read_by_tensor(x: Tensor, parts: list[Any]) -> Tensor:
    at = [axis for axis, p in enumerate(parts) if isinstance(p, Tensor | np.ndarray | list)]
    others = [part for axis, part in enumerate(parts) if axis not in at]
    if len(at) > 1 or not all(isinstance(part, slice) for part in others):
        raise ShapeError(
            f"index: {x} takes one integer tensor among slices. Index the other axes in a second "
            f"step, or use take."
        )
    axis = at[0]
    key = [slice(None) if d == axis else part for d, part in enumerate(parts)]
    sliced = view(x, *movement.basic_index(x.shape, key, str(x)))
    return take(sliced, parts[axis], axis)
