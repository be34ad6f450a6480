"""Positions in 32 bits: values of a kernel that are declared int64 and always fit half of it.

A GPU's registers and integer units have 32 bits, a CPU's vectors more elements of them; where a
position of an axis, compared or selected, is shorter than that, so is all that is made of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from eqsat.graph.dtypes import DType, bool_, iinfo, int32, int64
from eqsat.graph.index import Affine, bounds
from eqsat.kernel.ir import (
    Carry,
    Kernel,
    Literal,
    Map,
    Position,
    Reduce,
    Statement,
    Update,
    operands,
)
from eqsat.terms.algebra import Facts, Term, post_order

Held = TypeVar("Held", Statement, Carry)
Range = tuple[int, int]
LIMIT = iinfo(int32)
EXTREMES = frozenset({"min", "max"})
SHIFTS = 32  # bits from which on an int32 is not shifted
KNOWN = frozenset(
    {"where", "minimum", "maximum", "add", "sub", "mul", "neg", "abs", "floor_divide", "remainder"}
    | {"shift_right", "bitwise_and"}
)


def in_short_integers(kernel: Kernel) -> Kernel:
    """The same kernel, its int64 values that are made of short positions in int32."""
    statements = list(kernel.statements())
    carries = {carry.name: carry for phase in kernel.phases for carry in phase.carries}
    extents = {name: axis.extent for name, axis in kernel.axes().items()}
    dtypes = {s.name: s.dtype for s in (*statements, *carries.values())}
    if len(dtypes) < len(statements) + len(carries):
        return kernel  # a name of two values
    ranges: dict[str, Range] = {}
    for s in statements:
        found = _wrapped(_range(s, ranges, dtypes, extents), s.dtype)
        if found and LIMIT.min <= found[0] and found[1] <= LIMIT.max:
            ranges[s.name] = found
            if isinstance(s, Update):
                ranges[s.carry] = found  # once there is a point
    updated: dict[str, list[Update]] = {name: [] for name in carries}
    for s in statements:
        if isinstance(s, Update):
            updated[s.carry].append(s)
    short = {s.name for s in statements if s.dtype == int64 and s.name in ranges}
    short |= {name for name in carries if carries[name].dtype == int64}
    kept: set[str] = set()
    while kept != short:  # what meets longer values stays as long
        kept = set(short)
        for s in statements:
            if not _met(s, short, dtypes):
                compares = isinstance(s, Map) and s.dtype == bool_
                short -= {s.name, *(operands(s) if compares else ())}
        for name, updates in updated.items():
            if not updates or any(u.name not in short for u in updates):
                short -= {name, *(u.name for u in updates)}
    if not any(dtypes[name] == int64 for name in short):
        return kernel
    phases = tuple(
        replace(
            phase,
            body=tuple(_shortened(s, short) for s in phase.body),
            carries=tuple(_shortened(c, short) for c in phase.carries),
        )
        for phase in kernel.phases
    )
    return replace(kernel, phases=phases)


def _shortened(one: Held, short: set[str]) -> Held:
    return replace(one, dtype=int32) if one.name in short else one


def _met(s: Statement, short: set[str], dtypes: Mapping[str, DType]) -> bool:
    """Whether a statement meets nothing longer than 32 bits."""
    names = operands(s)
    return all(dtypes[name] != int64 or name in short for name in names)


def _range(
    s: Statement,
    ranges: Mapping[str, Range],
    dtypes: Mapping[str, DType],
    extents: Mapping[str, int],
) -> Range | None:
    """The least and the largest that a value can be, of points that count; None where unknown."""
    match s:
        case Position(expression=expression):
            return bounds(expression, extents)
        case Literal(value=int(value), dtype=dtype) if dtype.kind == "int":
            return value, value
        case Reduce(monoid=monoid, argument=name) if monoid in EXTREMES:
            return ranges.get(name)
        case Update(monoid=monoid, chunk=name, scale=scale) if monoid in EXTREMES:
            inside = ranges.get(name)
            known = not scale or ranges.get(scale) == (0, 1)
            return (min(inside[0], 0), max(inside[1], 0)) if inside and known else None
        case Map(op="cast", arguments=(name,)) if s.dtype in (int32, int64):
            return ranges.get(name) or _whole(dtypes[name])
        case Map(op=op, arguments=names) if op in KNOWN:
            return joint(op, [ranges.get(name) for name in names[op == "where" :]])
    return None


def _whole(dtype: DType) -> Range | None:
    """The range of all truth values, or of all integers of a dtype; None of floats."""
    if dtype == bool_:
        return 0, 1
    limits = iinfo(dtype) if dtype.kind in ("int", "uint") else None
    return limits and (int(limits.min), int(limits.max))


def _wrapped(found: Range | None, dtype: DType) -> Range | None:
    """The range of integers of a dtype, where they wrap of all that it has."""
    limits = _whole(dtype)
    if found is None or limits is None:
        return found
    return found if limits[0] <= found[0] and found[1] <= limits[1] else limits


def joint(op: str, found: Sequence[Range | None]) -> Range | None:
    """The range of what an operation makes of integers in some ranges, as one of them may be; None
    where it may be anything.
    """
    if None in found:
        return None
    (low, high), *others = found  # type: ignore[misc]
    if op == "neg":
        return -high, -low
    if op == "abs":
        return max(low, -high, 0), max(high, -low)
    ((least, most),) = others
    match op:
        case "add":
            return low + least, high + most
        case "sub":
            return low - most, high - least
        case "mul":
            ends = [a * b for a in (low, high) for b in (least, most)]
        case "floor_divide" if least > 0:
            ends = [a // b for a in (low, high) for b in (least, most)]
        case "shift_right" if least >= 0 and most < SHIFTS:
            ends = [a >> b for a in (low, high) for b in (least, most)]
        case "remainder" if least > 0:
            ends = [low, high] if low >= 0 and high < least else [0, most - 1]
        case "bitwise_and" if least >= 0:
            ends = [0, most]
        case "where" | "minimum" | "maximum":
            ends = [low, high, least, most]
        case _:
            return None
    return min(ends), max(ends)


def works_in(term: Term, facts: Facts) -> DType:
    """The dtype of the arguments that a term's operation is computed in, short where it will be."""
    of = facts.dtype(term.children[0] if term.children else term)
    values = term.children[term.op == "where" :] or (term,)
    if facts.dtype(values[0]) != int64 or of not in (int64, bool_):
        return of
    whole = (*values, *((term,) if facts.dtype(term) == int64 else ()))
    return int32 if all(_fits(one, facts) for one in whole) else int64


def _fits(term: Term, facts: Facts) -> bool:
    """Whether the values of an int64 term fit in 32 bits."""
    for one in post_order([term]) if term not in facts.ranges else ():
        if one not in facts.ranges:
            facts.ranges[one] = _wrapped(_term_range(one, facts), facts.dtype(one))
    found = facts.ranges[term]
    return found is not None and LIMIT.min <= found[0] and found[1] <= LIMIT.max


def _term_range(term: Term, facts: Facts) -> Range | None:
    match term.op, term.args:
        case "position", (Affine() as expression,):
            return bounds(expression, facts.universe.extents)
        case "literal", (value, _) if facts.dtype(term).kind == "int":
            return int(value), int(value)  # type: ignore[call-overload]
        case "cast", (_, Term() as inner) if facts.dtype(term) in (int32, int64):
            return facts.ranges[inner] or _whole(facts.dtype(inner))
        case op, _ if op in KNOWN:
            return joint(op, [facts.ranges[one] for one in term.children[op == "where" :]])
    return None
