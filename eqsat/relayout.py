"""The axes of an array that a read walks, found from its address; and the read in another order.

Where several indices run along one axis, as in the windows of a convolution, a copy by the read's
indices would hold each element many times. A copy by axes holds each once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from eqsat.algebra import Read
from eqsat.graph.index import (
    Affine,
    FloorDiv,
    add,
    bounds,
    const,
    free_names,
    scale,
    sub,
    unit_names,
    var,
)
from eqsat.needs import VECTOR_BYTES


@dataclass(frozen=True)
class WalkedAxis:
    """One axis: elements from each of its `extent` places to the next, and where a read is on it.

    Places that the read's guards exclude are not counted. `slides`: several indices reach the same
    place, as those of a window do.
    """

    stride: int
    extent: int
    place: Affine
    slides: bool = False

    @property
    def names(self) -> list[str]:
        """The indices that walk it."""
        return [str(atom) for atom, _ in self.place.terms]

    @property
    def alone(self) -> str:
        """The index that walks it by itself, from its first place on; empty where none does."""
        terms = self.place.terms
        single = len(terms) == 1 and terms[0][1] == 1 and not self.place.constant
        return str(terms[0][0]) if single and isinstance(terms[0][0], str) else ""


def walked_axes(read: Read, extents: Mapping[str, int]) -> tuple[WalkedAxis, ...] | None:
    """The axes, the longest stride first; None where the address does not tell them, or an index
    runs along two. The address is that of the first places, and each place a number of strides on.
    """
    return _walked_axes(
        read, tuple((name, extents[name]) for name in sorted(read.names & extents.keys()))
    )


@lru_cache(maxsize=1 << 14)
def _walked_axes(read: Read, sizes: tuple[tuple[str, int], ...]) -> tuple[WalkedAxis, ...] | None:
    extents = dict(sizes)
    walked = (read.address, *(guard.expression for guard in read.guards))
    if read.extent or any(not isinstance(atom, str) for e in walked for atom, _ in e.terms):
        return None
    found: list[WalkedAxis] = []
    left = read.address
    for guard in read.guards:
        stride = _stride(read.address, guard.expression)
        if stride is None or guard.lower:
            return None
        _, high = bounds(guard.expression, extents)
        extent, slides = min(guard.upper, high + 1), is_sliding(guard.expression, extents)
        found.append(WalkedAxis(stride, extent, guard.expression, slides))
        left = sub(left, scale(guard.expression, stride))
    found += _unguarded(left, extents)
    names = [name for axis in found for name in free_names(axis.place)]
    if len(names) != len({*names}) or any(axis.stride <= 0 for axis in found):
        return None
    return tuple(sorted(found, key=lambda axis: -axis.stride))


def in_order(read: Read, buffer: str, axes: tuple[WalkedAxis, ...], pitch: int) -> Read:
    """The read of a copy whose axes lie in this order, rows of the last one `pitch` apart."""
    address, stride = const(0), 1
    for number, axis in enumerate(reversed(axes)):
        address = add(address, scale(axis.place, stride))
        stride *= axis.extent if number else pitch
    return replace(read, buffer=buffer, address=address)


def first_place(read: Read, axes: tuple[WalkedAxis, ...]) -> int:
    """The address where every axis is at its first place."""
    walked = add(*(scale(axis.place, axis.stride) for axis in axes))
    return sub(read.address, walked).constant


def points(axes: tuple[WalkedAxis, ...]) -> int:
    """Elements of all axes together."""
    return prod(axis.extent for axis in axes)


def _stride(address: Affine, place: Affine) -> int | None:
    """How many elements of memory one place is, if the address walks it as it is."""
    whole = dict(address.terms)
    strides = {divmod(whole.get(atom, 0), c) for atom, c in place.terms}
    if len(strides) != 1:
        return None
    ((stride, rest),) = strides
    return None if rest else stride


def is_sliding(place: Affine, extents: Mapping[str, int]) -> bool:
    """Whether the step of an index, or its quotient, is within what those of shorter steps walk."""
    walked = 1
    for atom, step in sorted(place.terms, key=lambda term: abs(term[1])):
        if walked > 1 and abs(step) < walked:
            return True
        walked += abs(step) * bounds(Affine(((atom, 1),), 0), extents)[1]
    return False


def _unguarded(address: Affine, extents: Mapping[str, int]) -> list[WalkedAxis]:
    """Axes of what no guard names: indices whose steps fall into the span of shorter ones share
    theirs.
    """
    found: list[WalkedAxis] = []
    for atom, coefficient in sorted(address.terms, key=lambda term: term[1]):
        name = str(atom)
        last = found[-1] if found else None
        if last and coefficient % last.stride == 0 and coefficient < last.stride * last.extent:
            place = add(last.place, scale(var(name), coefficient // last.stride))
            extent = bounds(place, extents)[1] + 1
            found[-1] = WalkedAxis(last.stride, extent, place, is_sliding(place, extents))
        else:
            found.append(WalkedAxis(coefficient, extents[name], var(name)))
    return found


def overlapping(read: Read) -> float:
    """The part of a window's elements that the one before it, next to it in memory, has not: of
    runs of elements, some steps on, that are told by quotients of one name. 1 where there are none,
    or elements lie so that whole vectors are copied.
    """
    (unit,) = units if len(units := unit_names(read.address)) == 1 else ("",)
    runs = [
        atom.divisor
        for atom, _ in read.address.terms
        if isinstance(atom, FloorDiv) and free_names(atom.numerator) == {unit}
    ]
    steps = [abs(step) for atom, step in read.address.terms if isinstance(atom, str)]
    step = min((step for step in steps if step > 1), default=1)
    apart = step * read.dtype.itemsize % VECTOR_BYTES
    return min(step / min(runs), 1.0) if runs and step > 1 and apart else 1.0
