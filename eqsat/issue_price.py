"""Instructions that threads issue, and what it takes threads that wait for what they start."""

import numpy as np
from numpy.typing import NDArray

from eqsat.specs import ParallelProcessingUnit

Array = NDArray[np.float64]

COPIES = "copies"  # the unit of elements that are copied one by one
ISSUED = "issue"  # the unit that starts all instructions, whatever other units they are for
CHUNK_WORK = 60  # instructions of a thread for each chunk of staged operands
VECTOR_WORK = 12  # the same for each vector that it copies
COPY_WORK = 50  # the same of an element of a window, copied with no other under way
IN_TURN = 1.25  # times what threads do one after the other, as none of it begins at once
COMPUTING = 0.4  # the part of elementwise work that nothing else of the same threads hides
SIDE_BY_SIDE = 3  # blocks on a processor from where on they fill each other's pauses


def issue_seconds(
    spec: ParallelProcessingUnit, chunks: Array, copied: Array, copies: Array, work: Array | float
) -> tuple[dict[str, Array], Array]:
    """Seconds to issue the elementwise work, and what every thread does for each chunk besides:
    waiting, addresses, copies of so many bytes; those for elements that are copied one by one
    alone, which take turns with multiply-adds; and all but the elementwise work. A processor issues
    one instruction a cycle for each part of a warp's size of its lanes.
    """
    alone = copies * copy_seconds(spec)
    vectors = copied / spec.memory("shared").vector_access_bytes
    instructions = chunks * CHUNK_WORK + vectors * VECTOR_WORK
    staging = instructions * instruction_seconds(spec) + alone
    return {ISSUED: work + staging, COPIES: alone}, staging


def copy_seconds(spec: ParallelProcessingUnit) -> float:
    """Seconds of the whole device for an element that is copied by itself."""
    return instruction_seconds(spec) * COPY_WORK


def instruction_seconds(spec: ParallelProcessingUnit) -> float:
    """Seconds of the whole device for an instruction of one thread."""
    return 1 / (spec.group("thread").count * spec.cycles_per_s)


def in_turn_seconds(parts: list[Array], beside: Array) -> Array:
    """Seconds of products that threads wait for: they copy, read fragments and multiply one after
    the other, until many blocks on a processor do so side by side.
    """
    return IN_TURN * np.minimum(1.0, SIDE_BY_SIDE / beside) * sum(parts)
