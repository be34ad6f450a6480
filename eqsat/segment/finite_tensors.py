"""Which tensors of a graph hold no infinity where its inputs hold none; see eqsat.terms.finite."""

from collections.abc import Sequence

import numpy as np

from eqsat.graph.index import substitute
from eqsat.graph.movement import output_names, positions
from eqsat.graph.tensor import Tensor
from eqsat.terms import finite


def finite_tensors(order: Sequence[Tensor]) -> set[Tensor]:
    """Those of the tensors, operands before users, that are proved finite."""
    known: dict[Tensor, frozenset[str]] = {}
    for tensor in order:
        known[tensor] = finite.closed(_facts(tensor, known))
    return {tensor for tensor, facts in known.items() if "finite" in facts}


def _facts(tensor: Tensor, known: dict[Tensor, frozenset[str]]) -> set[str]:
    if tensor.dtype.kind != "float" or tensor.op == "input":
        return {"finite"}
    below = [known[operand] for operand in tensor.operands]
    if tensor.op == "constant":
        values = [finite.of_number(float(v)) for v in _extremes(tensor.attributes["value"])]
        return set.intersection(*values) if values else set()
    if tensor.op == "view":
        fill = tensor.attributes["fill"]
        return set(below[0]) & (finite.of_number(float(fill)) if fill is not None else below[0])
    if tensor.op in {"gather", "sort"}:
        return set(below[0])
    found = {
        fact
        for fact, needs in finite.required(tensor.op, len(below))
        if all(facts.issuperset(own) for own, facts in zip(needs, below, strict=True))
        and (fact != "nonneg" or tensor.operands[-1].dtype.kind == "float")
    }
    if _from_largest(tensor) is not None:
        found.add("below")
    if tensor.op == "reduce_sum" and tensor.operands[0].op == "exp":
        axes = _from_largest(tensor.operands[0].operands[0])
        found |= {"positive"} if axes == tensor.attributes["axes"] else set()
    return found


def _extremes(value: np.ndarray) -> list[float]:
    """Numbers that have no fact which some element lacks."""
    wide = value.astype(np.float64).ravel()
    zero = [0.0] if (wide == 0).any() else []
    return [*zero, float(wide.min()), float(wide.max())] if wide.size else []


def _from_largest(tensor: Tensor) -> tuple[int, ...] | None:
    """The axes S where the tensor is a - max_S a."""
    if tensor.op != "sub":
        return None
    a, largest = tensor.operands
    where = positions(largest.shape)
    while largest.op == "view" and largest.attributes["fill"] is None:
        at = dict(zip(output_names(largest.ndim), where, strict=True))
        where = tuple(substitute(c, at) for c in largest.attributes["coordinates"])
        largest = largest.operands[0]
    if largest.op != "reduce_max" or largest.operands[0] is not a:
        return None
    axes = largest.attributes["axes"]
    row = tuple(c for axis, c in enumerate(positions(a.shape)) if axis not in axes)
    return axes if where == row else None
