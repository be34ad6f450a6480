"""What is read of a point's neighbours: the same walk over a buffer, some steps on."""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from eqsat.graph.index import Affine, Atom, Mod, add, bounds, const, free_names
from eqsat.kernel.ir import Guard

HELD = 8  # neighbouring points that a thread has at the most: they share what they read


class Walk(NamedTuple):
    """A buffer, where in it, and which guards tell whether an element is there; names that begin
    anew where they end, and by how much each is moved on, which the address has as if it went on.
    """

    buffer: str
    address: Affine
    guards: tuple[Guard, ...] = ()
    around: tuple[tuple[str, int], ...] = ()

    @property
    def shifts(self) -> dict[str, int]:
        """By how much names are moved that begin anew."""
        return dict(self.around)

    def guards_from(self, steps: Mapping[str, int]) -> tuple[Guard, ...]:
        """What guards it, by where the walk stands that it is so many steps behind."""
        return tuple(
            Guard(add(guard.expression, const(-_moved(guard, steps))), guard.lower, guard.upper)
            for guard in self.guards
        )


def walk(
    buffer: str, address: Affine, guards: tuple[Guard, ...], extents: Mapping[str, int]
) -> Walk:
    """The walk of an access; `(i + 7) % 8` of 8 is one step back."""
    parts, around = [const(address.constant)], dict[str, int]()
    for atom, stride in address.terms:
        name, by = _moved_around(atom, extents)
        if name and name not in around:
            around[name] = by
            atom = name
            parts.append(const(by * stride))
        parts.append(Affine(((atom, stride),), 0))
    return Walk(buffer, add(*parts), guards, tuple(sorted(around.items())))


def _moved_around(atom: Atom, extents: Mapping[str, int]) -> tuple[str, int]:
    """The name, and by how much it is moved, of a remainder by all that it counts; "" of others."""
    if not isinstance(atom, Mod) or len(atom.numerator.terms) != 1:
        return "", 0
    ((name, step),) = atom.numerator.terms
    size = atom.divisor
    if not isinstance(name, str) or step != 1 or extents.get(name) != size:
        return "", 0
    by = atom.numerator.constant % size
    return name, by - size if by > size // 2 else by


def steps_between(one: Walk, other: Walk, extents: Mapping[str, int]) -> dict[str, int] | None:
    """By how many steps of each name a walk lies behind another; None where they differ by more,
    one misses an element that the other reads, or goes on where the other begins anew.
    """
    if one.buffer != other.buffer or one.address.terms != other.address.terms:
        return None
    rest, found = one.address.constant - other.address.constant, dict[str, int]()
    for atom, stride in sorted(one.address.terms, key=lambda term: -abs(term[1])):
        if not isinstance(atom, str):
            return None
        found[atom] = round(rest / stride)
        rest -= found[atom] * stride
    steps = {name: by for name, by in found.items() if by}
    ahead, behind = one.shifts, other.shifts
    for name in ahead.keys() | behind.keys():
        asked = any(name in free_names(g.expression) for g in (*one.guards, *other.guards))
        if asked or steps.get(name, 0) != ahead.get(name, 0) - behind.get(name, 0):
            return None
    back = {name: -by for name, by in steps.items()}
    alike = _holds(one, other.guards_from(back), extents) and _holds(
        other, one.guards_from(steps), extents
    )
    return None if rest or not alike else steps


def _holds(walk: Walk, guards: Iterable[Guard], extents: Mapping[str, int]) -> bool:
    """Whether a walk is guarded by these too, or stays within them."""
    for guard in guards:
        if guard not in walk.guards:
            if not {atom for atom, _ in guard.expression.terms} <= extents.keys():
                return False
            if not guard.contains(bounds(guard.expression, extents)):
                return False
    return True


def _moved(guard: Guard, steps: Mapping[str, int]) -> int:
    """By how much steps move what a guard is about."""
    return sum(stride * steps.get(str(atom), 0) for atom, stride in guard.expression.terms)


@lru_cache(maxsize=4096)
def steps_from(
    walks: tuple[Walk, ...], extents: tuple[tuple[str, int], ...]
) -> tuple[tuple[Mapping[str, int], ...], ...]:
    """For each of some walks the steps between those before it and it."""
    alike: dict[tuple[str, object], list[Walk]] = {}
    found, sizes = [], dict(extents)
    for walk in walks:
        before = alike.setdefault((walk.buffer, walk.address.terms), [])
        ways = (steps_between(walk, other, sizes) for other in before)
        found.append(tuple(steps for steps in ways if steps is not None))
        before.append(walk)
    return tuple(found)


def held_names(
    walks: Iterable[Walk], extents: Mapping[str, int], points: Mapping[str, Any], threads: Any
) -> dict[str, np.ndarray]:
    """The names along which neighbours are read but which memory does not hold together; and where
    a thread has all of the `points` of a tile along each, those of other names keeping `threads`
    at work.
    """
    walks = tuple(dict.fromkeys(walks))
    between = steps_from(walks, tuple(extents.items()))
    crossed = Counter(name for ways in between for steps in ways for name in steps)
    terms = [(atom, abs(stride)) for walk in walks for atom, stride in walk.address.terms]
    unit = {atom for atom, stride in terms if stride == 1}
    strides = dict(sorted(terms, key=lambda term: term[1]))  # the longest of each
    names = sorted(crossed.keys() - unit, key=lambda name: (-crossed[name], -strides[name]))
    whole, held = prod(points.values()), 1
    found: dict[str, np.ndarray] = {}
    for name in names:
        more = held * np.asarray(points[name])
        found[name] = (more > held) & (more <= HELD) & (whole >= more * threads)
        held = np.where(found[name], more, held)
    return found
