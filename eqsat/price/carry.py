"""What a carry costs besides its elements: threads agree on what each chunk adds to it, and groups
of threads that share rows compute the weights of these each for itself.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from eqsat.price.factor import COPIED
from eqsat.price.pipeline import spread
from eqsat.price.rates import Array
from eqsat.price.tiling import Tiling
from eqsat.terms.algebra import Term, post_order, read_along
from eqsat.terms.carry_terms import law_of
from eqsat.terms.form import SUBSTITUTED, Form

AGREED = 120.0  # instructions of a thread for each row and chunk: [measured] variances, 8192 x 8192
VECTOR = 4  # elements of a row, side by side, that a thread has


def agreeing(tiling: Tiling, term: Term) -> Array:
    """Instructions, of all threads and chunks, to combine what threads have of a sum about a mean
    and to shift what was carried, which divides by counts; none until a schedule says how many
    threads there are. About an extremum it is an exponential, in time that memory leaves.
    """
    over, facts = term.args[0], tiling.form.facts
    assert isinstance(over, int)
    streamed = over & facts.universe.mask(tiling.chunks)
    about = law_of(term).pivot
    if tiling.blocking is None or not tiling.pricer.overlap or not streamed or about != "mean":
        return 0 * tiling.shape
    threads, rows = tiling.blocking.threads, tiling.tile_points(facts.free(term))
    across = np.ceil(tiling.tile_points(streamed) / VECTOR)
    if not streamed & _contiguous(tiling, term):  # threads lie along the rows' own names first
        across = np.ceil(threads * VECTOR / rows)
    beside = np.minimum(threads, across)
    each = np.maximum(rows * beside / threads, 1)
    return AGREED * each * threads * tiling.tiles_in_all() * tiling.steps()


def weights_again(tiling: Tiling) -> dict[Term, Array]:
    """How many times the elements of a tile the threads compute the terms of each chunk that lie
    beneath a factor which an operation takes from registers: whole rows of it, and the same ones in
    every group of threads that lies along the columns.
    """
    found: dict[Term, Array] = {}
    if tiling.blocking is None or not tiling.pricer.overlap:
        return found
    facts, chunks = tiling.form.facts, tiling.form.facts.universe.mask(tiling.chunks)
    for product, name in tiling.form.operations.items():
        operation = tiling.spec.operation(name)
        own, *_ = operation.extents.values()
        groups = tiling.blocking.threads / tiling.spec.members(operation.supported_by, "thread")
        for factor, other in _in_registers(tiling.form, product):
            rows = tiling.tile_points(facts.free(factor) & ~facts.free(other))
            whole, _ = spread(np.ceil(rows / own), tiling.shape, groups, rows_alone=True)
            for term in _above_products(factor):
                if facts.free(term) & chunks:
                    found[term] = np.maximum(found.get(term, 1.0), whole * own / rows)
    return found


def _above_products(value: Term) -> set[Term]:
    """The terms of a value but those beneath products: their factors are computed once."""
    found, stack = set[Term](), [value]
    while stack:
        term = stack.pop()
        if term not in found:
            found.add(term)
            stack += term.children if term.op not in SUBSTITUTED else ()
    return found


def _in_registers(made: Form, product: Term) -> Iterator[tuple[Term, Term]]:
    """The factor of a product, with the other one, of which threads hold the elements since not the
    product alone needs them; what it alone needs is computed once, into shared memory.
    """
    left, right = product.children
    if product.op == "weighted_contract":
        yield left, right
        return
    for factor, other in ((left, right), (right, left)):
        within = Counter(child for term in post_order([factor]) for child in term.children)
        within[factor] += 1
        needed = [t for t in within if made.facts.free(t) == made.facts.free(factor)]
        if made.beneath_cast(factor).op not in COPIED and any(
            made.uses[term] > within[term] for term in needed
        ):
            yield factor, other


def _contiguous(tiling: Tiling, term: Term) -> int:
    """The names along which neighbours lie in what a term reads."""
    return tiling.form.facts.universe.mask(read_along(post_order([term])))
