"""Integers whose bounds decide what is computed of them: what has one value, comparisons that hold
always or never, extremes that are always the same operand's, and gathers whose indices are their
positions' alone.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from eqsat.graph.build import constant, number_of, view
from eqsat.graph.dtypes import iinfo
from eqsat.graph.index import Affine, add, const, floordiv, mod, scale, sub, substitute, var
from eqsat.graph.index import bounds as reach
from eqsat.graph.manipulation import broadcast_to
from eqsat.graph.movement import output_extents
from eqsat.graph.tensor import Tensor

Bounds = tuple[int, int]
T = TypeVar("T")
COMPARISONS = frozenset({"less", "less_equal", "greater", "greater_equal", "equal", "not_equal"})


class Decisions:
    """What bounds decide, of tensors given operands before users."""

    def __init__(self) -> None:
        self._bounds: dict[Tensor, Bounds | None] = {}
        self._places: dict[Tensor, Affine | None] = {}

    def settle(self, tensor: Tensor) -> Tensor:
        """The tensor, or what always has its value."""
        known = [self.bounds(operand) for operand in tensor.operands]
        match tensor.op, known:
            case op, ((low, high), (least, most)) if op in COMPARISONS:
                holds = compares(op, low, high, least, most)
                return tensor if holds is None else _always(holds, tensor)
            case ("minimum" | "maximum") as op, ((low, high), (least, most)):
                if high <= least:
                    return tensor.operands[op == "maximum"]
                if low >= most:
                    return tensor.operands[op == "minimum"]
            case "where", ((low, high), *_) if low == high:
                return tensor.operands[1 if low else 2]
        if tensor.dtype.kind in ("int", "uint") and number_of(tensor) is None:
            low, high = self.bounds(tensor) or (0, 1)
            if low == high == float(low):  # as literals hold it
                return broadcast_to(constant(low, tensor.dtype), tensor.shape)
        return tensor

    def looked_at(self, gather: Tensor) -> Tensor:
        """The gather, or the view that it is where its indices are expressions of positions."""
        (table, index), axis = gather.operands, gather.attributes["axis"]
        place = self.place(index)
        if place is None:
            return gather
        low, high = reach(place, output_extents(gather.shape))
        if low < 0 or high >= table.shape[axis]:
            return gather
        coordinates = gather.attributes["coordinates"]
        return view(table, gather.shape, [place if c is None else c for c in coordinates])

    def place(self, tensor: Tensor) -> Affine | None:
        """An integer as an expression of its position i0, i1, ...; None of what is none."""
        return self._of_operands(tensor, self._places, self._placed)

    def bounds(self, tensor: Tensor) -> Bounds | None:
        """The least and the largest element, of integers and truth values; None where unknown."""
        return self._of_operands(tensor, self._bounds, self._fitting)

    @staticmethod
    def _of_operands(
        tensor: Tensor, known: dict[Tensor, T | None], found: Callable[[Tensor], T | None]
    ) -> T | None:
        """What is found of a tensor when it is known of its operands; None of floats."""
        waiting = [tensor]
        while waiting:
            node = waiting[-1]
            whole = node.dtype.kind != "float"
            unknown = [x for x in node.operands if x not in known] if whole else []
            if unknown and node not in known:
                waiting += unknown
                continue
            waiting.pop()
            if node not in known:
                known[node] = found(node) if whole else None
        return known[tensor]

    def _placed(self, tensor: Tensor) -> Affine | None:
        """An integer as an expression of its position i0, i1, ..., where nothing wraps."""
        if self.bounds(tensor) is None or tensor.dtype.kind == "bool":
            return None
        if (number := number_of(tensor)) is not None:
            return const(int(number.attributes["value"].item()))
        if tensor.op == "iota":
            return var(f"i{tensor.attributes['axis']}")
        places = [self._places[operand] for operand in tensor.operands]
        if None in places:
            return None
        extents = output_extents(tensor.shape)
        match tensor.op, places:
            case "cast", (place,):
                return place
            case "view", (place,) if tensor.attributes["fill"] is None:
                at = {f"i{d}": c for d, c in enumerate(tensor.attributes["coordinates"])}
                return substitute(place, at, extents)
            case "add", (a, b):
                return add(a, b)
            case "sub", (a, b):
                return sub(a, b)
            case "mul", (a, b) if not a.terms or not b.terms:
                return scale(b, a.constant) if not a.terms else scale(a, b.constant)
            case ("floor_divide" | "remainder") as op, (a, b) if not b.terms and b.constant > 0:
                return (floordiv if op == "floor_divide" else mod)(a, b.constant, extents)
        return None

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
            case "cast" if tensor.dtype.kind == "bool":
                found = self._bounds[tensor.operands[0]]
                return found and (int(found[0] > 0 or found[1] < 0), int(found != (0, 0)))
            case "cast" if tensor.operands[0].dtype.kind != "float":
                return self._bounds[tensor.operands[0]]
        known = [self._bounds[operand] for operand in tensor.operands]
        match tensor.op, known:
            case "add", ((low, high), (least, most)):
                return low + least, high + most
            case "sub", ((low, high), (least, most)):
                return low - most, high - least
            case "mul", ((low, high), (least, most)):
                corners = low * least, low * most, high * least, high * most
                return min(corners), max(corners)
            case "mul", (None, (0, 0)) | ((0, 0), None):
                return 0, 0
            case "floor_divide", ((low, high), (least, most)) if 0 < least == most:
                return low // least, high // least
            case "remainder", (_, (least, most)) if 0 < least == most:
                return 0, most - 1
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


def compares(op: str, low: float, high: float, least: float, most: float) -> bool | None:
    """Whether a value of [low, high] compares so with one of [least, most]; None where either."""
    below, above = high < least, low > most
    if op in ("equal", "not_equal"):
        if low == high == least == most:
            return op == "equal"
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
