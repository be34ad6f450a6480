"""Reductions of outer combinations: results share what they are computed of, as a product's do.

In `max_k |a[i, k] - b[j, k]|` each element of a meets all rows of b: threads that have a square of
results read each of them once for a row or column of it, whatever is computed of both. Such a
value, that lacks some of the results' indices, is a side; what spans them all lies between.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import combinations

from eqsat.graph.index import unit_names
from eqsat.graph.ops import ELEMENTWISE
from eqsat.kernel.ir import Axis, Contract, Kernel, Literal, Load, Map, Position, Reduce, Statement
from eqsat.terms.algebra import Facts, Term


def outer_sides(term: Term, facts: Facts, uses: Mapping[Term, int]) -> tuple[Term, Term] | None:
    """Two sides of a reduction, each with an index of the results that the other lacks, as they are
    before they are cast; None where it has no such.
    """
    results = facts.free(term)
    met: dict[Term, int] = {}
    sides: dict[Term, int] = {}
    waiting = [*term.children]
    while waiting:
        one = waiting.pop()
        met[one] = met.get(one, 0) + 1
        if met[one] > 1:
            continue
        own = facts.free(one) & results
        if own != results:
            sides |= {} if one.op in ("literal", "position") else {_beneath_cast(one): own}
        elif one.op in ELEMENTWISE:
            waiting += one.children
        else:
            return None
    between = (one for one in met if facts.free(one) & results == results)
    if any(uses[one] != met[one] for one in between):
        return None
    pairs = combinations(reversed(sides), 2)  # the last met is the first operand
    return next((p for p in pairs if shares_factors(sides[p[0]], sides[p[1]])), None)


def shares_factors(left: int, right: int) -> bool:
    """Whether results of a sum of products share both factors, of those names: as in a product
    of matrices, not in one with a vector, where each result has its own row.
    """
    return bool(left & ~right and right & ~left)


def _beneath_cast(term: Term) -> Term:
    return term.children[0] if term.op == "cast" else term


@dataclass(frozen=True)
class Outer:
    """Such a reduction in a kernel: its `sides`, each by the name that is read of it, which may be
    a cast of it; and what lies `between` them and the reduction, in order.
    """

    reduce: Reduce
    sides: Mapping[str, str]
    between: tuple[Map, ...]

    @property
    def inside(self) -> set[str]:
        """The values that nothing but the reduction has a use for."""
        casts = {name for name, source in self.sides.items() if name != source}
        return casts | {s.name for s in self.between}


def find_outer(
    kernel: Kernel, users: Mapping[str, Collection[str]], indices: Mapping[str, tuple[str, ...]]
) -> dict[str, Outer]:
    """Those of a kernel, by the names of their reductions; a tile has several results along each
    index that tells the sides apart, and several points to reduce: a recurrence goes one by one.
    """
    found: dict[str, Outer] = {}
    several = _several(kernel.axes())
    for phase in kernel.phases:
        body = {s.name: s for s in phase.body}
        for s in phase.body:
            if isinstance(s, Reduce) and several & {*s.over}:
                outer = _outer(s, several & {*s.indices}, body, users, indices)
                found |= {} if outer is None else {s.name: outer}
    return found


def sums_rows(c: Contract, statements: Mapping[str, Statement], axes: Mapping[str, Axis]) -> bool:
    """Whether results share no factor of a sum of products, one of which memory holds along what is
    summed: as rows are added up, by threads that lie along them.
    """
    several = _several(axes)
    factors = [statements.get(name) for name in (c.left, c.right)]
    left, right = ({*s.indices} & {*c.indices} & several if s else several for s in factors)
    if left - right and right - left:
        return False
    casts = [s for s in factors if isinstance(s, Map) and s.op == "cast"]
    sources = [*factors, *(statements.get(s.arguments[0]) for s in casts)]
    along = [unit_names(s.access.address) & several for s in sources if isinstance(s, Load)]
    return bool(along) and all(names <= {*c.over} for names in along)  # windows lie along others


def _several(axes: Mapping[str, Axis]) -> set[str]:
    """The indices of which a tile has more than one point."""
    return {name for name, axis in axes.items() if min(axis.tile, axis.extent) > 1}


def _outer(
    reduce: Reduce,
    results: set[str],
    body: Mapping[str, Statement],
    users: Mapping[str, Collection[str]],
    indices: Mapping[str, tuple[str, ...]],
) -> Outer | None:
    between: dict[str, Map] = {}
    sides: dict[str, str] = {}
    waiting = [reduce.argument]
    while waiting:
        name = waiting.pop()
        s = body.get(name)
        if results - {*indices[name]}:
            if not isinstance(s, Literal | Position):
                sides[name] = s.arguments[0] if isinstance(s, Map) and s.op == "cast" else name
        elif isinstance(s, Map):
            between[name] = s
            waiting += [one for one in s.arguments if one not in between]
        else:
            return None
    inside = {reduce.name, *between}
    if not all({*users[name]} <= inside for name in between):
        return None
    for name, source in sides.items():  # a cast that others read too has a place of its own
        sides[name] = source if {*users[name]} <= inside else name
    own = [{*indices[name]} & results for name in sides]
    if not any(a - b and b - a for a, b in combinations(own, 2)):
        return None
    return Outer(reduce, sides, tuple(s for s in body.values() if s.name in between))
