"""What is settled before the search: values read from empty tensors, and outputs given twice."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from eqsat.graph.build import constant
from eqsat.graph.evaluate import topological
from eqsat.graph.movement import positions
from eqsat.graph.tensor import Tensor

EMPTY_SUMS = {"reduce_sum": 0, "reduce_prod": 1}


def fold_empty(outputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs with every empty tensor made a constant, and every value of one too."""
    done: dict[Tensor, Tensor] = {}
    for tensor in topological(outputs):
        operands = tuple(done[operand] for operand in tensor.operands)
        if tensor.size == 0:
            done[tensor] = constant(np.zeros(tensor.shape, tensor.dtype.numpy))
        elif any(operand.size == 0 for operand in operands):
            done[tensor] = _of_nothing(tensor)
        elif all(a is b for a, b in zip(operands, tensor.operands, strict=True)):
            done[tensor] = tensor
        else:
            done[tensor] = replace(tensor, operands=operands)
    return [done[output] for output in outputs]


def apart(outputs: Sequence[Tensor]) -> list[Tensor]:
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


def _of_nothing(tensor: Tensor) -> Tensor:
    """A tensor with elements, made from one without: an empty sum, or a padding."""
    value = EMPTY_SUMS.get(tensor.op, tensor.attributes.get("fill", 0)) or 0
    return constant(np.full(tensor.shape, value, tensor.dtype.numpy))
