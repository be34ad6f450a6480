"""Names that only occur as one: merged, so that kernels have few and long axes; and names that
are walked in groups: split, so that what a group shares is seen.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
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
    unit_names,
    var,
)
from eqsat.layout.needs import VECTOR_BYTES
from eqsat.layout.relayout import is_sliding
from eqsat.terms.algebra import (
    REDUCTIONS,
    SCANS,
    SCATTERS,
    Facts,
    Read,
    Term,
    Universe,
    guarded_names,
    post_order,
    rebuild,
    with_children,
)
from eqsat.terms.form import REDUCING, Form, Stored

BINDING = REDUCING | SCANS | SCATTERS.keys()


def coalesce(stored: tuple[Stored, ...], facts: Facts) -> tuple[tuple[Stored, ...], Facts]:
    """The same values over fewer names, in a universe of their own.

    A name of which an access takes the quotient or the remainder becomes two. What is reduced and
    walks windows from their ends, as the gradient of a convolution does, walks them from where they
    begin. Two names merge where every access walks them as one axis, every stored value has them
    side by side, and every reduction takes both or neither. The number of a page that a gather
    reads and the row in it merge as well, where both are reduced: the page is the quotient.
    """
    stored, facts = _forwards(*_in_groups(stored, facts))
    old = facts.universe
    pages = frozenset(_pages(stored, facts))
    groups = [[name] for name in index_names(stored, facts)]
    merged = True
    while merged:
        merged = False
        for outer in groups:
            inner = next((g for g in groups if _walks_as_one(outer, g, stored, old, pages)), None)
            if inner is not None:
                outer += inner
                groups.remove(inner)
                merged = True
                break
    return as_digits(stored, facts, groups)


def with_few_names(stored: tuple[Stored, ...], facts: Facts) -> tuple[tuple[Stored, ...], Facts]:
    """As `coalesce`, for a price before a schedule is searched for, where memory is read along
    names too short for a vector, or, where none may miss, by groups of a name that share it. The
    values as they are where reduced names would merge and all reads of them are along short ones,
    which come of windows that were copied, or one may miss; and where a re-indexing stands among
    their terms.
    """
    terms = list(post_order(one.term for one in stored))
    if any(term.op == "reindex" for term in terms):
        return stored, facts
    misses = bool(guarded_names(terms))
    if not any(_is_short(term, facts) or (_is_shared(term) and not misses) for term in terms):
        return stored, facts
    merged, fewer = coalesce(stored, facts)
    reduced = _reduced(stored, facts)
    same = len(reduced) == len(_reduced(merged, fewer))
    reads = (t for t in terms if t.op == "read" and _reads_along(t, reduced))
    whole = same or not (misses or all(_is_short(term, facts) for term in reads))
    return (merged, fewer) if whole else (stored, facts)


def _reads_along(term: Term, names: set[str]) -> bool:
    read = term.args[0]
    return isinstance(read, Read) and bool(read.names & names)


def _is_short(term: Term, facts: Facts) -> bool:
    """Whether a read walks memory along a name that has fewer bytes than the widest access."""
    read = term.args[0] if term.op == "read" else None
    if not isinstance(read, Read):
        return False
    sizes = [facts.universe.extents[name] for name in unit_names(read.address)]
    return any(1 < size * read.dtype.itemsize < VECTOR_BYTES for size in sizes)


def _is_shared(term: Term) -> bool:
    """Whether a read takes the quotient of a name, and not where in the group it stands."""
    read = term.args[0] if term.op == "read" else None
    atoms = [atom for atom, _ in read.address.terms] if isinstance(read, Read) else []
    places = {atom.numerator for atom in atoms if isinstance(atom, Mod)}
    return any(isinstance(atom, FloorDiv) and atom.numerator not in places for atom in atoms)


def _reduced(stored: Sequence[Stored], facts: Facts) -> set[str]:
    terms = post_order(one.term for one in stored)
    masks = [t.args[0] for t in terms if t.op in BINDING]
    return {name for mask in masks for name in facts.universe.members(mask)}  # type: ignore[arg-type]


def as_digits(
    stored: tuple[Stored, ...], facts: Facts, groups: Iterable[Sequence[str]]
) -> tuple[tuple[Stored, ...], Facts]:
    """The same values over a name for each group, whose members are the digits of it, the highest
    first. Every name is in one group, of which each value and reduction takes all or none.
    """
    old, new = facts.universe, Universe()
    groups = [tuple(group) for group in groups]
    place: dict[str, Affine] = {}
    members: dict[str, tuple[str, ...]] = {}
    for group in groups:
        fused = new.add(prod(old.extents[name] for name in group))
        stride = 1
        for name in reversed(group):
            digit = floordiv(var(fused), stride, new.extents)
            place[name] = mod(digit, old.extents[name], new.extents)
            members[name] = (fused,)
            stride *= old.extents[name]
    found = (one if _in_order(one.names, groups) else by_address(one, old) for one in stored)
    return tuple(renamed(one, place, members, old, new) for one in found), Facts(new)


def taken_whole(made: Form, names: tuple[str, ...]) -> bool:
    """Whether each stored value, reduction and scan takes all of these names or none."""
    universe = made.facts.universe
    masks = [universe.mask(one.names) for one in made.stored]
    masks += [t.args[0] for t in made.terms if t.op in BINDING]  # type: ignore[misc]
    own = universe.mask(names)
    return all(mask & own in (0, own) for mask in masks)


def by_address(one: Stored, universe: Universe) -> Stored:
    """The stored value, each element where its address says and not by the order of its names."""
    return replace(one, at=one.address(universe.extents), pitch=0)


def _in_order(names: tuple[str, ...], groups: Sequence[tuple[str, ...]]) -> bool:
    """Whether the names are members of groups as these have them, side by side."""
    whole = [group for group in groups if group[0] in names]
    whole.sort(key=lambda group: names.index(group[0]))
    return names == sum(whole, ())


def _in_groups(stored: tuple[Stored, ...], facts: Facts) -> tuple[tuple[Stored, ...], Facts]:
    """Each name n of which an access takes n // size or n % size as two: n = size * group + member,
    where the extent is a multiple of the size.
    """
    old = facts.universe
    sizes = {n: size for n, size in _quotients(stored) if old.extents[n] % size == 0}
    stays = {n for one in stored for t in post_order([one.term]) for n in _bound(t, old)}
    sizes = {n: size for n, size in sizes.items() if n not in stays}
    if not sizes:
        return stored, facts
    stored, facts, _ = in_groups(stored, facts, sizes)
    return stored, facts


def in_groups(
    stored: tuple[Stored, ...], facts: Facts, sizes: Mapping[str, int]
) -> tuple[tuple[Stored, ...], Facts, dict[str, tuple[str, ...]]]:
    """Each name that has a size, of which its extent is a multiple, as two: n = size * group +
    member; and what each name is made of.
    """
    old, new = facts.universe, Universe()
    place: dict[str, Affine] = {}
    members: dict[str, tuple[str, ...]] = {}
    for name in index_names(stored, facts):
        size = sizes.get(name, 1)
        parts = (new.add(old.extents[name] // size), *((new.add(size),) if size > 1 else ()))
        place[name] = add(scale(var(parts[0]), size), *map(var, parts[1:]))
        members[name] = parts
    stored = tuple(_placed(one, sizes, old) for one in stored)
    return tuple(renamed(one, place, members, old, new) for one in stored), Facts(new), members


def _forwards(stored: tuple[Stored, ...], facts: Facts) -> tuple[tuple[Stored, ...], Facts]:
    """Each name that is reduced, in whatever order, and walks windows backwards alone, as how many
    points remain.
    """
    old = facts.universe
    signs: dict[str, set[bool]] = {}
    reduced, others = set[str](), set[str]()
    for term in post_order(one.term for one in stored):
        for expression, is_address in _expressions(term):
            names = [(name, by > 0) for name, by in expression.terms if isinstance(name, str)]
            if is_address or len(names) < 2:
                continue
            overlap = is_sliding(expression, old.extents)
            for name, along in names:
                if overlap or not along:  # forwards is as good where places are apart
                    signs.setdefault(name, set()).add(along)
        kind = reduced if term.op in REDUCTIONS else others
        kind.update(_bound(term, old))
    others |= {name for one in stored for name in one.names}
    backwards = {n for n in reduced - others if signs.get(n) == {False}}
    if not backwards:
        return stored, facts
    new = Universe()
    place, members = dict[str, Affine](), dict[str, tuple[str, ...]]()
    for name in index_names(stored, facts):
        own = new.add(old.extents[name])
        members[name] = (own,)
        last = const(old.extents[name] - 1)
        place[name] = sub(last, var(own)) if name in backwards else var(own)
    return tuple(renamed(one, place, members, old, new) for one in stored), Facts(new)


def _placed(one: Stored, sizes: Mapping[str, int], universe: Universe) -> Stored:
    """A value whose rows lie a pitch apart, by its address where their name becomes two."""
    if not one.pitch or one.names[-1] not in sizes:
        return one
    return by_address(one, universe)


def _quotients(stored: tuple[Stored, ...]) -> Iterator[tuple[str, int]]:
    """Names and what they are divided by in the addresses of reads."""
    for term in post_order(one.term for one in stored):
        for expression, is_address in _expressions(term):
            for atom, _ in expression.terms if is_address else ():
                if isinstance(atom, FloorDiv | Mod) and atom.numerator.terms:
                    ((name, by), *more) = atom.numerator.terms
                    if isinstance(name, str) and by == 1 and not more and not _shifted(atom):
                        yield name, atom.divisor


def _shifted(atom: FloorDiv | Mod) -> bool:
    """Whether a remainder is of more than a name: groups of it start elsewhere."""
    return isinstance(atom, Mod) and atom.numerator.constant != 0


def _bound(term: Term, universe: Universe) -> tuple[str, ...]:
    """The names that a term reduces or scans over."""
    if term.op in BINDING:
        return universe.members(term.args[0])  # type: ignore[arg-type]
    return ()


def index_names(stored: tuple[Stored, ...], facts: Facts) -> list[str]:
    """Names of stored values in their order, then reduced ones."""
    names = dict.fromkeys(name for one in stored for name in one.names)
    for term in post_order(one.term for one in stored):
        mask = facts.free(term)
        if term.op in BINDING:
            mask |= term.args[0]  # type: ignore[operator]
        names |= dict.fromkeys(facts.universe.members(mask))
    return list(names)


def _walks_as_one(
    outer: list[str],
    inner: list[str],
    stored: tuple[Stored, ...],
    universe: Universe,
    pages: frozenset[tuple[str, str]],
) -> bool:
    """Whether `inner` may be appended to `outer`."""
    if outer is inner:
        return False
    last, first = outer[-1], inner[0]
    paged = len(outer) == len(inner) == 1 and (last, first) in pages
    for one in stored:
        where = [one.names.index(name) if name in one.names else -1 for name in (last, first)]
        if where != [-1, -1] and (min(where) < 0 or where[1] != where[0] + 1):
            return False
        if one.pitch and first == one.names[-1]:
            return False
        for expression in _places(one):
            if not _as_one(expression, outer, inner, universe):
                return False
    for term in post_order(one.term for one in stored):
        if term.op in BINDING:
            taken = {name in universe.members(term.args[0]) for name in (last, first)}  # type: ignore[arg-type]
            if len(taken) > 1 or (term.op in SCANS and taken == {True}):
                return False
        for expression, is_address in _expressions(term):
            both = {last, first} <= free_names(expression)
            if paged and both != is_address:
                continue  # a position of both is one of their product; else a quotient
            if not _as_one(expression, outer, inner, universe):
                return False
    return True


def _pages(stored: tuple[Stored, ...], facts: Facts) -> Iterator[tuple[str, str]]:
    """Names of a gather's index beside names of the rows that lie there, both of them reduced."""
    universe = facts.universe
    terms = list(post_order(one.term for one in stored))
    bound = {name for term in terms for name in _bound(term, universe) if term.op in REDUCING}
    for term in terms:
        read = term.args[0]
        if term.op == "gather" and isinstance(read, Read):
            moved = {*universe.members(facts.free(term.children[0]))} - read.names
            rows = {str(atom) for atom, stride in read.address.terms if stride != 1}
            rows -= {*universe.members(facts.free(term.children[0]))}
            yield from product(sorted(moved & bound), sorted(rows & bound))


def _places(one: Stored) -> Iterator[Affine]:
    """Index expressions of where a value is stored."""
    if one.at is not None:
        yield one.at
    yield from (guard.expression for guard in one.guards)


def _expressions(term: Term) -> Iterator[tuple[Affine, bool]]:
    """Index expressions of a term; whether each is an address."""
    if term.op == "position":
        assert isinstance(term.args[0], Affine)
        yield term.args[0], False
    if term.op in {"read", "gather"}:
        read = term.args[0]
        assert isinstance(read, Read)
        yield read.address, True
        for guard in read.guards:
            yield guard.expression, False


def _as_one(expression: Affine, outer: list[str], inner: list[str], universe: Universe) -> bool:
    names = free_names(expression) & {outer[-1], inner[0]}
    if not names:
        return True
    if len(names) < 2:
        return False
    strides = dict(expression.terms)
    if outer[-1] not in strides or inner[0] not in strides:
        return False
    step = universe.extents[inner[0]] * strides[inner[0]]
    hidden = any(not isinstance(a, str) and names & free_names(a.numerator) for a in strides)
    return strides[outer[-1]] == step and not hidden


def renamed(
    one: Stored,
    place: dict[str, Affine],
    members: dict[str, tuple[str, ...]],
    old: Universe,
    new: Universe,
) -> Stored:
    """A stored value in the names of another universe: for each name its place there, and those
    that it is made of.
    """

    def at(expression: Affine) -> Affine:
        return substitute(expression, place, new.extents)

    def change(term: Term, children: tuple[Term, ...]) -> Term:
        args = with_children(term, children).args
        if term.op in {"read", "gather"}:
            read = term.args[0]
            assert isinstance(read, Read)
            guards = tuple(replace(g, expression=at(g.expression)) for g in read.guards)
            args = (replace(read, address=at(read.address), guards=guards), *args[1:])
        elif term.op == "position":
            assert isinstance(term.args[0], Affine)
            args = (at(term.args[0]),)
        elif term.op in BINDING:
            names = {m for name in old.members(term.args[0]) for m in members[name]}  # type: ignore[arg-type]
            args = (new.mask(names), *args[1:])
        return Term(term.op, *args)

    names = tuple(dict.fromkeys(m for name in one.names for m in members[name]))
    own = None if one.at is None else at(one.at)
    guards = tuple(replace(g, expression=at(g.expression)) for g in one.guards)
    return replace(one, term=rebuild(one.term, change), names=names, at=own, guards=guards)
