"""Joined pieces side by side: an axis whose positions tell which of several values lies where.

    y[i] = where(i < n, a[i], b[i - n])   ->   y[n * p + j] = where(p < 1, a[j], b[j])

A joined axis, as `concat` leaves, is the number of a piece and a place in it. What belongs to one
piece then lacks its number: a thread computes it once, and what several pieces read is read once.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import gcd

from eqsat.encode.decided import COMPARISONS
from eqsat.encode.known import Known
from eqsat.graph.index import Affine, const, free_names, sub, var
from eqsat.kernel.ir import Guard
from eqsat.layout.coalesce import BINDING, coalesce, in_groups
from eqsat.terms.algebra import Facts, Read, Renaming, Term, post_order, with_children
from eqsat.terms.form import Stored
from eqsat.terms.reindex import push

MOST_PIECES = 16
Range = tuple[int, int]  # the first and the last number of a piece
Values = tuple[tuple[Stored, ...], Facts]


def in_pieces(stored: tuple[Stored, ...], facts: Facts) -> Values | None:
    """The same values with the pieces of each joined axis as a name of their own; None where no
    axis is joined.
    """
    sizes = _piece_sizes(stored, facts)
    if not sizes:
        return None
    stored, facts, members = in_groups(stored, facts, sizes)
    for name in sizes:
        number = members[name][0]
        whole = (0, facts.universe.extents[number] - 1)
        settled = _Settled(facts, number)
        stored = tuple(replace(one, term=settled.within(one.term, whole)) for one in stored)
    return coalesce(stored, facts)


def _piece_sizes(stored: tuple[Stored, ...], facts: Facts) -> dict[str, int]:
    """The places of each piece, by the name of the axis: the largest number that divides where any
    piece begins and the axis ends.
    """
    terms = list(post_order(one.term for one in stored))
    if not any(term.op == "where" for term in terms):
        return {}
    extents, bound = facts.universe.extents, 0
    for term in terms:
        bound |= term.args[0] if term.op in BINDING else 0  # type: ignore[operator]
    names = {n for one in stored for n in one.names} - {*facts.universe.members(bound)}
    names -= {n for one in stored for guard in one.guards for n in free_names(guard.expression)}
    sizes: dict[str, int] = {}
    for name, begin in _beginnings(terms, facts):
        if name in names and 0 < begin < extents[name]:
            sizes[name] = gcd(sizes.get(name, extents[name]), begin)
    return {n: size for n, size in sizes.items() if size > 1 and extents[n] // size <= MOST_PIECES}


def _beginnings(terms: list[Term], facts: Facts) -> Iterator[tuple[str, int]]:
    """Names, and points from which on a comparison, or a guard of a read, tells otherwise."""
    known = Known(facts)
    for term in terms:
        read = term.args[0] if term.args else None
        if term.op in COMPARISONS and len(term.children) == 2:
            a, b = map(known.integer, term.children)
            if a is None or b is None:
                continue
            for name, sign, constant in _alone(sub(a, b)):
                # n + c < 0 and n + c >= 0 change at -c, the others at 1 - c; of -n likewise
                later = (term.op in {"less_equal", "greater"}) == (sign > 0)
                yield name, -sign * constant + later
                if term.op in {"equal", "not_equal"}:
                    yield name, -sign * constant + (not later)
        elif isinstance(read, Read):
            for guard in read.guards:
                for name, sign, constant in _alone(guard.expression):
                    if sign > 0:
                        yield name, guard.lower - constant
                        yield name, guard.upper - constant


def _alone(expression: Affine) -> Iterator[tuple[str, int, int]]:
    """The name, its sign and the constant of an expression of one name and nothing else."""
    if len(expression.terms) == 1:
        ((name, times),) = expression.terms
        if isinstance(name, str) and abs(times) == 1:
            yield name, times, expression.constant


class _Settled:
    """Terms as they are at some of the pieces alone."""

    def __init__(self, facts: Facts, number: str) -> None:
        self.facts, self.number = facts, number
        self.mask = facts.universe.mask([number])
        self.known: dict[Range, Known] = {}
        self.done: dict[tuple[Term, Range], Term] = {}

    def within(self, root: Term, pieces: Range) -> Term:
        """A term where the number of the piece is in a range."""
        waiting = [(root, pieces)]
        while waiting:
            term, at = waiting[-1]
            parts = self._parts(term, at)
            missing = [part for part in parts if part not in self.done]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            self.done[term, at] = self._made(term, at, tuple(self.done[part] for part in parts))
        return self.done[root, pieces]

    def _parts(self, term: Term, at: Range) -> list[tuple[Term, Range]]:
        """What a term is made of there, each part where it counts."""
        if not self.facts.free(term) & self.mask:
            return []
        if term.op != "where":
            return [(child, at) for child in term.children]
        condition, a, b = term.children
        holds = self._holds(condition, at)
        if holds is not None:
            return [(a if holds else b, at)]
        first, second = self._divided(condition, at) or (at, at)
        return [(condition, at), (a, first), (b, second)]

    def _made(self, term: Term, at: Range, parts: tuple[Term, ...]) -> Term:
        if not self.facts.free(term) & self.mask:
            return term
        if term.op == "where" and (len(parts) == 1 or parts[1] is parts[2]):
            return parts[-1]
        if term.op in COMPARISONS and (divided := self._divided(term, at)):
            return self._by_number(*divided)
        found = with_children(term, parts)
        if at[0] < at[1]:  # read at other pieces as well, whatever comes of it: guards stay
            return found
        read = found.args[0]
        if isinstance(read, Read):
            kept = tuple(guard for guard in read.guards if not self._passes(guard, at))
            found = Term(found.op, replace(read, guards=kept), *found.children)
        if not self.facts.free(found) & self.mask:
            return found
        return push(Renaming((self.number,), (const(at[0]),)), found, self.facts)

    def _by_number(self, holding: Range, failing: Range) -> Term:
        """The condition that the number of the piece is in the first of two ranges."""
        op = "less" if holding < failing else "greater_equal"
        number = Term("position", var(self.number))
        return Term(op, number, Term("literal", float(max(holding, failing)[0]), "int64"))

    def _passes(self, guard: Guard, at: Range) -> bool:
        return guard.contains(self._known(at).bounds(guard.expression))

    def _holds(self, condition: Term, at: Range) -> bool | None:
        return self._known(at).holds(condition)

    def _known(self, at: Range) -> Known:
        return self.known.setdefault(at, Known(self.facts, {self.number: at}))

    def _divided(self, condition: Term, at: Range) -> tuple[Range, Range] | None:
        """The pieces for which a condition holds and those for which it fails, where they are the
        first and the last ones, or the other way round.
        """
        low, high = at
        each = [self._holds(condition, (piece, piece)) for piece in range(low, high + 1)]
        changes = [place for place in range(1, len(each)) if each[place] != each[place - 1]]
        if None in each or len(changes) != 1:
            return None
        first, last = (low, low + changes[0] - 1), (low + changes[0], high)
        return (first, last) if each[0] else (last, first)
