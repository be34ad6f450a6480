"""How often and how much of each value the tiles of a form compute."""

import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from eqsat.graph.dtypes import DType
from eqsat.graph.index import Affine, FloorDiv, Mod, add, const, scale, unit_names
from eqsat.kernel.stencils import Walk
from eqsat.layout.needs import VECTOR_BYTES
from eqsat.layout.relayout import is_run, overlapping, walked_axes
from eqsat.price.live_share import live_share
from eqsat.price.rates import Array, Blocking, Rates
from eqsat.terms.algebra import Read, Term
from eqsat.terms.form import REDUCING, WEIGHTED, Form, loops, stored_late

CROSSING = 0.25  # part of the cache's time for bytes that both halves keep, which memory waits for
LANES = 32
LINE = 128  # bytes that memory moves at best
SEVERAL, SINGLE = 2 * LINE, 1.05  # rows of fewer bytes take as many times as long (H200)
ENDS = 64  # bytes as which the two ends of a row count that begins anywhere
EMPTY = 0.3  # of the time of what exists takes what a last tile of such rows lacks
SHORT = 40  # bytes of rows of boxes below which each takes as long, and longer, on an H200
BROKEN = 1.5  # times as much is drawn of 160 columns, whose last box is half a line, in such rows
# Times as long are rows of 96 16-bit results written, and of 64 (792 and 734 us, of 128 630).
SHARED_LINES, LONE_LINES = 1.25, 1.15
PARTIAL = 4.8  # sectors in the time of which half a one is written, or less of it: 57 a ns, H100
STREAMED = 32  # points of a reduction that a tile is taken to hold before it is scheduled
BESIDE_ROWS = 4096  # of a chunk in which rows of a reduction inside lie whole, the same
LEAST_PART = 128  # points of a reduction that are worth a tile of their own
LEAST_ROWS = 8  # the same of long rows in which others are reduced


class Tiling:
    """A form under tile choices, an array entry for each choice."""

    def __init__(
        self,
        pricer: Rates,
        form: Form,
        tiles: Mapping[str, Array],
        blocking: Blocking | None,
    ) -> None:
        self.pricer, self.form, self.spec = pricer, form, pricer.spec
        self.tiles = tiles
        self.blocking = blocking
        if blocking is not None:
            self.shape = np.ones_like(blocking.threads)
        else:
            self.shape = np.ones(1) if not tiles else np.ones_like(next(iter(tiles.values())))
        self.chunks: Mapping[str, Array] = blocking.chunks if blocking is not None else {}
        if blocking is None and pricer.overlap:  # threads share a tile: what is reduced is streamed
            self.chunks = {n: self.shape * size for n, size in _streamed(form).items()}
        elif blocking is None and form.steps.recurrent and form.stepped:
            self.chunks = {form.stepped: self.shape}
        universe = form.facts.universe
        self.bit = {name: universe.mask([name]) for name in form.grid}
        self.count = {n: np.ceil(universe.extents[n] / tiles[n]) for n in form.grid}
        self.grid = sum(self.bit.values())
        streamed = [name for name in self.chunks if name in form.reduced]
        if blocking is None and not pricer.overlap:  # a schedule finds chunks to leave out
            streamed = [name for name in form.reduced if name not in form.held]
        self.masked = live_share(form, universe.mask(streamed))
        self.live = self._live()
        self._times: dict[tuple[int, int], Array] = {}
        self._points: dict[int, float] = {}
        self._inside: dict[int, Array] = {}
        self.neighbours: Mapping[Walk, tuple[Array, Array]] | None = None  # `stencil.py`
        self.lies_across: bool | None = None  # what is read, to what is stored: `nest.py`
        self.paddings: dict[tuple[object, ...], Array] = {}  # of whole operations, once found
        self._walks: dict[tuple[object, ...], dict[int, float]] = {}  # bytes read, by start

    def times(self, mask: int) -> Array:
        """How often a value over `mask` is computed: once per tile of each grid name it lacks;
        what is streamed in live chunks alone.
        """
        streamed = mask & self.masked.stream
        mask &= self.grid
        if (mask, streamed) not in self._times:
            total = self.shape
            for name, bit in self.bit.items():
                if not mask & bit:
                    total = total * self.count[name]
            self._times[mask, streamed] = total * (self.live if streamed else 1.0)
        return self._times[mask, streamed]

    def _live(self) -> Array:
        """The part of the chunks of all tiles that masks leave anything of."""
        return np.minimum(self.masked.share + self.reach() / 2, 1.0) * self.shape

    def reach(self) -> Array:
        """How far points of a tile lie apart, as a part of a mask's range."""
        wide = np.zeros_like(self.shape)
        for name, step in self.masked.steps:
            points = self.tiles.get(name, self.chunks.get(name, self.shape))
            wide = np.maximum(wide, points * step)
        return wide

    def left_by_masks(self, mask: int) -> Array:
        """The part of a value that masks leave, where each tile reads chunks of its own."""
        tiled = [self.bit[name] for name, _ in self.masked.steps if name in self.bit]
        own = mask & self.masked.stream and all(mask & bit for bit in tiled)
        return self.live if own else self.shape

    def points(self, mask: int) -> float:
        """Points of an index set."""
        if mask not in self._points:
            self._points[mask] = float(self.form.facts.universe.size(mask))
        return self._points[mask]

    def tile_points(self, mask: int) -> Array:
        """Points of an index set that lie in one tile."""
        if mask not in self._inside:
            total = self.shape
            for name in self.form.facts.universe.members(mask):
                if name in self.bit:
                    total = total * self.tiles[name]
                else:
                    total = total * self.chunks.get(name, self.form.extents[name])
            self._inside[mask] = total
        return self._inside[mask]

    def factors(self, term: Term) -> tuple[Term, Term] | None:
        """As `Form.factors`; of other reductions than products only where a tile has several
        results of each side.
        """
        found = self.form.factors(term)
        if found is None or self.form.contraction(term):
            return found
        left, right = (self.form.facts.free(side) for side in found)
        own = (self.tile_points(left & ~right), self.tile_points(right & ~left))
        return found if all((points > 1).any() for points in own) else None

    def overhang(self, mask: int) -> Array:
        """How many times the points of an index set its tiles and the chunks of streams have, those
        beyond its ends too.
        """
        times, chunks = self.shape, self.blocking.chunks if self.blocking else {}
        for name in self.form.facts.universe.members(mask):
            extent = self.form.extents[name]
            if name in self.bit:
                times = times * self.count[name] * self.tiles[name] / extent
            elif name in chunks:
                times = times * np.ceil(extent / chunks[name]) * chunks[name] / extent
        return times

    def tiles_in_all(self) -> Array:
        """Tiles of the grid."""
        total = self.shape
        for count in self.count.values():
            total = total * count
        return total

    def unseen(self, read: Read, unique: float) -> float:
        """Bytes that a read draws from memory beyond those of others that walk the same axes of the
        same buffer a little before or behind, what a stencil reads of a point's neighbours; or that
        walk more axes of it or fewer, as one piece of a row is read beside the row.
        """
        address = _unwound(read.address)
        walk, most = (read.buffer, address.terms), self.pricer.sizes.get(read.buffer, 0)
        near = self.pricer.cache.size_bytes / 4 / read.dtype.itemsize
        others = self._walks.setdefault(walk, {})
        start = address.constant
        seen = sum(size for other, size in others.items() if abs(other - start) <= near)
        for (buffer, terms), found in self._walks.items():
            if buffer == read.buffer and terms != address.terms:
                ways = {at: Affine(terms, at) for at in found}
                if any(self._lies_in(address, whole, near) for whole in ways.values()):
                    return 0.0
                parts = (at for at, part in ways.items() if self._lies_in(part, address, near))
                seen += sum(found[at] for at in parts)
        left = min(unique, max(most - seen, 0.0)) if seen and most else unique
        others[start] = others.get(start, 0.0) + left
        return left

    def _lies_in(self, part: Affine, whole: Affine, near: float) -> bool:
        """Whether an address is another one at some place along short axes that it lacks."""
        rest = {*whole.terms} - {*part.terms}
        if {*part.terms} - {*whole.terms} or not all(isinstance(atom, str) for atom, _ in rest):
            return False
        reach = sum(step * (self.form.extents[str(atom)] - 1) for atom, step in rest if step > 0)
        return 0 <= part.constant - whole.constant <= min(reach, near)

    def lines(self, contiguous: Sequence[str], dtype: DType, address: Affine) -> Array:
        """How many times its bytes a tile moves along the name that is contiguous in memory: where
        it is narrower than a line, lines are fetched in parts, and single lines cost more than
        several. A stream walks whole lines; how long its chunks are is left to the schedule. Rows
        that lie anywhere in memory begin and end with parts of what others move.
        """
        tile = None
        if self.pricer.overlap and len(contiguous) == 1:
            (name,) = contiguous
            chunks = self.blocking.chunks if self.blocking is not None else {}
            tile = self.tiles.get(name, chunks.get(name))
        if tile is None:
            return self.shape
        whole, width = tile >= self.form.extents[name], tile * dtype.itemsize
        times = np.maximum(LINE / width, 1.0) ** 0.5
        alone = not self.form.reduced  # nothing else takes the time
        if name in self.tiles:
            times = np.where((width < SEVERAL) & alone, times * SINGLE, times)
            steps = [step * dtype.itemsize for atom, step in address.terms if atom != name]
            if any(step % VECTOR_BYTES for step in steps):
                beyond = self.count[name] * tile / self.form.extents[name] - 1
                ends = ENDS if alone else ENDS / 2  # which the tile beside it has drawn
                times = times * (1 + ends / width + EMPTY * beyond * alone)
        return np.where(whole, 1.0, times)

    def written_lines(self, contiguous: Sequence[str], dtype: DType, address: Affine) -> Array:
        """The same of what is stored: lines that two tiles share are written in parts, and of
        results that threads hold single ones take longer.
        """
        times = self.lines(contiguous, dtype, address)
        tile = self.tiles.get(contiguous[0]) if self.pricer.overlap and contiguous else None
        if tile is None:
            return times
        width, whole = tile * dtype.itemsize, tile >= self.form.extents[contiguous[0]]
        shared = np.where((width > LINE) & (width % LINE > 0), SHARED_LINES, 1.0)
        shared = np.where((width <= LINE) & bool(self.form.reduced), LONE_LINES, shared)
        return np.where(whole, times, times * shared)

    def present(self, read: Read) -> float:
        """The part of a read's points at which memory is read, as guards of one name each tell."""
        share = 1.0
        for guard in read.guards:
            (name, step), *others = guard.expression.terms or ((None, 1),)
            if isinstance(name, str) and not others:
                extent, start = self.form.extents[name], guard.expression.constant
                bounds = ((guard.lower - start) / step, (guard.upper - start) / step)
                inside = min(max(bounds), extent) - max(min(bounds), 0)
                share *= min(max(inside / extent, 0.0), 1.0)
        return share

    def drawn(self, read: Read, touched: Array) -> Array:
        """Bytes that tiles draw from the cache for a read, whole sectors: where windows slide, each
        place of an axis once for a tile, since what is nearer keeps it.
        """
        axes = walked_axes(read, self.form.extents) if self.pricer.overlap else None
        if axes is None and self.blocking is not None and (part := overlapping(read)) < 1:
            return touched * part
        times = self.sectors(read.address, read.dtype.itemsize)
        if not axes or not any(axis.slides for axis in axes):
            return touched * times
        held = read.dtype.itemsize * self.times(self.form.facts.universe.mask(read.names))
        for axis in axes:
            places, whole = self.shape, self.shape
            for atom, step in axis.place.terms:
                tile = self.tile_points(self.form.facts.universe.mask([str(atom)]))
                places = places + abs(step) * (tile - 1)
                whole = whole * self.form.extents[str(atom)] / tile
            held = held * places * whole
        return np.minimum(held, touched) * times

    def saved(self, mask: int) -> Array:
        """The part of the copies of a factor over `mask` that blocks which copy for each other
        need not make.
        """
        assert self.blocking is not None
        lacking = 0 * self.shape
        for name, along in self._runs()[0]:
            lacking = np.where(along, float(not mask & self.bit[name]), lacking)
        return lacking * (1 - 1 / self.blocking.shared)

    def repeated(self) -> Array:
        """How many times as many tiles are computed where those of blocks that copy for each other
        are no whole runs.
        """
        if self.blocking is None or not (self.blocking.shared > 1).any():
            return self.shape
        return self._runs()[1]

    def _runs(self) -> tuple[list[tuple[str, NDArray[np.bool_]]], Array]:
        """Where the runs of blocks that copy for each other lie along which axis, the last of those
        told, and how many times as many tiles these have: of the last two axes that are cut along
        the one that has fewer to repeat, or the first of them.
        """
        assert self.blocking is not None
        together = self.blocking.shared
        along: list[tuple[str, NDArray[np.bool_]]] = []
        least, cut = np.inf * self.shape, 0 * self.shape
        for name in reversed(self.form.grid):
            count = self.count[name]
            times = np.ceil(count / together) * together / count
            better = (count > 1) & (cut < 2) & (times <= least)
            least, cut = np.where(better, times, least), cut + (count > 1)
            along.append((name, better))
        return along, np.where(np.isfinite(least), least, 1.0)

    def sectors(self, address: Affine, size: int, together: int = 1) -> Array:
        """How many times its bytes a tile draws from the cache, or writes to it, of elements of a
        size: whole sectors, or so many together, where neighbours in the tile are few, or lie apart
        in memory.
        """
        if not self.pricer.overlap or self.blocking is None:
            return self.shape
        if any(isinstance(atom, FloorDiv) and stride == 1 for atom, stride in address.terms):
            return self.shape  # neighbours are the same element, or the next
        cut = {*self.bit, *self.chunks}
        if is_run(address, tuple((n, e) for n, e in self.form.extents.items() if n not in cut)):
            return self.shape
        tiles: dict[int, Array] = {}  # indices of one stride slide: they share elements
        whole: dict[int, Array] = {}
        for atom, stride in _unwound(address).terms:
            if str(atom) in self.form.extents:
                tile = self.tile_points(self.form.facts.universe.mask([str(atom)]))
                tiles[abs(stride)] = np.maximum(tiles.get(abs(stride), 0), tile)
                inside = tile >= self.form.extents[str(atom)]
                whole[abs(stride)] = whole.get(abs(stride), True) & inside
        step = min(tiles, default=1)
        run, joined = self.shape, self.shape > 0
        for stride in sorted(tiles):
            beside, rest = divmod(stride, step)
            joined = joined & (rest == 0) & (beside <= run)  # overlapping windows are one run
            run = np.where(joined, run + beside * (tiles[stride] - 1), run)
            joined = joined & whole[stride]
        sector = together * self.pricer.cache.access_granularity_bytes
        drawn = np.minimum(np.ceil(run * step * size / sector), run) * sector
        return np.maximum(drawn / (run * size), 1.0)

    def written(self, address: Affine, size: int) -> Array:
        """The same of elements that are stored: half a sector takes longer than a whole one."""
        times = self.sectors(address, size)
        return np.where(times >= 2, times * PARTIAL, times)

    def crossed(self, side: Term) -> Array:
        """How many times its bytes a box draws from the cache: rows of a line each touch two where
        they do not lie whole lines apart in memory, and rows of less are drawn more slowly
        (measured on an H200: 5.8 TB/s in rows of 64 bytes where rows of 128 reach 8.2).
        """
        read = side.args[0]
        assert isinstance(read, Read)
        size, extents = read.dtype.itemsize, self.form.extents
        steps = [step * size for atom, step in read.address.terms if extents.get(str(atom)) != 1]
        apart = math.gcd(LINE, *(step for step in steps if abs(step) != size))
        beside = (str(atom) for atom, step in read.address.terms if step == 1)
        unit = [name for name in beside if name in extents]
        width = self.tile_points(self.form.facts.universe.mask(unit)) * size
        broken = (width > 2 * LINE) & (width % LINE > 0) & (apart < LINE)
        times = np.where(broken, BROKEN, 1.0) * np.maximum(SHORT / width, 1.0) ** 2
        return (2 - apart / LINE) * self.lines(unit, read.dtype, read.address) * times

    def boxed(self, side: Term) -> Array:
        """How many times a factor's bytes its boxes have, whose parts are a line wide where the
        tile is wider than that.
        """
        read = side.args[0]
        if not isinstance(read, Read):
            return self.shape
        for atom, step in read.address.terms:
            if step == 1 and str(atom) in self.form.extents:
                tile = self.tile_points(self.form.facts.universe.mask([str(atom)]))
                width = tile * read.dtype.itemsize
                return np.where(width > LINE, np.ceil(width / LINE) * LINE / width, 1.0)
        return self.shape

    def kept_twice(self, side: Term, copied: Array) -> Array:
        """Bytes' worth of what several blocks copy of a factor, which crosses the cache once: that
        has halves, and of what is asked for from both each keeps its own.
        """
        free, itemsize = self.form.facts.free(side), self.form.facts.dtype(side).itemsize
        whole = self.points(free) * itemsize
        return CROSSING * np.clip(copied - whole, 0.0, whole)

    def largest(self, absorbed: Collection[Term]) -> Array:
        """Bytes of the largest value of a tile, of those that are computed."""
        size = self.shape * 0
        for term in self.form.computed:
            if term.op not in {"literal", "position"} and term not in absorbed:
                itemsize = self.form.facts.dtype(term).compute.itemsize
                size = np.maximum(size, self.held_points(term) * itemsize)
        return size

    def held_points(self, term: Term) -> Array:
        """Points of a value in the registers of a tile."""
        return self.tile_points(self.form.facts.free(term))

    def reductions_in_turn(self, pivots: bool = False) -> int:
        """The most reductions of which each needs the one before it; with `pivots`, those about
        which weighted sums are taken counted as well.
        """
        turn: dict[Term, int] = {}
        for term in self.form.terms:
            before = max((turn[child] for child in term.children), default=0)
            turn[term] = before + (term.op in REDUCING) + (pivots and term.op in WEIGHTED)
        return max(turn.values(), default=0)

    def streams(self, name: str) -> int:
        """How many loops of a tile run over the chunks of a name."""
        universe = self.form.facts.universe
        bit, streamed = universe.mask([name]), universe.mask(self.chunks)
        phases = {number for number, over in loops(self.form, streamed) if over & bit}
        return len(phases) + any(name in one.names for one in stored_late(self.form, streamed))

    def chunks_of(self, mask: int) -> Array:
        """Chunks in which one loop streams a value over `mask`."""
        count = self.shape
        for name in {*self.chunks} & {*self.form.facts.universe.members(mask)}:
            count = count * np.ceil(self.form.extents[name] / self.chunks[name])
        return count

    def steps(self) -> Array:
        """Chunks of all loops of a tile."""
        count = self.shape
        for name, chunk in self.chunks.items():
            count = count * np.ceil(self.form.extents[name] / chunk) * self.streams(name)
        return count * self.live

    def stored_points(self) -> list[tuple[int, int]]:
        """The names of each value that is stored, or read for that alone; the bytes of a point."""
        facts = self.form.facts
        found = [(facts.universe.mask(one.names), one.dtype.itemsize) for one in self.form.stored]
        streamed = facts.universe.mask(self.chunks)
        for term in self.form.terms:
            if term.op == "read" and len(term.args) == 1 and not facts.free(term) & streamed:
                found.append((facts.free(term), facts.dtype(term).itemsize))
        return found

    def in_parts(self, tiles: Array) -> Array:
        """Tiles that run: until it is scheduled, a long reduction of few tiles may be split."""
        if self.blocking is not None or not self.pricer.overlap:
            return tiles
        most = np.minimum(tiles * max(self._parts(), 1), self.spec.processors)
        return np.maximum(tiles, most)

    def _parts(self) -> int:
        """In how many parts the longest reduced name may be, each of some points: of all names that
        are reduced with it, where nothing is stored but what is left of them, or lies along all.
        """
        extents, universe = self.form.extents, self.form.facts.universe
        least = max(LEAST_PART // self.form.row_points, LEAST_ROWS)
        longest = max((extents[name] for name in self.form.reduced), default=0) // least
        for term in self.form.phase:
            names = universe.members(term.args[0])  # type: ignore[arg-type]
            over = [extents[name] for name in names]
            left = [one.names for one in self.form.stored if not {*names} <= {*one.names}]
            stored = max((math.prod(extents[n] for n in one) for one in left), default=0)
            parts = math.prod(over) // LEAST_PART
            if parts >= stored:
                longest = max(longest, min(parts, max(over, default=0)))
        return longest


@lru_cache(maxsize=4096)
def _unwound(address: Affine) -> Affine:
    """The address with the remainders of a moved name taken as that name, which they are but where
    they begin anew: how far neighbours lie apart. Most of the way round is a little way back.
    """
    parts = [const(address.constant)]
    for atom, step in address.terms:
        one = Affine(((atom, 1),), 0)
        if isinstance(atom, Mod) and len(atom.numerator.terms) == 1:
            by = atom.numerator.constant % atom.divisor
            back = atom.divisor if by > atom.divisor // 2 else 0
            one = Affine(atom.numerator.terms, by - back)
        parts.append(scale(one, step))
    return add(*parts)


def _streamed(form: Form) -> dict[str, int]:
    """Points of each reduced name in a tile; of the names of one reduction that first along which
    the largest array is read, then the longest.
    """
    whole = form.facts.universe.members(form.facts.whole)
    names = [name for name in form.reduced if name not in whole]
    most = min(STREAMED, max(BESIDE_ROWS // form.row_points, 1))
    chunks = {name: min(form.extents[name], most) for name in names}
    if form.stepped:
        chunks[form.stepped] = 1
    along = dict.fromkeys(form.extents, 0)  # points of arrays that are read along a name
    for term in form.terms:
        read = term.args[0] if term.op == "read" else None
        for name in unit_names(read.address) if isinstance(read, Read) else ():
            along[name] = max(along[name], form.facts.universe.size(form.facts.free(term)))
    for term in form.phase:
        over = term.args[0]
        assert isinstance(over, int)
        names = form.facts.universe.members(over & ~form.facts.whole)
        room = most
        for name in sorted(names, key=lambda n: (along[n], form.extents[n]), reverse=True):
            chunks[name] = min(chunks[name], room)
            room = max(room // chunks[name], 1)
    return chunks
