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

from eqsat.algebra import Facts, Renaming, Term, post_order, with_children
from eqsat.decided import COMPARISONS, compares
from eqsat.graph.index import Affine, add, bounds, const, scale, sub, var
from eqsat.reindex import push

LOWEST = -5e4  # such numbers and lower ones; float16 has none below -65504
FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
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
    done: dict[Term, Term] = {}
    for term in every:
        over = _weighed_over(term, users, given)
        masked = _masked(term, facts) if over else None
        if masked and _keeps_one(masked, over, facts):
            done[term] = masked.filled(done, facts.dtype(term).name)
        else:
            done[term] = with_children(term, tuple(done[child] for child in term.children))
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


@dataclass(frozen=True)
class _Masked:
    """Scores that are kept where a condition is `kept`, and filled elsewhere."""

    condition: Term
    scores: Term
    kept: bool

    def filled(self, done: Mapping[Term, Term], dtype: str) -> Term:
        """With -inf, of what became of both."""
        none = Term("literal", -math.inf, dtype)
        condition, scores = done[self.condition], done[self.scores]
        return Term("where", condition, *((scores, none) if self.kept else (none, scores)))


def _masked(term: Term, facts: Facts) -> _Masked | None:
    if facts.dtype(term).name not in FLOATS or term.op not in {"where", "add", "sub"}:
        return None
    if term.op == "where":
        condition, a, b = term.children
        if _is_fill(_number(b)):
            return _Masked(condition, a, True)
        return _Masked(condition, b, False) if _is_fill(_number(a)) else None
    left, right = term.children
    sides = [(left, right), (right, left)] if term.op == "add" else [(left, Term("neg", right))]
    for scores, mask in sides:
        if found := _branches(mask):
            condition, a, b = found
            if a == 0 and _is_fill(b):
                return _Masked(condition, scores, True)
            if b == 0 and _is_fill(a):
                return _Masked(condition, scores, False)
    return None


def _is_fill(number: float | None) -> bool:
    return number is not None and -math.inf < number <= LOWEST


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


def _keeps_one(masked: _Masked, over: int, facts: Facts) -> bool:
    """Whether for all points of its other names a mask keeps the score at some position of one."""
    condition = masked.condition
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
            if _Known(facts).holds(at) == masked.kept:
                return True
    return False


def _places(condition: Term, name: str, facts: Facts) -> Iterator[Affine]:
    """Where a condition may hold: the first and the last position, where one of its comparisons
    with positions is an equality, and the same position as each other name's.
    """
    known = _Known(facts)
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

    facts: Facts
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
        found, number = _branches(a), _number(b)
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
        return compares(op, *bounds(sub(one, other), self.facts.universe.extents), 0, 0)

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
                low, high = bounds(one, self.facts.universe.extents) if one else (-1, 1)
                return one if low >= 0 else scale(one, -1) if one and high <= 0 else None
        return None


def _both(a: bool | None, b: bool | None) -> bool | None:
    if False in (a, b):
        return False
    return None if None in (a, b) else True


def _not(known: bool | None) -> bool | None:
    return None if known is None else not known
