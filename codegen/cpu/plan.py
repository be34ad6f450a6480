"""From a kernel's statements to trees of loops: what is stored, in which order, what is fused.

The *sinks* own loops: whatever combines points, writes, or is worth keeping. A sink joins the loops
of the one before it as deep as the data allows, and a stored value keeps only the indices that its
readers do not share with it: often none, then it is a scalar.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from eqsat.codegen.cpu import gemm
from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import DType
from eqsat.graph.index import free_names
from eqsat.kernel.ir import (
    Carry,
    Contract,
    Kernel,
    Load,
    Phase,
    Reduce,
    Scan,
    Statement,
    Store,
    Update,
    operands,
    store_operands,
)

from .values import Values, dense
from .windows import Windows

MOST_ROWS = 16  # of a product that are added to at once
LEAST_SUM = 64  # points of a sum that is worth their storage


@dataclass(frozen=True)
class Commit:
    """At the end of a chunk the carry takes its next value."""

    carry: str
    value: str


@dataclass(frozen=True)
class Rescale:
    """carry *= scale, before a contraction is added to it."""

    carry: str
    scale: str


@dataclass(frozen=True)
class Hold:
    """Keep a pointwise value."""

    value: str


Action = Reduce | Scan | Contract | Update | Store | Commit | Rescale | Hold


@dataclass(eq=False)
class Stored:
    """A value in scratch memory over `dims`; a scalar where there are none. Dense, unless `steps`
    say how many elements lie from one point of an index to the next, in `room` for so many, of
    which nothing is stored in the last, the `margin`.
    """

    name: str
    dtype: DType
    layout: tuple[str, ...]
    dims: tuple[str, ...] = ()
    carried: bool = False
    steps: Mapping[str, int] = field(default_factory=dict)
    room: int = 0
    margin: int = 0


@dataclass(eq=False)
class Sink:
    """An action at the innermost point of `loops`; `leaf` are loops of its own below them: of a
    product rows that are added to at once, if any, what is summed, and its columns.

    Partial results exist inside loop number `partial` and those below.
    """

    action: Action
    loops: tuple[str, ...]
    partial: int
    reads: frozenset[str]
    loads: frozenset[str]
    produces: str = ""
    into: str = ""
    leaf: tuple[str, ...] = ()
    call: gemm.Call | None = None
    path: tuple["Loop", ...] = ()

    @property
    def complete(self) -> int:
        """Its value may be read within this many of its loops: a scan's at every point."""
        return len(self.loops) if isinstance(self.action, Scan) else self.partial


@dataclass(eq=False)
class Loop:
    """A loop over the points of one index that lie in the tile."""

    index: str
    body: list["Loop | Sink"] = field(default_factory=list)


@dataclass
class PhasePlan:
    """The loops of one run of a phase's body, and the carries to set up before the first."""

    phase: Phase
    carries: tuple[Carry, ...]
    body: list[Loop | Sink]


def sinks(body: Iterable[Loop | Sink]) -> Iterator[Sink]:
    """Every sink of a tree, in order."""
    for node in body:
        if isinstance(node, Sink):
            yield node
        else:
            yield from sinks(node.body)


class Plan:
    """The loop trees of a kernel, with the definition and the storage of every value."""

    def __init__(self, kernel: Kernel, invocations: Mapping[str, str]) -> None:
        self.values = Values(kernel, invocations)
        self.stored: dict[str, Stored] = {}
        self.in_place: dict[str, Store] = {}  # contractions whose only reader is a store
        self.phases = [self._plan_phase(phase) for phase in self.values.phases]
        self._contract_storage()

    def _plan_phase(self, phase: Phase) -> PhasePlan:
        values = self.values
        updates = {s.carry: s for s in phase.body if isinstance(s, Update)}
        absorbed = self._set_up_carries(phase, updates)
        body: list[Loop | Sink] = []
        for statement in phase.body:
            for sink in self._sinks_of(statement, absorbed):
                _join(body, sink)
        for store in phase.stores:
            if store in self.in_place.values():
                continue
            read = store_operands(store)
            loops = values.order(values.store_loops(store), (), values.accesses(read, store.access))
            _join(body, self._sink(store, loops, (), read))
        for carry in phase.carries:
            update = updates[carry.name]
            if self.stored[update.name] is not self.stored[carry.name]:
                loops = values.order(values.varying(carry.indices), (), [])
                _join(body, self._sink(Commit(carry.name, update.name), loops, (), [update.name]))
        return PhasePlan(phase, phase.carries, body)

    def _set_up_carries(self, phase: Phase, updates: Mapping[str, Update]) -> set[str]:
        """Give each carry its storage; returns the contractions that are added to it in place.

        A carry that only its update reads is changed in place, the update being another name of it.
        """
        readers: dict[str, list[object]] = {}
        for reader in (*phase.body, *phase.stores):
            names = store_operands(reader) if isinstance(reader, Store) else operands(reader)
            for name in names:
                readers.setdefault(name, []).append(reader)
        absorbed = set()
        for carry in phase.carries:
            update = updates[carry.name]
            layout = self.values.varying(carry.indices)
            chunk = self.values.defined[update.chunk]
            alone = readers[carry.name] == [update]
            if (
                alone
                and update.monoid == "sum"
                and isinstance(chunk, Contract)
                and chunk in phase.body
                and readers[chunk.name] == [update]
                and chunk.dtype == carry.dtype
                and set(layout) == set(self.values.varying(chunk.indices))
            ):
                absorbed.add(chunk.name)
                if self.values.by_library(chunk):
                    layout = self.values.groups[chunk.name].output
            self._keep(carry.name, carry.dtype, layout).carried = True
            if alone:
                self._alias(update.name, carry.name)
        return absorbed

    def _keep(self, name: str, dtype: DType, layout: tuple[str, ...]) -> Stored:
        self.stored[name] = Stored(name, dtype.compute, layout)
        self.values.layouts[name] = layout
        return self.stored[name]

    def _alias(self, name: str, of: str) -> None:
        self.stored[name] = self.stored[of]
        self.values.layouts[name] = self.stored[of].layout

    def _sinks_of(self, statement: Statement, absorbed: set[str]) -> Iterator[Sink]:
        name = statement.name
        values = self.values
        own = values.varying(statement.indices)
        match statement:
            case Reduce(over=over, argument=argument):
                over = values.varying(over)
                loops = values.order((*own, *over), over, values.accesses([argument]))
                yield self._sink(statement, loops, over, [argument], name)
            case Scan(over=over):
                reads = list(operands(statement))
                loops = values.order(own, (), values.accesses(reads))
                yield self._sink(statement, loops, values.varying((over,)), reads, name)
            case Update(chunk=chunk, scale=scale, carry=carry):
                if chunk in absorbed:
                    yield from self._contraction(values.defined[chunk], statement)
                    return
                reads = [carry, chunk, scale] if scale else [carry, chunk]
                loops = values.order(own, (), values.accesses(reads))
                yield self._sink(statement, loops, (), reads, name)
            case Contract():
                if name not in absorbed:
                    yield from self._contraction(statement, None)
            case _ if name in values.held:
                accesses = values.accesses([name], opened=name)
                if name in values.layouts:
                    accesses.append(dense(values.layouts[name]))
                loops = values.order(own, (), accesses)
                self._keep(name, statement.dtype, values.layouts.get(name, loops))
                reads, loads = self._reads([name], opened=name)
                yield Sink(Hold(name), loops, len(loops), reads, loads, name)

    def _contraction(self, contract: Contract, update: Update | None) -> Iterator[Sink]:
        """A contraction, or its addition to the carry of an update."""
        if contract.term_index:
            raise UnsupportedError(
                f"contraction {contract.name} multiplies terms that lie in memory; the CPU target "
                f"takes factors whole. Split no factors for it."
            )
        values = self.values
        into = update.carry if update else ""
        if update and update.scale:
            layout = self.stored[into].layout
            loops = values.order(layout, (), [*values.accesses([update.scale]), dense(layout)])
            action = Rescale(into, update.scale)
            yield self._sink(action, loops, (), [into, update.scale], into)
        if values.by_library(contract):
            sink = self._library_call(contract, into)
            if sink is not None:
                yield sink
                return
        sides = [contract.left, contract.right]
        over = values.varying(contract.over)
        own = values.varying(contract.indices)
        result = dense(self.stored[into].layout if into else own)
        loops = values.order((*own, *over), over, [*values.accesses(sides), result])
        if not loops or loops[-1] in over:
            yield self._sink(contract, loops, over, sides, contract.name, into)
            return
        kept = tuple(i for i in loops[:-1] if i not in over)
        leaf = (*(i for i in loops if i in over), loops[-1])
        if kept and self._is_row(contract, kept[-1], leaf):
            kept, leaf = kept[:-1], (kept[-1], *leaf)
        yield self._sink(contract, kept, (), sides, contract.name, into, leaf)

    def _is_row(self, contract: Contract, row: str, leaf: Sequence[str]) -> bool:
        """Whether the few rows of a product are added to while one pass of the other factor's rows
        is near: those of a long sum.
        """
        values, column = self.values, leaf[-1]
        sides = [values.defined[name].indices for name in (contract.left, contract.right)]
        alone = [row in side and column not in side for side in sides]
        shared = [column in side and row not in side for side in sides]
        long = prod(map(values.size, leaf[:-1])) > LEAST_SUM
        few = values.whole(row) and 1 < values.size(row) <= MOST_ROWS
        return few and long and any(alone) and any(shared)

    def _library_call(self, contract: Contract, into: str) -> Sink | None:
        """The contraction as BLAS calls; None where an operand lies as BLAS cannot take it."""
        values = self.values
        group = values.groups[contract.name]
        sides = (contract.left, contract.right)
        if contract.name in values.windows:
            return self._windowed_call(contract, values.windows[contract.name])
        places = []
        for name in sides:
            kept = self.stored.get(name)
            place = values.dense_strides(kept.layout) if kept else None
            if values.pointwise(name):
                place = values.in_place(name, contract.dtype)
            elif kept is None or kept.dtype != contract.dtype:
                place = None
            if place is None:
                return None
            places.append(place)
        output = self.stored[into].layout if into else group.output
        store = None if into else self._only_reader(contract)
        target = store and values.strides(store.access.address, contract.indices)
        strides = (places[0], places[1], values.dense_strides(output))
        call = gemm.call(group, strides, *values.sizes())
        if call is None:
            return None
        if target and gemm.call(group, (*places, target), *values.sizes()) == call:
            self.in_place[contract.name] = store
        if not into:
            self._keep(contract.name, contract.dtype, output)
        reads = [name for name in sides if name in self.stored]
        sink = self._sink(contract, call.loops, (), reads, contract.name, into)
        sink.call = call
        return sink

    def _windowed_call(self, contract: Contract, windows: Windows) -> Sink:
        """The contraction as calls of the routine that multiplies windows where they lie. Rows of
        what it makes are as far apart as those of the windows.
        """
        values, group = self.values, self.values.groups[contract.name]
        sizes, whole = values.sizes()
        places = self.stored[contract.right]
        places.steps, places.room = windows.steps, windows.room
        places.margin = windows.per_line
        kept = self._keep(contract.name, contract.dtype, group.output)
        rows = (*group.batch, *group.m)
        run = windows.run(sizes)
        steps = {name: run * step for name, step in values.dense_strides(rows).items()}
        kept.steps, kept.room = {**steps, **windows.columns}, run * prod(map(values.size, rows))
        left = values.in_place(contract.left, contract.dtype)
        if not values.pointwise(contract.left):
            left = values.dense_strides(self.stored[contract.left].layout)
        assert left is not None
        call = gemm.windowed_call(group, left, steps, sizes, whole)
        reads = [name for name in (contract.left, contract.right) if name in self.stored]
        sink = self._sink(contract, call.loops, (), reads, contract.name)
        sink.call = call
        return sink

    def _only_reader(self, contract: Contract) -> Store | None:
        """The store of a contraction that nothing else reads, if each point has a place of its own
        in memory, as it is.
        """
        values = self.values
        readers = [s for p in values.phases for s in p.body if contract.name in operands(s)]
        stores = [s for p in values.phases for s in p.stores if contract.name in store_operands(s)]
        if readers or len(stores) != 1:
            return None
        (store,) = stores
        own = next(phase for phase in values.phases if contract in phase.body)
        access = store.access
        exact = values.kernel.buffer(access.buffer).dtype == contract.dtype
        plain = not (store.monoid or access.coordinates or values.guards(access))
        inside = free_names(access.address) <= set(contract.indices)
        strides = values.strides(access.address, contract.indices)
        fits = exact and plain and inside and None not in strides.values()
        return store if fits and store in own.stores else None

    def _sink(
        self,
        action: Action,
        loops: tuple[str, ...],
        over: Sequence[str],
        values: Sequence[str],
        produces: str = "",
        into: str = "",
        leaf: tuple[str, ...] = (),
    ) -> Sink:
        partial = min((loops.index(i) for i in over), default=len(loops))
        reads, loads = self._reads(values)
        if into:
            reads |= {into}
            self._alias(produces, into)
        elif produces and produces not in self.stored:
            value = self.values.defined[produces]
            layout = tuple(i for i in (*loops, *leaf) if i in value.indices)
            self._keep(produces, value.dtype, layout)
        written = self.stored[produces].name if produces else ""
        return Sink(action, loops, partial, reads, loads, written, into, leaf)

    def _reads(
        self, values: Iterable[str], opened: str = ""
    ) -> tuple[frozenset[str], frozenset[str]]:
        """The stored values that some values need, and the written buffers that they load."""
        reads, loads = set(), set()
        for name in self.values.leaves(values, opened):
            value = self.values.defined[name]
            if not self.values.pointwise(name) and name != opened:
                reads.add(self.stored[name].name)
            elif isinstance(value, Load) and value.access.buffer in self.values.written:
                loads.add(value.access.buffer)
        return frozenset(reads), frozenset(loads)

    # --- storage ---

    def _contract_storage(self) -> None:
        """Keep of each stored value only the indices that its readers do not share with it."""
        shared: dict[Stored, tuple[Loop, ...]] = {}
        for plan in self.phases:
            _set_paths(plan.body, ())
            for sink in sinks(plan.body):
                names = {*sink.reads, sink.produces, sink.into} - {""}
                if isinstance(sink.action, Commit):
                    names.add(sink.action.carry)
                for name in names:
                    kept = self.stored[name]
                    path = sink.path[: sink.complete] if name == sink.produces else sink.path
                    before = shared.get(kept)
                    shared[kept] = path if before is None else _common(before, path)
        for kept in set(self.stored.values()):
            gone = set() if kept.carried else {loop.index for loop in shared.get(kept, ())}
            kept.dims = tuple(i for i in kept.layout if i not in gone)


def _join(body: list[Loop | Sink], sink: Sink) -> None:
    """Append a sink to the tree, inside the loops of the last node as deep as it may go; a sum also
    inside those of one before nodes that it has nothing to do with.
    """
    for depth, index in enumerate(sink.loops):
        joined = next(_reached(body, sink, index), None)
        if joined is None:
            break
        if not all(_may_share(other, sink, depth + 1) for other in sinks(joined.body)):
            break
        body = joined.body
    else:
        body.append(sink)
        return
    for name in sink.loops[depth:]:
        loop = Loop(name)
        body.append(loop)
        body = loop.body
    body.append(sink)


def _reached(body: Sequence[Loop | Sink], sink: Sink, index: str) -> Iterator[Loop]:
    """Loops over an index that end a tree, or would if a sum came before what follows them."""
    for node in reversed(body):
        if isinstance(node, Loop) and node.index == index:
            yield node
        if not isinstance(sink.action, Reduce):
            return
        if any(_depend(other, sink) for other in sinks([node])):
            return


def _depend(first: Sink, second: Sink) -> bool:
    """Whether it matters that one of two sinks runs before the other."""
    read = {first.produces, first.into} & second.reads or second.produces in first.reads
    same = second.produces in (first.produces, first.into)
    stored = isinstance(first.action, Store) and first.action.access.buffer in second.loads
    return bool(read or same or stored)


def _may_share(first: Sink, second: Sink, count: int) -> bool:
    """Whether `second` may run right after `first` at each point of their first `count` loops."""
    if first.produces in second.reads and count > first.complete:
        return False
    if isinstance(second.action, Store):
        buffer = second.action.access.buffer
        other = first.action.access.buffer if isinstance(first.action, Store) else ""
        return buffer != other and buffer not in first.loads
    return True


def _set_paths(body: list[Loop | Sink], path: tuple[Loop, ...]) -> None:
    for node in body:
        if isinstance(node, Sink):
            node.path = path
        else:
            _set_paths(node.body, (*path, node))


def _common(a: Sequence[Loop], b: Sequence[Loop]) -> tuple[Loop, ...]:
    count = 0
    while count < min(len(a), len(b)) and a[count] is b[count]:
        count += 1
    return tuple(a[:count])
