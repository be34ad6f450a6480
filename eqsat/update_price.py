"""What the multiply-adds of a sum of products cost without a matrix operation."""

import numpy as np

from eqsat.nest_price import across_lanes
from eqsat.occupancy import FEW_CHUNKS
from eqsat.rates import Array, Contraction
from eqsat.tiling import Tiling

SAME_BANK = 8.0  # threads of a warp that wait for each other's bank
WORD = 4.0  # bytes of an operand of a multiply-add
RESULT_ROWS = 2.0  # that a thread has of a matrix operation's results
CACHED = 4.0  # times as long as from shared memory (float32 attention: 558 us for 114 without)
IN_TURN = 1.6  # times as long as where it reads ahead
UNEVEN = 4 / 3  # times as long by three times so many threads where no side of a tile has thirds


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
        return tiling.shape * (arithmetic + WORD / private + across_lanes(tiling, found))
    arithmetic = arithmetic * in_turn(tiling, found)
    if tiling.blocking is None:
        return arithmetic
    results = found.batch | found.rows | found.columns
    sums = tiling.tile_points(results) / tiling.blocking.threads
    few, sums = sums < 1, np.maximum(sums, 1.0)
    sides = (RESULT_ROWS + CACHED * sums / RESULT_ROWS) / sums
    if not tiling.form.operations:
        sides = 2.0 / np.sqrt(sums) * np.where(few & tiling.blocking.staged, SAME_BANK, 1.0)
    read = WORD * sides / (tiling.spec.memory("shared").sustained_gb_per_s * 1e9)
    uneven = tiling.blocking.threads % 3 == 0
    for size in tiling.tiles.values():
        uneven = uneven & (size % 3 > 0)
    times = np.where(uneven, UNEVEN, 1.0) * tiling.overhang(results | found.summed)
    return np.maximum(arithmetic, read) * times


def in_turn(tiling: Tiling, found: Contraction) -> Array:
    """How many times as long products take that threads wait for, where a tile reads, multiplies
    and stores one after the other: of a sum in few chunks it reads nothing ahead.
    """
    return np.where(tiling.chunks_of(found.summed) < FEW_CHUNKS, IN_TURN, 1.0)
