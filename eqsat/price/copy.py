"""What copies of factors of products to shared memory cost where they are not of whole vectors."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from eqsat.graph.index import unit_names
from eqsat.layout.needs import VECTOR_BYTES
from eqsat.layout.pixels import pixel_axes
from eqsat.layout.relayout import WalkedAxis, walked_axes, window_rows
from eqsat.price.drawn import Drawn
from eqsat.price.issue import STAGED_WORK
from eqsat.price.rates import Array, Contraction, power_above
from eqsat.price.tiling import LANES, Tiling
from eqsat.specs import ParallelOperation
from eqsat.terms.algebra import Read, Term
from eqsat.terms.form import Form

LINES = 2  # rows of few lanes, each in a line of its own, that such a pass reads or writes
WAVE_WORK = 4  # instructions in the time of such a pass of a warp


def is_sliding(side: Term, made: Form) -> bool:
    """Whether windows slide along what is contiguous of a factor: copies take single elements."""
    beneath = made.beneath_cast(side)
    read = beneath.args[0] if beneath.op == "read" else None
    axes = pixel_axes(read, made.extents) if isinstance(read, Read) else None
    return bool(axes) and axes[-1].slides


def one_by_one(tiling: Tiling, side: Term) -> bool:
    """Whether copies take single elements of a factor, each where a window has it: where windows
    slide along what is contiguous, or fewer than make a word lie together.
    """
    made, word = tiling.form, tiling.spec.memory("shared").access_granularity_bytes
    beneath = made.beneath_cast(side)
    read = beneath.args[0] if beneath.op == "read" else None
    if is_sliding(side, made) or not isinstance(read, Read) or read.dtype.itemsize >= word:
        return is_sliding(side, made)
    return not _in_words(tiling, read) and is_windowed(read, made)


def is_windowed(read: Read, made: Form) -> bool:
    """Whether a read may walk overlapping windows: its axes do, or are not told."""
    axes = pixel_axes(read, made.extents)
    return axes is None or any(axis.slides for axis in axes)


def _in_words(tiling: Tiling, read: Read) -> bool:
    """Whether elements that make a word of shared memory lie together wherever they are read."""
    word = tiling.spec.memory("shared").access_granularity_bytes
    return _together(read, tiling.form.extents) >= max(word // read.dtype.itemsize, 1)


def vectors(tiling: Tiling, side: Term, copied: Array) -> Array:
    """Copies that take so many bytes of a factor, whole vectors but for rows that begin anywhere.
    Beside windows elements are counted by `copied_alone`.
    """
    made, read = tiling.form, tiling.form.beneath_cast(side).args[0]
    if not isinstance(read, Read) or read.extent or _has_windows(made, made.operands()):
        return copied / VECTOR_BYTES
    together = max(_together(read, made.extents), 1) * read.dtype.itemsize
    return copied / min(together, VECTOR_BYTES)


def _has_windows(made: Form, sides: Iterable[Term]) -> bool:
    """Whether some factors may walk overlapping windows."""
    reads = (one.args[0] for one in map(made.beneath_cast, sides))
    return any(isinstance(one, Read) and is_windowed(one, made) for one in reads)


def is_waited_for(tiling: Tiling, side: Term) -> bool:
    """Whether threads wait for what they copy of a factor's rows: no copy that runs on by itself is
    that narrow. Those of windows are priced one by one.
    """
    read = tiling.form.beneath_cast(side).args[0]
    rows = isinstance(read, Read) and not read.extent and not is_windowed(read, tiling.form)
    return rows and not _in_words(tiling, read)


def _together(read: Read, extents: Mapping[str, int]) -> int:
    """Elements that one copy may take, as they lie together wherever they are read: a power of two
    that their number, every step and the place where a read begins are multiples of; 0 where more
    than one name or none walks memory element by element.
    """
    steps = [(atom, step) for atom, step in read.address.terms if extents.get(str(atom), 2) > 1]
    inner = [extents[str(atom)] for atom, step in steps if step == 1 and str(atom) in extents]
    others = [step for _, step in steps if step != 1]
    common = math.gcd(*inner, *others, read.address.constant)
    return common & -common if len(inner) == 1 else 0


def copied_alone(
    tiling: Tiling, operation: ParallelOperation | None, found: Contraction, side: Term
) -> Array:
    """Lanes that copy an element of a factor each, where those of windows are taken one by one, as
    many as if no windows shared any (`shared_places`); with lanes that have nothing to copy: a
    power of two of them is given to each name of the sum, and as many as an operation sums over at
    once to the one that memory is read along. Where threads take whole windows, as many as take as
    long.
    """
    made, read = tiling.form, tiling.form.beneath_cast(side).args[0]
    if tiling.blocking is None or not isinstance(read, Read):
        return 0 * tiling.shape
    together = max(_together(read, made.extents), 1)
    if (
        not _has_windows(made, (found.left, found.right))
        or together * read.dtype.itemsize >= VECTOR_BYTES
    ):
        return 0 * tiling.shape
    mask = made.facts.free(side)
    copied = lanes = tiling.points(mask) * tiling.times(mask) / together
    slides = {name for axis in _shared_axes(tiling, operation, side) for name in axis.names}
    for name in (n for n in made.facts.universe.members(found.summed) if n not in slides):
        points, least = made.extents[name], 1
        if operation and name in unit_names(read.address):
            *_, least = operation.extents.values()
        given = max(2.0 ** math.ceil(math.log2(points)), least)
        most = np.minimum(given, tiling.blocking.threads)
        lanes = lanes * np.ceil(points / most) * most / points
    if slides:
        return lanes
    whole, times = _by_windows(tiling, operation, found, side)
    return np.where(whole, copied * times, lanes)


def _by_windows(
    tiling: Tiling, operation: ParallelOperation | None, found: Contraction, side: Term
) -> tuple[NDArray[np.bool_], Array]:
    """Whether threads take whole windows of a factor, rows of them next to each other in memory:
    places within one are then known to the compiler, and copies wait for memory alone. And how many
    times as long as an element elsewhere each then takes: lanes of a warp read words that lie a row
    apart, and write elements or, of a window that lies together, vectors.
    """
    universe, read = tiling.form.facts.universe, tiling.form.beneath_cast(side).args[0]
    assert isinstance(read, Read)
    within = {*universe.members(found.summed)} & read.names - {*tiling.chunks}
    guards = [guard.expression for guard in read.guards]
    steps = window_rows(read.address, guards, within, read.dtype.itemsize)
    if not steps:
        return tiling.shape == 0, tiling.shape
    row = next(iter(steps))
    apart = steps[row] * read.dtype.itemsize
    points = tiling.tile_points(universe.mask(steps))
    lanes = tiling.tile_points(universe.mask([row]))
    given = np.where(lanes < LANES, power_above(lanes), np.ceil(lanes / LANES) * LANES)
    word = tiling.spec.memory("shared").access_granularity_bytes  # of a lane, in one pass
    beside = steps[row] > 1 and unit_names(read.address) & within
    written = read.dtype.itemsize / word if beside else 1.0
    written = written * padded(tiling.form, operation, side)
    rows = np.maximum(LANES / given / LINES, 1.0)  # of a warp, beyond what a pass takes
    waves = given / lanes * (np.maximum(apart / word, rows) + written * rows)
    return points >= LANES, waves * WAVE_WORK / STAGED_WORK


def shared_places(tiling: Tiling, operation: ParallelOperation | None, side: Term) -> Array:
    """The part of the points of a tile of a factor that it takes in shared memory: places that
    several windows read lie there once, where no chunk ends beyond what is summed over.
    """
    share, extents = tiling.shape, tiling.form.extents
    for axis in _shared_axes(tiling, operation, side):
        even = tiling.shape > 0
        for name in axis.names:
            own = tiling.tile_points(tiling.form.facts.universe.mask([name]))
            even &= (extents[name] % own == 0) | (name in tiling.tiles)
        share = share * np.where(even, _share(tiling, axis), 1.0)
    return share


def drawn_apart(tiling: Drawn, operation: ParallelOperation | None, side: Term) -> Array:
    """How many times as much copies of windows draw from the cache as there are places that those
    of a tile share: vectors run past what is near the threads, each point's by itself, where the
    tile has no place once; and a sector by itself takes as long as two.
    """
    read = tiling.form.beneath_cast(side).args[0]
    if operation is None or operation.asynchronous or not isinstance(read, Read) or read.extent:
        return tiling.shape
    if _together(read, tiling.form.extents) * read.dtype.itemsize < VECTOR_BYTES:
        return tiling.shape
    if not is_windowed(read, tiling.form):
        return tiling.shape
    axes = [axis for axis in walked_axes(read, tiling.form.extents) or () if axis.slides]
    once, size = _shared_axes(tiling, operation, side), read.dtype.itemsize
    pairs = tiling.sectors(read.address, size, 2) / tiling.sectors(read.address, size)
    return np.prod([pairs, *(1 / _share(tiling, a) for a in axes if a not in once)], axis=0)


def _share(tiling: Tiling, axis: WalkedAxis) -> Array:
    """Places that windows of a tile reach along an axis, of the points that they have there."""
    places, points = tiling.shape, tiling.shape
    for atom, step in axis.place.terms:
        own = tiling.tile_points(tiling.form.facts.universe.mask([str(atom)]))
        places, points = places + abs(step) * (own - 1), points * own
    return np.minimum(places / points, 1.0)


def _shared_axes(
    tiling: Tiling, operation: ParallelOperation | None, side: Term
) -> list[WalkedAxis]:
    """The axes of a factor along which windows overlap, of which a tile has each place once: those
    of an operation's are taken apart where elements lie together along one.
    """
    read = tiling.form.beneath_cast(side).args[0]
    if not isinstance(read, Read):
        return []
    axes = walked_axes(read, tiling.form.extents) or ()
    found = [axis for axis in axes if axis.slides and min(s for _, s in axis.place.terms) == 1]
    return [] if operation is not None and any(axis.stride == 1 for axis in found) else found


def padded(made: Form, operation: ParallelOperation | None, side: Term) -> float:
    """How many times as long rows of a factor lie in shared memory for an operation that threads
    wait for: whole steps of its sum.
    """
    read = made.beneath_cast(side).args[0]
    if operation is None or operation.asynchronous or not isinstance(read, Read):
        return 1.0
    points = [made.extents[n] for n in unit_names(read.address) if n in made.reduced]
    *_, step = operation.extents.values()
    return max([math.ceil(n / step) * step / n for n in points], default=1.0)
