"""Integers whose bounds decide what is computed of them: comparisons that always hold or never,
and extremes that are always the same operand's.
"""

import numpy as np

from eqsat.graph.build import constant
from eqsat.graph.dtypes import iinfo
from eqsat.graph.manipulation import broadcast_to
from eqsat.graph.tensor import Tensor

Bounds = tuple[int, int]
COMPARISONS = frozenset({"less", "less_equal", "greater", "greater_equal", "equal", "not_equal"})


class Decisions:
    """What bounds decide, of tensors given operands before users."""

    def __init__(self) -> None:
        self._bounds: dict[Tensor, Bounds | None] = {}

    def settle(self, tensor: Tensor) -> Tensor:
        """The tensor, or what always has its value."""
        known = [self.bounds(operand) for operand in tensor.operands]
        match tensor.op, known:
            case op, ((low, high), (least, most)) if op in COMPARISONS:
                holds = _compared(op, low, high, least, most)
                return tensor if holds is None else _always(holds, tensor)
            case ("minimum" | "maximum") as op, ((low, high), (least, most)):
                if high <= least:
                    return tensor.operands[op == "maximum"]
                if low >= most:
                    return tensor.operands[op == "minimum"]
            case "where", ((low, high), *_) if low == high:
                return tensor.operands[1 if low else 2]
        return tensor

    def bounds(self, tensor: Tensor) -> Bounds | None:
        """The least and the largest element, of integers and truth values; None where unknown."""
        waiting = [tensor]
        while waiting:
            node = waiting[-1]
            whole = node.dtype.kind != "float"
            unknown = [x for x in node.operands if x not in self._bounds] if whole else []
            if unknown and node not in self._bounds:
                waiting += unknown
                continue
            waiting.pop()
            if node not in self._bounds:
                self._bounds[node] = self._fitting(node) if whole else None
        return self._bounds[tensor]

    def _fitting(self, tensor: Tensor) -> Bounds | None:
        """The bounds, unless what is computed may leave the dtype and wrap."""
        found = self._found(tensor)
        if found is None or tensor.dtype.kind == "bool":
            return found
        limits = iinfo(tensor.dtype)
        return found if limits.min <= found[0] and found[1] <= limits.max else None

    def _found(self, tensor: Tensor) -> Bounds | None:
        match tensor.op:
            case "iota":
                return 0, max(tensor.shape[tensor.attributes["axis"]] - 1, 0)
            case "constant" if tensor.size:
                value = np.asarray(tensor.attributes["value"])
                return int(value.min()), int(value.max())
            case "view" if tensor.attributes["fill"] is None:
                return self._bounds[tensor.operands[0]]
            case "cast" if tensor.operands[0].dtype.kind != "float":
                return self._bounds[tensor.operands[0]]
        known = [self._bounds[operand] for operand in tensor.operands]
        match tensor.op, known:
            case "add", ((low, high), (least, most)):
                return low + least, high + most
            case "sub", ((low, high), (least, most)):
                return low - most, high - least
            case "minimum", ((low, high), (least, most)):
                return min(low, least), min(high, most)
            case "maximum", ((low, high), (least, most)):
                return max(low, least), max(high, most)
            case "minimum", (None, (_, most)) | ((_, most), None):
                return iinfo(tensor.dtype).min, most
            case "maximum", (None, (least, _)) | ((least, _), None):
                return least, iinfo(tensor.dtype).max
            case "where", (_, (low, high), (least, most)):
                return min(low, least), max(high, most)
        return None


def _compared(op: str, low: int, high: int, least: int, most: int) -> bool | None:
    """Whether a value of [low, high] compares so with one of [least, most]; None where either."""
    below, above = high < least, low > most
    if op in ("equal", "not_equal"):
        return (op == "not_equal") if below or above else None
    if op in ("greater", "less_equal"):  # less, of exchanged operands, and what it is not
        below, above = above, high <= least
    else:
        above = low >= most
    if not below and not above:
        return None
    return below == (op in ("less", "greater"))


def _always(value: bool, tensor: Tensor) -> Tensor:
    return broadcast_to(constant(value), tensor.shape)
