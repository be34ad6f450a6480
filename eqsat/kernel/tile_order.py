"""The order of tiles: those that run together share what they read, and long ones come first."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import gcd, prod, sqrt

import numpy as np

from eqsat.graph.index import free_names
from eqsat.kernel.idle_chunks import live_bounds
from eqsat.kernel.ir import Axis, Contract, Kernel, Load
from eqsat.specs import ParallelMemory, ParallelProcessingUnit

TOGETHER = 4  # tiles that read alike at the same time, which need no cache for all of it
WIDEST = 2  # tiles for each processor, more of which in a band are no better
MOST_TRIED = 32  # bands
SEVERAL, MOST_TILES = 8, 1 << 16  # bands, and tiles in all, that tell what more of them do
BESIDE = 2  # columns' chunks that a tile takes besides, to begin and to end


def in_bands(kernel: Kernel, spec: ParallelProcessingUnit) -> Kernel:
    """The kernel with its tiles in bands of the last but one cut axis.

    Where the last two cut axes each have loads of their own, those form rectangles that read about
    as much along one as along the other: as many tiles as there are processors or, where that is
    all, as a cache gives what they share at once (`_band`); bands lie along the last one where
    blocks that copy for each other have fewer tiles to repeat by that. Where tiles have more live
    chunks the further they lie along the last axis, or the less far, these come first, in bands of
    the other axes together: see `_even_band`.
    """
    if len(kernel.cut) < 2 or not spec.overlaps:
        return kernel
    rows, columns = kernel.cut[-2:]
    loads = [s for s in kernel.statements() if isinstance(s, Load)]
    along = [s for s in loads if rows.name in s.indices and columns.name not in s.indices]
    across = [s for s in loads if columns.name in s.indices and rows.name not in s.indices]
    each = sum(_bytes_of_a_tile(kernel, s) for s in loads if columns.name not in s.indices)
    growth = _growth(kernel, columns) if each else 0
    if growth:
        held = max(int(_cache(spec).size_bytes / each), 1)
        others = prod(axis.count for axis in kernel.cut[:-1])
        band = _even_band(others, columns.count, held, spec.processors)
        return replace(kernel, band=band, backwards=growth > 0, uneven=True)
    if not (along and across):
        return kernel
    together = kernel.multicast
    turned = _repeated(columns, together) < _repeated(rows, together)
    if turned:
        rows, columns = columns, rows
        along, across = across, along
    own, others = rows.tile, columns.tile
    if any(isinstance(s, Contract) for s in kernel.statements()):  # most of what is read is its
        own, others = own * _largest(kernel, along), others * _largest(kernel, across)
    height = max(min(round(sqrt(spec.processors * others / own)), rows.count), 1)
    if kernel.tiles <= spec.processors and _cache(spec).merged_readers > 1:  # they are in step
        height = _band(rows.count, columns.count, (own, others), spec)
    return replace(kernel, band=max(height // together * together, together), across=turned)


def _band(rows: int, columns: int, each: tuple[int, int], spec: ParallelProcessingUnit) -> int:
    """The height of bands in which as many tiles side by side read least as a cache gives what they
    share at once; a tile of a row and one of a column read so much `each`.
    """
    readers = _cache(spec).merged_readers
    own, others = each

    def read(height: int) -> float:
        across = min(max(readers / height, 1), columns)
        return min(readers / across, rows) * own + across * others

    heights = [1 << n for n in range(rows.bit_length()) if 1 << n <= readers]
    fewer = 1 if own > others else -1  # of what is read alike, of the larger tiles
    return min(heights, key=lambda height: (read(height), fewer * height))


@lru_cache(maxsize=256)
def _even_band(others: int, columns: int, held: int, processors: int) -> int:
    """The tiles of the other axes in a band, for which processors have as much to do: those that
    the last cache has room for, `held`, or of which several columns run together, as they read
    alike. Of bands with little between them one that is held, and of these the narrowest: each
    begins with what it reads from memory.
    """
    widest = min(max(held, processors // TOGETHER), WIDEST * processors, others)
    whole = processors // gcd(columns, processors)  # rounds of all processors
    step = whole * -(-widest // (whole * MOST_TRIED))
    bands = {widest, min(held, widest), *range(step, widest + 1, step)}
    some = min(others, max(widest, min(SEVERAL * widest, MOST_TILES // columns)))

    def rank(band: int) -> tuple[float, bool, int]:
        return round(_last_end(band, some, columns, processors), 2), band > held, band

    return min(bands, key=rank)


def _last_end(band: int, others: int, columns: int, processors: int) -> float:
    """How many times the mean of all processors the last one takes, each of them the tiles of one
    round after the other, there and back, of which those of the first column take the longest.
    """
    lengths = np.arange(columns, 0, -1) + BESIDE
    sizes = [min(band, others - first) for first in range(0, others, band)]
    tiles = np.concatenate([np.repeat(lengths, size) for size in sizes])
    rounds = -(-len(tiles) // processors)
    taken = np.pad(tiles, (0, rounds * processors - len(tiles))).reshape(rounds, processors)
    taken[1::2] = taken[1::2, ::-1].copy()
    return float(taken.sum(axis=0).max() * processors / tiles.sum())


def _repeated(axis: Axis, together: int) -> Fraction:
    """How many times as many tiles whole runs along an axis have."""
    return Fraction(-(-axis.count // together) * together, axis.count)


def in_runs(kernel: Kernel, spec: ParallelProcessingUnit) -> Kernel:
    """The kernel, its blocks alone if those of a cluster had nothing to copy for each other, did
    not take as many chunks, or had no operation that runs on while one thread copies ahead.
    """
    if kernel.multicast == 1:
        return kernel
    names = {s.operation for s in kernel.statements() if isinstance(s, Contract)} - {""}
    started = any(spec.operation(name).asynchronous for name in names)
    same = not any(live_bounds(kernel, phase) for phase in kernel.phases)
    found = (one for one in (kernel, *_repeating(kernel)) if started and same and _shares(one))
    return next(found, replace(kernel, multicast=1))


def _repeating(kernel: Kernel) -> Iterator[Kernel]:
    """The kernel with whole runs along one axis, whose last tile is computed again; none where what
    is stored twice would count twice.
    """
    cut = kernel.cut
    adds = any(store.monoid for phase in kernel.phases for store in phase.stores)
    if cut and not adds and not kernel.uneven:
        axis = cut[-2] if len(cut) > 1 and kernel.band > 1 else cut[-1]
        if axis.count % kernel.multicast:
            yield replace(kernel, repeats=axis.name)


def _shares(kernel: Kernel) -> bool:
    """Whether the blocks of a cluster read some tile alike."""
    axes = {axis.name for axis in run_axes(kernel, kernel.multicast)}
    staged = [s for s in kernel.statements() if isinstance(s, Load) and s.memory == "shared"]
    return bool(axes) and any(not axes & {*free_names(s.access.address)} for s in staged)


def run_axes(kernel: Kernel, count: int) -> tuple[Axis, ...]:
    """The axes along which every `count` tiles that follow one another lie, from tile 0 on; none
    where the tiles are no whole runs, or no two of a run are alike in what they compute.
    """
    cut = kernel.cut
    if count == 1 or kernel.uneven or kernel.all_turns % count:
        return ()
    if kernel.repeats:
        return tuple(axis for axis in cut if axis.name == kernel.repeats)
    if len(cut) > 1 and kernel.band > 1:
        rows = cut[-2]
        if min(kernel.band, rows.count) % count == 0 and rows.count % count == 0:
            return (rows,)
        first = len(cut) - 2
    else:
        first = len(cut) - 1
    while prod(axis.count for axis in cut[first:]) % count:
        first -= 1
    return tuple(cut[first:])


def _cache(spec: ParallelProcessingUnit) -> ParallelMemory:
    """The cache next to memory."""
    return [memory for memory in spec.memory_domains if memory.managed == "hardware"][-1]


def _growth(kernel: Kernel, axis: Axis) -> int:
    """Whether tiles further along an axis have more chunks that matter, 1, or fewer, -1; else 0."""
    signs = {
        1 if times > 0 else -1
        for phase in kernel.phases
        for bound in live_bounds(kernel, phase)
        for atom, times in bound.terms
        if atom == axis.name
    }
    return signs.pop() if len(signs) == 1 else 0


def _largest(kernel: Kernel, loads: Iterable[Load]) -> int:
    return max(_bytes(kernel, one) for one in loads)


def _bytes_of_a_tile(kernel: Kernel, load: Load) -> float:
    """What a load reads for a tile of all cut axes but the last, which those share that lie along
    axes which it lacks; 0 where it lacks all.
    """
    others = kernel.cut[:-1]
    lacking = [axis for axis in others if axis.name not in load.indices]
    if lacking == others:
        return 0.0
    tiles = prod(axis.tile for axis in kernel.grid if axis.name in load.indices)
    return _bytes(kernel, load) * tiles / prod(axis.count for axis in lacking)


def _bytes(kernel: Kernel, load: Load) -> int:
    """What a load reads for one point of each grid axis."""
    axes = kernel.axes()
    grid = {axis.name for axis in kernel.grid}
    size = prod(axes[i].extent for i in load.indices if i not in grid)
    return size * kernel.buffer(load.access.buffer).dtype.itemsize
