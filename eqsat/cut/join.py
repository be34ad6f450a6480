"""Join kernels that share what they read, where the cost model says that one launch is cheaper."""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from eqsat.cut.cuts import Cut
from eqsat.cut.moved import in_place, stored_where_read
from eqsat.graph.index import var
from eqsat.terms.algebra import (
    SCATTERS,
    Facts,
    Read,
    Renaming,
    Term,
    post_order,
    rebuild,
    substituted,
    with_children,
)
from eqsat.terms.form import Stored
from eqsat.terms.reindex import push

Group = tuple[Stored, ...]


def read_buffers(kernel: Group) -> list[str]:
    """Names of the buffers that a kernel reads, in order of first use."""
    names: dict[str, None] = {}
    for term in post_order(one.term for one in kernel):
        if term.op in {"read", "gather"}:
            read = term.args[0]
            assert isinstance(read, Read)
            names[read.buffer] = None
    return list(names)


def without_copies(cuts: Mapping[int, Cut], extents: Mapping[str, int]) -> list[Stored]:
    """What is stored; a value that an output merely repeats lies in that output's buffer alone."""
    own = {cut.stored.buffer: cut.stored for number, cut in cuts.items() if number >= 0}
    instead: dict[str, str] = {}
    kept: list[Stored] = []
    for number, cut in cuts.items():
        one = cut.stored
        read = one.term.args[0] if one.term.op == "read" else None
        same = own.get(read.buffer) if isinstance(read, Read) and number < 0 else None
        if same and same.buffer not in instead and _repeats(one, same, extents):
            instead[same.buffer] = one.buffer
        else:
            kept.append(one)

    return [
        replace(
            one,
            buffer=instead.get(one.buffer, one.buffer),
            term=read_from_others(one.term, instead),
        )
        for one in kept
    ]


def read_from_others(term: Term, instead: Mapping[str, str]) -> Term:
    """The term with other buffers in place of some that it reads."""

    def change(sub: Term, children: tuple[Term, ...]) -> Term:
        read = sub.args[0] if sub.op in {"read", "gather"} else None
        if isinstance(read, Read) and read.buffer in instead:
            return Term(sub.op, replace(read, buffer=instead[read.buffer]), *children)
        return with_children(sub, children)

    return rebuild(term, change) if instead else term


def _repeats(one: Stored, other: Stored, extents: Mapping[str, int]) -> bool:
    """Whether a value that reads another one is that, and stored as it is."""
    same = other.read_back(extents)
    alike = replace(one, buffer=other.buffer, term=other.term) == other
    return alike and one.term == same and other.term.op not in SCATTERS


def in_order(kernels: Sequence[Group]) -> list[Group]:
    """Producers before consumers."""
    made = {one.buffer: kernel for kernel in kernels for one in kernel}
    done: set[str] = set()
    ordered: list[Group] = []

    def place(kernel: Group) -> None:
        if kernel[0].buffer in done:
            return
        done.add(kernel[0].buffer)
        for buffer in read_buffers(kernel):
            if buffer in made:
                place(made[buffer])
        ordered.append(kernel)

    for kernel in kernels:
        place(kernel)
    return ordered


@dataclass(frozen=True, eq=False)
class _Node:
    """A kernel with its price and the buffers that it reads; equal to itself alone."""

    kernel: Group
    seconds: float
    reads: frozenset[str]


Pair = tuple[_Node, _Node]


def join(
    kernels: Sequence[Group],
    facts: Facts,
    price: Callable[[Group], float],
    wanted: Collection[str] = (),
) -> list[Group]:
    """The kernels with pairs joined, the most profitable first, until no pair gains.

    Two that read the same, or one that reads what another stores: it then computes it, and stores
    it only where others read it too, or it is `wanted`.
    """
    work = _Joining(facts, price, frozenset(wanted))
    current = [work.node(kernel) for kernel in kernels]
    while (best := work.best(current)) is not None:
        (a, b), both = best
        current = _ordered([both, *(node for node in current if node not in (a, b))])
    return [node.kernel for node in current]


def as_joined(separate: Sequence[Group], joined: Sequence[Group], facts: Facts) -> Group:
    """The values that kernels store, each as before joining, but with what its kernel computes in
    place of what it read.
    """
    own = {one.buffer: one for kernel in separate for one in kernel}
    found: list[Stored] = []
    for one in (one for kernel in joined for one in kernel):
        value, kept = own[one.buffer], {*read_buffers((one,))}
        while gone := own.keys() & {*read_buffers((value,))} - kept:
            value = replace(value, term=in_place(value.term, map(own.__getitem__, gone), facts))
        found.append(value)
    return tuple(found)


def _ordered(nodes: Sequence[_Node]) -> list[_Node]:
    """Producers before consumers."""
    named = {node.kernel[0].buffer: node for node in nodes}
    return [named[kernel[0].buffer] for kernel in in_order([node.kernel for node in nodes])]


class _Joining:
    """What joining two kernels gains. A pair is priced only while it may be the best one.

    `most` bounds the gains: by the cheaper of the two kernels, and for a kernel just joined by what
    its halves would have gained.
    """

    def __init__(
        self, facts: Facts, price: Callable[[Group], float], wanted: frozenset[str]
    ) -> None:
        self.facts, self.price, self.wanted = facts, price, wanted
        self.most: dict[Pair, float] = {}
        self.joined: dict[Pair, _Node] = {}

    def node(self, kernel: Group) -> _Node:
        """A kernel, priced."""
        return _Node(kernel, self.price(kernel), frozenset(read_buffers(kernel)))

    def best(self, current: Sequence[_Node]) -> tuple[Pair, _Node] | None:
        """The pair that gains most, and both as one kernel; None where none gains."""
        below = _ancestors(current)
        pairs = [
            (a, b)
            for a, b in itertools.combinations(current, 2)
            if (a.reads & b.reads and a not in below[b] and b not in below[a])
            or (a in below[b] and not any(a in below[c] for c in below[b]))
        ]
        most, best = 0.0, None
        for pair in sorted(pairs, key=lambda pair: -self._bound(pair)):
            if self._bound(pair) <= most:
                break
            gain = self._gain(pair, current)
            if gain > most:
                most, best = gain, pair
        if best is None:
            return None
        self._inherit(best, current)
        return best, self.joined[best]

    def _bound(self, pair: Pair) -> float:
        """At least what the pair gains; the gain where it is known."""
        a, b = pair
        return self.most.get(pair, self.most.get((b, a), min(a.seconds, b.seconds)))

    def _gain(self, pair: Pair, current: Sequence[_Node]) -> float:
        a, b = pair
        if pair not in self.joined:
            others = (node.reads for node in current if node not in pair)
            both = self._both(a, b, self.wanted.union(*others))
            if both is None:
                self.most[pair] = 0.0
                return 0.0
            node = self.joined[pair] = _Node(both, self.price(both), frozenset(read_buffers(both)))
            self.most[pair] = a.seconds + b.seconds - node.seconds
        return self.most[pair]

    def _both(self, a: _Node, b: _Node, wanted: frozenset[str]) -> Group | None:
        """What both store; None where one reads of the other's values else than it stores."""
        made = {one.buffer: one for one in a.kernel}
        if not b.reads & made.keys():
            return (*a.kernel, *_aligned(a.kernel, b.kernel, self.facts))
        extents, dtype = self.facts.universe.extents, self.facts.dtype
        whole = [one for one in a.kernel if dtype(one.term) == one.dtype]
        instead = {one.read_back(extents): one.term for one in whole}
        inner = tuple(replace(one, term=substituted(one.term, instead)) for one in b.kernel)
        if {*read_buffers(inner)} & made.keys():
            moved = stored_where_read({one.buffer: one for one in whole}, b.kernel, self.facts)
            if moved is None or {*read_buffers(moved)} & made.keys():
                return None
            inner = moved
        kept = (one for one in a.kernel if one.buffer in wanted or one.buffer not in b.reads)
        return (*kept, *inner)

    def _inherit(self, pair: Pair, current: Sequence[_Node]) -> None:
        """Bounds for the kernel that the pair becomes."""
        both = self.joined[pair]
        for other in current:
            if other not in pair:
                parts = (max(self._bound((half, other)), 0.0) for half in pair)
                own = min(both.seconds, other.seconds)
                self.most[both, other] = self.most[other, both] = min(sum(parts), own)


def _ancestors(nodes: Sequence[_Node]) -> dict[_Node, set[_Node]]:
    """For each kernel the kernels that must run before it."""
    made = {one.buffer: node for node in nodes for one in node.kernel}
    below: dict[_Node, set[_Node]] = {}
    for node in nodes:  # in order: producers first
        own: set[_Node] = set()
        for buffer in node.reads & made.keys():
            own |= {made[buffer]} | below[made[buffer]]
        below[node] = own
    return below


def _reads(kernel: Group) -> set[Term]:
    return {t for t in post_order(one.term for one in kernel) if t.op == "read"}


def _aligned(a: Group, b: Group, facts: Facts) -> Group:
    """b with its own output names renamed to those of a where extents agree, to share a grid; but
    for names at which both read the same elements.
    """
    extents = facts.universe.extents
    alike = {*facts.universe.members(reduce(or_, map(facts.free, _reads(a) & _reads(b)), 0))}
    theirs = {name for one in a for name in one.names} | alike
    mine = {name for one in b for name in one.names} | alike
    open_names = list(dict.fromkeys(n for one in a for n in one.names if n not in mine))
    renamed: dict[str, str] = {}
    for name in dict.fromkeys(n for one in b for n in one.names if n not in theirs):
        match = next((n for n in open_names if extents[n] == extents[name]), None)
        if match is not None:
            renamed[name] = match
            open_names.remove(match)
    if not renamed:
        return b
    renaming = Renaming(tuple(renamed), tuple(var(n) for n in renamed.values()))

    def rename(term: Term) -> Term:
        return push(renaming, term, facts)

    return tuple(
        replace(one, term=rename(one.term), names=tuple(renamed.get(n, n) for n in one.names))
        for one in b
    )
