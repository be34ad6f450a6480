"""Reductions of what an index selects, `sum_i where(index[i] == s, x[i], 0)`, without the joint
array of all i and s: the NumPy meaning of segment sums, counts and scattered sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from eqsat.graph.build import number_of, varying_axes
from eqsat.graph.dtypes import neutral
from eqsat.graph.tensor import Tensor

Product = tuple[tuple[int, ...], np.ndarray]  # the joint axes that an array has, and the array
REDUCING = {"reduce_sum": np.add, "reduce_max": np.maximum, "reduce_min": np.minimum}


@dataclass(frozen=True)
class Selection:
    """A reduction over the axes of `index` of what it selects of `chosen`, both over the joint
    space, in which the positions selected lie along `axis`.
    """

    index: Tensor
    chosen: Tensor
    axis: int


def selections(
    order: Sequence[Tensor], outputs: Sequence[Tensor]
) -> tuple[dict[Tensor, Selection], dict[Tensor, list[Tensor]]]:
    """The reductions that select, and each node used only inside one of them, with its operands
    that are read.
    """
    users: dict[Tensor, set[Tensor]] = {}
    for node in order:
        for x in node.operands:
            users.setdefault(x, set()).add(node)
    kept = set(outputs)
    found: dict[Tensor, Selection] = {}
    inside: dict[Tensor, list[Tensor]] = {}

    def alone(x: Tensor, user: Tensor) -> bool:
        return users[x] == {user} and x not in kept

    for node in order:
        one = _selection(node)
        if one is None:
            continue
        (chosen,) = node.operands
        hit, _, other = chosen.operands
        if not (alone(chosen, node) and alone(hit, chosen)):
            continue
        found[node] = one
        inside |= {chosen: list(chosen.operands), hit: list(hit.operands)}
        inside |= {x: [] for x in hit.operands if x.op == "iota" and alone(x, hit)}
        views = [(one.index, hit), (one.chosen, chosen), (other, chosen)]
        inside |= {x: list(x.operands) for x, user in views if x.op == "view" and alone(x, user)}
    return found, inside


def _selection(node: Tensor) -> Selection | None:
    if node.op not in REDUCING or node.operands[0].op != "where":
        return None
    hit, chosen, other = node.operands[0].operands
    if hit.op != "equal" or _number(other) != _of_nothing(node):
        return None
    index, position = sorted(hit.operands, key=lambda x: x.op == "iota")
    if position.op != "iota" or index.op == "iota":
        return None
    axis: int = position.attributes["axis"]
    summed = set(node.attributes["axes"])
    if axis in summed or axis in varying_axes(chosen) or not summed.issuperset(varying_axes(index)):
        return None
    return Selection(index, chosen, axis)


def _of_nothing(node: Tensor) -> int | float:
    """What a reduction of nothing gives."""
    return neutral(node.op.removeprefix("reduce_"), node.dtype)


def _number(x: Tensor) -> int | float | None:
    found = number_of(x)
    return None if found is None else found.attributes["value"].item()


def reduced(node: Tensor, selection: Selection, index: Product, chosen: Product) -> np.ndarray:
    """The reduction's value, from the index and what it selects of."""
    space = node.operands[0].shape
    summed = sorted(node.attributes["axes"])
    kept = [d for d in range(len(space)) if d not in summed]
    rest = [d for d in kept if d != selection.axis]
    where = _over(index, summed, space).reshape(-1)
    x = _over(chosen, [*summed, *rest], space)
    x = x.reshape(where.size, prod(space[d] for d in rest))
    combine, count = REDUCING[node.op], space[selection.axis]
    found = np.full((count, x.shape[1]), _of_nothing(node), x.dtype)
    order = np.argsort(where, kind="stable")
    where = where[order]
    order, where = order[(inside := (where >= 0) & (where < count))], where[inside]
    if where.size:
        starts = np.flatnonzero(np.r_[True, where[1:] != where[:-1]])
        found[where[starts]] = combine.reduceat(x[order], starts, axis=0, dtype=x.dtype)
    found = found.reshape(count, *(space[d] for d in rest))
    return np.moveaxis(found, 0, kept.index(selection.axis))


def _over(one: Product, axes: Sequence[int], space: Sequence[int]) -> np.ndarray:
    """An array over all of these axes, in this order, repeated along those that it lacks."""
    own, array = one
    array = array.transpose(sorted(range(len(own)), key=lambda at: axes.index(own[at])))
    array = array.reshape([space[d] if d in own else 1 for d in axes])
    return np.broadcast_to(array, [space[d] for d in axes])
