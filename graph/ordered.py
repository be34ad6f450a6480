"""The primitives behind sorting: the order of rows, and rows read at positions."""

from eqsat.graph.build import build, gather
from eqsat.graph.index import Affine, const, var
from eqsat.graph.tensor import Tensor


def ordered(x: Tensor, descending: bool, count: int) -> Tensor:
    """Positions of the first `count` elements in order along the last axis, int64.

    Equal elements as they come; NaN last, or first where descending.
    """
    return build("argsort", (x,), {"descending": descending, "count": count})


def along_rows(x: Tensor, places: Tensor, axis: int = -1) -> Tensor:
    """x[..., places[..., i, ...], ...] along an axis; the other axes of x are those of the places,
    or of one position.
    """
    at: list[Affine | None] = [var(f"i{d}") if n > 1 else const(0) for d, n in enumerate(x.shape)]
    at[axis] = None
    return gather(x, places, axis % x.ndim, at)
