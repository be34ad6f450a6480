"""The axes of an array that a read walks, found from its address; and the read in another order.

Where several indices run along one axis, as in the windows of a convolution, a copy by the read's
indices would hold each element many times. A copy by axes holds each once.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, zip_longest
from math import prod

import numpy as np

from eqsat.graph.index import (
    Affine,
    FloorDiv,
    add,
    atom_names,
    bounds,
    const,
    divided_names,
    evaluate,
    floordiv,
    free_names,
    mod,
    scale,
    sub,
    substitute,
    unit_names,
    var,
)
from eqsat.kernel.ir import Guard
from eqsat.layout.needs import VECTOR_BYTES
from eqsat.terms.algebra import Read

PLACE = "place"  # the name of a place in what an axis adds to an address
SECTOR = 32  # bytes that memory reads together
LARGEST_RUN = 1 << 16  # elements of a permuted run that are told one by one


@dataclass(frozen=True)
class WalkedAxis:
    """One axis: elements from each of its `extent` places to the next, and where a read is on it.

    Places that the read's guards exclude are not counted. `slides`: several indices reach the same
    place, as those of a window do. `steps`: what the address adds at the place `PLACE`, where that
    is no number of strides, as of a window that slides over an image's pixels repeated.
    """

    stride: int
    extent: int
    place: Affine
    slides: bool = False
    steps: Affine | None = None

    @property
    def names(self) -> list[str]:
        """The indices that walk it."""
        return [str(atom) for atom, _ in self.place.terms]

    def address(self, name: str) -> Affine:
        """What the read's address adds at the place of a name."""
        if self.steps is None:
            return scale(var(name), self.stride)
        return substitute(self.steps, {PLACE: var(name)}, {name: self.extent})

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


def composed_axes(read: Read, extents: Mapping[str, int]) -> tuple[WalkedAxis, ...] | None:
    """As `walked_axes`, where the address is no number of strides of a place that a guard tells of,
    or has quotients and remainders of one, but depends on that place alone.
    """
    found: list[WalkedAxis] = []
    left, guards, divided = read.address, [*read.guards], divided_names(read.address)
    for guard in guards:
        if _stride(left, guard.expression) is None:
            divided |= free_names(guard.expression)
    while divided:
        asked = [*(g.expression for g in guards), *_numerators(left)]
        place = max((one for one in asked if free_names(one) & divided), key=_breadth)
        own = Affine(tuple(t for t in left.terms if atom_names(t[0]) & free_names(place)), 0)
        guard = next((g for g in guards if g.expression == place), None)
        axis = _composed(own, place, guard, extents)
        if axis is None or read.extent:
            return None
        found.append(axis)
        left, divided = sub(left, own), divided - free_names(place)
        guards = [g for g in guards if g is not guard]
    others = walked_axes(replace(read, address=left, guards=(*guards,)), extents)
    names = [name for axis in (*found, *(others or ())) for name in free_names(axis.place)]
    if others is None or len(names) != len({*names}):
        return None
    return tuple(sorted((*found, *others), key=lambda axis: -axis.stride))


def _numerators(address: Affine) -> Iterator[Affine]:
    return (atom.numerator for atom, _ in address.terms if not isinstance(atom, str))


def _breadth(place: Affine) -> int:
    return len(free_names(place))


def _composed(
    own: Affine, place: Affine, guard: Guard | None, extents: Mapping[str, int]
) -> WalkedAxis | None:
    """The axis of what an address adds at a place, from its lowest on, or from where the guard
    says; None where that depends on more than the place, or no name moves it by one.
    """
    names = sorted(free_names(place), key=extents.__getitem__)
    low, high = bounds(place, extents)
    if guard is None:
        place, high = sub(place, const(low)), high - low
    extent = high + 1 if guard is None else min(guard.upper, high + 1)
    count = prod(extents[name] for name in names)
    beside = free_names(own) - {*names}
    digits = _digits(place, extent, extents)
    if not digits or beside or (guard and guard.lower) or count > LARGEST_RUN:
        return None
    others = {name: const(0) for name in names}
    steps = substitute(own, {**others, **digits}, {PLACE: extent})
    grid = np.meshgrid(*(np.arange(extents[name]) for name in names), indexing="ij")
    points = dict(zip(names, grid, strict=True))
    where = evaluate(place, points)
    inside = (where >= 0) & (where < extent)
    if np.any(inside & (evaluate(own, points) != evaluate(steps, {PLACE: where}))):
        return None
    longest = max((abs(step) for _, step in steps.terms), default=1)
    return WalkedAxis(longest, extent, place, is_sliding(place, extents), steps)


def _digits(place: Affine, extent: int, extents: Mapping[str, int]) -> dict[str, Affine]:
    """Values of some names, one of each step, that lead to the place `PLACE` where the others are
    0; none where steps are no multiples of shorter ones.
    """
    terms = [(str(atom), step) for atom, step in place.terms if isinstance(atom, str)]
    longest = {step: name for name, step in sorted(terms, key=lambda term: extents[term[0]])}
    steps, sizes = sorted(longest), {PLACE: extent}
    if not steps or steps[0] != 1 or any(b % a for a, b in pairwise(steps)):
        return {}
    left = sub(var(PLACE), const(place.constant))
    found: dict[str, Affine] = {}
    for step, longer in zip_longest(steps, steps[1:]):
        digit = floordiv(left, step, sizes)
        found[longest[step]] = mod(digit, longer // step, sizes) if longer else digit
    return found


def in_order(read: Read, buffer: str, axes: tuple[WalkedAxis, ...], pitch: int) -> Read:
    """The read of a copy whose axes lie in this order, rows of the last one `pitch` apart."""
    address, stride = const(0), 1
    for number, axis in enumerate(reversed(axes)):
        address = add(address, scale(axis.place, stride))
        stride *= axis.extent if number else pitch
    return replace(read, buffer=buffer, address=address)


def first_place(read: Read, axes: tuple[WalkedAxis, ...]) -> int:
    """The address where every axis is at its first place."""
    walked = sum(axis.place.constant * axis.stride for axis in axes if axis.steps is None)
    return read.address.constant - walked


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


def asked_names(address: Affine, guards: Iterable[Affine]) -> set[str]:
    """Names that quotients and remainders of an address or guards ask for."""
    return divided_names(address).union(*map(free_names, guards))


def window_rows(
    address: Affine, guards: Iterable[Affine], within: Collection[str], itemsize: int
) -> dict[str, int]:
    """Names that number windows, those next to each other in memory first, each with elements from
    one to the next; `within` are the names of places in a window. None where windows lie further
    apart than memory is read together, or where nothing asks for the number of a window and for
    that of a place in it, by quotients and remainders or guards.
    """
    asked = asked_names(address, guards)
    steps: dict[str, int] = {}
    for atom, step in address.terms:
        for name in atom_names(atom) - {*within}:
            steps[name] = min(abs(step), steps.get(name, abs(step)))
    near = 0 < min(steps.values(), default=0) * itemsize <= SECTOR
    if not near or not asked & {*within} or not asked & {*steps}:
        return {}
    return dict(sorted(steps.items(), key=lambda item: (item[1], item[0])))


def overlapping(read: Read) -> float:
    """The part of a window's elements that the one before it, next to it in memory, has not: of
    runs of elements, some steps on, that are told by quotients of one name. 1 where there are none,
    or elements lie so that whole vectors are copied.
    """
    units, terms = unit_names(read.address), read.address.terms
    runs = [a.divisor for a, _ in terms if isinstance(a, FloorDiv) and atom_names(a) == units]
    step = min((abs(c) for a, c in terms if isinstance(a, str) and abs(c) > 1), default=0)
    apart = step * read.dtype.itemsize % VECTOR_BYTES
    return min(step / min(runs), 1.0) if runs and apart and len(units) == 1 else 1.0


@lru_cache(maxsize=4096)
def is_run(address: Affine, extents: tuple[tuple[str, int], ...]) -> bool:
    """Whether what an address walks by quotients or remainders of some names, whole, is one run of
    memory in another order, beside what it walks by other names.
    """
    known = dict(extents)
    names = sorted(divided_names(address))
    parts = [(term, atom_names(term[0])) for term in address.terms]
    own = tuple(term for term, found in parts if found & {*names})
    points = prod(known.get(name, LARGEST_RUN + 1) for name in names)
    mixed = any(found & {*names} and found - {*names} for _, found in parts)
    if not names or mixed or points > LARGEST_RUN:
        return False
    grid = np.meshgrid(*(np.arange(known[name]) for name in names), indexing="ij")
    values = evaluate(Affine(own, 0), dict(zip(names, grid, strict=True)))
    return int(values.max() - values.min()) < points
