"""The second search: one region's kernels as terms of a small e-graph, and the cheapest of them.

It starts from unfused values under an empty schedule and saturates under the fusion, tile,
stage and substitute rules; every complete schedule is then priced.
"""

import heapq
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from eqsat.errors import SearchError, SpecError
from eqsat.kernel.ir import Buffer, Kernel
from eqsat.layout.coalesce import coalesce
from eqsat.layout.prepare import Preparation, allowed_preparations, copies, prepared_rows, started
from eqsat.lower.lowering import JOINED, lower
from eqsat.price.partial_sums import rounded_facts
from eqsat.price.pricer import Pricer
from eqsat.price.siblings import representative
from eqsat.rule import SCHEDULING, Rule, applicable
from eqsat.saturate.egglog_text import (
    constructor,
    declarations,
    rule_lines,
    seed,
    signatures,
    subset_points,
    table_for,
)
from eqsat.saturate.saturation import Limits, SearchWarning, SearchWorker
from eqsat.schedule.bodies import bodies_of, body_rules
from eqsat.schedule.choice import Choice, alike, constrained, decode_choice
from eqsat.schedule.explored import Explored, explored
from eqsat.schedule.facts import schedule_facts
from eqsat.schedule.menu import schedule_menus
from eqsat.schedule.parted import in_two, operation_by_operation
from eqsat.schedule.placed import placed
from eqsat.schedule.ranking import Offer, Ranked, drawn, offers, rank
from eqsat.schedule.recast import FOR_PRODUCTS, recasts
from eqsat.schedule.reduction_parts import Division
from eqsat.schedule.unfused import unfused
from eqsat.schedule.windows import places_of
from eqsat.specs import ParallelProcessingUnit
from eqsat.terms.algebra import WEIGHTED, Facts, post_order
from eqsat.terms.form import Form, Stored, form

MOST_OF_SIZES = 2  # kernels of the same tiles and threads
FAR = 1.5  # times the best: another body that is worth less than more of the same
MOST_LOWERED = 60  # schedules, cheapest first, that are lowered and do not fit
FEW = 3  # of each other body besides, where none of those fits
MOST_DRAWN = 40  # times as many schedules as are drawn: most may not fit
MOST_JOINED = 2  # divisions, cheapest first, whose joins are searched for; half of a join's own
UNSAID = "what the target can express"  # a target's word on a kernel that it has no code for
LEAST_LOWERED = 12  # of these the part of one body, so that no operation keeps others from a try


@dataclass(frozen=True)
class Search:
    """What a search works with: rules, spec, the target's operations, limits, a worker.

    `misfit` is the target's word on what a kernel takes too much of. `candidates`: how many of the
    best kernels to keep for each region; `drawn`: how many more to draw at random, by `seed`, from
    all legal ones. `grid_dim` and `block_dim`, where given, are the number of
    tiles and the threads of a tile that every kernel must have. `precision`: what the rules may
    round; `float32_products`: how many products operations compute for one of float32 factors.
    """

    rules: tuple[Rule, ...]
    spec: ParallelProcessingUnit
    operations: frozenset[str]
    worker: SearchWorker
    limits: Limits
    misfit: Callable[[Kernel, ParallelProcessingUnit], str] = lambda kernel, spec: ""
    candidates: int = 1
    drawn: int = 0
    seed: int = 0
    grid_dim: int | None = None
    block_dim: int | None = None
    precision: str = "default"
    float32_products: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Chosen:
    """Where a kernel came from: the values that were asked for, as fused, and their schedule.

    `body` has the names of `coalesce(stored, facts)`, `recast` where that says how.
    """

    stored: tuple[Stored, ...]
    facts: Facts
    body: tuple[Stored, ...]
    choice: Choice
    recast: str = ""


@dataclass(frozen=True)
class Predicted:
    """A kernel with its predicted seconds and the largest part of them.

    `followers`: how many kernels after it finish what it begins. `alternatives`: the next best
    kernels for the same values, each with its followers. `chosen` is known where the kernel was
    just searched for, not where it comes from the cache. `drawn`: at random, not for its price.
    `share` is the part of its seconds that counts for each run.
    """

    kernel: Kernel
    seconds: float
    bottleneck: str
    followers: int = 0
    alternatives: tuple[tuple["Predicted", ...], ...] = ()
    chosen: Chosen | None = None
    drawn: bool = False
    share: float = 1.0

    @property
    def per_run(self) -> float:
        """The seconds that it adds to each run."""
        return self.seconds * self.share

    def each(self, change: Callable[["Predicted"], "Predicted"]) -> "Predicted":
        """With its alternatives, the kernels changed one by one."""
        others = tuple(tuple(part.each(change) for part in other) for other in self.alternatives)
        return replace(change(self), alternatives=others)


def schedule_region(
    name: str,
    stored: tuple[Stored, ...],
    facts: Facts,
    pricer: Pricer,
    buffers: dict[str, Buffer],
    search: Search,
    whole: bool = False,
) -> list[Predicted]:
    """The cheapest kernels for the values, found by rewriting the unfused ones.

    One kernel, unless a missing fusion rule leaves values that must touch memory; their buffers
    are added to `buffers`. Raises SpecError when no schedule fits the spec; for a region that must
    stay whole also where several kernels would do.
    """
    given, before = stored, facts
    stored, facts = coalesce(stored, facts)
    made = form(stored, facts)
    offered = _offers(name, made, pricer, search)
    if offered is None:
        each = operation_by_operation(name, made, buffers)
        return [p for part in each for p in schedule_region(*part, facts, pricer, buffers, search)]
    forms = {made.facts: ""}
    if search.grid_dim is None and search.block_dim is None:
        for how, other in recasts(stored, facts, pricer):
            forms[other.facts] = how
            found = _offers(name, other, pricer, search) or []
            offered += [one for one in found if one.multiplies or how not in FOR_PRODUCTS]
    ranked, refused = rank(offered)
    work = _Choosing(name, (given, before), forms, pricer, buffers, search, refused)
    chosen = work.run(ranked, drawn(offered, search.seed) if search.drawn else iter(()))
    if chosen:
        return chosen
    one_each = [(one,) for one in stored] if len(stored) > 1 else []
    parts = [] if whole else one_each or in_two(name, made, buffers)
    if not parts:
        raise SpecError(
            f"no schedule of {name} fits {search.spec.name}: each takes more of "
            f"{', '.join(sorted(refused))} than the spec allows. Use a spec with more, or split "
            f"the program."
        )
    return [
        predicted
        for number, part in enumerate(parts)
        for predicted in schedule_region(f"{name}_{number}", part, facts, pricer, buffers, search)
    ]


def _offers(name: str, made: Form, pricer: Pricer, search: Search) -> list[Offer] | None:
    """The prices of all kernels for a form that rewriting finds; None where no rule fuses it."""
    ready = _preparations(made, search)
    pricer.sizes |= {one.buffer.name: one.buffer.bytes for one in ready}
    try:
        found = _explore(made, ready, search)
        bodies, choices = bodies_of(found, made, search.spec), found.choices(made)
    except SearchError as error:
        warnings.warn(
            f"{error}; {name} is scheduled without operations of the spec. Raise the limits or "
            f"compile it in parts.",
            SearchWarning,
            stacklevel=3,
        )
        bodies, choices = [made.stored], _offered(made, search.spec)
    if not bodies:
        return None
    kept = constrained(name, choices, made, search.spec.name, search.grid_dim, search.block_dim)
    groups = alike(kept, places_of(made))
    return list(offers(name, bodies, groups, made.facts, pricer, ready, search.drawn > 0))


class _Choosing:
    """Lowers ranked schedules, the cheapest first, until enough of them fit the spec."""

    def __init__(
        self,
        name: str,
        given: tuple[tuple[Stored, ...], Facts],
        forms: Mapping[Facts, str],
        pricer: Pricer,
        buffers: dict[str, Buffer],
        search: Search,
        refused: set[str],
    ) -> None:
        self.name, self.given, self.forms, self.pricer = name, given, forms, pricer
        self.buffers, self.search, self.refused = buffers, search, refused
        self.kernels: dict[Kernel, tuple[Predicted, ...]] = {}
        self._rest: dict[Division, tuple[Predicted, ...] | None] = {}
        self._ahead: dict[tuple[Preparation, Facts], tuple[Predicted, ...] | None] = {}
        self._made: dict[Division, dict[str, Buffer]] = {}
        self._expected: dict[Division, float] = {}  # seconds around the kernel of a division
        self._kept: list[object] = []
        # What takes too many registers, has nothing to copy for another block, or no code.
        self._hopeless: list[object] = []

    def run(self, ranked: list[Ranked], more: Iterator[Ranked]) -> list[Predicted]:
        """The best kernel with its alternatives, and what joins its parts; empty if none fits.

        `more`: schedules in random order, of which some are kept besides.
        """
        self._choose(ranked)
        if not self.kernels:
            return []
        best = len(self.kernels)
        self._draw(more)
        (first, *after), *others = self.kernels.values()
        plain = tuple(
            tuple(replace(p, alternatives=(), drawn=place >= best) for p in other)
            for place, other in enumerate(others, 1)
        )
        return [replace(first, alternatives=plain), *after]

    def _draw(self, ranked: Iterator[Ranked]) -> None:
        """Keep so many more kernels, whatever their price, as the search asks for."""
        wanted = len(self.kernels) + self.search.drawn
        for one in itertools.islice(ranked, MOST_DRAWN * self.search.drawn):
            if len(self.kernels) >= wanted:
                return
            around = self._around(one)
            if around is not None:
                self._lower(one, *around)

    def _around(self, one: Ranked) -> tuple[tuple[Predicted, ...], tuple[Predicted, ...]] | None:
        """The kernels before and after that of a schedule; None where one of them does not fit."""
        division = one.opening.division
        if division is not None and division not in self._rest:
            if len(self._rest) == MOST_JOINED >> self.name.count(JOINED):
                return None
            self._join(division)
        after = self._rest[division] if division else ()
        wanted = (*copies(one.before), *started(one.body, self.buffers))
        ahead = self._prepared(wanted, one.body.facts)
        return None if after is None or ahead is None else (ahead, after)

    def _choose(self, ranked: list[Ranked]) -> None:
        """Keep the best kernels."""
        queue = [(one.total, order, one) for order, one in enumerate(ranked)]
        heapq.heapify(queue)
        tried = 0
        failed: Counter[tuple[Stored, ...]] = Counter()  # since others were tried in place of it
        every: Counter[tuple[Stored, ...]] = Counter()
        later: list[tuple[float, int, Ranked]] = []
        crowd: list[tuple[float, int, Ranked]] = []  # for want of other kernels that are as good
        varied = True
        while queue or later or crowd:
            enough = tried >= MOST_LOWERED
            if len(self.kernels) >= self.search.candidates or (enough and self.kernels):
                break
            if crowd and (not (queue or later) or (queue and queue[0][0] > FAR * ranked[0].total)):
                queue, crowd, varied = queue + crowd, [], False
                heapq.heapify(queue)
            near = later and queue and queue[0][0] > FAR * later[0][0]
            if not queue or (near and tried < MOST_LOWERED // 2):
                queue, later = queue + later, []
                heapq.heapify(queue)
                failed.clear()
            _, order, one = entry = heapq.heappop(queue)
            if enough and every[one.body.stored] >= FEW:
                continue
            if failed[one.body.stored] >= LEAST_LOWERED:
                later.append(entry)
                continue
            if one.rest < (rest := self._expect(one)):  # as those of other divisions took longer
                heapq.heappush(queue, (one.seconds + rest, order, replace(one, rest=rest)))
                continue
            around = self._around(one)
            if around is None:
                continue
            ahead, after = around
            rest = sum(predicted.per_run for predicted in (*ahead, *after))
            if rest > one.rest:  # longer than it seemed: others may come first
                heapq.heappush(queue, (one.seconds + rest, order, replace(one, rest=rest)))
                continue
            hopeless = any(key in self._hopeless for key in (one.held, one.shared, one.cut))
            if hopeless or self._kept.count(one.sizes) >= MOST_OF_SIZES:
                continue
            twin = (one.sizes, one.total)  # of another number of stages, say
            many = self._kept.count(one.body) >= -(-self.search.candidates // 2)
            if varied and (many or twin in self._kept):
                crowd.append(entry)
                continue
            tried += 1
            if self._lower(one, ahead, after):
                self._kept += [one.body, one.sizes, twin]
            else:
                failed[one.body.stored] += 1
                every[one.body.stored] += 1

    def _expect(self, one: Ranked) -> float:
        """Seconds around a kernel whose division is not joined yet: of what others took the least,
        or as many times its own estimate, as estimates leave limits that are alike out of account.
        """
        division = one.opening.division
        if division is None or division in self._rest:
            return one.rest
        own, taken = self._expected.setdefault(division, one.rest), float("inf")
        for other, found in self._rest.items():
            seconds, told = sum(p.seconds for p in found or ()), self._expected[other]
            taken = min(taken, seconds, own * seconds / told) if found and told else taken
        return own if taken == float("inf") else max(own, taken)

    def _join(self, division: Division) -> None:
        """Find the kernels after that of the parts; None where none fits."""
        made = {buffer.name: buffer for buffer in division.buffers}
        trial = {**self.buffers, **made}
        name, rest = self.name + JOINED, (division.unsettled, division.rest_facts)
        try:
            search = replace(self.search, drawn=0)
            found = schedule_region(name, *rest, self.pricer, trial, search, whole=True)
        except SpecError:
            found = None
        self._rest[division] = found and tuple(found)
        self._made[division] = trial

    def _prepared(
        self, before: tuple[Preparation, ...], facts: Facts
    ) -> tuple[Predicted, ...] | None:
        """The kernels that prepare what is read; None where one does not fit."""
        for one in before:
            if (one, facts) not in self._ahead:
                trial = {**self.buffers, one.buffer.name: one.buffer}
                rest = (f"{self.name}_{one.buffer.name}", one.stored, facts, self.pricer)
                try:
                    found = schedule_region(
                        *rest, trial, replace(self.search, candidates=1, drawn=0)
                    )
                except SpecError:
                    found = None
                self._ahead[one, facts] = found and tuple(found)
        found = [self._ahead[one, facts] for one in before]
        return None if None in found else tuple(p for kernels in found for p in kernels or ())

    def _lower(
        self, one: Ranked, ahead: tuple[Predicted, ...], after: tuple[Predicted, ...]
    ) -> bool:
        """Keep the kernel, with those before and after it, if it is another one and fits."""
        one, held, shared, cut = one.settled(), one.held, one.shared, one.cut
        search, made, division = self.search, one.opening.made, one.opening.division
        buffers = self._made[division] if division else self.buffers
        buffers = {**buffers, **{one.buffer.name: one.buffer for one in one.before}}
        if any(self.buffers.get(name, buffer) != buffer for name, buffer in buffers.items()):
            return False  # another division has temporaries of the same names
        schedule = one.opening.schedule(one.choice)
        lowered = placed(lower(self.name, made, schedule, buffers, search.spec.name), search.spec)
        unshared = lowered.multicast < schedule.shared
        known = unshared or lowered in self.kernels
        misfit = "nothing new" if known else search.misfit(lowered, search.spec)
        if misfit:
            self.refused.add(misfit)
            found = {"registers": held, UNSAID: cut}.get(misfit)
            self._hopeless += [shared] if unshared else [found] if found else []
            return False
        prepared = [f"prepare x{len(copies(one.before))}"] if one.before else []
        how = self.forms[one.body.facts]
        rules = (*[how] * bool(how), *body_rules(one.body), *prepared, *one.choice.rules)
        kernel = replace(lowered, rules=rules)
        chosen = Chosen(*self.given, one.body.stored, one.choice, how)
        main = Predicted(
            kernel, one.seconds, one.bottleneck, len(after), chosen=chosen,
            share=self.pricer.run_share(kernel.read),
        )  # fmt: skip
        first, *others = (*ahead, main, *after)
        self.kernels[lowered] = (replace(first, followers=len(others)), *others)
        self.buffers |= buffers
        return True


def _preparations(made: Form, search: Search) -> tuple[Preparation, ...]:
    """What may be done beforehand; nothing where every kernel must have one grid or block."""
    if search.grid_dim is not None or search.block_dim is not None:
        return ()
    spec, counts = search.spec, search.float32_products
    return allowed_preparations(made, spec, search.operations, counts)


def _explore(made: Form, ready: Sequence[Preparation], search: Search) -> Explored:
    """Saturate the region's kernel terms."""
    start = unfused(made)
    roots = [start.kernel, *start.bodies.values(), *(one.copy for one in ready)]
    menus = schedule_menus(made, search.spec)
    terms = list(post_order(roots))
    dtypes = {made.facts.dtype(t).name for t in (*made.terms, *(one.copy for one in ready))}
    rules = [rule for rule in search.rules if rule.group in SCHEDULING]
    rules = representative(applicable(rules, {t.op for t in terms}, dtypes), search.spec)
    table = table_for(roots, rules)
    weighed: list[int] = [t.args[0] for t in terms if t.op in WEIGHTED]  # type: ignore[misc]
    ops = signatures(terms, rules)
    seeds, numbers = seed(roots, made.facts.universe, table, frozenset())
    commands = [
        *declarations(ops, SCHEDULING),
        *schedule_facts(ops),
        *rule_lines(rules),
        *subset_points(weighed, made.facts.universe),
        *seeds,
        *(f"(body {n} (node {numbers[body]}))" for n, body in start.bodies.items()),
        *prepared_rows(ready, numbers),
        *rounded_facts(made),
        *menus.facts(),
    ]
    every = " ".join(f"(run {group})" for group in SCHEDULING)
    request = {
        "commands": commands,
        "schedules": [f"(run-schedule (repeat 40 (saturate (run facts)) {every}))"],
        "read": [*map(constructor, ops), "free", "dtype", "node"],
    }
    answer = search.worker.ask(request, search.limits.seconds, len(made.facts.universe.names))
    if "error" in answer:
        raise SearchError(f"the search for a kernel's schedule failed: {answer['error']}")
    return explored(answer, ops, table, made.facts.universe, terms, numbers, start.kernel)


def _offered(made: Form, spec: ParallelProcessingUnit) -> list[Choice]:
    """Every schedule that the tiling and staging rules would reach."""
    menus = schedule_menus(made, spec)
    steps: list[list[tuple[object, ...]]] = []
    for axis in menus.axes:
        ways: list[tuple[object, ...]] = [("tile", axis, n) for n in menus.tiles.get(axis, ())]
        ways += [("stream", axis, n) for n in menus.chunks.get(axis, ())]
        ways += [("keep", axis)] if axis in menus.kept else []
        ways += [("launch", n) for n in menus.threads if axis == "threads"]
        ways += [("stage", *stage) for stage in menus.stages if axis == "stages"]
        steps.append(ways)
    return [decode_choice(chain, made) for chain in itertools.product(*steps)]
