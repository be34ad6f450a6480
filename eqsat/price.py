"""The cost model: predicted time of a kernel form under tile choices, from the spec alone.

time = launch + waves * max over memory domains and units, or their sum where one processor runs
one instruction stream. Every number comes from the spec; tile choices are arrays, so that one call
prices a whole menu.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from eqsat.algebra import REDUCTIONS, Read, Term
from eqsat.form import REDUCING, WEIGHTED, Form, passes
from eqsat.specs import ParallelOperation, ParallelProcessingUnit

Array = NDArray[np.float64]
REDUCING_OP = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
FREE_OPS = frozenset({"read", "literal", "gather"})
INFEASIBLE = np.inf
TIE = 0.005  # part of hidden work that still counts
STREAMED = 32  # points of a reduced name that a tile is taken to hold before it is scheduled


@dataclass
class Price:
    """Seconds for each tile choice, infinite where infeasible, and what they are made of."""

    seconds: Array
    parts: dict[str, Array] = field(default_factory=dict)
    refused: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    def bottleneck(self, choice: int) -> str:
        """The largest part of one choice."""
        return max(self.parts, key=lambda name: float(self.parts[name][choice]))


@dataclass(frozen=True)
class Blocking:
    """What a schedule settles besides grid tiles, an array entry for each choice.

    chunks: streamed extents of reduced names; threads of a tile; stages in flight; staged: whether
    operands of contractions lie in memory that the whole tile shares.
    """

    chunks: Mapping[str, Array]
    threads: Array
    stages: Array
    staged: bool


@dataclass(frozen=True)
class Contraction:
    """A sum of products by names: batch, rows, columns, summed; and the operand dtypes."""

    term: Term
    left: Term
    right: Term
    batch: int
    rows: int
    columns: int
    summed: int


class Pricer:
    """Prices forms for one spec. `operations`: invocation names that the target can emit."""

    def __init__(
        self,
        spec: ParallelProcessingUnit,
        operations: frozenset[str],
        cached_buffers: Mapping[str, int] | None = None,
    ) -> None:
        self.spec = spec
        self.operations = operations
        self.sizes = dict(cached_buffers or {})
        self.overlap = self.spec.group(spec.tile_group).max_resident > 1
        self._rates: dict[tuple[str, str], list[tuple[str, float]]] = {}
        self._contractions: dict[tuple[str, str], list[ParallelOperation]] = {}
        memories = [m for m in spec.memory_domains if m.managed == "hardware"]
        self.dram = memories[0]
        self.cache = memories[1] if len(memories) > 1 else memories[0]
        private = [m for m in memories if m.shared_across == spec.tile_group]
        self.private = private[0] if private else self.cache

    def contraction(self, form: Form, term: Term) -> Contraction | None:
        """The index roles of a sum of products, or None."""
        factors = form.contraction(term)
        if factors is None:
            return None
        left, right = factors
        a, b, s = form.facts.free(left), form.facts.free(right), term.args[0]
        assert isinstance(s, int)
        return Contraction(term, left, right, a & b & ~s, a & ~b, b & ~a, s)

    def matrix_operations(self, form: Form, found: Contraction) -> list[ParallelOperation]:
        """Operations of the spec that compute such a contraction and that the target can emit."""
        a, b = form.facts.dtype(found.left).name, form.facts.dtype(found.right).name
        if a != b:
            return []
        output = form.facts.dtype(found.term).name
        if (a, output) not in self._contractions:
            self._contractions[a, output] = [
                operation
                for operation in self.spec.contractions(a, output)
                if operation.invocation_name in self.operations
                or self.spec.target in operation.native_implementation
            ]
        matrix = found.rows and found.columns
        return [o for o in self._contractions[a, output] if matrix or not any(o.extents.values())]

    def price(
        self, form: Form, tiles: Mapping[str, Array], blocking: Blocking | None = None
    ) -> Price:
        """Predicted seconds of one launch for each choice of tile extents of the grid names.

        Without blocking, contractions are taken to use the best operation of the spec, and limits
        on fast memory are left to the schedule's own search.
        """
        return _Pricing(self, form, tiles, blocking).run()

    def rates(self, op: str, dtype: str) -> list[tuple[str, float]]:
        """(unit, seconds an element) of an elementwise operation on the whole device."""
        key = (op, dtype)
        if key not in self._rates:
            rows = self.spec.elementwise("exp" if op == "exp_difference" else op, dtype)
            self._rates[key] = [
                (row.name, slots / self.spec.invocations_per_s(row)) for row, slots in rows
            ]
        return self._rates[key]


class _Pricing:
    def __init__(
        self,
        pricer: Pricer,
        form: Form,
        tiles: Mapping[str, Array],
        blocking: Blocking | None,
    ) -> None:
        self.pricer, self.form, self.spec = pricer, form, pricer.spec
        self.tiles = tiles
        self.blocking = blocking
        if blocking is not None:
            self.shape = np.ones_like(blocking.threads)
        else:
            self.shape = np.ones(1) if not tiles else np.ones_like(next(iter(tiles.values())))
        self.chunks: Mapping[str, Array] = blocking.chunks if blocking is not None else {}
        if blocking is None and pricer.overlap:  # threads share a tile: what is reduced is streamed
            self.chunks = {n: self.shape * min(form.extents[n], STREAMED) for n in form.reduced}
        self.shared = np.zeros_like(self.shape)
        universe = form.facts.universe
        self.bit = {name: universe.mask([name]) for name in form.grid}
        self.count = {n: np.ceil(universe.extents[n] / tiles[n]) for n in form.grid}
        self.units: dict[str, Array] = {}
        self.traffic = np.zeros_like(self.shape)
        self.dram_bytes = 0.0
        self.scratch = np.zeros_like(self.shape)
        self.scratch_traffic = np.zeros_like(self.shape)
        self.weighed: set[tuple[Term, int]] = set()
        self.repeat = 1
        self.refused: dict[str, NDArray[np.bool_]] = {}
        self.extra_latency = np.zeros_like(self.shape)

    def times(self, mask: int) -> Array:
        """How often a value over `mask` is computed: once per tile of each grid name it lacks."""
        total = self.shape
        for name, bit in self.bit.items():
            if not mask & bit:
                total = total * self.count[name]
        return total

    def points(self, mask: int) -> float:
        """Points of an index set."""
        return float(self.form.facts.universe.size(mask))

    def tile_points(self, mask: int) -> Array:
        """Points of an index set that lie in one tile."""
        total = self.shape
        for name in self.form.facts.universe.members(mask):
            if name in self.bit:
                total = total * self.tiles[name]
            else:
                total = total * self.chunks.get(name, self.form.extents[name])
        return total

    def charge(self, unit: str, seconds: Array) -> None:
        """Add work to a unit."""
        before = self.units.get(unit, np.zeros_like(self.shape))
        self.units[unit] = before + seconds * self.repeat

    def run(self) -> Price:
        facts = self.form.facts
        repeats = passes(self.form, facts.universe.mask(self.chunks)) if self.chunks else {}
        for term in self.form.terms:
            self.repeat = repeats.get(term, 1)
            self._term(term)
        self.repeat = 1
        for one in self.form.stored:
            lacking = [n for n in self.form.grid if n not in one.names]
            if lacking:  # each value is stored by one tile alone
                again = np.logical_or.reduce([self.count[n] > 1 for n in lacking])
                self.refused[f"{one.buffer} lacks {', '.join(lacking)}"] = again
            size = self.points(facts.universe.mask(one.names)) * one.dtype.itemsize
            self._move(one.buffer, size, size * self.shape)
        return self._total()

    def _term(self, term: Term) -> None:
        facts = self.form.facts
        mask = facts.free(term)
        if term.op in {"read", "gather"}:
            self._read(term, mask)
        elif term.op in REDUCING:
            self._reduction(term, mask)
        elif term.op not in FREE_OPS and not self._inside_contraction(term):
            self._elementwise(term.op, term, mask)

    def _inside_contraction(self, term: Term) -> bool:
        return term in self._absorbed

    @property
    def _absorbed(self) -> set[Term]:
        """Products and casts that a contraction computes itself."""
        if not hasattr(self, "_absorbed_terms"):
            found: set[Term] = set()
            for term in self.form.terms:
                factors = self.form.contraction(term)
                if factors:
                    product = term
                    if term.op == "reduce_sum":
                        product = term.children[0]
                        found.add(product)
                    found |= {
                        child
                        for child, factor in zip(product.children, factors, strict=True)
                        if child is not factor and self.form.uses[child] == 1
                    }
            self._absorbed_terms = found
        return self._absorbed_terms

    def _elementwise(self, op: str, term: Term, mask: int) -> None:
        dtype = self.form.facts.dtype(term.children[0] if term.children else term).name
        op = {"scan_sum": "add"}.get(op, op)
        if op == "position":
            op, dtype = "add", "int64"
        work = self.points(mask) * self.times(mask)
        for unit, seconds in self.pricer.rates(op, dtype):
            self.charge(unit, work * seconds)

    def _read(self, term: Term, mask: int) -> None:
        read = term.args[0]
        assert isinstance(read, Read)
        names = self.form.facts.universe.mask(read.names)
        touched = self.points(names) * read.dtype.itemsize
        if read.extent:
            touched = self.points(mask) * read.dtype.itemsize
        whole = self.pricer.sizes.get(read.buffer, 0) or touched
        self._move(read.buffer, min(touched, whole), touched * self.times(names))

    def _move(self, buffer: str, unique: float, traffic: Array) -> None:
        cached = buffer[0] in "tb" and unique < self.pricer.cache.size_bytes / 2
        if not cached:
            held = unique < self.pricer.cache.size_bytes / 2
            self.dram_bytes += unique if held else unique * self.repeat
        self.traffic = self.traffic + traffic * self.repeat

    def _reduction(self, term: Term, mask: int) -> None:
        facts = self.form.facts
        over = term.args[0]
        assert isinstance(over, int)
        inner = 0
        for child in term.children:
            inner |= facts.free(child)
        work = self.points(inner | over) * self.times(inner)
        dtype = facts.dtype(term)
        self._keep(mask, dtype.itemsize)
        found = self.pricer.contraction(self.form, term)
        if found is not None:
            self._contract(found, work, dtype.name)
            return
        if term.op in WEIGHTED:
            self._weighted(term, work, dtype.name)
        else:
            self._apply(REDUCING_OP[REDUCTIONS[term.op]], work, dtype.name)

    def _weighted(self, term: Term, work: Array, dtype: str) -> None:
        """The weights once for each point of s, then their products with r."""
        facts, mask = self.form.facts, term.args[0]
        s, r = term.children
        assert isinstance(mask, int)
        own = self.points(facts.free(s) | mask) * self.times(facts.free(s))
        if (s, mask) not in self.weighed:  # sums over the same weights share them
            self.weighed.add((s, mask))
            for op in ("exp", "maximum"):
                self._apply(op, own, dtype)
        if term.op == "weighted_sum":
            self._apply("fma", work, dtype)
            return
        left, right = facts.free(s), facts.free(r)
        roles = (left & right & ~mask, left & ~right, right & ~left, mask)
        self._contract(Contraction(term, s, self.form.beneath_cast(r), *roles), work, dtype)

    def _apply(self, op: str, work: Array, dtype: str) -> None:
        """An elementwise operation on so many elements."""
        for unit, seconds in self.pricer.rates(op, dtype):
            self.charge(unit, work * seconds)

    def _keep(self, mask: int, itemsize: int) -> None:
        """A tile value that stays in fast memory between loops."""
        held = self.tile_points(mask) * itemsize
        self.scratch = self.scratch + held
        tiles = self.shape
        for name in self.bit:
            tiles = tiles * self.count[name]
        self.scratch_traffic = self.scratch_traffic + 2 * held * tiles

    def _contract(self, found: Contraction, work: Array, dtype: str) -> None:
        best = work * (sum(s for _, s in self.pricer.rates("fma", dtype)) + self._operand_seconds())
        unit, latency = "fma", np.zeros_like(self.shape)
        operation = self._named_operation(found)
        candidates = self.pricer.matrix_operations(self.form, found)
        if found.term.op == "contract" or self.blocking is not None:
            candidates = [operation] if operation else []
        for candidate in candidates:
            seconds, overhead = self._matrix_seconds(candidate, found, work)
            better = seconds + overhead < best + latency
            if better.any() or operation:
                unit = candidate.name
                best = seconds if operation else np.where(better, seconds, best)
                latency = overhead if operation else np.where(better, overhead, latency)
        self.charge(unit, best)
        self.extra_latency = self.extra_latency + latency
        self._stage_operands(found)
        for side in (found.left, found.right):
            if unit != "fma" and side.op not in {"read", "literal"}:
                self._keep(self.form.facts.free(side), self.form.facts.dtype(side).itemsize)

    def _operand_seconds(self) -> float:
        """One operand of each multiply-add read from private memory: loops are not blocked."""
        if self.pricer.overlap:
            return 0.0
        return 4.0 / (self.pricer.private.sustained_gb_per_s * 1e9)

    def _stage_operands(self, found: Contraction) -> None:
        """Shared memory that operands take, or the repeated reads where nothing is staged."""
        if not self.pricer.overlap:
            return
        stages = self.shape if self.blocking is None else self.blocking.stages
        for side in (found.left, found.right):
            facts = self.form.facts
            mask, itemsize = facts.free(side), facts.dtype(side).itemsize
            if self.blocking is None or self.blocking.staged:
                held = self.tile_points(mask) * itemsize * stages
                self.shared = self.shared + held
            else:
                again = self.points(mask) * self.times(mask) * itemsize
                self.traffic = self.traffic + again * np.sqrt(self.blocking.threads)

    def _named_operation(self, found: Contraction) -> ParallelOperation | None:
        named = found.term.op in {"contract", "weighted_contract"}
        name = found.term.args[3] if named else ""
        return self.spec.operation(str(name)) if name else None

    def _matrix_seconds(
        self, operation: ParallelOperation, found: Contraction, work: Array
    ) -> tuple[Array, Array]:
        """Seconds of the multiply-adds, padded to the operation's extents; and call overheads."""
        extents = list(operation.extents.values())
        padding = self.shape
        roles = (found.rows, found.columns, found.summed)
        for extent, mask in zip(extents, roles, strict=False):
            if extent:
                inside = self.tile_points(mask)
                padding = padding * np.ceil(inside / extent) * extent / inside
        seconds = work * padding / self.spec.updates_per_s(operation)
        overhead = np.zeros_like(self.shape)
        if not any(extents):  # a library call for each tile and each batch point in it
            calls = self.tile_points(found.batch)
            for name in self.bit:
                calls = calls * self.count[name]
            seconds_each = operation.latency_cycles / self.spec.cycles_per_s + self._packing(found)
            overhead = calls * seconds_each / self.spec.processors
        return seconds, overhead

    def _packing(self, found: Contraction) -> Array:
        """A library call copies its factors into its own order: read, written, read again."""
        spec, facts = self.spec, self.form.facts
        points = self.tile_points(found.rows | found.summed)
        points = points + self.tile_points(found.columns | found.summed)
        held = points * facts.dtype(found.right).itemsize
        from_cache = spec.processors / (self.pricer.cache.sustained_gb_per_s * 1e9)
        to_private = spec.processors / (self.pricer.private.sustained_gb_per_s * 1e9)
        return held * (from_cache + 2 * to_private)

    def _total(self) -> Price:
        spec, pricer = self.spec, self.pricer
        tiles = self.shape
        for name in self.bit:
            tiles = tiles * self.count[name]
        waves = np.ceil(tiles / spec.processors)
        imbalance = waves * spec.processors / tiles
        busy = self._busy(tiles)
        parts = {name: value * imbalance / busy for name, value in self.units.items()}
        compute = np.zeros_like(self.shape)
        for value in parts.values():
            compute = np.maximum(compute, value) if self.pricer.overlap else compute + value
        cache_bw = pricer.cache.sustained_gb_per_s * 1e9
        dram_bw = pricer.dram.sustained_gb_per_s * 1e9
        alone = pricer.dram.bandwidth_per_processor_gb_per_s * 1e9 or dram_bw
        drawn = np.minimum(dram_bw, alone * np.minimum(tiles, spec.processors)) * np.sqrt(busy)
        parts["dram"] = self.dram_bytes / drawn
        per_core = cache_bw / spec.processors * np.minimum(tiles, spec.processors) * np.sqrt(busy)
        parts[pricer.cache.name] = self.traffic / per_core
        spill = self.scratch > pricer.private.size_bytes
        level = np.where(spill, cache_bw, pricer.private.sustained_gb_per_s * 1e9)
        if self.pricer.overlap:
            self._refuse_oversized()
        else:
            parts["scratch"] = self.scratch_traffic / level * imbalance
        memory = np.maximum(parts["dram"], parts[pricer.cache.name])
        step = self._tile_latency()
        parts["latency"] = step * np.ceil(tiles / self._resident()) + self.extra_latency
        launch = (spec.graph_launch_latency_us or spec.launch_latency_us) * 1e-6
        parts["launch"] = self.shape * launch
        if self.pricer.overlap:
            seconds = np.maximum(np.maximum(memory, compute), parts["latency"]) + launch
        else:
            seconds = np.maximum(memory, compute + parts["scratch"]) + parts["latency"] + launch
        for unit in self.units:  # of kernels that wait for memory, the one with less other work
            seconds = seconds + TIE * parts[unit]
        for bad in self.refused.values():
            seconds = np.where(bad, INFEASIBLE, seconds)
        return Price(seconds, parts, self.refused)

    def _tile_latency(self) -> Array:
        """What one tile costs in latency: a trip to memory, one to the cache for each phase, and
        for each chunk of a stream two barriers and what its stages leave of a trip to the cache.
        """
        phases = 1 + max(self.form.phase.values(), default=0)
        cache = self.pricer.cache.latency_cycles
        cycles = self.shape * (self.pricer.dram.latency_cycles + phases * cache)
        if self.pricer.overlap and self.blocking is not None:
            barrier = self.spec.group(self.spec.tile_group).barrier_latency_cycles
            for name, chunk in self.chunks.items():
                steps = np.ceil(self.form.extents[name] / chunk)
                cycles = cycles + steps * (2 * barrier + cache / self.blocking.stages)
        return cycles / self.spec.cycles_per_s

    def _resident(self) -> Array:
        """Tiles in flight at once on the device: as many as threads and memory of each allow."""
        processors = self.shape * self.spec.processors
        if not self.pricer.overlap:
            return processors
        group = self.spec.group(self.spec.tile_group)
        limit = self.shape * group.max_resident
        if self.blocking is not None:
            threads = self.spec.group("thread").max_resident
            limit = np.minimum(limit, np.floor(threads / self.blocking.threads))
            registers = self.spec.memory("registers").size_bytes
            held = 2 * self.scratch + 128 * self.blocking.threads
            limit = np.minimum(limit, np.floor(registers / held))
            if self.blocking.staged:
                room = self.spec.memory("shared").size_bytes
                limit = np.minimum(limit, np.floor(room / np.maximum(self.shared, 1024)))
        return processors * np.maximum(limit, 1)

    def _refuse_oversized(self) -> None:
        """Tile values live in registers, staged operands in shared memory; both have limits."""
        registers = self.spec.memory("registers")
        most = self.spec.members(self.spec.tile_group, "thread") / 2
        threads = self.shape * most if self.blocking is None else self.blocking.threads
        largest = self.shape * 0
        for term in self.form.terms:
            if term.op not in {"literal", "position"} and term not in self._absorbed:
                size = self.tile_points(self.form.facts.free(term))
                largest = np.maximum(largest, size * self.form.facts.dtype(term).compute.itemsize)
        if self.blocking is None or self.blocking.staged:
            self.refused["shared"] = self.shared > self.spec.memory("shared").limit_per_group_bytes
        each = registers.limit_per_group_bytes * 0.6
        held = self.scratch + 2 * largest
        self.refused["registers"] = held > each * threads

    def _busy(self, tiles: Array) -> Array:
        """The part of the device's arithmetic that the threads in flight keep busy."""
        if self.blocking is None or not self.pricer.overlap:
            return self.shape
        inside = np.minimum(tiles, self._resident()) / self.spec.processors * self.blocking.threads
        return np.minimum(1.0, inside / 512)
