"""From a kernel's statements to trees of loops: what is stored, in which order, what is fused.

Values that are computed point by point (Load, Literal, Position, Map) have no loops: they are
evaluated where they are used. The *sinks* own loops: whatever combines points, writes, or is worth
keeping. A sink joins the loops of the one before it as deep as the data allows, and a stored value
keeps only the indices that its readers do not share with it: often none, then it is a scalar.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from eqsat.codegen import numba_gemm
from eqsat.graph.dtypes import DType
from eqsat.graph.index import Affine, bounds, free_names
from eqsat.kernel import (
    Access,
    Carry,
    Contract,
    Guard,
    Kernel,
    Load,
    Map,
    Phase,
    Reduce,
    Scan,
    Statement,
    Store,
    Update,
    operands,
    rename_values,
    store_operands,
)

GEMM = "cblas_gemm"

# Arithmetic in units of an addition; what costs KEEP or more is kept if it is used again.
_COST = {"div": 5, "sqrt": 5, "floor_divide": 30, "remainder": 30, "pow": 40, "rsqrt": 8}
_FUNCTIONS = frozenset({
    "exp", "expm1", "log", "log1p", "log2", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin",
    "acos", "atan", "erf", "atan2", "exp_difference",
})  # fmt: skip
_FUNCTION_COST = 15
_GATHER_COST = 4
KEEP = 8


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


_COMBINED = (Reduce, Scan, Contract, Update, Carry)
Action = Reduce | Scan | Contract | Update | Store | Commit | Rescale | Hold


User = tuple[int, str | int]
"""Phase number, and the statement's name or the store's place."""


@dataclass(eq=False)
class Stored:
    """A value in scratch memory, dense over `dims`; a scalar where there are none."""

    name: str
    dtype: DType
    layout: tuple[str, ...]
    dims: tuple[str, ...] = ()
    carried: bool = False


@dataclass(eq=False)
class Sink:
    """An action at the innermost point of `loops`; `leaf` are loops of its own below them.

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
    call: numba_gemm.Call | None = None
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
        self.kernel = kernel
        self.invocations = invocations
        self.axes = kernel.axes()
        self.extents = {name: axis.extent for name, axis in self.axes.items()}
        self.rank = {name: rank for rank, name in enumerate(self.axes)}
        self.phases_in = _distinctly_named(kernel)
        self.written = {s.access.buffer for phase in self.phases_in for s in phase.stores}
        self.defined: dict[str, Statement | Carry] = {}
        self.phase_of: dict[str, int] = {}
        self.stored: dict[str, Stored] = {}
        self.groups: dict[str, numba_gemm.Groups] = {}
        self.layouts: dict[str, tuple[str, ...]] = {}
        for number, phase in enumerate(self.phases_in):
            for value in (*phase.carries, *phase.body):
                self.defined[value.name] = value
                self.phase_of[value.name] = number
        self.held = self._values_to_hold()
        self.phases = [self._plan_phase(phase) for phase in self.phases_in]
        self._contract_storage()

    def varying(self, indices: Iterable[str]) -> tuple[str, ...]:
        """Those indices that have more than one point, or none, in a tile."""
        return tuple(i for i in indices if self.axes[i].tile != 1 and self.axes[i].extent != 1)

    def size(self, name: str) -> int:
        """The most points of an index in a tile."""
        return min(self.axes[name].tile, self.axes[name].extent)

    def whole(self, name: str) -> bool:
        """Whether every tile of the index has the same number of points."""
        axis = self.axes[name]
        return axis.tile >= axis.extent or axis.extent % axis.tile == 0

    def _sizes(self) -> tuple[dict[str, int], dict[str, bool]]:
        return {i: self.size(i) for i in self.axes}, {i: self.whole(i) for i in self.axes}

    def guards(self, access: Access) -> list[Guard]:
        """The guards of an access that may fail."""
        kept = []
        for guard in access.guards:
            low, high = bounds(guard.expression, self.extents)
            if low < guard.lower or high >= guard.upper:
                kept.append(guard)
        return kept

    def by_library(self, contract: Contract) -> bool:
        """Whether a BLAS call is asked for and can do it at all."""
        asked = self.invocations.get(contract.operation, contract.operation) == GEMM
        return asked and contract.dtype.name in ("float32", "float64") and contract.name in self.groups

    # --- which pointwise values are kept ---

    def pointwise(self, name: str) -> bool:
        """Whether a value is evaluated wherever it is used."""
        return name not in self.held and not isinstance(self.defined[name], _COMBINED)

    def _values_to_hold(self) -> set[str]:
        self.held: set[str] = set()
        for value in self.defined.values():
            if isinstance(value, Contract):
                self._group(value)
            if isinstance(value, Load) and value.access.buffer in self.written:
                self.held.add(value.name)
        users: dict[str, set[User]] = {name: set() for name in self.defined}
        for number, phase in enumerate(self.phases_in):
            for place, store in enumerate(phase.stores):
                for name in store_operands(store):
                    users[name].add((number, place))
        for number, phase in reversed(list(enumerate(self.phases_in))):
            for statement in reversed(phase.body):
                if self.pointwise(statement.name) and self._worth_keeping(
                    statement, number, users[statement.name]
                ):
                    self.held.add(statement.name)
                passed = self.pointwise(statement.name)
                for name in operands(statement):
                    mine = users[statement.name] if passed else {(number, statement.name)}
                    users[name] |= mine
        return self.held

    def _group(self, contract: Contract) -> None:
        """Record the groups of a library call, and hold the factors that it cannot read in place."""
        sides = (contract.left, contract.right)
        if self.invocations.get(contract.operation, contract.operation) != GEMM:
            return
        strides = tuple(self._in_place(name, contract.dtype) for name in sides)
        own = [self.varying(self._indices(name)) for name in sides]
        grouped = numba_gemm.groups(contract, own[0], own[1], strides)
        if grouped is None:
            return
        self.groups[contract.name] = grouped
        sizes, whole = self._sizes()
        for side, name, place in zip(("left", "right"), sides, strides, strict=True):
            if place is not None and not numba_gemm.readable(grouped, side, place, sizes, whole):
                place = None
            if place is None and not isinstance(self.defined[name], _COMBINED):
                inner = self._order(self.varying(self._indices(name)), (), self._accesses([name]))
                self.held.add(name)
                self.layouts.setdefault(name, grouped.layout(side, inner[-1] if inner else ""))

    def _indices(self, name: str) -> tuple[str, ...]:
        return self.defined[name].indices

    def _in_place(self, name: str, dtype: DType) -> dict[str, int] | None:
        """The strides of a load that BLAS may read where it lies, else None."""
        load = self.defined[name]
        if not isinstance(load, Load) or load.access.buffer in self.written:
            return None
        exact = load.dtype == dtype == self.kernel.buffer(load.access.buffer).dtype
        if not exact or load.access.coordinates or self.guards(load.access):
            return None
        strides = self.strides(load.access.address, load.indices)
        return None if None in strides.values() else {i: s or 0 for i, s in strides.items()}

    def strides(self, address: Affine, indices: Sequence[str]) -> dict[str, int | None]:
        """Stride of each varying index; None for one inside a quotient or remainder."""
        result: dict[str, int | None] = {name: 0 for name in self.varying(indices)}
        for atom, coefficient in address.terms:
            if isinstance(atom, str):
                if result.get(atom, None) is not None:
                    result[atom] = coefficient
                continue
            for name in free_names(atom.numerator):
                if name in result:
                    result[name] = None
        return result

    def _worth_keeping(self, statement: Statement, number: int, users: set[User]) -> bool:
        if self._cost(statement.name) < KEEP:
            return False
        in_stream = any(user != number and self.phases_in[user].stream for user, _ in users)
        return len(users) > 1 or in_stream or self._repeated(statement, users)

    def _repeated(self, statement: Statement, users: set[User]) -> bool:
        """Whether a user's innermost loop would evaluate the value again for another index."""
        own = set(self.varying(statement.indices))
        for number, user in users:
            if isinstance(user, int):
                store = self.phases_in[number].stores[user]
                loops = set(self._store_loops(store))
                accesses = self._accesses(store_operands(store), store.access)
            else:
                value = self.defined[user]
                over = getattr(value, "over", ())
                over = (over,) if isinstance(over, str) else over
                loops = set(self.varying((*value.indices, *over)))
                accesses = self._accesses(operands(value))
            order = self._order(loops, (), accesses)
            if own < loops and order[-1] in own:
                return True
        return False

    def _cost(self, name: str) -> int:
        """Additions that one point of a value costs in the innermost loop, operands included."""
        if not self.pointwise(name):
            return 1
        statement = self.defined[name]
        own = set(self.varying(statement.indices))
        # An operand over fewer indices is computed in an outer loop.
        total = sum(
            self._cost(operand) if set(self.varying(self._indices(operand))) == own else 1
            for operand in operands(statement)
        )
        if isinstance(statement, Map):
            op = statement.op
            return total + (_FUNCTION_COST if op in _FUNCTIONS else _COST.get(op, 1))
        return total + (_GATHER_COST if isinstance(statement, Load) and total else 1)

    # --- loops ---

    def _leaves(self, names: Iterable[str], opened: str = "") -> Iterator[str]:
        """The loads and stored values that evaluating some values reads, each once.

        `opened` is evaluated itself rather than read, even if it is kept.
        """
        seen: set[str] = set()
        stack = list(names)
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            value = self.defined[name]
            if not self.pointwise(name) and name != opened:
                yield name
                continue
            if isinstance(value, Load):
                yield name
            stack += operands(value)

    def _accesses(
        self, names: Iterable[str], store: Access | None = None, opened: str = ""
    ) -> list[dict]:
        """Stride tables of everything that a loop nest touches; a store counts twice."""
        tables = []
        for name in self._leaves(names, opened):
            value = self.defined[name]
            if isinstance(value, Load) and (self.pointwise(name) or name == opened):
                tables.append(self.strides(value.access.address, value.indices))
            elif name in self.stored or name in self.layouts:
                kept = self.stored.get(name)
                tables.append(_dense(kept.layout if kept else self.layouts[name]))
        if store is not None:
            tables += 2 * [self.strides(store.address, tuple(free_names(store.address)))]
        return tables

    def _order(
        self, indices: Iterable[str], over: Sequence[str], accesses: Sequence[Mapping]
    ) -> tuple[str, ...]:
        """Loops from the outermost: the index with stride 1 most often innermost."""
        base = sorted(set(indices), key=self.rank.__getitem__)
        if not base:
            return ()

        def score(name: str) -> tuple[int, bool, int]:
            total = 0
            for table in accesses:
                if name in table:
                    stride = table[name]
                    total += 2 if stride == 1 else 0 if stride == 0 else -1
            return total, name in over, self.rank[name]

        inner = max(base, key=score)
        rest = [name for name in base if name != inner]
        if inner in over:
            rest.sort(key=lambda name: name in over)
        return (*rest, inner)

    def _store_loops(self, store: Store) -> tuple[str, ...]:
        names = set(self._indices(store.value)) | free_names(store.access.address)
        for coordinate in store.access.coordinates:
            names |= set(self._indices(coordinate.value))
        return self.varying(sorted(names, key=self.rank.__getitem__))

    def _plan_phase(self, phase: Phase) -> PhasePlan:
        updates = {s.carry: s for s in phase.body if isinstance(s, Update)}
        readers: dict[str, list[object]] = {name: [] for name in self.defined}
        for statement in phase.body:
            for name in operands(statement):
                readers[name].append(statement)
        for store in phase.stores:
            for name in store_operands(store):
                readers[name].append(store)
        absorbed = {}
        for carry in phase.carries:
            update = updates[carry.name]
            layout = self.varying(carry.indices)
            chunk = self.defined[update.chunk]
            alone = readers[carry.name] == [update]
            if alone and update.monoid == "sum" and isinstance(chunk, Contract):
                same = chunk.dtype == carry.dtype and set(layout) == set(self.varying(chunk.indices))
                if readers[chunk.name] == [update] and same and chunk in phase.body:
                    absorbed[chunk.name] = update
                    if self.by_library(chunk):
                        layout = self.groups[chunk.name].output
            self.stored[carry.name] = Stored(carry.name, carry.dtype.compute, layout, carried=True)
            if alone:
                self.stored[update.name] = self.stored[carry.name]
        body: list[Loop | Sink] = []
        for statement in phase.body:
            for sink in self._sinks_of(statement, absorbed):
                _join(body, sink)
        for store in phase.stores:
            values = store_operands(store)
            accesses = self._accesses(values, store.access)
            loops = self._order(self._store_loops(store), (), accesses)
            _join(body, self._sink(store, loops, (), values))
        for carry in phase.carries:
            update = updates[carry.name]
            if self.stored[update.name] is not self.stored[carry.name]:
                action = Commit(carry.name, update.name)
                loops = self._order(self.varying(carry.indices), (), [])
                _join(body, self._sink(action, loops, (), [update.name]))
        return PhasePlan(phase, phase.carries, body)

    def _sinks_of(self, statement: Statement, absorbed: Mapping[str, Update]) -> Iterator[Sink]:
        name = statement.name
        own = self.varying(statement.indices)
        match statement:
            case Reduce(over=over, argument=argument):
                over = self.varying(over)
                loops = self._order((*own, *over), over, self._accesses([argument]))
                yield self._sink(statement, loops, over, [argument], name)
            case Scan(over=over, argument=argument):
                loops = self._order(own, (), self._accesses([argument]))
                yield self._sink(statement, loops, self.varying((over,)), [argument], name)
            case Update(chunk=chunk, scale=scale, carry=carry):
                if chunk in absorbed:
                    return
                reads = [carry, chunk, scale] if scale else [carry, chunk]
                dense = [_dense(self.stored[carry].layout)]
                loops = self._order(own, (), [*self._accesses(reads[1:]), *dense])
                yield self._sink(statement, loops, (), reads, name)
            case Contract():
                yield from self._contraction(statement, absorbed.get(name))
            case _ if name in self.held:
                accesses = self._accesses([name], opened=name)
                if name in self.layouts:
                    accesses.append(_dense(self.layouts[name]))
                loops = self._order(own, (), accesses)
                layout = self.layouts.get(name, loops)
                self.stored[name] = Stored(name, statement.dtype.compute, layout)
                reads, loads = self._reads([name], opened=name)
                yield Sink(Hold(name), loops, len(loops), reads, loads, name)

    def _contraction(self, contract: Contract, update: Update | None) -> Iterator[Sink]:
        sides = [contract.left, contract.right]
        into = ""
        if update is not None:
            into = update.carry
            carry = self.stored[into]
            if update.scale:
                scales = self._accesses([update.scale])
                loops = self._order(carry.layout, (), [*scales, _dense(carry.layout)])
                action = Rescale(into, update.scale)
                yield self._sink(action, loops, (), [into, update.scale], into)
        if self.by_library(contract):
            sink = self._library_call(contract, into)
            if sink is not None:
                yield sink
                return
        over = self.varying(contract.over)
        own = self.varying(contract.indices)
        layout = self.stored[into].layout if into else own
        accesses = [*self._accesses(sides), _dense(layout)]
        loops = self._order((*own, *over), over, accesses)
        if not loops or loops[-1] in over:
            yield self._sink(contract, loops, over, sides, contract.name, into=into)
            return
        kept = tuple(i for i in loops[:-1] if i not in over)
        leaf = (*(i for i in loops if i in over), loops[-1])
        yield self._sink(contract, kept, (), sides, contract.name, into=into, leaf=leaf)

    def _library_call(self, contract: Contract, into: str) -> Sink | None:
        group = self.groups[contract.name]
        sides = (contract.left, contract.right)
        places = []
        for name in sides:
            place = self._in_place(name, contract.dtype) if self.pointwise(name) else None
            kept = self.stored.get(name)
            if place is None and (kept is None or kept.dtype != contract.dtype):
                return None
            places.append(place if kept is None else self.dense_strides(kept.layout))
        output = self.stored[into].layout if into else group.output
        sizes, whole = self._sizes()
        strides = (places[0], places[1], self.dense_strides(output))
        call = numba_gemm.call(group, strides, sizes, whole)
        if call is None:
            return None
        reads = [name for name in sides if name in self.stored]
        sink = self._sink(contract, call.loops, (), reads, contract.name, into=into)
        if not into:
            self.stored[contract.name].layout = output
        sink.call = call
        return sink

    def dense_strides(self, layout: Sequence[str]) -> dict[str, int]:
        strides, step = {}, 1
        for name in reversed(layout):
            strides[name] = step
            step *= self.size(name)
        return strides

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
            self.stored[produces] = self.stored[into]
        elif produces and produces not in self.stored:
            value = self.defined[produces]
            layout = tuple(i for i in (*loops, *leaf) if i in value.indices)
            self.stored[produces] = Stored(produces, value.dtype.compute, layout)
        written = self.stored[produces].name if produces else ""
        return Sink(action, loops, partial, reads, loads, written, into, leaf)

    def _reads(
        self, values: Iterable[str], opened: str = ""
    ) -> tuple[frozenset[str], frozenset[str]]:
        """The stored values that some values need, and the written buffers that they load."""
        reads, loads = set(), set()
        for name in self._leaves(values, opened):
            value = self.defined[name]
            if not self.pointwise(name) and name != opened:
                reads.add(self.stored[name].name)
            elif isinstance(value, Load) and value.access.buffer in self.written:
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


def _distinctly_named(kernel: Kernel) -> list[Phase]:
    """The phases with every value named apart: a name local to a stream may come again."""
    taken: set[str] = set()
    visible: dict[str, str] = {}
    phases = []
    for phase in kernel.phases:
        names = dict(visible)
        for value in (*phase.carries, *phase.body):
            name, number = value.name, 0
            while name in taken:
                number += 1
                name = f"{value.name}_{number}"
            taken.add(name)
            names[value.name] = name
        carries = tuple(
            replace(c, name=names[c.name], pivot=names.get(c.pivot, c.pivot)) for c in phase.carries
        )
        body = tuple(rename_values(statement, names) for statement in phase.body)
        stores = tuple(_renamed_store(store, names) for store in phase.stores)
        phases.append(replace(phase, carries=carries, body=body, stores=stores))
        kept = [c.name for c in phase.carries] if phase.stream else [s.name for s in phase.body]
        visible.update({name: names[name] for name in kept})
    return phases


def _renamed_store(store: Store, names: Mapping[str, str]) -> Store:
    coordinates = tuple(replace(c, value=names[c.value]) for c in store.access.coordinates)
    return Store(replace(store.access, coordinates=coordinates), names[store.value])


def _dense(layout: Sequence[str]) -> dict[str, int]:
    """A stride table of a dense value, as far as the order of loops cares."""
    return {name: 1 if place == len(layout) - 1 else 2 for place, name in enumerate(layout)}


def _join(body: list[Loop | Sink], sink: Sink) -> None:
    """Append a sink to the tree, inside the loops of the last node as deep as it may go."""
    for depth, index in enumerate(sink.loops):
        last = body[-1] if body else None
        if not isinstance(last, Loop) or last.index != index:
            break
        if not all(_may_share(other, sink, depth + 1) for other in sinks(last.body)):
            break
        body = last.body
    else:
        body.append(sink)
        return
    for name in sink.loops[depth:]:
        loop = Loop(name)
        body.append(loop)
        body = loop.body
    body.append(sink)


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
