"""What rows cost that are reduced by themselves in the chunks of a stream which sums over them.

Threads of a chunk wait for the sums of its rows. As far as there are warps each has a row, whose
lanes hand theirs on; warps that share one meet. What chunks read is asked for before, as far as
shared memory has slots for it.
"""

import numpy as np
from numpy.typing import NDArray

from eqsat.price.pipeline import LOADED
from eqsat.price.rates import Array
from eqsat.price.tiling import Tiling
from eqsat.terms.algebra import Term
from eqsat.terms.scans import MOST_SLOTS_BYTES

BY_LANES = 10  # instructions in which the lanes of a warp add up their sums of one row
ACROSS = 60  # of warps that share a row, and two of each: fitted before lanes took their sums
MEETING = 8  # barriers' time for which these wait: gradients of norms on an H200
ONE_WARP = 0.8  # instructions a cycle that one warp starts at the most
EXPOSED = 0.1  # part of what is hidden that still counts where chunks wait for sums
ALONE = 0.5  # the same where a processor has one tile: gradients of norms of 4096 x 8192


def has_rows(tiling: Tiling) -> bool:
    """Whether tiles of a schedule stream over rows that they reduce."""
    scheduled = tiling.blocking is not None and tiling.pricer.overlap and bool(tiling.chunks)
    return scheduled and not tiling.form.stepped and tiling.form.row_points > 1


def summed_across(tiling: Tiling, term: Term) -> Array:
    """How many times the work of its elements a sum of rows is that threads share."""
    if not has_rows(tiling) or term in tiling.form.phase:
        return tiling.shape
    assert tiling.blocking is not None
    sharing = _sharing(tiling)
    each = BY_LANES * np.maximum(_rows(tiling) / _warps(tiling), 1)
    each = each + np.where(sharing > 1, ACROSS + 2 * sharing, 0)
    held = _rows(tiling) * tiling.form.row_points / tiling.blocking.threads
    return 1 + each / held


def multiplies(tiling: Tiling) -> bool:
    """Whether a product sums over the rows: its factors would pass through shared memory, as warps
    have rows of their own. Sums of what is multiplied do not.
    """
    return any(term.op == "contract" for term in tiling.form.phase)


def first_cycles(tiling: Tiling) -> Array:
    """Cycles until a tile has what its first chunk reads, while memory is busy with others."""
    return _trip(tiling) * tiling.shape if has_rows(tiling) else 0 * tiling.shape


def chunk_cycles(tiling: Tiling) -> Array:
    """Cycles for which the threads of a chunk wait: for what they read, if no slot holds it, and
    for sums of rows, one after the other.
    """
    spec, turns = tiling.spec, tiling.reductions_in_turn() - 1  # without that over all rows
    meeting = MEETING * turns * spec.group(spec.tile_group).barrier_latency_cycles
    return np.where(_is_ahead(tiling), 0.0, _trip(tiling)) + meeting * (_sharing(tiling) > 1)


def own_seconds(tiling: Tiling, computing: Array, tiles: Array) -> Array:
    """Seconds that a tile's threads take for their own part of all that is issued, no others being
    at work: chunks come one after the other.
    """
    if not has_rows(tiling):
        return 0 * tiling.shape
    lanes = tiling.spec.group("thread").count / tiling.spec.processors
    most = lanes / tiling.spec.members("warp", "thread")  # that a processor starts in a cycle
    slower = most / np.minimum(ONE_WARP * _warps(tiling), most)
    return computing * tiling.spec.processors / tiles * slower


def exposed_part(tiling: Tiling, tiles: Array) -> Array:
    """The part of what waits and work hide of each other that counts nonetheless."""
    return np.where(tiles <= tiling.spec.processors, ALONE, EXPOSED)


def _trip(tiling: Tiling) -> float:
    pricer = tiling.pricer
    return LOADED * (pricer.dram.latency_cycles + pricer.cache.latency_cycles)


def _rows(tiling: Tiling) -> Array:
    """Rows of a chunk."""
    return np.prod([*tiling.chunks.values()], axis=0)


def _warps(tiling: Tiling) -> Array:
    assert tiling.blocking is not None
    return tiling.blocking.threads / tiling.spec.members("warp", "thread")


def _sharing(tiling: Tiling) -> Array:
    """Warps that have one row."""
    return _warps(tiling) / np.minimum(_warps(tiling), _rows(tiling))


def _is_ahead(tiling: Tiling) -> NDArray[np.bool_]:
    """Whether two slots hold what a chunk reads."""
    facts, streamed = tiling.form.facts, tiling.form.facts.universe.mask(tiling.chunks)
    reads = (t for t in tiling.form.terms if t.op == "read" and facts.free(t) & streamed)
    size = sum(tiling.tile_points(facts.free(t)) * facts.dtype(t).itemsize for t in reads)
    return 2 * size <= MOST_SLOTS_BYTES * tiling.shape
