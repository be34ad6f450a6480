"""Values that one kernel stores and another one moves, such as a part that a crop leaves: one
kernel computes both where elements of the second are stored as those of the first come.

Where a kernel reads a value t of names n at an address, which no two of its own points share, each
of its names is a sum of names n less a number: y[i] = f(t[i + 1]) is y[n - 1] = f(t[n]), stored
where n - 1 lies in y.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from eqsat.graph.index import Affine, add, const, row_major, scale, substitute, var
from eqsat.kernel.ir import Guard
from eqsat.terms.algebra import SCANS, SCATTERS, Facts, Read, Renaming, Term, post_order, rebuild
from eqsat.terms.algebra import with_children as over
from eqsat.terms.form import REDUCING, Stored
from eqsat.terms.reindex import push, push_inside
from eqsat.terms.renaming import read_renaming

ALONE = frozenset(
    {*REDUCING, *SCANS, *SCATTERS, "reindex", "gather"}
)  # of which other points are read


def stored_where_read(
    made: Mapping[str, Stored], kernel: Sequence[Stored], facts: Facts
) -> tuple[Stored, ...] | None:
    """The values of a kernel over the names of the one value in `made` that it reads, computed in
    its place; None where it reads several, or at points that cannot be told from the address.
    """
    extents = facts.universe.extents
    every = [t for t in post_order(one.term for one in kernel) if t.op == "read"]
    read = {t.args[0] for t in every if t.args[0].buffer in made}  # type: ignore[union-attr]
    alone = any(t.op in ALONE for t in post_order(one.term for one in kernel))
    if len(read) != 1 or alone or any(_is_fixed(one) for one in kernel):
        return None
    (found,) = read
    assert isinstance(found, Read)
    source, names = made[found.buffer], tuple(kernel[0].names)
    if found.guards or _is_fixed(source) or any({*one.names} != {*names} for one in kernel):
        return None
    renaming = invert(found.address, names, source.names, extents)
    if renaming is None:
        return None
    at = dict(zip(renaming.source, renaming.target, strict=True))
    whole = row_major(source.names, extents)

    def change(term: Term, children: tuple[Term, ...]) -> Term:
        own = term.args[0] if term.op == "read" else None
        if isinstance(own, Read) and own.buffer == source.buffer and own.address == whole:
            return source.term
        return over(term, children)

    return tuple(
        replace(
            one,
            term=rebuild(push_inside(renaming, one.term, facts), change),
            names=source.names,
            at=substitute(one.address(extents), at, extents),
            guards=renaming.guards,
        )
        for one in kernel
    )


def _is_fixed(one: Stored) -> bool:
    """Whether a value does not lie in its buffer as its names say."""
    elsewhere = one.at is not None or one.guards or one.pitch or one.offset
    return bool(elsewhere) or one.term.op in SCATTERS


def invert(
    address: Affine, names: Sequence[str], digits: Sequence[str], extents: Mapping[str, int]
) -> Renaming | None:
    """Each of the names, at which a buffer over `digits` is read, by the digits; guarded where the
    read leaves some of them out. None where two points could share an address, or a name is no sum.
    """
    strides = dict(address.terms)
    if {*strides} != {*names} or address.constant < 0:
        return None
    above = 1
    place: dict[str, tuple[int, int]] = {}  # of each digit, its stride and where the next begins
    for name in reversed(digits):
        place[name] = above, above * extents[name]
        above = place[name][1]
    target: dict[str, Affine] = {}
    guards: list[Guard] = []
    rest = address.constant
    for name in sorted(names, key=lambda n: -strides[n]):
        stride = strides[name]
        own = [d for d in digits if stride <= place[d][0] < above]
        if stride < 1 or above % stride or any(place[d][0] % stride for d in own):
            return None
        first, span = rest // stride, above // stride
        if first + extents[name] > span or any(place[d][1] > above for d in own):
            return None
        position = add(*(scale(var(d), place[d][0] // stride) for d in own), const(-first))
        target[name] = position
        if extents[name] < span:
            guards.append(Guard(position, 0, extents[name]))
        rest, above = rest % stride, stride
    if above != 1:
        return None
    return Renaming(tuple(target), tuple(target.values()), tuple(guards))


def in_place(term: Term, made: Iterable[Stored], facts: Facts) -> Term:
    """A term with stored values in place of what it reads of them, wherever it reads it."""
    stored, universe = {one.buffer: one for one in made}, facts.universe

    def change(sub: Term, children: tuple[Term, ...]) -> Term:
        read = sub.args[0] if sub.op == "read" else None
        if not isinstance(read, Read) or read.buffer not in stored:
            return over(sub, children)
        one = stored[read.buffer]
        return push(read_renaming(read, one.names, universe), one.term, facts)

    return rebuild(term, change)
