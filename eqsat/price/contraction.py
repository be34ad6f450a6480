"""What a contraction costs by a matrix operation or a library call of the spec."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from eqsat.graph.dtypes import BY_NAME, is_held
from eqsat.graph.ops import ELEMENTWISE
from eqsat.layout.needs import Need
from eqsat.layout.prepare import lies_right, read_alike, rows_of_pages
from eqsat.layout.relayout import points as elements
from eqsat.layout.relayout import walked_axes
from eqsat.layout.window_factors import window_places
from eqsat.price.call import call_seconds
from eqsat.price.copy import one_by_one
from eqsat.price.issue import copy_seconds, instruction_seconds
from eqsat.price.narrow import is_joined, narrowing, products_of
from eqsat.price.partial_sums import count_parts, partial_points
from eqsat.price.pipeline import spread
from eqsat.price.rates import Array, Contraction
from eqsat.price.tiling import Tiling
from eqsat.specs import ParallelOperation, ParallelProcessingUnit
from eqsat.terms.algebra import Read, Term, post_order
from eqsat.terms.form import SUBSTITUTED, WEIGHTED, Form

MADE_OF = ELEMENTWISE | {"read", "literal", "position"}  # terms of factors that are converted
HELD = 0.8  # part of a thread's registers that sums may take, those under way included
GATHERED = 2.5  # times the work of products of gathered rows (4096 x 256 x 256: 45 us for 20)
ACROSS_WORK = 6  # instructions of a result that lies across what it is stored to
SHORT_RESULTS = 2  # bytes of those
TURNED = 1.02  # results that lie across what they are stored to cost a little more


def absorbed(made: Form) -> set[Term]:
    """Products, and casts of factors, that contractions compute themselves."""
    found: set[Term] = set()
    casts: dict[Term, int] = {}
    for term in made.terms:
        factors = made.contraction(term)
        if factors:
            product = term
            if term.op == "reduce_sum":
                product = term.children[0]
                found.add(product)
            for child, factor in zip(product.children, factors, strict=True):
                if child is not factor:
                    casts[child] = casts.get(child, 0) + 1
    return found | {cast for cast, uses in casts.items() if made.uses[cast] == uses}


def matrix_seconds(
    tiling: Tiling, family: Sequence[ParallelOperation], found: Contraction, work: Array
) -> tuple[Array, Array]:
    """Seconds of the multiply-adds by the best of a family of operations, padded to its extents;
    and call overheads.
    """
    operation = family[0]
    rows, columns = found.rows, found.columns
    if rows & _summed_later(tiling, found.term):
        rows, columns = columns, rows
    padding = _padding(tiling, family, (rows, columns, found.summed))
    if operation.asynchronous and not is_factor(tiling, found.term):
        # the target may take either factor for the left one, but for what is converted
        turned = _padding(tiling, family, (found.columns, found.rows, found.summed))
        made = converted(tiling, operation, found)
        straight = padding if made is not found.left else np.full_like(padding, np.inf)
        padding = np.minimum(straight, TURNED * turned) if made is not found.right else padding
    facts, counts = tiling.form.facts, tiling.pricer.float32_products
    factors = [facts.dtype(side) for side in (found.left, found.right)]
    factor = min(factors, key=lambda dtype: dtype.itemsize)
    each = [
        products_of(one, found.term, factor, counts) / tiling.spec.updates_per_s(one)
        for one in family
    ]
    seconds = work * (padding * np.array(each)[:, np.newaxis]).min(axis=0) * _beyond(tiling, found)
    library = not any(operation.extents.values())
    return seconds, call_seconds(tiling, operation, found, seconds) if library else 0 * seconds


def threads_padding(tiling: Tiling, operation: ParallelOperation, found: Contraction) -> Array:
    """Rows and columns that groups of threads have between them, for each of the tile's: all have
    as many fragments. Of operations that are started, whole ones of rows alone, where these stay in
    their group.
    """
    if not all(operation.extents.values()):
        return tiling.shape
    if not operation.asynchronous:
        return _padding(tiling, [operation], (found.rows, found.columns))[0]
    if tiling.blocking is None:
        return tiling.shape
    extent, *_ = operation.extents.values()
    if not rows_stay(tiling.form):  # the target may take either factor for the left one
        sides = (tiling.tile_points(own) for own in (found.rows, found.columns))
        return np.min([np.ceil(own / extent) * extent / own for own in sides], axis=0)
    teams = tiling.blocking.threads / tiling.spec.members(operation.supported_by, "thread")
    whole = np.ceil(tiling.tile_points(found.rows) / extent)
    return np.ceil(whole / teams) * teams / whole


def narrowing_work(
    tiling: Tiling, operation: ParallelOperation, found: Contraction, work: Array
) -> Iterator[tuple[str, str, Array]]:
    """Elementwise operations on a dtype, with how many, that a product of narrower floats needs,
    and one of which parts are added up.
    """
    assert tiling.blocking is not None
    if part := partial_points(tiling.spec, tiling.form, found.term):
        yield "add", "float32", work / part
    if found.term.op != "narrow_contract":
        return
    points = tiling.tile_points(found.rows | found.columns)
    warps = tiling.blocking.threads / tiling.spec.members(operation.supported_by, "thread")
    depth = tiling.tile_points(found.summed)
    for op, amount in narrowing(operation, found.term, work, points, warps, depth):
        yield op, "float32", amount


def sibling_seconds(
    tiling: Tiling, operation: ParallelOperation, found: Contraction, work: Array
) -> tuple[Array, Array, list[str], NDArray[np.intp]]:
    """Seconds by the best operation for each tile of those that differ in columns alone, and the
    bytes that it reads from shared memory; their names, and the number of the best.
    """
    options = tiling.pricer.siblings(operation)
    seconds = np.stack(
        [
            np.where(
                parts_fit(tiling, o, found), matrix_seconds(tiling, [o], found, work)[0], np.inf
            )
            for o in options
        ]
    )
    read = np.stack([fed_bytes(tiling, o, found, s) for o, s in zip(options, seconds, strict=True)])
    rate = tiling.spec.memory("shared").sustained_gb_per_s * 1e9
    best = np.maximum(seconds, read / rate).argmin(axis=0)
    least, fed = (np.take_along_axis(a, best[np.newaxis], axis=0)[0] for a in (seconds, read))
    return least, fed, [o.name for o in options], best


def fed_bytes(
    tiling: Tiling, operation: ParallelOperation, found: Contraction, seconds: Array
) -> Array:
    """Bytes that an operation which takes so long reads of factors that lie in shared memory: each
    invocation its own rows and columns.
    """
    rows, columns, _ = operation.extents.values()
    size = min(tiling.form.facts.dtype(side).itemsize for side in (found.left, found.right))
    held = zip(operation.factor_memories, (rows, columns), strict=True)
    lines = sum(extent for memory, extent in held if memory == "shared")
    updates = seconds * tiling.spec.updates_per_s(operation)
    return updates / (rows * columns) * lines * size


def parts_fit(
    tiling: Tiling, operation: ParallelOperation, found: Contraction
) -> NDArray[np.bool_]:
    """Where registers hold an operation's partial sums beside those that they are added to."""
    if tiling.blocking is None or not partial_points(tiling.spec, tiling.form, found.term):
        return tiling.shape > 0
    rows, columns, *_ = operation.extents.values()
    members = tiling.spec.members(operation.supported_by, "thread")
    held = tiling.tile_points(found.batch | found.rows | found.columns) / tiling.blocking.threads
    limit = tiling.spec.memory("registers").limit_per_group_bytes
    return 4 * (held + rows * columns / members) <= HELD * limit


def lacks_operands(tiling: Tiling, operation: ParallelOperation, found: Contraction) -> bool:
    """Whether an asynchronous operation lacks its factors in the memories that it names."""
    assert tiling.blocking is not None
    if not tiling.blocking.staged or not takes_factors(tiling, operation, found):
        return True
    return any(True for _ in misplaced(tiling, operation, found))


def misplaced(
    tiling: Tiling, operation: ParallelOperation, found: Contraction
) -> Iterator[tuple[Term, Need]]:
    """The factors that lie in memory as the operation does not take them, and what it needs."""
    through = gathered(tiling, operation, found)
    for side in (found.left, found.right):
        read = side.args[0]
        if side.op == "read" and isinstance(read, Read) and side is not through:
            need = tiling.pricer.need(operation, read.dtype.name)
            right = need is None or _lies_right(tiling, found, read, need)
            split = need is not None and bool(need.narrow) and from_registers(operation)
            if need is not None and (need.converts or not right) and not split:
                yield side, need


def gathered(tiling: Tiling, operation: ParallelOperation, found: Contraction) -> Term | None:
    """The factor that is copied as it lies, across the sum, and taken into registers one element at
    a time: for an operation that has one factor there and wants the other along the sum.
    """
    if not (operation.asynchronous and from_registers(operation) and operation.contiguous):
        return None
    for side in (found.left, found.right):
        read = side.args[0]
        need = tiling.pricer.need(operation, read.dtype.name) if isinstance(read, Read) else None
        if side.op == "read" and isinstance(read, Read) and need and not need.converts:
            across = not _lies_right(tiling, found, read, need)
            if across and _lies_right(tiling, found, read, replace(need, summed=False)):
                return side
    return None


def _lies_right(tiling: Tiling, found: Contraction, read: Read, need: Need) -> bool:
    places = window_places(tiling.form, (found.left, found.right))
    return lies_right(read, need, found.summed, found.batch, places, tiling.form)


def preparing_seconds(tiling: Tiling, operation: ParallelOperation, found: Contraction) -> float:
    """What it takes to prepare factors for the operation before the kernel runs."""
    spec, facts, seconds = tiling.spec, tiling.form.facts, 0.0
    launch = (spec.graph_launch_latency_us or spec.launch_latency_us) * 1e-6
    alike = set[object]()
    for side, need in misplaced(tiling, operation, found):
        key = (read_alike(side, found.summed, tiling.form), need)
        if key in alike:
            continue
        alike.add(key)
        points, size = tiling.points(facts.free(side)), facts.dtype(side).itemsize
        axes = walked_axes(side.args[0], tiling.form.extents)  # type: ignore[arg-type]
        points = min(points, elements(axes)) if axes else points
        if not axes and one_by_one(tiling, side):
            seconds += points * copy_seconds(spec)
        stored = need.terms * BY_NAME[need.converts].itemsize if need.converts else size
        seconds += points * (size + stored) / (tiling.pricer.dram.sustained_gb_per_s * 1e9) + launch
    return seconds


def takes_factors(tiling: Tiling, operation: ParallelOperation, found: Contraction) -> bool:
    """Whether factors lie where an operation that is started takes them from.

    What is read can be copied to shared memory; what is computed, or rounded, lies in registers.
    """
    if not operation.asynchronous:
        return not _gathers_terms(tiling, operation, found)
    if found.term.op not in (*SUBSTITUTED, *WEIGHTED) and _is_widened(tiling, operation, found):
        return True  # in registers, or beforehand
    computed = _computed(tiling, operation, found)
    computed -= converted(tiling, operation, found) is not None
    if computed and not _takes_results(operation):
        return False
    held = computed + (gathered(tiling, operation, found) is not None)
    return held == from_registers(operation)


def _computed(tiling: Tiling, operation: ParallelOperation, found: Contraction) -> int:
    """How many factors of an operation that is started are computed, or rounded."""
    weights = found.term.op in WEIGHTED
    sides = (found.left, found.right)
    narrowest = min(tiling.form.facts.dtype(side).itemsize for side in sides)
    return weights + sum(
        not is_copied(tiling, operation, found, side)
        or tiling.form.facts.dtype(side).itemsize > narrowest
        for side in sides[weights:]
    )


def converted(tiling: Tiling, operation: ParallelOperation, found: Contraction) -> Term | None:
    """The factor that threads of their own make in shared memory of a copied tile, for an operation
    that is started: one that is computed beyond those which it takes from registers.
    """
    if not operation.asynchronous or operation.contiguous:
        return None
    computed = _computed(tiling, operation, found)
    if computed <= from_registers(operation):
        return None
    sides = (found.right,) if found.term.op in WEIGHTED else (found.right, found.left)
    return next((side for side in sides if _is_made_of_one(tiling.form, side)), None)


def _is_made_of_one(made: Form, side: Term) -> bool:
    """Whether a factor, which nothing else needs, is computed element by element of one read of
    shorter elements that has all of its names, and of what has fewer.
    """
    facts, size = made.facts, made.facts.dtype(side).itemsize
    terms = [*post_order([side])]
    if side.op == "read" or any(t.op not in MADE_OF for t in terms):
        return False
    within = Counter(child for term in terms for child in term.children)
    own = [t for t in terms if t is not side and t.op != "literal"]
    whole = [t for t in own if t.op == "read" and facts.free(t) == facts.free(side)]
    short = len(whole) == 1 and facts.dtype(whole[0]).itemsize < size
    return short and all(made.uses[t] == within[t] for t in own)


def _gathers_terms(tiling: Tiling, operation: ParallelOperation, found: Contraction) -> bool:
    """Whether an operation that is waited for multiplies terms of what is gathered: no stage holds
    it, and threads wait for each element that they split.
    """
    gathered = (side for side in (found.left, found.right) if side.op == "gather")
    dtype, counts = tiling.form.facts.dtype, tiling.pricer.float32_products
    return any(products_of(operation, found.term, dtype(one), counts) > 1 for one in gathered)


def is_copied(tiling: Tiling, operation: ParallelOperation, found: Contraction, side: Term) -> bool:
    """Whether a factor is read as it lies; of a gather, whether what lies together are the rows of
    pages, of which copies take one by one.
    """
    read = side.args[0]
    if side.op != "gather" or not isinstance(read, Read):
        return side.op == "read"
    need = tiling.pricer.need(operation, read.dtype.name)
    if need is None or need.converts or not _lies_right(tiling, found, read, need):
        return False
    index = tiling.form.facts.free(side.children[0])
    return rows_of_pages(read, tiling.form.facts.universe.members(index))


def _takes_results(operation: ParallelOperation) -> bool:
    """Whether the factor in registers lies there as results of the operations do: each thread has
    neighbours of two along the sum, so it is one of 16 bits.
    """
    assert operation.semantics is not None
    first, *_ = operation.semantics.operands
    kinds = {row.get(first, "") for row in operation.supported_data_types}
    return from_registers(operation) and kinds <= {"bfloat16", "float16"}


def _is_widened(tiling: Tiling, operation: ParallelOperation, found: Contraction) -> bool:
    """Whether an operation takes a wider float than that of a factor."""
    names = {tiling.form.facts.dtype(side).name for side in (found.left, found.right)}
    kinds = {kind for row in operation.supported_data_types for kind in row.values()}
    return any(is_held(a, b) for a in names - kinds for b in kinds - {"float32"} if b in BY_NAME)


def from_registers(operation: ParallelOperation) -> bool:
    """Whether the first factor of an operation lies in registers."""
    return operation.factor_memories[:1] == ("registers",)


def _padding(tiling: Tiling, family: Sequence[ParallelOperation], roles: tuple[int, ...]) -> Array:
    """How many times the tile's work each operation of a family does, a row for each: it has whole
    extents, and each group of threads has the same number of them, where each keeps its own rows
    along these alone.
    """
    extents = tuple(zip(*(one.extents.values() for one in family), strict=True))
    key = (extents, family[0].supported_by, roles)
    if key not in tiling.paddings:
        tiling.paddings[key] = _padded(tiling, family[0], extents, roles)
    return tiling.paddings[key]


def _padded(
    tiling: Tiling,
    operation: ParallelOperation,
    extents: tuple[tuple[int, ...], ...],
    roles: tuple[int, ...],
) -> Array:
    inside = [tiling.tile_points(mask) for mask in roles]
    if operation.asynchronous:
        inside[-1] = tiling.longest(roles[-1])  # whose points alone are summed at once
    sizes = [np.array(each, dtype=float)[:, np.newaxis] for each in extents]
    counts = [
        np.ceil(points / size) if size.all() else points[np.newaxis]
        for points, size in zip(inside, sizes, strict=False)
    ]
    whole = all(operation.extents.values())
    if whole and tiling.blocking is not None and tiling.pricer.overlap:
        teams = tiling.blocking.threads / tiling.spec.members(operation.supported_by, "thread")
        counts[:2] = spread(counts[0], counts[1], teams, rows_stay(tiling.form))
    padding = tiling.shape[np.newaxis]
    for count, size, points in zip(counts, sizes, inside, strict=False):
        padding = padding * count * np.maximum(size, 1) / points
    return padding


def copied_again(
    tiling: Tiling, operation: ParallelOperation, found: Contraction, side: Term
) -> Array:
    """How many times the bytes of a factor's tile are copied for an operation that is started: it
    takes whole rows, so that a tile of fewer has some of the next tile's copied as well.

    Its rows are those of the factor of which fewer are padding, as the target has it.
    """
    extent, *_ = operation.extents.values()
    padded = [
        np.ceil(tiling.tile_points(own) / extent) * extent / tiling.tile_points(own)
        for own in (found.rows, found.columns)
    ]
    turned = (padded[1] < padded[0]) & (not is_factor(tiling, found.term))
    own, rows = (found.rows, ~turned) if side is found.left else (found.columns, turned)
    names = tiling.form.facts.universe.members(own & tiling.grid)
    cut = np.any([tiling.count[name] > 1 for name in names], axis=0) if names else False
    return np.where(rows & cut, padded[side is not found.left], 1.0)


def beyond_bytes(tiling: Tiling, operation: ParallelOperation, found: Contraction) -> Array:
    """Bytes of sums that whole operations have beyond a tile: beyond its rows or its columns, but
    along what is reduced later, which lies in one group of threads.
    """
    extent, *_ = operation.extents.values()
    held = 4 * tiling.tile_points(found.batch | found.rows | found.columns)
    reduced = tiling.form.facts.universe.mask(tiling.form.reduced)
    stays = [side for side in (found.rows, found.columns) if not side & reduced]
    sides = [tiling.tile_points(side) for side in stays or (found.rows, found.columns)]
    return held * np.min([np.ceil(n / extent) * extent / n - 1 for n in sides], axis=0)


def _beyond(tiling: Tiling, found: Contraction) -> Array:
    """How many times the points of a product its tiles and chunks have, which reach beyond them;
    a library is called for those that there are.
    """
    points = tiling.shape
    names = found.batch | found.rows | found.columns | found.summed
    for name in tiling.form.facts.universe.members(names) if tiling.pricer.overlap else ():
        size, extent = tiling.tiles.get(name, tiling.chunks.get(name)), tiling.form.extents[name]
        if size is not None:
            points = points * np.ceil(extent / size) * size / extent
    return points


def rows_stay(made: Form) -> bool:
    """Whether something is reduced along what products are computed for: then their rows lie
    inside one group of threads each, and the groups share no columns.
    """
    reduced = made.facts.universe.mask(made.reduced)
    products = (t for t in made.terms if t.op in SUBSTITUTED)
    return any(made.facts.free(t) & reduced for t in products)


def early(spec: ParallelProcessingUnit, made: Form, started: Collection[str], whole: bool) -> float:
    """By how many chunks a ring's slot is let go of before the next chunk is done: one where
    products are waited for, as those of tiles that lie there whole are; half a chunk, where one
    product's factor is computed from another's result: their rings differ, and either lets go of
    its slot as soon as its own product is done.
    """
    waited = whole or any(is_joined(t) for t in made.terms) or count_parts(spec, made) > 0
    operations = [spec.operation(name) for name in started]
    chained = len(operations) > 1 and any(map(from_registers, operations))
    return waited + 0.5 * chained


def is_factor(tiling: Tiling, product: Term) -> bool:
    """Whether a factor of a later product follows from this one: it lies as its rows do."""
    later = (t for t in tiling.form.terms if t.op in SUBSTITUTED and t is not product)
    return any(product in post_order(t.children) for t in later)


def _summed_later(tiling: Tiling, product: Term) -> int:
    """The names that products sum over of which this one is a factor: those of its columns."""
    later = (t for t in tiling.form.terms if t.op in SUBSTITUTED and t is not product)
    over = (t.args[0] for t in later if product in post_order(t.children))
    return reduce(or_, over, 0)  # type: ignore[arg-type]


def as_factor(tiling: Tiling, found: Contraction) -> Array:
    """How many times its work a product without an operation takes, where it lies as a factor of a
    later operation: that one's rows are computed whole; and where threads gather what they
    multiply, each element from where another one says.
    """
    gathers = tiling.pricer.overlap and "gather" in (found.left.op, found.right.op)
    padding = tiling.shape * (GATHERED if gathers else 1.0)
    for term in tiling.form.terms:
        named = term.op == "weighted_contract" and tiling.blocking is not None
        operation = tiling.spec.operation(str(term.args[3])) if named else None
        extent = next(iter(operation.extents.values())) if operation else 0
        if extent and found.term in post_order(term.children):
            rows = tiling.tile_points(found.rows)
            padding = np.maximum(padding, np.ceil(rows / extent) * extent / rows)
    return padding


def written_seconds(tiling: Tiling) -> float:
    """Seconds that results of products take longer to write to the cache than as many bytes to
    read, which other teams' products do not hide: the processors wait for the same cache. Whatever
    tiles and operations, they are the same; in more parts they are more.
    """
    cache, facts = tiling.pricer.cache, tiling.form.facts
    masks = [(facts.universe.mask(one.names), one.dtype.itemsize) for one in tiling.form.stored]
    stored = sum(tiling.points(mask) * size for mask, size in masks)
    rates = cache.write_gb_per_s, cache.bandwidth_gb_per_s
    return stored * (1 / rates[0] - 1 / rates[1]) * 1e-9


def across_seconds(
    tiling: Tiling, found: Contraction, names: Sequence[str], numbers: NDArray[np.intp]
) -> Array:
    """Seconds that results of short elements take longer to write where the rows of operations, of
    which each tile has the one of a number, lie along memory: threads hold neighbours apart.
    """
    made = tiling.form
    along = made.facts.universe.mask(made.stored[0].names[-1:])
    short = made.stored[0].dtype.itemsize <= SHORT_RESULTS
    if is_factor(tiling, found.term) or not short or not along & (found.rows | found.columns):
        return 0 * tiling.shape
    family = [tiling.spec.operation(name) for name in names]
    straight = _padding(tiling, family, (found.rows, found.columns, found.summed))
    turned = _padding(tiling, family, (found.columns, found.rows, found.summed))
    across = (TURNED * turned < straight) == bool(along & found.columns)
    own = np.take_along_axis(across, numbers[np.newaxis], axis=0)[0]
    stored = tiling.points(made.facts.universe.mask(made.stored[0].names))
    return own * stored * ACROSS_WORK * instruction_seconds(tiling.spec)
