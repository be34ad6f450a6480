"""What a float32 factor costs that groups of threads split into terms as they read it, of a product
of which the other factor was split beforehand.
"""

from collections.abc import Iterator

from eqsat.layout.needs import WIDE
from eqsat.price.factor import times_held
from eqsat.price.narrow import is_joined
from eqsat.price.rates import Array, Contraction
from eqsat.price.tiling import Tiling
from eqsat.specs import ParallelOperation
from eqsat.terms.algebra import Term
from eqsat.terms.form import Form

EACH = 7.0  # instructions of an element: to read it, to cut and pack each term
TERM_BYTES = 2
UNDER_WAY = 2  # steps of an operation whose terms registers hold


def split_factor(made: Form, found: Contraction) -> Term | None:
    """The factor of a product that is split where it is read, if one is."""
    if not is_joined(found.term):
        return None
    sides = (found.left, found.right)
    return next((side for side in sides if made.facts.dtype(side).name == WIDE), None)


def term_bytes(tiling: Tiling, operation: ParallelOperation, found: Contraction) -> Array:
    """Registers of all threads that hold terms of such a factor, of the steps under way."""
    side, terms = split_factor(tiling.form, found), found.term.args[5]
    assert isinstance(terms, int)
    if side is None:
        return 0 * tiling.shape
    *_, step = operation.extents.values()
    own = found.rows if side is found.left else found.columns
    return TERM_BYTES * terms * UNDER_WAY * step * tiling.tile_points(own)


def splitting(
    tiling: Tiling, operation: ParallelOperation, found: Contraction
) -> Iterator[tuple[str, str, Array]]:
    """Elementwise operations on a dtype, with how many: each group of threads that shares rows
    splits them by itself.
    """
    side = split_factor(tiling.form, found)
    if side is None or tiling.blocking is None:
        return
    mask = tiling.form.facts.free(side)
    points = tiling.points(mask) * tiling.times(mask)
    yield "sub", WIDE, EACH * points * times_held(tiling, operation, found, side)


def splitting_cycles(tiling: Tiling, found: Contraction) -> Array:
    """Cycles of a chunk for which a group of threads waits for the terms."""
    side = split_factor(tiling.form, found)
    if side is None or tiling.blocking is None:
        return 0 * tiling.shape
    points = tiling.tile_points(tiling.form.facts.free(side))
    return EACH * points / tiling.blocking.threads + tiling.spec.memory("shared").latency_cycles
