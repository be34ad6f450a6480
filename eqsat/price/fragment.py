"""What it takes groups of threads to read the fragments of factors that they multiply and wait for.

A warp reads matrices of 8 rows of 16 bytes at once where they lie along the sum; of 16-bit factors
also where they lie across it. Of others it reads single elements.
"""

import numpy as np
from numpy.typing import NDArray

from eqsat.layout.window_factors import window_places
from eqsat.price.contraction import rows_stay
from eqsat.price.pipeline import arrangements
from eqsat.price.rates import Array, Contraction
from eqsat.price.tiling import Tiling
from eqsat.specs import ParallelOperation
from eqsat.terms.algebra import Read, Term

WORD = 4  # bytes that a bank holds: a lane's element takes one, however narrow it is
STEP_BYTES = 32  # of a factor's row that operations sum over at once
CONFLICTS = 4  # lanes at one bank, of rows that neither a sum nor rows or columns lie along
GATHERED = 256  # bytes for an element of which terms are made where it is gathered, none ahead
TURNED = 2  # bytes of the elements of a matrix that is read across


def fragment_seconds(
    tiling: Tiling, operation: ParallelOperation, found: Contraction, work: Array
) -> Array:
    """Seconds in which groups of threads that wait for their products read factors from shared
    memory: each its own rows and columns, which others read too.
    """
    waiting = tiling.pricer.overlap and all(operation.extents.values())
    if operation.asynchronous or not waiting or tiling.blocking is None:
        return 0 * tiling.shape
    teams = tiling.blocking.threads / tiling.spec.members(operation.supported_by, "thread")
    held = found.term.op == "weighted_contract"  # the weights are in registers
    alone = rows_stay(tiling.form)
    sides = [
        _read_again(tiling, side, found, own) * work / tiling.tile_points(other)
        for side, own, other in (
            (found.left, found.rows, found.columns),
            (found.right, found.columns, found.rows),
        )
    ]
    whole_steps = _beyond_sum(tiling, operation, found)
    least = np.full_like(tiling.shape, np.inf)
    for along, across, whole in arrangements(teams):
        read = sides[0] * across * (not held) + sides[1] * along
        fits = whole & ((across == 1) | (not alone))
        least = np.where(fits, np.minimum(least, read), least)
    return least * whole_steps / (tiling.spec.memory("shared").bandwidth_gb_per_s * 1e9)


def _beyond_sum(tiling: Tiling, operation: ParallelOperation, found: Contraction) -> Array:
    """How many times the points of a sum its operations take, whole ones, along the longest of its
    names that number no places in windows.
    """
    own = found.summed & ~window_places(tiling.form, (found.left, found.right))
    longest = tiling.longest(own or found.summed)
    *_, depth = operation.extents.values()
    return np.ceil(longest / depth) * depth / longest


def _read_again(tiling: Tiling, side: Term, found: Contraction, own: int) -> Array:
    """Bytes that the banks spend on an element of a factor whose own names are these."""
    made, size = tiling.form, tiling.form.facts.dtype(side).itemsize
    beneath = made.beneath_cast(side)
    read, members = beneath.args[0], made.facts.universe.members
    if beneath.op == "gather" and found.term.op == "narrow_contract":
        return GATHERED * tiling.shape
    if beneath.op != "read" or not isinstance(read, Read):
        return size * tiling.shape  # it is written as the operation reads it
    unit = _lying_together(tiling, side)
    if any(name in members(own) for name in unit):
        return tiling.shape * (size if size == TURNED else max(size, WORD))
    inside = _inside_operation(tiling, found)
    lies = np.any([inside[name] for name in unit if name in inside], axis=0)
    return np.where(lies, size, CONFLICTS * max(size, WORD))


def _lying_together(tiling: Tiling, side: Term) -> list[str]:
    """The names by whose least step memory is walked: they lie together in a tile."""
    read = tiling.form.beneath_cast(side).args[0]
    steps = {
        atom: abs(step)
        for atom, step in (read.address.terms if isinstance(read, Read) else ())
        if isinstance(atom, str) and tiling.form.extents.get(atom, 1) > 1
    }
    least = min(steps.values(), default=0)
    return [name for name, step in steps.items() if step == least]


def _inside_operation(tiling: Tiling, found: Contraction) -> dict[str, NDArray[np.bool_]]:
    """By name of a sum, where operations take its points at once: the longest of the names along
    which most factors lie together, as much as an operation takes.
    """
    facts = tiling.form.facts
    names = facts.universe.members(found.summed)
    points = [tiling.tile_points(facts.universe.mask([name])) for name in names]
    ranks = [1.0 * one for one in points]
    for side in (found.left, found.right):
        unit, size = _lying_together(tiling, side), facts.dtype(side).itemsize
        for place, name in enumerate(names):
            enough = (points[place] * size >= STEP_BYTES) & (name in unit)
            ranks[place] = ranks[place] + enough * max(tiling.form.extents.values())
    first = np.argmax(ranks, axis=0)
    return {name: first == place for place, name in enumerate(names)}


def chain_cycles(tiling: Tiling) -> Array | float:
    """Cycles for which operations that are waited for add to the same sums of a tile, one after the
    other.
    """
    cycles = 0.0
    for term, name in tiling.form.operations.items():
        one, over = tiling.spec.operation(name), term.args[0]
        assert isinstance(over, int)
        if not one.asynchronous and any(one.extents.values()):
            *_, depth = one.extents.values()
            cycles += np.ceil(tiling.points(over) / depth) * one.latency_cycles
    return cycles
