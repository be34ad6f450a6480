"""Why two terms are equal: congruence closure with a proof forest, and the steps read off it.

Equations are rows (left, right, label). What follows from them and from equal arguments is closed
over a fixed set of terms; a proof is the path between two terms in the forest that unions left.
"""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from eqsat.terms.algebra import Term, post_order


@dataclass(frozen=True)
class Equation:
    """left = right, because of `label`; `weight` orders what a shorter proof gives up first."""

    left: Term
    right: Term
    label: object
    weight: int = 0


@dataclass(frozen=True)
class Link:
    """One edge of a proof: from a term to an equal one, by an equation or by congruence."""

    before: Term
    after: Term
    equation: Equation | None = None
    forward: bool = True


class Closure:
    """The congruence closure of equations over the terms that occur in them and in `also`."""

    def __init__(self, equations: Iterable[Equation], also: Iterable[Term]) -> None:
        self._root: dict[Term, Term] = {}
        self._edge: dict[Term, Link] = {}  # toward the root of the proof tree
        equations = tuple(equations)
        sides = [side for e in equations for side in (e.left, e.right)]
        self._terms = list(post_order([*sides, *also]))
        for term in self._terms:
            self._root[term] = term
        for equation in equations:
            self._union(Link(equation.left, equation.right, equation))
        self._close()

    def _find(self, term: Term) -> Term:
        while self._root[term] is not term:
            self._root[term] = self._root[self._root[term]]
            term = self._root[term]
        return term

    def equal(self, a: Term, b: Term) -> bool:
        """Whether two of the terms were found equal."""
        return self._find(a) is self._find(b)

    def members(self) -> dict[Term, list[Term]]:
        """The terms equal to each, in order of first occurrence."""
        classes: dict[Term, list[Term]] = {}
        for term in self._terms:
            classes.setdefault(self._find(term), []).append(term)
        return {term: classes[self._find(term)] for term in self._terms}

    def _union(self, link: Link) -> bool:
        a, b = self._find(link.before), self._find(link.after)
        if a is b:
            return False
        self._reroot(link.before)
        self._edge[link.before] = link
        self._root[a] = b
        return True

    def _reroot(self, term: Term) -> None:
        """Turn the edges on the way up, so that the term becomes the root of its proof tree."""
        link = self._edge.pop(term, None)
        while link is not None:
            above = self._edge.pop(link.after, None)
            self._edge[link.after] = _turned(link)
            link = above

    def _close(self) -> None:
        compound = [term for term in self._terms if term.children]
        changed = True
        while changed:
            changed = False
            seen: dict[tuple[object, ...], Term] = {}
            for term in compound:
                key = (
                    term.op,
                    *(
                        self._find(a) if isinstance(a, Term) else (type(a), repr(a))
                        for a in term.args
                    ),
                )
                first = seen.setdefault(key, term)
                changed |= first is not term and self._union(Link(first, term))

    def path(self, source: Term, target: Term) -> list[Link]:
        """The links that lead from one term to an equal one."""
        up = self._upward(source)
        place = {source: 0} | {link.after: i for i, link in enumerate(up, 1)}
        down = []
        term = target
        while term not in place:
            link = self._edge[term]
            down.append(_turned(link))
            term = link.after
        return [*up[: place[term]], *reversed(down)]

    def _upward(self, term: Term) -> list[Link]:
        links = []
        while term in self._edge:
            links.append(self._edge[term])
            term = links[-1].after
        return links


def _turned(link: Link) -> Link:
    return Link(link.after, link.before, link.equation, not link.forward)


@dataclass(frozen=True)
class Move:
    """One step of a proof, on the term at a position: by an equation, or as moves before it did.

    `again` names the first and the last of earlier moves that showed the same equality, and the
    position under which they did; `forward` is False where it is used from right to left.
    """

    position: tuple[int, ...]
    before: Term
    after: Term
    equation: Equation | None
    forward: bool
    again: tuple[int, int, tuple[int, ...]] | None = None


class Unrolling:
    """Writes proofs out as moves at positions; what was shown once is cited afterwards."""

    def __init__(self) -> None:
        self.moves: list[Move] = []
        self._shown: dict[tuple[Term, Term], tuple[int, int, tuple[int, ...]]] = {}

    def prove(
        self, closure: Closure, source: Term, target: Term, position: tuple[int, ...]
    ) -> None:
        """Moves that turn the source, at a position, into the target."""
        self.show(source, target, position, lambda: self._walk(closure, source, target, position))

    def show(
        self, source: Term, target: Term, position: tuple[int, ...], write: Callable[[], None]
    ) -> None:
        """Cite the equality if it was shown, else have its moves written, and remember them."""
        if source is target:
            return
        for key, forward in (((source, target), True), ((target, source), False)):
            if key in self._shown:
                again = self._shown[key]
                self.moves.append(Move(position, source, target, None, forward, again))
                return
        first = len(self.moves)
        write()
        if len(self.moves) > first + 1:
            self._shown[source, target] = (first, len(self.moves) - 1, position)

    def _walk(
        self, closure: Closure, source: Term, target: Term, position: tuple[int, ...]
    ) -> None:
        for link in closure.path(source, target):
            if link.equation is not None:
                self.moves.append(
                    Move(position, link.before, link.after, link.equation, link.forward)
                )
                continue
            pairs = zip(link.before.children, link.after.children, strict=True)
            for place, (a, b) in enumerate(pairs):
                self.prove(closure, a, b, (*position, place))


def used(closure: Closure, source: Term, target: Term) -> list[Equation]:
    """The equations that a proof rests on."""
    found: dict[Equation, None] = {}
    seen: set[tuple[Term, Term]] = set()
    stack = [(source, target)]
    while stack:
        pair = stack.pop()
        if pair in seen or pair[0] is pair[1]:
            continue
        seen.add(pair)
        for link in closure.path(*pair):
            if link.equation is not None:
                found[link.equation] = None
            else:
                stack += zip(link.before.children, link.after.children, strict=True)
    return list(found)


def shortest(
    equations: Sequence[Equation], source: Term, target: Term, seconds: float = 1.0
) -> list[Equation] | None:
    """Few equations from which source = target follows; None where it does not.

    Each one left is needed. Several orders are tried within the time.
    """
    closure = Closure(equations, (source, target))
    if not closure.equal(source, target):
        return None
    deadline = time.monotonic() + seconds
    best = _needed(used(closure, source, target), source, target, deadline)
    shuffled = random.Random(0)
    pool = list(equations)
    for _ in range(8):
        if time.monotonic() > deadline:
            break
        shuffled.shuffle(pool)
        pool.sort(key=lambda equation: equation.weight)
        few = used(Closure(pool, (source, target)), source, target)
        few = _needed(few, source, target, deadline)
        if _cost(few, source, target) < _cost(best, source, target):
            best = few
    return best


def _cost(equations: list[Equation], source: Term, target: Term) -> int:
    unrolling = Unrolling()
    unrolling.prove(Closure(equations, (source, target)), source, target, ())
    return len(unrolling.moves)


def _needed(
    equations: list[Equation], source: Term, target: Term, deadline: float
) -> list[Equation]:
    """The equations without those that can go, the weightiest tried first."""
    kept = equations
    for candidate in sorted(equations, key=lambda equation: -equation.weight):
        if candidate not in kept or time.monotonic() > deadline:
            continue
        rest = [equation for equation in kept if equation is not candidate]
        closure = Closure(rest, (source, target))
        if closure.equal(source, target):
            kept = used(closure, source, target)
    return kept
