"""Stream-K: the tiles of a last wave that would leave most processors idle, in parts.

Blocks that stay take the tiles of all whole waves as ever, and then equal shares of the chunks that
are left, each within one tile: blocks that read the same factors stay in step, which saves the
cache most of what they ask for. The block that has a tile's first chunk stores the tile; the others
leave their sums in memory, for it to add.
Source: Osama et al., Stream-K, PPoPP 2023.
"""

from dataclasses import replace
from math import prod

from eqsat.graph.dtypes import float32, int32
from eqsat.kernel.ir import Buffer, Carry, Contract, Kernel, Phase, Update
from eqsat.specs import ParallelProcessingUnit
from eqsat.terms.algebra import SCANS, SCATTERS, WEIGHTED
from eqsat.terms.form import Form

PARTS = (2, 4)
MOST_WAVES = 10  # beyond which a last wave is little of all
ROWS = 64  # of results, to whole multiples of which threads hold them
FRAGMENT, PAIR = 8, 2  # columns of a fragment, and how many of them a thread holds


def stream_k_parts(form: Form) -> tuple[int, ...]:
    """In how many parts the last tiles may be, where what chunks give is added up, and nothing
    depends on what all of them gave but what is stored.
    """
    alone = {*WEIGHTED, *SCANS, *SCATTERS}
    plain = not any(term.op in alone for term in form.terms) and not form.stepped
    once = len({*form.phase.values()}) == 1
    stored = {name for one in form.stored for name in one.names}
    return PARTS if plain and once and not stored & {*form.reduced} else ()


def fit(tiles: int, parts: int, processors: int) -> bool:
    """Whether the tiles of a last wave in so many parts are no more than there are processors."""
    return 0 < tiles % processors * parts <= processors and tiles < MOST_WAVES * processors


def with_workspace(kernel: Kernel, spec: ParallelProcessingUnit) -> Kernel:
    """The kernel with a block for each processor, room for the sums that blocks leave for each
    other, and for what says that they are there: a number for each warp, zero before and after.
    """
    if not kernel.stream_k:
        return kernel
    each = sum(_held(kernel, phase, carry) for phase in kernel.phases for carry in phase.carries)
    blocks, warps = spec.processors, kernel.threads // spec.members("warp", "thread")
    shares = kernel.tiles % blocks * kernel.stream_k
    sums = Buffer(f"{kernel.name}_sums{shares}_{each}", (shares, each), float32, "temporary")
    given = Buffer(f"{kernel.name}_given{shares}_{warps}", (shares, warps), int32, "zeroed")
    return replace(kernel, buffers=(*kernel.buffers, sums, given), blocks=blocks)


def _held(kernel: Kernel, phase: Phase, carry: Carry) -> int:
    """Sums of a carry that threads hold: whole fragments along the names of its rows, and of its
    columns, of which each has a power of two of points where they are several. Of one beside a
    product, along its rows or columns alone, threads that have others of these hold the same.
    """
    axes, own = kernel.axes(), {s.name: s for s in kernel.statements()}
    added = (own[s.chunk] for s in phase.body if isinstance(s, Update) and s.carry == carry.name)
    product = next((s for s in added if isinstance(s, Contract)), None)
    if product is None:
        points = prod(min(axes[i].tile, axes[i].extent) for i in carry.indices)
        return kernel.threads * PAIR * -(-points // FRAGMENT)
    sides = [own[name].indices for name in (product.left, product.right)]
    alone = [tuple(i for i in carry.indices if i not in side) for side in sides]
    rest = [(i,) for i in carry.indices if not any(i in group for group in alone)]
    total = 1
    for group in (*alone, *rest):
        tiles = [min(axes[i].tile, axes[i].extent) for i in group]
        each = [1 << (tile - 1).bit_length() if len(tiles) > 1 else tile for tile in tiles]
        total *= -(-prod(each) // ROWS) * ROWS if prod(tiles) > 1 else 1
    return total
