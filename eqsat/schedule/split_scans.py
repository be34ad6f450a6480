"""Scans in parts: the values of a kernel that sums up each part, and of those that scan the parts,
each from what the parts before it leave.
"""

from dataclasses import dataclass, replace

from eqsat.graph.index import add, const, row_major, substitute, var
from eqsat.kernel.ir import Buffer, Guard
from eqsat.schedule.reduction_parts import Division, Parts, binds
from eqsat.terms.algebra import SCANS, Facts, Read, Term, Universe, rebuild
from eqsat.terms.algebra import with_children as over
from eqsat.terms.form import Form, Stored


def divide_scans(made: Form, axis: str, parts: int, stem: str) -> Division | None:
    """The kernel with its scans along the axis in parts; None where they cannot be.

    Of recurrences inside recurrences along other names, those along the axis are stored first.
    """
    if made.steps.inner:
        return _store_inner(made, axis, stem)
    return _ScanParts(made, axis, parts, stem).run_scans()


@dataclass
class _ScanParts(Parts):
    """Scans of parts, before which all of the parts before them are added,

    scan_x f(x)  at  p * L + x'  ->  sum_q t(q) [q < p]  +  scan_x' f(p * L + x'),
    t(p) = sum_x' f(p * L + x')

    and recurrences of parts, which begin with the state that the parts before them leave:

    scan_x (a, b)  at  p * L + x'  ->  scan_x' (a, b + a s(p) [x' = 0]),
    s(p) = scan_p (A(p - 1), B(p - 1)),  A = prod_x' a,  B = the last of scan_x' (a, b)
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rest = Universe(list(self.first.names), dict(self.first.extents))
        self.earlier = self.rest.add(self.first.extents[self.part])

    def run_scans(self) -> Division | None:
        """None where a reduction or another scan runs along the axis, or a result lacks it."""
        bit = self.made.facts.universe.mask([self.axis])
        scans = [t for t in self.made.terms if t.op in SCANS and t.args[0] & bit]  # type: ignore[operator]
        inside = [child for term in scans for child in term.children]
        bound = any(t.args[0] & bit for t in self.made.phase)  # type: ignore[operator]
        alone = not bound and not any(binds(child, bit) for child in inside)
        whole = all(self.axis in one.names and one.at is None for one in self.made.stored)
        if not alone or not whole or len({t.op for t in scans}) > 1:
            return None
        begun = {t: self._begun(t) if t.op == "scan_sum" else self._recurred(t) for t in scans}

        def change(term: Term, children: tuple[Term, ...]) -> Term:
            return begun[term] if term in begun else self.moved(over(term, children))

        rest = (self.part_of(one, rebuild(one.term, change)) for one in self.made.stored)
        return Division(
            first=tuple(self.values.values()),
            first_facts=self.facts,
            rest=tuple(rest),
            rest_facts=Facts(self.rest, self.made.facts.whole),
            part=self.part,
            buffers=tuple(self.buffers),
        )

    def _begun(self, term: Term) -> Term:
        """The scan of a part, and the sums of those before it."""
        (child,) = (self.placed(child) for child in term.children)
        own = self.first.mask([self.axis])
        rows = all(one.names[-1] == self.axis for one in self.made.stored)
        total = self.keep(Term("reduce_sum", own, child), together=rows)
        read = total.args[0]
        assert isinstance(read, Read)
        place = {self.part: var(self.earlier)}
        other = replace(read, address=substitute(read.address, place, self.rest.extents))
        before = Term("less", *(Term("position", var(n)) for n in (self.earlier, self.part)))
        none = Term("literal", 0.0, self.made.facts.dtype(term).name)
        sums = Term("where", before, Term("read", other, *total.args[1:]), none)
        earlier = Term("reduce_sum", self.rest.mask([self.earlier]), sums)
        return Term("add", earlier, Term(term.op, own, child))

    def _recurred(self, term: Term) -> Term:
        """The recurrence of a part, from the state that the one before it leaves."""
        own, part = self.first.mask([self.axis]), self.first.mask([self.part])
        dtype = self.made.facts.dtype(term).name
        place, none = Term("position", var(self.axis)), Term("literal", 0.0, dtype)
        factor, offset = (self.placed(child) for child in term.children)
        factor, offset = self.neutral(factor, "prod"), self.neutral(offset, "sum")
        states = Term(term.op, own, factor, offset)
        free = self.facts.free(states)
        for name in self.first.members(free & ~self.facts.free(factor)):  # a factor for each state
            inside = Term("less", Term("position", var(name)), _whole(self.first.extents[name]))
            factor = Term("where", inside, factor, none)
        last = Term("where", Term("equal", place, _whole(self.length - 1)), states, none)
        kept = self.keep(Term("reduce_prod", own, factor)), self.keep(Term("reduce_sum", own, last))
        state = Term(term.op, part, *map(self._before, kept))
        begun = Term("add", Term("mul", factor, state), offset)
        first = Term("equal", place, _whole(0))
        return Term(term.op, own, factor, Term("where", first, begun, offset))

    def _before(self, kept: Term) -> Term:
        """What the part before one leaves, 0 of the first."""
        read = kept.args[0]
        assert isinstance(read, Read)
        previous = add(var(self.part), const(-1))
        address = substitute(read.address, {self.part: previous}, self.rest.extents)
        guard = Guard(previous, 0, self.first.extents[self.part])
        return Term("read", replace(read, address=address, guards=(guard,)))


def _store_inner(made: Form, axis: str, stem: str) -> Division:
    """Recurrences along a name stored, and read by what remains."""
    universe, facts = made.facts.universe, made.facts
    bit, kept = universe.mask([axis]), dict[Term, Stored]()
    for term in made.terms:
        if term.op == "scan_affine" and term.args[0] == bit:
            free = universe.members(facts.free(term))
            inner = [name for name in free if name not in made.grid]
            names = (*(name for name in made.grid if name in free), *inner)
            name = f"t{stem}s{len(kept)}"
            kept[term] = Stored(name, term, names, facts.dtype(term).compute)

    def change(term: Term, children: tuple[Term, ...]) -> Term:
        if term not in kept:
            return over(term, children)
        one = kept[term]
        return Term("read", Read(one.buffer, one.dtype, row_major(one.names, universe.extents)))

    return Division(
        first=tuple(kept.values()),
        first_facts=facts,
        rest=tuple(replace(one, term=rebuild(one.term, change)) for one in made.stored),
        rest_facts=facts,
        part="",
        buffers=tuple(
            Buffer(s.buffer, tuple(universe.extents[n] for n in s.names), s.dtype, "temporary")
            for s in kept.values()
        ),
    )


def _whole(value: int) -> Term:
    """A number to compare a position with."""
    return Term("literal", float(value), "int64")
