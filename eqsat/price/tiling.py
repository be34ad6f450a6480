"""How often and how much of each value the tiles of a form compute."""

import math
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from eqsat.graph.index import unit_names
from eqsat.kernel.stencils import Walk
from eqsat.price.live_share import live_share
from eqsat.price.rates import Array, Blocking, Rates
from eqsat.terms.algebra import Read, Term
from eqsat.terms.form import REDUCING, WEIGHTED, Form, loops, stored_late

LANES = 32
LINE = 128  # bytes that memory moves at best
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

    def longest(self, mask: int) -> Array:
        """Points of the longest name of an index set in one tile."""
        universe = self.form.facts.universe
        each = [self.tile_points(universe.mask([name])) for name in universe.members(mask)]
        return np.max([self.shape, *each], axis=0)

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
            extent = self.form.extents[name]
            cut = (chunk < extent) | (self.blocking is None)  # else each chunk has all of it
            count = count * np.ceil(extent / chunk) * np.where(cut, self.streams(name), 1)
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
