"""What threads hand each other in each chunk of products, beside these.

Of an operation that is started, a thread has a few of a result's rows and a share of its columns.
What is summed for columns alone, such as the squares of a factor, is summed by all threads, and
every thread needs the sums of its columns: through shuffles, then through shared memory, where all
of them wait.
"""

from collections.abc import Collection

from eqsat.price.rates import Array
from eqsat.price.tiling import Tiling
from eqsat.terms.algebra import REDUCTIONS, Term

SHARING = 4  # threads of a warp that have other columns each, the same in all of its rows
BATCH = 8  # values of each thread between two barriers
TEAMS = 2  # that take turns at operations which run on, until a schedule says how many


def exchange_cycles(tiling: Tiling, absorbed: Collection[Term]) -> Array:
    """Cycles of a chunk in which threads exchange sums for the columns of products, and read what
    these are of.
    """
    made, facts, spec = tiling.form, tiling.form.facts, tiling.spec
    streamed = facts.universe.mask(tiling.chunks)
    cycles = 0 * tiling.shape
    sums = [t for t in made.terms if t.op in REDUCTIONS and t not in absorbed]
    sums = [t for t in sums if facts.free(t) & streamed and tiling.factors(t) is None]
    if not sums:
        return cycles
    columns, rows = _sides(tiling, facts.universe.mask(made.reduced) & streamed)
    lanes = spec.members("warp", "thread")
    threads = TEAMS * spec.members("warpgroup", "thread") * tiling.shape
    warps = (threads if tiling.blocking is None else tiling.blocking.threads) / lanes
    barrier = spec.group(spec.tile_group).barrier_latency_cycles
    for term in sums:
        own = facts.free(term)
        if own & columns and not own & rows:
            each = tiling.tile_points(own) / SHARING
            steps = (lanes // SHARING).bit_length() - 1
            cycles = cycles + each * (steps + 1 + warps) * warps + 2 * each / BATCH * barrier
            cycles = cycles + tiling.tile_points(own | term.args[0]) / lanes  # type: ignore[operator]
    return cycles


def _sides(tiling: Tiling, reduced: int) -> tuple[int, int]:
    """The columns of products, of which some are reduced later, and their rows."""
    columns = rows = 0
    for term in tiling.form.terms:
        found = tiling.pricer.contraction(tiling.form, term)
        sides = (found.rows, found.columns) if found else (0, 0)
        for side, other in (sides, sides[::-1]):
            if side & reduced:
                columns, rows = columns | side & reduced, rows | other
    return columns, rows
