"""What is read of a point's neighbours: the same walk over a buffer, some steps on."""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from eqsat.graph.index import Affine

HELD = 8  # neighbouring points that a thread has at the most: they share what they read

Walk = tuple[str, Affine]  # a buffer, and where in it


def steps_between(one: Walk, other: Walk) -> dict[str, int] | None:
    """By how many steps of each name a walk lies behind another; None where they differ by more."""
    (buffer, address), (near, start) = one, other
    if buffer != near or address.terms != start.terms:
        return None
    rest, found = address.constant - start.constant, dict[str, int]()
    for atom, stride in sorted(address.terms, key=lambda term: -abs(term[1])):
        if not isinstance(atom, str):
            return None
        found[atom] = round(rest / stride)
        rest -= found[atom] * stride
    return None if rest else {name: steps for name, steps in found.items() if steps}


@lru_cache(maxsize=4096)
def steps_from(walks: tuple[Walk, ...]) -> tuple[tuple[Mapping[str, int], ...], ...]:
    """For each of some walks the steps between those before it and it."""
    alike: dict[tuple[str, object], list[Walk]] = {}
    found = []
    for walk in walks:
        before = alike.setdefault((walk[0], walk[1].terms), [])
        ways = (steps_between(walk, other) for other in before)
        found.append(tuple(steps for steps in ways if steps is not None))
        before.append(walk)
    return tuple(found)


def held_names(
    walks: Iterable[Walk], points: Mapping[str, Any], threads: Any
) -> dict[str, np.ndarray]:
    """The names along which neighbours are read but which memory does not hold together; and where
    a thread has all of the `points` of a tile along each, those of other names keeping `threads`
    at work.
    """
    walks = tuple(dict.fromkeys(walks))
    crossed = Counter(name for ways in steps_from(walks) for steps in ways for name in steps)
    terms = [(atom, abs(stride)) for _, address in walks for atom, stride in address.terms]
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
