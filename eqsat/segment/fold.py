"""What is settled before the search: empty tensors, values of numbers alone, tables of gathers,
repeated outputs.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from eqsat.encode.decided import Decisions
from eqsat.graph.build import constant, number_of, view, with_operands
from eqsat.graph.evaluate import evaluate, topological
from eqsat.graph.index import free_names, substitute, var
from eqsat.graph.manipulation import broadcast_to
from eqsat.graph.movement import output_extents, positions
from eqsat.graph.ops import ELEMENTWISE
from eqsat.graph.tensor import Tensor
from eqsat.segment.segments import anchor, is_buffer
from eqsat.segment.selected import settle_selections

EMPTY_SUMS = {"reduce_sum": 0, "reduce_prod": 1}


def settle(outputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs, equal in value, as the search can take them.

    Every empty tensor is a constant, and every value of one or of numbers too; what the bounds of
    integers decide is decided, and what positions select is gathered; every gather reads a buffer
    or a computed value, not a view, nor what can as well be computed at the points that it takes,
    and by indices that are no expression of positions; no output is given twice.
    """
    done: dict[Tensor, Tensor] = {}
    copies: dict[Tensor, Tensor] = {}
    held: dict[Tensor, float] = {}
    decisions = Decisions()
    outputs = settle_selections(outputs)
    for tensor in topological(outputs):
        operands = tuple(done[operand] for operand in tensor.operands)
        if tensor.size == 0:
            done[tensor] = constant(np.zeros(tensor.shape, tensor.dtype.numpy))
        elif any(operand.size == 0 for operand in operands):
            done[tensor] = _of_nothing(tensor)
        else:
            done[tensor] = with_operands(tensor, operands)
        if done[tensor].op in ELEMENTWISE:
            done[tensor] = decisions.settle(_of_numbers(done[tensor]))
        if done[tensor].op == "gather":
            done[tensor] = decisions.looked_at(done[tensor])
        if done[tensor].op == "gather":
            done[tensor] = _taken(done[tensor], copies, held)
    return _apart([done[output] for output in outputs])


def _of_nothing(tensor: Tensor) -> Tensor:
    """A tensor with elements, made from one without: an empty sum, or a padding."""
    value = EMPTY_SUMS.get(tensor.op, tensor.attributes.get("fill", 0)) or 0
    return constant(np.full(tensor.shape, value, tensor.dtype.numpy))


def _of_numbers(tensor: Tensor) -> Tensor:
    """A tensor whose operands have one number each, as the number that it has."""
    numbers = [number for operand in tensor.operands if (number := number_of(operand)) is not None]
    if len(numbers) < len(tensor.operands):
        return tensor
    (found,) = evaluate([replace(tensor, operands=tuple(numbers), shape=())], {})
    value = found.item()
    if value != value or float(value) != value:  # no literal
        return tensor
    return broadcast_to(constant(value, tensor.dtype), tensor.shape)


def _taken(gather: Tensor, copies: dict[Tensor, Tensor], held: dict[Tensor, float]) -> Tensor:
    """The gather from what lies in memory: f(x, y)[i] = f(x[i], y[i]) for an elementwise f, where
    that asks for no more memory.
    """
    done: dict[object, Tensor] = {}

    def take(gather: Tensor) -> Tensor:
        gather = _from_buffer(gather, copies)
        if gather.op != "gather":
            return gather
        table, index = gather.operands
        where = table, gather.attributes["axis"], gather.attributes["coordinates"]
        if where not in done:
            done[where] = gather
            computed = table.op in ELEMENTWISE and all(one is not table for one in copies.values())
            if computed and sum(_held(x, held) for x in table.operands) <= _bytes(table):
                one = (replace(gather, operands=(x, index), dtype=x.dtype) for x in table.operands)
                found = tuple(map(take, one))
                done[where] = replace(table, operands=found, shape=gather.shape)
        return done[where]

    table = anchor(gather.operands[0])
    return take(gather) if gather.size < table.size else _from_buffer(gather, copies)


def _held(table: Tensor, known: dict[Tensor, float]) -> float:
    """Bytes that must be stored before points of a table can be read or computed alone."""
    table = anchor(table)
    if table not in known:
        known[table] = math.inf if table.op == "iota" else _bytes(table)
        if is_buffer(table) or table.op == "constant":
            known[table] = 0
        elif table.op in ELEMENTWISE:
            parts = sum(_held(operand, known) for operand in table.operands)
            known[table] = min(known[table], parts)
    return known[table]


def _bytes(tensor: Tensor) -> int:
    return tensor.size * tensor.dtype.itemsize


def _from_buffer(gather: Tensor, copies: dict[Tensor, Tensor]) -> Tensor:
    """The gather from what its table looks at, or from a copy if the view moves its axis, or if it
    counts positions, which lie nowhere.
    """
    while gather.op == "gather" and gather.operands[0].op == "view":
        table, index = gather.operands
        base, coordinates = table.operands[0], table.attributes["coordinates"]
        axis, at = gather.attributes["axis"], gather.attributes["coordinates"]
        along = [d for d, c in enumerate(coordinates) if f"i{axis}" in free_names(c)]
        same = [d for d in along if coordinates[d] == var(f"i{axis}")]
        whole = all(base.shape[d] == table.shape[axis] for d in same)
        if table.attributes["fill"] is not None or along != same or len(same) > 1 or not whole:
            return _from_copy(gather, copies)
        place = {f"i{d}": c for d, c in enumerate(at) if c is not None}
        extents = output_extents(gather.shape)
        moved = [substitute(c, place, extents) for c in coordinates]
        if not same:
            return view(base, gather.shape, moved)
        kept = tuple(None if d == same[0] else c for d, c in enumerate(moved))
        attributes = {"axis": same[0], "coordinates": kept}
        gather = replace(gather, operands=(base, index), attributes=attributes)
    if gather.op == "gather" and gather.operands[0].op == "iota":
        return _from_copy(gather, copies)
    return gather


def _from_copy(gather: Tensor, copies: dict[Tensor, Tensor]) -> Tensor:
    """The gather from a copy of its table."""
    table, index = gather.operands
    copy = Tensor("cast", (table,), {"dtype": table.dtype}, table.shape, table.dtype)
    return replace(gather, operands=(copies.setdefault(table, copy), index))


def _apart(outputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs, one that is given again made a view: each is stored in memory of its own."""
    done: set[Tensor] = set()
    result: list[Tensor] = []
    for tensor in outputs:
        if tensor in done:
            whole = {"coordinates": positions(tensor.shape), "fill": None}
            tensor = Tensor("view", (tensor,), whole, tensor.shape, tensor.dtype)
        done.add(tensor)
        result.append(tensor)
    return result
