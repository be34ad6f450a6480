"""What combining values in memory costs, and where: in memory that all processors share, or first
in that of the groups that stay on each, which spares the former what points have in common.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce

import numpy as np

from eqsat.graph.index import free_names
from eqsat.kernel.ir import Contract, Kernel, Store
from eqsat.price.occupancy import Occupancy
from eqsat.price.rates import Array
from eqsat.price.tiling import LINE
from eqsat.specs import ParallelMemory, ParallelOperation, ParallelProcessingUnit
from eqsat.terms.algebra import Facts
from eqsat.terms.form import Stored, walked
from eqsat.terms.scattered import Scattered, scattered

CONFLICTS = 3.5  # points of the fullest of 32 banks, where 32 lanes fall on them at random
THREADS, POINTS, FIT = 512, 16, 2  # of a tile, of each of them, and tiles, until it is scheduled
MOST_CHOSEN = 4  # values combined by one kernel of which each is kept by groups or not, by itself
IN_GROUP = "_in_group"


@dataclass(frozen=True)
class Combining:
    """So many points combined into `elements` of a buffer; `together`: neighbouring lanes combine
    at neighbouring elements.
    """

    function: str
    dtype: str
    itemsize: int
    points: float
    elements: int
    together: bool

    @property
    def bytes(self) -> int:
        """Size of the buffer."""
        return self.elements * self.itemsize

    def offered(self, spec: ParallelProcessingUnit, where: str = "") -> bool:
        """Whether the spec says what combining costs, in memory or in that of a tile's group."""
        return spec.has_elementwise(self.function + where, self.dtype)

    def rows(
        self, spec: ParallelProcessingUnit, where: str = ""
    ) -> tuple[tuple[ParallelOperation, float], ...]:
        """The operations that combine, and how often each does for one point."""
        return spec.elementwise(self.function + where, self.dtype)

    def seconds(self, spec: ParallelProcessingUnit, where: str = "") -> float:
        """Of all points at the rate of the spec, none in another's way."""
        rows = self.rows(spec, where)
        return self.points * max(slots / spec.invocations_per_s(row) for row, slots in rows)

    def in_memory(self, spec: ParallelProcessingUnit, sector: int) -> float:
        """Seconds where many groups combine in memory: sectors of so many bytes at the rate of the
        spec, those of one line after one another.
        """
        each = max(sector // self.itemsize, 1) if self.together else 1
        again = max(row.repeat_cycles * slots for row, slots in self.rows(spec))
        queue = self.points * again / max(self.bytes / LINE, 1) / spec.cycles_per_s
        return (self.seconds(spec) + queue) / each

    def far_seconds(self, cache: ParallelMemory, main: ParallelMemory) -> float:
        """Seconds in which what the cache does not hold comes from main memory and goes back."""
        if self.bytes <= cache.size_bytes / 2:
            return 0.0
        each = self.itemsize if self.together else main.access_granularity_bytes
        return 2 * self.points * each / (main.sustained_gb_per_s * 1e9)

    def in_group(self, spec: ParallelProcessingUnit, groups: Array, threads: Array) -> Array:
        """Seconds where so many groups of so many threads combine each in a memory of its own. A
        thread waits for each point.
        """
        memory = group_memory(spec)
        lanes = (memory.banks if memory else 1) / self.elements
        lanes = max(1.0 if self.together else CONFLICTS, lanes)
        rows = self.rows(spec, IN_GROUP)
        latency = max(row.latency_cycles for row, _ in rows) / threads
        again = max(row.repeat_cycles for row, _ in rows) / self.elements
        waits = self.points * np.maximum(latency, again) / groups / spec.cycles_per_s
        return np.maximum(self.seconds(spec, IN_GROUP) * lanes, waits)

    def joining(self, spec: ParallelProcessingUnit, sector: int, groups: Array) -> Array:
        """Seconds in which so many groups combine all that they have in memory."""
        own = replace(self, points=float(self.elements), together=True)
        return groups * own.in_memory(spec, sector)


def combining(one: Stored, found: Scattered, facts: Facts) -> Combining:
    """The work of a stored scatter."""
    universe = facts.universe
    elements = math.prod(universe.extents[name] for name in one.names)
    points = float(universe.size(walked(one, facts)))
    together = any(step == 1 for _, step in found.address.terms)
    size = one.dtype.itemsize
    return Combining(f"scatter_{found.monoid}", one.dtype.name, size, points, elements, together)


def group_memory(spec: ParallelProcessingUnit) -> ParallelMemory | None:
    """The memory that a program places data in and the whole group of a tile sees."""
    placed = (m for m in spec.memory_domains if m.managed == "software")
    return next((m for m in placed if m.shared_across == spec.tile_group), None)


def groups_with(works: Sequence[Combining], threads: Array, spec: ParallelProcessingUnit) -> Array:
    """Groups of so many threads that a processor holds, each with memory of its own for all that is
    combined; 0 where none fits, or the spec does not say what that costs.
    """
    memory, size = group_memory(spec), sum(work.bytes for work in works)
    offered = all(work.offered(spec, IN_GROUP) for work in works)
    if memory is None or not offered or size > memory.limit_per_group_bytes // 2:
        return 0.0 * threads
    room = memory.size_bytes // (size + memory.reserved_per_group_bytes)
    most = spec.group("thread").max_resident // np.maximum(threads, 1)
    return np.minimum(room, np.maximum(most, 1))


@dataclass(frozen=True)
class Staying:
    """Of each schedule: seconds in which values are combined in memory, and by groups that stay on
    a processor in memories of their own; in which these are joined when all is done; how many
    groups stay, and bit by bit which buffers they keep: 0 where all is combined in memory.
    """

    memory: Array
    own: Array
    joined: Array
    groups: Array
    kept: Array

    @property
    def seconds(self) -> Array:
        """All that takes."""
        return self.memory + self.own + self.joined

    def better(self, other: "Staying") -> "Staying":
        """The faster of two for each schedule."""
        first = self.seconds < other.seconds
        pairs = ((getattr(self, one.name), getattr(other, one.name)) for one in fields(self))
        return Staying(*(np.where(first, mine, theirs) for mine, theirs in pairs))


def staying(
    works: Sequence[Combining],
    tiles: Array,
    threads: Array,
    fit: Array,
    spec: ParallelProcessingUnit,
) -> Staying:
    """The best for so many tiles, on processors of many groups of which registers leave room for
    `fit`.
    """
    sector, none = cache_line(spec), 0.0 * threads
    plain = [work.in_memory(spec, sector) for work in works]
    best = Staying(sum(plain) + none, none, none, none, none)
    every = (1 << len(works)) - 1
    for kept in range(1, every + 1) if len(works) <= MOST_CHOSEN else (every,):
        mine = [work for n, work in enumerate(works) if kept >> n & 1]
        groups = np.minimum(groups_with(mine, threads, spec), np.maximum(fit, 1))
        if groups.any():
            count = np.minimum(np.maximum(groups, 1) * spec.processors, tiles)
            own = sum(work.in_group(spec, count, threads) for work in mine)
            joined = sum(work.joining(spec, sector, count) for work in mine)
            memory = sum(s for n, s in enumerate(plain) if not kept >> n & 1) + none
            own = np.where(groups > 0, own, np.inf)
            best = Staying(memory, own, joined, groups, kept + none).better(best)
    return best


def in_groups(kernel: Kernel, spec: ParallelProcessingUnit, fit: int) -> Kernel:
    """The kernel, what it combines kept by groups that stay where that is faster. `fit`: groups for
    which a processor has registers.
    """
    stores = [store for phase in kernel.phases for store in phase.stores]
    matrix = any(isinstance(s, Contract) and s.operation for s in kernel.statements())
    if matrix or not stores or not all(store.monoid for store in stores):
        return kernel
    works = [_combining(kernel, store) for store in stores]
    sizes = (np.array([float(size)]) for size in (kernel.tiles, kernel.threads, fit))
    found = staying(works, *sizes, spec)
    memory, groups, kept = group_memory(spec), int(found.groups[0]), int(found.kept[0])
    if memory is None or not groups:
        return kernel
    own = [store for n, store in enumerate(stores) if kept >> n & 1]

    def placed(store: Store) -> Store:
        return replace(store, memory=memory.name) if store in own else store

    phases = tuple(replace(p, stores=tuple(map(placed, p.stores))) for p in kernel.phases)
    return replace(kernel, phases=phases, resident=groups, beside=groups)


def cache_line(spec: ParallelProcessingUnit) -> int:
    """Bytes that the memory behind all processors moves at least."""
    memories = [m for m in spec.memory_domains if m.managed == "hardware"]
    return memories[min(1, len(memories) - 1)].access_granularity_bytes


def _combining(kernel: Kernel, store: Store) -> Combining:
    axes = kernel.axes()
    carries = [carry for phase in kernel.phases for carry in phase.carries]
    names = {s.name: s.indices for s in (*kernel.statements(), *carries)}
    used = [{*names[name]} for name in (store.value, *(c.value for c in store.access.coordinates))]
    walked = reduce(set.union, used, set(free_names(store.access.address)))
    buffer = kernel.buffer(store.access.buffer)
    points = math.prod(axes[name].extent for name in walked)
    together = any(step == 1 for _, step in store.access.address.terms)
    function, dtype = f"scatter_{store.monoid}", buffer.dtype
    return Combining(function, dtype.name, dtype.itemsize, points, buffer.size, together)


def combined(tiling: Occupancy) -> Staying:
    """What it takes the device to combine what a form scatters, infinite seconds where the spec has
    no operation for it. A device that runs a single stream on each processor combines in copies of
    the buffer, or on one processor where these would be more than there is to combine.
    """
    spec, facts = tiling.spec, tiling.form.facts
    none = 0.0 * tiling.shape
    pairs = [(one, scattered(one, facts)) for one in tiling.form.stored]
    works = [combining(one, found, facts) for one, found in pairs if found is not None]
    if not all(work.offered(spec) for work in works):
        return Staying(none, none + math.inf, none, none, none)
    far = none + sum(work.far_seconds(tiling.pricer.cache, tiling.pricer.dram) for work in works)
    if not tiling.pricer.overlap:
        for work in works:
            alone = not in_copies(work.elements, work.points, spec.processors)
            far = far + work.seconds(spec) * (spec.processors if alone else 1)
        return Staying(none, far, none, none, none)
    threads, fit = none + THREADS, none + FIT
    tiles = np.ceil(max(work.points for work in works) / (threads * POINTS))
    if tiling.blocking is not None:
        threads, fit = tiling.blocking.threads, tiling.registers_fit(loops=True)
        tiles = tiling.tiles_in_all()
    found = staying(works, tiles, threads, fit, spec)
    return replace(found, memory=found.memory + far)


def in_copies(elements: int, points: float, processors: int) -> bool:
    """Whether each processor has a copy of what is combined."""
    return elements * processors <= points
