"""Finite numbers in the place of -inf: what a mask fills scores with before a softmax.

    where(c, s, F)   s + where(c, 0, F)   s + (1 - c) * F   s - (1 - c) / G   ->   where(c, s, -inf)

where F is so low that scores are taken to lie far above it, as inputs are taken to be finite; where
the mask keeps a score of every row; and where nothing but maxima of rows, and exponentials below
these, reads what is filled: the weights of what is masked are zero either way. A mask keeps one of
a row where it holds at a position that follows from the row's, as `i >= j` does at j = i. One that
comes from memory, such as the length of a sequence, may keep none.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from eqsat.algebra import COMPARISONS, Facts, Renaming, Term, post_order, with_children
from eqsat.graph.index import Affine, add, bounds, const, scale, sub, var
from eqsat.reindex import push

LOWEST = -5e4  # such numbers and lower ones; float16 has none below -65504
FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
NEGATED = {
    "less": "greater_equal",
    "less_equal": "greater",
    "greater": "less_equal",
    "greater_equal": "less",
    "equal": "not_equal",
    "not_equal": "equal",
}
ARITHMETIC = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b if b else math.nan,
}
Users = Mapping[Term, list[Term]]


def with_infinite_fills(roots: Iterable[Term], facts: Facts) -> dict[Term, Term]:
    """What becomes of each term below the roots, by term."""
    given = list(roots)
    every = list(post_order(given))
    users: dict[Term, list[Term]] = {}
    for term in every:
        for child in term.children:
            users.setdefault(child, []).append(term)
    made: dict[Term, Term] = {}
    for term in every:
        over = _weighed_over(term, users, given)
        masked = _masked(term, facts) if over else None
        if masked and _keeps_one(masked[0], over, facts):
            made[term] = _filled(*masked, facts.dtype(term).name)
    done: dict[Term, Term] = {}
    for term in every:
        whole = made.get(term, term)
        for one in post_order([whole]) if made else ():
            if one not in done and one not in made:
                done[one] = with_children(one, tuple(done[child] for child in one.children))
        done[term] = done.get(whole, whole)
    return done


def _weighed_over(term: Term, users: Users, stored: list[Term]) -> int:
    """The names over which the maxima of a sum are taken, if these and exponentials of what it lies
    below them are all that reads it; 0 where something else does.
    """
    maxima, below = set[Term](), set[Term]()
    alike, over = [term], 0
    for one in alike:
        if one in stored:
            return 0
        for user in users.get(one, ()):
            if user.op == "reduce_max":
                maxima.add(user)
                mask = user.args[0]
                assert isinstance(mask, int)
                if over not in (0, mask):
                    return 0
                over = mask
            elif user.op == "sub" and user.children[0] is one:
                below.add(user)
            elif user.op in {"cast", "rounded"} and user.args[0] in FLOATS:
                alike.append(user)
            else:
                return 0
    if not maxima or not all(_is_maximum(one.children[1], maxima) for one in below):
        return 0
    return over if all(_is_weight(one, users, stored) for one in below) else 0


def _is_maximum(term: Term, maxima: set[Term]) -> bool:
    return term in maxima or (term.op in {"cast", "rounded"} and term.children[0] in maxima)


def _is_weight(term: Term, users: Users, stored: list[Term]) -> bool:
    """Whether exponentials alone read a term."""
    readers = users.get(term, ())
    return term not in stored and all(
        user.op == "exp" or (user.op in {"cast", "rounded"} and _is_weight(user, users, stored))
        for user in readers
    )


def _masked(term: Term, facts: Facts) -> tuple[Term, Term] | None:
    """(condition, scores) of scores that are filled where the condition fails."""
    if facts.dtype(term).name not in FLOATS or term.op not in {"where", "add", "sub"}:
        return None
    if term.op == "where":
        condition, a, b = term.children
        for kept, other, holds in ((a, b, True), (b, a, False)):
            number = _number(other)
            if number is not None and -math.inf < number <= LOWEST:
                return (condition if holds else negated(condition)), kept
        return None
    left, right = term.children
    sides = [(left, right), (right, left)] if term.op == "add" else [(left, Term("neg", right))]
    for scores, mask in sides:
        if found := _branches(mask):
            condition, a, b = found
            if a == 0 and -math.inf < b <= LOWEST:
                return condition, scores
            if b == 0 and -math.inf < a <= LOWEST:
                return negated(condition), scores
    return None


def _filled(condition: Term, scores: Term, dtype: str) -> Term:
    return Term("where", condition, scores, Term("literal", -math.inf, dtype))


def negated(condition: Term) -> Term:
    """The condition that fails where this one holds."""
    if condition.op in NEGATED:
        return Term(NEGATED[condition.op], *condition.args)
    return Term("logical_not", condition)


def _number(term: Term) -> float | None:
    """The value of a literal, cast or negated."""
    if term.op in {"cast", "rounded"}:
        return _number(term.children[0])
    if term.op == "neg":
        inner = _number(term.children[0])
        return None if inner is None else -inner
    value = term.args[0] if term.op == "literal" else None
    return float(value) if isinstance(value, int | float) else None


def _branches(term: Term) -> tuple[Term, float, float] | None:
    """(condition, a, b) of a term that is a where the condition holds, else b."""
    if term.op == "where":
        a, b = map(_number, term.children[1:])
        return None if a is None or b is None else (term.children[0], a, b)
    if term.op in {"cast", "rounded"}:
        (child,) = term.children
        truth = child.op in COMPARISONS or child.op.startswith("logical_")
        return (child, 1.0, 0.0) if truth else _branches(child)
    if term.op == "neg":
        found = _branches(term.children[0])
        return found and (found[0], -found[1], -found[2])
    if term.op in ARITHMETIC:
        apply, (left, right) = ARITHMETIC[term.op], term.children
        if (found := _branches(left)) and (number := _number(right)) is not None:
            return found[0], apply(found[1], number), apply(found[2], number)
        if (found := _branches(right)) and (number := _number(left)) is not None:
            return found[0], apply(number, found[1]), apply(number, found[2])
    return None


# whether a mask keeps anything


def _keeps_one(condition: Term, over: int, facts: Facts) -> bool:
    """Whether for all points of its other names a condition holds at some position of one name."""
    free = facts.free(condition) & over
    names = facts.universe.members(free)
    if len(names) != 1:
        return False
    (name,) = names
    extents = facts.universe.extents
    for place in _places(condition, name, facts):
        low, high = bounds(place, extents)
        if low >= 0 and high < extents[name]:
            at = push(Renaming((name,), (place,)), condition, facts)
            if _Known(extents).holds(at):
                return True
    return False


def _places(condition: Term, name: str, facts: Facts) -> Iterator[Affine]:
    """Where a condition may hold: the first and the last position, where one of its comparisons
    with positions is an equality, and the same position as each other name's.
    """
    known = _Known(facts.universe.extents)
    yield const(0)
    yield const(facts.universe.extents[name] - 1)
    for term in post_order([condition]):
        if term.op in COMPARISONS or term.op == "sub":
            a, b = map(known.integer, term.children)
            if a is not None and b is not None:
                apart = sub(a, b)
                times = dict(apart.terms).get(name, 0)
                if abs(times) == 1:
                    rest = add(apart, scale(var(name), -times))
                    yield scale(rest, -times)
    for other in facts.universe.members(facts.free(condition)):
        if other != name:
            yield var(other)


@dataclass
class _Known:
    """What is known of terms at all points."""

    extents: Mapping[str, int]
    _integers: dict[Term, Affine | None] = field(default_factory=dict)

    def holds(self, term: Term) -> bool | None:
        """Whether a condition holds everywhere, or nowhere; None where neither is known."""
        match term.op, term.children:
            case "logical_not", (inner,):
                known = self.holds(inner)
                return None if known is None else not known
            case "logical_and", (a, b):
                return _both(self.holds(a), self.holds(b))
            case "logical_or", (a, b):
                known = _both(_not(self.holds(a)), _not(self.holds(b)))
                return _not(known)
            case op, (a, b) if op in NEGATED:
                return self._compared(op, a, b)
        return None

    def _compared(self, op: str, a: Term, b: Term) -> bool | None:
        found, number = _branches(a), _number(b)
        if found and number is not None:  # truth values as numbers
            at = (_decided(op, value - number, value - number) for value in found[1:])
            first, second = at
            if first == second:
                return first
            known = self.holds(found[0])
            return None if known is None else first if known else second
        if a is b and _is_integer(a):
            return op in {"equal", "less_equal", "greater_equal"}
        one, other = self.integer(a), self.integer(b)
        if one is None or other is None:
            return None
        return _decided(op, *bounds(sub(one, other), self.extents))

    def integer(self, term: Term) -> Affine | None:
        """An integer as an index expression."""
        if term not in self._integers:
            self._integers[term] = self._integer(term)
        return self._integers[term]

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
                low, high = bounds(one, self.extents) if one else (-1, 1)
                return one if low >= 0 else scale(one, -1) if one and high <= 0 else None
        return None


def _both(a: bool | None, b: bool | None) -> bool | None:
    if False in (a, b):
        return False
    return None if None in (a, b) else True


def _not(known: bool | None) -> bool | None:
    return None if known is None else not known


def _decided(op: str, low: float, high: float) -> bool | None:
    """Whether a difference between two bounds compares so with 0; None where either."""
    match op:
        case "less":
            return True if high < 0 else False if low >= 0 else None
        case "less_equal":
            return True if high <= 0 else False if low > 0 else None
        case "greater" | "greater_equal":
            return _not(_decided("less_equal" if op == "greater" else "less", low, high))
        case "equal":
            return True if low == high == 0 else False if low > 0 or high < 0 else None
    return _not(_decided("equal", low, high))


def _is_integer(term: Term) -> bool:
    """Whether a term read from memory is compared as an integer, which no NaN is."""
    return term.op in {"read", "gather"} and term.args[0].dtype.kind in {"int", "uint", "bool"}  # type: ignore[union-attr]
