"""Factors that are pieces of memory side by side: each one read, for copies of whole tiles.

    sum_k where(k < n, a[i, k], b[i, k - n]) * w[k, j]   ->   sum_k ab[i, k] * w[k, j]

A tile that lies in one piece is copied from there; none is copied that is not used.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from eqsat.encode.known import Known
from eqsat.graph.index import Affine, add, row_major
from eqsat.kernel.idle_chunks import COMPARED, compared
from eqsat.kernel.joined import Joined, Piece
from eqsat.layout.prepare import factors_in_memory
from eqsat.terms.algebra import Facts, Read, Term, post_order, substituted
from eqsat.terms.form import Stored, form

UNIT = 16  # points at multiples of which pieces begin, and bytes that divide their strides
MOST_PIECES = 8
Values = tuple[tuple[Stored, ...], Facts]
Part = tuple[int, int, Read]  # the first point, the one after the last, what is read there


def joined_reads(stored: tuple[Stored, ...], facts: Facts) -> Values | None:
    """The same values, each factor of a product that is read in pieces as one read, and facts of
    their own, which tell forms apart; None where none is.
    """
    if not any(term.op == "where" for term in post_order(one.term for one in stored)):
        return None
    made, known = form(stored, facts), Known(facts)
    found = {
        factor: read
        for term in made.terms
        for factor, *_ in factors_in_memory(made, term)
        if factor.op == "where" and (read := _joined(factor, facts, known))
    }
    if not found:
        return None

    joined = tuple(replace(one, term=substituted(one.term, found)) for one in stored)
    return joined, Facts(facts.universe, facts.whole)


def _joined(term: Term, facts: Facts, known: Known) -> Term | None:
    """A value that is read in pieces as one read of all of them."""
    split = _margin(term, known)
    if split is None:
        return None
    name, extents = split[0], facts.universe.extents
    parts = list(_parts(term, name, (0, extents[name]), known))
    if not 1 < len(parts) <= MOST_PIECES or any(part is None for part in parts):
        return None
    own_parts = [_walked(part, name, parts) for part in parts if part]
    reads = [part[2] for part in own_parts]
    steps = [{str(atom): step for atom, step in read.address.terms} for read in reads]
    names = sorted(steps[0], key=lambda n: -steps[0][n])
    units = {tuple(n for n, step in own.items() if step == 1) for own in steps}
    if len(units) > 1 or any(own.keys() != steps[0].keys() for own in steps) or name not in names:
        return None
    pieces = []
    for first, after, read in own_parts:
        own = {str(atom): step for atom, step in read.address.terms}
        offset, size = read.address.constant + first * own[name], read.dtype.itemsize
        far = [offset, *(step for step in own.values() if step != 1)]
        if first % UNIT or any(step < 0 or step * size % UNIT for step in far):
            return None
        pieces.append(Piece(read.buffer, first, after, offset, tuple(own[n] for n in names)))
    joined = Joined(tuple(extents[n] for n in names), names.index(name), tuple(pieces))
    address = row_major(names, extents)
    if joined.accesses(address)[0].address != reads[0].address:
        return None  # an axis of one point that two names share
    buffer = "+".join(piece.buffer for piece in pieces)
    return Term("read", Read(buffer, facts.dtype(term), address, joined=joined))


def _walked(part: Part, name: str, parts: Sequence[Part | None]) -> Part:
    """A part of one point, whose address does not depend on the name, as if others followed as far
    apart as in the first part of more.
    """
    first, after, read = part
    if after - first > 1 or name in dict(read.address.terms):
        return part
    found = (dict(one[2].address.terms).get(name, 0) for one in parts if one)
    step = next(filter(None, found), 0)
    along = Affine(((name, step),), -first * step)
    return (first, after, replace(read, address=add(read.address, along))) if step else part


def _margin(term: Term, known: Known) -> tuple[str, int, bool] | None:
    """The name that a choice goes by, the point from which on it is the other one, and whether the
    first is chosen before that.
    """
    condition = term.children[0]
    if condition.op not in COMPARED:
        return None
    a, b = (known.integer(side) for side in condition.children)
    if a is None or b is None:
        return None
    margin = compared(condition.op, a, b)
    if len(margin.terms) != 1:
        return None
    ((atom, step),) = margin.terms
    if not isinstance(atom, str) or abs(step) != 1:
        return None
    return (atom, margin.constant + 1, True) if step < 0 else (atom, -margin.constant, False)


def _parts(term: Term, name: str, span: tuple[int, int], known: Known) -> Iterator[Part | None]:
    """What is read at which points of a name, in order; None where something is not plain."""
    first, after = span
    if term.op == "where":
        found = _margin(term, known)
        if found is None or found[0] != name:
            yield None
            return
        _, at, before = found
        at = min(max(at, first), after)
        low, high = term.children[1:] if before else term.children[:0:-1]
        for part, own in ((low, (first, at)), (high, (at, after))):
            if own[0] < own[1]:
                yield from _parts(part, name, own, known)
        return
    read = term.args[0] if term.op == "read" else None
    plain = isinstance(read, Read) and read.joined is None
    yield (first, after, read) if plain and _is_there(read, name, span) else None


def _is_there(read: Read, name: str, span: tuple[int, int]) -> bool:
    """Whether a read at an address of whole steps has all of its points."""
    for guard in read.guards:
        terms, constant = guard.expression.terms, guard.expression.constant
        inside = guard.lower <= span[0] + constant and span[1] - 1 + constant < guard.upper
        if terms != ((name, 1),) or not inside:
            return False
    return all(isinstance(atom, str) for atom, _ in read.address.terms)
