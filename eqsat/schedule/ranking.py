"""The bodies of a kernel under its schedules, by predicted time."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from eqsat.layout.prepare import Preparation, copies, used
from eqsat.price.priced import Price
from eqsat.price.pricer import Pricer
from eqsat.price.siblings import settle_operations, settled_alike
from eqsat.schedule.choice import Alike, Choice, Opening, opening
from eqsat.schedule.menu import least_seconds
from eqsat.schedule.split_scans import divide_scans
from eqsat.terms.algebra import Facts, Term
from eqsat.terms.form import WEIGHTED, Form, Stored, form
from eqsat.terms.scans import without_contractions

MOST_RANKED = 48  # schedules of a body that differ in sizes alone
MOST_OF_TILES = 8  # of these that have the same tiles
FAR = 4.0  # times the seconds of the best: such a body is not looked at in parts


@dataclass(frozen=True)
class Ranked:
    """A body under a choice. `seconds`: of the kernel of its opening; `before`: what it reads that
    must be prepared; `rest`: seconds of what comes before and after it.
    """

    seconds: float
    bottleneck: str
    body: Form
    choice: Choice
    opening: Opening
    rest: float = 0.0
    operations: Mapping[Term, str] = field(default_factory=dict)
    before: tuple[Preparation, ...] = ()

    def settled(self) -> "Ranked":
        """With the operations that suit the tile."""
        if not self.operations:
            return self
        made = settle_operations(self.opening.made, self.operations)
        body = settled_alike(self.body, self.opening.made, self.operations)
        return replace(self, body=body, opening=replace(self.opening, made=made), operations={})

    @property
    def sizes(self) -> tuple[object, ...]:
        """What tells it from those that differ in stages, or in how values are computed, alone."""
        return (*self._tile, self.choice.shared, self.choice.last_parts)

    @property
    def held(self) -> tuple[object, ...]:
        """What decides over registers: any number of stages in shared memory takes the same, and
        blocks that copy for each other, or take parts of tiles, take what each would alone.
        """
        return (self.body, self._tile, self.choice.memory)

    @property
    def cut(self) -> tuple[object, ...]:
        """What decides whether a target has code for it, whatever threads and stages there are."""
        return (self.body, tuple(self.choice.tiles.items()), tuple(self.choice.chunks.items()))

    @property
    def shared(self) -> tuple[object, ...]:
        """What decides whether blocks have something to copy for each other."""
        return (self.body, tuple(self.choice.tiles.items()), self.choice.shared)

    @property
    def _tile(self) -> tuple[object, ...]:
        choice = self.choice
        tiles, chunks = tuple(choice.tiles.items()), tuple(choice.chunks.items())
        return (tiles, chunks, choice.threads, choice.parts, choice.cluster)

    @property
    def total(self) -> float:
        """Predicted seconds of everything."""
        return self.seconds + self.rest


@dataclass(frozen=True)
class Offer:
    """A body under choices that are alike, with its prices; `places`: of the choices on offer among
    these, which differ in sizes alone; `spent`: seconds before and after.
    """

    body: Form
    choices: tuple[Choice, ...]
    places: NDArray[np.intp]
    opening: Opening
    price: Price
    spent: float
    before: tuple[Preparation, ...]

    @property
    def least(self) -> float:
        """The fewest seconds among its choices; infinite where none is feasible."""
        return float(self.price.seconds[self.places].min()) + self.spent

    @property
    def multiplies(self) -> bool:
        """Whether operations of the spec, or threads, compute products of shared factors."""
        return bool(self.body.operations) or any(t.op == "contract" for t in self.body.terms)

    def ranked(self, index: int) -> Ranked:
        """The body under one of the choices."""
        seconds, why = float(self.price.seconds[index]), self.price.bottleneck(index)
        operations = self.price.operations(index)
        return Ranked(
            seconds, why, self.body, self.choices[index], self.opening,
            self.spent, operations, self.before,
        )  # fmt: skip


def rank(offers: Sequence[Offer]) -> tuple[list[Ranked], set[str]]:
    """Feasible bodies and schedules, the cheapest first; and what the infeasible lack."""
    ranked: list[Ranked] = []
    refused: set[str] = set()
    for one in offers:
        refused |= {reason for reason, bad in one.price.refused.items() if bad.any()}
        ranked += map(one.ranked, _best(one))
    ranked.sort(key=lambda one: one.total)
    return ranked, refused


def _best(one: Offer) -> Iterator[int]:
    """The cheapest feasible choices, not too many of them of the same tiles."""
    found = 0
    alike: Counter[tuple[int, ...]] = Counter()
    seconds = one.price.seconds[one.places]
    for index in one.places[np.argsort(seconds, kind="stable")]:
        if found == MOST_RANKED or not np.isfinite(one.price.seconds[index]):
            return
        tiles = tuple(one.choices[index].tiles.values())
        alike[tiles] += 1
        if alike[tiles] <= MOST_OF_TILES:
            found += 1
            yield int(index)


def drawn(offers: Sequence[Offer], seed: int) -> Iterator[Ranked]:
    """Every feasible body and schedule in random order, whatever its price."""
    feasible = [one.places[np.isfinite(one.price.seconds[one.places])] for one in offers]
    ends = np.cumsum([len(own) for own in feasible])
    for at in np.random.default_rng(seed).permutation(ends[-1] if len(ends) else 0):
        place = int(np.searchsorted(ends, at, side="right"))
        first = int(ends[place]) - len(feasible[place])
        yield offers[place].ranked(int(feasible[place][at - first]))


def offers(
    name: str,
    bodies: list[tuple[Stored, ...]],
    groups: list[Alike],
    facts: Facts,
    pricer: Pricer,
    ready: tuple[Preparation, ...] = (),
    every: bool = True,
) -> Iterator[Offer]:
    """The prices of all bodies and schedules that go together; unless `every` one is asked for,
    none in parts of a body than which others are far better as a whole.
    """
    able = [one for body in bodies if (one := _able(body, facts, pricer, ready)) is not None]
    best = dict.fromkeys(able, np.inf)
    in_parts = [group for group in groups if group.parts is not None]
    for alike in ([group for group in groups if group.parts is None], in_parts):
        for group in alike:
            for one in able:
                for offer in one.offers(group, name, pricer):
                    best[one] = min(best[one], offer.least)
                    yield offer
        limit = np.inf if every else FAR * min(best.values(), default=0.0)
        able = [one for one in able if best[one] <= limit or best[one] == np.inf]


@dataclass(eq=False)
class _Able:
    """A body that a kernel can have. `ahead`: seconds of what is prepared for it; `opened`: the
    kernels with which its divisions begin.
    """

    shaped: Form
    before: tuple[Preparation, ...]
    ahead: float
    opened: dict[tuple[str, int] | None, tuple[Opening, float] | None] = field(default_factory=dict)

    def offers(self, group: Alike, name: str, pricer: Pricer) -> Iterator[Offer]:
        """Its prices under choices that are alike."""
        shaped, parts = self.shaped, group.parts
        if not {*group.streamed} <= {*shaped.grid, *shaped.reduced} - shaped.held:
            for fewer in group.apart if len(group.apart) > 1 else ():
                yield from self.offers(fewer, name, pricer)
            return
        if parts not in self.opened:
            self.opened[parts] = _opening(shaped, parts, name, pricer, self.before)
        if (opened := self.opened[parts]) is None:
            return
        first, rest = opened
        price, spent = group.price(first, pricer), self.ahead + rest
        for places in group.together:
            yield Offer(shaped, group.choices, places, first, price, spent, self.before)


def _able(
    body: tuple[Stored, ...], facts: Facts, pricer: Pricer, ready: tuple[Preparation, ...]
) -> _Able | None:
    """What a kernel of the body needs; None where none can be."""
    shaped = form(body, facts)
    if shaped.stepped:
        shaped = form(_stepwise(body, shaped), facts)
    if any(t.op in WEIGHTED and t not in shaped.phase for t in shaped.terms):
        return None  # inside another loop's body the weights are held, not carried
    before = used(ready, body)
    names = {*shaped.operations.values()}
    if not all(one.suits(names) for one in before):
        return None  # prepared for an operation that it does not use
    ahead = sum(preparation_seconds(one, facts, pricer) for one in copies(before))
    return _Able(shaped, before, ahead)


def _stepwise(body: tuple[Stored, ...], shaped: Form) -> tuple[Stored, ...]:
    """The body, products that change from step to step of a scan summed as any other values."""
    along, facts = shaped.steps.along, shaped.facts
    return tuple(replace(one, term=without_contractions(one.term, along, facts)) for one in body)


def preparation_seconds(one: Preparation, facts: Facts, pricer: Pricer) -> float:
    """About how long a kernel takes that prepares a factor."""
    share = pricer.share_of(stored.term for stored in one.stored)
    return share * least_seconds(form(one.stored, facts), pricer)


def _opening(
    shaped: Form,
    parts: tuple[str, int] | None,
    name: str,
    pricer: Pricer,
    before: tuple[Preparation, ...],
) -> tuple[Opening, float] | None:
    """What the first kernel computes, and about how long what follows it takes; None where products
    of what is prepared are left to that.
    """
    first = opening(shaped, parts, name)
    if first is None or first.division is None:
        return None if first is None else (first, 0.0)
    if used(before, first.division.rest):
        return None
    rest = form(first.division.rest, first.division.rest_facts)
    seconds = 0.0
    if rest.steps.inner:  # a kernel of its own, before what remains
        (inner,) = rest.facts.universe.members(rest.steps.inner)
        between = divide_scans(rest, inner, 1, name)
        assert between is not None
        seconds = least_seconds(form(between.first, between.first_facts), pricer, clusters=False)
        rest = form(between.rest, between.rest_facts)
    # A cluster that holds what is left to do would hold all of it: no division then.
    return first, seconds + least_seconds(rest, pricer, clusters=False)
