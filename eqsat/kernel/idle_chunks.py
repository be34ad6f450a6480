"""Chunks of a stream that change nothing: where a mask makes every carry keep its value, or what
is stored of a tile something else.

Positions are compared with each other, or with an integer that memory gives a tile, such as the
length of a sequence: that is a name of its own in index expressions (`told`). Found by running the
body on what is known of each value when a comparison fails at all points of a chunk: scores are
then the lowest number, their weights zero, sums of them zero. A factor that such a weight meets is
taken to be a number: what is skipped is not looked at.
"""

from collections.abc import Mapping, Sequence

from eqsat.graph.index import Affine, add, const, free_names, sub, var
from eqsat.kernel.ir import (
    Axis,
    Contract,
    Kernel,
    Literal,
    Load,
    Map,
    Phase,
    Position,
    Reduce,
    Statement,
    Update,
    operands,
    store_operands,
)

LOWEST, ZERO, FALSE, ONE, KEPT = "lowest", "zero", "false", "one", "kept"
TOLD = "= "  # before the name of a value: no index has such a name
COMPARED = {"greater_equal": 0, "greater": 1, "less_equal": 0, "less": 1}


def live_bounds(kernel: Kernel, phase: Phase) -> list[Affine]:
    """Expressions in the kernel's indices, and values that it is `told`: a chunk at all of whose
    points one of them is negative leaves every carry as it was, or a tile's carries unread.
    """
    if not phase.stream or phase.stores:
        return []
    known = {s.name: s for s in kernel.statements()}
    alone = {i for i, axis in kernel.axes().items() if min(axis.tile, axis.extent) == 1}
    alone -= {axis.name for axis in phase.stream}
    positions = _told(known, alone) | _positions(known)
    moving = {axis.name for one in kernel.phases for axis in one.stream}
    found = []
    for s in phase.body:
        margin = _margin(s, positions) if isinstance(s, Map) and s.op in COMPARED else None
        if margin is not None and _is_idle(phase, known, s.name):
            found.append(margin)
    for s in known.values():
        margin = _margin(s, positions) if isinstance(s, Map) and s.op in COMPARED else None
        if margin is None or margin in found or moving & free_names(margin):
            continue
        if _is_unread(kernel, phase, s.name):
            found.append(margin)
    return found


def mask_margins(kernel: Kernel, mask: str) -> list[Affine]:
    """Index expressions that are all at least 0 where a mask holds; empty for masks of other kinds
    than comparisons of positions, all of which must hold.
    """
    known = {s.name: s for s in kernel.statements()}
    positions = _positions(known)

    def margins(name: str) -> list[Affine] | None:
        s = known.get(name)
        if not isinstance(s, Map):
            return None
        if s.op == "logical_and":
            parts = [margins(argument) for argument in s.arguments]
            return None if None in parts else [m for part in parts if part for m in part]
        margin = _margin(s, positions) if s.op in COMPARED else None
        return None if margin is None else [margin]

    return margins(mask) or []


def least(bound: Affine, tiles: Mapping[str, Axis]) -> Affine:
    """The smallest value of an expression in a tile, in first points."""
    constant = bound.constant
    for atom, times in bound.terms:
        if isinstance(atom, str):
            constant += min(times, 0) * (tiles[atom].tile - 1)
    return Affine(bound.terms, constant)


def live_ranges(kernel: Kernel, phase: Phase) -> list[tuple[Affine, int]]:
    """Of each bound that tells which chunks are live, `chunk_range`: none where several axes of the
    stream are cut.
    """
    cut = [axis for axis in phase.stream if axis.count > 1]
    bounds = live_bounds(kernel, phase) if len(cut) == 1 else []
    return [found for bound in bounds if (found := chunk_range(bound, cut[0], kernel.axes()))]


def chunk_range(bound: Affine, axis: Axis, tiles: Mapping[str, Axis]) -> tuple[Affine, int] | None:
    """(a, b) such that chunk number c of the axis is live where a + b * c >= 0; a in first points.
    Where b is 0, all of them are or none.

    `tiles` are the other axes, whose last point in the tile counts where it makes the bound larger.
    """
    step, constant = 0, bound.constant
    rest: list[tuple[str, int]] = []
    for atom, times in bound.terms:
        if not isinstance(atom, str):
            return None
        if told(atom):
            rest.append((atom, times))
        elif atom == axis.name:
            step = times * axis.tile
            constant += max(times, 0) * (axis.tile - 1)
        else:
            rest.append((atom, times))
            constant += max(times, 0) * (tiles[atom].tile - 1)
    return Affine(tuple(rest), constant), step


def told(atom: str) -> str:
    """The value that a name in an index expression stands for; empty for an index."""
    return atom.removeprefix(TOLD) if atom.startswith(TOLD) else ""


def _told(known: Mapping[str, Statement], alone: set[str]) -> dict[str, Affine]:
    """Integers that are the same for a whole tile, of which each index is `alone`, and come from
    memory by elementwise operations: each by a name.
    """
    found: dict[str, Affine] = {}
    traced: set[str] = set()
    for name, s in known.items():
        if isinstance(s, Load | Map | Literal | Position) and traced.issuperset(operands(s)):
            traced.add(name)
            integer = s.dtype.kind in ("int", "uint")
            if isinstance(s, Load | Map) and integer and alone.issuperset(s.indices):
                found[name] = var(TOLD + name)
    return found


def _positions(known: Mapping[str, Statement]) -> dict[str, Affine]:
    """Values that are index expressions."""
    found: dict[str, Affine] = {}
    for name, s in known.items():
        match s:
            case Position(expression=expression):
                found[name] = expression
            case Literal(value=int(value)) if not isinstance(value, bool):
                found[name] = const(value)
            case Map(op="add" | "sub", arguments=(a, b)) if a in found and b in found:
                found[name] = (add if s.op == "add" else sub)(found[a], found[b])
            case Map(op="cast", arguments=(a,)) if a in found and s.dtype.name == "int64":
                found[name] = found[a]
    return found


def _margin(s: Map, positions: Mapping[str, Affine]) -> Affine | None:
    """What is negative where the comparison fails."""
    a, b = s.arguments
    if a not in positions or b not in positions:
        return None
    return compared(s.op, positions[a], positions[b])


def compared(op: str, a: Affine, b: Affine) -> Affine:
    """What is negative where a comparison of two index expressions fails."""
    return sub(sub(a, b) if op.startswith("greater") else sub(b, a), const(COMPARED[op]))


def _is_idle(phase: Phase, known: Mapping[str, Statement], failed: str) -> bool:
    """Whether no carry changes where a comparison fails at every point."""
    state: dict[str, str] = {failed: FALSE}
    for s in phase.body:
        if s.name not in state:
            value = _state(s, state, known)
            if value:
                state[s.name] = value
    updates = [s for s in phase.body if isinstance(s, Update)]
    return bool(updates) and all(state.get(s.name) == KEPT for s in updates)


def _is_unread(kernel: Kernel, phase: Phase, failed: str) -> bool:
    """Whether nothing is stored of a phase's carries where a comparison fails: a choice that it
    decides is for something else.
    """
    later = kernel.phases[[one is phase for one in kernel.phases].index(True) + 1 :]
    made = {carry.name for carry in phase.carries}  # all of it that is seen later
    false = {failed}
    for one in later:
        for s in one.body:
            needed = operands(s)
            if isinstance(s, Map) and s.op == "logical_and" and false & {*needed}:
                false.add(s.name)
                continue
            if isinstance(s, Map) and s.op == "where" and needed[0] in false:
                needed = needed[2:]
            if made & {*needed}:
                made |= {s.name, s.carry} if isinstance(s, Update) else {s.name}
        if any(made & {*store_operands(store)} for store in one.stores):
            return False
    return True


def _state(s: Statement, state: Mapping[str, str], known: Mapping[str, Statement]) -> str:
    match s:
        case Map(op=op, arguments=arguments):
            made = [known.get(name) for name in arguments]
            values = [one.value if isinstance(one, Literal) else None for one in made]
            return mapped(op, [state.get(name, "") for name in arguments], values)
        case Reduce(monoid="max", argument=argument):
            return LOWEST if state.get(argument) == LOWEST else ""
        case Reduce(monoid="sum", argument=argument):
            return ZERO if state.get(argument) == ZERO else ""
        case Contract(left=left, right=right):
            return ZERO if ZERO in (state.get(left), state.get(right)) else ""
        case Update(monoid="max", chunk=chunk, scale="") if state.get(chunk) == LOWEST:
            return KEPT
        case Update(monoid="sum", chunk=chunk, scale=scale) if state.get(chunk) == ZERO:
            return KEPT if not scale or state.get(scale) == ONE else ""
    return ""


def mapped(op: str, states: Sequence[str], values: Sequence[object]) -> str:
    """What is known of an elementwise operation's result, from what is of its arguments, empty
    where that is nothing; `values` are those of literals, else None.
    """
    first = states[0] if states else ""
    if op == "logical_and":
        return FALSE if FALSE in states else ""
    if op == "where" and first == FALSE:
        other = values[2]
        if other is not None:
            return LOWEST if other == -float("inf") else ZERO if other == 0 else ""
        return states[2]
    if op == "exp":
        return ZERO if first == LOWEST else ""
    if op == "exp_difference":
        return ZERO if first == LOWEST else ONE if states[1] == KEPT else ""
    if op in ("cast", "rounded"):
        return first if first in (ZERO, LOWEST) else ""
    if op == "mul":
        numbers = [value for value in values if isinstance(value, int | float)]
        if LOWEST in states and any(value > 0 for value in numbers):
            return LOWEST
        return ZERO if ZERO in states else ""
    if op in ("add", "sub") and first == LOWEST:
        return LOWEST
    return ""
