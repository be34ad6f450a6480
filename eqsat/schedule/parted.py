"""Regions in place of one that has no kernel: values are stored that it computes inside."""

from dataclasses import replace

from eqsat.graph.index import row_major
from eqsat.kernel.ir import Buffer
from eqsat.terms.algebra import LEAVES, Facts, Read, Term, rebuild, with_children
from eqsat.terms.extremes import own_extremes
from eqsat.terms.form import REDUCING, Form, Stored


def in_two(name: str, made: Form, buffers: dict[str, Buffer]) -> list[tuple[Stored, ...]]:
    """Two regions for one that fits no schedule: the middle inner reduction is stored, or what is
    compared with its own extremum. Its buffer is added to `buffers`.

    Empty when there is no inner reduction.
    """
    roots = {one.term for one in made.stored}
    inner = [t for t in made.terms if t.op in REDUCING and t not in roots]
    if not inner:
        return []
    compared = (value for value, _ in own_extremes(made.terms))
    term = next(compared, inner[len(inner) // 2])
    first = _stored(f"t{name}", term, made.facts, buffers)
    read = _read(first, made.facts)

    def change(sub: Term, children: tuple[Term, ...]) -> Term:
        return read if sub is term else with_children(sub, children)

    rest = tuple(replace(one, term=rebuild(one.term, change)) for one in made.stored)
    return [(first,), rest]


def operation_by_operation(
    name: str, made: Form, buffers: dict[str, Buffer]
) -> list[tuple[str, tuple[Stored, ...]]]:
    """A region, with its name, for each operation of one that no rule fuses: operands come from
    memory. Buffers between them are added to `buffers`.
    """
    regions: list[tuple[str, tuple[Stored, ...]]] = []
    reads: dict[Term, Term] = {}
    roots = {one.term: one for one in made.stored}
    for term in made.terms:
        if term.op in LEAVES:
            reads[term] = term
            continue
        one = roots.get(term) or _stored(f"t{name}{len(reads)}", term, made.facts, buffers)
        body = with_children(term, tuple(reads[child] for child in term.children))
        reads[term] = _read(one, made.facts)
        regions.append((f"{name}_{len(reads)}", (replace(one, term=body),)))
    return regions


def _stored(buffer: str, term: Term, facts: Facts, buffers: dict[str, Buffer]) -> Stored:
    """A term that is stored in a new temporary."""
    names, dtype = facts.universe.members(facts.free(term)), facts.dtype(term)
    shape = tuple(facts.universe.extents[n] for n in names)
    buffers[buffer] = Buffer(buffer, shape, dtype, "temporary")
    return Stored(buffer, term, names, dtype)


def _read(one: Stored, facts: Facts) -> Term:
    """The whole of a stored value, read."""
    return Term("read", Read(one.buffer, one.dtype, row_major(one.names, facts.universe.extents)))
