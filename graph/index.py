"""Quasi-affine index expressions: sums of integer multiples of names, floor quotients, remainders.

A name ranges over 0 <= name < extents[name]. Every simplification is exact over that range; one
that needs no extents is exact over all integers. Divisors are positive constants, and division
rounds down, so that 0 <= e % q < q always.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np

from eqsat.errors import ShapeError


@dataclass(frozen=True, slots=True)
class FloorDiv:
    """The quotient of `numerator` by a positive constant, rounded down."""

    numerator: "Affine"
    divisor: int

    def __str__(self) -> str:
        return f"({_nested(self.numerator)} // {self.divisor})"


@dataclass(frozen=True, slots=True)
class Mod:
    """The remainder of `numerator` by a positive constant, in [0, divisor)."""

    numerator: "Affine"
    divisor: int

    def __str__(self) -> str:
        return f"({_nested(self.numerator)} % {self.divisor})"


Atom = str | FloorDiv | Mod


@dataclass(frozen=True, slots=True)
class Affine:
    """The sum of `coefficient * atom` over `terms`, plus `constant`.

    Terms are sorted, coefficients are not zero; build with the functions of this module.
    """

    terms: tuple[tuple[Atom, int], ...]
    constant: int

    def __str__(self) -> str:
        text = ""
        for atom, coefficient in self.terms:
            sign = " - " if coefficient < 0 else " + "
            size = abs(coefficient)
            text += f"{sign}{atom}" if size == 1 else f"{sign}{size}*{atom}"
        if self.constant or not self.terms:
            text += f"{' - ' if self.constant < 0 else ' + '}{abs(self.constant)}"
        return "-" + text[3:] if text.startswith(" - ") else text[3:]


def var(name: str) -> Affine:
    """The index `name` itself."""
    return Affine(((name, 1),), 0)


def const(value: int) -> Affine:
    """The constant `value`."""
    return Affine((), int(value))


def add(*expressions: Affine) -> Affine:
    """The sum; q * (e // q) + e % q becomes e again."""
    terms: dict[Atom, int] = {}
    for expression in expressions:
        for atom, coefficient in expression.terms:
            terms[atom] = terms.get(atom, 0) + coefficient
    return _recombine(_affine(terms, sum(e.constant for e in expressions)))


def sub(a: Affine, b: Affine) -> Affine:
    """The difference a - b."""
    return add(a, scale(b, -1))


def scale(expression: Affine, factor: int) -> Affine:
    """The product with an integer."""
    if factor == 0:
        return const(0)
    terms = tuple((atom, coefficient * factor) for atom, coefficient in expression.terms)
    return Affine(terms, expression.constant * factor)


def row_major(names: Sequence[str], extents: Mapping[str, int]) -> Affine:
    """The flat address of a point in a row-major buffer over `names`, outermost first."""
    address, stride = const(0), 1
    for name in reversed(names):
        address = add(address, scale(var(name), stride))
        stride *= extents[name]
    return address


def floordiv(expression: Affine, divisor: int, extents: Mapping[str, int] | None = None) -> Affine:
    """The quotient rounded down, simplified exactly over `extents`.

    (a*q + r) // q -> a + r // q;  r // q -> constant when the range of r has one quotient;
    (a*g + r) // (g*h) -> a // h when 0 <= r < g;  (e // p) // q -> e // (p*q).
    """
    _check_divisor(divisor)
    if divisor == 1:
        return expression
    whole = [(atom, c // divisor) for atom, c in expression.terms if c % divisor == 0]
    rest = Affine(
        tuple((atom, c) for atom, c in expression.terms if c % divisor),
        expression.constant % divisor,
    )
    quotient = Affine(tuple(whole), expression.constant // divisor)
    return add(quotient, _floordiv_rest(rest, divisor, extents))


def mod(expression: Affine, divisor: int, extents: Mapping[str, int] | None = None) -> Affine:
    """The remainder in [0, divisor), simplified exactly over `extents`.

    (a*q + r) % q -> r % q;  r % q -> r - c when the range of r has one quotient;
    (a*g + r) % (g*h) -> g * (a % h) + r when 0 <= r < g;  c * (e % p) -> c * e when q | c*p.
    """
    _check_divisor(divisor)
    rest = Affine(
        tuple((atom, c) for atom, c in expression.terms if c % divisor),
        expression.constant % divisor,
    )
    for atom, c in rest.terms:
        if isinstance(atom, Mod) and c * atom.divisor % divisor == 0:
            unwrapped = add(rest, Affine(((atom, -c),), 0), scale(atom.numerator, c))
            return mod(unwrapped, divisor, extents)
    quotient = _single_quotient(rest, divisor, extents)
    if quotient is not None:
        return add(rest, const(-quotient * divisor))
    split = _split_multiple(rest, divisor, extents)
    if split is not None:
        g, multiple, remainder = split
        return add(scale(mod(multiple, divisor // g, extents), g), remainder)
    return Affine(((Mod(rest, divisor), 1),), 0)


def bounds(expression: Affine, extents: Mapping[str, int]) -> tuple[int, int]:
    """The lowest and highest value, inclusive, by interval arithmetic (safe, may be wide).

    An extent of 0 counts as 1: over an empty range any bounds hold.
    """
    low = high = expression.constant
    for atom, coefficient in expression.terms:
        lo, hi = _atom_bounds(atom, extents)
        low += coefficient * (lo if coefficient > 0 else hi)
        high += coefficient * (hi if coefficient > 0 else lo)
    return low, high


def within(
    expression: Affine, extents: Mapping[str, int], limit: int, exact_points: int = 1 << 20
) -> bool:
    """Whether 0 <= expression < limit is proved over the whole range.

    Intervals first; where they are too wide, every point is tried if there are `exact_points` of
    them or fewer. False means not proved.
    """
    names = sorted(free_names(expression))
    points = 1
    for name in names:
        points *= extents[name]
    if points == 0:
        return True
    low, high = bounds(expression, extents)
    if low >= 0 and high < limit:
        return True
    if points > exact_points:
        return False
    values = evaluate(expression, open_grid(names, extents))
    return bool(np.all((values >= 0) & (values < limit)))


def open_grid(names: list[str], extents: Mapping[str, int]) -> dict[str, np.ndarray]:
    """For each name its values, shaped so that they broadcast to the grid in order of `names`."""
    grid: dict[str, np.ndarray] = {}
    for axis, name in enumerate(names):
        shape = [1] * len(names)
        shape[axis] = extents[name]
        grid[name] = np.arange(extents[name], dtype=np.int64).reshape(shape)
    return grid


def substitute(
    expression: Affine,
    replacements: Mapping[str, Affine],
    extents: Mapping[str, int] | None = None,
) -> Affine:
    """Replace names, simultaneously, and simplify over the `extents` of the names that remain."""
    parts = [const(expression.constant)]
    for atom, coefficient in expression.terms:
        if isinstance(atom, str):
            part = replacements.get(atom)
            part = var(atom) if part is None else part
        else:
            divide = floordiv if isinstance(atom, FloorDiv) else mod
            numerator = substitute(atom.numerator, replacements, extents)
            part = divide(numerator, atom.divisor, extents)
        parts.append(scale(part, coefficient))
    return add(*parts)


def simplify(expression: Affine, extents: Mapping[str, int]) -> Affine:
    """The same value over `extents`; a name of extent 1 becomes 0."""
    zeros = {name: const(0) for name in free_names(expression) if extents.get(name) == 1}
    return substitute(expression, zeros, extents)


def free_names(expression: Affine) -> frozenset[str]:
    """The names that occur."""
    return _free_names(expression)


def atom_names(atom: Atom) -> frozenset[str]:
    """The names that an atom depends on."""
    return frozenset([atom]) if isinstance(atom, str) else free_names(atom.numerator)


def divided_names(*expressions: Affine) -> set[str]:
    """The names of which index expressions have quotients or remainders."""
    atoms = (atom for e in expressions for atom, _ in e.terms if not isinstance(atom, str))
    return {name for atom in atoms for name in atom_names(atom)}


def unit_names(expression: Affine) -> frozenset[str]:
    """The names of which one step moves it by one."""
    return frozenset(atom for atom, by in expression.terms if by == 1 and isinstance(atom, str))


def evaluate(expression: Affine, values: Mapping[str, Any]) -> Any:
    """The value where each name has an int or an integer array of `values`."""
    total: Any = expression.constant
    for atom, coefficient in expression.terms:
        if isinstance(atom, str):
            value = values[atom]
        elif isinstance(atom, FloorDiv):
            value = evaluate(atom.numerator, values) // atom.divisor
        else:
            value = evaluate(atom.numerator, values) % atom.divisor
        total = total + coefficient * value
    return total


@lru_cache(maxsize=4096)
def _free_names(expression: Affine) -> frozenset[str]:
    names: set[str] = set()
    for atom, _ in expression.terms:
        names |= {atom} if isinstance(atom, str) else _free_names(atom.numerator)
    return frozenset(names)


def _affine(terms: Mapping[Atom, int], constant: int) -> Affine:
    kept = [(atom, coefficient) for atom, coefficient in terms.items() if coefficient]
    return Affine(tuple(sorted(kept, key=lambda term: _order(term[0]))), constant)


def _order(atom: Atom) -> tuple[bool, int, str]:
    text = str(atom)
    return not isinstance(atom, str), len(text), text


def _nested(expression: Affine) -> str:
    single = len(expression.terms) == 1 and not expression.constant
    simple = (single and expression.terms[0][1] == 1) or not expression.terms
    return str(expression) if simple else f"({expression})"


def _check_divisor(divisor: int) -> None:
    if divisor <= 0:
        raise ShapeError(
            f"index expression divided by {divisor}: divisors are positive constants. "
            f"Rewrite the expression with a divisor of at least 1."
        )


def _atom_bounds(atom: Atom, extents: Mapping[str, int]) -> tuple[int, int]:
    if isinstance(atom, str):
        return 0, max(extents[atom], 1) - 1
    low, high = bounds(atom.numerator, extents)
    q = atom.divisor
    if isinstance(atom, FloorDiv):
        return low // q, high // q
    return (low % q, high % q) if low // q == high // q else (0, q - 1)


def _single_quotient(
    expression: Affine, divisor: int, extents: Mapping[str, int] | None
) -> int | None:
    """The one value of expression // divisor over the whole range, if there is one."""
    if expression.terms and extents is None:
        return None
    low, high = bounds(expression, extents or {})
    return low // divisor if low // divisor == high // divisor else None


def _split_multiple(
    expression: Affine, divisor: int, extents: Mapping[str, int] | None
) -> tuple[int, Affine, Affine] | None:
    """g, a, r with expression = g*a + r, 0 <= r < g, g | divisor, 1 < g < divisor, if any."""
    common = {gcd(c, divisor) for _, c in expression.terms} - {1}
    if common:
        common.add(gcd(*common))  # the terms together, where no one of them divides the others
    for g in sorted(common - {1}, reverse=True):
        multiple = Affine(
            tuple((atom, c // g) for atom, c in expression.terms if c % g == 0),
            expression.constant // g,
        )
        remainder = Affine(
            tuple((atom, c) for atom, c in expression.terms if c % g), expression.constant % g
        )
        if _single_quotient(remainder, g, extents) == 0:
            return g, multiple, remainder
    return None


def _floordiv_rest(rest: Affine, divisor: int, extents: Mapping[str, int] | None) -> Affine:
    quotient = _single_quotient(rest, divisor, extents)
    if quotient is not None:
        return const(quotient)
    split = _split_multiple(rest, divisor, extents)
    if split is not None:
        g, multiple, _ = split
        return floordiv(multiple, divisor // g, extents)
    atom, coefficient = rest.terms[0]
    if len(rest.terms) == 1 and coefficient == 1 and not isinstance(atom, str):
        p = atom.divisor
        if isinstance(atom, FloorDiv):
            shifted = add(atom.numerator, const(rest.constant * p))
            return floordiv(shifted, p * divisor, extents)
        if not rest.constant and p % divisor == 0:
            return mod(floordiv(atom.numerator, divisor, extents), p // divisor, extents)
    return Affine(((FloorDiv(rest, divisor), 1),), 0)


def _recombine(expression: Affine) -> Affine:
    """c * (e % q) = c * e - c*q * (e // q), used where it leaves fewer quotients and remainders."""
    for atom, c in expression.terms:
        if not isinstance(atom, Mod):
            continue
        quotient = floordiv(atom.numerator, atom.divisor)
        terms: dict[Atom, int] = dict(expression.terms)
        terms.pop(atom)
        for part in (scale(atom.numerator, c), scale(quotient, -c * atom.divisor)):
            for other, coefficient in part.terms:
                terms[other] = terms.get(other, 0) + coefficient
        constant = atom.numerator.constant * c - quotient.constant * c * atom.divisor
        candidate = _affine(terms, expression.constant + constant)
        if _divisions(candidate) < _divisions(expression):
            return _recombine(candidate)
    return expression


def _divisions(expression: Affine) -> int:
    return sum(
        1 + _divisions(atom.numerator) for atom, _ in expression.terms if not isinstance(atom, str)
    )
