"""What reads through overlapping windows cost a thread: registers, and lines that its warp reads.

Neighbouring points of a thread share what their windows overlap. The emitter gives a thread points
side by side along an outer axis, and lanes of a warp points side by side in memory.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from eqsat.graph.index import divided_names, free_names
from eqsat.layout.needs import VECTOR_BYTES
from eqsat.layout.relayout import WalkedAxis, walked_axes
from eqsat.price.copy import one_by_one
from eqsat.price.issue import COPIES, copy_seconds, instruction_seconds
from eqsat.price.rates import Array, Contraction, power_above
from eqsat.price.tiling import LANES, LINE, Tiling
from eqsat.terms.algebra import Read, Term
from eqsat.terms.form import Form, shares_factors

WORD = 4  # bytes of neighbours that a thread stores at once, of elements shorter than that
AGAIN = 1.5  # times that windows together have a tensor's elements, from which on they overlap
LONG = 8  # places of windows along memory from which on threads read neighbours' lines in vectors
MOST_PLACES = 88  # elements that a thread holds for its points; 96 leave too few registers
BUSY = 512  # threads of a processor that read windows at a time
GUARD_WORK = 2  # instructions that tell whether an element of a window is there
HELD_WORK = 6  # instructions of an element of a factor that a thread holds for many products
ALONE_WORK = 12  # the same where it is read for each place of a window anew


def neighbours_at_once(
    read: Read, axis: WalkedAxis, index: str, extents: Mapping[str, int], itemsize: int
) -> int:
    """Points side by side along an index for which a thread reads what their windows span in memory
    in vectors of as many elements: windows are long, slide by one, and rows are aligned. 0 for
    others.
    """
    steps = {str(atom): step for atom, step in axis.place.terms}
    inside = {n: step for n, step in steps.items() if n != index and extents[n] <= extents[index]}
    span = 1 + sum(step * (extents[name] - 1) for name, step in inside.items())
    alone = {*steps} == {index, *inside} and axis.stride == steps[index] == 1
    width = VECTOR_BYTES // itemsize
    others = [(str(atom), step) for atom, step in read.address.terms if str(atom) not in steps]
    rows = [step for name, step in others if extents.get(name, 2) > 1]
    return width if alone and span >= LONG and all(step % width == 0 for step in rows) else 0


def windowed(tiling: Tiling, term: Term) -> tuple[WalkedAxis, ...]:
    """The axes of a read whose windows overlap along some; none where threads share no tile, where
    the tile's factors lie in memory that it shares, or threads hold fragments of them.
    """
    read = term.args[0] if term.op == "read" else None
    if not isinstance(read, Read) or not _reads_windows(tiling):
        return ()
    axes = walked_axes(read, tiling.form.extents)
    return axes if axes and any(axis.slides for axis in axes) else ()


def _reads_windows(tiling: Tiling) -> bool:
    """Whether threads read for themselves what a tile needs of windows."""
    blocking = tiling.blocking
    if blocking is None or blocking.staged or not tiling.pricer.overlap:
        return False
    return not tiling.form.operations


def is_unfolded(tiling: Tiling, term: Term) -> bool:
    """Whether a read takes overlapping windows apart, element by element, for a kernel that stores
    them: threads share nothing of a window that lies along the grid.
    """
    read, mask = term.args[0], tiling.form.facts.free(term)
    if not isinstance(read, Read) or mask & ~tiling.grid:
        return False
    if not tiling.pricer.overlap or tiling.blocking is None or tiling.blocking.staged:
        return False
    size = tiling.pricer.sizes.get(read.buffer, 0) / read.dtype.itemsize
    apart = one_by_one(tiling, term) or _in_digits(read)
    return 0 < AGAIN * size < tiling.points(mask) and apart


def is_beside_operands(tiling: Tiling, term: Term) -> bool:
    """Whether a read of overlapping windows is no operand, in a kernel whose operations say which
    points threads have: they share nothing of the windows, and take them apart one by one.
    """
    read = term.args[0] if term.op == "read" else None
    if not isinstance(read, Read) or not tiling.pricer.overlap:
        return False
    axes = walked_axes(read, tiling.form.extents)
    if not axes or not any(axis.slides for axis in axes) or term in tiling.form.operands():
        return False
    if tiling.blocking is not None:
        return bool(tiling.form.operations)
    products = (tiling.pricer.contraction(tiling.form, other) for other in tiling.form.terms)
    return any(one and tiling.pricer.matrix_operations(tiling.form, one) for one in products)


def _in_digits(read: Read) -> bool:
    """Whether a name walks memory by itself and by its quotient: one for all places of a window."""
    nested = divided_names(read.address)
    return any(atom in nested for atom, _ in read.address.terms)


def window_charges(tiling: Tiling, term: Term) -> Iterator[tuple[str, Array]]:
    """Units and the seconds that each takes for a read: of windows a line of memory at a time, of
    those that a kernel takes apart one by one for every value stored, of a factor beside windows;
    and the instructions of threads which tell whether an element is there, or all it takes to read
    one, of a factor whose products take turns with that.
    """
    axes, unfolded, read = windowed(tiling, term), is_unfolded(tiling, term), term.args[0]
    mask, loads, spec = tiling.form.facts.free(term), 0 * tiling.shape, tiling.spec
    assert isinstance(read, Read)
    if is_beside_operands(tiling, term):
        loads = tiling.points(mask) * tiling.times(mask) * copy_seconds(spec)
    elif not axes and not unfolded:
        loads = _beside_windows(tiling, term)
    if axes:
        assert tiling.blocking is not None
        found = _elements(tiling, term, axes)
        held = found.held
        runs = tiling.tiles_in_all() * tiling.chunks_of(mask) * tiling.blocking.threads
        reads = runs * np.where(held, found.shared, found.alone)
        drawn = reads / LANES * _lines(tiling, term, axes) * LINE
        cache = tiling.pricer.cache.sustained_gb_per_s * 1e9
        loads = drawn / _rate(tiling) + drawn * _missed(tiling, term, axes) / cache
        if _is_shared_factor(tiling.form, term):
            work = np.where(held, HELD_WORK, ALONE_WORK) / _together(tiling, term, axes)
            yield COPIES, reads * work * instruction_seconds(spec)
        elif read.guards:
            for unit, seconds in tiling.pricer.rates("add", "float32"):
                yield unit, GUARD_WORK * reads * seconds
    if unfolded:
        each = tiling.points(mask) * _lanes_given(tiling.form) * copy_seconds(spec)
        loads = loads + each * len(tiling.form.stored)
    yield "loads", loads


def _lanes_given(form: Form) -> float:
    """Lanes for each element along what is stored together: a power of two of them."""
    points = math.prod(form.extents[name] for name in form.stored[0].names[-1:])
    return float(power_above(np.array(points))) / points


def _together(tiling: Tiling, term: Term, axes: tuple[WalkedAxis, ...]) -> Array:
    """Elements that a thread reads of windows at once."""
    inner = next((axis for axis in axes if axis.stride == 1 and not axis.slides), None)
    along = _window(tiling, inner)[0] if inner else ""
    most = VECTOR_BYTES / tiling.form.facts.dtype(term).itemsize
    return np.minimum(most, tiling.tiles[along]) if along else tiling.shape


def _is_factor(form: Form, term: Term) -> bool:
    """Whether a read is a factor of what threads go through point by point, holding the factors."""
    products = (other.children for other in form.terms if other.op == "contract")
    factors = (form.beneath_cast(side) for pair in products for side in pair)
    return any(term is factor for factor in factors) or _is_shared_factor(form, term)


def _is_shared_factor(form: Form, term: Term) -> bool:
    """Whether a read is a factor of products each of whose sides several results share."""
    sides = (form.factors(other) or () for other in form.terms)
    return any(
        term in map(form.beneath_cast, pair) and shares_factors(*map(form.facts.free, pair))
        for pair in sides
        if pair
    )


def _beside_windows(tiling: Tiling, term: Term) -> Array:
    """Seconds of a factor beside windows, none of others: threads read for each place in one what
    goes with their points along which results lie together, at once only if it lies together too.
    """
    read, form, last = term.args[0], tiling.form, tiling.form.stored[0].names[-1:]
    reads = form.terms if _reads_windows(tiling) else ()
    windows = [other for other in reads if windowed(tiling, other)]
    if not windows or term in windows or not isinstance(read, Read) or not {*last} & read.names:
        return 0 * tiling.shape
    assert tiling.blocking is not None
    (name,), size = last, read.dtype.itemsize
    across, along = (dict(one.address.terms).get(name, 0) for one in (read, _read_of(windows[0])))
    vector = np.minimum(VECTOR_BYTES / size if along == 1 else 1.0, tiling.tiles.get(name, 1.0))
    lanes = np.minimum(np.ceil(tiling.tiles.get(name, 1.0) / vector), LANES)
    apart = np.minimum(np.ceil(lanes * vector * across * size / LINE), lanes)
    lines = np.where(across == 1, np.ceil(lanes * vector * size / LINE), vector * apart)
    places = tiling.points(form.facts.free(term) & ~tiling.grid)
    loads = tiling.tiles_in_all() * tiling.blocking.threads / LANES * places
    return loads * lines * LINE / _rate(tiling)


def _read_of(term: Term) -> Read:
    read = term.args[0]
    assert isinstance(read, Read)
    return read


def _missed(tiling: Tiling, term: Term, axes: tuple[WalkedAxis, ...]) -> Array:
    """The part of such loads that no line near the threads serves: what the tiles of a processor
    read in all their chunks is more than these lines, which lie where shared memory is.
    """
    assert tiling.blocking is not None
    size, extents = tiling.form.facts.dtype(term).itemsize, tiling.form.extents
    held = size * tiling.shape
    for axis in axes:
        span = tiling.shape
        for atom, step in axis.place.terms:
            name = str(atom)
            span = span + step * (tiling.tiles.get(name, extents.get(name, 1) * tiling.shape) - 1)
        span = np.minimum(span, axis.extent)
        held = held * (span if axis.stride > 1 else _whole_lines(axis, span * size) * LINE / size)
    blocks = np.maximum(BUSY / tiling.blocking.threads, 1.0)
    near = tiling.spec.memory("shared").size_bytes
    return np.maximum(1 - near / (held * blocks), 0.0)


def _whole_lines(axis: WalkedAxis, length: Array) -> Array:
    """Lines in which so many bytes along memory lie: one more where they begin inside of one."""
    begins_inside = axis.slides | ((length % LINE > 0) & (LINE % length > 0))
    return np.ceil(length / LINE) + begins_inside


def _rate(tiling: Tiling) -> float:
    """Bytes a second of the unit that serves the threads' loads, shared memory's own."""
    return tiling.spec.memory("shared").bandwidth_gb_per_s * 1e9


def held_elements(tiling: Tiling, term: Term, axes: tuple[WalkedAxis, ...]) -> Array:
    """Elements of such a read that each thread has at once; where none are shared, all it reads."""
    found = _elements(tiling, term, axes)
    return np.where(found.held, found.at_once, found.alone)


@dataclass(frozen=True)
class _Elements:
    """Elements that a thread reads of windows: where its points share them, so many of these at
    once, and `alone` where each point reads its own; whether they are shared, and `held` meanwhile.
    """

    shared: Array
    at_once: Array
    alone: Array
    held: NDArray[np.bool_]


def _elements(tiling: Tiling, term: Term, axes: tuple[WalkedAxis, ...]) -> _Elements:
    """What a thread reads of windows.

    Threads are given out as the emitter does it: to what lies together in memory, a vector to each
    where windows do not slide along it, then to other names, at last to those that windows slide
    along, the longest first.
    """
    assert tiling.blocking is not None
    inner = next((axis for axis in axes if axis.stride == 1), None)
    along = _window(tiling, inner)[0] if inner else ""
    rows = [axis for axis in axes if axis.slides and axis is not inner and _window(tiling, axis)[0]]
    moving = [_window(tiling, axis)[0] for axis in rows]
    left, own, pair = tiling.blocking.threads, tiling.shape, tiling.shape
    vectors, wide = tiling.shape, 0 * tiling.shape
    if inner and along:
        size, wide = tiling.form.facts.dtype(term).itemsize, _at_once(tiling, term, inner)
        most = np.where(wide, wide, WORD / size) if inner.slides else VECTOR_BYTES / size
        vector = np.minimum(np.maximum(most, 1.0), tiling.tiles[along])
        left, vectors = _given(tiling.tiles[along] / vector, np.minimum(left, LANES), left)
        own, pair = vectors * vector, vector if inner.slides else pair
    others = [name for name in tiling.tiles if name not in (along, *moving)]
    left, points = _given(np.prod([tiling.tiles[n] for n in others], axis=0), left, left)
    own = own * np.maximum(points / _lacking(tiling, term), 1.0)
    windows = tiling.tile_points(tiling.form.facts.free(term) & ~tiling.grid)
    if not rows:
        left, fewer = _given(vectors, left, left)
        own, vectors = own * fewer / vectors, fewer
    if not rows and not wide.any():
        alone = own * windows / _spread(tiling, term, left)
        return _Elements(alone, alone, alone, tiling.shape < 0)
    pair = np.where(wide, vectors * pair, pair)
    lengths = np.stack([tiling.tiles[name] for name in moving]) if rows else np.ones((0, 1))
    beside = np.ones_like(lengths)
    for rank in np.argsort(-lengths, axis=0, kind="stable"):
        left, points = _given(np.take_along_axis(lengths, rank[None], 0)[0], left, left)
        np.put_along_axis(beside, rank[None], points[None], 0)
    spread = _spread(tiling, term, left)
    alone = own * windows / spread * beside.prod(axis=0)
    lined = [(inner, along, pair)] if inner and along and inner.slides else []
    spans = []
    for axis, name, points in (*lined, *zip(rows, moving, beside, strict=True)):
        _, span, width = _window(tiling, axis)
        together = np.minimum(_step(axis, name) * (points - 1) + span, points * width)
        spans.append((points, width, together))
    together = np.prod([tiling.shape, *(every / width for _, width, every in spans)], axis=0)
    shared = at_once = own / pair * windows * together
    if _is_factor(tiling.form, term):
        shared, at_once = _held_in_turn(own / pair, windows, spans, shared)
    held = (at_once <= MOST_PLACES) & (spread == 1) & (shared < alone)
    return _Elements(shared, at_once, alone, held)


def _held_in_turn(
    own: Array, windows: Array, spans: Sequence[tuple[Array, Array, Array]], every: Array
) -> tuple[Array, Array]:
    """Elements that a thread reads of windows, and how many at once, by its `own` beside them and,
    of each axis, its points, the places in a window, and those in all: `every` one, or where these
    are too many to hold, what is shared along some axes, anew for each place along the others.
    """
    rest = windows / np.prod([np.ones_like(windows), *(width for _, width, _ in spans)], axis=0)
    shared = at_once = every
    for held in product((True, False), repeat=len(spans)):
        some, turns = own, rest
        for kept, (points, width, together) in zip(held, spans, strict=True):
            some, turns = (some * together, turns) if kept else (some * points, turns * width)
        fewer = (at_once > MOST_PLACES) | (some * turns < shared)
        better = (every > MOST_PLACES) & (some <= MOST_PLACES) & fewer
        shared = np.where(better, some * turns, shared)
        at_once = np.where(better, some, at_once)
    return shared, at_once


def _at_once(tiling: Tiling, term: Term, axis: WalkedAxis) -> Array:
    """`neighbours_at_once` of a read, where each thread has results enough."""
    assert tiling.blocking is not None
    read, name = _read_of(term), _window(tiling, axis)[0]
    extents, size = tiling.form.extents, tiling.form.facts.dtype(term).itemsize
    width = neighbours_at_once(read, axis, name, extents, size) if name else 0
    results = tiling.tile_points(tiling.form.facts.free(term) & tiling.grid)
    return np.where(results >= width * tiling.blocking.threads, float(width), 0.0)


def _spread(tiling: Tiling, term: Term, left: Array) -> Array:
    """How many of the threads that are left share what a tile sums over, other than the places of
    windows.
    """
    universe, extents = tiling.form.facts.universe, tiling.form.extents
    walked = {n for axis in windowed(tiling, term) for n in free_names(axis.place)}
    inside = {n for axis in windowed(tiling, term) for n in _inside(tiling, axis)}
    summed = universe.members(tiling.form.facts.free(term) & ~tiling.grid)
    long = [n for n in summed if n not in inside and (n in walked or extents[n] >= LANES)]
    points = [tiling.tile_points(universe.mask([name])) for name in long]
    every = np.prod([tiling.shape, *points], axis=0)
    return every / _given(every, left, left)[1]


def _inside(tiling: Tiling, axis: WalkedAxis) -> set[str]:
    """Names of places in windows on an axis: no longer than what moves the windows."""
    names, extents = free_names(axis.place), tiling.form.extents
    most = max((extents[name] for name in names if name in tiling.tiles), default=0)
    return {name for name in names if name not in tiling.tiles and extents[name] <= most}


def _lacking(tiling: Tiling, term: Term) -> Array:
    """Points of a tile along the names that a read lacks."""
    return tiling.tile_points(tiling.grid & ~tiling.form.facts.free(term))


def _given(points: Array, most: Array, left: Array) -> tuple[Array, Array]:
    """The threads that are left when up to `most` of them are given to so many points, and the
    points that each of these has.
    """
    given = np.maximum(np.minimum(power_above(points), most), 1.0)
    return np.maximum(left / given, 1.0), np.ceil(points / given)


def _lines(tiling: Tiling, term: Term, axes: tuple[WalkedAxis, ...]) -> Array:
    """Lines of memory that a warp touches in a load of such a read."""
    size = tiling.form.facts.dtype(term).itemsize
    lanes, beside, apart, lacking = tiling.shape, size * tiling.shape, 0.0, tiling.shape
    for axis in axes:
        moving, _, width = _window(tiling, axis)
        if axis.stride == 1 and _is_long(tiling, axis):
            lanes, beside, apart = LANES * tiling.shape, LANES * size * tiling.shape, 1.0
        elif axis.stride == 1 and moving:
            lanes, lacking = np.minimum(tiling.tiles[moving], LANES), _lacking(tiling, term)
            beside = lanes * _step(axis, moving) * size
            off = 1 - 1 / width  # of the places in a window, those off a line's start
            apart = np.where(_at_once(tiling, term, axis) > 0, 0.0, off)
    others = LANES / lanes  # lanes elsewhere, or at other points of what the read lacks
    alike = np.where(lanes > 1, np.minimum(lacking, others), 1.0)
    return np.minimum(others / alike * (np.ceil(beside / LINE) + apart), LANES)


def loaded_beside(tiling: Tiling, found: Contraction, side: Term) -> Array:
    """Seconds in which threads load the factor beside windows that they hold, an element at a time
    or as many as lie together along names of its own: lanes along the windows load one alike, those
    beside them one from another line each.
    """
    assert tiling.blocking is not None
    if windowed(tiling, side) or not _lies_beside(tiling, found):  # counted where it is read
        return 0 * tiling.shape
    mask = tiling.form.facts.free(side)
    warps = np.maximum(tiling.blocking.threads / LANES, 1.0)
    grid = tiling.tile_points(mask & tiling.grid)
    lines = np.minimum(grid, LANES / _lanes_along(tiling, found))
    each = tiling.tile_points(mask | found.summed) / np.minimum(grid, warps * lines)
    runs = tiling.tiles_in_all() * tiling.chunks_of(mask | found.summed)
    return runs * warps * each * lines * LINE / _rate(tiling) / _vector(tiling, found, side)


def _vector(tiling: Tiling, found: Contraction, side: Term) -> Array:
    """Elements of a factor that a thread loads at once: those along a name of its own."""
    read = tiling.form.beneath_cast(side).args[0]
    steps = read.address.terms if isinstance(read, Read) else ()
    alone = tiling.form.facts.universe.members((found.rows | found.columns) & tiling.grid)
    along = [str(atom) for atom, step in steps if step == 1 and str(atom) in alone]
    most = VECTOR_BYTES / tiling.form.facts.dtype(side).itemsize
    return np.minimum(tiling.tiles[along[0]], most) if along else tiling.shape


def _lies_beside(tiling: Tiling, found: Contraction) -> bool:
    """Whether threads hold windows of a factor of a product."""
    return any(windowed(tiling, side) for side in (found.left, found.right))


def drawn_again(tiling: Tiling, found: Contraction, side: Term) -> Array:
    """Bytes that threads draw again from the cache for a factor that no memory holds for them all,
    about as many of them as a square of a tile has rows.
    """
    mask = tiling.form.facts.free(side)
    whole = mask == found.batch | found.rows | found.columns | found.summed
    if whole or tiling.blocking is None or _lies_beside(tiling, found):
        return 0 * tiling.shape
    again = tiling.points(mask) * tiling.times(mask) * tiling.form.facts.dtype(side).itemsize
    return again * np.sqrt(tiling.blocking.threads)


def _lanes_along(tiling: Tiling, found: Contraction) -> Array:
    """Lanes of a warp that lie along what is contiguous of the windows of a product."""
    lanes = tiling.shape
    for side in (found.left, found.right):
        for axis in windowed(tiling, side):
            name = _window(tiling, axis)[0]
            if axis.stride == 1 and name:
                lanes = np.minimum(2.0 ** np.ceil(np.log2(tiling.tiles[name])), LANES)
    return lanes


def _is_long(tiling: Tiling, axis: WalkedAxis) -> bool:
    """Whether lanes lie along what is summed on an axis: it is longer than what moves there."""
    names, extents = free_names(axis.place), tiling.form.extents
    summed = {n for n in names if n not in tiling.tiles and n not in tiling.chunks}
    if any(name in tiling.tiles for name in names):
        return bool(summed - _inside(tiling, axis))
    return any(extents[name] >= LANES for name in summed)


def _step(axis: WalkedAxis, name: str) -> int:
    return next(step for atom, step in axis.place.terms if str(atom) == name)


def _window(tiling: Tiling, axis: WalkedAxis) -> tuple[str, Array, Array]:
    """The grid name that moves windows along an axis, if it is one; places of a window, and points
    in it.
    """
    mask = tiling.form.facts.universe.mask
    moving = [str(atom) for atom, _ in axis.place.terms if str(atom) in tiling.tiles]
    span, width = tiling.shape, tiling.shape
    for atom, step in axis.place.terms:
        if str(atom) not in tiling.tiles:
            points = tiling.tile_points(mask([str(atom)]))
            span, width = span + step * (points - 1), width * points
    return (moving[0] if len(moving) == 1 else ""), span, width
