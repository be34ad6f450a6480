"""What tiles wait for, and the waits that no other tile's work hides."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from eqsat.price import row as row_price
from eqsat.price.clusters import CLUSTER
from eqsat.price.conversion import GROUPS
from eqsat.price.copy import is_waited_for
from eqsat.price.exchange import exchange_cycles
from eqsat.price.fragment import chain_cycles
from eqsat.price.issue import COPIES
from eqsat.price.occupancy import FRAGMENTS, Occupancy
from eqsat.price.pipeline import LOADED, SLOT, in_flight
from eqsat.price.rates import Array
from eqsat.price.scan import step_cycles
from eqsat.terms.form import REDUCING

MOST_IN_TURN = 4  # reductions that wait for one another, beyond which no tile of threads is tried
FEW_CHUNKS = 8  # for which threads that copy for themselves wait: 424 x 984 x 296
AT_ONCE = 8  # blocks of a processor that start as fast as one
TELLING = 1.4  # times as long starts one of few blocks, which tells the next launch to be set up
MEETING = 6  # barriers' time until blocks that meet first copy for each other: 1024^3, 2048^3
IN_TURN = 1.5  # times what threads do between products: none of it begins at once
EXPOSED = 0.5  # the part of copies of single elements that no number of other blocks hides
FEW_TEAMS, WAITING = 2, 1.35  # 2048 rows of heads of 64: 250 us, and 177 where three teams fit
BETWEEN = 100  # cycles of a chunk in which each team's products wait for what others' are made of
SCATTERED = 0.02  # of memory's time, each time the threads of a block that reads on are halved:
MOST_TOGETHER = 512  # from so many on; sums of one or two arrays of 2^26 to 2^28 numbers
ALONE = 128  # threads of a block that wait for others in no chunk, beyond which more hide more
COMPUTING = 0.4  # the part of elementwise work that nothing else of the same threads hides


class Latency(Occupancy):
    """Trips to memory, chunks, products that threads wait for, blocks that start and meet."""

    @property
    def asks_ahead(self) -> bool:
        """Whether what tiles read is asked for however few threads there are: a producer copies, or
        threads for the chunks after the one at hand; steps wait for latency.
        """
        stepped = self.form.stepped in self.chunks
        return bool(self.started) or stepped or row_price.has_rows(self)

    def between_tiles(self, waves: Array) -> Array:
        """Seconds in which teams that take turns neither multiply nor wait for operands: what they
        read first and exchange for each tile, and what they store.
        """
        sums = sum(t.op in REDUCING and t not in self.form.phase for t in self.form.terms)
        trips = self.pricer.dram.latency_cycles + sums * self.pricer.cache.latency_cycles
        stored = sum(self.points(mask) * size for mask, size in self.stored_points())
        rate = self.pricer.cache.bandwidth_gb_per_s * 1e9
        cycles = waves * (trips + self.steps() * self.exchanged())
        return cycles / self.spec.cycles_per_s + stored / rate

    def exchanged(self) -> Array:
        """Cycles of a chunk in which all threads exchange sums of what is beside products."""
        return exchange_cycles(self, self.absorbed)

    def between(self, teams: Array) -> Array:
        """Cycles of a chunk in which no team multiplies, where a factor is computed from another
        product's result: the more teams and the shorter chunks, the more often one has to begin.
        """
        return BETWEEN * teams * self.chained

    def left_waiting(self, teams: Array) -> Array:
        """How many times as long threads work between such products where a processor has few
        teams, each in a block of its own: no other works while one waits.
        """
        few = (teams == self.turns()) & (self.resident() <= FEW_TEAMS * self.spec.processors)
        return np.where(few & self.chained, WAITING, 1.0)

    @property
    def _start_seconds(self) -> float:
        """From the start of one block to that of the next, on the whole device."""
        group = self.spec.group(self.spec.tile_group)
        return group.start_interval_cycles / self.spec.cycles_per_s

    def waits(self, tiles: Array, computing: Array) -> Array:
        """Seconds for which tiles wait, one after the other where they do not fit side by side;
        where they stream over rows, with what each has of so many seconds of instructions.

        A tile that holds what it reads asks for no more until it is done: of those after the first,
        memory is busy with others meanwhile, and each trip takes longer. Nor do blocks start faster
        than the device starts them.
        """
        rounds = np.ceil(tiles / self.resident())
        if self._holds:
            rounds = 1 + LOADED * (rounds - 1)
        waits = (self._tile_latency() + row_price.own_seconds(self, computing, tiles)) * rounds
        if self.blocking is None or self.started or not self.pricer.overlap:
            return waits
        return np.maximum(waits, tiles * self.blocks * self._start_seconds)

    def drawing(self, tiles: Array, cores: Array, part: Array) -> tuple[Array, Array]:
        """Bytes a second that memory gives so many cores, of which each asks for a part; and what
        tiles read, of which no more is on its way than they have room for.
        """
        spec, dram = self.spec, self.pricer.dram
        most = dram.sustained_gb_per_s * 1e9
        alone = dram.bandwidth_per_processor_gb_per_s * 1e9 or most
        drawn = np.minimum(most, alone * cores) * part
        if self.blocking is not None and self.blocking.staged:
            held = (self.shared - self.made) * np.minimum(tiles, self.resident()) / SLOT
            stages = self.slots() if self.started or not self.gathers else self.shape
            ring = in_flight(spec, dram, held, stages)
            return drawn, np.where(held > 0, np.minimum(drawn, ring), drawn)
        if self.blocking is not None and self.pricer.overlap and self.reads and self.pivots:
            beside = np.minimum(tiles, self.resident())
            blocks = np.maximum(beside / spec.processors, 1) + 1  # one computes or stores
            held = self.traffic / (tiles * self.steps()) * beside * (blocks - 1) / blocks
            return drawn, np.minimum(drawn, in_flight(spec, dram, held, blocks))
        return drawn, drawn

    def scattered(self) -> Array | float:
        """How many times as long memory takes where blocks of few threads read on alone, each
        at a place far from the others.
        """
        if self.blocking is None or self.reductions_in_turn(pivots=True) > 1:
            return 1.0
        halved = np.log2(np.maximum(MOST_TOGETHER / self.blocking.threads, 1))
        return 1 + SCATTERED * halved * self._reads_on

    @cached_property
    def _reads_on(self) -> NDArray[np.bool_]:
        """Whether each tile is of one point, for which its threads read on and on by themselves."""
        if self.blocking is None or self.blocking.staged or not self.pricer.overlap:
            return self.shape < 0
        streams = bool(self.chunks) and self.form.stepped not in self.chunks
        alone = self.tile_points(self.grid) == 1
        return (self.shape > 0) & alone & streams & (not self._multiplies)

    def exposed(self, tiles: Array, busy: Array) -> Array:
        """Latency that no other tile's work hides: all where a processor holds one tile. A tile
        that holds what it reads waits for one half of its time, the blocks of a cluster, which wait
        for each other too, for all of it.

        Staged operands are under way while their tile computes, of chunks before them or, where a
        producer copies, of the tile before; threads that copy for themselves wait for the first, or
        for each where there is room for one.
        """
        if (
            self.blocking is None
            or not self.pricer.overlap
            or (self.blocking.staged and (self.started or (self.chunks and not self._multiplies)))
        ):
            return np.zeros_like(self.shape)
        if self.blocking.staged and self.chunks:
            few = (self.steps() <= FEW_CHUNKS) | (self.blocking.stages == 1)
            return np.where(few, busy / np.maximum(self.beside(tiles), 1), 0.0)
        if self.blocking.staged:  # tiles that all start at once wait at once
            rounds = np.where(tiles > self.resident(), np.maximum(self.beside(tiles), 1), 1.0)
            return 0.5 * busy / rounds
        if row_price.has_rows(self):
            return row_price.exposed_part(self, tiles) * busy
        waiting = np.where(self.blocks > 1, 1.0, 0.5) if self._holds else 1.0
        apart = np.where(self._reads_on, np.maximum(self.blocking.threads / ALONE, 1), 1.0)
        return waiting * busy / np.maximum(self.beside(tiles) * apart, 1)

    def starts(self, tiles: Array) -> Array | float:
        """Seconds in which clusters start, each when there is room for all of its blocks, or many
        blocks that are all there is of a kernel; blocks that copy for each other meet before the
        first copy.
        """
        if not (self.blocks > 1).any():
            late = np.maximum(tiles - AT_ONCE * self.spec.processors, 0.0)
            few = (tiles <= self.resident()) & (self.blocking is not None)
            begun = np.where(few, late * self._start_seconds * TELLING, 0.0)
            return MEETING * self.meeting() / self.spec.cycles_per_s + begun
        cluster = self.spec.group(CLUSTER)
        each = np.where(self.blocks > 1, (self.blocks / cluster.size) ** 2, 0.0)
        return tiles * each * cluster.start_interval_cycles / self.spec.cycles_per_s

    @property
    def _add_cycles(self) -> float:
        """Latency of an addition of two floats."""
        return max(row.latency_cycles for row, _ in self.spec.elementwise("add", "float32"))

    def meeting(self) -> Array | float:
        """Cycles until blocks that copy for each other hear from all of them, and until a chunk's
        factors are converted.
        """
        if self.converted:
            cycles = self.converting * GROUPS * self.spec.processors * self.spec.cycles_per_s
            return cycles / (self.tiles_in_all() * self.steps() * LOADED)  # as in an idle memory
        if self.blocking is None or not (self.blocking.shared > 1).any():
            return 0.0
        barrier = self.spec.group(CLUSTER).barrier_latency_cycles
        return np.where(self.blocking.shared > 1, barrier, 0.0)

    def _exchange_cycles(self) -> Array:
        """What it takes the blocks of a cluster to hand each other a result: all wait until each
        has written to the memory of the others.
        """
        if not (self.blocks > 1).any():
            return 0 * self.shape
        barrier = self.spec.group(CLUSTER).barrier_latency_cycles
        return np.where(self.blocks > 1, barrier + self.spec.memory("shared").latency_cycles, 0.0)

    def _reads_beside(self, name: str) -> bool:
        """Whether threads read, in chunks of a name, what is not copied ahead as factors are."""
        if self.blocking is None or not self.blocking.staged or self.started:
            return False
        bit, staged = self.form.facts.universe.mask([name]), {*self.form.operands()}
        staged = {side for side in staged if not is_waited_for(self, side)}
        reads = (t for t in self.form.terms if t.op in {"read", "gather"} and t not in staged)
        return any(self.form.facts.free(read) & bit for read in reads)

    def _tile_latency(self) -> Array:
        """What one tile costs in latency: a trip to memory, one to the cache for each phase, and
        for each chunk of a stream two barriers and what its stages leave of a trip to the cache, or
        all of one where something is read that no stage holds.
        Until it is scheduled, and where a tile holds what it reads, a trip for each reduction that
        waits for another one.
        """
        phases = 1 + max(self.form.phase.values(), default=0)
        if self._holds:
            phases = 1 + self.reductions_in_turn(pivots=True)
        if self.blocking is None:
            turns = self.reductions_in_turn()
            phases = max(phases, turns)
            self.refused["reductions in turn"] = self.shape * turns > MOST_IN_TURN
        cache = self.pricer.cache.latency_cycles
        cycles = self.shape * (self.pricer.dram.latency_cycles + phases * cache)
        if self._holds and self.form.reduced:  # a thread adds up its own points one by one
            assert self.blocking is not None
            terms, free = self.form.terms, self.form.facts.free
            masks = {free(t) | t.args[0] for t in terms if t.op in REDUCING} or {self.grid}  # scans
            rows = [self.tile_points(mask) for mask in masks if isinstance(mask, int)]
            each = np.max(rows, axis=0) / (self.blocking.threads * self.blocks)
            cycles = cycles + (phases - 1) * (each * self._add_cycles + self._exchange_cycles())
        if self.pricer.overlap and self.blocking is not None:
            barrier = self.spec.group(self.spec.tile_group).barrier_latency_cycles
            for name, chunk in self.chunks.items():
                steps = np.ceil(self.form.extents[name] / chunk) * self.streams(name)
                each = 2 * barrier + cache / self.blocking.stages
                each = each + cache * self._reads_beside(name)
                if row_price.has_rows(self):
                    each = row_price.chunk_cycles(self)
                    self.refused["products of rows"] = self.shape * row_price.multiplies(self) > 0
                if name == self.form.stepped:  # no thread waits for others, only for what it reads
                    each = step_cycles(self)
                cycles = cycles + steps * each
            cycles = cycles + chain_cycles(self) + row_price.first_cycles(self)
        return cycles / self.spec.cycles_per_s

    def in_turn(self, parts: dict[str, Array], staging: Array, work: Array, tiles: Array) -> Array:
        """Seconds of what threads that wait for products do beside them, one after the other: they
        stage operands, read fragments, compute elements, and wait; of copies of single elements
        what other blocks do not hide.
        """
        if not self._multiplies:
            return parts["latency"]
        computing = work * COMPUTING + parts.get(FRAGMENTS, 0.0)
        exposed = np.clip(1 / np.maximum(self.beside(tiles), 1), EXPOSED, 1)
        computing = computing + parts.get(COPIES, 0.0) * exposed
        return IN_TURN * (parts["latency"] + staging + computing)
