"""Instructions that threads issue: for each chunk of operands, and for each copy."""

import numpy as np
from numpy.typing import NDArray

from eqsat.specs import ParallelProcessingUnit

Array = NDArray[np.float64]

COPIES = "copies"  # the unit of elements that are copied one by one
ISSUED = "issue"  # the unit that starts all instructions, whatever other units they are for
CHUNK_WORK = 60  # instructions of a thread for each chunk of staged operands
VECTOR_WORK = 12  # the same for each vector that it copies
COPY_WORK = 50  # the same of an element of a window, copied with no other under way
STAGED_WORK = 25  # the same where a thread has many under way
COPYING = 384  # threads of a processor that copy elements one by one as fast as it issues


def issue_seconds(
    spec: ParallelProcessingUnit,
    chunks: Array,
    vectors: Array,
    alone: Array,
    work: Array | float,
    threads: Array,
) -> tuple[dict[str, Array], Array]:
    """Seconds to issue the elementwise work, and what every thread does for each chunk besides:
    waiting, addresses, copies of so many vectors, which are told apart too; and those for elements
    that are copied alone, which take turns with multiply-adds. A processor issues one instruction a
    cycle for each part of a warp's size of its lanes, if it has `threads` enough for that.
    """
    fewer = np.maximum(COPYING / threads, 1.0)
    copies = alone * fewer * STAGED_WORK * instruction_seconds(spec)
    staging = (chunks * CHUNK_WORK + vectors * VECTOR_WORK) * instruction_seconds(spec)
    return {ISSUED: work + staging + copies, COPIES: copies}, staging


def issue_beside(units: dict[str, Array], after: dict[str, Array], started: bool) -> None:
    """Leave out what is issued while scans and matrix operations run on by themselves; the work on
    results, which comes `after`, where the next products of a tile wait for it.
    """
    units.pop(ISSUED, None)
    issued = after.pop(ISSUED, None)
    if started and issued is not None:
        units[ISSUED] = after[ISSUED] = issued


def copy_seconds(spec: ParallelProcessingUnit) -> float:
    """Seconds of the whole device for an element that is copied by itself."""
    return instruction_seconds(spec) * COPY_WORK


def instruction_seconds(spec: ParallelProcessingUnit) -> float:
    """Seconds of the whole device for an instruction of one thread."""
    return 1 / (spec.group("thread").count * spec.cycles_per_s)
