"""From terms to kernel normal form: which loop each reduction lives in, and in which phase.

A reduction that does not depend on the indices of the loops around it is hoisted out of them; its
phase is one more than the highest phase of the hoisted reductions inside it. What is not hoisted
stays in the body of its loop and is done wholly inside each tile.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from operator import or_

from eqsat.graph.dtypes import DType
from eqsat.graph.index import Affine, add, const, row_major, unit_names
from eqsat.kernel.ir import Guard
from eqsat.terms.algebra import (
    LEAVES,
    REDUCTIONS,
    SCATTERS,
    WEIGHTED,
    WEIGHTED_SUMS,
    Facts,
    Read,
    Term,
    post_order,
    read_along,
)
from eqsat.terms.outer_reductions import outer_sides, shares_factors
from eqsat.terms.scans import Steps, find_steps

SUBSTITUTED = frozenset({"contract", "weighted_contract", "narrow_contract"})
REDUCING = frozenset((*REDUCTIONS, *WEIGHTED, *SUBSTITUTED))

HALF = 2  # bytes of a float of 16 bits
WIDENED = {
    "bfloat16": "float32", "float16": "float32", "float8_e4m3fn": "float32",
    "float8_e5m2": "float32", "int8": "int32", "uint8": "int32",
}  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """A value that a kernel writes: buffer, term, names outermost first (the buffer's order).

    `pitch`: elements from one row of the last name to the next; 0 where rows follow each other.
    `offset`: elements of the buffer before the first. `at`: where each element lies instead, of
    those for which the `guards` hold.
    """

    buffer: str
    term: Term
    names: tuple[str, ...]
    dtype: DType
    pitch: int = 0
    offset: int = 0
    at: Affine | None = None
    guards: tuple[Guard, ...] = ()

    def address(self, extents: Mapping[str, int]) -> Affine:
        """Where each element lies in the buffer."""
        if self.at is not None:
            return self.at
        row = {self.names[-1]: self.pitch} if self.pitch else {}
        return add(row_major(self.names, {**extents, **row}), const(self.offset))

    def read_back(self, extents: Mapping[str, int]) -> Term:
        """All of the value, read where it lies."""
        return Term("read", Read(self.buffer, self.dtype, self.address(extents)))


def is_product(term: Term, facts: Facts) -> bool:
    """Whether a term is a sum of products whose results share factors, weighted or not."""
    if term.op in WEIGHTED_SUMS:
        return term.children[1].op != "literal"
    if term.op != "reduce_sum" or term.children[0].op != "mul":
        return False
    left, right = term.children[0].children
    return shares_factors(facts.free(left), facts.free(right))


def multiplies_matrices(terms: Iterable[Term], facts: Facts) -> bool:
    """Whether there are sums of products of which results share both factors."""
    for term in terms:
        by_operation = term.op in SUBSTITUTED and shares_factors(*map(facts.free, term.children))
        if by_operation or is_product(term, facts):
            return True
    return False


def multiplies_anew(term: Term, facts: Facts) -> bool:
    """Whether a sum that is no product of two factors in memory multiplies something computed, or
    several, which are the same at many of its points.
    """
    if term.op != "reduce_sum":
        return False
    inner, every = facts.free(term.children[0]), _multiplied(term.children[0])
    summed = [one for one in every if facts.free(one) & int(term.args[0])]
    shared = [one for one in summed if facts.free(one) != inner]
    computed = any(beneath_cast(one, facts).op not in LEAVES for one in shared)
    return computed or (len(summed) > 2 and len(shared) > 0)


def _multiplied(term: Term) -> list[Term]:
    if term.op != "mul":
        return [term]
    return [one for child in term.children for one in _multiplied(child)]


def beneath_cast(term: Term, facts: Facts) -> Term:
    """The narrow float or integer that a factor was widened from, or the factor."""
    if term.op == "cast":
        below = term.children[0]
        if term.args[0] == WIDENED.get(facts.dtype(below).name):
            return below
    return term


def computed(one: Stored) -> tuple[Term, ...]:
    """The terms that a kernel computes to store a value: it, or an index and what goes there."""
    if one.term.op not in SCATTERS:
        return (one.term,)
    index, _, value = one.term.children
    return index, value


def walked(one: Stored, facts: Facts) -> int:
    """The names over which a kernel stores a value: its own, or those of what it scatters."""
    names = 0 if one.term.op in SCATTERS else facts.universe.mask(one.names)
    for term in computed(one):
        names |= facts.free(term)
    return names


@dataclass(frozen=True)
class Form:
    """A kernel before scheduling.

    `grid` are the parallel names; `reduced` the names of hoisted reductions, each streamed or
    resident by the schedule; `nested` those of reductions inside a stream's body, always resident.
    `held` are names of both kinds: resident too. `phase` numbers the hoisted reductions; `ready`
    says after how many phases each stored value can be computed. `steps` says which of the reduced
    names scans may be stepped along.
    """

    stored: tuple[Stored, ...]
    grid: tuple[str, ...]
    reduced: tuple[str, ...]
    nested: tuple[str, ...]
    held: frozenset[str]
    phase: dict[Term, int]
    ready: dict[Stored, int]
    uses: dict[Term, int]
    terms: tuple[Term, ...]
    facts: Facts
    steps: Steps

    @cached_property
    def stepped(self) -> str:
        """The name that scans may be stepped along; empty where there is none."""
        (name,) = self.facts.universe.members(self.steps.along) or ("",)
        return name

    @cached_property
    def computed(self) -> tuple[Term, ...]:
        """The terms that tiles compute, arguments first: no scatter, nor where it would go."""
        if all(one.term.op not in SCATTERS for one in self.stored):
            return self.terms
        return tuple(post_order(term for one in self.stored for term in computed(one)))

    @cached_property
    def row_points(self) -> int:
        """Points of the rows that are reduced inside a stream's chunks and stored too, 1 for none:
        each tile has all of them. Beside products of matrices tiles have rows of theirs.
        """
        if multiplies_matrices(self.terms, self.facts):
            return 1
        own = reduce(or_, (walked(one, self.facts) for one in self.stored))
        rows = self.facts.universe.mask(self.nested) & own
        return math.prod(self.extents[name] for name in self.facts.universe.members(rows))

    @property
    def extents(self) -> dict[str, int]:
        """Extent of every name."""
        return self.facts.universe.extents

    def oriented(self, factors: tuple[Term, Term], result: int) -> tuple[Term, Term]:
        """The factors of a product over the names of `result`, second the one that gives its
        innermost index.

        That is the factor which walks an index of its own with stride one in memory; where both or
        neither do, the one that spans the innermost index of what is stored.
        """
        left, right = factors
        universe = self.facts.universe
        own = [{*universe.members(self.facts.free(factor) & result)} for factor in factors]
        unit = [
            bool((own[i] - own[1 - i]) & read_along(post_order([f]))) for i, f in enumerate(factors)
        ]
        if unit[0] != unit[1]:
            return (right, left) if unit[0] else (left, right)
        order = list(dict.fromkeys(n for one in self.stored for n in one.names))
        inner = [name for name in universe.names if name not in order]
        last = max(universe.members(result), key=[*order, *inner].index, default="")
        return (right, left) if last in own[0] - own[1] else (left, right)

    def contraction(self, term: Term) -> tuple[Term, Term] | None:
        """The two factors of a sum of products, beneath casts to the sum's dtype."""
        if term.op == "contract":
            left, right = term.children
            return self.beneath_cast(left), self.beneath_cast(right)
        if term.op == "narrow_contract":
            left, right = term.children
            if term.args[6]:  # split already
                return self.beneath_cast(left), self.beneath_cast(right)
            return left, right
        if term.op != "reduce_sum":
            return None
        product = term.args[1]
        assert isinstance(product, Term)
        if product.op != "mul" or self.uses[product] > 1:
            return None
        mask = term.args[0]
        left, right = product.children
        assert isinstance(mask, int)
        both = self.facts.free(left) & self.facts.free(right)
        if mask & ~both or left is right or self.facts.free(product) & self.steps.along:
            return None
        if not shares_factors(self.facts.free(left), self.facts.free(right)):
            return None
        return self.beneath_cast(left), self.beneath_cast(right)

    def factors(self, term: Term) -> tuple[Term, Term] | None:
        """The two values that results of a reduction share: factors of a sum of products, or sides
        of what else is computed of both.
        """
        found = self.contraction(term)
        if found is None and term.op in REDUCTIONS:
            stepped = self.facts.free(term.children[0]) & self.steps.along
            found = None if stepped else outer_sides(term, self.facts, self.uses)
        return found

    def met(self, term: Term) -> tuple[Term, Term] | None:
        """The factors of a sum of products; of a weighted sum its weights and values."""
        if term.op in WEIGHTED_SUMS and term.children[1].op != "literal":
            s, r = term.children
            return s, r
        return self.factors(term)

    @cached_property
    def narrowest(self) -> int:
        """Bytes of an element of the narrowest factor as it lies in memory; of one beside a wider
        one those of 16 bits, as which operations take it.
        """
        least = []
        for factors in (self.met(term) or () for term in self.terms):
            stored = (side.children[0] if side.op == "cast" else side for side in factors)
            sizes = {self.facts.dtype(side).itemsize for side in stored}
            least += [max(min(sizes), HALF if len(sizes) > 1 else 1)] if sizes else []
        return min(least)

    @cached_property
    def operations(self) -> dict[Term, str]:
        """The operation of the spec for each sum of products that one computes."""
        return {t: str(t.args[3]) for t in self.terms if t.op in SUBSTITUTED and t.args[3]}

    def operands(self) -> Iterator[Term]:
        """The factors of sums of products and the like: what a schedule stages, of what is read."""
        for term in self.terms:
            if term.op in WEIGHTED_SUMS:  # the weights are computed
                weights, values = map(self.facts.free, term.children)
                if term.op in SUBSTITUTED or shares_factors(weights, values):
                    yield self.beneath_cast(term.children[1])
            else:
                yield from self.factors(term) or ()

    def beneath_cast(self, term: Term) -> Term:
        """The narrow float or integer that a factor was widened from, or the factor."""
        return beneath_cast(term, self.facts)


def form(stored: Iterable[Stored], facts: Facts) -> Form:
    """The normal form of a kernel that computes and stores those values."""
    return _form(tuple(stored), facts)


@lru_cache(maxsize=512)
def _form(stored: tuple[Stored, ...], facts: Facts) -> Form:
    universe = facts.universe
    terms = tuple(post_order(one.term for one in stored))
    steps = find_steps(terms)
    phase: dict[Term, int] = {}
    nested = steps.held
    below: dict[tuple[Term, int], int] = {}

    def visit(root: Term, around: int) -> None:
        """Count the phases that must run before the term, in loops over `around`."""
        nonlocal nested
        todo = [(root, around)]
        while todo:
            term, bound = todo[-1]
            reduces = term.op in REDUCING
            inside, mask = bound, term.args[0] if reduces else 0
            assert isinstance(mask, int)
            within = reduces and bool(facts.free(term) & bound)
            if reduces:
                inside = ((bound if within else steps.along) | mask) & ~facts.whole
            missing = [(c, inside) for c in term.children if (c, inside) not in below]
            if missing:
                todo += missing
                continue
            todo.pop()
            before = max((below[c, inside] for c in term.children), default=0)
            if within:
                nested |= mask
            elif reduces:
                phase[term] = max(phase.get(term, 0), before)
                before = phase[term] + 1
            below[term, bound] = before

    around = steps.along or _swept(stored, facts)
    ready: dict[Stored, int] = {}
    for one in stored:
        for term in computed(one):
            visit(term, around)
            ready[one] = max(ready.get(one, 0), below[term, around])
    reduced = steps.along
    for term in phase:
        reduced |= term.args[0]  # type: ignore[operator]
    for term in phase:  # a name that one reduction keeps while another reduces it: no loop of both
        nested |= facts.free(term) & reduced
    if nested & steps.along:  # a loop of its own binds the name: it lies in the tile
        steps = replace(steps, along=0)
    for term in phase if steps.along else ():
        mask = term.args[0]
        nested |= mask & ~steps.along if mask & steps.along else 0  # type: ignore[operator]
    for one in stored if steps.along else ():
        nested |= walked(one, facts) & reduced & ~steps.along
    free = 0
    names: list[str] = []
    for one in stored:
        own = walked(one, facts)
        free |= own
        if one.term.op in SCATTERS:  # what is summed up, before the names of what it becomes
            names += universe.members(own & ~universe.mask((*names, *one.names)))
        own = [name for name in one.names if universe.mask([name]) & own]
        names += [name for name in own if name not in names]
    names += [name for name in universe.members(free) if name not in names]
    inside = set(universe.members(reduced | nested))
    uses: dict[Term, int] = {}
    for term in terms:
        for child in term.children:
            uses[child] = uses.get(child, 0) + 1
    for one in stored:
        uses[one.term] = uses.get(one.term, 0) + 1
    return Form(
        stored=stored,
        grid=tuple(name for name in names if name not in inside),
        reduced=universe.members(reduced),
        nested=universe.members(nested & ~reduced),
        held=frozenset(universe.members(nested & reduced)),
        phase=phase,
        ready=ready,
        uses=uses,
        terms=terms,
        facts=facts,
        steps=steps,
    )


def _swept(stored: tuple[Stored, ...], facts: Facts) -> int:
    """The names in one loop over which all is computed that has them, beside sums over them: of
    which nothing that has a name of these needs a reduction over it, as gradients of the rows of a
    norm and sums of these over all rows. Where sums over rows and over columns cross, rows lie
    along memory. None beside products of matrices: tiles of those have rows of their own.
    """
    terms = tuple(post_order(one.term for one in stored))
    if multiplies_matrices(terms, facts):
        return 0
    reduced: dict[Term, int] = {}  # names over which there are reductions beneath a term
    apart, walks, over = 0, 0, 0
    for term in terms:
        below = reduce(or_, (reduced[child] for child in term.children), 0)
        if term.op in REDUCING:
            below |= int(term.args[0])
        reduced[term] = below
        apart |= facts.free(term) & below
    for one in stored:
        walks |= walked(one, facts)
        over |= reduced[one.term]
    swept = walks & over & ~apart
    sums = [(facts.free(t), int(t.args[0])) for t in terms if t.op in REDUCING]
    crossed = reduce(or_, (free | own for free, own in sums if free & swept and own & swept), 0)
    if not crossed:
        return swept
    reads = (t.args[0] for t in terms if t.op == "read")
    along = {name for read in reads for name in unit_names(read.address)}  # type: ignore[union-attr]
    return swept & ~(crossed & facts.universe.mask(along))


def loops(made: Form, streamed: int) -> dict[tuple[int, int], list[Term]]:
    """The hoisted reductions of each loop over streamed names, by its phase and these names."""
    found: dict[tuple[int, int], list[Term]] = {}
    for term, number in made.phase.items():
        over = int(term.args[0])  # type: ignore[call-overload]
        if over & streamed:
            found.setdefault((number, over & streamed), []).append(term)
    return found


def stored_in(made: Form, one: Stored, streamed: int) -> tuple[int, int]:
    """The phase and streamed names of the loop in which a value is stored, where there is one; a
    scatter is in none.
    """
    if one.term.op in SCATTERS:
        return -1, 0
    return made.ready[one], walked(one, made.facts) & streamed


def stored_late(made: Form, streamed: int) -> list[Stored]:
    """The values that are stored after all these loops."""
    every = loops(made, streamed)
    return [one for one in made.stored if stored_in(made, one, streamed) not in every]


def passes(made: Form, streamed: int) -> dict[Term, int]:
    """In how many phases a term is computed anew, where it depends on streamed names."""
    groups: dict[tuple[int, int], list[Term]] = {}
    for (number, over), reductions in loops(made, streamed).items():
        groups[number, over] = [child for term in reductions for child in term.children]
    late = stored_late(made, streamed)
    for one in made.stored:
        if one not in late:
            groups[stored_in(made, one, streamed)] += computed(one)
    shared = 0
    for one in late:
        shared |= walked(one, made.facts) & streamed
    if shared:
        last = 1 + max(made.phase.values(), default=0)
        groups[last, shared] = [term for one in late for term in computed(one)]
    counts: dict[Term, int] = {}
    for (number, _), roots in groups.items():
        seen: set[Term] = set()
        stack = list(roots)
        while stack:
            term = stack.pop()
            streams = made.facts.free(term) & streamed
            if term in seen or (made.phase.get(term, number) < number and not streams):
                continue
            seen.add(term)
            if streams:
                counts[term] = counts.get(term, 0) + 1
            stack += term.children
    return counts
