"""How one warp shares out a tile that memory holds along two indices: a transpose.

Loads run along one index and stores along another, so a warp owns a square of both: rows of either
index are then long enough to fill the sectors of memory, at once or after an exchange of lanes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from eqsat.layout.needs import VECTOR_BYTES

from .threads import Factor, merge

LANES = 32
ROW = 128  # bytes of a row beyond which it gains nothing
MOST_REGISTERS = 64  # elements of the square in one thread
LEAST_ROW = 32  # bytes of a sector: with less of the tile along an index no square helps


@dataclass(frozen=True)
class Side:
    """One index: its points in a tile, the elements that accesses along it move at once, bytes."""

    points: int
    vector: int
    itemsize: int


@dataclass(frozen=True)
class Square:
    """Lanes and registers of a warp: along the loads' index (`lanes`, `vector` innermost) and
    across it (`across` lanes between `outer` and `inner` registers)."""

    lanes: int
    vector: int
    across: int
    outer: int
    inner: int


def square(along: Side, across: Side, each: int, whole: bool = False) -> Square | None:
    """The square whose shorter row has most bytes, then the one with the longest rows of loads.

    `each`: elements of the tile for each thread. `whole`: the block turns its tile as one, and the
    rows of stores are as long as that; a warp's rows of loads are to be long. None where the tile
    is too narrow for one.
    """
    if min(along.points * along.itemsize, across.points * across.itemsize) < LEAST_ROW:
        return None
    vector = along.vector
    best: tuple[tuple[int, int, int], Square] | None = None
    lanes = 1
    while lanes <= LANES and (lanes == 1 or lanes // 2 * vector < along.points):
        other, most = LANES // lanes, max(min(MOST_REGISTERS, each) // vector, 1)
        while other > 1 and other // 2 >= across.points:
            other //= 2
        registers = 1
        while (
            2 * registers <= most
            and registers * other < across.points
            and (registers * other * across.itemsize < ROW)
        ):
            registers *= 2
        rows = (lanes * vector * along.itemsize, other * registers * across.itemsize)
        inner = min(across.vector, registers, VECTOR_BYTES // across.itemsize)
        score = (min(*rows, ROW), min(rows[1], ROW) + min(rows[0], ROW), lanes)
        if whole:
            score = (min(rows[0], ROW), inner, lanes)
        found = Square(lanes, vector, other, registers // inner, inner)
        if best is None or score > best[0]:
            best = (score, found)
        lanes *= 2
    assert best is not None
    return best[1]


def square_factors(
    chosen: Square, along: int, across: int, warps: Sequence[tuple[int, int]], threads: int
) -> tuple[tuple[Factor, ...], tuple[Factor, ...]]:
    """The factors of both indices, of so many points: the square's, and outside of them digits of
    warps, first along the loads' index.
    """
    inside = (
        (Factor("thread", chosen.lanes, 1), Factor("register", chosen.vector)),
        (
            Factor("register", chosen.outer),
            Factor("thread", chosen.across, chosen.lanes),
            Factor("register", chosen.inner),
        ),
    )
    covered = (chosen.lanes * chosen.vector, chosen.across * chosen.outer * chosen.inner)
    left, found = list(warps), []
    for points, own, factors in zip((along, across), covered, inside, strict=True):
        spread = []
        while left and own < points:
            spread.append(left.pop(0))
            own *= spread[-1][1]
        rest = Factor("register", max(-(-points // own), 1))
        found.append((rest, *reversed(merge(spread, threads)), *factors))
    return found[0], found[1]
