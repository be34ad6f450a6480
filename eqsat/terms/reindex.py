"""Carry a re-indexing through a term down to its reads."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial, reduce

from eqsat.graph.index import Affine, free_names, substitute, var
from eqsat.kernel.ir import Guard
from eqsat.terms.algebra import SCANS, Facts, Read, Renaming, Term, with_children
from eqsat.terms.form import REDUCING


def push(
    renaming: Renaming, term: Term, facts: Facts, stops: Collection[Term] = frozenset()
) -> Term:
    """The term at re-indexed positions; a `reindex` node remains at the terms in `stops` alone.

    Bound indices that would capture an index of the targets get fresh names. Where the re-indexing
    is guarded, reads below at indices that the guards are about are guarded too, so that none
    leaves its buffer.
    """
    replacements = dict(zip(renaming.source, renaming.target, strict=True))
    if renaming.guards and _absorbs(term, renaming):
        read = term.args[0]
        assert isinstance(read, Read)
        term = Term("read", replace(read, fill=renaming.fill))
        return _Pusher(facts, (), stops).read(term, replacements, renaming.guards)
    if (
        renaming.guards
        and term.op in {"cast", "rounded"}
        and not renaming.fill
        and term not in stops
    ):
        return with_children(term, (push(renaming, term.children[0], facts, stops),))  # cast(0) = 0
    pushed = push_inside(renaming, term, facts, stops)
    if not renaming.guards:
        return pushed
    condition = _inside(renaming.guards)
    fill = Term("literal", float(renaming.fill), facts.dtype(term).name)
    return Term("where", condition, pushed, fill)


def push_inside(
    renaming: Renaming, term: Term, facts: Facts, stops: Collection[Term] = frozenset()
) -> Term:
    """The same at those positions alone for which the guards hold."""
    at = dict(zip(renaming.source, renaming.target, strict=True))
    return _Pusher(facts, renaming.guards, stops).push(term, at)


def _absorbs(term: Term, renaming: Renaming) -> bool:
    """Whether the guards may simply be added to a read: it yields the fill by itself."""
    if term.op != "read":
        return False
    read = term.args[0]
    assert isinstance(read, Read)
    return read.fill == renaming.fill or not read.guards


def _inside(guards: tuple[Guard, ...]) -> Term:
    """The condition that every guard holds, as a term."""
    parts = []
    for guard in guards:
        at = Term("position", guard.expression)
        if guard.lower > -(1 << 62):
            parts.append(Term("greater_equal", at, Term("literal", float(guard.lower), "int64")))
        parts.append(Term("less", at, Term("literal", float(guard.upper), "int64")))
    return all_of(parts)


def all_of(parts: Sequence[Term]) -> Term:
    """The condition that each of the parts holds, of one at least."""
    return reduce(partial(Term, "logical_and"), parts)


def _stays(renaming: Renaming, term: Term, facts: Facts) -> bool:
    """Whether a re-indexing cannot be carried further down: it is of a scan that it moves."""
    at = dict(zip(renaming.source, renaming.target, strict=True))
    return term.op in SCANS and _Pusher(facts, renaming.guards, ()).moves(term, at)


class _Pusher:
    def __init__(self, facts: Facts, guards: tuple[Guard, ...], stops: Collection[Term]) -> None:
        self.facts = facts
        self.guards = guards
        self.stops = stops
        self._done: dict[tuple[Term, tuple[tuple[str, Affine], ...]], Term] = {}

    def push(self, term: Term, at: dict[str, Affine]) -> Term:
        names = set(self.facts.universe.members(self.facts.free(term)))
        at = {name: target for name, target in at.items() if name in names and target != var(name)}
        if not at:
            return term
        key = (term, tuple(sorted(at.items(), key=lambda item: item[0])))
        if key not in self._done:
            self._done[key] = self._push(term, at)
        return self._done[key]

    def _push(self, term: Term, at: dict[str, Affine]) -> Term:
        extents = self.facts.universe.extents
        stops = term in self.stops and term.op not in {"read", "literal", "position"}
        if stops or (term.op in SCANS and self.moves(term, at)):
            order = sorted(at)
            renaming = Renaming(tuple(order), tuple(at[n] for n in order), self.guards)
            return Term("reindex", renaming, term)
        if term.op in {"read", "gather"}:
            return self.read(term, at, self._about(at))
        if term.op == "position":
            expression = term.args[0]
            assert isinstance(expression, Affine)
            return Term("position", substitute(expression, at, extents))
        if term.op == "reindex":
            inner, body = term.args
            assert isinstance(inner, Renaming) and isinstance(body, Term)
            if _stays(inner, body, self.facts):
                return self._composed(term, at)
            return self.push(push(inner, body, self.facts), at)
        if term.op in REDUCING:
            return self._push_reduction(term, at)
        return with_children(term, tuple(self.push(child, at) for child in term.children))

    def _composed(self, term: Term, at: dict[str, Affine]) -> Term:
        """A re-indexing of what stays where it is, such as a scan, at other indices."""
        inner, body = term.args
        assert isinstance(inner, Renaming) and isinstance(body, Term)
        extents = self.facts.universe.extents
        own = {
            name: at[name]
            for name in self.facts.universe.members(self.facts.free(body))
            if name in at
        }
        placed = zip(inner.source, inner.target, strict=True)
        own |= {name: substitute(target, at, extents) for name, target in placed}
        guards = tuple(
            replace(guard, expression=substitute(guard.expression, at, extents))
            for guard in inner.guards
        )
        order = sorted(own)
        targets = tuple(own[name] for name in order)
        renaming = replace(inner, source=tuple(order), target=targets, guards=guards + self.guards)
        return Term("reindex", renaming, body)

    def moves(self, scan: Term, at: dict[str, Affine]) -> bool:
        """Whether a scan's own name is read elsewhere, or at an index that it would capture."""
        (name,) = self.facts.universe.members(scan.args[0])  # type: ignore[arg-type]
        placed = [*at.values(), *(guard.expression for guard in self.guards)]
        return name in at or any(name in free_names(expression) for expression in placed)

    def _push_reduction(self, term: Term, at: dict[str, Affine]) -> Term:
        universe = self.facts.universe
        mask = term.args[0]
        assert isinstance(mask, int)
        bound = universe.members(mask)
        placed = [*at.values(), *(guard.expression for guard in self._about(at))]
        used = frozenset[str]().union(*map(free_names, placed))
        inner = dict(at)
        names = []
        for name in bound:
            if name in used:
                names.append(universe.add(universe.extents[name]))
                inner[name] = var(names[-1])
            else:
                names.append(name)
                inner.pop(name, None)
        children = tuple(self.push(child, inner) for child in term.children)
        fresh = with_children(term, children)
        return Term(term.op, universe.mask(names), *fresh.args[1:])

    def _about(self, at: dict[str, Affine]) -> tuple[Guard, ...]:
        """The guards that decide over indices which others are placed at: no other index leaves
        its extent.
        """
        names = frozenset[str]().union(*map(free_names, at.values()))
        return tuple(guard for guard in self.guards if names & free_names(guard.expression))

    def read(self, term: Term, at: dict[str, Affine], more: tuple[Guard, ...]) -> Term:
        """A read or a gather with more guards."""
        read, extents = term.args[0], self.facts.universe.extents
        assert isinstance(read, Read)
        children = tuple(self.push(child, at) for child in term.children)
        guards = tuple(
            replace(guard, expression=substitute(guard.expression, at, extents))
            for guard in read.guards
        )
        address = substitute(read.address, at, extents)
        return Term(term.op, replace(read, address=address, guards=guards + more), *children)
