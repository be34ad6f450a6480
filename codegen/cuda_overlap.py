"""Products whose left factor registers hold: work on one chunk beside the products of another.

A product reads its registers while it runs. So the factor of the next product is computed beside
it, and packed into those registers only when it is done.

In a chain of two products, the first one of a chunk is started together with the later one of the
chunk before; elementwise work on the first one's result goes on beside the later one.
"""

from collections.abc import Mapping

from eqsat.codegen.cuda_block import Block
from eqsat.codegen.cuda_chains import in_registers
from eqsat.codegen.cuda_gather import fill_left
from eqsat.codegen.cuda_matrix import pack_left
from eqsat.codegen.cuda_pipeline import Pipeline
from eqsat.codegen.cuda_statements import Statements
from eqsat.codegen.cuda_warpgroup import multiply, packed_shape
from eqsat.kernel import Contract, Phase, Statement, Update


def held_products(block: Block, phase: Phase) -> dict[str, str]:
    """Names of registers for the left factors that products of a phase read from registers."""
    matrices = block.placement.matrices
    products = [s.name for s in phase.body if isinstance(s, Contract) and s.name in matrices]
    held = [name for name in products if in_registers(block.placement, matrices[name])]
    return {f"packed_{n}": name for n, name in enumerate(held)}


def declare_packed(block: Block, products: Mapping[str, str]) -> None:
    """Registers for left factors that live from chunk to chunk."""
    for register, name in products.items():
        steps, count = packed_shape(block, block.placement.matrices[name])
        block.out.line(f"unsigned {register}[{steps}][{count}][4];")


class HeldStatements(Statements):
    """One run of a body whose products all go into carries, some with computed left factors."""

    def __init__(
        self, block: Block, phase: Phase, boxes: set[str], partial: Mapping[str, str]
    ) -> None:
        super().__init__(block, phase, boxes, partial, lagging=True)
        self.packed = {name: register for register, name in held_products(block, phase).items()}
        self.waited = False

    def update(self, s: Update) -> None:
        matrix = self.block.placement.matrices.get(s.chunk)
        if matrix is None:
            super().update(s)
            return
        self.flush()
        self.block.aliases[s.name] = s.carry
        self.block.readers[s.name] = self.alias_reader(s.name)
        if not self.waited:
            self.out.line("products_wait<0>();")
            self.waited = True
        register = self.packed.get(s.chunk, "")
        if register:
            fill_left(self.block, matrix, register)
        multiply(self.block, matrix, self.block.value(s.carry), register)
        self.issued = True


class ChainedStatements(Statements):
    """One run of a chain's body; `first`: no chunk came before."""

    def __init__(
        self,
        block: Block,
        phase: Phase,
        pipeline: Pipeline,
        partial: Mapping[str, str],
        first: bool,
    ) -> None:
        rings = pipeline.rings[phase]
        self.copied, self.later = rings[0], rings[-1]
        super().__init__(block, phase, {name for ring in rings for name in ring.boxes}, partial)
        self.pipeline, self.chain, self.first = pipeline, pipeline.chains[phase], first
        self.waited = first

    def statement(self, s: Statement) -> None:
        if s is not self.chain.head:
            super().statement(s)
            return
        self.flush()
        self.declare(s.name)
        matrix = self.block.placement.matrices[s.name]
        multiply(self.block, matrix, self.block.value(s.name), fresh=True)
        self.out.line("products_commit();")
        if not self.first:
            self.pipeline.wait(self.later)
            issue_delayed(self.block, self.phase, self.pipeline)
        self.out.line(f"products_wait<{0 if self.first else 1}>();")
        self.pipeline.release(self.copied)

    def update(self, s: Update) -> None:
        if s not in self.chain.delayed:
            super().update(s)
            return
        self.flush()
        block = self.block
        block.aliases[s.name] = s.carry
        block.readers[s.name] = self.alias_reader(s.name)
        if not self.waited:
            self.out.line("products_wait<0>();")
            self.pipeline.release(self.later)
            self.waited = True
        if s.scale:
            block.before_reading([s.scale])
            with block.points(s.indices) as point:
                scale = block.converted(s.scale, s.dtype, point)
                old = block.read(s.carry, point)
                self.out.line(f"{block.element(s.name, point)} = {old} * {scale};")
        pack_left(block, block.placement.matrices[s.chunk], self.chain.packed(s))


def issue_delayed(block: Block, phase: Phase, pipeline: Pipeline) -> None:
    """Start the later products of the chunk before."""
    chain = pipeline.chains[phase]
    for update in chain.delayed:
        matrix = block.placement.matrices[update.chunk]
        multiply(block, matrix, block.value(update.carry), chain.packed(update))
    block.out.line("products_commit();")
