"""One segment, from tensors to kernels: encode, saturate, cut, schedule, lower."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from eqsat.cut.cuts import Plan
from eqsat.cut.extraction import Extractor
from eqsat.cut.join import read_from_others
from eqsat.cut.laid import read_as_laid
from eqsat.cut.narrow_stored import KINDS, LAW
from eqsat.cut.twins import Twins
from eqsat.cut.variants import Buffers, best_planned
from eqsat.encode.encoding import Encoding, encode
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Buffer
from eqsat.library import PricedCall, is_call, library_call
from eqsat.price.pricer import Pricer
from eqsat.rule import ALGEBRA
from eqsat.saturate.saturation import FrozenEGraph, saturate
from eqsat.schedule.apart import schedule_joined
from eqsat.schedule.scheduling import Predicted, Search
from eqsat.segment.segments import Segment, is_buffer
from eqsat.terms.algebra import Facts, Renaming, Term
from eqsat.terms.form import Stored


@dataclass(frozen=True)
class Solution:
    """The kernels of a segment over local buffers: leaves by position, stored values, temporaries.

    `leaves[i]` and `stored[i]` are the local buffers of the segment's leaves and stored tensors.
    """

    kernels: tuple[Predicted | PricedCall, ...]
    leaves: tuple[str, ...]
    stored: tuple[str, ...]
    fired: Mapping[str, int] = field(default_factory=dict)
    nodes: int = 0
    saturated: bool = True
    seconds: float = 0.0
    note: str = ""
    from_cache: bool = False

    @property
    def predicted(self) -> float:
        """The seconds of its kernels in each run."""
        return sum(one.per_run for one in self.kernels)


def leaf_names(segment: Segment) -> dict[Tensor, str]:
    """Local buffer names: x for what lies in memory from the start, b for computed values."""
    return {t: f"{'x' if is_buffer(t) else 'b'}{i}" for i, t in enumerate(segment.leaves)}


@dataclass(frozen=True)
class Findings:
    """What a search found out about a segment: for its solution, and to explain it by.

    `pushed`: for a term with a re-indexing carried down, what it came from.
    """

    encoding: Encoding
    graph: FrozenEGraph
    pricer: Pricer
    finite: frozenset[str]
    plan: Plan
    pushed: Mapping[Term, Mapping[tuple[Renaming, Term], None]]
    order: Mapping[int, tuple[str, ...]]
    buffers: dict[str, Buffer]
    kernels: tuple[Predicted, ...]


def solve(segment: Segment, search: Search) -> Solution:
    """The kernels of a segment, or the call of a library that computes it."""
    if any(map(is_call, segment.stored)):
        return _call(segment, search)
    before = len(search.worker.failures)
    found = investigate(segment, search)
    graph = found.graph
    return Solution(
        kernels=found.kernels,
        leaves=tuple(leaf_names(segment).values()),
        stored=tuple(f"y{i}" for i in range(len(segment.stored))),
        fired=graph.fired,
        nodes=graph.size,
        saturated=graph.saturated,
        seconds=graph.seconds,
        note="; ".join(dict.fromkeys(search.worker.failures[before:])),
    )


def _call(segment: Segment, search: Search) -> Solution:
    leaves = tuple(leaf_names(segment).values())
    call = library_call("k0", segment.stored[0], (leaves[0], "y0"), search.spec, search.operations)
    return Solution((call,), leaves, ("y0",))


def investigate(segment: Segment, search: Search, told: bool = False) -> Findings:
    """Search for the kernels of a segment; with `told` for each where it came from, too."""
    leaves = leaf_names(segment)
    finite = finite_buffers(segment)
    encoding = encode(segment.tensors, segment.stored, leaves, segment.orders)
    graph = saturate(
        [output.term for output in encoding.outputs],
        encoding.universe,
        tuple(rule for rule in search.rules if rule.group in ALGEBRA),
        search.worker,
        search.limits,
        finite=finite,
    )
    pricer = Pricer(
        search.spec,
        search.operations,
        {name: tensor.size * tensor.dtype.itemsize for tensor, name in leaves.items()},
        search.float32_products,
        search.precision,
        [name for tensor, name in leaves.items() if tensor.op == "constant"],
    )
    rounds = any(rule.name == LAW for rule in search.rules)
    narrows = (kind for kind in KINDS if rounds and pricer.has_products(kind.name))
    extractor = Extractor(graph, pricer, _order(encoding, graph), frozenset(narrows))
    facts = Facts(encoding.universe)

    def schedule(name: str, stored: tuple[Stored, ...], own: Buffers) -> list[Predicted]:
        return schedule_joined(name, stored, facts, pricer, own, search)

    best = best_planned(
        lambda: _cut(encoding, graph, extractor),
        extractor,
        lambda plan: segment_buffers(encoding, plan.separate),
        schedule if told else Twins(facts, schedule, pricer.constants),
    )
    return Findings(
        encoding,
        graph,
        pricer,
        finite,
        best.plan,
        _pushed(extractor, best.plan, encoding) if told else {},
        _order(encoding, graph),
        best.buffers,
        best.kernels,
    )


def finite_buffers(segment: Segment) -> frozenset[str]:
    """Buffers that hold no infinity where the program's inputs hold none."""
    return frozenset(name for t, name in leaf_names(segment).items() if t in segment.finite)


def _order(encoding: Encoding, graph: FrozenEGraph) -> dict[int, tuple[str, ...]]:
    """The memory order of the names of graph values, by class."""
    return {
        graph.class_of[term]: names
        for term, names in encoding.order.items()
        if term in graph.class_of
    }


def _pushed(
    extractor: Extractor, plan: Plan, encoding: Encoding
) -> Mapping[Term, Mapping[tuple[Renaming, Term], None]]:
    """For a term with a re-indexing carried down, what it came from: as the plan reads values, from
    the outputs that repeat them, and in the order in which they lie.
    """
    universe, kept = extractor.facts.universe, {one.buffer for one in plan.separate}
    loads = {f"t{extractor.graph.class_of[o.term]}": i for i, o in enumerate(encoding.outputs)}
    instead = {name: f"y{i}" for name, i in loads.items() if name not in kept}

    def read(term: Term) -> Term:
        return read_as_laid(read_from_others(term, instead), plan.orders, universe)

    found: dict[Term, dict[tuple[Renaming, Term], None]] = {}
    for result, sources in extractor.pushed.items():
        own = found.setdefault(read(result), {})
        for renaming, body in sources:
            own[renaming, read(body)] = None
    return found


def _cut(encoding: Encoding, graph: FrozenEGraph, extractor: Extractor) -> Plan:
    outputs = [
        (graph.class_of[one.term], f"y{i}", one.names) for i, one in enumerate(encoding.outputs)
    ]
    return extractor.run(outputs)


def segment_buffers(encoding: Encoding, stored: Iterable[Stored]) -> dict[str, Buffer]:
    """The local buffers of a segment that stores those values."""
    buffers = dict(encoding.buffers)
    shapes = {f"y{i}": output.shape for i, output in enumerate(encoding.outputs)}
    extents = encoding.universe.extents
    for one in stored:
        shape = shapes.get(one.buffer, tuple(extents[name] for name in one.names))
        role = "output" if one.buffer in shapes else "temporary"
        buffers[one.buffer] = Buffer(one.buffer, shape, one.dtype, role)
    return buffers
