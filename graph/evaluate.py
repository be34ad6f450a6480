"""The NumPy meaning of a graph: each node by its row of the op table, operands before users."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from eqsat.errors import ArgumentError, IdentifierError
from eqsat.graph.dtypes import DType, as_dtype
from eqsat.graph.meanings import read_used_axes
from eqsat.graph.ops import OPS
from eqsat.graph.selections import Product, Selection, reduced, selections
from eqsat.graph.tensor import Tensor


def topological(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Every node that the outputs need, once, operands before users."""
    order: list[Tensor] = []
    seen: set[Tensor] = set()
    for output in outputs:
        stack: list[tuple[Tensor, Iterator[Tensor]]] = []
        if output not in seen:
            seen.add(output)
            stack.append((output, iter(output.operands)))
        while stack:
            node, operands = stack[-1]
            following = next((x for x in operands if x not in seen), None)
            if following is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(following.operands)))
    return order


def input_nodes(outputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """The inputs that the outputs need, by name; IdentifierError where two share a name."""
    nodes: dict[str, Tensor] = {}
    for node in topological(outputs):
        if node.op == "input" and nodes.setdefault(node.attributes["name"], node) is not node:
            raise IdentifierError(
                f"two inputs of the graph have the name {node.attributes['name']!r}: {node} and "
                f"{nodes[node.attributes['name']]}. Give each its own name, or use one of them "
                f"twice."
            )
    return nodes


def evaluate(
    outputs: Sequence[Tensor],
    inputs: Mapping[str, np.ndarray],
    float_dtype: np.dtype | type | None = None,
) -> list[np.ndarray]:
    """The outputs' values for the inputs.

    16-bit floats compute in float32 and round after each op. With `float_dtype` (np.float64 for
    the reference) every float is computed and kept in that dtype instead. ArgumentError for an
    input that is missing or of another shape or dtype.
    """
    if isinstance(outputs, Tensor):
        raise ArgumentError(f"evaluate: {outputs} is one tensor. Write evaluate([x], ...).")
    input_nodes(outputs)
    order = topological(outputs)
    wanted = None if float_dtype is None else as_dtype(np.dtype(float_dtype))
    selecting, inside = selections(order, outputs)
    streamed = {**_streamed_products(order, outputs), **inside}
    last_use = _last_uses(order, outputs, streamed)
    values: dict[Tensor, np.ndarray] = {}
    with np.errstate(all="ignore"):
        for at, node in enumerate(order):
            if node not in streamed:
                chosen = selecting.get(node)
                values[node] = _value(node, values, inputs, wanted, streamed, chosen)
            for done in last_use.get(at, ()):
                values.pop(done, None)
    return [np.array(values[output]) for output in outputs]


def _value(
    node: Tensor,
    values: Mapping[Tensor, np.ndarray],
    inputs: Mapping[str, np.ndarray],
    float_dtype: DType | None,
    streamed: Mapping[Tensor, Sequence[Tensor]],
    selection: Selection | None,
) -> np.ndarray:
    stored = _stored(node.dtype, float_dtype)
    computed = stored if node.op == "cast" else stored.compute
    if node.op == "input":
        return _input_value(node, inputs).astype(stored.numpy, copy=False)
    if selection is not None:
        both = (selection.index, selection.chosen)
        factors = [_factor(x, streamed, values, float_dtype) for x in both]
        result = reduced(node, selection, *factors)
    elif node.op == "reduce_sum" and node.operands[0] in streamed:
        result = _sum_of_products(node, streamed, values, float_dtype)
    else:
        arrays = [_widened(values[x], _stored(x.dtype, float_dtype)) for x in node.operands]
        if node.op in ("view", "gather"):
            arrays, computed = [values[x] for x in node.operands], stored
        row = OPS[node.op]
        result = row.meaning(arrays, node.attributes, node.shape, computed.numpy)
    assert result.shape == node.shape, f"{node}: its meaning gave shape {result.shape}"
    return result.astype(stored.numpy, copy=False)


def _stored(dtype: DType, float_dtype: DType | None) -> DType:
    return dtype if float_dtype is None or dtype.kind != "float" else float_dtype


def _widened(array: np.ndarray, dtype: DType) -> np.ndarray:
    return array.astype(dtype.compute.numpy, copy=False)


def _input_value(node: Tensor, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    name = node.attributes["name"]
    if name not in inputs:
        raise ArgumentError(
            f"evaluate: input {name!r} is missing; given are {sorted(inputs)}. Pass {node}."
        )
    array = np.asarray(inputs[name])
    if array.shape != node.shape or array.dtype != node.dtype.numpy:
        raise ArgumentError(
            f"evaluate: input {name!r} is {array.dtype}{list(array.shape)}, the graph wants {node}."
            f" Convert the array first."
        )
    return array


def _last_uses(
    order: Sequence[Tensor],
    outputs: Sequence[Tensor],
    streamed: Mapping[Tensor, Sequence[Tensor]],
) -> dict[int, list[Tensor]]:
    """For each place in the order, the values that no later node reads."""
    place: dict[Tensor, int] = {}
    for at, node in enumerate(order):
        if node not in streamed:
            place.update(dict.fromkeys(_reads(node, streamed), at))
    kept = set(outputs)
    last: dict[int, list[Tensor]] = {}
    for node, at in place.items():
        if node not in kept:
            last.setdefault(at, []).append(node)
    return last


# A contraction is written reduce_sum(mul(view(a), view(b))) over a joint index space that can hold
# billions of elements. Such products are streamed: never formed, but summed by matrix products.


def _streamed_products(
    order: Sequence[Tensor], outputs: Sequence[Tensor]
) -> dict[Tensor, list[Tensor]]:
    """Each node that is used only inside one sum of products, with its operands that are read."""
    users: dict[Tensor, list[Tensor]] = {}
    for node in order:
        for x in node.operands:
            users.setdefault(x, []).append(node)
    kept = set(outputs)
    streamed: dict[Tensor, list[Tensor]] = {}
    for node in reversed(order):
        inside = users.get(node, [])
        if node in kept or not inside:
            continue
        if node.op == "mul":
            joined = inside[0].op == "reduce_sum" or inside[0] in streamed
            if len(inside) == 1 and joined and inside[0].op in ("reduce_sum", "mul"):
                streamed[node] = list(node.operands)
        elif node.op == "view" and all(u.op == "mul" and u in streamed for u in inside):
            streamed[node] = list(node.operands)
    return streamed


def _reads(node: Tensor, streamed: Mapping[Tensor, Sequence[Tensor]]) -> set[Tensor]:
    """The operands of a node, and those of the streamed nodes among them."""
    reads: set[Tensor] = set()
    pending = list(node.operands)
    while pending:
        x = pending.pop()
        if x not in reads:
            reads.add(x)
            pending += streamed.get(x, ())
    return reads


def _sum_of_products(
    node: Tensor,
    streamed: Mapping[Tensor, Sequence[Tensor]],
    values: Mapping[Tensor, np.ndarray],
    float_dtype: DType | None,
) -> np.ndarray:
    """reduce_sum(mul(mul(x, y), ...)) of views, without the joint array.

    Every factor is kept over only those joint axes on which it depends. Two at a time they meet in
    a matrix product that sums the axes which no other factor and no output needs.
    """
    space = node.operands[0].shape
    kept = [d for d in range(len(space)) if d not in node.attributes["axes"]]
    factors = [
        _factor(x, streamed, values, float_dtype) for x in _leaves(node.operands[0], streamed)
    ]
    absent = set(range(len(space))).difference(kept, *(axes for axes, _ in factors))
    while len(factors) > 1:
        first, second, *rest = factors
        needed = set(kept).union(*(axes for axes, _ in rest))
        factors = [multiply_and_sum(first, second, needed, space), *rest]
    axes, array = factors[0]
    summed = tuple(at for at, d in enumerate(axes) if d not in kept)
    array = np.add.reduce(array, axis=summed, dtype=array.dtype)
    copies = np.prod([space[d] for d in absent], dtype=np.int64)
    array = array * copies.astype(array.dtype)
    expanded = array.reshape([space[d] if d in axes else 1 for d in kept])
    return np.broadcast_to(expanded, node.shape)


def _leaves(node: Tensor, streamed: Mapping[Tensor, Sequence[Tensor]]) -> list[Tensor]:
    """The factors of a product of streamed products, in order."""
    leaves: list[Tensor] = []
    pending = [node]
    while pending:
        x = pending.pop()
        if x.op == "mul" and x in streamed:
            pending += reversed(x.operands)
        else:
            leaves.append(x)
    return leaves


def _factor(
    node: Tensor,
    streamed: Mapping[Tensor, Sequence[Tensor]],
    values: Mapping[Tensor, np.ndarray],
    float_dtype: DType | None,
) -> Product:
    if node in streamed:
        operand = values[node.operands[0]]
        attributes = node.attributes
        axes, array = read_used_axes(
            operand, attributes["coordinates"], node.shape, attributes["fill"]
        )
    else:
        axes, array = tuple(range(node.ndim)), values[node]
    return axes, _widened(array, _stored(node.dtype, float_dtype))


def multiply_and_sum(a: Product, b: Product, needed: set[int], space: Sequence[int]) -> Product:
    """The product of two factors summed over the axes of theirs that are not needed."""
    (a_axes, x), (b_axes, y) = _sum_alone(a, set(b[0]), needed), _sum_alone(b, set(a[0]), needed)
    shared = [d for d in a_axes if d in b_axes]
    batch = [d for d in shared if d in needed]
    summed = [d for d in shared if d not in needed]
    rows = [d for d in a_axes if d not in shared]
    columns = [d for d in b_axes if d not in shared]
    left = x.transpose([a_axes.index(d) for d in (*batch, *rows, *summed)])
    right = y.transpose([b_axes.index(d) for d in (*batch, *summed, *columns)])

    def size(axes: Sequence[int]) -> int:
        return int(np.prod([space[d] for d in axes], dtype=np.int64))

    stacked = [space[d] for d in batch]
    left = left.reshape(*stacked, size(rows), size(summed))
    right = right.reshape(*stacked, size(summed), size(columns))
    axes = (*batch, *rows, *columns)
    product = np.matmul(left, right) if summed else left * right
    product = product.reshape([space[d] for d in axes])
    order = sorted(range(len(axes)), key=lambda at: axes[at])
    return tuple(axes[at] for at in order), product.transpose(order)


def _sum_alone(a: Product, others: set[int], needed: set[int]) -> Product:
    axes, array = a
    alone = tuple(at for at, d in enumerate(axes) if d not in others and d not in needed)
    if not alone:
        return a
    kept = tuple(d for at, d in enumerate(axes) if at not in alone)
    return kept, np.add.reduce(array, axis=alone, dtype=array.dtype)
