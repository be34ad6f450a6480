"""One kernel between its stored values and its code, as terms: where rewriting starts and ends."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from eqsat.errors import TraceError
from eqsat.kernel.ir import Buffer, Kernel
from eqsat.layout.prepare import Preparation, preparations, used
from eqsat.lower.lowering import lower
from eqsat.price.partial_sums import rounded_rows
from eqsat.schedule.choice import Choice, Opening, decode_choice, opening
from eqsat.schedule.menu import Menus, schedule_menus
from eqsat.schedule.placed import placed
from eqsat.schedule.recast import recast
from eqsat.schedule.stream_k import fit
from eqsat.schedule.unfused import Unfused, together, unfused
from eqsat.specs import ParallelProcessingUnit
from eqsat.terms.algebra import Facts, Term
from eqsat.terms.form import Form, Stored, form
from eqsat.terms.matching import RegionFacts, Relation, Setting, Value

Row = tuple[Value, ...]


@dataclass(frozen=True)
class Region:
    """A kernel's stored values, in the names of their segment, and the spec that it is for.

    `recast`: in what way it is over other names, if it is (see eqsat.schedule.recast).
    """

    stored: tuple[Stored, ...]
    facts: Facts
    spec: ParallelProcessingUnit
    recast: str = ""

    @cached_property
    def _whole(self) -> tuple[Form, tuple[Preparation, ...]]:
        made = recast(self.recast, self.stored, self.facts)
        return made, preparations(made, self.spec)

    @property
    def made(self) -> Form:
        """The form of the values over as few axes as will do."""
        return self._whole[0]

    @cached_property
    def start(self) -> Unfused:
        """The kernel before any rule."""
        return unfused(self.made)

    @property
    def prepared(self) -> tuple[Preparation, ...]:
        """What may be done before the kernel runs, for any operation of the spec."""
        return self._whole[1]

    @cached_property
    def menus(self) -> Menus:
        """What the spec offers its schedule."""
        return schedule_menus(self.made, self.spec)

    def setting(self) -> Setting:
        """What the guards of kernel rules are evaluated in."""
        facts = RegionFacts(self.made.facts.universe, self.start.meanings)
        menus = self.menus
        offered = {
            "tile_menu": [(n, s) for n, sizes in menus.tiles.items() for s in sizes],
            "chunk_menu": [(n, s) for n, sizes in menus.chunks.items() for s in sizes],
            "keep_menu": [(n,) for n in menus.kept],
            "thread_menu": [(n,) for n in menus.threads],
            "stage_menu": list(menus.stages),
            "body": list(self.start.bodies.items()),
            "prepared": [one.row for one in self.prepared],
            "rounded": rounded_rows(self.made),
        }
        relations: dict[str, Relation] = {k: _table(rows) for k, rows in offered.items()}
        relations["next_axis"] = self._next_axis
        relations["on_offer"] = self._on_offer
        return Setting(facts, frozenset(), relations)

    def _next_axis(self, known: tuple[Value | None, ...]) -> Iterable[Row]:
        schedule = known[0]
        assert isinstance(schedule, Term)
        depth = len(chain(schedule))
        if depth < len(self.menus.axes):
            yield schedule, self.menus.axes[depth]

    def _on_offer(self, known: tuple[Value | None, ...]) -> Iterable[Row]:
        """What a schedule that settles every axis may have besides."""
        schedule = known[0]
        assert isinstance(schedule, Term)
        entries = chain(schedule)
        split = bool(entries) and entries[-1][0] in ("split", "turn")
        entries = entries[: len(entries) - split]
        if len(entries) != len(self.menus.axes):
            return
        menus, processors = self.menus, self.menus.processors
        grid = decode_choice(entries, self.made).grid_tiles(self.made)
        offered: list[Row] = [("share", "", n) for n in menus.sharers if n <= grid]
        if not split:
            offered += [("parts", axis, n) for axis, n in menus.parts.offered(grid)]
            offered += [("turn", axis, 1) for axis in menus.turned]
            if any(op == "stream" for op, *_ in entries):
                waves = (n for n in menus.last_parts if fit(grid, n, processors))
                offered += [("stream_k", "", n) for n in waves]
            else:
                offered += [("cluster", "", n) for n in menus.clusters]
        for row in offered:
            if all(k is None or k == value for k, value in zip(known[1:], row, strict=True)):
                yield schedule, *row

    def before(self, body: Iterable[Stored]) -> tuple[Preparation, ...]:
        """What a fused body reads that kernels of their own prepare."""
        return used(self.prepared, body)

    def target(self, body: tuple[Stored, ...], choice: Choice) -> Term:
        """The kernel term of a fused body under a schedule."""
        schedule = Term("untiled")
        for op, *args in choice.steps:
            schedule = Term(op, *args, schedule)
        return Term("kernel", together([one.term for one in body]), schedule)

    def kernel(self, name: str, term: Term, buffers: Mapping[str, Buffer]) -> Kernel:
        """The code of a kernel term. Raises TraceError for a term that is no whole kernel."""
        opened, choice = self.opening(name, term)
        division = opened.division
        made = {b.name: b for b in division.buffers} if division else {}
        made |= {one.buffer.name: one.buffer for one in self.prepared}
        known, schedule = {**buffers, **made}, opened.schedule(choice)
        lowered = lower(name, opened.made, schedule, known, self.spec.name)
        return placed(lowered, self.spec)

    def opening(self, name: str, term: Term) -> tuple[Opening, Choice]:
        """What the kernel of a whole kernel term computes: all, or the parts of a reduction."""
        shaped, choice = self.shaped(term)
        opened = opening(shaped, choice.parts, name)
        if opened is None:
            split = next(rule for rule in choice.rules if rule.startswith("split "))
            raise TraceError(f"its reduction cannot be split as {split!r} has it")
        return opened, choice

    def shaped(self, term: Term) -> tuple[Form, Choice]:
        """The form and the schedule that a kernel term describes."""
        made, choice = self.partial(term)
        if choice.settled != len(self.menus.axes):
            raise TraceError(f"its schedule settles {choice.rules}, not each of {self.menus.axes}")
        return made, choice

    def partial(self, term: Term) -> tuple[Form, Choice]:
        """The same for a schedule that may leave axes open."""
        body, schedule = term.children
        stored = [
            replace(one, term=part)
            for one, part in zip(self.made.stored, self.parts(body), strict=True)
        ]
        return form(stored, self.made.facts), decode_choice(chain(schedule), self.made)

    def parts(self, body: Term) -> list[Term]:
        """The values of a kernel's body, as many as it stores."""
        found: list[Term] = []
        while len(found) < len(self.made.stored) - 1:
            if body.op != "together":
                raise TraceError(f"its body has {len(found) + 1} values, not one for each store")
            body, last = body.children
            found.insert(0, last)
        return [body, *found]


def _table(rows: Iterable[Row]) -> Relation:
    rows = tuple(rows)

    def agree(known: tuple[Value | None, ...]) -> Iterable[Row]:
        return (
            row
            for row in rows
            if all(k is None or k == value for k, value in zip(known, row, strict=True))
        )

    return agree


def chain(schedule: Term) -> list[tuple[object, ...]]:
    """The entries of a schedule term, the first settled first."""
    entries: list[tuple[object, ...]] = []
    while schedule.children:
        own = (schedule.op, *(a for a in schedule.args if not isinstance(a, Term)))
        entries.insert(0, own)
        schedule = schedule.children[0]
    return entries


def prefixes(kernel: Term) -> list[Term]:
    """The kernel under each beginning of its schedule, the first entry alone to the whole."""
    found: list[Term] = []
    body, schedule = kernel.children
    while schedule.children:
        found.insert(0, Term("kernel", body, schedule))
        schedule = schedule.children[0]
    return found
