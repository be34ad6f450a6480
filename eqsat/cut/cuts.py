"""What a cut of an e-graph is made of: ways to compute a class, kernels that store one, a plan."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from eqsat.terms.algebra import SCANS, Read, Term, post_order
from eqsat.terms.carry_terms import law_of
from eqsat.terms.form import REDUCING, WEIGHTED, Form, Stored, multiplies_anew

READ = frozenset({"read", "literal"})
ALIKE = 1.01  # times the seconds of another candidate, up to where it is taken for the same
SAME = 1.0001  # the same, where the difference is none
UNFIT = 1.0  # seconds, for a kernel that fits no schedule
MOST_TERMS = 256  # of a kernel, whose search and compilation take as long as it is large
GUARDED = 4  # terms that a read which may have to be left out is worth
MOST_REDUCED = 8  # reductions of a kernel

Chosen = TypeVar("Chosen")


Reductions = frozenset[tuple[object, ...]]
"""Reductions and scans of a kernel: what each does, over which names, of which it has a value; once
more as "computed" where a factor does not come from memory."""


@dataclass(frozen=True)
class PlainPrice:
    """A kernel's seconds by the spec alone; whether reductions are inside others' loops; the points
    of the largest value that it stores.
    """

    seconds: float
    nested: bool
    reductions: Reductions
    points: float

    def times(self, known: Mapping[int, float]) -> float:
        """Times this price that kernels have which are nested, by what is `known` of those with so
        many reductions or fewer.
        """
        found = (times for count, times in known.items() if count <= len(self.reductions))
        return max(found, default=1.0) if self.nested else 1.0


@dataclass(frozen=True)
class Candidate:
    """A way to compute a class without storing it.

    `closure`: the classes that it needs in memory. `ways`: how each class below is had, so that a
    kernel computes none in two ways; what a re-indexing looks at is a value of its own.
    """

    term: Term
    closure: frozenset[int]
    seconds: float
    ways: Mapping[int, Term] = field(default_factory=dict)


@dataclass(frozen=True)
class Cut:
    """A class that a kernel stores, the classes that it needs in memory, and how it has others."""

    number: int
    stored: Stored
    closure: frozenset[int]
    ways: Mapping[int, Term] = field(default_factory=dict)


@dataclass(frozen=True)
class Order:
    """The names of a value as they lay in memory, outermost first, and as they lie instead."""

    before: tuple[str, ...]
    after: tuple[str, ...]


Orders = Mapping[str, Order]
"""By buffer."""


@dataclass(frozen=True)
class Plan:
    """Kernels in order, what each stores; their predicted seconds; the values before joining; those
    which lie otherwise than as the graph's, or as what they are computed of.
    """

    kernels: tuple[tuple[Stored, ...], ...]
    seconds: float
    separate: tuple[Stored, ...] = ()
    orders: Orders = field(default_factory=dict)


def varied(ranked: Sequence[Candidate]) -> list[Candidate]:
    """Candidates in order: of those that need the same classes in memory the best, and the best
    that differs from it.
    """
    alike: dict[frozenset[int], list[Candidate]] = {}
    kept = []
    for candidate in ranked:
        known = alike.setdefault(candidate.closure, [])
        if not known or (len(known) < 2 and candidate.seconds > ALIKE * known[0].seconds):
            known.append(candidate)
            kept.append(candidate)
    return kept


def least(
    candidates: Sequence[Candidate],
    seconds: Callable[[Candidate], float],
    needs: Callable[[Candidate], Any],
) -> Candidate:
    """Of the candidates that are as fast as the best, that which needs least."""
    priced = [(seconds(one), one) for one in candidates]
    most = SAME * min(own for own, _ in priced)
    return min((one for own, one in priced if own <= most), key=needs)


def agree(ways: Sequence[Mapping[int, Term]]) -> bool:
    """Whether no class is had in two ways."""
    return all(
        other.get(number, term) is term or other[number] == term
        for one, other in itertools.combinations(ways, 2)
        for number, term in one.items()
    )


def joins_stored(terms: Iterable[Term]) -> bool:
    """Whether among terms are reads of several values that other kernels store."""
    reads = (term.args[0] for term in terms if term.op == "read")
    return sum(isinstance(read, Read) and read.buffer[0] == "t" for read in reads) > 1


def reductions(term: Term) -> Iterator[Term]:
    """What a kernel reduces to compute a term of what it is made of."""
    if term.op in REDUCING:
        yield term
    if term.op in WEIGHTED and (pivot := f"reduce_{law_of(term).pivot}") in REDUCING:
        yield Term(pivot, term.args[0], term.children[0])


def of_size(found: Mapping[Term, Chosen]) -> dict[Term, Chosen]:
    """Those that are no larger than a kernel is worth searching, emitting and compiling for."""
    kept: dict[Term, Chosen] = {}
    for term, chosen in found.items():
        terms = list(post_order([term]))
        size = sum(GUARDED if _is_guarded(t) else 1 for t in terms)
        if size <= MOST_TERMS and sum(t.op in REDUCING for t in terms) <= MOST_REDUCED:
            kept[term] = chosen
    return kept


def _is_guarded(term: Term) -> bool:
    return term.op == "read" and isinstance(term.args[0], Read) and bool(term.args[0].guards)


def kinds(made: Form) -> Reductions:
    """The reductions and scans of a kernel's form."""
    facts, loops = made.facts, [t for t in made.terms if t.op in REDUCING | SCANS]
    found: set[tuple[object, ...]] = {(t.op, t.args[0], facts.free(t)) for t in loops}
    for t in loops:
        both = made.contraction(t) or (t,) * multiplies_anew(t, facts)
        if any(factor.op not in READ for factor in both):
            found.add(("computed", t.op, t.args[0], facts.free(t)))
    return frozenset(found)
