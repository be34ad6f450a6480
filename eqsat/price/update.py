"""What the multiply-adds of a sum of products cost without a matrix operation, and how long those
of an operation take whose products threads wait for.
"""

import numpy as np

from eqsat.price.latency import FEW_CHUNKS
from eqsat.price.nest import across_lanes, begun
from eqsat.price.occupancy import Occupancy
from eqsat.price.rates import Array, Contraction, power_above
from eqsat.price.tiling import Tiling
from eqsat.specs import ParallelOperation

SAME_BANK = 8.0  # threads of a warp that wait for each other's bank
WORD = 4.0  # bytes of an operand of a multiply-add
RESULT_ROWS = 2.0  # that a thread has of a matrix operation's results
CACHED = 4.0  # times as long as from shared memory (float32 attention: 558 us for 114 without)
UNSTAGED = 2.0  # the same where threads read the sides of a square (450 to 820 us for 320)
IN_TURN = 1.6  # times as long as where it reads ahead
BETWEEN = 4  # steps of a sum between barriers, of the products by which rates were measured
VECTOR = 4.0  # operands that are read at once along what results lie together along
ONE_BY_ONE = 1.4  # times as long take rows that are no whole vectors (11 of 4: 132 us for 110)


def update_seconds(tiling: Tiling, found: Contraction, dtype: str) -> Array:
    """Seconds of a multiply-add without a matrix operation, its operands included; of no dtype,
    those of the operands alone.

    Loops of a CPU are not blocked: each reads one operand from private memory. Threads that share a
    tile, which they compute whole, read the sides of a square of sums each, while others compute;
    where they are more than the sums, neighbours read from rows in the same banks. Of sums that lie
    as the results of an operation do a thread has few rows, and its columns come from a cache.
    """
    private = tiling.pricer.private.sustained_gb_per_s * 1e9
    arithmetic = sum(seconds for _, seconds in tiling.pricer.products(dtype)) if dtype else 0.0
    if not tiling.pricer.overlap:
        loops = begun(tiling, found) + across_lanes(tiling, found)
        return arithmetic + WORD / private + loops
    arithmetic = arithmetic * in_turn(tiling, found)
    if tiling.blocking is None:
        return arithmetic
    results = found.batch | found.rows | found.columns
    sums = tiling.tile_points(results) / tiling.blocking.threads
    few, sums = sums < 1, np.maximum(sums, 1.0)
    sides, times = (RESULT_ROWS + CACHED * sums / RESULT_ROWS) / sums, tiling.shape
    if not tiling.form.operations:
        sides, times = _square(tiling, found) or (2.0 / np.sqrt(sums), times)
        sides = sides * np.where(few & tiling.blocking.staged, SAME_BANK, 1.0)
        beside = bool(dtype or not (found.rows and found.columns))  # registers hold windows
        sides = sides * np.where(tiling.blocking.staged | beside, 1.0, UNSTAGED)
    read = WORD * sides / (tiling.spec.memory("shared").sustained_gb_per_s * 1e9)
    return np.maximum(arithmetic, read) * times * tiling.overhang(results | found.summed)


def _square(tiling: Tiling, found: Contraction) -> tuple[Array, Array] | None:
    """Words that a thread reads for each multiply-add of the nearly square part that it has of a
    tile, and how many times the tile's points all threads have: a power of two of them lies along
    what results lie together along, the rest along the others. None where that is no row or column.
    """
    assert tiling.blocking is not None
    last = tiling.form.facts.universe.mask(tiling.form.stored[0].names[-1:])
    along = next((own for own in (found.columns, found.rows) if own & last), 0)
    others = (found.batch | found.rows | found.columns) & ~along
    if not along or not others:
        return None
    points, rest = tiling.tile_points(along), tiling.tile_points(others)
    threads, warp = tiling.blocking.threads, tiling.spec.members("warp", "thread")
    each = np.maximum(points * rest / threads, 1)
    side = 2.0 ** np.maximum(np.floor(np.log2(np.sqrt(each))), 0)
    vectors = np.ceil(points / VECTOR)
    most = power_above(np.floor(points / side))
    most = np.where(each < VECTOR, np.minimum(power_above(vectors), warp), most)
    offered = np.stack([np.maximum(most / 2**shift, 1) for shift in range(3)])
    best = (np.ceil(vectors / offered) * offered).argmin(axis=0)
    lanes = np.minimum(np.take_along_axis(offered, best[np.newaxis], axis=0)[0], threads)
    width = np.ceil(vectors / lanes) * VECTOR
    height = np.ceil(rest * lanes / threads)
    rows = np.where(height > 1, height * threads / (lanes * rest), 1.0)
    one_by_one = np.where((height > VECTOR) & (height % VECTOR != 0), ONE_BY_ONE, 1.0)
    return one_by_one / width + 1 / height, width * lanes / points * rows


def in_turn(tiling: Tiling, found: Contraction) -> Array:
    """How many times as long products take that threads wait for, where a tile reads, multiplies
    and stores one after the other: of a sum in few chunks it reads nothing ahead.
    """
    return np.where(tiling.chunks_of(found.summed) < FEW_CHUNKS, IN_TURN, 1.0)


def waits(tiling: Occupancy, operation: ParallelOperation | None, found: Contraction) -> Array:
    """How many times as long operations whose products are waited for take as where a tile has
    `BETWEEN` steps of a sum for each barrier: with more of them threads wait less often.
    """
    if operation is None or tiling.blocking is None or not all(operation.extents.values()):
        return tiling.shape
    narrowed = found.term.op == "narrow_contract" and not tiling.started
    turns = in_turn(tiling, found) if narrowed else tiling.shape
    if operation.asynchronous or not tiling.pricer.overlap:
        return turns
    *_, depth = operation.extents.values()
    steps = np.maximum(tiling.tile_points(found.summed) / depth, 1.0)
    return turns * (1 + 1 / steps) / (1 + 1 / BETWEEN)
