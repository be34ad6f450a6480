"""What a carry costs besides its elements: threads agree on what each chunk adds to it."""

import numpy as np

from eqsat.algebra import Read, Term, post_order
from eqsat.carry_terms import law_of
from eqsat.rates import Array
from eqsat.tiling import Tiling

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


def _contiguous(tiling: Tiling, term: Term) -> int:
    """The names along which neighbours lie in what a term reads."""
    names: list[str] = []
    for sub in post_order([term]):
        read = sub.args[0] if sub.op == "read" else None
        if isinstance(read, Read):
            names += [str(name) for name, stride in read.address.terms if stride == 1]
    return tiling.form.facts.universe.mask(names)
