"""What crosses from one segment to another, in the order in which kernels after it read it.

A segment is solved with what it reads and stores lying row by row. Where kernels then copy what
comes from another segment into another order of its axes, as convolutions do with channels first,
both segments are solved again with the value lying so, and the faster of the two ways counts.
"""

from collections.abc import Callable, Iterable, Sequence

from eqsat.cut.laid import copied, order_copied
from eqsat.encode.encoding import AxisOrders
from eqsat.errors import SpecError
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Kernel
from eqsat.library import is_call
from eqsat.segment.segments import Segment
from eqsat.solve import Solution

GAIN = 0.02  # of a program's seconds, that copies between segments take if it is worth a search
MOST = 8  # values that are tried one by one where all together are no faster

Solve = Callable[[Sequence[Segment]], list[Solution]]


def laid_between(
    segments: Sequence[Segment],
    solutions: Sequence[Solution],
    outputs: Iterable[Tensor],
    solve: Solve,
) -> tuple[list[Segment], list[Solution]]:
    """The segments and their solutions, with values between them in other orders where that is
    faster. The outputs stay as they are.
    """
    found, solved = list(segments), list(solutions)
    orders, seconds = _copied_between(segments, solutions, {*outputs})
    if seconds < GAIN * _seconds(solutions):
        return found, solved
    for group in _groups(orders, segments):
        one_by_one = [{tensor: orders[tensor]} for tensor in group][:MOST]
        for tried in ({tensor: orders[tensor] for tensor in group}, *one_by_one):
            numbers = [n for n, one in enumerate(found) if _touches(one, tried)]
            others = [found[n].laid(tried) for n in numbers]
            try:
                again = solve(others)
            except SpecError:
                continue
            if _seconds(again) < _seconds(solved[n] for n in numbers):
                for number, segment, solution in zip(numbers, others, again, strict=True):
                    found[number], solved[number] = segment, solution
                if len(tried) == len(group):
                    break
    return found, solved


def _copied_between(
    segments: Sequence[Segment], solutions: Sequence[Solution], outputs: set[Tensor]
) -> tuple[AxisOrders, float]:
    """The order in which kernels copy what other segments store, and the seconds of these copies;
    not of tables that are looked up in, nor of what a library reads or makes.
    """
    movable = {tensor for one in segments for tensor in one.stored if not is_call(tensor)}
    for segment in segments:
        for tensor in segment.tensors:
            movable -= {*tensor.operands[:1]} if tensor.op == "gather" or is_call(tensor) else set()
    movable -= outputs
    orders: dict[Tensor, tuple[int, ...]] = {}
    seconds = 0.0
    for segment, solution in zip(segments, solutions, strict=True):
        leaves = dict(zip(solution.leaves, segment.leaves, strict=True))
        for one in solution.kernels:
            tensor = leaves.get(copied(one.kernel)) if isinstance(one.kernel, Kernel) else None
            if tensor in movable and isinstance(one.kernel, Kernel):
                extents = {f"{axis}": extent for axis, extent in enumerate(tensor.shape)}
                axes = tuple(map(int, order_copied(one.kernel, tuple(extents), extents)))
                if axes and axes != tuple(range(tensor.ndim)):
                    orders.setdefault(tensor, axes)
                    seconds += one.per_run
    return orders, seconds


def _groups(orders: AxisOrders, segments: Sequence[Segment]) -> list[list[Tensor]]:
    """The values in groups: those of one touch no segment that those of another touch."""
    groups: list[tuple[set[int], list[Tensor]]] = []
    for tensor in orders:
        numbers = {n for n, one in enumerate(segments) if _touches(one, {tensor: ()})}
        values = [tensor]
        apart = []
        for group in groups:
            if group[0] & numbers:
                numbers, values = numbers | group[0], [*group[1], *values]
            else:
                apart.append(group)
        groups = [*apart, (numbers, values)]
    return [values for _, values in groups]


def _touches(segment: Segment, orders: AxisOrders) -> bool:
    return any(tensor in orders for tensor in (*segment.leaves, *segment.stored))


def _seconds(solutions: Iterable[Solution]) -> float:
    return sum(one.predicted for one in solutions)
