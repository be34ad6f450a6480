"""What comparisons with positions select: where `v == s` holds, for an index v and the positions s
of an axis, whatever depends on s is what a gather takes at v.

A sum over s of what is selected is that gather; in a sum over others, which adds up at positions v,
nothing depends on s any more. So the gradients of sums and extremes of segments are gathers and
scatters, not comparisons of each element with each segment.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from eqsat.encode.decided import Decisions
from eqsat.graph.build import (
    build,
    cast,
    constant,
    gather,
    is_number,
    number_of,
    view,
    with_operands,
)
from eqsat.graph.dtypes import int64
from eqsat.graph.elementwise import clip, greater_equal, less_equal, logical_and, where
from eqsat.graph.evaluate import topological
from eqsat.graph.index import Affine, free_names, substitute, var
from eqsat.graph.manipulation import broadcast_to
from eqsat.graph.movement import output_names, positions
from eqsat.graph.ops import ELEMENTWISE
from eqsat.graph.tensor import Tensor
from eqsat.segment.finite_tensors import finite_tensors
from eqsat.segment.segments import is_buffer

LEAST = 8  # positions of an axis from where a gather is less than as many comparisons


def settle_selections(outputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs, equal in value, with what selections read at positions as gathers."""
    done: dict[Tensor, Tensor] = {}
    decisions = Decisions()
    order = topological(outputs)
    finite = finite_tensors(order)
    for tensor in order:
        one = with_operands(tensor, tuple(done[operand] for operand in tensor.operands))
        done[tensor] = one
        if one.op == "reduce_sum":
            numbers = [operand in finite for operand in tensor.operands[0].operands]
            done[tensor] = _summed(one, numbers, decisions)
        if one.op in ("where", "logical_and"):
            done[tensor] = _settled(one, decisions)
        if one.op == "cast":
            done[tensor] = _counted(one, decisions)
    return [done[output] for output in outputs]


@dataclass
class _Selection:
    """`hit` is `index == position` along `axis`; the index has the shape without it. `summed`: over
    the positions, of which one is taken, so that it may be one of each row.
    """

    hit: Tensor
    axis: int
    index: Tensor
    decisions: Decisions
    summed: bool = False
    known: dict[Tensor, Tensor | None] = field(default_factory=dict)

    @property
    def inside(self) -> Tensor:
        """Whether the index is of a position."""
        n = self.hit.shape[self.axis]
        above = self.decisions.settle(greater_equal(self.index, 0))
        below = self.decisions.settle(less_equal(self.index, n - 1))  # which its dtype holds
        return self.decisions.settle(logical_and(above, below))

    def at(self, x: Tensor) -> Tensor | None:
        """What x is where the selection holds, without its axis; None where no gather tells it, or
        only one of values that depend on what the index depends on, unless it is a sum's.
        """
        if x not in self.known:
            self.known[x] = self._at(x)
        return self.known[x]

    def _at(self, x: Tensor) -> Tensor | None:
        if x is self.hit:
            return broadcast_to(constant(True), self.index.shape)
        if not _varies(x, self.axis):
            return _without(x, self.axis)
        if x.op == "iota":
            return cast(self.index, x.dtype)
        if x.op in ELEMENTWISE:
            operands = [self.at(operand) for operand in x.operands]
            found = [operand for operand in operands if operand is not None]
            if len(found) < len(operands):
                return None
            return self.decisions.settle(replace(x, operands=tuple(found), shape=self.index.shape))
        if x.op == "view" and x.attributes["fill"] is None:
            return self._taken(*x.operands, x.attributes["coordinates"])
        if x.op in ("input", "gather"):
            return self._taken(x, positions(x.shape))
        return None

    def _taken(self, table: Tensor, coordinates: Sequence[Affine]) -> Tensor | None:
        """A gather from a table that is read at these coordinates."""
        own = f"i{self.axis}"
        (*along,) = (d for d, c in enumerate(coordinates) if own in free_names(c))
        others = [d for d in range(self.hit.ndim) if d != self.axis]
        chosen = {f"i{d}" for at, d in enumerate(others) if _varies(self.index, at)}
        rest = [c for d, c in enumerate(coordinates) if d not in along]
        if len(along) != 1 or coordinates[along[0]] != var(own):
            return None
        own_rows = chosen & frozenset[str]().union(*map(free_names, rest))
        if own_rows and not (self.summed and is_buffer(table)):
            return None
        rename = {f"i{d}": var(f"i{at}") for at, d in enumerate(others)}
        places = [None if d in along else substitute(c, rename) for d, c in enumerate(coordinates)]
        nearest = clip(cast(self.index, int64), 0, self.hit.shape[self.axis] - 1)
        return gather(table, nearest, along[0], places)


def _varies(x: Tensor, axis: int) -> bool:
    """Whether x may differ from position to position of an axis."""
    waiting, met = [x], set[Tensor]()
    while waiting:
        one = waiting.pop()
        if one in met:
            continue
        met.add(one)
        if one.op in ELEMENTWISE:
            waiting += one.operands
        elif one.op == "view" and one.attributes["fill"] is None:
            places = zip(one.operands[0].shape, one.attributes["coordinates"], strict=True)
            if any(n > 1 and f"i{axis}" in free_names(c) for n, c in places):
                return True
        elif (one.attributes["axis"] == axis) if one.op == "iota" else number_of(one) is None:
            return True
    return False


def _without(x: Tensor, axis: int) -> Tensor:
    """x at the first position of an axis, without it."""
    rest = x.shape[:axis] + x.shape[axis + 1 :]
    names = [var(name) for name in output_names(len(rest))]
    return view(x, rest, [*names[:axis], Affine((), 0), *names[axis:]])


def _selection(x: Tensor, axes: Sequence[int], decisions: Decisions) -> _Selection | None:
    """The first comparison of an index with the positions of one of some axes that must hold for x
    to hold.
    """
    if x.op == "logical_and":
        found = (_selection(operand, axes, decisions) for operand in x.operands)
        return next((one for one in found if one is not None), None)
    compared = x.operands
    if x.op == "view" and x.attributes["fill"] is None and x.operands[0].op == "equal":
        at = x.attributes["coordinates"]
        compared = tuple(view(operand, x.shape, at) for operand in x.operands[0].operands)
    elif x.op != "equal":
        return None
    for index, numbers in (compared, compared[::-1]):
        place = decisions.place(numbers)
        for axis in axes:
            if place == var(f"i{axis}") and not _varies(index, axis) and x.shape[axis] >= LEAST:
                return _Selection(x, axis, _without(index, axis), decisions)
    return None


def _settled(x: Tensor, decisions: Decisions) -> Tensor:
    """What is selected, without what depends on the positions of the selection."""
    condition, *others = x.operands
    pairs = [(x.operands[0], x.operands[1]), (x.operands[1], x.operands[0])]
    if x.op == "where":
        if not is_number(others[1], 0):
            return x
        pairs = [(condition, others[0])]
    for mask, value in pairs:
        chosen = _selection(mask, range(x.ndim), decisions)
        if chosen is None or not _varies(value, chosen.axis):
            continue
        found = chosen.at(value)
        if found is not None:
            names = [var(name) for d, name in enumerate(output_names(x.ndim)) if d != chosen.axis]
            value = view(found, x.shape, names)
            operands = (mask, value, others[1]) if x.op == "where" else (mask, value)
            return replace(x, operands=operands)
    return x


def _counted(number: Tensor, decisions: Decisions) -> Tensor:
    """What counts where a selection and something else hold, as a number that is selected."""
    (x,) = number.operands
    if x.op != "logical_and" or _selection(x, range(x.ndim), decisions) is None:
        return number
    for mask, other in (x.operands, x.operands[::-1]):
        if _selection(mask, range(x.ndim), decisions) is not None:
            none = broadcast_to(constant(0, number.dtype), x.shape)
            return where(mask, replace(number, operands=(other,)), none)
    return number


def _summed(total: Tensor, finite: Sequence[bool], decisions: Decisions) -> Tensor:
    """A sum over the positions of a selection, as what is selected. `finite`: which operands of
    what is summed are, so that none times such is none.
    """
    (x,) = total.operands
    axes: tuple[int, ...] = total.attributes["axes"]
    for mask, selected in _masked(x, finite):
        chosen = _selection(mask, axes, decisions)
        if chosen is None:
            continue
        chosen = replace(chosen, summed=True)
        holds, value = chosen.at(mask), chosen.at(selected)
        if holds is None or value is None:
            continue
        holds = decisions.settle(logical_and(chosen.inside, holds))
        none = broadcast_to(constant(0, x.dtype), value.shape)
        found = decisions.settle(where(holds, value, none))
        left = tuple(d - (d > chosen.axis) for d in axes if d != chosen.axis)
        return build("reduce_sum", (found,), {**total.attributes, "axes": left}) if left else found
    return total


def _masked(x: Tensor, finite: Sequence[bool]) -> Iterator[tuple[Tensor, Tensor]]:
    """The masks outside of which x is 0, each with what x is inside it."""
    if x.op == "where" and is_number(x.operands[2], 0):
        yield x.operands[0], x.operands[1]
    if x.op == "mul":
        for member, other in ((0, 1), (1, 0)):
            mask = _truths(x.operands[member])
            if mask is not None and finite[other]:
                yield mask, x.operands[other]


def _truths(x: Tensor) -> Tensor | None:
    """The truth values of which x has ones and zeros; None where it has other numbers."""
    if x.op not in ("view", "cast") or x.attributes.get("fill") is not None:
        return None
    (below,) = x.operands
    found = below if x.op == "cast" and below.dtype.kind == "bool" else _truths(below)
    if found is None or x.op == "cast":
        return found
    return view(found, x.shape, x.attributes["coordinates"])
