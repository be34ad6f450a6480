"""Products whose left factor registers hold: work on one chunk beside the products of another.

A product reads its registers while it runs. So the factor of the next chunk's is computed beside
it, and packed into those registers only when it is done: one step of the sum at a time, while the
products of the steps after it still run. Each chunk issues as many groups of products as the one
before, so the group that read some registers last is as many groups back.

In a chain of products, the first ones of a chunk are started together with the later ones of the
chunk before; elementwise work on what the first ones leave goes on beside the later ones.
"""

from collections.abc import Mapping, Sequence

from eqsat.kernel.ir import Contract, Load, Phase, Statement, Update, operands

from .pipeline import Pipeline
from .place.block import Block
from .place.placement import REGISTERS
from .place.warpgroup_operations import WarpgroupOperation
from .products.chains import BOTH, HEADS, LATER, in_registers
from .products.fragments import Fragments, find_fragments, read_left
from .products.gather import fill_left
from .products.pairs import Pairs, find_pairs
from .products.warpgroup import factor_registers, multiply, multiply_in_steps, packed_shape
from .statements import Elementwise, Statements

NARROW = 64  # columns of a product whose factors shared memory gives no faster than it multiplies
MOST_GROUPS = 8  # under way, as far as a wait for all but the last of them can count


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


def groups_of(block: Block, phase: Phase) -> int:
    """Groups of products that a chunk issues: each step of one with a held factor is a group."""
    held, matrices = held_products(block, phase).values(), block.placement.matrices
    products = [s.name for s in phase.body if s.name in matrices]
    return sum(packed_shape(block, matrices[n])[0] if n in held else 1 for n in products)


class HeldStatements(Statements):
    """One run of a body whose products all go into carries, some with computed left factors."""

    def __init__(
        self, block: Block, phase: Phase, boxes: set[str], partial: Mapping[str, str]
    ) -> None:
        super().__init__(block, phase, boxes, partial, lagging=True)
        self.packed = {name: register for register, name in held_products(block, phase).items()}
        matrices = (block.placement.matrices[name] for name in self.packed)
        self.made = [m for m in matrices if not m.gathered]
        self.fragments: dict[str, Fragments] = {}  # of loads that have been read so
        self.pairs: dict[str, Pairs] = {}  # by product
        self.last = min(groups_of(block, phase), MOST_GROUPS) - 1

    def load_tile(self, s: Load) -> None:
        """Of a tile of which a left factor is made, all fragments are read at once."""
        super().load_tile(s)
        if s.name in self.ring and all(
            isinstance(self.block.placement.statements.get(user), Elementwise)
            for user in self.block.placement.users[s.name]
        ):
            found = (find_fragments(self.block, s, m) for m in self.made)
            if fragments := next(filter(None, found), None):
                self.fragments[s.name] = fragments
                fragments.declare()

    def order(self) -> Sequence[Statement]:
        """First the products and what they read: the rest goes on beside them."""
        for matrix in self.made:
            if pairs := find_pairs(self.block, matrix, self.fragments):
                self.pairs[matrix.contract.name] = pairs
        made = {name for pairs in self.pairs.values() for name in pairs.made}
        body = [s for s in self.phase.body if s.name not in made]
        first = {*self.block.placement.matrices}
        for s in reversed(body):
            if s.name in first or (isinstance(s, Update) and s.chunk in first):
                read = [name for name in operands(s) if name not in made]
                first.update((s.name, *read))
        return sorted(body, key=lambda s: s.name not in first)

    def update(self, s: Update) -> None:
        matrix = self.block.placement.matrices.get(s.chunk)
        if matrix is None:
            super().update(s)
            return
        self.flush()
        self.block.aliases[s.name] = s.carry
        self.block.readers[s.name] = self.block.element_reader(s.name)
        self.settle()
        result, register = self.block.value(s.carry), self.packed.get(s.chunk, "")
        if register:
            pairs = self.pairs.get(s.chunk)
            fill = pairs.fill if pairs else None
            multiply_in_steps(self.block, matrix, result, register, self.last, fill)
            return
        self.out.line(f"products_wait<{self.last}>();")
        multiply(self.block, matrix, result)
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
        held: Mapping[str, str],
    ) -> None:
        self.held = held  # names of registers for left factors of the first products
        self.rings = {ring.role: ring for ring in pipeline.rings[phase]}
        boxes = {name for ring in pipeline.rings[phase] for name in ring.boxes}
        super().__init__(block, phase, boxes, partial)
        self.pipeline, self.chain, self.first = pipeline, pipeline.chains[phase], first
        self.waited = first
        self.written: set[str] = set()
        self.started = first  # whether the later products of the chunk before are under way
        self.postponed: list[Update] = []  # whose factors would overwrite theirs

    def statement(self, s: Statement) -> None:
        heads = self.chain.heads
        if s not in heads:
            if s.name not in self.written:
                super().statement(s)
                self.written.add(s.name)
            return
        if s is heads[0]:
            self.start()
        self.flush()
        later = len(heads) - 1 - heads.index(s) + (not self.first)
        self.out.line(f"products_wait<{later}>();")
        if s is heads[-1] and HEADS in self.rings:
            self.pipeline.release(self.rings[HEADS])
        for update in self.postponed if s is heads[-1] else ():
            self.update(update)

    def start(self) -> None:
        """Start the first products of this chunk and the later ones of the chunk before, and read
        meanwhile what registers take from memory.
        """
        self.flush()
        for head in self.chain.heads:
            self.declare(head.name)
            matrix = self.block.placement.matrices[head.name]
            held = self.held.get(head.name, "")
            multiply(self.block, matrix, self.block.value(head.name), held, fresh=True)
            self.out.line("products_commit();")
        if not self.first:
            if LATER in self.rings:
                self.pipeline.wait(self.rings[LATER])
            issue_delayed(self.block, self.phase, self.pipeline)
        self.started = True
        for s in self.phase.body if len(self.chain.heads) > 1 else ():
            if self.is_read_from_memory(s):
                self.statement(s)

    def is_read_from_memory(self, s: Statement) -> bool:
        """Whether a statement is a load into registers that waits for no other."""
        placed = self.block.placement.where[s.name] == REGISTERS
        return isinstance(s, Load) and placed and not s.access.coordinates

    def update(self, s: Update) -> None:
        if s not in self.chain.delayed:
            super().update(s)
            return
        if not self.started:
            self.postponed.append(s)
            return
        self.flush()
        block = self.block
        block.aliases[s.name] = s.carry
        block.readers[s.name] = block.element_reader(s.name)
        if not self.waited:
            self.out.line("products_wait<0>();")
            release_delayed(self.phase, self.pipeline)
            self.waited = True
        if s.scale:
            block.before_reading([s.scale])
            with block.points(s.indices) as point:
                scale = block.converted(s.scale, s.dtype, point)
                old = block.read(s.carry, point)
                self.out.line(f"{block.element(s.name, point)} = {old} * {scale};")
        fill_left(block, block.placement.matrices[s.chunk], self.chain.packed(s))


class WholeStatements(Statements):
    """A phase's only run in a tile, which lets go of boxes with the last product that reads them:
    those of the next tile are copied while this one's results are worked on and stored.
    """

    def __init__(self, block: Block, phase: Phase, pipeline: Pipeline, boxes: set[str]) -> None:
        super().__init__(block, phase, boxes)
        before = block.kernel.phases[: block.kernel.phases.index(phase)]
        self.pipeline = pipeline
        self.done = {s.name for one in before for s in one.body}

    def statement(self, s: Statement) -> None:
        super().statement(s)
        if isinstance(s, Contract):
            self.done.add(s.name)
            self.pipeline.finish(self.done)


def hold_factors(block: Block, phase: Phase, pipeline: Pipeline) -> dict[str, str]:
    """Registers for left factors of a chain's first products that are the same for all chunks, by
    product, as far as there is room: a narrow product that reads both factors from shared memory
    waits for that memory.
    """
    chain = pipeline.chains[phase]
    held: dict[str, str] = {}
    whole = {name for ring in pipeline.whole for name in ring.boxes}
    room = pipeline.room_beside(phase)
    for n, head in enumerate(chain.heads):
        matrix = block.placement.matrices[head.name]
        assert isinstance(matrix.operation, WarpgroupOperation)
        wanted = factor_registers(block, matrix)
        narrow = matrix.operation.n <= NARROW and matrix.operation.packed == 2
        fits = narrow and matrix.left in whole and wanted <= room
        if fits and read_left(block, matrix, f"first_{n}"):
            held[head.name] = f"first_{n}"
            room -= wanted
    return held


def issue_delayed(block: Block, phase: Phase, pipeline: Pipeline) -> None:
    """Start the later products of the chunk before; what first products read too lies in the slot
    before.
    """
    chain = pipeline.chains[phase]
    own = dict(block.tiles)
    for ring in pipeline.rings[phase]:
        if ring.role == BOTH:
            block.tiles |= {name: pipeline.before(ring, name) for name in ring.boxes}
    for update in chain.delayed:
        matrix = block.placement.matrices[update.chunk]
        multiply(block, matrix, block.value(update.carry), chain.packed(update))
    block.tiles.update(own)
    block.out.line("products_commit();")


def release_delayed(phase: Phase, pipeline: Pipeline) -> None:
    """Let go of what the later products of the chunk before have read."""
    for ring in pipeline.rings[phase]:
        if ring.role in {BOTH, LATER}:
            pipeline.release(ring, behind=ring.role == BOTH)
