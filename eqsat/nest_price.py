"""What loop nests of a CPU cost besides arithmetic and what is read and written once: copies of
factors, tests of guards, and rows that no cache holds from one of their passes to the next.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from eqsat.algebra import Read, Term
from eqsat.form import Form, passes
from eqsat.rates import Array, Contraction
from eqsat.tiling import Tiling

LOOP = 12.0  # cycles in which a CPU begins a loop
ACROSS = 40.0  # in which it sums what lies across the lanes of a vector, and goes on
ROWS = 4  # that it walks side by side: more lie in the same lines of the nearest cache
TESTED = 2  # selections in the time of a read that may have to be left out


def rearranged(tiling: Tiling, found: Contraction) -> Iterator[Term]:
    """The factors that are written to fast memory before they are multiplied: what is computed, and
    of a CPU also what does not lie in memory as the rows of a matrix.
    """
    for side, rows in ((found.left, found.rows), (found.right, found.columns)):
        read = side.args[0] if side.op == "read" else None
        if not isinstance(read, Read) or tiling.pricer.overlap:
            if side.op not in {"read", "gather", "literal"}:
                yield side
        elif not _is_matrix(read, rows, found.summed, tiling.form):
            yield side


def _is_matrix(read: Read, rows: int, summed: int, made: Form) -> bool:
    """Whether rows or columns of a matrix lie as such in memory, the summed names as one."""
    strides = {str(atom): abs(stride) for atom, stride in read.address.terms}
    if read.guards or not strides.keys() <= made.extents.keys():
        return False
    kept, along = (
        sorted((n for n in made.facts.universe.members(mask) if n in strides), key=strides.get)
        for mask in (rows, summed)
    )
    one = all(strides[b] == strides[a] * made.extents[a] for a, b in pairwise(along))
    return one and 1 in {strides[names[0]] for names in (kept, along) if names}


def loop_seconds(tiling: Tiling, side: Term) -> Array:
    """Seconds in which a CPU begins the innermost loops that copy what it reads of a factor to fast
    memory: each along the longest name whose neighbours are beside each other where they lie.
    """
    read = side.args[0] if side.op == "read" else None
    if not isinstance(read, Read) or tiling.pricer.overlap:
        return 0 * tiling.shape
    longest = tiling.shape
    for atom, stride in read.address.terms:
        if abs(stride) == 1 and str(atom) in tiling.form.extents:
            along = tiling.tile_points(tiling.form.facts.universe.mask([str(atom)]))
            longest = np.maximum(longest, along)
    mask = tiling.form.facts.free(side)
    rows = tiling.points(mask) * tiling.times(mask) / longest
    return rows * LOOP / (tiling.spec.cycles_per_s * tiling.spec.processors)


def across_lanes(tiling: Tiling, found: Contraction) -> float:
    """Seconds a multiply-add in which a CPU sums the lanes of vectors: where both factors lie in
    memory along a summed name, each result is a sum along it.
    """
    along: list[set[str]] = []
    for side in (found.left, found.right):
        read = side.args[0] if side.op == "read" else None
        terms = read.address.terms if isinstance(read, Read) else ()
        along.append({str(atom) for atom, stride in terms if stride == 1})
    extents = tiling.form.extents
    summed = along[0] & along[1] & {*tiling.form.facts.universe.members(found.summed)}
    longest = max((extents[name] for name in summed), default=0)
    cycles = ACROSS / longest if longest else 0.0
    return cycles / (tiling.spec.cycles_per_s * tiling.spec.processors)


def tests(tiling: Tiling, mask: int) -> Array:
    """Selections in the time that a CPU takes to test the guards of a read at points of `mask`."""
    return TESTED * tiling.points(mask) * tiling.times(mask)


def fetched_again(tiling: Tiling, term: Term, mask: int) -> Array:
    """How many times more memory gives what is read over `mask` than a nest that passes over it
    once: rows that are longer than a cache holds are gone when the next pass begins, and lines of
    rows that a recurrence walks side by side, when there are many, at its next step.
    """
    if tiling.pricer.overlap:
        return tiling.shape
    made = tiling.form
    reduced = made.facts.universe.mask(made.reduced)
    size = made.facts.dtype(term).itemsize
    far = tiling.tile_points(mask & reduced) * size > tiling.pricer.cache.size_bytes / 2
    again = tiling.shape
    if far.any():
        again = np.where(far, passes(made, reduced).get(term, 1), 1)
    if made.stepped in tiling.chunks and _is_beside(term, made.stepped):
        rows = tiling.tile_points(mask & ~made.steps.along)
        line = tiling.pricer.cache.access_granularity_bytes
        again = np.where(rows > ROWS, np.maximum(again, line / size), again)
    return again


def _is_beside(term: Term, name: str) -> bool:
    """Whether a read's neighbours along a name lie beside each other in memory."""
    read = term.args[0]
    return isinstance(read, Read) and any(
        str(atom) == name and abs(stride) == 1 for atom, stride in read.address.terms
    )
