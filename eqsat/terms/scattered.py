"""Values that a kernel combines in memory, at positions that it computes.

`scatter_m(S, v, s, x)` is stored as no value of a tile is: a kernel goes over the indices of v and
x, and each point of x joins what lies at position v. The buffer starts at the monoid's identity,
which a kernel before it writes. Such a term is all that a kernel stores in a buffer, or nothing.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from eqsat.graph.dtypes import neutral
from eqsat.graph.index import Affine, row_major
from eqsat.kernel.ir import Access, Coordinate, Store
from eqsat.terms.algebra import SCATTERS, Facts, Term
from eqsat.terms.form import Form, Stored


@dataclass(frozen=True)
class Scattered:
    """What is combined: `value` at `index`, which counts places of `stride` elements; `address` is
    that of the place 0.
    """

    monoid: str
    index: Term
    value: Term
    address: Affine
    stride: int
    extent: int

    def store(self, buffer: str, index: str, value: str) -> Store:
        """The statement, given the names of both."""
        at = Coordinate(index, self.stride, self.extent)
        return Store(Access(buffer, self.address, (), (at,)), value, self.monoid)


def scattered(one: Stored, facts: Facts) -> Scattered | None:
    """How a stored value is combined in memory; None where it is not, or its places do not lie a
    fixed distance apart.
    """
    if one.term.op not in SCATTERS:
        return None
    _, index, place, value = one.term.args
    assert isinstance(index, Term) and isinstance(place, Term) and isinstance(value, Term)
    extents = facts.universe.extents
    names = facts.universe.members(facts.free(place))
    own = tuple(name for name in one.names if name in names)
    if place.op != "position" or len(own) < len(names):
        return None
    if place.args[0] != row_major(own, extents):
        return None
    strides = dict(one.address(extents).terms)
    stride = strides[own[-1]]
    places = row_major(own, extents)
    if any(strides[name] != stride * step for name, step in places.terms):  # type: ignore[index]
        return None
    rest = tuple(term for term in one.address(extents).terms if term[0] not in own)
    address = Affine(rest, one.address(extents).constant)
    extent = math.prod(extents[name] for name in own)
    return Scattered(SCATTERS[one.term.op], index, value, address, stride, extent)


def starts(stored: Iterable[Stored]) -> list[Stored]:
    """What the buffers hold before anything is combined in them."""
    return [
        replace(
            one,
            term=Term("literal", float(neutral(SCATTERS[one.term.op], one.dtype)), one.dtype.name),
        )
        for one in stored
        if one.term.op in SCATTERS
    ]


def is_misplaced(form: Form) -> bool:
    """Whether a scatter of the form is not all that its kernel stores in a buffer, other values
    are stored beside it, or its places do not lie a fixed distance apart.
    """
    found = [one for one in form.stored if one.term.op in SCATTERS]
    inside = any(term.op in SCATTERS for term in form.computed)
    apart = any(scattered(one, form.facts) is None for one in found)
    return inside or apart or 0 < len(found) < len(form.stored)
