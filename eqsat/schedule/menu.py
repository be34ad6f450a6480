"""The tile choices that are considered for a form's grid, as arrays over one menu."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from eqsat.layout.prepare import SHORT_ROWS
from eqsat.layout.window_factors import few_in_box, place_names, sliding_names, window_places
from eqsat.price.clusters import clusters, sharers
from eqsat.price.live_share import live_share
from eqsat.price.pricer import Pricer
from eqsat.schedule.in_memory import (
    along_rows,
    crossed,
    innermost,
    lies_in_short_rows,
    points_inside,
    summed_points,
)
from eqsat.schedule.reduction_parts import PartMenu, core_parts, part_menu
from eqsat.schedule.stream_k import stream_k_parts
from eqsat.schedule.turned import turned_names
from eqsat.schedule.windows import (
    SWIZZLED,
    moves_beside,
    places_alone,
    places_held,
    places_of,
    shared_rows,
    summed_through_windows,
)
from eqsat.specs import ParallelProcessingUnit
from eqsat.terms.algebra import SCATTERS, guarded_names, post_order, read_along
from eqsat.terms.form import REDUCING, Form

MOST_IN_SHORT = 4096  # points of a tile of rows so short that 32 of them keep few threads at work
TOGETHER = 32  # points of short products beside each other that lie together
LEAST_ROWS = 64  # rows of a tile that fill a matrix operation
FEW_COLUMNS = 8  # columns of a product that leave most of a matrix operation idle
MOST_ROWS = 256  # rows of a tile that holds all of several names
SHORT_SUM = 32  # points of a sum from where they are streamed in chunks
MOST_IN_WINDOWS = 64  # places in windows that a thread takes at once
# Points of products over windows, whose places lie in a tile once: if they are no chunks of one
# place too, and if they are.
MOST_OF_WINDOWS = (640, 1024)
CHUNKS = (256, 1024, 4096)  # points of a chunk of a sum that is no product
MASKED = (64, 128, 256)  # points of a chunk that a core may leave out
MOST_HELD = 1 << 15  # points of a chunk beside names that lie in the tile whole
MOST_IN_ROWS = 1 << 13  # the same of rows that are reduced and stored
MOST_AT_ONCE = (4096, 160)  # points of a sum, and of one of products, that a tile takes at once
MOST_POINTS = 1 << 20  # of a tile that is priced before a kernel is scheduled
MOST_SCHEDULES = 4096  # of a body, menus are thinned until there are no more


def sizes(extent: int, least: int = 1, most: int = 1 << 14) -> list[int]:
    """Powers of two below the extent, and the extent itself."""
    out = [1 << p for p in range(15) if least <= 1 << p < min(extent, most + 1)]
    return [*out, extent] if extent <= most else out


def chunks(form: Form) -> dict[str, NDArray[np.float64]]:
    """Tiles that are blocks of the grid cut at one or two names, or of any two names alone.

    Names outside the first cut have tile 1, those inside the last cut their whole extent: as they
    lie in memory. What two names of a product share need not lie between them.
    """
    rows = _blocks(tuple(form.extents[name] for name in form.grid))
    return {name: rows[:, i] for i, name in enumerate(form.grid)}


def least_seconds(form: Form, pricer: Pricer, clusters: bool = True) -> float:
    """The least predicted seconds of a kernel of a form, before it is scheduled."""
    return float(pricer.price(form, chunks(form), clusters=clusters).seconds.min())


@lru_cache(maxsize=1024)
def _blocks(extents: tuple[int, ...]) -> NDArray[np.float64]:
    rank = len(extents)
    rows: list[list[int]] = [[1] * rank]
    for first in range(rank):
        inside = list(extents[first + 1 :])
        rows += [[1] * first + [size, *inside] for size in sizes(extents[first])]
        for second in range(first + 1, rank):
            between, tail = extents[first + 1 : second], extents[second + 1 :]
            for size in sizes(extents[first], 16)[-6:]:
                for other in sizes(extents[second], 16)[:-1]:
                    rows.append([1] * first + [size, *between, other, *tail])
            for size in sizes(extents[first], 16)[-6:]:
                for other in sizes(extents[second], 16)[-6:]:
                    rows.append([1] * rank)
                    rows[-1][first], rows[-1][second] = size, other
    table = np.array(rows, dtype=np.float64).reshape(len(rows), rank)
    kept = table[table.prod(axis=1) <= MOST_POINTS] if rank else table[:1]
    return np.unique(kept if len(kept) else table[:1], axis=0)


@dataclass(frozen=True)
class Menus:
    """What the schedule rules may choose from: axes in order, and the sizes of each.

    `parts`: for a schedule that settles every axis, in how many parts a reduction may be split;
    `turned`: names that what is stored may have outermost;
    `clusters`: how many blocks may compute a tile, `sharers`: how many copy for each other,
    `last_parts`: in how many the tiles of a last wave, of so many `processors`, may be; `extents`:
    of the grid's names.
    """

    axes: tuple[str, ...]
    tiles: dict[str, list[int]]
    chunks: dict[str, list[int]]
    kept: tuple[str, ...]
    threads: tuple[int, ...]
    stages: tuple[tuple[str, int], ...]
    parts: PartMenu = field(default_factory=PartMenu)
    turned: tuple[str, ...] = ()
    clusters: tuple[int, ...] = ()
    sharers: tuple[int, ...] = ()
    last_parts: tuple[int, ...] = ()
    processors: int = 1
    extents: Mapping[str, int] = field(default_factory=dict)

    def facts(self) -> list[str]:
        """As egglog facts."""
        lines = [f'(axis {i} "{name}")' for i, name in enumerate(self.axes)]
        lines += [f'(tile_menu "{n}" {s})' for n, sizes in self.tiles.items() for s in sizes]
        lines += [f'(chunk_menu "{n}" {s})' for n, sizes in self.chunks.items() for s in sizes]
        lines += [f'(keep_menu "{name}")' for name in self.kept]
        lines += [f"(thread_menu {count})" for count in self.threads]
        lines += [f'(stage_menu "{memory}" {count})' for memory, count in self.stages]
        lines += [f'(axis {len(self.axes)} "parts")'] if self.parts.counts else []
        lines += [f'(axis {len(self.axes)} "turn")'] if self.turned else []
        lines += [f'(turn_menu "{name}")' for name in self.turned]
        lines += [f'(axis {len(self.axes)} "cluster")'] if self.clusters else []
        lines += [f"(cluster_menu {count})" for count in self.clusters]
        lines += [f'(axis {len(self.axes)} "share")'] if self.sharers else []
        lines += [f"(share_menu {count})" for count in self.sharers]
        lines += [f'(axis {len(self.axes)} "stream_k")'] if self.last_parts else []
        lines += [f"(stream_k_menu {count})" for count in self.last_parts]
        lines += [f"(processors {self.processors})"] if self.last_parts else []
        lines += [f'(extent "{name}" {size})' for name, size in self.extents.items()]
        return [*lines, *self.parts.facts()]


def schedule_menus(form: Form, spec: ParallelProcessingUnit) -> Menus:
    """Sizes for every axis of a form; thinned from the outside in until few enough schedules."""
    axes = [*form.grid, *form.reduced]
    if not spec.overlaps:  # one instruction stream a processor
        cores = spec.processors
        products = any(form.met(term) for term in form.terms)
        tiles = {name: _nest_sizes(form.extents[name], cores, products) for name in form.grid}
        _thin(tiles, MOST_SCHEDULES)
        steps = {form.stepped: [1]} if form.steps.recurrent and form.stepped else {}
        kept = tuple(name for name in form.reduced if name not in steps)
        chunks = steps | _masked_chunks(form, [name for name in kept if name not in form.held])
        return Menus(tuple(axes), tiles, chunks, kept, (), (), core_parts(form, spec))
    tiles = {name: _block_sizes(form, name) for name in form.grid}
    matrix = any(form.met(term) for term in form.terms)
    started = any(
        o.asynchronous and o.semantics and o.semantics.contraction for o in spec.operations
    )
    lengths = (16, 32, 64) if matrix else _lengths(form)
    depths, teams = (1, 2, 3), (128, 256, 512)
    if matrix and started:
        row = SWIZZLED // form.narrowest
        lengths, depths, teams = (row, 2 * row, row // 2), (1, 2, 3, 4, 6, 8), (128, 256, 384)
    streamed = [name for name in form.reduced if name not in form.held]
    offered = 3 if len(streamed) == 1 and not matrix else 2
    windows = guarded_names(form.terms) if started and matrix else set[str]()
    beside = summed_through_windows(form) - windows if started and matrix else set[str]()
    offers = {n: _even(lengths, form.extents[n]) if n in windows else lengths for n in streamed}
    for name in beside & offers.keys():  # boxes beyond the end of channels are copied more slowly
        whole = tuple(size for size in lengths if not form.extents[name] % size)
        offers[name] = whole or _even(lengths, form.extents[name])
    chunks = {n: [s for s in offers[n] if s < form.extents[n]][:offered] for n in streamed}
    single = _single(form) if matrix else set()
    most = MOST_OF_WINDOWS[started]
    crowded = _crowded(form, chunks, single, most)
    places = places_of(form) if matrix and started else set[str]()
    held = places_held(form, most) if places else set[str]()
    chunks.update({name: [1] for name in single})
    for name, size in crowded.items():  # a row of places in windows leaves room for wide tiles
        chunks[name] = [size, 1] if size > 1 and name in places else [size]
    single |= crowded.keys()
    if matrix and started:
        chunks.update({name: [1] for name in _beside_short(form) - single})
    if form.stepped:
        chunks[form.stepped] = [1]
        teams = teams if matrix else (spec.members("warp", "thread"), *teams)
    block = spec.members(spec.tile_group, "thread")
    threads = tuple(count for count in teams if count <= block)
    stages: tuple[tuple[str, int], ...] = ()
    placed = [m for m in spec.memory_domains if m.managed == "software"]
    shared = [m.name for m in placed if m.shared_across == spec.tile_group]
    if matrix:
        stages = (("registers", 1), *((name, depth) for name in shared for depth in depths))
        axes.append("stages")
    axes.append("threads")
    fixed = len(threads) * max(len(stages), 1)
    for choices in chunks.values():
        fixed *= 1 + len(choices)
    fixed //= 2 ** len(single)
    parts = part_menu(form, spec, tiles, chunks)
    _thin(tiles, MOST_SCHEDULES // fixed)
    kept = tuple(name for name in form.reduced if name not in single - held)
    blocks = () if matrix else clusters(form, spec)
    pairs = sharers(spec) if matrix and started else ()
    last_parts = stream_k_parts(form) if matrix and started else ()
    extents = {name: form.extents[name] for name in form.grid}
    sizes = (tuple(axes), tiles, chunks, kept, threads, stages)
    turned = turned_names(form) if matrix else ()
    return Menus(*sizes, parts, turned, blocks, pairs, last_parts, spec.processors, extents)


def _masked_chunks(form: Form, names: list[str]) -> dict[str, list[int]]:
    """Lengths of chunks of names of which masks leave some out: a loop nest skips those."""
    stream = live_share(form, form.facts.universe.mask(names)).stream
    masked = form.facts.universe.members(stream)
    return {name: [n for n in MASKED if n < form.extents[name]] for name in masked}


def _lengths(form: Form) -> tuple[int, ...]:
    """Lengths of chunks beside which a tile holds all points of the names that are nested."""
    inside = math.prod(form.extents[name] for name in form.nested)
    if form.row_points > 1:  # as many as a block's threads have a few vectors each of
        most = _power(MOST_IN_ROWS // form.row_points)
        return tuple(dict.fromkeys(max(most >> n, 1) for n in range(len(CHUNKS))))
    most = _power(MOST_HELD // inside) if inside > 1 else CHUNKS[0]
    return CHUNKS if most >= CHUNKS[0] else tuple(max(most >> n, 1) for n in range(len(CHUNKS)))


def _even(lengths: tuple[int, ...], extent: int) -> tuple[int, ...]:
    """Lengths of chunks that leave no part of one: beyond the end of a name that moves windows,
    others are read, not zeros.
    """
    even = [size for size in (*lengths, min(lengths) // 2) if not extent % size]
    return tuple(even) or lengths


def _nest_sizes(extent: int, cores: int, products: bool) -> list[int]:
    """Tile extents of one grid name for a loop nest, the ones to keep longest first: also those
    that give each core as much, once or twice, where powers of two do not, and of products, whose
    factors are read in long runs then.
    """
    even = [-(-extent // (turns * cores)) for turns in (1, 2)]
    even = even if products or extent % (64 * cores) else []
    offered = [1, extent, 64, 128, *even[:1], 16, 4, 256, 32, *even[1:], 512, 8, 2]
    return list(dict.fromkeys(size for size in offered if size <= min(extent, 4096))) or [1]


def _block_sizes(form: Form, name: str) -> list[int]:
    """Tile extents of one grid name where threads share a tile: by its part in contractions."""
    extent = form.extents[name]
    bit = form.facts.universe.mask([name])
    sides = [
        [form.facts.free(factor) & bit for factor in factors]
        for term in form.terms
        if (factors := form.met(term))
    ]
    group = _companions(form, name)
    inside = math.prod(form.extents[other] for other in group[group.index(name) + 1 :])
    if len(group) > 1 and extent < SHORT_ROWS and (inside > 1 or extent < LEAST_ROWS):
        found = _shared_sizes(extent, inside)
        if inside >= LEAST_ROWS and moves_beside(form, name, group):
            found[1:1] = shared_rows(form)[0]
        if _has_few_columns(form, name):  # threads do as well: rows as memory has them
            slides = sliding_names(form)
            if not any(slides.values()):  # channels lie together, of which a tile has several
                sizes = (8, 16, 4) if extent >= 8 else (extent, 4)
                return [size for size in sizes if size <= extent] if name in slides else [1]
            return list(dict.fromkeys([extent, 32, *found] if inside == 1 else [4, 8, 1, *found]))
        alone = max(form.extents[n] for n in group) >= LEAST_ROWS // 2  # rows of one name
        whole = extent >= LEAST_ROWS // 2 and extent not in found
        return list(dict.fromkeys([*found, *[extent] * whole, *[1] * (alone and not whole)]))
    inner, along = innermost(form), along_rows(form, name)
    across = set() if form.reduced or form.nested else crossed(form)
    padded: list[int] = []
    if any(bool(left) != bool(right) for left, right in sides):
        if extent > FEW_COLUMNS and extent & (extent - 1):
            padded = [2 * _power(extent)]  # rows that are swizzled, and whole: no name is cut
        offered = [128, 64, 256, 192, 160, 96, 32, 16]
        if form.stepped or (len(group) > 1 and inside >= LEAST_ROWS):  # others fill the tile
            offered.insert(0, 1)
        if moves_beside(form, name, group):
            rows, runs = shared_rows(form)
            offered[:0] = [1, *rows] if inside >= LEAST_ROWS else runs
        offered = list(dict.fromkeys([*few_in_box(form, name), *offered]))
    elif name in across:
        return [size for size in (64, 128) if size < extent] if extent > 64 else [extent]
    elif name in inner and along and all(name in names for names in along):
        offered = [64, 512, 128, 16, 256, 1024, 8, 32, 4]
    elif name in inner and not along:
        offered = [512, 128, 1024, 2048, 64, 32, 256]
        offered = list(dict.fromkeys(_power(size // inner[name]) for size in offered))
        if any(left and right for left, right in sides):  # each point a product of its own
            offered[:0] = [1, 8, 16]
    else:
        offered = [1, 4, 16, 2, 8, 32]
        if any(one.term.op in SCATTERS for one in form.stored):
            offered += [64, 128]  # groups that stay have few tiles beside each other
        rows = _power(MOST_IN_SHORT // max(summed_points(form), 1))
        offered[:0] = [rows] if rows > max(offered) and lies_in_short_rows(form) else []
        tail = points_inside(form, name)
        if any(left and right for left, right in sides) and 1 < tail <= FEW_COLUMNS:
            offered.insert(0, TOGETHER // _power(tail))
    kept = [size for size in offered if size < extent or (size == extent and size > 64)]
    if extent > max(offered) or extent in kept:
        return kept
    if extent > LEAST_ROWS:
        return [*kept, extent]
    return list(dict.fromkeys([*kept[:1], extent, *padded, 1, *kept[1:]]))


def _power(size: int) -> int:
    """The greatest power of two up to a size, at least 1."""
    return 1 << max(size, 1).bit_length() - 1


def _shared_sizes(extent: int, inside: int) -> list[int]:
    """Tile extents of a short name that makes up the rows of a tile with `inside` points of others:
    enough for the rows of an operation, and no more.
    """
    if inside >= LEAST_ROWS:
        return [1, 2] if extent > 1 else [1]
    whole = [extent] if extent & (extent - 1) == 0 and extent * inside <= MOST_ROWS else []
    return whole or [size for size in (8, 16) if size <= extent] or [extent]


def _companions(form: Form, name: str) -> list[str]:
    """The grid names that make up the rows (or columns) of a product together with a name."""
    universe = form.facts.universe
    for term in form.terms:
        factors = form.met(term)
        if factors is None:
            continue
        left, right = (form.facts.free(factor) for factor in factors)
        for own, other in ((left, right), (right, left)):
            group = [n for n in form.grid if universe.mask([n]) & own & ~other]
            if name in group and len(group) > 1:
                return group
    return [name]


def _has_few_columns(form: Form, name: str) -> bool:
    """Whether products over windows have the name on one side, and few points on the other."""
    bit, universe = form.facts.universe.mask([name]), form.facts.universe
    for term in form.terms:
        factors = form.contraction(term)
        if factors and window_places(form, factors):
            left, right = (form.facts.free(factor) for factor in factors)
            other = right & ~left if left & ~right & bit else left & ~right
            names = universe.members(other & universe.mask(form.grid))
            if not other & bit and math.prod(form.extents[n] for n in names) < FEW_COLUMNS:
                return True
    return False


def _single(form: Form) -> set[str]:
    """Names that a product sums over beside a long one, the one that lies together in memory if
    there is such, or along which nothing slides beyond an edge: one point at a time.
    """
    found, guarded = set[str](), guarded_names(form.terms)
    for names, own, unit in _sums(form):
        long = [name for name in own if form.extents[name] >= SHORT_SUM]
        if (long or guarded & {*names}) and own == names:  # windows are copied another way
            even = {*unit} if set(long) - guarded else {*unit, *names} - guarded
            long += [n for n in own if n in even and form.extents[n] >= SHORT_SUM // 2]
        key = {name: (name in unit, name not in guarded, form.extents[name]) for name in long}
        inner = max(long, key=key.__getitem__, default="")
        found |= {*names} - {inner} if inner else set()
    return found & set(form.reduced) - form.held


def _beside_short(form: Form) -> set[str]:
    """Names that a product sums over beside a short one that lies together in memory, or would if
    it were copied, all of them short: an operation that has one summed index takes their points one
    at a time.
    """
    found: set[str] = set()
    for names, own, unit in _sums(form):
        short = all(form.extents[name] < SHORT_SUM for name in names)
        inner = max(own, key=lambda name: (name in unit, form.extents[name]))
        found |= {*names} - {inner} if short and (inner in unit or own != names) else set()
    return found & set(form.reduced) - form.held


def _sums(form: Form) -> Iterator[tuple[list[str], list[str], set[str]]]:
    """Of each product the names that it sums over; those of them that number no places in windows,
    if there are such; and the names along which its factors lie together in memory.
    """
    for term in form.terms:
        factors, over = form.factors(term), term.args[0]
        if factors and isinstance(over, int) and over:
            members = form.facts.universe.members
            names, places = members(over), members(over & window_places(form, factors))
            own = [name for name in names if name not in places] or [*names]
            yield [*names], own, read_along(post_order([term]))


def _crowded(
    form: Form, chunks: dict[str, list[int]], single: set[str], windows: int
) -> dict[str, int]:
    """Chunks of more names that must be streamed: of a sum over several, each too short to be
    streamed, that together are more than a tile holds, or of windows more than a thread. What lies
    together in memory stays whole, but for windows, which a thread shares across rows.
    """
    unit = _walked(form)
    found: dict[str, int] = {}
    for term in form.terms:
        if term.op in REDUCING and isinstance(term.args[0], int):
            left, right = (form.facts.free(f) for f in form.met(term) or (term, term))
            own = {*form.facts.universe.members(term.args[0])} & chunks.keys() - single
            sizes = {n: min(chunks[n], default=form.extents[n]) for n in own}
            inside = own & place_names(form, term)
            most = windows if inside else MOST_AT_ONCE[left != right]
            order = {n: (n not in inside, unit.get(n, 0), form.extents[n], n) for n in own}
            for name in sorted(own, key=order.__getitem__):
                points = math.prod(sizes.values())
                if most < points != sizes[name]:
                    room = most * sizes[name] // points
                    even = _divisor(form.extents[name], room) if name in inside else _power(room)
                    sizes[name] = found[name] = even
            places = own & places_alone(form, term, (left, right))
            *inner, last = sorted(places, key=lambda n: (n not in unit, n)) or [""]
            for name in (*inner, last):
                points = math.prod(sizes[n] for n in places)
                if points > MOST_IN_WINDOWS:
                    room = max(MOST_IN_WINDOWS * sizes[name] // points, 1)
                    even = _divisor(form.extents[name], room)
                    sizes[name] = found[name] = _power(room) if name == last else even
    return found


def _walked(form: Form) -> dict[str, int]:
    """Names along which memory is walked, and the points of the largest read that does."""
    found: dict[str, int] = {}
    for term in form.terms:
        points = form.facts.universe.size(form.facts.free(term)) if term.op == "read" else 0
        found.update({n: max(found.get(n, 0), points) for n in read_along([term])})
    return found


def _divisor(extent: int, most: int) -> int:
    """The greatest number up to `most` that divides an extent."""
    return next(size for size in range(max(most, 1), 0, -1) if not extent % size)


def _thin(tiles: dict[str, list[int]], most: int) -> None:
    """Drop the last of the longest menu until there are at most so many combinations."""
    while math.prod(len(choices) for choices in tiles.values()) > max(most, 1):
        longest = max(tiles, key=lambda name: len(tiles[name]))
        if len(tiles[longest]) == 1:
            return
        del tiles[longest][-1]
