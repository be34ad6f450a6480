"""What tiles draw from memory and the cache beyond what they ask for: sectors, lines, boxes."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from eqsat.graph.dtypes import DType
from eqsat.graph.index import Affine, FloorDiv, Mod, add, const, scale
from eqsat.layout.needs import VECTOR_BYTES
from eqsat.layout.relayout import is_run, overlapping, walked_axes
from eqsat.price.rates import Array
from eqsat.price.tiling import LINE, Tiling
from eqsat.terms.algebra import Read, Term

CROSSING = 0.25  # part of the cache's time for bytes that both halves keep, which memory waits for
SEVERAL, SINGLE = 2 * LINE, 1.05  # rows of fewer bytes take as many times as long (H200)
ENDS = 64  # bytes as which the two ends of a row count that begins anywhere
EMPTY = 0.3  # of the time of what exists takes what a last tile of such rows lacks
SHORT = 40  # bytes of rows of boxes below which each takes as long, and longer, on an H200
ZEROS = 2  # times as long take boxes of whose rows a part is beyond the tensor, and zero
BROKEN = 1.5  # times as much is drawn of 160 columns, whose last box is half a line, in such rows
# Times as long are rows of 96 16-bit results written, and of 64 (792 and 734 us, of 128 630).
SHARED_LINES, LONE_LINES = 1.25, 1.15
PARTIAL = 4.8  # sectors in the time of which half a one is written, or less of it: 57 a ns, H100


class Drawn(Tiling):
    """A tiling with what its reads and stores draw from memory and the cache."""

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

    def sectors(self, address: Affine, size: int, together: int = 1) -> Array:
        """How many times its bytes a tile draws from the cache, or writes to it, of elements of a
        size: whole sectors, or so many together, where neighbours in the tile are few, or lie apart
        in memory.
        """
        return self._in_sectors(*self._run(address), size, together)

    def _in_sectors(self, step: int, run: Array, size: int, together: int = 1) -> Array:
        """The same of so many elements that follow each other, so far apart."""
        sector = together * self.pricer.cache.access_granularity_bytes
        drawn = np.minimum(np.ceil(run * step * size / sector), run) * sector
        return np.where(run > 0, np.maximum(drawn / np.maximum(run * size, 1), 1.0), 1.0)

    def _run(self, address: Affine) -> tuple[int, Array]:
        """How far neighbours in a tile lie apart in memory, and how many of them follow each other
        there; none where that is not told, or all do.
        """
        if not self.pricer.overlap or self.blocking is None:
            return 1, 0 * self.shape
        if any(isinstance(atom, FloorDiv) and stride == 1 for atom, stride in address.terms):
            return 1, 0 * self.shape  # neighbours are the same element, or the next
        cut = {*self.bit, *self.chunks}
        if is_run(address, tuple((n, e) for n, e in self.form.extents.items() if n not in cut)):
            return 1, 0 * self.shape
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
        return step, run

    def written(self, address: Affine, size: int) -> Array:
        """The same of elements that are stored: half a sector takes longer than a whole one, and
        so do both ends of short runs that begin anywhere.
        """
        sector, (step, run) = self.pricer.cache.access_granularity_bytes, self._run(address)
        begins = np.full(self.shape.shape, math.gcd(sector, address.constant * size))
        for atom, by in address.terms:
            tile = self.tiles.get(str(atom), self.shape)
            cut = tile < self.form.extents.get(str(atom), np.inf)  # else tiles begin at its first
            begins = np.gcd(begins, np.where(cut, tile, 0).astype(int) * by * size)
        length = run * step * size
        short = (begins < sector) & (length >= sector) & (length <= LINE)
        ends = np.where(short, 1 + (PARTIAL - 1) * sector / np.maximum(length, 1), 1.0)
        times = self._in_sectors(step, run, size)
        return np.where(times >= 2, times * PARTIAL, times * ends)

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
        row = np.where((width < LINE) & (width % (LINE / 2) > 0), LINE / 4, width)
        times = np.where(broken, BROKEN, 1.0) * np.maximum(SHORT / np.minimum(row, width), 1.0) ** 2
        times = times * np.where(row < width, (LINE / row) ** 0.5, 1.0)  # several in place of one
        times = times * np.where((width < LINE) & (width % (LINE / 4) > 0), ZEROS, 1.0)
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
