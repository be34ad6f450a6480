"""Finite numbers in the place of -inf: what a mask fills scores with before a softmax.

    where(c, s, F)   s + where(c, 0, F)   s + (1 - c) * F   s - (1 - c) / G   ->   where(c, s, -inf)

where F is so low that scores which are made of products, positions and numbers are taken to lie far
above it (what is read may be a mask too); where the mask keeps a score of every row; and where
nothing but maxima of rows, and exponentials below these, reads what is filled: the weights of what
is masked are zero either way. A mask keeps one of a row where it holds at a position that follows
from the row's, as `i >= j` does at j = i. One that comes from memory, such as the length of a
sequence, may keep none.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from eqsat.encode.decided import COMPARISONS
from eqsat.encode.known import Known, branches, number_of
from eqsat.graph.index import Affine, add, bounds, const, scale, sub, var
from eqsat.terms.algebra import Facts, Renaming, Term, post_order, with_children
from eqsat.terms.reindex import push

LOWEST = -5e4  # such numbers and lower ones; float16 has none below -65504
COMBINING = frozenset(
    {"abs", "add", "sub", "neg", "cast", "rounded", "where", "maximum", "minimum"}
)
FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
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
        if masked and _keeps_one(masked, over, facts) and _is_moderate(masked.scores):
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
        if _is_fill(number_of(b)):
            return _Masked(condition, a, True)
        return _Masked(condition, b, False) if _is_fill(number_of(a)) else None
    left, right = term.children
    sides = [(left, right), (right, left)] if term.op == "add" else [(left, Term("neg", right))]
    for scores, mask in sides:
        if found := branches(mask, facts):
            condition, a, b = found
            if a == 0 and _is_fill(b):
                return _Masked(condition, scores, True)
            if b == 0 and _is_fill(a):
                return _Masked(condition, scores, False)
    return None


def _is_moderate(scores: Term) -> bool:
    """Whether scores are made of products, positions and numbers: what is read may be a mask too,
    or lie as low as what fills it.
    """
    match scores.op, scores.children:
        case "literal", _:
            number = number_of(scores)
            return number is not None and abs(number) < -LOWEST
        case (("reduce_sum" | "position" | "tanh"), _):
            return True
        case (("mul" | "div"), (a, b)):
            return any(_is_moderate(part) and number_of(part) is None for part in (a, b))
        case op, parts if op in COMBINING:
            return all(_is_moderate(part) for part in parts[op == "where" :])
    return False


def _is_fill(number: float | None) -> bool:
    return number is not None and -math.inf < number <= LOWEST


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
            if Known(facts).holds(at) == masked.kept:
                return True
    return False


def _places(condition: Term, name: str, facts: Facts) -> Iterator[Affine]:
    """Where a condition may hold: the first and the last position, where one of its comparisons
    with positions is an equality, and the same position as each other name's.
    """
    known = Known(facts)
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
