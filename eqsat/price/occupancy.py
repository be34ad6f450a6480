"""How many tiles a processor holds at once, and how busy they keep it."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from eqsat.graph.ops import ELEMENTWISE
from eqsat.price.clusters import CLUSTER, clusters
from eqsat.price.contraction import absorbed, is_factor, lacks_operands
from eqsat.price.conversion import (
    CONTENDED,
    EACH,
    conversion_bytes,
    conversion_seconds,
    conversions,
    made_of,
    slots_made,
    widened,
)
from eqsat.price.drawn import Drawn
from eqsat.price.factor import computed_of_reads
from eqsat.price.issue import ISSUED, instruction_seconds
from eqsat.price.nearly import short_powers
from eqsat.price.partial_sums import count_parts
from eqsat.price.pipeline import whole_slots
from eqsat.price.rates import Array, Blocking, Contraction, Rates
from eqsat.price.scan import at_work
from eqsat.price.stencil import loaded_part
from eqsat.price.sum import at_hand, reread_seconds
from eqsat.price.window import held_elements, windowed
from eqsat.terms.algebra import REDUCTIONS, SCANS, Term, post_order
from eqsat.terms.carry_terms import carried_pivots
from eqsat.terms.form import REDUCING, SUBSTITUTED, Form, Stored, is_product, shares_factors, walked

AROUND = 40  # bytes of a thread's registers for addresses and what is at hand
PEERS = 8  # more of them for a thread's place in a cluster
WORD, REGISTER_UNIT = 4, 8  # bytes of a register; registers of a thread are a multiple
AROUND_LOOP = 128  # the same where there are products, streams or staged operands
STORED_THROUGH = 64  # bytes of shared memory in which a thread arranges what it stores
SPILLED = 0.3  # of the cache's time: three arrays in chunks of rows take 110 us, in half of them 92
SAMPLED = 0.98  # of the tiles that samples of a mask tell: of a diagonal there are too many
SHORT = 64  # points of a sum that a thread adds up by itself
PRODUCING = 2  # blocks of a processor of whose threads some copy for the others
FILLED = 512  # threads that keep a processor's arithmetic busy
FRAGMENTS = "fragments"  # of factors, read from shared memory by those who multiply them
READ_CYCLES = 2  # of a warp's read of shared memory from which products take their factors
MULTIPLYING = 256  # the same of matrix operations: one of two warps reads factors meanwhile


class Occupancy(Drawn):
    """Tiles beside each other on a processor, by their threads, registers and shared memory."""

    def __init__(
        self,
        pricer: Rates,
        form: Form,
        tiles: Mapping[str, Array],
        blocking: Blocking | None,
        clustered: bool = False,
    ) -> None:
        if blocking and not _stages(form):
            blocking = replace(blocking, staged=False)  # a place is offered, for nothing
        super().__init__(pricer, form, tiles, blocking)
        self.absorbed = absorbed(form) | carried_pivots(form.terms)
        self.blocks = self.shape if blocking is None else blocking.cluster
        self.last_parts = 0 * self.shape if blocking is None else blocking.last_parts
        self.refused: dict[str, NDArray[np.bool_]] = {}
        self.scratch = np.zeros_like(self.shape)
        self.shared = np.zeros_like(self.shape)
        self.started: set[str] = set()  # asynchronous operations: few threads keep them busy
        self.waited: set[str] = set()  # units of products that threads wait for, and of sums beside
        self.staged: set[Term] = set()
        self.copied: dict[Term, Array] = {}  # bytes that reads draw from the cache
        self.again = np.zeros_like(self.shape)  # of these what nothing hides, as in later phases
        self.ahead = np.zeros_like(self.shape)  # seconds of kernels that prepare factors
        self.takes_turns = False  # teams of threads, at operations that run on
        self.padded = np.ones_like(self.shape)  # points of threads for each of a tile of products
        self.computes = False  # with a factor in registers
        self.by_threads: set[Term] = set()  # products that no operation takes
        self.scans = any(term.op in SCANS for term in form.terms)
        self.clusters = clusters(form, self.spec) if clustered else ()
        self.staying = np.zeros_like(self.shape)  # blocks that combine tile after tile
        self.converted = conversions(self)  # factors that threads of their own make
        self.made = self.converting = np.zeros_like(self.shape)  # bytes of these, and seconds
        self.absorbed |= {one for side in self.converted.values() for one in made_of(side)}
        self.widened = widened(self)
        self.powers = short_powers(form) if pricer.overlap else set()

    def rates_of(self, op: str, term: Term, dtype: str) -> list[tuple[str, float]]:
        """The units of an elementwise operation, and seconds of an element."""
        if term in self.powers:
            op = "exp_difference"
        if term in self.widened:
            return [(ISSUED, EACH * instruction_seconds(self.spec))]
        return self.pricer.rates("add" if op == "position" else op, dtype)

    def live_bytes(self) -> Array:
        """Bytes of registers that a tile takes at the most: the widest value, beside it what else
        is read, as it lies in memory, and what threads need for themselves.

        Of products: twice the widest value, factors among it. Of streams besides: a carry's next
        value beside the carry.
        """
        assert self.blocking is not None
        held = 2 * self.scratch
        largest = self._widest
        factors = {f for t in self.form.terms for f in self.factors(t) or ()}
        if not self._holds and (factors or self._multiplies or not self.chunks):
            return held + AROUND_LOOP * self.blocking.threads + 2 * largest
        read = {t for t in self.form.terms if t.op in {"read", "gather"}} - factors
        reads = [self._read_bytes(t) * loaded_part(self, t) for t in self.form.terms if t in read]
        beside = sum(reads) - np.max(reads, axis=0) if reads else 0.0
        around = np.where(self.blocks > 1, AROUND + PEERS, AROUND if self._holds else AROUND_LOOP)
        held = held + (largest + beside) * self._idle_lanes()
        return held + around * self.blocking.threads * self.blocks

    def _idle_lanes(self) -> Array:
        """How many times a tile's points its threads have registers for: rows that are longer than
        a warp take whole ones.
        """
        lanes, one = self.spec.members("warp", "thread"), self.form.stored[0]
        row = self.tile_points(self.form.facts.universe.mask(one.names[-1:]))
        return np.where(row > lanes, np.ceil(row / lanes) * lanes / row, 1.0)

    def spilled_bytes(self) -> Array:
        """Bytes that the threads of a tile hold beyond their registers, so that they are written to
        memory and read again.
        """
        if self.blocking is None or self.blocking.staged or not self.pricer.overlap:
            return 0 * self.shape
        registers, threads = self.spec.memory("registers"), self.blocking.threads
        room = np.minimum(registers.limit_per_group_bytes * threads, registers.size_bytes)
        return 2 * self.steps() * np.maximum(self.live_bytes() / self.blocks - room, 0.0)

    def spilled_seconds(self, tiles: Array) -> Array:
        """Seconds that writing and reading these take longer than as many other bytes."""
        rate = self.pricer.cache.sustained_gb_per_s * 1e9
        return SPILLED * self.spilled_bytes() * tiles / rate

    def _read_bytes(self, term: Term) -> Array:
        """What a read takes of registers: the threads of each row that it is met with hold what
        lacks the row, each of them all of it at the most.
        """
        assert self.blocking is not None
        mask, itemsize = self.form.facts.free(term), self.form.facts.dtype(term).itemsize
        most = self.tile_points(mask) * self.blocking.threads * self.blocks
        return np.minimum(self.tile_points(mask | self._met_with(mask)), most) * itemsize

    def _met_with(self, mask: int) -> int:
        """The names of the grid that some value has beside those of a mask which are reduced: all
        where none are. Rows that are reduced by themselves lie on the threads of what is stored.
        """
        reduced = mask & ~self.grid
        found = (free for t in self.form.terms if (free := self.form.facts.free(t)) & reduced)
        return self.grid & reduce(or_, found, 0) if reduced else self.grid

    def held_points(self, term: Term) -> Array:
        """Points of a value in the registers of a tile; what overlapping windows share once."""
        if self.blocking is not None and (axes := windowed(self, term)):
            return held_elements(self, term, axes) * self.blocking.threads
        return super().held_points(term)

    def at_once(self) -> Array:
        """Tiles that run at once where each processor holds one block: a cluster's blocks share a
        part of the device, into which not every processor fits.
        """
        processors = self.shape * self.spec.processors
        if not (self.blocks > 1).any():
            return processors
        cluster = self.spec.group(CLUSTER)
        fit = np.minimum(cluster.count * cluster.size, processors)
        return np.where(self.blocks > 1, np.floor(fit / self.blocks), processors)

    def waves(self, tiles: Array) -> Array:
        """How often a processor is given a tile, where it may be given a part of the last one."""
        whole, parts = np.floor(tiles / self.at_once()), self.last_parts
        last = np.where(parts > 0, 1 / np.maximum(parts, 1), 1.0)
        return np.where(parts > 0, whole + last, np.ceil(tiles / self.at_once()))

    def left_over(self, tiles: Array) -> Array:
        """How many times as uneven rounds of tiles are where those are left out of which a mask
        stores nothing.
        """
        if self.masked.stored == 1 or not self.pricer.overlap:
            return self.shape
        live = SAMPLED * tiles * np.minimum(self.masked.stored + self.reach() / 2, 1.0)
        return self.waves(live) / live * tiles / self.waves(tiles)

    def resident(self) -> Array:
        """Tiles in flight at once on the device: as many as threads and memory of each allow."""
        if not self.pricer.overlap:
            return self.at_once()
        group = self.spec.group(self.spec.tile_group)
        limit = self.shape * group.max_resident
        if self.blocking is not None:
            threads = self.spec.group("thread").max_resident
            limit = np.minimum(limit, np.floor(threads / self.blocking.threads))
            if self.blocking.staged:
                room = self.spec.memory("shared").size_bytes
                limit = np.minimum(limit, np.floor(room / np.maximum(self.shared, 1024)))
            limit = np.minimum(limit, self.registers_fit())
            most = 1 if self.converted else PRODUCING
            limit = np.minimum(limit, most) if self.started else limit
            limit = np.where(self.staying > 0, np.minimum(limit, self.staying), limit)
        return self.at_once() * np.maximum(limit, 1)

    def registers_fit(self, loops: bool = False) -> Array:
        """Blocks for which a processor has registers, also where each `loops` over tiles."""
        assert self.blocking is not None
        if self.started and self.chained:  # causal, 512 rows: two take 89 us, one of twice 77
            return 1.0 + (self._fits_twice() & (not self.masked.stream))
        if self.blocking.staged:
            held = 2 * self.scratch + AROUND_LOOP * self.blocking.threads
        else:  # what was read stays until it is used again
            held = self.live_bytes() / self.blocks
            held = held + (AROUND_LOOP - AROUND) * self.blocking.threads * loops
        return np.floor(self.spec.memory("registers").size_bytes / held)

    @cached_property
    def chained(self) -> bool:
        """Whether a factor of a product is computed from another one's result."""
        return any(t.op in SUBSTITUTED and is_factor(self, t) for t in self.form.terms)

    def read_beside(self) -> float:
        """Seconds in which threads read, for what a chain's first products leave, numbers of their
        columns: a lane those of two columns at once, for both of its rows.
        """
        facts, free = self.form.facts, self.form.facts.free
        products = {t for t in self.form.terms if t.op in SUBSTITUTED or is_product(t, facts)}
        chain = any(products & {*post_order(t.children)} for t in products)
        if not self.pricer.overlap or not chain:
            return 0.0
        streamed = facts.universe.mask(self.chunks or self.form.reduced)
        masks = (free(t) for t in products if free(t) & streamed)
        scores = max(masks, key=self.points, default=0)
        reads = {t for t in self.form.terms if t.op == "read"} - {*self.form.operands()}
        columns = [t for t in reads if free(t) & streamed and scores & ~free(t)]
        warps = len(columns) * self.points(scores) / (4 * self.spec.members("warp", "thread"))
        return READ_CYCLES * warps / (self.spec.processors * self.spec.cycles_per_s)

    def _fits_twice(self) -> NDArray[np.bool_]:
        """Where threads of two blocks, and those that copy for them, are launched with registers
        for the results of products and what they do with these one by one, and both have room to
        store through shared memory.
        """
        assert self.blocking is not None
        products = (t for t in self.form.terms if t.op in SUBSTITUTED)
        results = sum(self.tile_points(self.form.facts.free(t)) for t in products)
        group = self.spec.members("warpgroup", "thread")
        every = self.spec.memory("registers").size_bytes / WORD
        each = np.floor(every / (2 * (self.blocking.threads + group)) / REGISTER_UNIT)
        fit = results / self.blocking.threads + AROUND_LOOP / WORD <= each * REGISTER_UNIT
        room = self.spec.memory("shared").size_bytes / 2
        return fit & (self.shared + STORED_THROUGH * self.blocking.threads <= room)

    def idle(self, tiles: Array) -> Array:
        """The part of all rounds for which a last one leaves blocks without a tile."""
        resident = np.minimum(tiles, self.resident())
        rounds = np.ceil(tiles / resident)
        return (rounds * resident - tiles) / (rounds * resident)

    def beside(self, tiles: Array) -> Array:
        """Blocks at once on a processor."""
        return np.minimum(tiles, self.resident()) * self.blocks / self.spec.processors

    def refuse(self, reason: str, where: NDArray[np.bool_]) -> None:
        """Some choices, besides those that are refused for it already."""
        self.refused[reason] = self.refused.get(reason, False) | where

    def refuse_lacking(self, one: Stored) -> None:
        """Each value is stored by one tile alone."""
        own = self.form.facts.universe.members(walked(one, self.form.facts))
        if lacking := [name for name in self.form.grid if name not in own]:
            reason = f"{one.buffer} lacks {', '.join(lacking)}"
            self.refused[reason] = np.any([self.count[name] > 1 for name in lacking], axis=0)

    def refuse_oversized(self) -> None:
        """Tile values live in registers, staged operands in shared memory; both have limits."""
        if self.blocking is None or self.blocking.staged:
            self.refused["shared"] = self.shared > self.spec.memory("shared").limit_per_group_bytes
        self.refused["registers"] = self.cramped(self.scratch, bool(self.started))
        if self.blocking is not None and not self.started:  # no thread copies for others
            helped = (self.blocking.last_parts > 0) | (self.blocking.shared > 1)
            self.refused["blocks that help each other"] = helped

    def cramped(self, kept: Array, started: bool) -> NDArray[np.bool_]:
        """Where registers lack room for so many bytes that a tile keeps, and, unless operations
        are started, for what it computes with beside them.
        """
        registers = self.spec.memory("registers")
        most = self.spec.members(self.spec.tile_group, "thread") / 2
        threads = self.shape * most if self.blocking is None else self.blocking.threads
        blocks = max(self.clusters, default=1) if self.blocking is None else self.blocks
        threads = threads * blocks
        largest = 0.0 if self._adds_in_place else self._widest
        each = registers.limit_per_group_bytes * (0.9 if started else 0.6)
        held = kept + (0 if started or self.takes_turns else 2 * largest)
        most = each * threads
        if self.takes_turns:  # the accumulators of all teams, and factors
            most = np.minimum(most, (0.4 if self.computes else 0.6) * registers.size_bytes)
        return held > most

    def compute_factors(self, found: Contraction) -> None:
        """Factors of an operation that is started, which threads compute of what they read: unless
        they are summed chunk by chunk, read ahead, nothing hides their reads, and those that are
        the same for all chunks stay in registers.
        """
        facts, streamed = self.form.facts, self.form.facts.universe.mask(self.chunks)
        if found.summed & streamed:
            return
        for side, reads in computed_of_reads(found, self.converted.get(found.term)):
            self.again = self.again + sum(self.copied.get(one, 0.0) for one in reads)
            if streamed and not facts.free(side) & streamed:
                held = self.tile_points(facts.free(side)) * facts.dtype(side).itemsize
                self.scratch = self.scratch + held

    def slots(self) -> Array:
        """Of a ring, as far as a chunk's copies may be ahead of its products: where all that is
        copied for chunks is converted, those of what is made as well; without chunks a tile's.
        """
        assert self.blocking is not None
        if self.started and not self.chunks:
            return whole_slots(self.shared, int(self.spec.memory("shared").size_bytes))
        streamed = self.form.facts.universe.mask(self.chunks)
        operands = {one for one in self.form.operands() if self.form.facts.free(one) & streamed}
        alone = self.converted and not any(one.op in {"read", "gather"} for one in operands)
        made = slots_made(self.blocking.stages, len(self.converted))
        return self.blocking.stages + bool(alone) * made

    def conversion(self, units: Mapping[str, Array], imbalance: Array) -> dict[str, Array]:
        """Seconds until all factors are converted, while products read shared memory too; nothing
        where none are.
        """
        products = sum(units.get(one, 0.0) for one in self.started)
        seconds = (self.converting + CONTENDED * products) * imbalance
        return {"conversion": seconds} if self.converted else {}

    def stage_converted(self, product: Term, stages: Array) -> None:
        """Shared memory for a product's converted factor and for what it is made of, and the time
        that takes.
        """
        side = self.converted.get(product)
        if side is None or side in self.staged:
            return
        self.staged.add(side)
        made, copied = conversion_bytes(self, side)
        if self.form.facts.free(side) & self.form.facts.universe.mask(self.chunks):
            made, copied = made * slots_made(stages, len(self.converted)), copied * stages
        self.made = self.made + made
        self.shared = self.shared + made + copied
        self.converting = self.converting + conversion_seconds(self, side)

    def hopeless(self) -> str:
        """What no choice has, as is plain before anything is priced; empty where some may fit."""
        if self.blocking is None or not self.pricer.overlap:
            return ""
        named = {t: self.spec.operation(name) for t, name in self.form.operations.items()}
        started = {term: one for term, one in named.items() if one.asynchronous}
        for term, one in started.items():
            found = self.pricer.contraction(self.form, term)  # of weights that is settled later
            if not self.blocking.staged or (found and lacks_operands(self, one, found)):
                return f"operands of {one.name}"
        kept, facts = [t for t in self.form.computed if t.op in REDUCING], self.form.facts
        held = sum(self.tile_points(facts.free(t)) * facts.dtype(t).itemsize for t in kept)
        return "registers" if self.cramped(self.shape * held, bool(started)).all() else ""

    def reread(self) -> Array:
        """Seconds in which threads read what a tile reduces besides products, such as norms of the
        rows of a factor that is multiplied in another form: each tile does so, and waits for it.
        """
        facts, terms = self.form.facts, self.form.computed
        products = {term for term in terms if self._is_product(term) or is_product(term, facts)}
        products -= self.by_threads
        prepared = (self.ahead > 0).any()  # factors, by the threads: they are read for that too
        read = set() if prepared else at_hand(products)
        return reread_seconds(self, products, self.copied, read)

    def _is_product(self, term: Term) -> bool:
        return term.op in SUBSTITUTED or self.form.contraction(term) is not None

    def turns(self) -> Array:
        """Tiles of a block under way: two where a team computes each and memory holds one block."""
        if self.blocking is None or len(self.started) != 1 or self._sums_across():
            return self.shape
        team = self.blocking.threads == self.spec.members("warpgroup", "thread")
        team &= not count_parts(self.spec, self.form)  # or it waits for products of its own
        return np.where(team & (self.resident() <= self.spec.processors), 2.0, 1.0)

    def _sums_across(self) -> bool:
        """Whether reductions follow a product that need more than the lanes which hold its rows."""
        if self.reductions_in_turn() <= 1:
            return False
        terms = [t for t in self.form.terms if t.op in REDUCING]
        products = [t for t in terms if self._is_product(t)]
        found = self.pricer.contraction(self.form, products[0]) if len(products) == 1 else None
        if found is None:
            return True
        beyond = ~found.columns | self.form.facts.universe.mask(self.chunks)
        return any(int(t.args[0]) & beyond for t in terms if t not in products)

    def busy(self, tiles: Array, least: float = 0.0) -> Array:
        """The part of the device's arithmetic that the threads in flight keep busy; of those
        processors' alone that have a block, where that is the `least` one has.
        """
        if self.blocking is None or not self.pricer.overlap:
            return self.shape
        beside = np.maximum(self.beside(tiles), least)
        return np.minimum(1.0, beside * self.turns() * at_work(self) / FILLED)

    def kept_busy(self, unit: str, busy: Array) -> Array:
        """The part of a unit that they keep busy with points of a tile: all, where operations run
        on by themselves; of fragments beyond the tile, threads work on what is not there.
        """
        if unit in self.started:
            return self.shape
        if unit in (FRAGMENTS, "fma") or unit in self.form.operations.values():
            return np.minimum(1.0, busy * FILLED / MULTIPLYING)
        return busy / self.padded

    def shared_by(self, mask: int) -> Array:
        """How many threads compute a value over some names of the grid, each for itself: all that a
        tile has for each of its points.
        """
        alone = self.blocking is None or not self.pricer.overlap
        if alone or not mask or self.form.stepped in self.chunks:
            return self.shape
        assert self.blocking is not None
        return np.maximum(self.blocking.threads / self.tile_points(mask), 1)

    @cached_property
    def _adds_in_place(self) -> bool:
        """Whether all that is reduced are products by operations: their sums are added to where
        they lie, and what is computed of them is stored element by element.
        """
        reduced = {t for t in self.form.computed if t.op in REDUCING}
        return bool(reduced) and reduced <= self.form.operations.keys()

    @cached_property
    def _widest(self) -> Array:
        """Bytes of the largest value that threads hold."""
        return self.largest(self.absorbed | self._read_at_use() | self._made_in_passing())

    def _made_in_passing(self) -> set[Term]:
        """Values that one reduction alone reads, or others such: a thread makes each element as it
        adds it up, and holds none of them.
        """
        made, found = self.form, dict[Term, Term]()
        if made.operations or not self.pricer.overlap:
            return set()
        held = {one.term for one in made.stored}
        users: dict[Term, list[Term]] = {}
        for term in reversed(made.terms):  # users before what they read
            read_by = users.get(term, [])
            ends = {found.get(user, user) for user in read_by}
            alone = len(ends) == 1 and term not in held and not made.contraction(*ends)
            if alone and term.op in ELEMENTWISE and {end.op for end in ends} <= {*REDUCTIONS}:
                (found[term],) = ends
            for child in term.children:
                users.setdefault(child, []).append(term)
        return {*found}

    def _read_at_use(self) -> set[Term]:
        """Factors of short sums, which threads that share nothing take from memory as they add."""
        found: set[Term] = set()
        if self.blocking is None or self.blocking.staged or not self.pricer.overlap:
            return found
        for term in self.form.terms:
            mask = term.args[0] if term not in self.form.operations else 0
            for factor in self.factors(term) or ():
                beneath = self.form.beneath_cast(factor)
                assert isinstance(mask, int)
                if mask and beneath.op == "read" and self.tile_points(mask).max() <= SHORT:
                    found |= {factor, beneath}
        return found

    @property
    def _holds(self) -> bool:
        """Whether a tile reads all that it needs at once, with no chunks to read ahead."""
        plain = self.blocking is not None and not self.blocking.staged and not self.chunks
        return plain and self.pricer.overlap and not self._multiplies

    @cached_property
    def _multiplies(self) -> bool:
        """Whether there are products of which results share both factors."""
        for term in self.form.terms:
            factors = self.factors(term)
            free = [self.form.facts.free(factor) for factor in factors or ()]
            if (term.op in SUBSTITUTED or free) and (not free or shares_factors(*free)):
                return True
        return False


def _stages(form: Form) -> bool:
    """Whether a place for operands is used: for what is read, or for an operation's factors."""
    return bool(form.operations) or any(one.op in {"read", "gather"} for one in form.operands())
