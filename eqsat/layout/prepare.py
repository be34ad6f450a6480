"""Factors of products, copied first: laid out, or split into terms, as an operation takes them.

An operation that is started while others run takes its factors from boxes of memory: rows whose
distance is a multiple of some bytes, the elements of a row side by side along an index of its own
or, for some operations, along the summed one alone. A factor that lies otherwise is copied to a
temporary of such a layout by a kernel of its own: where several indices walk one axis of it, as
windows do, by its axes. Likewise a float32 factor may be stored as its terms of a narrower float,
which an operation then multiplies as `narrow.py` says; and one of 8 bits as the float of 16 that
holds it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from eqsat.graph.dtypes import BY_NAME
from eqsat.graph.index import (
    Affine,
    FloorDiv,
    Mod,
    add,
    const,
    divided_names,
    scale,
    unit_names,
    var,
)
from eqsat.kernel.ir import Buffer, Guard
from eqsat.layout.narrow import TERMS
from eqsat.layout.needs import WIDE, Need, started_needs, waited_needs
from eqsat.layout.pixels import pixel_axes
from eqsat.layout.relayout import WalkedAxis, composed_axes, first_place, in_order
from eqsat.layout.window_factors import strided_factors, window_places
from eqsat.specs import ParallelProcessingUnit
from eqsat.terms.algebra import WEIGHTED_SUMS, Read, Term, post_order
from eqsat.terms.form import Form, Stored
from eqsat.terms.scattered import starts

LARGEST = {"bfloat16": (2 - 2**-7) * 2.0**127}
SHORT_ROWS = 128  # rows below which several names share the rows of a tile


@dataclass(frozen=True)
class Preparation:
    """What a kernel stores of a factor, and the read of it: of its terms each is a stored value.

    `narrow` is the float of its terms, or that which holds it; `terms` the mask of the index that
    numbers its terms, 0 where there are none. `operations` are
    those of the spec that take it, none where it is for threads that multiply by themselves.
    """

    source: Term
    copy: Term
    stored: tuple[Stored, ...]
    buffer: Buffer
    narrow: str
    terms: int
    operations: frozenset[str]

    def suits(self, operations: Collection[str]) -> bool:
        """Whether it is for one of the operations that a kernel uses, or for threads where none."""
        return bool(self.operations & {*operations}) if self.operations else not operations

    @property
    def row(self) -> tuple[Term, Term, str, int]:
        """What the relation `prepared` says of it."""
        return self.source, self.copy, self.narrow, self.terms


def started(made: Form, buffers: Mapping[str, Buffer]) -> tuple[Preparation, ...]:
    """What kernels write for a form that combines values in buffers."""
    none = frozenset[str]()
    return tuple(
        Preparation(one.term, one.term, (one,), buffers[one.buffer], "", 0, none)
        for one in starts(made.stored)
    )


def preparations(made: Form, spec: ParallelProcessingUnit) -> tuple[Preparation, ...]:
    """What could be done beforehand for the products of a form, by the operations of the spec.

    The index that numbers terms is added to the form's universe once. Factors that are read alike,
    as of a matrix times its transpose, have one copy.
    """
    wanted: dict[tuple[Term, _Layout], set[str]] = {}
    over: dict[Term, int] = {}
    universe = made.facts.universe
    for term in made.terms:
        factors = list(factors_in_memory(made, term))
        places = window_places(made, (factor for factor, *_ in factors))
        for factor, summed, batch in factors:
            read = factor.args[0]
            if factor.op != "read" or not isinstance(read, Read) or read.joined:
                continue
            kinds = (read.dtype.name, made.facts.dtype(term).name)
            stands = universe.mask(read.names) & places
            beside = waited_needs(spec, *kinds) if stands else ()
            for operation, need in (*started_needs(spec, *kinds), *beside):
                right = lies_right(read, need, summed, batch, places, made)
                if need.converts or not right or _in_short_runs(read, need, summed, made):
                    layout = _layout(read, need, summed, places | batch, made)
                    if layout is not None:
                        wanted.setdefault((factor, layout), set()).add(operation.name)
                        over[factor] = summed
    if spec.overlaps:  # threads share a tile, each reads for itself
        for factor, order in strided_factors(made):
            pitch = made.extents[order[-1]]
            wanted.setdefault((factor, _Layout(order, pitch, "", 1)), set())
            over[factor] = 0
    narrow = {layout.dtype for _, layout in wanted if layout.terms > 1}
    index = {name: universe.add(TERMS[name]) for name in sorted(narrow)}
    found: list[Preparation] = []
    copies: dict[object, tuple[int, Preparation]] = {}
    for number, ((factor, layout), names) in enumerate(wanted.items()):
        key = (layout.alike(factor, made.extents), read_alike(factor, over[factor], made))
        same, first = copies.get(key, (number, None))
        terms = index.get(layout.dtype, "")
        one = _prepared(factor, layout, made, same, terms, frozenset(names))
        if first is not None:
            one = replace(one, stored=first.stored, buffer=first.buffer)
        copies.setdefault(key, (number, one))
        found.append(one)
    return tuple(found)


def read_alike(factor: Term, summed: int, made: Form) -> object:
    """What two factors have in common that are read alike, but for the names of their own."""
    read = factor.args[0]
    assert isinstance(read, Read)
    plain = all(isinstance(atom, str) for atom, _ in read.address.terms)
    if read.guards or read.extent or not plain:
        return read
    over, extents = {*made.facts.universe.members(summed)}, made.extents
    steps = sorted((step, extents[str(n)], n in over) for n, step in read.address.terms)
    return read.buffer, read.dtype.name, read.address.constant, read.fill, tuple(steps)


def allowed_preparations(
    made: Form,
    spec: ParallelProcessingUnit,
    emitted: Collection[str],
    float32_products: Collection[str],
) -> tuple[Preparation, ...]:
    """Those for operations that a target emits, by invocation name; of float32 factors those for
    operations that compute their products.
    """
    names = {one.name for one in spec.operations if one.invocation_name in emitted}
    found = []
    for one in preparations(made, spec):
        wide = made.facts.dtype(one.source).name == WIDE
        if not one.operations or one.operations & names & ({*float32_products} if wide else names):
            found.append(one)
    return tuple(found)


def prepared_rows(prepared: Iterable[Preparation], numbers: Mapping[Term, int]) -> list[str]:
    """The relation `prepared` as egglog facts, given the numbers of terms."""
    return [
        f'(prepared (node {numbers[a]}) (node {numbers[b]}) "{narrow}" {terms})'
        for a, b, narrow, terms in (one.row for one in prepared)
    ]


def used(prepared: Iterable[Preparation], stored: Iterable[Stored]) -> tuple[Preparation, ...]:
    """Those whose results a body reads."""
    terms = set(post_order(one.term for one in stored))
    return tuple(one for one in prepared if one.copy in terms)


def copies(prepared: Iterable[Preparation]) -> tuple[Preparation, ...]:
    """One for each copy that is made: several factors may read the same."""
    return tuple({one.stored: one for one in prepared}.values())


def lies_right(read: Read, need: Need, summed: int, batch: int, places: int, made: Form) -> bool:
    """Whether a factor can be copied as boxes that an operation takes: not where memory has the
    points of `batch`, names of both factors that stay, side by side, nor those of `places` in
    windows, of which an operation takes one at a time, unless the sum is over such alone.

    What guards and quotients make of an address is left to the target to judge, unless a window
    moves along what is contiguous by less than a unit, or a name walks an axis backwards.
    """
    if read.fill or read.stride * read.dtype.itemsize % need.alignment:
        return False
    if not read.extent and divided_names(read.address) & {*made.facts.universe.members(summed)}:
        return False  # of a gather the rows of pages lie together
    if read.guards:
        axes = pixel_axes(read, made.extents)
        if axes is None:
            return composed_axes(read, made.extents) is None
        backwards = any(by < 0 for axis in axes for _, by in axis.place.terms)
        own = axes[-1].place
        steps = sorted([by for _, by in own.terms])[1:]  # the run itself may begin at any of these
        size = read.dtype.itemsize
        between = any(by * size % need.alignment for by in (own.constant, *steps))
        return not (between and len(own.terms) > 1) and not backwards
    size, extents = read.dtype.itemsize, made.extents
    strides = {str(atom): c for atom, c in read.address.terms if extents.get(str(atom), 2) > 1}
    inner = [name for name, stride in strides.items() if stride == 1 and name in extents]
    others = [stride for stride in strides.values() if stride != 1]
    if len(inner) != 1 or any(s < 0 or s * size % need.alignment for s in others):
        return False
    if read.address.constant * size % need.alignment:
        return False
    along = made.facts.universe.mask(inner)
    if along & places and summed & ~places:
        return False
    return bool(along & summed) if need.summed else not along & batch


def rows_of_pages(read: Read, moved: Collection[str]) -> bool:
    """Whether a gather reads several rows that lie together for each value of its index, which
    depends on the names `moved`: by other names, or where the address has a remainder of theirs.
    """
    atoms = [atom for atom, stride in read.address.terms if stride != 1]
    rows = [str(atom) for atom in atoms if not isinstance(atom, FloorDiv)]
    return bool(rows) and not {*rows} & {*moved}


def factors_in_memory(made: Form, term: Term) -> Iterator[tuple[Term, int, int]]:
    """The factors of a product that may lie in memory, with the names that are summed over, and
    those that both factors have and the product too.
    """
    free, summed = made.facts.free, term.args[0]
    if term.op in WEIGHTED_SUMS:
        weights, values = term.children
        sides = (weights, made.beneath_cast(values))
    elif found := made.contraction(term):
        sides = found
    else:
        return
    assert isinstance(summed, int)
    batch = free(sides[0]) & free(sides[1]) & ~summed
    for factor in sides[1:] if term.op in WEIGHTED_SUMS else sides:
        yield factor, summed, batch


@dataclass(frozen=True)
class _Layout:
    """The names of a factor outermost first, the elements from row to row, the dtype that is stored
    in place of its own, if one is, and how many terms of it; or, where it is copied by the axes
    that several of its names walk, these axes.
    """

    names: tuple[str, ...]
    pitch: int
    dtype: str
    terms: int
    axes: tuple[WalkedAxis, ...] = ()

    def alike(self, factor: Term, extents: Mapping[str, int]) -> object:
        """What layouts of factors have in common that are the same but for names: how many points
        lie along each, and how far apart they were.
        """
        read = factor.args[0]
        assert isinstance(read, Read)
        steps = {str(atom): step for atom, step in read.address.terms}
        sizes = tuple((extents[name], steps.get(name, 0)) for name in self.names)
        return replace(self, names=()), sizes


def _layout(read: Read, need: Need, summed: int, places: int, made: Form) -> _Layout | None:
    """A factor as it lies, its rows apart as an operation needs; the longest summed name innermost
    where the operation asks for that, or memory has none innermost but one of `places`, in windows
    or of a batch, or one so short that a tile has others of the factor's own beside it. None where
    there is no such.
    """
    universe, extents = made.facts.universe, made.extents
    names = list(universe.members(universe.mask(read.names)))
    divided = divided_names(read.address) & {*universe.members(summed)}
    if run := _run(read, need, divided, made):
        return _Layout((), run[-1].extent, need.converts, need.terms, run)
    axes = None if divided else pixel_axes(read, extents)
    axes = axes or composed_axes(read, extents) or ()
    if any(axis.slides for axis in axes):
        return _by_axes(read, need, summed, made, axes)
    inner = summed & ~places or summed
    within = [name for name in names if universe.mask([name]) & inner]
    if not within:
        return None
    strides = {str(atom): c for atom, c in read.address.terms if isinstance(atom, str)}
    names.sort(key=lambda name: -strides.get(name, 0))
    last = names[-1]
    size = BY_NAME[need.converts or read.dtype.name].itemsize
    short = extents[last] * size < need.alignment or _in_short_runs(read, need, summed, made)
    place = bool(universe.mask([last]) & places & ~inner)
    own = [name for name in names if not universe.mask([name]) & (summed | places)]
    beside = last in own and len(own) > 1 and extents[last] < SHORT_ROWS
    if need.summed or strides.get(last) != 1 or short or place or beside:
        last = max(within, key=extents.__getitem__)
    row = need.alignment if divided and extents[last] * size < need.row else need.row
    pitch = _pitch(extents[last], size, row)
    outer = (name for name in names if name != last)
    return _Layout((*outer, last), pitch, need.converts, need.terms)


def _in_short_runs(read: Read, need: Need, summed: int, made: Form) -> bool:
    """Whether elements lie together along a summed name of few points, beside one of more: an
    operation multiplies many points of a single name at once.
    """
    mask, extents = made.facts.universe.mask, made.extents
    over = made.facts.universe.members(summed)
    along = [name for name in unit_names(read.address) if name in extents and mask([name]) & summed]
    size = BY_NAME[need.converts or read.dtype.name].itemsize
    few = bool(along) and extents[along[0]] * size < need.row
    return few and max(extents[name] for name in over) > extents[along[0]]


def _run(
    read: Read, need: Need, divided: Collection[str], made: Form
) -> tuple[WalkedAxis, ...] | None:
    """The axes with those last that are one run for a summed name: the last by its remainder, the
    one before it, along which windows may slide, by its quotient. None where there are no such, or
    they begin between the units of boxes.
    """
    axes = pixel_axes(read, made.extents) if divided else None
    size = BY_NAME[need.converts or read.dtype.name].itemsize
    for name in divided:
        for last in axes or ():
            rest = Affine(((Mod(var(name), last.extent), 1),), 0)
            above = Affine(((FloorDiv(var(name), last.extent), 1),), 0)
            if last.place == rest and last.extent * size % need.alignment == 0:
                own = [a for a in axes or () if above.terms[0] in a.place.terms]
                if len(own) == 1:
                    outer = (a for a in axes or () if a is not last and a is not own[0])
                    return (*outer, own[0], last)
    return None


def _pitch(extent: int, size: int, row: int) -> int:
    """Elements of `size` bytes from one row to the next: rows begin at multiples of `row` bytes."""
    step = max(row // size, 1)
    return -(-extent // step) * step


def _by_axes(
    read: Read, need: Need, summed: int, made: Form, axes: tuple[WalkedAxis, ...]
) -> _Layout | None:
    """The axes as they lie, but last the longest that a summed name walks alone. None where there
    is no such.
    """
    mask = made.facts.universe.mask
    within = [axis for axis in axes if axis.alone and mask([axis.alone]) & summed]
    if not within:
        return None
    last = max(within, key=lambda axis: axis.extent)
    size = BY_NAME[need.converts or read.dtype.name].itemsize
    row = need.row if last.extent * size >= need.row else need.alignment
    pitch = _pitch(last.extent, size, row)
    outer = (axis for axis in axes if axis is not last)
    return _Layout((), pitch, need.converts, need.terms, (*outer, last))


def _prepared(
    factor: Term, layout: _Layout, made: Form, number: int, index: str, operations: frozenset[str]
) -> Preparation:
    """The kernel's values and the read of them: by the factor's names, or where it is copied by its
    axes, by names of their own.
    """
    read = factor.args[0]
    assert isinstance(read, Read)
    universe, names, value = made.facts.universe, layout.names, factor
    name = f"t{made.stored[0].buffer}_prepared{number}"
    if layout.axes:
        names = tuple(universe.add(axis.extent) for axis in layout.axes)
        steps = (axis.address(own) for own, axis in zip(names, layout.axes, strict=True))
        address = add(const(first_place(read, layout.axes)), *steps)
        value = Term("read", Read(read.buffer, read.dtype, address))
    dtype, values = read.dtype, [value]
    if layout.dtype:
        dtype, values = BY_NAME[layout.dtype], [Term("cast", layout.dtype, value)]
    if layout.terms > 1:
        values = _terms(value, layout.dtype)
    extents = universe.extents
    pitch = layout.pitch if layout.pitch != extents[names[-1]] else 0
    shape = (*(extents[name] for name in names[:-1]), layout.pitch)
    each = prod(shape)
    stored = tuple(
        Stored(name, value, names, dtype, pitch, place * each) for place, value in enumerate(values)
    )
    copy = Read(name, dtype, stored[0].address(extents))
    if layout.axes:
        copy = replace(in_order(read, name, layout.axes, layout.pitch), dtype=dtype)
        copy = _along_run(copy, layout.axes)
    if layout.terms > 1:
        shape = (len(values), *shape)
        copy = replace(copy, address=add(copy.address, scale(var(index), each)))
    return Preparation(
        source=factor,
        copy=Term("read", copy),
        stored=stored,
        buffer=Buffer(name, shape, dtype, "temporary"),
        narrow=layout.dtype,
        terms=universe.mask([index]) if layout.terms > 1 else 0,
        operations=operations,
    )


def _along_run(read: Read, axes: tuple[WalkedAxis, ...]) -> Read:
    """A read of a copy, what guards the last axis but one as the run of the last two, if they are
    one.
    """
    if not divided_names(axes[-1].place):
        return read
    row, last = axes[-2:]
    run = add(scale(row.place, last.extent), last.place)
    guards = tuple(
        Guard(run, guard.lower * last.extent, guard.upper * last.extent)
        if guard.expression == row.place
        else guard
        for guard in read.guards
    )
    return replace(read, guards=guards)


def _terms(x: Term, narrow: str) -> list[Term]:
    """The terms of a float32 value, the largest first: each is what those before it leave,
    rounded. Where the value is not finite it is the first, and the others are 0.
    """

    def number(value: float) -> Term:
        return Term("literal", value, WIDE)

    finite = Term("isfinite", x)
    held = Term("maximum", x, number(-LARGEST[narrow]))  # what would be rounded to infinity
    held = Term("minimum", held, number(LARGEST[narrow]))
    found = [Term("cast", narrow, Term("where", finite, held, x))]
    left = x
    for _ in range(TERMS[narrow] - 1):
        left = Term("sub", left, Term("cast", WIDE, found[-1]))
        if len(found) == 1:
            left = Term("where", finite, left, number(0.0))
        found.append(Term("cast", narrow, left))
    return found
