"""When two terms differ only in where a re-indexing stands, and in the names of bound indices."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

from eqsat.graph.index import Affine, add, const, floordiv, mod, scale, sub, substitute, var
from eqsat.terms.algebra import (
    Atom,
    Facts,
    Read,
    Renaming,
    Term,
    Universe,
    names_of,
    rebuild,
    with_children,
)
from eqsat.terms.form import REDUCING
from eqsat.terms.redundant_conditions import asked_once
from eqsat.terms.reindex import push

Names = Mapping[str, str]


def same_when_pushed(a: Term, b: Term, universe: Universe) -> bool:
    """Whether both are one term once every re-indexing is carried down to the reads, and what a
    `where` asks is not asked again inside it.
    """
    scratch = Universe(list(universe.names), dict(universe.extents))
    left, right = (asked_once(pushed_down(term, scratch), scratch) for term in (a, b))
    return _Comparison(scratch).same(left, right, {}, {})


def pushed_down(term: Term, universe: Universe) -> Term:
    """The term with every re-indexing carried down; fresh names are added to the universe."""
    facts = Facts(universe)

    def change(sub: Term, children: tuple[Term, ...]) -> Term:
        if sub.op == "reindex":
            renaming = sub.args[0]
            assert isinstance(renaming, Renaming)
            return push(renaming, children[0], facts)
        return with_children(sub, children)

    return rebuild(term, change)


class _Comparison:
    """Equality of terms up to a one-to-one renaming of bound indices of equal extents."""

    def __init__(self, universe: Universe) -> None:
        self.universe = universe
        self._same: set[tuple[Term, Term, frozenset[tuple[str, str]]]] = set()

    def same(self, a: Term, b: Term, there: Names, back: Names) -> bool:
        if a is b and all(name == other for name, other in there.items()):
            return True
        key = (a, b, frozenset(there.items()))
        if key in self._same:
            return True
        if a.op != b.op or len(a.args) != len(b.args):
            return False
        if a.op in REDUCING:
            inner = self._bound(a.args[0], b.args[0], there, back)
            if inner is None:
                return False
            there, back = inner
            pairs = zip(a.args[1:], b.args[1:], strict=True)
        else:
            pairs = zip(a.args, b.args, strict=True)
        alike = all(self._same_argument(x, y, there, back) for x, y in pairs)
        if alike:
            self._same.add(key)
        return alike

    def _bound(
        self, a: object, b: object, there: Names, back: Names
    ) -> tuple[dict[str, str], dict[str, str]] | None:
        assert isinstance(a, int) and isinstance(b, int)
        extents = self.universe.extents
        shared = self.universe.members(a & b)
        left, right = self.universe.members(a & ~b), self.universe.members(b & ~a)
        pairs = [*zip(shared, shared, strict=True), *zip(left, right, strict=False)]
        if len(left) != len(right) or any(extents[x] != extents[y] for x, y in pairs):
            return None
        return {**there, **dict(pairs)}, {**back, **{y: x for x, y in pairs}}

    def _same_argument(self, a: Atom | Term, b: Atom | Term, there: Names, back: Names) -> bool:
        if isinstance(a, Term) and isinstance(b, Term):
            return self.same(a, b, there, back)
        if type(a) is not type(b):
            return False
        if isinstance(a, Affine | Read | Renaming):
            assert isinstance(b, Affine | Read | Renaming)
            names = [names_of(x) for x in (a, b)]
            one_to_one = all(back.get(there.get(n, n), there.get(n, n)) == n for n in names[0])
            return one_to_one and self._renamed(a, there) == b
        return repr(a) == repr(b)

    def _renamed(self, atom: Affine | Read | Renaming, there: Names) -> Affine | Read | Renaming:
        extents = self.universe.extents
        place = {name: var(other) for name, other in there.items() if name != other}
        if not place:
            return atom
        if isinstance(atom, Affine):
            return substitute(atom, place, extents)
        guards = tuple(
            replace(guard, expression=substitute(guard.expression, place, extents))
            for guard in atom.guards
        )
        if isinstance(atom, Read):
            address = substitute(atom.address, place, extents)
            return replace(atom, address=address, guards=guards)
        target = tuple(substitute(one, place, extents) for one in atom.target)
        return replace(atom, target=target, guards=guards)


def read_renaming(read: Read, names: Sequence[str], universe: Universe) -> Renaming:
    """The re-indexing under which a row-major buffer over `names` is read."""
    source: list[str] = []
    target: list[Affine] = []
    place = read.address
    for count, name in enumerate(reversed(names), 1):
        digit = place
        if count < len(names):
            digit, place = _digit(place, name, read, universe)
        if digit != var(name):
            source.append(name)
            target.append(digit)
    return Renaming(tuple(source[::-1]), tuple(target[::-1]), read.guards, read.fill)


def _digit(place: Affine, name: str, read: Read, universe: Universe) -> tuple[Affine, Affine]:
    """The remainder and the quotient of a place by the extent of a name, where the read's guards
    hold: the remainder is what one of them keeps below the extent, shifted or mirrored, if the rest
    is a multiple.
    """
    extents = universe.extents
    size = extents[name]
    for guard, sign in product(read.guards, (1, -1)):
        rest = sub(place, scale(guard.expression, sign))
        if any(step % size for _, step in rest.terms):
            continue
        ends = sorted((sign * guard.lower, sign * (guard.upper - 1)))
        shift = rest.constant % size
        shift -= size if ends[1] + shift >= size else 0
        if ends[0] + shift >= 0 and ends[1] + shift < size:
            terms = tuple((atom, step // size) for atom, step in rest.terms)
            digit = add(scale(guard.expression, sign), const(shift))
            return digit, Affine(terms, (rest.constant - shift) // size)
    return mod(place, size, extents), floordiv(place, size, extents)
