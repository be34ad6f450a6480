"""How far the asynchronous products of one chunk of a stream may reach into the next chunk."""

from collections.abc import Collection
from dataclasses import dataclass

from eqsat.kernel.ir import Contract, Phase, Update

from ..place.block import Block
from ..place.placement import SHARED, Matrix, Placement
from ..place.warpgroup_operations import WarpgroupOperation
from .warpgroup import factor_registers

HEADS, BOTH, BESIDE, LATER = "heads", "both", "beside", "later"  # which products read a box


@dataclass(frozen=True)
class Chain:
    """The first products of a phase, and the updates that take later ones into carries.

    The factors of the first ones are copied; a later one's left factor is computed and its right
    one copied. So it is with attention: one product comes first, in its gradients two.
    """

    heads: tuple[Contract, ...]
    delayed: tuple[Update, ...]

    def packed(self, update: Update) -> str:
        """The registers that hold a later product's left factor."""
        return f"packed_{self.delayed.index(update)}"


def find_chain(block: Block, phase: Phase, boxes: Collection[str]) -> Chain | None:
    """The chain that the products of a stream make, if they do; `boxes` are copied ahead."""
    placement = block.placement
    updates = {s.chunk: s for s in phase.body if isinstance(s, Update)}
    heads: list[Contract] = []
    delayed: list[Update] = []
    for s in phase.body:
        matrix = placement.matrices.get(s.name)
        if matrix is None:
            continue
        if not isinstance(matrix.operation, WarpgroupOperation) or matrix.partial:
            return None
        update = updates.get(s.name)
        if update is None or placement.users[s.name] != (update.name,):
            heads.append(matrix.contract)
        elif matrix.right in boxes and placement.where[matrix.left] != SHARED:
            delayed.append(update)
        else:
            return None
    if not heads or not delayed:
        return None
    if any(placement.users[u.name] or u.monoid != "sum" for u in delayed):
        return None
    first = [placement.matrices[head.name] for head in heads]
    factors = [name for m in first for name in (m.left, m.right)]
    ahead = all(placement.where[name] == SHARED or name in boxes for name in factors)
    return Chain(tuple(heads), tuple(delayed)) if ahead else None


def by_role(block: Block, chain: Chain, boxes: Collection[str]) -> dict[str, list[str]]:
    """Boxes by which products of a chain read them."""
    heads = {name for head in chain.heads for name in (head.left, head.right)}
    delayed = {block.placement.matrices[u.chunk].right for u in chain.delayed}
    found: dict[str, list[str]] = {HEADS: [], BOTH: [], BESIDE: [], LATER: []}
    for name in boxes:
        own = HEADS if name in heads else BESIDE
        found[(BOTH if name in heads else LATER) if name in delayed else own].append(name)
    return {role: names for role, names in found.items() if names}


def chain_registers(block: Block, phase: Phase, chain: Chain) -> int:
    """Registers of a thread for carries, what the first products leave, and the left factors of
    the later ones.
    """
    held = sum(block.register_count(one.indices) for one in (*phase.carries, *chain.heads))
    later = (block.placement.matrices[update.chunk] for update in chain.delayed)
    return held + sum(factor_registers(block, matrix) for matrix in later)


def is_lagging(block: Block, phase: Phase) -> bool:
    """Whether a chunk's products may still run while the next chunk's begin: all of them go
    straight into carries that nothing else of a chunk reads. Partial sums, and products of terms,
    are waited for and added up.
    """
    updates = {s.chunk: s for s in phase.body if isinstance(s, Update)}
    users = block.placement.users
    for s in phase.body:
        if isinstance(s, Contract) and s.name in block.placement.matrices:
            update = updates.get(s.name)
            if block.placement.matrices[s.name].partial or s.term_index:
                return False
            if update is None or update.scale or users[s.name] != (update.name,):
                return False
            if users[update.name]:
                return False
    return bool(phase.stream)


def holds_factor(block: Block, phase: Phase) -> bool:
    """Whether a product of the phase reads its left factor from registers."""
    matrices = block.placement.matrices
    found = [matrices[s.name] for s in phase.body if s.name in matrices]
    return any(in_registers(block.placement, m) for m in found)


def in_registers(placement: Placement, matrix: Matrix) -> bool:
    """Whether a product's left factor is read from registers: computed there, or gathered."""
    return placement.where[matrix.left] != SHARED or matrix.gathered or matrix.split
