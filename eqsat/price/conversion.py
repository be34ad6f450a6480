"""What factors cost that threads of their own convert, from copied tiles into shared memory.

An operation that is started takes one factor from registers at the most. Another one that is
computed, of the elements of a cache of 8 bits say, is made by a group of threads that multiplies
nothing, while others do: the time of its instructions is the kernel's where they take longest.
"""

from collections.abc import Mapping

import numpy as np

from eqsat.lower.short_integers import works_in
from eqsat.price.contraction import converted
from eqsat.price.issue import ISSUED, instruction_seconds
from eqsat.price.rates import Array, Contraction
from eqsat.price.tiling import Tiling
from eqsat.terms.algebra import Term, post_order
from eqsat.terms.form import WEIGHTED

FREE = frozenset({"read", "literal"})
EACH = 3.5  # instructions of an element: to widen it, to pack it, and of a vector's load and store
HANDED_OVER = 3  # slots of what is made, at most: in the making, of a chunk, of that before
CONTENDED = 0.75  # part of products' time for which they keep shared memory from who converts
GROUPS, CONVERTING = 2, 128  # groups of threads, each of which makes every other tile
TILE_CYCLES = 750.0  # of a group for each tile besides: it waits, reads, and tells who multiplies


def slots_made(stages: Array, factors: int) -> Array:
    """Slots of shared memory for each factor that is made, of so many in a chunk. Of an even number
    each group makes its own; of others every other tile, so that it needs its own slots too.
    """
    if factors % GROUPS == 0:
        return np.minimum(stages, HANDED_OVER)
    return np.where(stages < 2 * GROUPS, np.minimum(stages, GROUPS), 2 * GROUPS)


def conversions(tiling: Tiling) -> Mapping[Term, Term]:
    """The converted factors of a tile's products."""
    found: dict[Term, Term] = {}
    for product, name in tiling.form.operations.items() if tiling.blocking is not None else ():
        factors = tiling.form.contraction(product) or product.children
        if product.op in WEIGHTED:
            factors = (product.children[0], tiling.form.beneath_cast(product.children[1]))
        contraction = Contraction(product, *factors, 0, 0, 0, 0)
        side = converted(tiling, tiling.spec.operation(name), contraction)
        if side is not None:
            found[product] = side
    return found


def widened(tiling: Tiling) -> frozenset[Term]:
    """Casts of elements of 8 bits on the way to factors of products, before a schedule says who
    computes them: where a spec has operations that are started, threads of their own may.
    """
    if tiling.blocking is not None:
        return frozenset()
    form, dtype, every = tiling.form, tiling.form.facts.dtype, tiling.spec.operations
    read = (t for t in form.terms if t.op == "read")
    short = {t for t in read if dtype(t).itemsize == 1 and dtype(t).kind != "bool"}
    started = (o.asynchronous and o.semantics and o.semantics.contraction for o in every)
    if not short or not any(started):
        return frozenset()
    factors = [side for term in form.terms for side in form.met(term) or ()]
    return frozenset(t for t in post_order(factors) if t.op == "cast" and t.children[0] in short)


def made_of(side: Term) -> list[Term]:
    """The terms that are computed on the way to a factor, itself last."""
    return [term for term in post_order([side]) if term.op not in FREE]


def conversion_bytes(tiling: Tiling, side: Term) -> tuple[Array, Array]:
    """Bytes of shared memory that a slot has for a factor's tile, and for the tile that is copied
    for it.
    """
    facts = tiling.form.facts
    points = tiling.tile_points(facts.free(side))
    reads = (t for t in post_order([side]) if t.op == "read")
    source = next(t for t in reads if facts.free(t) == facts.free(side))
    return points * facts.dtype(side).itemsize, points * facts.dtype(source).itemsize


def conversion_seconds(tiling: Tiling, side: Term) -> Array:
    """Seconds in which the converting threads of all processors make a factor: vectors are widened
    and packed whatever casts say so.
    """
    spec, facts, mask = tiling.spec, tiling.form.facts, tiling.form.facts.free(side)
    each = EACH
    for term in made_of(side):
        if facts.free(term) == mask and term.op != "cast":
            rates = tiling.pricer.rates(term.op, works_in(term, facts).name)
            issued = sum(seconds for unit, seconds in rates if unit == ISSUED)
            each += issued / instruction_seconds(spec)
    points = tiling.tile_points(mask)
    cycles = TILE_CYCLES + each * points / CONVERTING
    tiles = tiling.points(mask) * tiling.times(mask) / points
    return tiles * cycles / (GROUPS * spec.processors * spec.cycles_per_s)
