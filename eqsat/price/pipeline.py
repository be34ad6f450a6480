"""The time of kernels whose matrix operations run on while others are started: tiles that stay.

A tile streams its chunks through a ring of stages and then stores its result; the matrix unit
waits where the ring is too short for a trip to memory, and while a tile that is alone on its
processor stores. Tiles of several blocks on one processor fill each other's pauses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from eqsat.specs import ParallelMemory, ParallelProcessingUnit

Array = NDArray[np.float64]
LOADED = 3  # latencies that a trip takes while memory is busy
HAND_OVER = 6  # trips from a block's sums to another's: 2560^3 in 2 and 4 parts, 3.0 and 4.9 us
LATE = 0.04  # of the time of copies, in a ring of three slots: 6 of half the size gain 4 to 5 %
BEHIND = 0.02  # of a chain's chunks that read more than factors, for each slot of the ring below
SLOTS_BESIDE = 6  # these: on an H200, 4 take 3 to 11 % less time than 3, and 6 another 5
STREAMED_BYTES = 2048  # tiles from this size on are worth a copy ahead
AHEAD, ROOM = 4, 3  # tiles at once that lie in memory whole, and the part of it for them at most
SLOT = 1.7  # trips from asking for a ring's slot until it is asked for again, computing aside


@dataclass(frozen=True)
class Flow:
    """What a kernel does, an array entry for each choice; seconds are of the whole device.

    matrix: seconds of the matrix operations; other: of the unit that is busiest besides in chunks,
    after: of that which works on results; copied: of copies from the cache; tiles; steps: chunks of
    a tile; waits: how often its products are waited for; stages of the ring; early: by how many
    chunks a slot is let go of before the next one is computed; teams: groups of threads that take
    turns; resident: blocks at once on a processor; stored: bytes that a tile writes; turns:
    tiles of a block under way, of which one stores while another multiplies; gathered: seconds of a
    chunk for which no team multiplies, as one makes its next factor in registers; chain: for which
    a team's products, and what is computed from them, wait for each other while other teams have
    their turn; beside: seconds in which they read more than factors; last_parts: in how many the
    tiles of a last wave are, 0 where each is whole.
    """

    matrix: Array
    other: Array
    after: Array
    copied: Array
    tiles: Array
    steps: Array
    waits: Array
    stages: Array
    early: Array
    teams: Array
    resident: Array
    stored: Array
    turns: Array
    gathered: Array
    chain: Array
    beside: Array
    last_parts: Array


def pipelined(
    spec: ParallelProcessingUnit, flow: Flow, trip_cycles: Array | float, rate: float
) -> Array:
    """Seconds for all tiles, memory bandwidth aside.

    trip_cycles: from asking for a chunk to having it; rate: bytes a second that all processors
    together can store.
    """
    each = spec.processors / flow.tiles
    trip = LOADED * trip_cycles / spec.cycles_per_s
    hand_over = spec.group(spec.tile_group).barrier_latency_cycles / spec.cycles_per_s
    teams = flow.teams / flow.turns  # at the chunks of one tile
    work = (flow.matrix + flow.other / teams) * each + flow.waits * 2 * hand_over
    ahead = np.maximum(flow.stages + flow.early - 1, 0.5)  # a slot is let go of one chunk later
    turn = (flow.matrix + flow.other) * each / teams + flow.steps * flow.chain
    turns = np.maximum(work, turn) + flow.steps * flow.gathered + flow.beside * each
    late = LATE * np.minimum(flow.copied * each, turns) * ((flow.stages <= 3) & (flow.chain == 0))
    few = np.maximum(SLOTS_BESIDE - flow.stages, 0.0) * BEHIND
    late = late + few * np.where((few > 0) & (flow.beside > 0), turns, 0.0)
    streamed = np.maximum(turns + late, (turns + flow.steps * trip) / ahead)
    store = flow.stored * spec.processors / rate + trip / LOADED + flow.after * each
    beside = np.clip(np.ceil(flow.tiles / spec.processors), 1, flow.resident * flow.turns)
    rounds = np.ceil(flow.tiles / (spec.processors * beside))
    waves = np.ceil(flow.tiles / spec.processors)
    alone = np.where(flow.turns > 1, streamed, work + late)  # teams that take turns share a ring
    parts = flow.last_parts
    shared = np.floor(1 / each) + 1 / np.maximum(parts, 1)
    waves = np.where(parts > 0, shared, waves)
    rounds = np.where(parts > 0, shared / beside, rounds)
    return np.maximum(waves * alone, rounds * (streamed + store)) + trip / LOADED


def handed_over(
    spec: ParallelProcessingUnit, parts: Array, sums: Array, trip_cycles: Array | float, rate: float
) -> Array:
    """Seconds in which blocks that have parts of a tile leave so many bytes of sums, and one of
    them takes those of all others.
    """
    trips = HAND_OVER * (parts > 0) * trip_cycles / spec.cycles_per_s
    return parts * sums * spec.processors / rate + trips


def spread(
    rows: Array, columns: Array, teams: Array, rows_alone: bool = False
) -> tuple[Array, Array]:
    """Rows and columns of whole operations that the busiest team has, times all teams, which lie
    along both or, where that is asked for, along rows alone.
    """
    down, right, _ = arranged(rows, columns, teams, rows_alone)
    return down, right


def arranged(
    rows: Array, columns: Array, teams: Array, rows_alone: bool = False
) -> tuple[Array, Array, Array]:
    """The same, and how many teams lie along columns."""
    best = np.full_like(teams, np.inf), np.ones_like(teams), np.ones_like(teams)
    for along, across, whole in arrangements(teams):
        down, right = np.ceil(rows / along) * along, np.ceil(columns / across) * across
        better = whole & ((across == 1) | (not rows_alone)) & (down * right < best[0] * best[1])
        found = zip((down, right, across), best, strict=True)
        down, right, across = (np.where(better, new, old) for new, old in found)
        best = down, right, across
    return best


def arrangements(teams: Array) -> Sequence[tuple[int, Array, NDArray[np.bool_]]]:
    """So many teams along rows, so many along columns, and where that is all of them."""
    return _arrangements(teams.tobytes(), teams.shape)


@lru_cache(maxsize=16)
def _arrangements(
    values: bytes, shape: tuple[int, ...]
) -> Sequence[tuple[int, Array, NDArray[np.bool_]]]:
    teams = np.frombuffer(values).reshape(shape)
    every = {int(count) for count in np.unique(teams)}
    found = []
    for along in sorted({n for count in every for n in range(1, count + 1) if count % n == 0}):
        across = teams / along
        whole = across % 1 == 0
        if whole.any():
            found.append((along, across, whole))
    return found


def whole_slots(size: Array, shared_bytes: int) -> Array:
    """Slots of a ring for tiles that are nothing but boxes of so many bytes, which lie there whole:
    those of the next tiles are copied meanwhile, as far as room for other blocks is left.
    """
    return np.clip(np.floor(shared_bytes / ROOM / size), 1, AHEAD)


def in_flight(
    spec: ParallelProcessingUnit, memory: ParallelMemory, held: Array, stages: Array
) -> Array:
    """Bytes a second that so many bytes can draw, in stages of which one is not under way."""
    way = LOADED * memory.latency_cycles / spec.cycles_per_s
    return held * np.maximum(stages - 1, 0.125) / stages / way
