"""Streams of two chained products: one chunk's second product runs while the next one's factor is
made ready.

A chunk's first product has only copied factors; what is computed from it is the left factor of a
second product that goes into a carry, as in attention. Registers hold that factor until the next
chunk: there the first product is started, then the second one of the chunk before, and elementwise
work on the first one's result goes on beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from eqsat.codegen.cuda_block import Block
from eqsat.codegen.cuda_matrix import pack_left
from eqsat.codegen.cuda_pipeline import Pipeline
from eqsat.codegen.cuda_statements import Statements
from eqsat.codegen.cuda_warpgroup import multiply, packed_shape
from eqsat.codegen.cuda_warpgroup_operations import WarpgroupOperation
from eqsat.kernel import Contract, Phase, Statement, Update


@dataclass(frozen=True)
class Overlap:
    """The first product of a phase, and the updates that take later ones into carries."""

    head: Contract
    delayed: tuple[Update, ...]

    def packed(self, update: Update) -> str:
        """The registers that hold a later product's left factor."""
        return f"packed_{self.delayed.index(update)}"


def find_overlap(block: Block, phase: Phase, pipeline: Pipeline) -> Overlap | None:
    """How the products of a stream overlap, if they are such."""
    ring = pipeline.rings[phase]
    placement = block.placement
    found = [s for s in phase.body if isinstance(s, Contract) and s.name in placement.matrices]
    updates = {s.chunk: s for s in phase.body if isinstance(s, Update)}
    heads: list[Contract] = []
    delayed: list[Update] = []
    for c in found:
        matrix = placement.matrices[c.name]
        if not isinstance(matrix.operation, WarpgroupOperation):
            return None
        update = updates.get(c.name)
        if update is None or placement.users[c.name] != (update.name,):
            heads.append(c)
        elif matrix.right in ring.boxes and matrix.left not in block.tiles:
            delayed.append(update)
        else:
            return None
    whole = len(heads) == 1 and delayed and ring.stages > 1
    if not whole or any(placement.users[u.name] or u.monoid != "sum" for u in delayed):
        return None
    copied = placement.matrices[heads[0].name]
    if not {copied.left, copied.right} <= set(block.tiles) | set(ring.boxes):
        return None
    return Overlap(heads[0], tuple(delayed))


class OverlappedStatements(Statements):
    """One run of such a phase's body; `first`: no chunk came before."""

    def __init__(
        self,
        block: Block,
        phase: Phase,
        pipeline: Pipeline,
        overlap: Overlap,
        partial: Mapping[str, str],
        first: bool,
    ) -> None:
        super().__init__(block, phase, set(pipeline.rings[phase].boxes), partial)
        self.pipeline, self.overlap, self.first = pipeline, overlap, first
        self.waited = first

    def statement(self, s: Statement) -> None:
        if s is not self.overlap.head:
            super().statement(s)
            return
        self.flush()
        self.declare(s.name, "0")
        self.contract(s, s)
        self.out.line("products_commit();")
        if not self.first:
            issue_delayed(self.block, self.phase, self.pipeline, self.overlap)
        self.out.line(f"products_wait<{0 if self.first else 1}>();")
        self.issued = False

    def update(self, s: Update) -> None:
        if s not in self.overlap.delayed:
            super().update(s)
            return
        self.flush()
        block = self.block
        block.aliases[s.name] = s.carry
        block.readers[s.name] = self.alias_reader(s.name)
        if not self.waited:
            self.out.line("products_wait<0>();")
            self.pipeline.release(self.phase, behind=1)
            self.waited = True
        if s.scale:
            block.before_reading([s.scale])
            with block.points(s.indices) as point:
                scale = block.converted(s.scale, s.dtype, point)
                old = block.read(s.carry, point)
                self.out.line(f"{block.element(s.name, point)} = {old} * {scale};")
        matrix = block.placement.matrices[s.chunk]
        pack_left(block, matrix, self.overlap.packed(s))


def declare_packed(block: Block, overlap: Overlap) -> None:
    """Registers for the left factors between chunks."""
    for update in overlap.delayed:
        steps, count = packed_shape(block, block.placement.matrices[update.chunk])
        block.out.line(f"unsigned {overlap.packed(update)}[{steps}][{count}][4];")


def issue_delayed(block: Block, phase: Phase, pipeline: Pipeline, overlap: Overlap) -> None:
    """Start the later products of the chunk before."""
    with block.out.block():
        for update in overlap.delayed:
            matrix = block.placement.matrices[update.chunk]
            held = block.tiles[matrix.right]
            block.tiles[matrix.right] = pipeline.before(phase, matrix.right)
            multiply(block, matrix, block.value(update.carry), overlap.packed(update))
            block.tiles[matrix.right] = held
        block.out.line("products_commit();")
