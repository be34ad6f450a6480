"""From a form and a schedule to a kernel: statements in phases, with loads, carries and stores."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from eqsat.graph.dtypes import DType
from eqsat.graph.index import Affine
from eqsat.kernel.ir import (
    Access,
    Axis,
    Buffer,
    Carry,
    Contract,
    Coordinate,
    Kernel,
    Literal,
    Load,
    Map,
    Phase,
    Position,
    Reduce,
    Scan,
    Statement,
    Store,
    Update,
)
from eqsat.lower.carries import CarryLowering
from eqsat.terms.algebra import REDUCTIONS, SCANS, Read, Term, post_order
from eqsat.terms.form import (
    REDUCING,
    WEIGHTED,
    Form,
    Stored,
    computed,
    loops,
    stored_in,
    stored_late,
    walked,
)
from eqsat.terms.scattered import scattered

JOINED = "_joined"  # how the name ends of what joins the parts of a kernel


@dataclass(frozen=True)
class Schedule:
    """Tile extents of grid names; chunk extents of streamed names (others lie in the tile);
    threads of a block; blocks of the cluster that computes a tile, and of one whose blocks copy
    for each other; parts of the tiles of a last wave.
    """

    tiles: Mapping[str, int]
    chunks: Mapping[str, int] = field(default_factory=dict)
    threads: int = 1
    stages: int = 1
    operations: Mapping[Term, str] = field(default_factory=dict)
    memory: Mapping[Term, str] = field(default_factory=dict)
    cluster: int = 1
    shared: int = 1
    last_parts: int = 0


def lower(
    name: str,
    made: Form,
    schedule: Schedule,
    buffers: Mapping[str, Buffer],
    spec: str,
) -> Kernel:
    """The kernel that computes and stores the values under the schedule."""
    return _Lowering(name, made, schedule, buffers, spec).run()


class _Lowering(CarryLowering):
    def __init__(
        self,
        name: str,
        made: Form,
        schedule: Schedule,
        buffers: Mapping[str, Buffer],
        spec: str,
    ) -> None:
        super().__init__()
        self.name, self.form, self.schedule = name, made, schedule
        self.operations = schedule.operations
        self.buffers, self.spec = buffers, spec
        self.facts = made.facts
        self.values: dict[Term, str] = {}
        self.carries: list[Carry] = []
        self.along = 0  # the name that scans are stepped along, if they are
        self.count = 0

    def axis(self, name: str) -> Axis:
        extent = self.form.extents[name]
        tile = self.schedule.tiles.get(name, self.schedule.chunks.get(name, extent))
        return Axis(name, extent, min(tile, extent))

    def run(self) -> Kernel:
        carried = 0
        for term in self.form.phase:
            if term.op in WEIGHTED:  # held in the tile it is a stream of one chunk
                carried |= term.args[0]  # type: ignore[operator]
        must = {*self.facts.universe.members(carried)} - self.form.held
        if self.form.stepped in self.schedule.chunks:
            self.along = self.form.steps.along
        streamed = tuple(n for n in self.form.reduced if n in self.schedule.chunks or n in must)
        phases = self._streams(streamed) if streamed else [self._straight()]
        inner = [n for n in (*self.form.reduced, *self.form.nested) if n not in streamed]
        used: dict[str, None] = {}
        for one in self.form.stored:
            for term in post_order([one.term]):
                if term.op in {"read", "gather"}:
                    assert isinstance(term.args[0], Read)
                    used |= dict.fromkeys(term.args[0].buffers)
        for one in self.form.stored:
            used[one.buffer] = None
        return Kernel(
            name=self.name,
            buffers=tuple(self.buffers[buffer] for buffer in used),
            grid=tuple(self.axis(n) for n in self.form.grid),
            inner=tuple(self.axis(n) for n in inner),
            phases=tuple(phases),
            threads=self.schedule.threads,
            spec=self.spec,
            cluster=self.schedule.cluster,
            multicast=self.schedule.shared,
            stream_k=self.schedule.last_parts,
            joins=self.name.endswith(JOINED),
        )

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def indices(self, term: Term) -> tuple[str, ...]:
        return self.facts.universe.members(self.facts.free(term))

    # -- straight line -------------------------------------------------------------------------

    def needed(self, roots: Iterable[Term]) -> list[Term]:
        """Terms to be computed as values, arguments first."""
        order: list[Term] = []
        seen: set[Term] = set(self.values)
        todo = [(root, False) for root in roots][::-1]
        while todo:
            term, ready = todo.pop()
            if ready:
                order.append(term)
            elif term not in seen:
                seen.add(term)
                todo.append((term, True))
                todo += [(child, False) for child in reversed(self._inputs(term))]
        return order

    def _straight(self) -> Phase:
        body = self.statements(self.needed(t for o in self.form.stored for t in computed(o)))
        return Phase((), tuple(body), (), self.stores(self.form.stored))

    def stores(self, stored: Iterable[Stored]) -> tuple[Store, ...]:
        return tuple(map(self._store, stored))

    def _store(self, one: Stored) -> Store:
        found = scattered(one, self.facts)
        if found:
            return found.store(one.buffer, self.values[found.index], self.values[found.value])
        access = Access(one.buffer, one.address(self.form.extents), one.guards)
        return Store(access, self.values[one.term])

    def statements(self, terms: Iterable[Term]) -> list[Statement]:
        """The statements that compute terms in order, their operands first."""
        body: list[Statement] = []
        for term in terms:
            dtype, indices = self.facts.dtype(term), self.indices(term)
            if term.op in WEIGHTED:
                self.values[term] = self.weighted(term, body)
                continue
            if term.op in SCANS and term.args[0] == self.along:
                self.values[term] = self._state(term, body)
                continue
            name = self.fresh({"read": "x", "gather": "x", "literal": "c"}.get(term.op, "v"))
            body.append(self._statement(term, name, dtype, indices))
            self.values[term] = name
        return body

    def _statement(
        self, term: Term, name: str, dtype: DType, indices: tuple[str, ...]
    ) -> Statement:
        arguments = tuple(self.values[c] for c in term.children if c in self.values)
        if term.op in {"read", "gather"}:
            return self._load(term, name, dtype, indices, arguments)
        if term.op == "literal":
            return Literal(name, dtype, _number(term.args[0], dtype))
        if term.op == "position":
            expression = term.args[0]
            assert isinstance(expression, Affine)
            return Position(name, dtype, indices, expression)
        if term.op in REDUCING:
            return self._reduction(term, name, dtype, indices)
        if term.op in SCANS:
            (along,) = self.facts.universe.members(term.args[0])  # type: ignore[arg-type]
            *factor, offset = arguments
            return Scan(name, dtype, indices, "sum", along, offset, *factor)
        return Map(name, dtype, indices, term.op, arguments)

    def _load(
        self,
        term: Term,
        name: str,
        dtype: DType,
        indices: tuple[str, ...],
        arguments: tuple[str, ...],
    ) -> Load:
        read = term.args[0]
        assert isinstance(read, Read)
        at = tuple(Coordinate(a, read.stride, read.extent) for a in arguments)
        found = (Access(read.buffer, read.address, (), at),)
        if read.joined:
            found = read.joined.accesses(read.address)
        access, *rest = (replace(a, guards=(*a.guards, *read.guards)) for a in found)
        memory = self.schedule.memory.get(term, "registers")
        fill = _number(read.fill, dtype)
        return Load(name, dtype, indices, access, fill, memory, tuple(rest))

    def _reduction(
        self, term: Term, name: str, dtype: DType, indices: tuple[str, ...]
    ) -> Statement:
        over = self.facts.universe.members(term.args[0])  # type: ignore[arg-type]
        factors = self.form.contraction(term)
        if factors is not None:
            result = self.facts.universe.mask(indices)
            left, right = (self.values[f] for f in self.form.oriented(factors, result))
            operation = self.schedule.operations.get(term, "")
            narrow, terms, split = term.args[4:] if term.op == "narrow_contract" else ("", 1, 0)
            assert isinstance(narrow, str) and isinstance(terms, int) and isinstance(split, int)
            (index,) = self.facts.universe.members(split) or ("",)
            how = (operation, narrow, terms, index)
            return Contract(name, dtype, indices, over, left, right, *how)
        argument = term.args[1]
        assert isinstance(argument, Term)
        monoid = REDUCTIONS[term.op]
        return Reduce(name, dtype, indices, monoid, over, self.values[argument])

    # -- scans -----------------------------------------------------------------------------------

    def _state(self, term: Term, body: list[Statement]) -> str:
        """The state of a scan after the step at hand: a * h + b, or h + b."""
        dtype, (over,) = self.facts.dtype(term), self.facts.universe.members(self.along)
        indices = tuple(n for n in self.indices(term) if n != over)
        *factor, offset = (self._at_step(child, over, body) for child in term.children)
        carry, state = self.fresh("h"), self.fresh("v")
        self.carries.append(Carry(carry, dtype, indices, "sum"))
        body.append(Update(state, dtype, indices, carry, "sum", offset, *factor))
        return state

    def _at_step(self, term: Term, over: str, body: list[Statement]) -> str:
        """A value without the name of the steps: the product over one point is that point."""
        own = self.indices(term)
        if over not in own:
            return self.values[term]
        name, indices = self.fresh("v"), tuple(n for n in own if n != over)
        point = Reduce(name, self.facts.dtype(term), indices, "prod", (over,), self.values[term])
        body.append(point)
        return name

    # -- streams -------------------------------------------------------------------------------

    def _streams(self, streamed: tuple[str, ...]) -> list[Phase]:
        """One stream per phase and index set, in which values over the same names are stored that
        can be; then the other stores, in a stream over shared names.
        """
        mask = self.facts.universe.mask(streamed)
        phases: list[Phase] = []
        for key, reductions in sorted(loops(self.form, mask).items(), key=lambda item: item[0]):
            inside = [one for one in self.form.stored if stored_in(self.form, one, mask) == key]
            phases += self._stream(key[1], reductions, mask, inside)
        return [*phases, *self._final(mask, stored_late(self.form, mask))]

    def _invariant(self, roots: Iterable[Term], mask: int) -> list[Phase]:
        """A straight-line phase for what the next stream needs and no chunk changes."""
        body = self.statements(
            term
            for term in self.needed(roots)
            if not self.facts.free(term) & mask and not self._pending(term, mask)
        )
        return [Phase((), tuple(body))] if body else []

    def _pending(self, term: Term, mask: int) -> bool:
        """Whether a term lies above a streamed reduction that has no value yet."""
        return any(
            sub in self.form.phase and sub.args[0] & mask and sub not in self.values  # type: ignore[operator]
            for sub in post_order([term])
        )

    def _stream(
        self, over: int, reductions: list[Term], mask: int, stored: list[Stored]
    ) -> list[Phase]:
        bodies = [c for r in reductions for c in self._inputs(r)]
        bodies += (roots := [term for one in stored for term in computed(one)])
        before = self._invariant(bodies, mask)
        outer = dict(self.values)
        body: list[Statement] = []
        carries = self.carries = []
        results: dict[Term, str] = {}
        self.start_stream()
        for term in sorted(reductions, key=self.is_pivot):  # after what carries it
            body += self.statements(self.needed(self._inputs(term)))
            results[term] = self._carry(term, body, carries)
        body += self.statements(self.needed(roots))
        if self.form.row_points > 1:  # chunks wait for sums of rows: all is asked for before
            body.sort(key=lambda s: not isinstance(s, Load) or bool(s.access.coordinates))
        stores = self.stores(stored)
        self.values = {**outer, **results}
        axes = tuple(self.axis(n) for n in self.facts.universe.members(over))
        return [*before, Phase(axes, tuple(body), tuple(carries), stores, self.schedule.stages)]

    def _inputs(self, term: Term) -> tuple[Term, ...]:
        """What must have a value before a reduction is carried."""
        if term.op in WEIGHTED:
            return self.weighted_inputs(term)
        return self.form.contraction(term) or term.children

    def _carry(self, term: Term, body: list[Statement], carries: list[Carry]) -> str:
        """Reduce the chunk and update a carry; the carry's name is the value after the stream."""
        if term.op in WEIGHTED:
            return self.weighted_carry(term, body, carries)
        dtype, indices = self.facts.dtype(term), self.indices(term)
        pivot = self.carried_pivot(term)
        if pivot:
            return pivot
        chunk = self.fresh("v")
        body.append(self._reduction(term, chunk, dtype, indices))
        monoid = REDUCTIONS.get(term.op, "sum")
        carry = self.fresh("acc")
        carries.append(Carry(carry, dtype, indices, monoid))
        body.append(Update(self.fresh("v"), dtype, indices, carry, monoid, chunk))
        return carry

    def _final(self, mask: int, stored: list[Stored]) -> list[Phase]:
        """The stores that are left; streamed over the names that are both reduced and stored."""
        shared = 0
        for one in stored:
            shared |= walked(one, self.facts) & mask
        roots = [term for one in stored for term in computed(one)]
        before = self._invariant(roots, shared) if shared else []
        self.carries = []
        body = self.statements(self.needed(roots))
        axes = tuple(self.axis(n) for n in self.facts.universe.members(shared))
        return [*before, Phase(axes, tuple(body), tuple(self.carries), self.stores(stored))]


def _number(value: object, dtype: DType) -> bool | int | float:
    assert isinstance(value, bool | int | float)
    if dtype.kind == "bool":
        return bool(value)
    return float(value) if dtype.kind == "float" else int(value)
