"""What bounds of index expressions tell of terms: which conditions always hold, or never."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from eqsat.encode.decided import COMPARISONS, compares
from eqsat.graph.dtypes import as_dtype, iinfo
from eqsat.graph.index import Affine, add, bounds, const, scale, sub, substitute, var
from eqsat.terms.algebra import Facts, Term

ARITHMETIC = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b if b else math.nan,
}


@dataclass
class Known:
    """What is known of terms at all points, of a name in `ranges` at those from the first to the
    last one there.
    """

    facts: Facts
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    _integers: dict[Term, Affine | None] = field(default_factory=dict)

    def holds(self, term: Term) -> bool | None:
        """Whether a condition holds everywhere, or nowhere; None where neither is known."""
        match term.op, term.children:
            case "logical_not", (inner,):
                return _not(self.holds(inner))
            case "logical_and", (a, b):
                return _both(self.holds(a), self.holds(b))
            case "logical_or", (a, b):
                known = _both(_not(self.holds(a)), _not(self.holds(b)))
                return _not(known)
            case op, (a, b) if op in COMPARISONS:
                return self._compared(op, a, b)
        return None

    def _compared(self, op: str, a: Term, b: Term) -> bool | None:
        found, number = branches(a, self.facts), number_of(b)
        if found and number is not None:  # truth values as numbers
            condition, *values = found
            first, second = (compares(op, value, value, number, number) for value in values)
            known = first if first == second else self.holds(condition)
            return None if known is None else first if known else second
        if a is b and self.facts.dtype(a).kind != "float":  # which may be NaN
            return op in {"equal", "less_equal", "greater_equal"}
        one, other = self.integer(a), self.integer(b)
        if one is None or other is None:
            return None
        return compares(op, *self.bounds(sub(one, other)), 0, 0)

    def bounds(self, expression: Affine) -> tuple[int, int]:
        """The lowest and the highest value of an index expression."""
        first = {name: add(var(name), const(low)) for name, (low, _) in self.ranges.items()}
        counts = {name: high - low + 1 for name, (low, high) in self.ranges.items()}
        extents = {**self.facts.universe.extents, **counts}
        return bounds(substitute(expression, first, extents), extents)

    def integer(self, term: Term) -> Affine | None:
        """An integer as an index expression; None where what is computed may wrap around."""
        if term not in self._integers:
            found = self._integer(term)
            self._integers[term] = found if found and self._fits(term, found) else None
        return self._integers[term]

    def _fits(self, term: Term, value: Affine) -> bool:
        """Whether the dtype of a term holds all that is computed."""
        dtype = self.facts.dtype(term)
        if term.op in {"position", "literal"} or dtype.kind not in {"int", "uint"}:
            return True
        (low, high), limits = self.bounds(value), iinfo(dtype)
        return limits.min <= low and high <= limits.max

    def _integer(self, term: Term) -> Affine | None:
        match term.op, term.args:
            case "position", (Affine() as expression,):
                return expression
            case "literal", (int() | float() as value, _) if float(value).is_integer():
                return const(int(value))
            case "cast", (_, Term() as inner):
                return self.integer(inner) if term.args[0] in {"int32", "int64"} else None
            case ("add" | "sub") as op, (Term() as a, Term() as b):
                one, other = self.integer(a), self.integer(b)
                if one is None or other is None:
                    return None
                return add(one, other) if op == "add" else sub(one, other)
            case "mul", (Term() as a, Term() as b):
                one, other = self.integer(a), self.integer(b)
                if one is None or other is None or (one.terms and other.terms):
                    return None
                return scale(one, other.constant) if one.terms else scale(other, one.constant)
            case "abs", (Term() as inner,):
                one = self.integer(inner)
                low, high = self.bounds(one) if one else (-1, 1)
                return one if low >= 0 else scale(one, -1) if one and high <= 0 else None
        return None


def _both(a: bool | None, b: bool | None) -> bool | None:
    if False in (a, b):
        return False
    return None if None in (a, b) else True


def _not(known: bool | None) -> bool | None:
    return None if known is None else not known


def number_of(term: Term) -> float | None:
    """The value of a literal, cast or negated."""
    if term.op in {"cast", "rounded"}:
        inner = number_of(term.children[0])
        return None if inner is None else _as(str(term.args[0]), inner)
    if term.op == "neg":
        inner = number_of(term.children[0])
        return None if inner is None else -inner
    value = term.args[0] if term.op == "literal" else None
    return float(value) if isinstance(value, int | float) else None


def _as(dtype: str, value: float) -> float:
    """A number as an element of a dtype; NaN where it is none of an integer one."""
    kind = as_dtype(dtype)
    if kind.kind in ("int", "uint"):
        limits = iinfo(kind)
        whole = math.trunc(value) if math.isfinite(value) else limits.max + 1
        return float(whole) if limits.min <= whole <= limits.max else math.nan
    with np.errstate(over="ignore"):
        return float(np.asarray(value).astype(kind.numpy))


def branches(term: Term, facts: Facts) -> tuple[Term, float, float] | None:
    """(condition, a, b) of a term that is a where the condition holds, else b."""
    if term.op == "where":
        a, b = map(number_of, term.children[1:])
        return None if a is None or b is None else (term.children[0], a, b)
    if term.op in {"cast", "rounded"}:
        (child,) = term.children
        truth = child.op in COMPARISONS or child.op.startswith("logical_")
        found = (child, 1.0, 0.0) if truth else branches(child, facts)
        dtype = str(term.args[0])
        return found and (found[0], _as(dtype, found[1]), _as(dtype, found[2]))
    if term.op == "neg":
        found = branches(term.children[0], facts)
        return found and (found[0], -found[1], -found[2])
    if term.op in ARITHMETIC:
        apply, (left, right) = ARITHMETIC[term.op], term.children
        dtype = facts.dtype(term).name
        if (found := branches(left, facts)) and (number := number_of(right)) is not None:
            first, second = (_as(dtype, apply(value, number)) for value in found[1:])
            return found[0], first, second
        if (found := branches(right, facts)) and (number := number_of(left)) is not None:
            first, second = (_as(dtype, apply(number, value)) for value in found[1:])
            return found[0], first, second
    return None
