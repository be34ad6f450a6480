"""The fused bodies of a kernel that a saturated region holds, each with its ways of computing."""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from eqsat.price.contraction import MADE_OF, from_registers
from eqsat.price.narrow import is_joined
from eqsat.saturate.saturation import ENode, FrozenEGraph
from eqsat.schedule.explored import Explored
from eqsat.specs import ParallelProcessingUnit
from eqsat.terms.algebra import LEAVES, Read, Term
from eqsat.terms.form import HALF, SUBSTITUTED, WEIGHTED, Form, Stored, shares_factors

MOST_BODIES = 48  # of a kernel that are priced
STANDS_FOR = {
    "exp_difference": {"exp", "pow"},
    "contract": {"reduce_sum"},
    "weighted_contract": {"weighted_sum"},
}


def bodies_of(
    found: Explored, made: Form, spec: ParallelProcessingUnit
) -> list[tuple[Stored, ...]]:
    """Fused bodies of the kernel: every choice among the ways to compute each class."""
    root, values = found.root, found.values
    sizes, made_short = _term_sizes(values), _made_of_short(values.nodes)
    options: dict[int, list[ENode]] = {}
    stack = [root]
    while stack:
        number = stack.pop()
        if number not in options:
            options[number] = _ways(values.nodes[number], sizes, made_short, values.free, spec)
            if not options[number]:
                return []
            stack += [child for node in options[number] for child in node.children]
    bodies: dict[tuple[Stored, ...], None] = {}
    kinds = _kinds(_placed(options, spec), spec)
    for kind in kinds:
        for chosen in _combined(kind, MOST_BODIES // len(kinds)):
            bodies[_stored(made, _term(root, chosen))] = None
    return list(bodies)


def _combined(options: dict[int, list[ENode]], most: int) -> Iterator[dict[int, ENode]]:
    """A way for each class: at most so many combinations, of the first ways of each. Where there
    are more, classes that are computed in the same ways, such as the gates of a cell, are all
    computed in the same one.
    """
    open_classes = [number for number, nodes in options.items() if len(nodes) > 1]
    many = math.prod(len(options[number]) for number in open_classes) > most
    alike: dict[object, list[int]] = {}
    for number in open_classes:
        kinds = tuple((way.op, way.args[3:]) for way in options[number])
        alike.setdefault(kinds if many else number, []).append(number)
    counts = {kind: len(options[numbers[0]]) for kind, numbers in alike.items()}
    while math.prod(counts.values()) > most:
        counts[max(counts, key=lambda kind: counts[kind])] -= 1
    for places in itertools.product(*map(range, counts.values())):
        chosen = {n: ways[0] for n, ways in options.items()}
        for numbers, place in zip(alike.values(), places, strict=True):
            chosen.update({number: options[number][place] for number in numbers})
        yield chosen


def _placed(
    options: dict[int, list[ENode]], spec: ParallelProcessingUnit
) -> dict[int, list[ENode]]:
    """The ways without operations that are started and want factors in memory which are computed:
    these lie in registers, but for one that is made of a copied tile element by element.
    """
    read, made = _read(options), _made_of_short(options)

    def fits(node: ENode) -> bool:
        if node.op not in {"contract", "weighted_contract"} or not node.args[3]:
            return True
        operation = spec.operation(str(node.args[3]))
        weights = node.op in WEIGHTED
        computed = [child for child in node.children[weights:] if child not in read]
        apart = not operation.contiguous and any(child in made for child in computed)
        held = weights + len(computed) - apart
        return not operation.asynchronous or held <= from_registers(operation)

    placed = {number: [way for way in ways if fits(way)] for number, ways in options.items()}
    return placed if all(placed.values()) else options


def _read(options: Mapping[int, Sequence[ENode]]) -> set[int]:
    """The classes of what is read, and of that widened, or rounded, once."""
    read = {n for n, ways in options.items() if any(w.op in {"read", "gather"} for w in ways)}
    casts = ((n, w.children) for n, ways in options.items() for w in ways if w.op == "cast")
    return read | {n for n, children in casts if read.issuperset(children)}


def _made_of_short(options: Mapping[int, Sequence[ENode]]) -> set[int]:
    """The classes of what is computed element by element of elements of 8 bits that are read."""
    ways = [(n, w) for n, every in options.items() for w in every if w.op in MADE_OF]
    read = [(n, w.args[0]) for n, w in ways if w.op == "read"]
    short = {n for n, one in read if isinstance(one, Read) and one.dtype.itemsize < HALF}
    made = set[int]()
    if not short:
        return made
    plain = {n for n, w in ways if not w.children and n not in short}
    while True:
        known = plain | short | made
        every = [(n, w) for n, w in ways if w.children and known.issuperset(w.children)]
        more = {n for n, w in every if (short | made).intersection(w.children)} - made
        rest = {n for n, w in every if plain.issuperset(w.children)} - plain
        if not (more or rest):
            return made
        made, plain = made | more, plain | rest


def _kinds(
    options: dict[int, list[ENode]], spec: ParallelProcessingUnit
) -> list[dict[int, list[ENode]]]:
    """The ways without operations that are started, and without those that are waited for: no
    layout serves both.
    """

    def started(node: ENode) -> bool | None:
        name = str(node.args[3]) if node.op in SUBSTITUTED else ""
        return spec.operation(name).asynchronous if name else None

    found = {started(node) for nodes in options.values() for node in nodes} - {None}
    kinds = [
        {n: [w for w in ways if started(w) in (kind, None)] for n, ways in options.items()}
        for kind in sorted(found, key=str, reverse=True)
    ]
    return [kind for kind in kinds or [options] if all(kind.values())]


def _term_sizes(found: FrozenEGraph) -> dict[int, int]:
    """Nodes of the smallest tree of each class that needs no value from memory."""
    sizes: dict[int, int] = {}
    every = ((number, node) for number, nodes in found.nodes.items() for node in nodes)
    terms = [(n, node.children) for n, node in every if node.op != "value"]
    changed = True
    while changed:
        changed = False
        for number, children in terms:
            if all(c in sizes for c in children):
                size = 1 + sum(sizes[c] for c in children)
                if size < sizes.get(number, size + 1):
                    sizes[number], changed = size, True
    return sizes


def _ways(
    nodes: list[ENode],
    sizes: Mapping[int, int],
    short: Collection[int],
    free: Mapping[int, int],
    spec: ParallelProcessingUnit,
) -> list[ENode]:
    """The ways to compute a class that are worth pricing, those by an operation first: sums that
    carry their weights, then by speed.

    An operation is worth it with factors that lie in memory, and with such as are made of `short`
    elements. A held weight stands for the exponential that it equals, a contraction for its sum,
    where threads share a tile one of which results share both factors, and a weighted sum by an
    operation for the one without.
    """
    best: dict[tuple[str, object], ENode] = {}
    for node in nodes:
        if node.op == "value" or any(child not in sizes for child in node.children):
            continue
        if node.op in {"contract", "narrow_contract"} and len({*node.children}) == 1:
            continue  # a sum of squares shares no factor among results
        held = node.args if node.op == "read" else ()  # one of them may have been prepared
        if node.op in SUBSTITUTED:
            held = (*node.args[3:], sum(child in short for child in node.children))
        if node.op == "narrow_contract" and node.args[6]:  # either factor may be split on the way
            held += node.children
        key = (node.op, held)
        size = sum(sizes[child] for child in node.children)
        if key not in best or size < sum(sizes[child] for child in best[key].children):
            best[key] = node
    alone = not spec.overlaps  # in one loop both are the same
    shared = [n for n in best.values() if n.op != "contract" or alone or _shares_factors(n, free)]
    present = {node.op for node in shared}
    for better, worse in STANDS_FOR.items():
        if better in present:
            best = {key: node for key, node in best.items() if key[0] not in worse}

    def order(node: ENode) -> tuple[bool, bool, float, str]:
        name = str(node.args[3]) if node.op in SUBSTITUTED else ""
        speed = spec.updates_per_s(spec.operation(name)) if name else 0.0
        return not name, node.op != "weighted_contract", -speed, node.op

    return sorted(best.values(), key=order)


def _shares_factors(node: ENode, free: Mapping[int, int]) -> bool:
    left, right = (free[child] for child in node.children)
    return shares_factors(left, right)


def _term(root: int, chosen: Mapping[int, ENode]) -> Term:
    done: dict[int, Term] = {}
    todo = [root]
    while todo:
        node = chosen[todo[-1]]
        missing = [child for child in node.children if child not in done]
        if not missing:
            done[todo.pop()] = node.term(tuple(done[child] for child in node.children))
        todo += missing
    return done[root]


def _stored(made: Form, body: Term) -> tuple[Stored, ...]:
    """The kernel's stored values with their terms in a body."""
    parts = []
    while body.op == "together":
        parts.insert(0, body.children[1])
        body = body.children[0]
    parts.insert(0, body)
    return tuple(replace(one, term=t) for one, t in zip(made.stored, parts, strict=True))


def _substituted(term: Term) -> str:
    """The name of the rule that gave a contraction its operation."""
    operation = term.args[3]
    if term.op != "narrow_contract":
        return f"substitute_{operation}" if operation else "contract"
    if is_joined(term):
        ahead = all(child.op == "cast" for child in term.children)
        return f"split_{'' if ahead else 'one_'}ahead_{operation}"
    return f"{'split' if term.args[5] != 1 else 'round'}_factors_{operation}"


def body_rules(made: Form) -> tuple[str, ...]:
    """The rules that fused the body and chose its operations."""
    inlined = sum(1 for t in made.terms if t.op not in LEAVES) - len(made.stored)
    rules = [f"inline x{inlined}"] if inlined > 0 else []
    for term in made.terms:
        if term.op in SUBSTITUTED:
            rules.append(_substituted(term))
    return tuple(rules)
