"""What stepping along a scan costs: latency of each step, and how much work hides it."""

import numpy as np
from numpy.typing import NDArray

from eqsat.price.rates import Array
from eqsat.price.tiling import Tiling
from eqsat.terms.algebra import SCANS
from eqsat.terms.form import Form
from eqsat.terms.scans import AHEAD_BYTES, most_ahead, state_names

MOST_INDEPENDENT = 4  # states of a thread that are worked on at a time, beyond which none helps
WORD = 4  # bytes of the shortest copy
STEP_CHAIN = 2  # operations from one state to the next, and to what a step stores


def is_stuck(form: Form) -> bool:
    """Whether no kernel computes the form: recurrences along several names, or along one that a
    loop of its own binds; or a scan of which another point than the step at hand is read.
    """
    return form.steps.stuck or any(term.op == "reindex" for term in form.terms)


def step_cycles(tiling: Tiling) -> Array:
    """Cycles of one step that its own chain takes: what is read was asked for steps before."""
    spec = tiling.spec
    reads = tiling.pricer.dram.latency_cycles / _steps_ahead(tiling)
    dtype = next(tiling.form.facts.dtype(t).name for t in tiling.form.terms if t.op in SCANS)
    rows = spec.elementwise("add", dtype)
    chain = STEP_CHAIN * max((row.latency_cycles for row, _ in rows), default=0.0)
    return tiling.shape * (reads + chain)


def _steps_ahead(tiling: Tiling) -> Array:
    """For how many steps a thread's registers hold what is read; of elements shorter than a word,
    which no copy moves by themselves, fewer are under way.
    """
    assert tiling.blocking is not None
    form, held = tiling.form, 0 * tiling.shape
    most = most_ahead(form.extents[form.stepped]) * tiling.shape
    for term in form.terms:
        own = form.facts.free(term)
        if term.op in {"read", "gather"} and own & form.steps.along:
            points = np.ceil(tiling.tile_points(own) / tiling.blocking.threads)
            dtype = form.facts.dtype(term)
            held = held + points * dtype.compute.itemsize
            most = np.where(points * dtype.itemsize < WORD, most / 2, most)
    return np.clip(AHEAD_BYTES / np.maximum(held, 1), 1, most)


def redone(tiling: Tiling, mask: int) -> Array:
    """How many threads compute a value of a step, each for itself: those that share the states
    which the step sums up.
    """
    form, facts = tiling.form, tiling.form.facts
    if tiling.blocking is None or form.stepped not in tiling.chunks or not mask & form.steps.along:
        return tiling.shape
    each = np.maximum(tiling.tile_points(_states(form)) / tiling.blocking.threads, 1)
    summed = facts.universe.mask(form.nested) | facts.universe.mask(form.held)
    points = tiling.tile_points(_states(form) & summed & ~mask)
    return points / np.minimum(each, points)


def idle(tiling: Tiling) -> NDArray[np.bool_]:
    """Where a step has fewer points than threads: warps beyond them repeat what others ask for."""
    form, facts = tiling.form, tiling.form.facts
    alone = form.stepped in tiling.chunks and not any(map(form.met, form.terms))
    if tiling.blocking is None or not tiling.pricer.overlap or not alone:
        return tiling.shape < 0
    points = [tiling.tile_points(facts.free(t) & ~form.steps.along) for t in form.terms]
    warp = tiling.spec.members("warp", "thread")
    return tiling.blocking.threads > np.maximum(np.max(points, axis=0), warp)


def _states(form: Form) -> int:
    """The names of the states that a tile carries."""
    return state_names(form.terms, form.facts) & ~form.steps.along


def at_work(tiling: Tiling) -> Array:
    """Threads of a tile that hide each other's latency; where it steps, states, of which a thread
    works on some side by side.
    """
    assert tiling.blocking is not None
    if tiling.form.stepped not in tiling.chunks:
        return tiling.blocking.threads
    most = tiling.blocking.threads * MOST_INDEPENDENT
    return np.minimum(tiling.tile_points(_states(tiling.form)), most)
