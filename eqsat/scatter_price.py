"""What combining values in memory costs, and where: in memory that all processors share, or first
in that of the groups that stay on each, which spares the former what points have in common.
"""

import math
from dataclasses import dataclass, replace
from functools import reduce

from eqsat.algebra import Facts
from eqsat.errors import SpecError
from eqsat.form import Stored, walked
from eqsat.graph.index import free_names
from eqsat.kernel import Contract, Kernel, Store
from eqsat.scatter import Scattered, scattered
from eqsat.specs import ParallelMemory, ParallelProcessingUnit
from eqsat.tiling import Tiling

CONFLICTS = 3.5  # points of the fullest of 32 banks, where 32 lanes fall on them at random
THREADS = 256  # of a tile, until it is scheduled
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
        try:
            return bool(spec.elementwise(self.function + where, self.dtype))
        except SpecError:
            return False

    def seconds(self, spec: ParallelProcessingUnit, where: str = "") -> float:
        """Of all points at the rate of the spec, none in another's way."""
        rows = spec.elementwise(self.function + where, self.dtype)
        each = max(slots / spec.invocations_per_s(row) for row, slots in rows)
        return self.points * each

    def in_memory(self, spec: ParallelProcessingUnit, line: int) -> float:
        """Seconds where many groups combine in memory: lines of so many bytes at the rate of the
        spec, as long as there are as many of them as are combined in a cycle.
        """
        each = max(line // self.itemsize, 1) if self.together else 1
        places = max(self.elements / each, 1)
        rows = spec.elementwise(self.function, self.dtype)
        beside = min(spec.invocations_per_s(row) for row, _ in rows) / spec.cycles_per_s
        return self.seconds(spec) / each * max(beside / places, 1.0)

    def far_seconds(self, cache: ParallelMemory, main: ParallelMemory) -> float:
        """Seconds in which what the cache does not hold comes from main memory and goes back."""
        if self.bytes <= cache.size_bytes / 2:
            return 0.0
        each = self.itemsize if self.together else main.access_granularity_bytes
        return 2 * self.points * each / (main.sustained_gb_per_s * 1e9)

    def in_group(self, spec: ParallelProcessingUnit, line: int, groups: int) -> float:
        """Seconds where each group combines in a memory of its own, and then that in memory."""
        memory = group_memory(spec)
        lanes = max(CONFLICTS, (memory.banks if memory else 1) / self.elements)
        flush = replace(self, points=float(groups * self.elements), together=True)
        return self.seconds(spec, IN_GROUP) * lanes + flush.in_memory(spec, line)


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


def groups_with(size: int, threads: int, spec: ParallelProcessingUnit) -> int:
    """Groups that a processor holds, each with so many bytes of its own; 0 where none fits."""
    memory = group_memory(spec)
    if memory is None or size > memory.limit_per_group_bytes // 2:
        return 0
    room = memory.size_bytes // (size + memory.reserved_per_group_bytes)
    return min(room, max(spec.group("thread").max_resident // max(threads, 1), 1))


def seconds_of_groups(
    work: Combining, threads: int, spec: ParallelProcessingUnit, line: int
) -> tuple[float, int]:
    """Seconds of combining on a processor of many groups, and how many of them stay on each to
    combine in memories of their own; 0 where all combine in memory.
    """
    plain = work.in_memory(spec, line)
    groups = groups_with(work.bytes, threads, spec)
    if not groups or not work.offered(spec, IN_GROUP):
        return plain, 0
    staying = min(groups * spec.processors, math.ceil(work.points / threads))
    own = work.in_group(spec, line, staying)
    return (own, groups) if own < plain else (plain, 0)


def in_groups(kernel: Kernel, spec: ParallelProcessingUnit) -> Kernel:
    """The kernel, what it combines kept by groups that stay where that is faster, all of it."""
    stores = [store for phase in kernel.phases for store in phase.stores]
    matrix = any(isinstance(s, Contract) and s.operation for s in kernel.statements())
    alone = spec.group(spec.tile_group).max_resident <= 1
    if alone or matrix or not stores or not all(store.monoid for store in stores):
        return kernel
    line = cache_line(spec)
    works = [_combining(kernel, store) for store in stores]
    found = [seconds_of_groups(work, kernel.threads, spec, line)[1] for work in works]
    groups = groups_with(sum(work.bytes for work in works), kernel.threads, spec)
    memory = group_memory(spec)
    if memory is None or not all(found) or not groups:
        return kernel

    def placed(store: Store) -> Store:
        return replace(store, memory=memory.name)

    phases = tuple(replace(p, stores=tuple(map(placed, p.stores))) for p in kernel.phases)
    return replace(kernel, phases=phases, resident=groups)


def cache_line(spec: ParallelProcessingUnit) -> int:
    """Bytes that the memory behind all processors moves at least."""
    memories = [m for m in spec.memory_domains if m.managed == "hardware"]
    return memories[min(1, len(memories) - 1)].access_granularity_bytes


def _combining(kernel: Kernel, store: Store) -> Combining:
    axes = kernel.axes()
    names = {s.name: s.indices for s in kernel.statements()}
    used = [{*names[name]} for name in (store.value, *(c.value for c in store.access.coordinates))]
    walked = reduce(set.union, used, set(free_names(store.access.address)))
    buffer = kernel.buffer(store.access.buffer)
    points = math.prod(axes[name].extent for name in walked)
    together = any(step == 1 for _, step in store.access.address.terms)
    function, dtype = f"scatter_{store.monoid}", buffer.dtype
    return Combining(function, dtype.name, dtype.itemsize, points, buffer.size, together)


def combine_seconds(tiling: Tiling) -> float:
    """Seconds in which the device combines what a form scatters; infinite where the spec has no
    operation for it. One that runs a single stream on each processor combines in copies of the
    buffer, or on one processor where these would be more than there is to combine.
    """
    spec, facts, total = tiling.spec, tiling.form.facts, 0.0
    for one in tiling.form.stored:
        found = scattered(one, facts)
        if found is None:
            continue
        work = combining(one, found, facts)
        if not work.offered(spec):
            return math.inf
        total += work.far_seconds(tiling.pricer.cache, tiling.pricer.dram)
        if not tiling.pricer.overlap:
            alone = not in_copies(work.elements, work.points, spec.processors)
            total += work.seconds(spec) * (spec.processors if alone else 1)
            continue
        threads = THREADS if tiling.blocking is None else int(tiling.blocking.threads.min())
        total += seconds_of_groups(work, threads, spec, cache_line(spec))[0]
    return total


def in_copies(elements: int, points: float, processors: int) -> bool:
    """Whether each processor has a copy of what is combined."""
    return elements * processors <= points
