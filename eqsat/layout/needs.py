"""What matrix operations ask of factors in memory: of boxes that are copied for those that run on
by themselves, of vectors that threads copy for those whose products they wait for.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from eqsat.graph.dtypes import BY_NAME, is_held
from eqsat.layout.narrow import TERMS
from eqsat.specs import ParallelOperation, ParallelProcessingUnit

WIDE = "float32"
SIXTEEN = ("bfloat16", "float16")
STORED_TERMS = frozenset({"bfloat16"})
"""Narrow floats that are dtypes of memory, so that a factor's terms can be stored."""

VECTOR_BYTES = 16  # the widest access of a thread; arrays begin at multiples of it
# Of a box that the tensor memory accelerator copies, along each axis: what it spans, and how far
# apart its elements are (CUDA driver API, cuTensorMapEncodeTiled).
MOST_BOX, MOST_STEP = 256, 8


@dataclass(frozen=True)
class Need:
    """What an operation asks of a factor in memory.

    alignment: bytes that divide the distance of rows, wherever the operation's copies leave a
    choice; row: bytes at multiples of which rows best begin; summed: whether a summed index must be
    contiguous; narrow: the float whose terms it takes in place of a float32 in shared memory; wide:
    that which it takes in place of a narrower one.
    """

    alignment: int
    row: int
    summed: bool
    narrow: str = ""
    wide: str = ""

    @property
    def converts(self) -> str:
        """The float that is stored in place of the factor's own, if one is."""
        return self.narrow or self.wide

    @property
    def terms(self) -> int:
        """How many of these for each element."""
        return TERMS[self.narrow] if self.narrow else 1


def needs(spec: ParallelProcessingUnit, operation: ParallelOperation, dtype: str) -> Need | None:
    """What the operation asks of a factor of that dtype in memory; None where it takes none."""
    pair = operation.semantics.contraction if operation.semantics else None
    if not operation.asynchronous or pair is None or operation.semantics is None:
        return None
    places = [operation.operand_memory.get(read.operand, "") for read in pair]
    placed = [m.name for m in spec.memory_domains if m.managed == "software"]
    inside = [place for place in places if place in placed and place != "registers"]
    if not inside:
        return None
    alignment = _box_alignment(spec, inside[0])
    row = max(operation.alignment_bytes, alignment)
    summed = bool(set(operation.contiguous.values()) & {*operation.semantics.reduced_index_names})
    kinds = {row.get(pair[0].operand) for row in operation.supported_data_types}
    if dtype in kinds or (dtype == WIDE and "tfloat32" in kinds):
        return Need(alignment, row, summed)
    for kind in sorted({*BY_NAME} & kinds):
        if dtype == WIDE and kind in STORED_TERMS:
            return Need(alignment, row, summed, narrow=kind)
        if kind in SIXTEEN and dtype in BY_NAME and is_held(dtype, kind):
            return Need(alignment, row, summed, wide=kind)
    return None


def started_needs(
    spec: ParallelProcessingUnit, dtype: str, out: str
) -> Iterator[tuple[ParallelOperation, Need]]:
    """What operations that run on by themselves, with results of a dtype, ask of a factor."""
    for operation in spec.operations:
        need = needs(spec, operation, dtype)
        if need is not None and operation.semantics is not None:
            result = operation.semantics.output.operand
            if any(row.get(result) == out for row in operation.supported_data_types):
                yield operation, need


def waited_needs(
    spec: ParallelProcessingUnit, dtype: str, out: str
) -> Iterator[tuple[ParallelOperation, Need]]:
    """What operations whose products are waited for ask of a factor that is no window's: threads
    copy it in vectors, and read what is summed at once, where it lies together.
    """
    for operation in spec.operations:
        pair = operation.semantics.contraction if operation.semantics else None
        if operation.asynchronous or pair is None or operation.semantics is None:
            continue
        operands = (pair[0].operand, operation.semantics.output.operand)
        for row in operation.supported_data_types:
            if (row.get(operands[0]), row.get(operands[1])) == (dtype, out):
                yield operation, Need(VECTOR_BYTES, VECTOR_BYTES, True)


def _box_alignment(spec: ParallelProcessingUnit, memory: str) -> int:
    """What copies of boxes into a memory ask of the distance of rows, in bytes."""
    found = [
        operation.alignment_bytes
        for operation in spec.operations
        if operation.asynchronous
        and operation.semantics is not None
        and operation.semantics.update == "="
        and len(operation.semantics.output.index_names) > 1
        and operation.operand_memory.get(operation.semantics.output.operand) == memory
    ]
    return min(found, default=1)
