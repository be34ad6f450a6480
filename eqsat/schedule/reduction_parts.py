"""A reduction in parts: the values of a kernel that reduces each part, and of one that joins them.

    sum_x f(x)  ->  sum_p sum_x' f(p * L + x')          p counts parts of L points of x

The inner reductions are stored, so that parts are tiles of a grid. Sums weighted by exp(s - max s)
join by the law that they are carried by: weighted_sum_p(max of part p, weighted_sum of part p).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from eqsat.graph.dtypes import DType, neutral
from eqsat.graph.index import Affine, add, row_major, scale, substitute, var
from eqsat.kernel.ir import Buffer, Guard
from eqsat.price.tiling import LEAST_PART
from eqsat.specs import ParallelProcessingUnit
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
    substituted,
    sum_of_products,
)
from eqsat.terms.algebra import with_children as over
from eqsat.terms.carry_terms import law_of, number, shifted
from eqsat.terms.extremes import met_again
from eqsat.terms.form import REDUCING, WEIGHTED, Form, Stored
from eqsat.terms.scans import state_names

ALIGNED = 64  # parts of unequal length begin at multiples of so many points
MOST_POINTS = 1 << 15  # of a tile
MOST_OFFERED = 3  # part counts
BESIDE, MORE_BESIDE = 4, 16  # tiles of a processor with a part each; of sums, which wait for memory
LEAST_CHUNKS = 4  # of the shortest chunk on offer, in a part
FEWER_CHUNKS = 2  # the same of products, and where that leaves fewer part counts than are offered
LONG = 16  # points of a chunk; shorter ones have other names of the sum inside
LEAST_STEPS = 2  # points of a part along a name of short chunks
FULLER = 1.02  # times the processors at work that make another part count worth a try
ROWS = (256, 128, 64)  # points of a part of rows, of which a tile has one
LONGEST_ROW = max(ROWS)
SCANNED = (4096, 8192, 16384)  # points of a part of a scan
MOST_SCANNED = 4096  # parts of a scan, the sums of which each part adds up
STEPPED = 32  # points of a part of a recurrence, at least
AT_WORK = 2048  # states of a processor, beyond which no more parts are of use


@dataclass(frozen=True)
class Division:
    """A kernel in two: `first` is what it stores of each part, `rest` what remains when that lies
    in memory.

    `part` is the name that counts parts; in `first` the split axis has the length of a part.
    `buffers` are the temporaries between the two.
    """

    first: tuple[Stored, ...]
    first_facts: Facts
    rest: tuple[Stored, ...]
    rest_facts: Facts
    part: str
    buffers: tuple[Buffer, ...]

    @property
    def unsettled(self) -> tuple[Stored, ...]:
        """`rest` as what is yet to be scheduled: contractions as sums of products, whose operation
        is chosen anew.
        """

        def change(term: Term, children: tuple[Term, ...]) -> Term:
            if term.op == "contract":
                return sum_of_products(term, children)
            return over(term, children)

        return tuple(replace(one, term=rebuild(one.term, change)) for one in self.rest)


def part_length(extent: int, parts: int) -> int:
    """Points of each part but the last, which may be shorter."""
    length = -(-extent // parts)
    return length if length * parts == extent else -(-length // ALIGNED) * ALIGNED


@dataclass(frozen=True)
class PartMenu:
    """The part counts on offer for an axis, as long as no more than `most` tiles come of them; and
    those `filling` the processors with a grid of so many tiles.
    """

    axis: str = ""
    counts: tuple[int, ...] = ()
    most: int = 0
    filling: tuple[tuple[int, int], ...] = ()

    def facts(self) -> list[str]:
        """As egglog facts."""
        lines = [f'(part_menu "{self.axis}" {count})' for count in self.counts]
        lines += [f'(filling "{self.axis}" {tiles} {count})' for tiles, count in self.filling]
        return [*lines, f"(most_tiles {self.most})"] if self.counts else []

    def offered(self, grid: int) -> list[tuple[str, int]]:
        """(axis, number of parts) for a grid of so many tiles."""
        counts = [count for count in self.counts if grid * count <= self.most]
        counts += [count for tiles, count in self.filling if tiles == grid]
        return [(self.axis, count) for count in counts]


def part_menu(
    form: Form,
    spec: ParallelProcessingUnit,
    tiles: Mapping[str, Sequence[int]],
    chunks: Mapping[str, Sequence[int]],
) -> PartMenu:
    """Powers of two up to what fills the device about twice, for the axis of most chunks; where
    nothing is multiplied several times, since tiles that wait for memory hide each other's wait.

    None where the preferred tiles of the grid keep the device busy. Scans, and rows that no tile
    has whole, are in parts that tiles hold, however many they are.
    """
    if form.steps.inner:
        (axis,) = form.facts.universe.members(form.steps.inner)
        return PartMenu(axis, (1,), MOST_POINTS * spec.processors)
    if form.steps.recurrent and form.stepped:
        counts = tuple(_stepped_parts(form, spec))
        return PartMenu(form.stepped, counts, MOST_POINTS * spec.processors)
    if form.stepped:
        extent = form.extents[form.stepped]
        counts = [-(-extent // length) for length in SCANNED if extent >= LEAST_CHUNKS * length]
        counts = [-(-extent // part_length(extent, count)) for count in counts]
        if _is_strided(form):
            counts += _stepped_parts(form, spec)
        kept = tuple(dict.fromkeys(n for n in counts if n <= MOST_SCANNED))
        return PartMenu(form.stepped, kept, MOST_POINTS * spec.processors)
    for axis in form.facts.universe.members(form.facts.whole):
        if form.extents[axis] > LONGEST_ROW:
            counts = tuple(-(-form.extents[axis] // length) for length in ROWS)
            return PartMenu(axis, counts, MOST_POINTS * spec.processors)
    rows = [name for name in form.reduced if name not in form.held] if form.held else []
    if rows and not form.grid:  # each with what is resident for it: one by one
        axis = max(rows, key=form.extents.__getitem__)
        return PartMenu(axis, (form.extents[axis],), MOST_POINTS * spec.processors)
    whole = math.prod(-(-form.extents[name] // sizes[0]) for name, sizes in tiles.items())
    alone = all(form.extents[name] in sizes for name, sizes in tiles.items())
    whole = max(whole, math.prod(form.extents[name] for name in form.grid) // MOST_POINTS)
    names = [name for name in form.reduced if chunks.get(name) and name != form.stepped]
    windows = guarded_names(form.terms)  # parts of them end where others are read
    names = [n for n in names if n not in windows or 1 in chunks[n]] or names
    scatters = any(one.term.op in SCATTERS for one in form.stored)
    if not names or scatters or whole >= 2 * spec.processors:
        return PartMenu()
    ends = {name: min(chunks[name]) for name in names}
    short = {n: max(FEWER_CHUNKS * c, LEAST_PART) for n, c in ends.items() if c >= LONG}
    ends = {n: LEAST_CHUNKS * c if c >= LONG else max(c, LEAST_STEPS) for n, c in ends.items()}
    axis = max(names, key=lambda name: (form.extents[name] // ends[name], form.extents[name]))
    extent = form.extents[axis]
    filled = (-(-spec.processors // whole) - 1).bit_length() + 1
    multiplies = _multiplies(form)
    large = multiplies or form.row_points > 1
    filled += 0 if large else 2

    def powers(least: int) -> list[int]:
        return [1 << power for power in range(1, filled + 1) if extent >= least << power]

    counts = powers(ends[axis])
    if axis in short and (multiplies or len(counts) < MOST_OFFERED):
        ends |= short
        counts = powers(ends[axis]) if multiplies else powers(ends[axis])[:MOST_OFFERED]
    if _has_means(form):
        counts = [_even(extent, count) for count in counts]
    offered = counts[-MOST_OFFERED:]
    if alone and multiplies and counts and extent >= 2 * ends[axis] * counts[-1]:
        offered = [*offered, 2 * counts[-1]]  # of one tile that has the whole grid
    found = dict.fromkeys(-(-extent // part_length(extent, n)) for n in offered)
    most = extent // ends[axis] if found and multiplies else 0
    filling = tuple(fill_processors(spec.processors, tuple(found), extent, most))
    beside = BESIDE if large or form.grid else MORE_BESIDE
    return PartMenu(axis, tuple(found), beside * spec.processors, filling)


def _is_strided(form: Form) -> bool:
    """Whether what is stored lies along another name than a scan: threads step side by side."""
    return all(dict(one.address(form.extents).terms).get(form.stepped) != 1 for one in form.stored)


def _stepped_parts(form: Form, spec: ParallelProcessingUnit) -> list[int]:
    """Powers of two up to what gives each processor as many states as it has threads, and few
    parts for their length: what they leave is stepped through one by one.
    """
    extent = form.extents[form.stepped]
    names = state_names(form.terms, form.facts) & ~form.steps.along
    states = form.facts.universe.size(names)
    most = min(extent // STEPPED, AT_WORK * spec.processors // states, 4 * math.isqrt(extent))
    counts = [1 << power for power in range(1, most.bit_length())]
    counts = [-(-extent // part_length(extent, count)) for count in counts[-MOST_OFFERED:]]
    return list(dict.fromkeys(counts))


def _has_means(form: Form) -> bool:
    """Whether sums about means are among the terms, whose parts join where they are equal."""
    return any(t.op in WEIGHTED and law_of(t).pivot == "mean" for t in form.terms)


def _even(extent: int, count: int) -> int:
    """The most parts up to a count that are equal, unless that is far fewer."""
    least = count * 3 // 4
    return next((n for n in range(count, least, -1) if extent % n == 0), count)


def core_parts(form: Form, spec: ParallelProcessingUnit) -> PartMenu:
    """A part for each core, of the longest sum of a nest that has fewer results than those are."""
    names = [name for name in form.reduced if name != form.stepped]
    scatters = any(one.term.op in SCATTERS for one in form.stored)
    points = math.prod(form.extents[name] for name in form.grid)
    if not names or scatters or points >= spec.processors:
        return PartMenu()
    axis = max(names, key=form.extents.__getitem__)
    count = -(-form.extents[axis] // part_length(form.extents[axis], spec.processors))
    return PartMenu(axis, (count,) if count > 1 else (), spec.processors)


def _multiplies(form: Form) -> bool:
    """Whether tiles are of products, of which a processor has one or two at once."""
    return any(form.contraction(term) for term in form.terms)


def fill_processors(
    processors: int, counts: tuple[int, ...], extent: int, most: int
) -> Iterator[tuple[int, int]]:
    """(tiles, parts of each) that leave fewer processors idle than any count on offer does."""
    for tiles in range(1, processors // 2 + 1):
        count = min(processors // tiles, most)
        count = -(-extent // part_length(extent, count)) if count > 1 else 1
        others = [tiles * n for n in counts]
        waves = [-(-n // processors) for n in others]
        best = max((n / (w * processors) for n, w in zip(others, waves, strict=True)), default=1)
        if count > 1 and tiles * count > FULLER * best * processors:
            yield tiles, count


def divide(made: Form, axis: str, parts: int, stem: str) -> Division | None:
    """The kernel with its first reductions over `axis` in parts; None where they cannot be.

    Temporaries are named after `stem`. What is refused: another reduction over the axis inside one
    of its terms, values compared with their own extremum along it, an identity that has no exact
    literal where parts are unequal.
    """
    bit = made.facts.universe.mask([axis])
    if met_again(made, [axis]):
        return None
    numbers = {t: n for t, n in made.phase.items() if t.args[0] & bit}  # type: ignore[operator]
    if not numbers:
        return None
    terms = [term for term, number in numbers.items() if number == min(numbers.values())]
    if any(binds(child, bit) for term in terms for child in term.children):
        return None
    work = Parts(made, axis, parts, stem)
    try:
        return work.run(terms)
    except _NoIdentity:
        return None


def binds(term: Term, bit: int) -> bool:
    """Whether a reduction or scan over any name of a mask is inside a term."""
    return any(
        (t.op in REDUCING or t.op in SCANS) and t.args[0] & bit  # type: ignore[operator]
        for t in post_order([term])
    )


class _NoIdentity(Exception):
    """A neutral element that no literal holds, or parts that do not join."""


@dataclass
class Parts:
    """The parts of an axis of a form, and what is stored of each."""

    made: Form
    axis: str
    parts: int
    stem: str
    values: dict[Term, Stored] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)

    def __post_init__(self) -> None:
        old = self.made.facts.universe
        extent = old.extents[self.axis]
        self.length = length = part_length(extent, self.parts)
        self.first = Universe(list(old.names), {**old.extents, self.axis: length})
        self.rest = Universe(list(old.names), dict(old.extents))
        self.part = self.first.add(-(-extent // length))
        self.rest.add(self.first.extents[self.part])
        self.facts = Facts(self.first, self.made.facts.whole)
        self.at = add(scale(var(self.part), length), var(self.axis))
        whole = length * self.first.extents[self.part] == extent
        self.valid = None if whole else Guard(self.at, 0, extent)

    def run(self, terms: Sequence[Term]) -> Division:
        joined = {term: self._joined(term) for term in terms}
        bit = self.made.facts.universe.mask([self.axis])
        along = (s for s in self.made.stored if self.axis in s.names and s.term.op not in SCATTERS)
        own = [s for s in along if not binds(s.term, bit)]
        late = [s for s in self.made.stored if s not in own]
        rest = [replace(s, term=substituted(s.term, joined)) for s in late]
        extents, dtype = self.rest.extents, self.made.facts.dtype
        lie = {s.term: s.read_back(extents) for s in own if dtype(s.term) == s.dtype}
        looked = [replace(s, term=substituted(s.term, lie)) for s in rest]
        return Division(
            first=(
                *self.values.values(),
                *(self.part_of(s, self.placed(s.term)) for s in own),
            ),
            first_facts=self.facts,
            rest=tuple(min(rest, looked, key=self._bytes_read)),
            rest_facts=Facts(self.rest),
            part=self.part,
            buffers=tuple(self.buffers),
        )

    def _bytes_read(self, kernel: Sequence[Stored]) -> int:
        """Bytes of what lies in memory that values are computed from."""
        facts = Facts(self.rest)
        reads = {t for t in post_order(one.term for one in kernel) if t.op in {"read", "gather"}}
        return sum(self.rest.size(facts.free(t)) * facts.dtype(t).itemsize for t in reads)

    def _joined(self, term: Term) -> Term:
        """The reduction from its parts in memory."""
        own = self.rest.mask([self.part])
        dtype = self.made.facts.dtype(term)
        if term.op in WEIGHTED:
            result = self._weighted(term, own)
        else:
            part = self.keep(self._reduction(term))
            result = Term(term.op if term.op in REDUCTIONS else "reduce_sum", own, part)
        return result if dtype.compute == dtype else Term("cast", dtype.name, result)

    def _weighted(self, term: Term, own: int) -> Term:
        """A weighted reduction from the pivots and totals of parts."""
        law, mask = law_of(term), term.args[0]
        assert isinstance(mask, int)
        s, r = (self.placed(child) for child in term.children)
        if law.pivot == "mean":
            return self._about_mean(Term(term.op, mask, s, r, law), own)
        if not law.divides or (self.valid is not None and not law.neutral):
            raise _NoIdentity
        s = self.neutral(s, law.pivot)
        r = r if r.op == "literal" else self.neutral(r, "sum")
        pivot = self.keep(Term(f"reduce_{law.pivot}", mask, s))
        part = self.keep(Term(term.op, mask, s, r, *term.args[3:]))
        joined = term.op if term.op == "weighted_min" else "weighted_sum"
        return Term(joined, own, pivot, part, law)

    def _about_mean(self, part: Term, own: int) -> Term:
        """sum_p total of p + n * t(mean of p, mean),  n points in each part"""
        if self.valid is not None:
            raise _NoIdentity
        law, mask, s = law_of(part), part.args[0], part.children[0]
        assert isinstance(mask, int)
        rest, points = Facts(self.rest), self.first.size(mask)
        sums, total = self.keep(Term("reduce_sum", mask, s)), self.keep(part)
        every = number(float(points * self.rest.size(own)), sums, rest)
        count = number(float(points), sums, rest)
        whole = Term("div", Term("reduce_sum", own, sums), every)
        moved = shifted(law, (Term("div", sums, count), whole), rest)
        return Term("reduce_sum", own, Term("add", total, Term("mul", moved, count)))

    def _reduction(self, term: Term) -> Term:
        """A reduction over the points of one part."""
        factors = self.made.contraction(term)
        placed = [self.placed(child) for child in term.children]
        if factors is None:
            inner = [self.neutral(placed[0], REDUCTIONS[term.op])]
        elif term.op != "reduce_sum":
            inner = [self.neutral(child, "sum") for child in placed]
        else:
            inner = [over(placed[0], tuple(self.neutral(c, "sum") for c in placed[0].children))]
        return over(term, tuple(inner))

    def keep(self, term: Term, together: bool = False) -> Term:
        """A value of each part, read back as it lies in memory: parts first, or `together` after
        all else; then the grid, its short names, such as places in windows, before others.
        """
        if term not in self.values:
            free = self.facts.universe.members(self.facts.free(term))
            extents = self.first.extents
            grid = [name for name in self.made.grid if name in free]
            grid.sort(key=lambda name: extents[name] >= LONG)
            inner = [name for name in free if name not in (*grid, self.part)]
            names = (*grid, *inner, self.part) if together else (self.part, *grid, *inner)
            name = f"t{self.stem}p{self.parts}_{len(self.values)}"
            dtype = self.facts.dtype(term).compute
            self.values[term] = Stored(name, term, names, dtype)
            shape = tuple(self.first.extents[n] for n in names)
            self.buffers.append(Buffer(name, shape, dtype, "temporary"))
        one = self.values[term]
        return Term("read", Read(one.buffer, one.dtype, row_major(one.names, self.rest.extents)))

    def part_of(self, one: Stored, term: Term) -> Stored:
        """A value stored by parts, what lies beyond the axis left out."""
        names = [
            n for name in one.names for n in ((self.part, name) if name == self.axis else (name,))
        ]
        at, guards = self._at(one.address(self.made.extents)), self._guarded(one.guards)
        return replace(one, term=term, names=tuple(names), at=at, guards=guards)

    def _at(self, expression: Affine) -> Affine:
        """An expression at point x' of part p."""
        return substitute(expression, {self.axis: self.at}, self.first.extents)

    def _guarded(self, guards: Iterable[Guard]) -> tuple[Guard, ...]:
        """Guards at point x' of part p, and that the axis has it."""
        placed = (replace(g, expression=self._at(g.expression)) for g in guards)
        return (*placed, self.valid) if self.valid else tuple(placed)

    def placed(self, term: Term) -> Term:
        """The term at point x' of part p; reads beyond the axis yield their fill."""
        return rebuild(term, lambda sub, children: self.moved(over(sub, children)))

    def moved(self, term: Term) -> Term:
        """A term alone, over terms that are at point x' of part p."""

        first = term.args[0] if term.args else None
        if isinstance(first, Affine):
            return Term(term.op, self._at(first))
        if not isinstance(first, Read) or self.axis not in first.names:
            return term
        moved = replace(first, address=self._at(first.address))
        guards = self._guarded(first.guards)
        ends = self._ends(moved)
        guards = tuple(guard for guard in guards if not (ends and guard == self.valid))
        return Term(term.op, replace(moved, guards=guards), *term.args[1:])

    def _ends(self, read: Read) -> bool:
        """Whether what is read, in pieces side by side, ends where the axis does."""
        joined, valid = read.joined, self.valid
        if joined is None or valid is None or joined.shape[joined.axis] != valid.upper:
            return False
        return joined.place(read.address) == valid.expression

    def neutral(self, term: Term, monoid: str) -> Term:
        """The term, beyond the axis the monoid's identity."""
        if self.valid is None:
            return term
        dtype = self.facts.dtype(term)
        value = _identity(monoid, dtype)
        read = term.args[0] if term.op == "read" else None
        filled = isinstance(read, Read) and read.fill == value
        if filled and (self.valid in read.guards or self._ends(read)):
            return term
        if term.op == "cast" and value == 0 and monoid == "sum":
            return over(term, (self.neutral(term.children[0], monoid),))
        place = Term("position", self.valid.expression)
        inside = Term("less", place, Term("literal", float(self.valid.upper), "int64"))
        return Term("where", inside, term, Term("literal", value, dtype.name))


def _identity(monoid: str, dtype: DType) -> float:
    """The neutral element of a monoid as a literal, a float64 that some integers are none of."""
    value = neutral(monoid, dtype)
    if isinstance(value, int) and int(float(value)) != value:
        raise _NoIdentity
    return float(value)
