"""What sums cost beside products: those of rows and of columns over the name that a product sums.

Fragments of a product lay its rows and columns over all threads of a block. Where both are summed
up besides, no threads are left for the summed name: each adds up whole rows or columns, and those
that share one do so again.
"""

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from eqsat.graph.ops import OPS
from eqsat.layout.coalesce import BINDING
from eqsat.lower.short_integers import works_in
from eqsat.price.rates import Array, Contraction
from eqsat.price.row import summed_across
from eqsat.price.tiling import Tiling
from eqsat.terms.algebra import REDUCTIONS, WEIGHTED, Term, post_order
from eqsat.terms.form import REDUCING, SUBSTITUTED

WORD = 4  # bytes that a thread loads of an element
LANES = 4  # of a warp, along the columns of a fragment
WARP, WARPGROUP = 32, 128
ROWS = 16  # of a fragment that a warp has
REREAD = 0.35  # part of the cache's rate at which threads read between products (norms of k-means)


def added_again(tiling: Tiling, term: Term, work: Array) -> Array:
    """How many threads add up each of so many elements of a sum, and what they do to join theirs.
    What each loads and computes of them for itself is charged.
    """
    again = tiling.shape
    products = _crossed(tiling, term) if tiling.pricer.overlap else ()
    for product in products:
        again = np.maximum(again, _sharers(tiling, product, term))
    if again.max() > 1:
        facts, own = tiling.form.facts, tiling.form.facts.free(term.children[0])
        word = WORD / (tiling.spec.memory("shared").sustained_gb_per_s * 1e9)
        for part in post_order(term.children):
            if part.op == "read":
                tiling.charge("loads", work * (again - 1) * word)
            elif part.op in OPS.keys() - BINDING and facts.free(part) == own:
                for unit, seconds in tiling.pricer.rates(part.op, works_in(part, facts).name):
                    tiling.charge(unit, work * (again - 1) * seconds)
    return again * summed_across(tiling, term)


def _sharers(tiling: Tiling, product: Contraction, term: Term) -> Array:
    """The threads that have the same row of a product, or the same column; before threads are
    chosen those of a warpgroup.
    """
    is_row = bool(tiling.form.facts.free(term) & product.rows)
    if tiling.blocking is None:
        return tiling.shape * (LANES if is_row else WARPGROUP / LANES)
    operation = tiling.spec.operation(str(product.term.args[3]))
    teams, rows = tiling.blocking.threads // WARP, ROWS
    if operation.asynchronous:
        teams, rows = tiling.blocking.threads // WARPGROUP, ROWS * WARPGROUP // WARP
    teams = np.maximum(teams, 1)
    along = np.minimum(teams, np.ceil(tiling.tile_points(product.rows) / rows))
    of_row = LANES * np.maximum(teams // along, 1)
    return of_row if is_row else tiling.blocking.threads / of_row


def _crossed(tiling: Tiling, term: Term) -> Iterator[Contraction]:
    """The products by operations of which one side is summed up by a term, and the other side by
    another.
    """
    form, facts = tiling.form, tiling.form.facts
    sums = [t for t in form.computed if t.op in REDUCING]
    for one in form.computed:
        by_operation = one.op in SUBSTITUTED and bool(one.args[3])
        found = None
        if by_operation if tiling.blocking is not None else one.op in REDUCING:
            found = tiling.pricer.contraction(form, one)
        if found is None or not found.rows or not found.columns:
            continue
        sides: set[int] = set()
        own = 0
        for t in sums:
            assert isinstance(t.args[0], int)
            side = facts.free(t) & (found.rows | found.columns)
            if t.args[0] & found.summed and side in (found.rows, found.columns):
                sides.add(side)
                own = side if t == term else own
        if own and len(sides) > 1:
            yield found


def reread_seconds(
    tiling: Tiling, products: Collection[Term], copied: Mapping[Term, Array], read: set[Term]
) -> Array:
    """Seconds in which threads read what a tile reduces besides `products`, of bytes `copied` for
    all tiles; what has been `read` is at hand.
    """
    met = {*read}
    drawn = 0 * tiling.shape
    for term in tiling.form.computed:
        sums = term.op in (*REDUCTIONS, "contract") and term not in products
        if term.op in WEIGHTED and term.children[1].op == "literal":  # a variance, say
            sums = {*products}.isdisjoint(post_order(term.children))
        waiting = [*term.children] if sums else []
        while waiting:
            one = waiting.pop()
            if one not in met and one not in products:
                met.add(one)
                drawn = drawn + copied.get(one, 0.0)
                waiting += one.children
    return drawn / (REREAD * tiling.pricer.cache.bandwidth_gb_per_s * 1e9)


def at_hand(products: Collection[Term]) -> set[Term]:
    """What products read, but not what sums below them do."""
    met, waiting = set[Term](), [*products]
    while waiting:
        one = waiting.pop()
        if one not in met and (one in products or one.op not in REDUCTIONS):
            met.add(one)
            waiting += one.children
    return met
