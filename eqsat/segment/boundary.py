"""What lies in memory between segments: the fewest bytes from which what crosses can be computed.

A value that crosses a cut may be computed anew by elementwise operations from others. The values to
store are a minimum cut of the graph between what is not elementwise and what crosses, by bytes;
of equal cuts the one nearest to what crosses.
"""

from collections import deque
from collections.abc import Callable, Collection

from eqsat.graph.ops import OPS
from eqsat.graph.tensor import Tensor

SOURCE = -1  # the other nodes: 2 * i is where value i is made, 2 * i + 1 where it is used
UNBOUNDED = 1 << 62
Room = dict[int, dict[int, int]]


def is_elementwise(tensor: Tensor) -> bool:
    """Whether each element is computed from one element of each operand."""
    return tensor.op in OPS and OPS[tensor.op].elementwise


def stored_values(
    crossing: Collection[Tensor],
    inside: Collection[Tensor],
    resident: Collection[Tensor],
    anchor: Callable[[Tensor], Tensor],
) -> set[Tensor]:
    """The values of `inside` to store, so that those crossing can be had by elementwise operations.

    `resident` are values that lie in memory whatever is chosen; what is not inside can be read.
    """
    room: Room = {}

    def edge(a: int, b: int, capacity: int) -> None:
        room.setdefault(a, {})[b] = capacity
        room.setdefault(b, {}).setdefault(a, 0)

    number: dict[Tensor, int] = {tensor: 2 * i for i, tensor in enumerate(crossing)}
    targets = [node + 1 for node in number.values()]
    stack = list(crossing)
    while stack:
        tensor = stack.pop()
        node, free = number[tensor], tensor in resident
        edge(node, node + 1, 0 if free else tensor.size * tensor.dtype.itemsize)
        if free or not is_elementwise(tensor):
            edge(SOURCE, node, UNBOUNDED)
            continue
        for operand in map(anchor, tensor.operands):
            if operand not in inside:
                continue
            if operand not in number:
                number[operand] = 2 * len(number)
                stack.append(operand)
            edge(number[operand] + 1, node, UNBOUNDED)
    for target in targets:
        while path := _path(room, target):
            least = min(room[a][b] for a, b in path)
            for a, b in path:
                room[a][b] -= least
                room[b][a] += least
    near = _leading(room, targets)
    return {t for t, node in number.items() if node + 1 in near and node not in near}


def _path(room: Room, target: int) -> list[tuple[int, int]]:
    """The edges of a shortest path with room from the source to a target; empty if none has."""
    before: dict[int, int] = {SOURCE: SOURCE}
    queue = deque([SOURCE])
    while queue and target not in before:
        node = queue.popleft()
        for after, capacity in room.get(node, {}).items():
            if capacity and after not in before:
                before[after] = node
                queue.append(after)
    edges: list[tuple[int, int]] = []
    while target in before and target != SOURCE:
        edges.append((before[target], target))
        target = before[target]
    return edges


def _leading(room: Room, targets: Collection[int]) -> set[int]:
    """The nodes from which a target can still be reached."""
    found = set(targets)
    stack = list(targets)
    while stack:
        node = stack.pop()
        for before in room.get(node, {}):
            if before not in found and room[before].get(node, 0):
                found.add(before)
                stack.append(before)
    return found
