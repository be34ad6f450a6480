"""The cost model: predicted time of a kernel form under tile choices, from the spec alone.

time = launch + waves * max over memory domains and units, or their sum where one processor runs
one instruction stream. Every number comes from the spec; tile choices are arrays, so that one call
prices a whole menu.
"""

from collections.abc import Mapping
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from eqsat.carry_law import CarryLaw
from eqsat.lower.short_integers import works_in
from eqsat.price import nest as nest_price
from eqsat.price.carry import agreeing, weights_again
from eqsat.price.contraction import (
    across_seconds,
    as_factor,
    beyond_bytes,
    copied_again,
    from_registers,
    lacks_operands,
    matrix_seconds,
    narrowing_work,
    preparing_seconds,
    sibling_seconds,
    takes_factors,
    threads_padding,
    written_seconds,
)
from eqsat.price.copy import copied_alone, drawn_apart, padded, shared_places, vectors
from eqsat.price.exchange import TEAMS
from eqsat.price.factor import computed_again, gather_cycles
from eqsat.price.fragment import fragment_seconds
from eqsat.price.issue import COPIES, ISSUED, issue_beside, issue_seconds
from eqsat.price.line import looked_up
from eqsat.price.narrow import is_joined
from eqsat.price.occupancy import FRAGMENTS
from eqsat.price.pipeline import handed_over
from eqsat.price.priced import Price
from eqsat.price.producing import Producing
from eqsat.price.rates import Array, Blocking, Contraction, Rates
from eqsat.price.scan import idle, is_stuck, redone
from eqsat.price.scatter import combined
from eqsat.price.split_factor import splitting, splitting_cycles, term_bytes
from eqsat.price.stencil import beyond_neighbours
from eqsat.price.sum import added_again
from eqsat.price.update import update_seconds, waits
from eqsat.price.window import drawn_again, loaded_beside, window_charges
from eqsat.price.window_box import out_of_box
from eqsat.specs import ParallelOperation
from eqsat.terms.algebra import REDUCTIONS, SCANS, SCATTERS, Read, Term
from eqsat.terms.carry_terms import law_of
from eqsat.terms.extremes import met_again
from eqsat.terms.form import REDUCING, SUBSTITUTED, WEIGHTED, Form, passes
from eqsat.terms.scattered import is_misplaced

REDUCING_OP = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
FREE_OPS = frozenset({"read", "literal", "gather", "reindex"})  # reindex: is_stuck
TIE = 0.005  # part of hidden work that still counts
EVEN = TIE / 10  # the same of a last round with few blocks, where rings wait for memory alone
BESIDE = 0.05  # part of memory's time that arithmetic does not hide: they share power
MATRIX = "matrix operations"  # the best of them, until one is chosen


class Pricer(Rates):
    """Prices forms for one spec."""

    def price(
        self,
        form: Form,
        tiles: Mapping[str, Array],
        blocking: Blocking | None = None,
        clusters: bool = True,
    ) -> Price:
        """Predicted seconds of one launch for each choice of tile extents of the grid names.

        Without blocking, contractions are taken to use the best operation of the spec, and limits
        on fast memory are left to the schedule's own search; reductions are streamed, or kept whole
        in each tile, with `clusters` also in one that only a cluster holds, where that saves phases
        from computing anew.
        """
        price = _Pricing(self, form, tiles, blocking).run()
        if blocking is None and self.overlap:
            every = passes(form, form.facts.universe.mask(form.reduced))
            if form.stepped or any(count > 1 for count in every.values()):
                kept = _Pricing(self, form, tiles, blocking, True, clusters).run()
                price = min(price, kept, key=lambda one: one.seconds.min())
        return price


class _Pricing(Producing):
    def __init__(
        self,
        pricer: "Pricer",
        form: Form,
        tiles: Mapping[str, Array],
        blocking: Blocking | None,
        keeps: bool = False,
        clusters: bool = False,
    ) -> None:
        super().__init__(pricer, form, tiles, blocking, clusters)
        if keeps:
            self.chunks = {}
        self.alike: dict[tuple[str, int, int, bool], float] = {}  # work by how often and where
        self.copies = self.scratch_traffic = 0 * self.shape
        self.halved = np.zeros_like(self.shape)  # bytes across the halves of the cache
        self.dram_bytes = 0 * self.shape  # of the traffic, from memory and to it
        # Seconds of atomic operations in the cache, of those when all else is done, and of calls.
        self.combined = self.joined = self.extra_latency = self.across = 0 * self.shape
        self.weighed: set[tuple[Term, int, CarryLaw]] = set()
        self.multiplied: set[Term] = set()  # by routines, and what they make
        self.repeat, self.gathers = 1, False  # whether threads copy from where values say
        self.settled: dict[Term, tuple[list[str], NDArray[np.intp]]] = {}
        self.weights = weights_again(self)
        self.reads = any(term.op in {"read", "gather"} for term in form.terms)
        # Chunks are read ahead of the work on those before, but for a pivot that threads agree on.
        self.pivots = bool(self.chunks) and any(t.op in WEIGHTED for t in form.terms)

    def charge(self, unit: str, seconds: Array) -> None:
        """Add work to a unit."""
        self.units[unit] = self.units.get(unit, 0 * self.shape) + seconds * self.repeat

    def run(self) -> Price:
        if hopeless := self.hopeless():
            return Price(np.inf * self.shape, refused={hopeless: self.shape > 0})
        facts = self.form.facts
        self.refused["scans"] = idle(self) | is_stuck(self.form)
        self.refused["scatters"] = self.shape * is_misplaced(self.form) > 0
        self.refused["extremes"] = self.shape * met_again(self.form, self.chunks) > 0
        repeats = passes(self.form, facts.universe.mask(self.chunks)) if self.chunks else {}
        for term in self.form.computed:
            self.repeat = repeats.get(term, 1)
            self._term(term)
        self.repeat = 1
        for (unit, mask, own, after), seconds in self.alike.items():
            work = seconds * self.times(mask) * redone(self, mask) * self.shared_by(own)
            self.charge(unit, work)
            self.after[unit] = self.after.get(unit, 0 * self.shape) + work * after
        self.read_bytes = self.dram_bytes
        for one in self.form.stored:
            self.refuse_lacking(one)
            address, dtype = one.address(self.form.extents), one.dtype
            size = self.points(facts.universe.mask(one.names)) * dtype.itemsize
            drawn = size * self.written(address, dtype.itemsize)
            lines = self.written_lines(one.names[-1:], dtype, address)
            self._move(one.buffer, size, drawn, lines * nest_price.broken(self, address, dtype))
            self.dram_bytes = self.dram_bytes + self.driven_out(one.buffer, size)
        if any(one.term.op in SCATTERS for one in self.form.stored):
            found = combined(self)
            self.charge("atomic operations", found.own)
            self.combined, self.joined = found.memory, found.joined
            self.staying = found.groups * (self.blocking is not None)
        return self._total()

    def _term(self, term: Term) -> None:
        facts = self.form.facts
        mask = facts.free(term)
        if term.op in {"read", "gather"}:
            self._read(term, mask)
        elif term.op in REDUCING:
            if term not in self.absorbed:
                self._reduction(term, mask)
        elif term.op in SCANS:
            self._scan(term, mask)
        elif term.op not in FREE_OPS and term not in self.absorbed:
            self._elementwise(term.op, term, mask)

    def _elementwise(self, op: str, term: Term, mask: int) -> None:
        dtype = works_in(term, self.form.facts).name
        work, own = self.points(mask) * self.repeat, mask
        after = not mask & self.form.facts.universe.mask(self.chunks)
        mask &= -1 if self.form.stepped in self.chunks else self.grid | self.masked.stream
        for unit, seconds in self.rates_of(op, term, dtype):
            key = unit, mask, 0 if own & ~self.grid else own, after
            self.alike[key] = self.alike.get(key, 0.0) + work * seconds
            if term in self.weights:
                again = self.points(own) * self.times(own) * (self.weights[term] - 1)
                self.charge(unit, again * seconds)

    def _scan(self, term: Term, mask: int) -> None:
        """One operation at each point; a state that is carried stays in fast memory."""
        self._elementwise("add" if term.op == "scan_sum" else "fma", term, mask)
        if self.form.stepped in self.chunks:
            self._keep(mask & ~self.form.steps.along, self.form.facts.dtype(term).itemsize)

    def _read(self, term: Term, mask: int) -> None:
        read = term.args[0]
        assert isinstance(read, Read)
        # What a gather reads depends on the names of its index too.
        names = mask if read.extent else self.form.facts.universe.mask(read.names)
        touched = self.points(names) * read.dtype.itemsize * self.present(read)
        whole = self.pricer.sizes.get(read.buffer, 0) or touched
        unit = [str(a) for a, stride in read.address.terms if stride == 1]
        lines = self.lines(unit, read.dtype, read.address)
        lines = lines * nest_price.fetched_again(self, term, names) * self.left_by_masks(names)
        drawn = self.drawn(read, touched * self.times(names))
        drawn, looking = (looked_up if read.extent else beyond_neighbours)(self, read, names, drawn)
        self.charge("loads", looking)
        before = self.dram_bytes
        self._move(read.buffer, self.unseen(read, min(touched, whole)), drawn, lines)
        self.fetched[term] = self.dram_bytes - before
        self.merged = self.merged + drawn * self.repeat * self.merged_part(names)
        self.copied[term] = drawn * self.repeat
        if read.guards and not self.pricer.overlap:
            self._apply("where", nest_price.tests(self, mask), read.dtype.name)
        for unit, seconds in window_charges(self, term):
            self.charge(unit, seconds)

    def _move(self, buffer: str, unique: float, traffic: Array, lines: Array) -> None:
        held = unique < self.pricer.cache.size_bytes / 2
        if buffer[0] not in "tb" or not held:
            self.dram_bytes = self.dram_bytes + lines * unique * (1 if held else self.repeat)
        self.traffic = self.traffic + traffic * self.repeat
        self.again = self.again + traffic * (self.repeat - 1)

    def _reduction(self, term: Term, mask: int) -> None:
        facts, over, inner = self.form.facts, term.args[0], 0
        assert isinstance(over, int)
        for child in term.children:
            inner |= facts.free(child)
        work = self.points(inner | over) * self.times(inner)
        dtype = facts.dtype(term)
        found = self.pricer.contraction(self.form, term)
        if not (found and nest_price.is_in_place(self, found)):
            self._keep(mask, dtype.itemsize)
        if found is None and term.op not in WEIGHTED:
            self.charge("loops", nest_price.in_chunks(self, mask, over))
        if found is not None:
            self._contract(found, work, dtype.name)
            return
        if term.op in WEIGHTED:
            self._weighted(term, work, dtype.name)
        else:
            outer = self.pricer.outer(self.form, term, self.factors(term))
            if outer is not None:
                self.charge("loads", work * update_seconds(self, outer, ""))
                self._stage_operands(outer, None)
            work *= self.weights.get(term.children[0], 1.0) * added_again(self, term, work)
            self._apply(REDUCING_OP[REDUCTIONS[term.op]], work, dtype.name)

    def _weighted(self, term: Term, work: Array, dtype: str) -> None:
        """The weights once for each point of s, then their products with r."""
        facts, mask, law, (s, r) = self.form.facts, term.args[0], law_of(term), term.children
        assert isinstance(mask, int)
        own = self.points(facts.free(s) | mask) * self.times(facts.free(s))
        own *= self.weights.get(s, 1.0)
        if (s, mask, law) not in self.weighed:  # sums over the same weights share them
            self.weighed.add((s, mask, law))
            self.charge("loops", 2 * nest_price.in_chunks(self, facts.free(s) & ~mask, mask))
            for op, of_conditions in law.operations:
                self._apply(op, own, "bool" if of_conditions else facts.dtype(s).name)
            if not self._multiplies:
                self._apply("add", agreeing(self, term), "float32")
        if term.op == "weighted_min":
            self._apply("where", work, "bool")
            return self._apply("minimum", work, dtype)
        left, right = facts.free(s), facts.free(r)
        roles = (left & right & ~mask, left & ~right, right & ~left, mask)
        found = Contraction(term, s, self.form.beneath_cast(r), *roles)
        if term.op == "weighted_sum" and (self.blocking is not None or r.op == "literal"):
            for unit, seconds in self.pricer.products(dtype):
                self.charge(unit, work * seconds)
            if self.pricer.overlap and all(roles[1:]):
                self.charge("loads", work * update_seconds(self, found, ""))
                self._stage_operands(Contraction(term, found.right, found.right, *roles), None)
            return
        if not self.pricer.overlap:  # the weights, as a factor
            self._keep(left | mask, facts.dtype(s).itemsize)
        self._contract(found, work, dtype)

    def _apply(self, op: str, work: Array, dtype: str) -> None:
        """An elementwise operation on so many elements."""
        for unit, seconds in self.pricer.rates(op, dtype):
            self.charge(unit, work * seconds)

    def _keep(self, mask: int, itemsize: int) -> None:
        """A tile value that stays in fast memory between loops."""
        self._hold(self.tile_points(mask) * itemsize)

    def _hold(self, held: Array) -> None:
        """So many bytes of a tile that stay in fast memory between loops."""
        self.scratch = self.scratch + held
        self.scratch_traffic = self.scratch_traffic + 2 * held * self.tiles_in_all()

    def _contract(self, found: Contraction, work: Array, dtype: str) -> None:
        best = work * update_seconds(self, found, dtype) * as_factor(self, found)
        unit, latency, ahead = "fma", np.zeros_like(self.shape), np.zeros_like(self.shape)
        name = found.term.args[3] if found.term.op in SUBSTITUTED else ""
        operation = self.spec.operation(str(name)) if name else None
        self.refused["scans"] |= self.scans and operation is not None  # no layout serves both
        if found.term.op in SUBSTITUTED or self.blocking is not None:
            candidates = [[operation]] if operation else []
        else:
            every = [] if self.scans else self.pricer.matrix_operations(self.form, found)
            candidates = self.pricer.families(every)
            candidates = [one for one in candidates if takes_factors(self, one[0], found)]
            if self.repeat > 1 and candidates:  # no schedule computes one anew
                self.refused["products in each phase"] = self.shape > 0
            started = [one[0] for one in candidates if one[0].asynchronous]
            started = [one for one in started if not preparing_seconds(self, one, found)]
            self.takes_turns |= bool(started)
            self.computes |= any(map(from_registers, started))
            if started:  # whole operations of each, whatever rows a tile has
                self.scratch = self.scratch + beyond_bytes(self, started[0], found)
                self.compute_factors(found)
        for alike in candidates:
            seconds, overhead = matrix_seconds(self, alike, found, work)
            before = 0.0 if operation else preparing_seconds(self, alike[0], found)
            better = seconds + overhead + before < best + latency + ahead
            if better.any() or operation:
                unit = operation.name if operation else MATRIX
                best = seconds if operation else np.where(better, seconds, best)
                latency = overhead if operation else np.where(better, overhead, latency)
                ahead = np.where(better, before, ahead)
        if operation and operation.asynchronous and self.blocking is not None:
            best, fed, names, numbers = sibling_seconds(self, operation, found, work)
            self.fed = self.fed + fed
            self.settled[found.term] = names, numbers
            self.across = self.across + across_seconds(self, found, names, numbers)
            self.started.add(operation.name)
            self.compute_factors(found)
            self.gathering = self.gathering + gather_cycles(self, operation, found)
            lacking = found.term.op in WEIGHTED and lacks_operands(self, operation, found)
            self.refuse(f"operands of {operation.name}", out_of_box(self, found) | lacking)
        self.charge(unit, best * waits(self, operation, found))
        self.by_threads |= {found.term} if unit == "fma" else set()
        if self.pricer.overlap and unit not in (*self.started, MATRIX):
            others = () if operation else self.pricer.products(dtype)
            self.waited |= {unit, COPIES, *dict(others)}
        if operation and self.blocking is not None:
            besides = computed_again(self, operation, found), splitting(self, operation, found)
            narrowed = narrowing_work(self, operation, found, work)
            for op, dtype, amount in (*narrowed, *chain.from_iterable(besides)):
                self._apply(op, amount, dtype)
            self.charge(FRAGMENTS, fragment_seconds(self, operation, found, work))
            if is_joined(found.term):  # the sums of a chunk are held beside those before it
                self._keep(found.batch | found.rows | found.columns, 4)
                self.scratch = self.scratch + term_bytes(self, operation, found)
                self.gathering = self.gathering + splitting_cycles(self, found)
            self.padded = np.maximum(self.padded, threads_padding(self, operation, found))
        self.extra_latency = self.extra_latency + latency
        self.ahead = self.ahead + ahead
        self._stage_operands(found, operation)
        self.multiplied |= {found.term, found.left, found.right} if unit != "fma" else set()
        for held, seconds in nest_price.rearranged(self, found, operation) if unit != "fma" else ():
            self._hold(held)
            self.charge(unit, seconds)

    def _stage_operands(self, found: Contraction, operation: ParallelOperation | None) -> None:
        """Shared memory that operands take, or the repeated reads where nothing is staged."""
        if not self.pricer.overlap:
            return
        stages = self.shape if self.blocking is None else self.blocking.stages
        facts = self.form.facts
        self.stage_converted(found.term, stages)
        for side in (found.left, found.right):
            if side in self.staged or (self.started and side.op not in {"read", "gather"}):
                continue  # lies there already, or in registers
            self.staged.add(side)
            self.gathers |= side.op == "gather"
            mask, itemsize = facts.free(side), facts.dtype(side).itemsize
            if self.blocking is None or self.blocking.staged:
                streamed = mask & facts.universe.mask(self.chunks)
                places = shared_places(self, operation, side)
                held = self.tile_points(mask) * places * itemsize * (stages if streamed else 1)
                boxed = self.boxed(side) if self.started else padded(self.form, operation, side)
                self.shared = self.shared + held * boxed
                if self.started and self.blocking is not None:
                    self.fed = self.fed + self.copied[side] * boxed
                    copied = self.copied[side] * self.crossed(side) * boxed
                    if operation and operation.asynchronous:
                        copied = copied * copied_again(self, operation, found, side)
                    self.traffic = self.traffic + copied - self.copied[side]
                    self.spared = self.spared + copied * self.saved(mask)
                    self.copied[side] = copied * (1 - self.saved(mask))
                    self.met = self.met + self.met_bytes(side)
                elif side in self.copied:
                    more = self.copied[side] * (drawn_apart(self, operation, side) - 1)
                    self.traffic, self.copied[side] = self.traffic + more, self.copied[side] + more
                if side in self.copied:
                    self.halved = self.halved + self.kept_twice(side, self.copied[side])
                if not self.started:
                    self.copies = self.copies + places * copied_alone(self, operation, found, side)
            else:
                self.charge("loads", loaded_beside(self, found, side))
                self.traffic = self.traffic + drawn_again(self, found, side)

    def _total(self) -> Price:
        spec, pricer, cache = self.spec, self.pricer, self.pricer.cache
        tiles = self.in_parts(every := self._computed())
        self.traffic = self.traffic + self.spilled_bytes() * tiles
        imbalance = (waves := self.waves(tiles)) * self.at_once() / tiles * self.left_over(tiles)
        busy, working = self.busy(tiles), self.busy(tiles, least=1.0)
        parts = {n: v * imbalance / self.kept_busy(n, working) for n, v in self.units.items()}
        parts |= self.conversion(self.units, imbalance)
        staging, computing = None, parts.get(ISSUED, 0 * self.shape)
        if self.blocking is not None and self.blocking.staged and not self.started:
            chunks = tiles * self.steps() * self.blocking.threads
            copies = sum(vectors(self, side, size) for side, size in self.copied.items())
            threads = np.minimum(tiles, self.resident()) / spec.processors * self.blocking.threads
            issued, staging = issue_seconds(spec, chunks, copies, self.copies, computing, threads)
            parts |= issued
        compute = sum((parts.get(one, 0.0) for one in self.waited), 0 * self.shape)  # of one unit
        for value in parts.values():
            compute = np.maximum(compute, value) if self.pricer.overlap else compute + value
        if self.takes_turns:
            others = [seconds for name, seconds in parts.items() if name != MATRIX]
            compute = parts.get(MATRIX, 0.0) + np.max([0 * compute, *others], axis=0) / TEAMS
            compute = compute + self.between_tiles(waves)
        if self.blocking is None and MATRIX in parts:
            compute = compute + self.reread() + self.read_beside()
        cache_bw = cache.sustained_gb_per_s * 1e9
        part = self.shape if self.asks_ahead else np.sqrt(busy)
        cores = np.minimum(tiles * self.blocks, spec.processors)
        drawn, asked = self.drawing(tiles, cores, part)
        moved = np.maximum(self.dram_bytes / drawn, self.read_bytes / asked) * self.scattered()
        parts["dram"] = moved + TIE * self.dram_bytes / asked  # of kernels alike, the deeper ring
        if self.started or self.takes_turns:
            cache_bw, part = cache.bandwidth_gb_per_s * 1e9, self.shape
        per_core = cache_bw / spec.processors * cores * part
        whole = waves * cores / tiles if self.started else 1.0  # each processor copies for itself
        parts[cache.name] = self.given_seconds(per_core, cores) * whole + self.combined
        if self.pricer.overlap:
            self.refuse_oversized()
        memory = np.maximum(parts["dram"] + self.halved / cache_bw, parts[cache.name])
        parts["latency"] = self.waits(tiles, computing) + self.extra_latency
        if staging is not None:
            parts["latency"] = self.in_turn(parts, staging, computing, tiles)
        launch = (spec.graph_launch_latency_us or spec.launch_latency_us) * 1e-6
        parts["launch"] = launch * np.where(tiles > every, 2.0, 1.0)
        if self.pricer.overlap:
            memory = memory + self.across + self.spilled_seconds(tiles)
            work = np.maximum(memory, compute + self.again / cache_bw)  # nothing hides this
            if self.started:
                parts["pipeline"] = self.pipelined(tiles, parts[cache.name])
                work = np.maximum(work, parts["dram"] + self.alone_seconds(tiles))
            waits = parts.get("pipeline", parts["latency"])
            waited_for = self._multiplies and staging is not None
            hidden = np.minimum(memory if waited_for else work, waits)
            exposed = self.exposed(tiles, hidden) + self.starts(tiles)
            seconds = np.maximum(work, waits) + exposed + parts["launch"]
            rate, trip = cache.bandwidth_gb_per_s * 1e9, pricer.dram.latency_cycles
            seconds = seconds + handed_over(spec, self.last_parts, self.scratch, trip, rate)
            seconds = seconds + BESIDE * np.minimum(parts["dram"], compute)
            if self.started:
                seconds = seconds + EVEN * parts["dram"] * self.idle(tiles)
                seconds = seconds + self.met_seconds(parts["dram"], parts["pipeline"])
            if self.blocking is not None and self._multiplies:
                seconds = seconds + written_seconds(self)
        else:
            scratch = nest_price.scratch_seconds(self, self.scratch_traffic) * imbalance
            parts["scratch"], uneven = scratch, nest_price.uneven(self, tiles)
            worked = compute + scratch + nest_price.passed(self, memory)
            seconds = np.maximum(memory, worked) * uneven + parts["latency"] + launch
        hidden = {*self.units, cache.name, ISSUED if pricer.overlap else "dram"}
        # Of kernels that wait, the one with less other work; blocks that wait for others gain none.
        seconds = seconds + TIE * sum(parts[unit] for unit in sorted(hidden & parts.keys()))
        seconds = seconds + TIE * self.spared / per_core + self.ahead + self.joined
        seconds = np.where(np.any([*self.refused.values()], axis=0), np.inf, seconds)
        return Price(seconds, parts, self.refused, self.settled)

    def _computed(self) -> Array:
        """Tiles in all, with those that are computed again, as is what they take of each unit."""
        times = self.repeated()
        if self.scans or self.started or self.takes_turns:
            issue_beside(self.units, self.after, bool(self.started))
        for found in (self.units, self.after):
            found.update({name: seconds * times for name, seconds in found.items()})
        every = (self.fed, self.traffic, self.spared, self.merged)
        self.fed, self.traffic, self.spared, self.merged = (one * times for one in every)
        return self.tiles_in_all() * times
