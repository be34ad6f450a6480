"""Outputs of windows that slide over images, numbered through rows and images: one axis of pixels.

Tiles of an axis each are boxes: where the extents of images are no multiples of them, part of each
box lies beyond. An axis of all pixels is cut into runs, which go on in the next row and the next
image, so that one tile alone is not full. What such a run reads, an accelerator copies that walks
windows itself: the spec has a copy between memories whose read is shifted and stepped.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import prod

from eqsat.graph.index import (
    Affine,
    FloorDiv,
    Mod,
    add,
    bounds,
    const,
    divided_names,
    floordiv,
    free_names,
    mod,
    scale,
    sub,
    substitute,
    var,
)
from eqsat.layout.coalesce import as_digits, index_names
from eqsat.layout.relayout import WalkedAxis, first_place, walked_axes
from eqsat.specs import ParallelProcessingUnit
from eqsat.terms.algebra import Facts, Read, post_order
from eqsat.terms.form import Form, Stored, form


@dataclass(frozen=True)
class PixelAxis:
    """An axis of images: elements from each of its `extent` places to the next; how many pixels of
    a run lie along it, the place that the first of them reads, how far on the next one does; and
    the place within a window, in other indices.
    """

    stride: int
    extent: int
    count: int
    first: int
    step: int
    within: Affine
    number: Affine

    @property
    def start(self) -> Affine:
        """The place that a pixel's window begins with."""
        return add(scale(self.number, self.step), const(self.first))

    @property
    def is_plain(self) -> bool:
        """Whether each pixel reads its own place."""
        plain = not self.within.terms and not self.first and self.step == 1
        return plain and self.count == self.extent


@dataclass(frozen=True)
class PixelWalk:
    """A read of pixels: the elements before the first place of all axes, the axis that lies
    together in memory, those of images, the one of neighbouring pixels first, and the axis that no
    pixel walks, if there is one.
    """

    offset: int
    channel: WalkedAxis
    axes: tuple[PixelAxis, ...]
    apart: WalkedAxis | None = None


def walks_windows(spec: ParallelProcessingUnit, emitted: Collection[str]) -> bool:
    """Whether a spec has a copy that other work hides and whose read is shifted or stepped, and the
    target emits it.
    """
    return any(
        operation.asynchronous
        and operation.semantics is not None
        and operation.semantics.update == "="
        and operation.invocation_name in emitted
        and not all(read.is_plain for read in operation.semantics.reads)
        for operation in spec.operations
    )


def pixel_walk(read: Read, extents: Mapping[str, int], pixels: str) -> PixelWalk | None:
    """What a read walks of which an index is that of pixels; None where it is anything else."""
    digits = _digits(read, extents, pixels)
    axes = _axes_by_digits(read, extents, pixels, digits)
    if not axes or axes[-1].stride != 1 or not axes[-1].alone:
        return None
    found: list[PixelAxis] = []
    for digit in digits:
        own = [_pixel_axis(axis, digit, extents) for axis in axes[:-1]]
        found += [axis for axis in own if axis is not None]
    names = {digit.name for digit in digits}
    others = _nested([axis for axis in axes[:-1] if not names & free_names(axis.place)])
    if len(found) != len(digits) or len(others) > 1:
        return None
    first = first_place(_by_digits(read, extents, pixels, digits), axes)
    return PixelWalk(first, axes[-1], tuple(found), others[0] if others else None)


def pixel_axes(read: Read, extents: Mapping[str, int]) -> tuple[WalkedAxis, ...] | None:
    """As `walked_axes`, their places by the numbers of pixels where the read is one of pixels."""
    guarded = (guard.expression for guard in read.guards)
    for pixels in sorted(divided_names(read.address, *guarded)):
        digits = _digits(read, extents, pixels)
        axes = _axes_by_digits(read, extents, pixels, digits)
        place = {digit.name: digit.number for digit in digits}
        if axes:
            return tuple(replace(a, place=substitute(a.place, place, extents)) for a in axes)
    return walked_axes(read, extents)


def _nested(axes: Sequence[WalkedAxis]) -> list[WalkedAxis]:
    """The axes, the longest stride first, each joined with the next one where that fills it."""
    joined: list[WalkedAxis] = []
    for axis in axes:
        last = joined[-1] if joined else None
        if last is not None and last.stride == axis.stride * axis.extent:
            place = add(scale(last.place, axis.extent), axis.place)
            joined[-1] = WalkedAxis(axis.stride, last.extent * axis.extent, place)
        else:
            joined.append(axis)
    return joined


@dataclass(frozen=True)
class _Digit:
    """One of the numbers that a pixel's number is made of: its name, what it counts, how many there
    are, and itself by the pixel's number.
    """

    name: str
    weight: int
    count: int
    number: Affine


def _digits(read: Read, extents: Mapping[str, int], pixels: str) -> list[_Digit]:
    """The digits of a pixel's number by what a read divides it by; none where it does not."""
    below = _boundaries([read.address, *(guard.expression for guard in read.guards)], pixels)
    if not below or any(b % a for a, b in pairwise(below)):
        return []
    weights = [1, *below]
    found: list[_Digit] = []
    for place, (weight, above) in enumerate(pairwise([*weights, 0])):
        count = above // weight if above else -(-extents[pixels] // weight)
        number = mod(floordiv(var(pixels), weight, extents), count, extents)
        found.append(_Digit(f"{pixels} {place}", weight, count, number))
    return found


def _by_digits(
    read: Read, extents: Mapping[str, int], pixels: str, digits: Sequence[_Digit]
) -> Read:
    known = {**extents, **{digit.name: digit.count for digit in digits}}
    place = {pixels: add(*(scale(var(digit.name), digit.weight) for digit in digits))}
    return replace(
        read,
        address=substitute(read.address, place, known),
        guards=tuple(
            replace(guard, expression=substitute(guard.expression, place, known))
            for guard in read.guards
        ),
    )


def _axes_by_digits(
    read: Read, extents: Mapping[str, int], pixels: str, digits: Sequence[_Digit]
) -> tuple[WalkedAxis, ...] | None:
    known = {**extents, **{digit.name: digit.count for digit in digits}}
    return walked_axes(_by_digits(read, extents, pixels, digits), known) if digits else None


def _pixel_axis(axis: WalkedAxis, digit: _Digit, extents: Mapping[str, int]) -> PixelAxis | None:
    """The axis as a digit of the pixel's number walks it forwards; None where it does not. Windows
    may be walked backwards, as gradients do: places within one are counted from its least.
    """
    terms = dict(axis.place.terms)
    step = terms.pop(digit.name, 0)
    if step < 1 or any(str(atom) not in extents for atom in terms):
        return None
    within = add(*(scale(var(str(atom)), c) for atom, c in terms.items()))
    least, _ = bounds(within, extents)
    first, within = axis.place.constant + least, sub(within, const(least))
    return PixelAxis(axis.stride, axis.extent, digit.count, first, step, within, digit.number)


def _boundaries(expressions: Sequence[Affine], pixels: str) -> list[int]:
    """What quotients and remainders divide the number of a pixel by, the least first."""
    found: set[int] = set()
    for expression in expressions:
        for atom, _ in expression.terms:
            if not isinstance(atom, str) and pixels in free_names(atom.numerator):
                found |= _divisors(atom)
    return sorted(found - {1})


def _divisors(atom: FloorDiv | Mod) -> set[int]:
    inner = [a for a, _ in atom.numerator.terms if not isinstance(a, str)]
    before = set[int]().union(*map(_divisors, inner))
    return before | {atom.divisor * prod(a.divisor for a in inner if isinstance(a, FloorDiv))}


def merged_pixels(
    stored: tuple[Stored, ...], facts: Facts
) -> tuple[tuple[Stored, ...], Facts] | None:
    """The same values with the outputs of sliding windows as one name; None where no factor of a
    product is read through windows, or something else keeps their names apart.

    The names are coalesced, so that what remains of several beside each other in each stored value
    differs in what windows read.
    """
    made = form(stored, facts)
    group = next(pixel_groups(made), None)
    if group is None:
        return None
    merged, found = as_digits(stored, facts, together(index_names(stored, facts), group))
    pixels = merged[0].names[stored[0].names.index(group[0])]
    extents = found.universe.extents
    walked = any(_is_window(read, extents, pixels) for read in _reads(merged))
    return (merged, found) if walked else None


def together(names: Iterable[str], *groups: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Groups of names, each where its first one is, and each other name by itself."""
    found = (next((g for g in groups if name in g), (name,)) for name in names)
    return list(dict.fromkeys(found))


def _is_window(read: Read, extents: Mapping[str, int], pixels: str) -> bool:
    """Whether a read walks an axis of its own by each digit of a pixel's number: where it walks but
    the outer ones, as what belongs to a batch does, neighbours in a run read the same.
    """
    digits = _digits(read, extents, pixels)
    axes = _axes_by_digits(read, extents, pixels, digits) or ()
    walked = {name for axis in axes for name in free_names(axis.place)}
    return bool(digits) and {digit.name for digit in digits} <= walked


def pixel_groups(made: Form) -> Iterator[tuple[str, ...]]:
    """The names of images' places that a factor of a product is read at, side by side in each
    stored value.
    """
    for term in made.terms:
        for factor in made.contraction(term) or ():
            read = factor.args[0]
            if factor.op != "read" or not isinstance(read, Read) or read.extent or read.fill:
                continue
            axes = walked_axes(read, made.extents) or ()
            moving = {str(a) for axis in axes for a, _ in axis.place.terms} & {*made.grid}
            runs = groupby(made.stored[0].names, moving.__contains__)
            group = max((tuple(run) for inside, run in runs if inside), key=len, default=())
            if len(group) > 1 and all(_beside(group, one) for one in made.stored):
                yield group


def _beside(group: tuple[str, ...], one: Stored) -> bool:
    if group[0] not in one.names or one.at is not None or one.guards or one.pitch:
        return False
    first = one.names.index(group[0])
    return one.names[first : first + len(group)] == group


def _reads(stored: Sequence[Stored]) -> Iterator[Read]:
    for term in post_order(one.term for one in stored):
        if term.op == "read" and isinstance(term.args[0], Read):
            yield term.args[0]
