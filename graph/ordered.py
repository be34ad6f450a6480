"""The primitives behind sorting: the order of rows, and rows read at positions."""

from eqsat.graph.build import build, gather
from eqsat.graph.index import Affine, var
from eqsat.graph.tensor import Tensor


def ordered(x: Tensor, descending: bool, count: int) -> Tensor:
    """Positions of the first `count` elements in order along the last axis, int64.

    Equal elements as they come; NaN last, or first where descending.
    """
    return build("argsort", (x,), {"descending": descending, "count": count})


def along_rows(x: Tensor, places: Tensor) -> Tensor:
    """x[..., places[..., i]] along the last axis; the other axes are those of both."""
    outer: list[Affine | None] = [var(f"i{axis}") for axis in range(x.ndim - 1)]
    return gather(x, places, x.ndim - 1, [*outer, None])
