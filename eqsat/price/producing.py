"""Kernels for which one thread copies ahead: what the cache gives them, and their pipeline.

Processors side by side that hang on one port of a cache (`merged_readers` of the spec) and ask for
the same line at about the same time get it of one read. Blocks that follow one another run on such
processors, and tiles that begin together are in step: a factor that those side by side share is
asked for once, and what is left of a limit is what each processor takes in.
"""

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from eqsat.layout.window_factors import sliding_names
from eqsat.price.contraction import early
from eqsat.price.latency import Latency
from eqsat.price.partial_sums import count_parts
from eqsat.price.pipeline import LOADED, Flow, pipelined
from eqsat.price.rates import Array, Blocking, Rates
from eqsat.terms.algebra import Term
from eqsat.terms.form import Form

ON_ITS_WAY = 0.4  # of memory's time, where tiles wait for what others ask for too, and at most
MOST_LATE = 8  # trips: 3 us of products of 64 to 256 rows, whether they read 34 or 67 MB


class Producing(Latency):
    """Work by unit, traffic, and seconds of tiles that stay while their factors are copied.

    `after`: the part of `units` that is work on results; bytes of the cache's `traffic`, of them
    those `spared` where blocks copy for each other and `merged` where tiles side by side ask for
    them at once, and those `fed` to products from shared memory; `gathering`: cycles of factors
    made in registers; `met`: of the `read_bytes` of memory those that several tiles wait for.
    """

    def __init__(
        self,
        pricer: Rates,
        form: Form,
        tiles: Mapping[str, Array],
        blocking: Blocking | None,
        clustered: bool = False,
    ) -> None:
        super().__init__(pricer, form, tiles, blocking, clustered)
        self.units: dict[str, Array] = {}
        self.after: dict[str, Array] = {}
        self.traffic = self.gathering = 0 * self.shape
        self.spared = self.merged = self.fed = self.met = np.zeros_like(self.shape)
        self.read_bytes = 0 * self.shape
        self.fetched: dict[Term, Array] = {}  # bytes of reads from memory

    def merged_part(self, mask: int) -> Array:
        """The part of the reads of a value over `mask` that others make at the same time: those of
        a rectangle of tiles of the last two axes that are cut, along which they read least. Tiles
        that begin one after the other are not in step; blocks that copy for each other lie far from
        those of the next tiles.
        """
        readers = self.pricer.cache.merged_readers
        if readers == 1 or self._slides:
            return 0 * self.shape
        places, cut = dict[str, Array](), 0 * self.shape
        for name in reversed(self.form.grid):
            cut = cut + (self.count[name] > 1)
            places[name] = np.where(self.count[name] > 1, cut, 0)

        def along(place: int, values: Mapping[str, Array]) -> Array:
            found = [(places[name] == place) * values[name] for name in places]
            return np.maximum(sum(found, 0 * self.shape), 1)

        (columns, wide), (rows, high) = (
            (along(n, self.count), along(n, self.tiles)) for n in (1, 2)
        )
        across = np.clip(np.sqrt(readers * high / wide), 1, np.minimum(columns, readers))
        down = np.minimum(readers / across, rows)
        across = np.minimum(readers / down, columns)
        alike = self.shape
        for name, place in places.items():
            if not mask & self.bit[name]:
                alike = alike * np.where(place == 1, across, np.where(place == 2, down, 1.0))
        alone = self.blocking is None or self.blocking.shared == 1
        return (1 - 1 / alike) * alone * (self.tiles_in_all() <= self.spec.processors)

    @cached_property
    def _slides(self) -> bool:
        """Whether factors are windows, whose boxes overlap and begin anywhere."""
        return bool(sliding_names(self.form))

    def met_bytes(self, side: Term) -> Array:
        """Bytes of a factor from memory for which tiles wait that do not copy for each other."""
        assert self.blocking is not None
        mask = self.form.facts.free(side)
        together = np.where(self.saved(mask) > 0, self.blocking.shared, 1)
        return self.fetched.get(side, 0.0) * (self.times(mask) > together) / together

    def met_seconds(self, memory: Array, computing: Array) -> Array:
        """Seconds that tiles lose by asking memory for what is on its way to others, the more so
        the more of a kernel's time is memory's.
        """
        most = MOST_LATE * self.pricer.dram.latency_cycles / self.spec.cycles_per_s
        late = np.minimum(ON_ITS_WAY * memory, most) * memory / np.maximum(computing, memory)
        return late * self.met / np.maximum(self.read_bytes, 1)

    def alone_seconds(self, tiles: Array) -> Array:
        """Seconds in which tiles that all run at once store, while nothing is read."""
        stored = sum(self.points(mask) * size for mask, size in self.stored_points())
        rate = self.pricer.cache.bandwidth_gb_per_s * 1e9
        return np.where(tiles <= self.resident(), stored / rate, 0.0)

    def driven_out(self, buffer: str, size: float) -> Array:
        """Bytes that are left for another kernel, and go to memory before it reads them: so large a
        part as what this one reads fills of the cache.
        """
        if not self.started or buffer[0] != "t":
            return 0 * self.shape
        return size * np.minimum(self.read_bytes / self.pricer.cache.size_bytes, 1.0)

    def given_seconds(self, rate: Array, processors: Array) -> Array:
        """Seconds in which the cache, at a rate, gives all tiles what they read of it. Tiles of
        several lengths are not in step.
        """
        cache = self.pricer.cache
        ahead = (self.started or self.takes_turns) and not self.masked.stream
        if cache.merged_readers == 1 or not ahead:
            return (self.traffic - self.spared) / rate
        apart, merged = self.traffic - self.spared, self.traffic - self.merged
        asked = np.minimum(apart, merged / cache.sustained_fraction) / rate
        alone = cache.bandwidth_per_processor_gb_per_s * 1e9
        return np.maximum(asked, self.traffic / (alone * processors) if alone else 0.0)

    def pipelined(self, tiles: Array, copied: Array) -> Array:
        """Seconds of tiles that stay, their products asynchronous, their copies `copied`."""
        assert self.blocking is not None
        spec, cache = self.spec, self.pricer.cache
        after = {n: s for n, s in self.after.items() if n not in self.started}
        other = [s - after.get(n, 0.0) for n, s in self.units.items() if n not in self.started]
        rate, turns = cache.bandwidth_gb_per_s * 1e9, self.turns()
        teams = turns * self.blocking.threads / max(spec.members("warpgroup", "thread"), 1)
        gathered = np.where(teams > turns, self.between(teams), self.gathering)  # others multiply
        chained = (self.reductions_in_turn(pivots=True) - 1) * cache.latency_cycles
        fed = self.fed / (spec.memory("shared").sustained_gb_per_s * 1e9)
        flow = Flow(
            matrix=np.maximum(sum(self.units[name] for name in self.started), fed),
            other=np.max(other, axis=0) * self.left_waiting(teams) if other else 0 * self.shape,
            after=np.max([*after.values()], axis=0) if after else 0 * self.shape,
            copied=copied,
            tiles=tiles,
            steps=self.steps(),
            waits=np.maximum(self.steps(), count_parts(spec, self.form)),
            stages=self.slots(),
            early=self.shape * early(spec, self.form, self.started, not self.chunks),
            teams=teams,
            resident=self.resident() / spec.processors,
            stored=self.shape * sum(self.tile_points(m) * size for m, size in self.stored_points()),
            turns=turns,
            gathered=(gathered + self.exchanged()) / spec.cycles_per_s,
            chain=self.shape * chained / spec.cycles_per_s,
            beside=self.shape * self.read_beside(),
            last_parts=self.last_parts,
        )
        meeting = self.meeting() if self.converted else self.meeting() / LOADED
        trip = self.pricer.dram.latency_cycles + meeting
        return pipelined(spec, flow, trip, rate) + self.again / rate + self.reread()
