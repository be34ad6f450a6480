"""What loop nests of a CPU cost besides arithmetic and what is read and written once: copies of
factors, tests of guards, and rows that no cache holds from one of their passes to the next.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from eqsat.graph.dtypes import DType
from eqsat.graph.index import Affine
from eqsat.price.call import LIBRARY
from eqsat.price.occupancy import Occupancy
from eqsat.price.rates import Array, Contraction
from eqsat.price.slid import slid
from eqsat.price.tiling import Tiling
from eqsat.specs import ParallelOperation
from eqsat.terms.algebra import Read, Term
from eqsat.terms.form import SUBSTITUTED, Form, passes

LOOP = 12.0  # cycles in which a CPU begins a loop
ACROSS = 40.0  # in which it sums what lies across the lanes of a vector, and goes on
LANES = 8  # points of a loop that is done in vectors, at least
ROWS = 4  # that it walks side by side: more lie in the same lines of the nearest cache
WRITTEN_OUT, IN_PART = 16, 4  # terms of a sum in one loop along its results: all, or some of more
FETCHED = 2  # lines that it waits for at once where it reads across rows
SLOWER = 0.002  # by which cores differ: decides between tilings alike
RUN = 1024  # bytes that memory gives while a CPU waits for the first of others (measured)
NEAR = 1 / 16  # of a core's own cache, what libraries read fast: 130 to 200 KB on a Xeon
PACKED = 0.5  # of the waits, where a routine of ours packs what it reads: 64 channels, 3 x 3
WAITED = (0.5, 0.5, 1.0)  # of a wait for its lines: from the nearest cache, NEAR, half its own on
GATHERED = 1.0  # cycles of an element that a vector copies from between others, lane after lane
OWN_LINE = 4.0  # more, where each is in a line of its own: 64 channels of weights
TESTED = 2  # selections in the time of a read that may have to be left out


def rearranged(
    tiling: Tiling, found: Contraction, operation: ParallelOperation | None
) -> Iterator[tuple[Array, Array]]:
    """The factors that are written to fast memory before they are multiplied: what is computed, and
    of a CPU also what does not lie in memory as the rows of a matrix. Bytes that a tile has of
    each, and the seconds that it takes to copy it; of windows that slide each place once.
    """
    facts, windows = tiling.form.facts, slid(tiling, operation, found)
    for side, rows in ((found.left, found.rows), (found.right, found.columns)):
        read, held = (
            side.args[0] if side.op == "read" else None,
            tiling.tile_points(facts.free(side)),
        )
        if not isinstance(read, Read) or tiling.pricer.overlap:
            if side.op not in {"read", "gather", "literal"}:
                yield held * facts.dtype(side).itemsize, 0 * tiling.shape
        elif windows and side is windows.side:
            each = LOOP / windows.run + GATHERED * windows.apart
            cycles = windows.places * tiling.tiles_in_all() * each
            seconds = cycles / (tiling.spec.cycles_per_s * tiling.spec.processors)
            yield windows.places * read.dtype.itemsize, seconds
        elif not _is_matrix(read, rows, found.summed, tiling.form):
            yield held * read.dtype.itemsize, _copy_seconds(tiling, side, read, operation)


def is_in_place(tiling: Tiling, found: Contraction) -> bool:
    """Whether a routine of a CPU stores a product where the kernel does: nothing else reads it, and
    its rows are no further apart than they are stored, as those of windows are.
    """
    form, pricer = tiling.form, tiling.pricer
    name = found.term.args[3] if found.term.op in SUBSTITUTED else ""
    operation = tiling.spec.operation(str(name)) if name else None
    stored = any(one.term == found.term for one in form.stored)
    if pricer.overlap or not stored or form.uses[found.term] > 1:
        return False
    known = operation is not None or bool(pricer.matrix_operations(form, found))
    return known and slid(tiling, operation, found) is None


def _is_matrix(read: Read, rows: int, summed: int, made: Form) -> bool:
    """Whether rows or columns of a matrix lie as such in memory, the summed names as one."""
    strides = {str(atom): abs(stride) for atom, stride in read.address.terms}
    if read.guards or not strides.keys() <= made.extents.keys():
        return False
    kept, along = (
        sorted((n for n in made.facts.universe.members(mask) if n in strides), key=strides.get)
        for mask in (rows, summed)
    )
    one = all(strides[b] == strides[a] * made.extents[a] for a, b in pairwise(along))
    return one and 1 in {strides[names[0]] for names in (kept, along) if names}


def _copy_seconds(
    tiling: Tiling, side: Term, read: Read, operation: ParallelOperation | None
) -> Array:
    """Seconds in which a CPU begins the innermost loops that copy what it reads of a factor to fast
    memory, each along the longest name whose neighbours are beside each other where they lie, or,
    where that is short, are lines apart; and waits for the copy's lines, a few at a time, the more
    the less of it the caches hold: products read across them, and libraries copy all once more.
    """
    facts, cache, near = tiling.form.facts, tiling.pricer.cache, tiling.pricer.nearest
    mask, size, line = facts.free(side), read.dtype.itemsize, cache.access_granularity_bytes
    longest, each = tiling.shape, tiling.shape * np.inf
    for name, stride in _walked(read).items():
        run = tiling.tile_points(facts.universe.mask([name]))
        longest = np.maximum(longest, run if stride == 1 else 1)
        apart = GATHERED + OWN_LINE * min(stride * size / line, 1.0)
        each = np.where(run >= LANES, np.minimum(each, LOOP / run + apart), each)
    each = np.where(longest >= LANES, LOOP / longest, np.minimum(each, LOOP / longest))
    kept, points = tiling.tile_points(mask) * size, tiling.points(mask) * tiling.times(mask)
    own = tiling.pricer.private.size_bytes
    limits = (near.size_bytes, NEAR * own, own / 2)
    waited = sum(w * (kept >= limit) for w, limit in zip(WAITED, limits, strict=True))
    library = operation is not None and operation.invocation_name == LIBRARY
    waited = waited * (1.0 if library else PACKED)
    cycles = points * (each + waited * size / line * cache.latency_cycles / FETCHED)
    return cycles / (tiling.spec.cycles_per_s * tiling.spec.processors)


def begun(tiling: Tiling, found: Contraction) -> Array:
    """Seconds a multiply-add in which a CPU begins innermost loops, more of them than along whole
    rows: each along the longest name whose neighbours lie beside each other in a factor. In one
    along a result, sums of few points are written out, longer ones in part.
    """
    extents, terms = tiling.form.extents, tiling.points(found.summed)
    whole, inside = 1.0, tiling.shape
    for name in (_beside(found.left) | _beside(found.right)) & extents.keys():
        own = tiling.form.facts.universe.mask([name])
        times = terms if terms <= WRITTEN_OUT else IN_PART
        times = 1 if own & found.summed else times
        whole = max(whole, times * extents[name])
        inside = np.maximum(inside, times * tiling.tile_points(own))
    more = LOOP * (1 / inside - 1 / whole)
    return more / (tiling.spec.cycles_per_s * tiling.spec.processors)


def scratch_seconds(tiling: Occupancy, moved: Array) -> Array:
    """Seconds to write and read so many bytes of what tiles keep between their loops: in a core's
    own cache, in the one that all share, or in memory, where neither holds what they keep at once.
    """
    pricer, kept = tiling.pricer, tiling.scratch
    near, shared, far = (
        memory.sustained_gb_per_s * 1e9 for memory in (pricer.private, pricer.cache, pricer.dram)
    )
    together = kept * np.minimum(tiling.tiles_in_all(), tiling.spec.processors)
    beyond = np.where(together > pricer.cache.size_bytes / 2, far, shared)
    return moved / np.where(kept > pricer.private.size_bytes, beyond, near)


def passed(tiling: Occupancy, memory: Array) -> Array:
    """Seconds of memory's time beside products: routines multiply while their factors come, but
    wait to write what they have made, and loops before and after them read the rest.
    """
    if not tiling.multiplied or tiling.pricer.overlap:
        return 0 * tiling.shape
    within = sum(tiling.copied.get(one, 0.0) for one in tiling.multiplied)
    return memory * (1 - within / np.maximum(tiling.traffic, 1))


def uneven(tiling: Tiling, tiles: Array) -> Array:
    """How many times as long a nest takes on cores of which one is slower, or has other work: the
    others wait while it ends its last tile.
    """
    return 1 + SLOWER / np.maximum(tiles / tiling.spec.processors, 1)


def across_lanes(tiling: Tiling, found: Contraction) -> float:
    """Seconds a multiply-add in which a CPU sums the lanes of vectors: where both factors lie in
    memory along a summed name that fills vectors, each result is a sum along it.
    """
    extents, along = tiling.form.extents, _beside(found.left) & _beside(found.right)
    summed = along & {*tiling.form.facts.universe.members(found.summed)}
    longest = max((extents[name] for name in summed if extents[name] >= LANES), default=0)
    cycles = ACROSS / longest if longest else 0.0
    return cycles / (tiling.spec.cycles_per_s * tiling.spec.processors)


def in_chunks(tiling: Tiling, mask: int, over: int) -> Array:
    """Seconds in which a CPU begins the loops of reductions with results over `mask`, and combines
    the lanes of vectors after each, more often than once for a whole row: for each of its chunks.
    """
    none, inside = 0 * tiling.shape, tiling.tile_points(over)
    if tiling.pricer.overlap:
        return none
    rows = tiling.points(mask) * tiling.times(mask | over) * (tiling.chunks_of(over) - 1)
    cycles = np.where(inside >= LANES, rows * (ACROSS + LOOP), none)
    return cycles / (tiling.spec.cycles_per_s * tiling.spec.processors)


def tests(tiling: Tiling, mask: int) -> Array:
    """Selections in the time that a CPU takes to test the guards of a read at points of `mask`."""
    return TESTED * tiling.points(mask) * tiling.times(mask)


def fetched_again(tiling: Tiling, term: Term, mask: int) -> Array:
    """How many times as long memory gives what is read over `mask` as to a nest that passes over
    it once: rows that are longer than a cache holds are gone when the next pass begins, factors
    when the next tile does, and lines of rows that a recurrence walks side by side, when there are
    many, at its next step. Short runs take longer too (`broken`).
    """
    if tiling.pricer.overlap:
        return tiling.shape
    made = tiling.form
    reduced = made.facts.universe.mask(made.reduced)
    size = made.facts.dtype(term).itemsize
    far = tiling.tile_points(mask & reduced) * size > tiling.pricer.cache.size_bytes / 2
    again = tiling.shape
    if far.any():
        again = np.where(far, passes(made, reduced).get(term, 1), 1)
    if made.stepped in tiling.chunks and made.stepped in _beside(term):
        rows = tiling.tile_points(mask & ~made.steps.along)
        line = tiling.pricer.cache.access_granularity_bytes
        again = np.where(rows > ROWS, np.maximum(again, line / size), again)
    read = term.args[0]
    assert isinstance(read, Read)
    again = again * _read_by_tiles(tiling, mask, size)
    return again * broken(tiling, read.address, read.dtype)


def _read_by_tiles(tiling: Tiling, mask: int, size: int) -> Array:
    """How often tiles that follow one another read from memory what is over `mask`, of which no
    cache holds what they read between; cores that read alike at once read it once.
    """
    times, between = tiling.shape, tiling.tile_points(mask) * size
    room, cores = tiling.pricer.cache.size_bytes / 2, tiling.spec.processors
    for name in reversed(tiling.form.grid):
        if mask & tiling.bit[name]:
            between = between * tiling.count[name]
        else:
            times = times * np.where(between > room, np.maximum(tiling.count[name] / cores, 1), 1)
    return times


def broken(tiling: Tiling, address: Affine, dtype: DType) -> Array:
    """How many times as long a CPU takes to read, or write, what tiles have of memory for lying in
    runs of neighbours that are short: each begins with lines for which it waits. A nest that reads
    across what it stores goes in blocks, and runs are short in any tile.
    """
    run, going, reached = tiling.shape, tiling.shape > 0, 1
    made = tiling.form
    if tiling.lies_across is None:
        tiling.lies_across = _turns(made)
    if tiling.pricer.overlap or tiling.lies_across:
        return run
    steps = [(abs(step), str(name)) for name, step in address.terms if str(name) in made.extents]
    for step, name in sorted(steps, key=lambda one: (one[0], -made.extents[one[1]])):
        if step < reached:  # a window's, over what another name passes over
            continue
        if step > reached:
            break
        points = tiling.tile_points(made.facts.universe.mask([name]))
        run = np.where(going, run * points, run)
        going = going & (points >= made.extents[name])
        reached = step * made.extents[name]
    return 1 + np.minimum(RUN / (run * dtype.itemsize), 1.0)


def _turns(made: Form) -> bool:
    """Whether what lies beside each other in what is read does not in what is stored."""
    stored = {name for one in made.stored for name in one.names[-1:]}
    for term in made.terms:
        along, names = _beside(term), made.facts.universe.members(made.facts.free(term))
        if along & {*made.grid} and not along & stored and stored & {*names}:
            return True
    return False


def _walked(read: Read) -> dict[str, int]:
    """The names that move the address of a read, and how far."""
    return {str(atom): abs(step) for atom, step in read.address.terms if isinstance(atom, str)}


def _beside(term: Term) -> set[str]:
    """The names along which neighbours in what a term reads lie beside each other in memory."""
    read = term.args[0] if term.op in {"read", "gather"} else None
    terms = read.address.terms if isinstance(read, Read) else ()
    return {str(atom) for atom, stride in terms if abs(stride) == 1}
