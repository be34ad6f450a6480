"""What a spec settles of a kernel once it is lowered: order of tiles, blocks that stay, room."""

import math
from dataclasses import replace

from eqsat.kernel.ir import (
    Contract,
    Kernel,
    Literal,
    Load,
    Map,
    Position,
    Reduce,
    Statement,
    operands,
    store_operands,
)
from eqsat.kernel.tile_order import in_bands, in_runs
from eqsat.lower.selected_reads import with_selected_reads
from eqsat.lower.short_integers import in_short_integers
from eqsat.price.occupancy import AROUND, AROUND_LOOP, FILLED, PEERS
from eqsat.price.pipeline import LOADED
from eqsat.price.scatter import in_groups
from eqsat.schedule.stream_k import with_workspace
from eqsat.specs import ParallelProcessingUnit

MOST_SUMS = 256  # bytes of sums that a thread holds beside what it multiplies
ROUNDS = 3  # of blocks: those that read, compute and store


def placed(kernel: Kernel, spec: ParallelProcessingUnit) -> Kernel:
    """The kernel as it is run on a device."""
    kernel = in_short_integers(kernel)
    kernel = with_workspace(in_runs(in_bands(kernel, spec), spec), spec)
    if not spec.overlaps:
        return kernel
    kernel = with_selected_reads(kernel)
    return with_room(in_groups(kernel, spec, registers_fit(kernel, spec, AROUND_LOOP)), spec)


def with_room(kernel: Kernel, spec: ParallelProcessingUnit) -> Kernel:
    """The kernel, of which a processor is to hold as many blocks as it is priced for
    (`Occupancy.live_bytes`): where tiles hold the rows that they reduce, blocks at once decide how
    much is on its way. More than keep memory busy, or than there are, are not asked for. Of
    multiply-adds, which hide little of their reads behind each other, as many as keep arithmetic
    busy.
    """
    chunks = math.prod(axis.count for phase in kernel.phases for axis in phase.stream)
    kinds = {type(s) for s in kernel.statements()}
    if kernel.resident:
        return kernel
    if Contract in kinds:
        return replace(kernel, beside=_multiplying(kernel, spec))
    if chunks > 1 or Reduce not in kinds:
        return kernel
    most = spec.group("thread").max_resident // kernel.threads
    enough = _under_way(spec) * ROUNDS * kernel.cluster / max(sum(_read_bytes(kernel)), 1)
    every = kernel.tiles * kernel.cluster / spec.processors
    wanted = math.ceil(min(enough, every))
    return replace(kernel, beside=min(registers_fit(kernel, spec), most, wanted))


def _multiplying(kernel: Kernel, spec: ParallelProcessingUnit) -> int:
    """Blocks of plain multiply-adds that keep arithmetic busy; 0 where they have no room."""
    products = [s for s in kernel.statements() if isinstance(s, Contract)]
    blocks = FILLED // kernel.threads
    sums = max(_held(kernel, s, s.dtype.compute.itemsize) for s in products)
    staged = sum(
        phase.stages * _held(kernel, s, s.dtype.itemsize)
        for phase in kernel.phases
        for s in phase.body
        if isinstance(s, Load) and s.memory == "shared"
    )
    room = spec.memory("shared").size_bytes
    fits = sums <= MOST_SUMS * kernel.threads and staged * blocks <= room
    plain = kernel.cluster == 1 and not any(s.operation for s in products)
    return blocks if plain and fits and blocks > 1 else 0


def registers_fit(kernel: Kernel, spec: ParallelProcessingUnit, around: int = AROUND) -> int:
    """Blocks for which a processor has registers, where tiles hold what they read and each thread
    takes so many bytes `around` that.
    """
    largest = max(
        (_held(kernel, s, s.dtype.compute.itemsize) for s in _computed(kernel)), default=0
    )
    reads = _read_bytes(kernel)
    beside = sum(reads) - max(reads, default=0)
    around += PEERS if kernel.cluster > 1 else 0
    block = (largest + beside) / kernel.cluster + around * kernel.threads
    return int(spec.memory("registers").size_bytes // block)


def _computed(kernel: Kernel) -> list[Statement]:
    """What threads hold: not what each makes element by element for one reduction."""
    kept: list[Statement] = []
    ends: dict[str, set[str]] = {}  # the reduction that ends each chain, or what is held
    for phase in kernel.phases:
        for store in phase.stores:
            ends.update({name: {""} for name in store_operands(store)})
        for s in reversed(phase.body):
            own = ends.get(s.name, set())
            passing = isinstance(s, Map) and len(own) == 1 and "" not in own
            kept += [] if passing or isinstance(s, Literal | Position) else [s]
            for name in operands(s):
                end = own if passing else {s.name if isinstance(s, Reduce) else ""}
                ends.setdefault(name, set()).update(end)
    return kept


def _read_bytes(kernel: Kernel) -> list[int]:
    """What each load takes of registers, as it lies in memory: the threads of each row that it is
    met with hold it.
    """
    rows = {axis.name for axis in kernel.grid}
    loads = [s for s in _computed(kernel) if isinstance(s, Load)]
    found: list[int] = []
    for load in loads:
        reduced = {*load.indices} - rows
        met = (s.indices for s in kernel.statements() if reduced & {*s.indices})
        names = {i for indices in met for i in indices} & rows if reduced else rows
        found.append(_held(kernel, load, load.dtype.itemsize, *names))
    return found


def _held(kernel: Kernel, s: Statement, itemsize: int, *others: str) -> int:
    axes = kernel.axes()
    names = {*s.indices, *others}
    return math.prod(min(axes[i].tile, axes[i].extent) for i in names) * itemsize


def _under_way(spec: ParallelProcessingUnit) -> float:
    """Bytes that a processor has under way while memory is busy: bandwidth times latency."""
    memory = next(m for m in spec.memory_domains if m.managed == "hardware")
    seconds = LOADED * memory.latency_cycles / spec.cycles_per_s
    return memory.sustained_gb_per_s * 1e9 / spec.processors * seconds
