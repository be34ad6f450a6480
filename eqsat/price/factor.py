"""What factors cost that the threads of an operation which is started have in registers.

Each group of threads has whole rows of an operation there, and each of those that share rows has
its own: what such a factor is computed of is read and computed as often. A tile too small to be
copied ahead is read where it is used, and the group waits for it.
"""

from collections.abc import Iterator

import numpy as np

from eqsat.lower.short_integers import works_in
from eqsat.price.contraction import converted, from_registers, gathered
from eqsat.price.pipeline import LOADED, STREAMED_BYTES, arranged
from eqsat.price.rates import Array, Contraction
from eqsat.price.tiling import Tiling
from eqsat.specs import ParallelOperation
from eqsat.terms.algebra import Read, Term, post_order
from eqsat.terms.form import REDUCING, SUBSTITUTED

COPIED = frozenset({"read", "gather"})


def computed_of_reads(
    found: Contraction, converted: Term | None
) -> Iterator[tuple[Term, list[Term]]]:
    """Factors that are computed of nothing but what is read, and the terms of which each is; not
    one that is `converted` by threads of their own.
    """
    for side in (found.left, found.right):
        if side is converted:
            continue
        terms = list(post_order([side]))
        reduced = any(one.op in (*SUBSTITUTED, *REDUCING) for one in terms)
        if side.op not in COPIED and not reduced:
            yield side, terms


def gather_cycles(tiling: Tiling, operation: ParallelOperation, found: Contraction) -> Array:
    """Cycles of a chunk for which a group of threads waits: for its product, to read a gathered
    factor into the registers that the product has left, and to start the next one; or for what it
    reads of a tile that is not copied ahead.
    """
    side, spec = gathered(tiling, operation, found), tiling.spec
    if side is None:
        return _unstaged(tiling, operation, found) * LOADED * tiling.pricer.cache.latency_cycles
    shared, facts = spec.memory("shared"), tiling.form.facts
    held = tiling.tile_points(facts.free(side)) * facts.dtype(side).itemsize
    read = held * spec.processors * spec.cycles_per_s / (shared.bandwidth_gb_per_s * 1e9)
    return read + shared.latency_cycles + operation.latency_cycles


def _unstaged(tiling: Tiling, operation: ParallelOperation, found: Contraction) -> Array:
    """Whether a factor is computed of what each chunk reads from memory: of several lines too short
    to be copied ahead.
    """
    facts, waits = tiling.form.facts, tiling.shape < 0
    streamed = facts.universe.mask(tiling.chunks)
    if not from_registers(operation) or not found.summed & streamed:
        return 1.0 * waits
    for _, terms in computed_of_reads(found, converted(tiling, operation, found)):
        for one in terms:
            read = one.args[0] if one.op in COPIED else None
            if isinstance(read, Read) and facts.free(one) & streamed:
                points = tiling.tile_points(facts.free(one))
                lines = points / tiling.tile_points(facts.free(one) & found.summed)
                waits = waits | ((points * read.dtype.itemsize < STREAMED_BYTES) & (lines > 1))
    return 1.0 * waits


def computed_again(
    tiling: Tiling, operation: ParallelOperation, found: Contraction
) -> Iterator[tuple[str, str, Array]]:
    """Elementwise operations on a dtype, with how many, of a factor in registers beyond those of a
    tile's points: of rows that whole operations have besides, and of groups that share rows.
    """
    if tiling.blocking is None or not operation.asynchronous or not from_registers(operation):
        return
    facts = tiling.form.facts
    for side, terms in computed_of_reads(found, converted(tiling, operation, found)):
        own = found.rows if side is found.left else found.columns
        again = times_held(tiling, operation, found, side) - 1
        for term in terms:
            mask = facts.free(term)
            if term.op not in (*COPIED, "literal", "reindex", "position") and mask & own:
                amount = tiling.points(mask) * tiling.times(mask) * again
                yield term.op, works_in(term, facts).name, amount


def times_held(
    tiling: Tiling, operation: ParallelOperation, found: Contraction, side: Term
) -> Array:
    """How many times the points of a factor's tile lie in registers: in rows that whole operations
    have besides, and for each group of threads that shares rows.
    """
    assert tiling.blocking is not None
    own, other = found.rows, found.columns
    if side is not found.left:
        own, other = other, own
    rows, columns, *_ = operation.extents.values()
    blocks = np.ceil(tiling.tile_points(own) / rows)
    beside = np.ceil(tiling.tile_points(other) / columns)
    teams = tiling.blocking.threads / tiling.spec.members(operation.supported_by, "thread")
    down, _, across = arranged(blocks, beside, teams)
    return down * across * rows / tiling.tile_points(own)
