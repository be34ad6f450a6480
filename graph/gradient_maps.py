"""The points that an index map sends to a given position: what the transpose of a view reads.

A map gives, for each point p of the result, the position c(p) of the operand. Its equations
c(p) = q are solved for p: names are split into digits until every equation is linear; of those in
one equation the ones that a mixed radix tells apart are computed from q, the others stay free and
are summed over. Whatever cannot be solved stays free, guarded by c(p) = q, which is always right.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import prod

from eqsat.graph.index import (
    Affine,
    FloorDiv,
    Mod,
    add,
    const,
    floordiv,
    free_names,
    mod,
    scale,
    sub,
    substitute,
    var,
    within,
)
from eqsat.graph.movement import Shape, output_extents

MOST_STEPS = 32  # changes of names; each leaves the equations right, so stopping is safe
MOST_TRIED = 6  # names of one equation of which every subset is tried

Atom = FloorDiv | Mod


@dataclass(frozen=True)
class Inverse:
    """The points that a map sends to the position (i0, i1, ...) of its operand.

    There is at most one for each value of the further indices, whose extents are `summed`. Its
    coordinates are `point`; there is none where one of `guards` (expression, extent), or a
    coordinate, leaves its range.
    """

    summed: Shape
    point: tuple[Affine, ...]
    guards: tuple[tuple[Affine, int], ...]


def invert(coordinates: Sequence[Affine], shape: Shape, operand_shape: Shape) -> Inverse:
    """The inverse of the map that reads `coordinates`, over `shape`, of an `operand_shape`."""
    equations = _Equations(coordinates, shape, operand_shape)
    equations.linearise()
    equations.solve()
    return equations.inverse()


class _Equations:
    """c_d(names) = q_d for each dimension d of the operand.

    `point` is the position in the result, and `guards` are ranges to keep, in terms of the current
    names. A change of names adds the range of each fresh name to the guards.
    """

    def __init__(self, coordinates: Sequence[Affine], shape: Shape, target: Shape) -> None:
        self.extents = output_extents(shape)
        self.left = {d: sub(c, var(f"q{d}")) for d, c in enumerate(coordinates)}
        self.point = [var(name) for name in self.extents]
        self.guards: list[tuple[Affine, int]] = []
        self.unknown = set(self.extents)
        self.target = {f"q{d}": n for d, n in enumerate(target)}
        self.fresh = 0

    # -- changes of names ------------------------------------------------------------------------

    def linearise(self) -> None:
        """Split and join names until no equation holds a quotient or a remainder, if that ends."""
        for _ in range(MOST_STEPS):
            atoms = [a for equation in self.left.values() for a in _innermost(equation)]
            if not any(self._rename(atom) for atom in atoms):
                return

    def _rename(self, atom: Atom) -> bool:
        """One change of names towards an atom that simplifies; False where none is known."""
        terms = [(str(name), c) for name, c in atom.numerator.terms]
        if len(terms) > 1:
            return self._join(terms)
        name, coefficient = terms[0]
        if coefficient == -1:
            self._flip(name)
        elif coefficient != 1:
            return False
        elif self._turns(name, atom):
            self._turn(name, atom.numerator.constant)
        elif atom.numerator.constant:
            self._shift(name, atom.numerator.constant)
        else:
            self._split(name, atom.divisor)
        return True

    def _name(self, extent: int) -> Affine:
        name = f"n{self.fresh}"
        self.fresh += 1
        self.extents[name] = extent
        self.unknown.add(name)
        self.guards.append((var(name), extent))
        return var(name)

    def _replace(self, values: dict[str, Affine]) -> None:
        self.unknown -= values.keys()
        known = {name: self.extents[name] for name in self.extents if name not in values}
        known |= self.target
        self.left = {d: substitute(e, values, known) for d, e in self.left.items()}
        self.point = [substitute(e, values, known) for e in self.point]
        self.guards = [(substitute(e, values, known), n) for e, n in self.guards]

    def _flip(self, name: str) -> None:
        """name = extent - 1 - fresh."""
        n = self.extents[name]
        self._replace({name: sub(const(n - 1), self._name(n))})

    def _shift(self, name: str, by: int) -> None:
        """name = fresh - by."""
        self._replace({name: sub(self._name(self.extents[name] + by), const(by))})

    def _turns(self, name: str, atom: Atom) -> bool:
        """Whether the name occurs as (name + c) % extent alone, a roll of its axis."""
        used = [term for e in self.left.values() for term, _ in e.terms if name in _names(term)]
        whole = isinstance(atom, Mod) and atom.divisor == self.extents[name]
        return whole and all(term == atom for term in used)

    def _turn(self, name: str, by: int) -> None:
        """name = (fresh - by) % extent."""
        n = self.extents[name]
        self._replace({name: mod(sub(self._name(n), const(by)), n, self.extents)})

    def _split(self, name: str, radix: int) -> None:
        """name = radix * high + low."""
        high = self._name(-(-self.extents[name] // radix))
        self._replace({name: add(scale(high, radix), self._name(radix))})

    def _join(self, terms: list[tuple[str, int]]) -> bool:
        """The names of one mixed radix as the digits of a fresh name, if they are of one."""
        terms = sorted(terms, key=lambda term: term[1])
        stride = 1
        for name, coefficient in terms:
            if coefficient != stride or name not in self.unknown:
                return False
            stride *= self.extents[name]
        joined = self._name(stride)
        known = {str(joined): stride}
        self._replace(
            {
                name: mod(floordiv(joined, c, known), max(self.extents[name], 1), known)
                for name, c in terms
            }
        )
        return True

    # -- solving ---------------------------------------------------------------------------------

    def solve(self) -> None:
        """Settle every equation: by names computed from the position, or as a guard."""
        for equation in self.left.values():  # names inside what is not linear stay free
            for atom, _ in equation.terms:
                self.unknown -= set() if isinstance(atom, str) else free_names(atom.numerator)
        while self.left:
            d = min(self.left, key=lambda d: len(free_names(self.left[d]) & self.unknown))
            for name, c in self._linear(d):
                if c < 0:
                    self._flip(name)
            terms = self._linear(d)
            chosen = self._told_apart(terms)
            equation = self.left.pop(d)
            self.unknown -= {name for name, _ in terms}
            if chosen:
                self._replace(self._digits(equation, chosen))
            else:
                self.guards.append((equation, 1))

    def _linear(self, d: int) -> list[tuple[str, int]]:
        return [(str(a), c) for a, c in self.left[d].terms if a in self.unknown]

    def _told_apart(self, terms: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """The names of the most points that one sum of their multiples tells apart."""
        ordered = sorted(terms, key=lambda term: (term[1], self.extents[term[0]]))
        sizes = range(len(ordered), 0, -1) if len(ordered) <= MOST_TRIED else (1,)
        tried = [list(subset) for size in sizes for subset in combinations(ordered, size)]
        fitting = [subset for subset in tried if self._is_radix(subset)]
        return max(fitting, key=lambda s: prod(self.extents[n] for n, _ in s)) if fitting else []

    def _is_radix(self, terms: list[tuple[str, int]]) -> bool:
        return all(
            high % low == 0 and high >= low * self.extents[name]
            for (name, low), (_, high) in pairwise(terms)
        )

    def _digits(self, equation: Affine, chosen: list[tuple[str, int]]) -> dict[str, Affine]:
        """The value of each chosen name, from what the others leave of the position."""
        extents = self.extents | self.target
        solved = {name: const(0) for name, _ in chosen}
        rest = scale(substitute(equation, solved, extents), -1)
        lowest = chosen[0][1]
        if lowest > 1:
            self.guards.append((mod(rest, lowest, extents), 1))
        for (name, low), (_, high) in pairwise(chosen):
            solved[name] = floordiv(mod(rest, high, extents), low, extents)
        name, highest = chosen[-1]
        solved[name] = floordiv(rest, highest, extents)
        return solved

    def inverse(self) -> Inverse:
        """The solution over the names i0, i1, ...: those of the operand, then those summed."""
        used = [*self.point, *(guard for guard, _ in self.guards)]
        names = {name for e in used for name in free_names(e)} - self.target.keys()
        summed = sorted(names, key=lambda name: (name[0], int(name[1:])))
        order = [*self.target, *summed]
        rename = {name: var(f"i{axis}") for axis, name in enumerate(order)}
        sizes = [*self.target.values(), *(self.extents[name] for name in summed)]
        extents = {f"i{axis}": n for axis, n in enumerate(sizes)}
        point = tuple(substitute(e, rename, extents) for e in self.point)
        guards: dict[tuple[Affine, int], None] = {}
        read = dict(zip(point, output_extents_of(self.extents, len(point)), strict=True))
        for expression, n in self.guards:
            expression = substitute(expression, rename, extents)
            if read.get(expression) != n and not within(expression, extents, n):
                guards[expression, n] = None
        return Inverse(tuple(sizes[len(self.target) :]), point, tuple(guards))


def output_extents_of(extents: dict[str, int], ndim: int) -> list[int]:
    """The extents of the result's own axes."""
    return [extents[f"i{axis}"] for axis in range(ndim)]


def _names(term: str | Atom) -> frozenset[str]:
    return frozenset({term}) if isinstance(term, str) else free_names(term.numerator)


def _innermost(expression: Affine) -> Iterator[Atom]:
    """The quotients and remainders of names alone."""
    for atom, _ in expression.terms:
        if isinstance(atom, str):
            continue
        inner = list(_innermost(atom.numerator))
        yield from inner or [atom]
