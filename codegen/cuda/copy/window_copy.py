"""Copies of windows that threads take apart: each takes the windows of its rows, many elements of
one, whose places within it the compiler knows.

Places in memory are quotients and remainders of a row's number and of an element's within a window:
those of rows are then asked for once, and those within windows never. Elements side by side are
written to the tile together.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, pairwise, product
from math import prod

from eqsat.graph.index import Affine, atom_names, bounds
from eqsat.kernel.ir import Guard, Load
from eqsat.layout.needs import VECTOR_BYTES
from eqsat.layout.relayout import asked_names, window_rows

from ..place.block import Block, Frame
from ..place.distribution import Distribution
from ..place.threads import WARP, spread_over, thread_digits
from ..place.tile import Point, Tile
from ..prelude.math import held_type, storage_type
from .tiles import fitting, if_inside, inside, write_held
from .window_tile import Places

AHEAD = 64  # elements that a thread reads before it writes the first
LONGEST = 256  # accesses to a window, each of which is written out
ROW_WORK = 8  # elements whose copies take as long as what is asked for once for a row

Digits = tuple[tuple[int, int], ...]
Edges = Sequence[tuple[str, Guard]]
Some = Mapping[str, tuple[str, int]]


@dataclass(frozen=True)
class WindowCopy:
    """A copy of a tile whose indices number windows (`rows`) and places `within` one; a thread
    reads so many elements of a window at a time.
    """

    block: Block
    load: Load
    tile: Tile
    rows: Sequence[str]
    within: Sequence[str]
    read: int

    @property
    def inner(self) -> str:
        """The place in a window of which a thread takes many."""
        return self.within[-1]

    @property
    def written(self) -> int:
        """Elements that a thread writes at a time where they come by way of registers."""
        tile = self.tile
        if self.read > 1 or self.inner != tile.order[-1]:
            return self.read
        return fitting(tile, VECTOR_BYTES // tile.dtype.itemsize)

    def distribution(self) -> Distribution | None:
        """Which threads copy what; None where rows are too few for the lanes of a warp."""
        tile, threads = self.tile, self.block.kernel.threads
        width = {i: self.written if i == self.inner else 1 for i in (*self.rows, *self.within)}
        units = {i: tile.extents[i] // width[i] for i in width if tile.extents[i] > width[i]}
        rows = sum(i in units for i in self.rows)
        if prod(tile.extents[i] for i in self.rows) < WARP:
            return None
        taken = _share(tuple(thread_digits(threads)), units, rows, self.written)
        factors = {i: spread_over(tile.extents[i], width[i], taken.get(i, ())) for i in width}
        return Distribution(threads, factors) if taken else None

    def write(self, frame: Frame, target: str, asynchronous: bool) -> None:
        """Copy the tile to `target`, as the frame says."""
        with self.block.out.block():
            for condition, bases in self._parts(frame):
                with self.block.out.block(f"if ({condition})" if condition else ""):
                    for name, number in bases.items():
                        self.block.out.line(f"constexpr int {name} = {number};")
                    self._write_rows(frame, target, asynchronous)

    def _parts(self, frame: Frame) -> Iterator[tuple[str, dict[str, int]]]:
        """The condition for each part of the threads that share windows, written out apart so that
        bases of its places are numbers.
        """
        spread = [frame.distribution.weighted(i, "thread") for i in self.within]
        counts = [prod(factor.count for factor, _ in threads) for threads in spread]
        for numbers in product(*map(range, counts)):
            conditions, bases = [], {}
            for i, threads, number in zip(self.within, spread, numbers, strict=True):
                base = number * (threads[-1][1] if threads else 1)
                bases[self.block.index(frame.prefix + "base", i)] = base
                if threads:
                    conditions.append(f"{self.block.thread_offset(threads)} == {base}")
            yield " && ".join(conditions), bases

    def _write_rows(self, frame: Frame, target: str, asynchronous: bool) -> None:
        """A part's places in this thread's windows."""
        block, out = self.block, self.block.out
        block.define_bases(frame, self.rows)
        with block.points(self.rows, frame, unroll=False) as row:
            if_inside(block, self.tile, frame, row, self.rows)
            with out.block():
                shared = self._declare(frame, row)
                copy = self._start if asynchronous else self._copy
                copy(frame, row, shared, target)

    def _declare(self, frame: Frame, row: Point) -> tuple[list[str], Edges]:
        """What elements of a window have in common: where it begins in memory; the condition for it
        to be there, and for each guard that places in it are told by, what the row says.
        """
        block, access = self.block, self.load.access
        kind, source = storage_type(self.tile.dtype), block.buffer(access.buffer)
        first = replace(access, address=self._part(access.address, of_rows=True))
        block.out.line(f"const {kind}* const row = {source} + {block.address(first, row)};")
        edges = []
        for guard in access.guards:
            if not guard.contains(bounds(guard.expression, block.extents)):
                name, own = f"edge_{len(edges)}", self._part(guard.expression, of_rows=True)
                block.out.line(f"const int {name} = {block.affine(own, row)} - {guard.lower};")
                edges.append((name, guard))
        valid = block.valid(self.rows, row, frame)
        if valid:
            block.out.line(f"const bool here = {' && '.join(valid)};")
        return ["here"] * bool(valid), edges

    def _start(
        self, frame: Frame, row: Point, shared: tuple[list[str], Edges], target: str
    ) -> None:
        """Copies that run on by themselves."""
        out, size = self.block.out, self.read * self.tile.dtype.itemsize
        nothing = self.block.buffer(self.load.access.buffer)
        with self.block.points(self.within, frame, {self.inner: self.read}) as place:
            if conditions := inside(self.tile, frame, place, self.within):
                out.line(f"if ({' && '.join(conditions)})")
            with out.block():
                out.line(f"const bool exists = {self._exists(frame, place, shared)};")
                there = f"{target} + {self.tile.offset(row.joined(place))}"
                source = f"exists ? row + {self._place(place)} : {nothing}"
                out.line(f"copy_async<{size}>({there}, {source}, exists);")

    def _copy(self, frame: Frame, row: Point, shared: tuple[list[str], Edges], target: str) -> None:
        """Copies by way of registers: many reads, then writes."""
        block, out, inner = self.block, self.block.out, self.inner
        count = frame.distribution.registers(inner)
        sizes = range(self.written, max(AHEAD, self.written) + 1, self.written)
        batch = max(size for size in sizes if count % size == 0)
        some = {inner: ("first" if batch < count else "0", batch)}
        with block.points(self.within[:-1], frame) as around, ExitStack() as batches:
            if batch < count:
                out.line("#pragma unroll")
                loop = f"for (int first = 0; first < {count}; first += {batch})"
                batches.enter_context(out.block(loop))
            kind = held_type(self.tile.dtype, self.read)
            out.line(f"{kind} ahead[{batch // self.read}] = {{}};")
            with self._places(frame, around, self.read, some) as place:
                exists, element = self._exists(frame, place, shared), self._element(place)
                out.line(f"if ({exists}) ahead[{self._number(place, some)}] = {element};")
            out.line("hold(ahead);")
            with self._places(frame, around, self.written, some) as place:
                there = f"{target} + {self.tile.offset(row.joined(place))}"
                self._put(there, self._number(place, some))

    def _number(self, place: Point, some: Some) -> str:
        """Which of what was read together is at a place."""
        first, text = some[self.inner][0], place.register[self.inner]
        text = text if first == "0" else f"({text} - {first})"
        return text if self.read == 1 else f"{text} / {self.read}"

    def _put(self, there: str, number: str) -> None:
        """Write what was read, from a number on, to the tile."""
        out, kind = self.block.out, storage_type(self.tile.dtype)
        if self.written > self.read:
            out.line(f"{held_type(self.tile.dtype, self.written)} pack;")
            out.line("#pragma unroll")
            out.line(f"for (int e = 0; e < {self.written}; ++e)")
            out.line(f"    pack.item[e] = ({kind})ahead[{number} + e];")
        held = "pack" if self.written > self.read else f"ahead[{number}]"
        write_held(self.block, self.tile, there, self.written, held)

    @contextmanager
    def _places(self, frame: Frame, around: Point, step: int, some: Some) -> Iterator[Point]:
        """Places in a window that are this thread's, so many elements at a time."""
        own = self.block.points([self.inner], frame, {self.inner: step}, some=some)
        with own as last:
            place = around.joined(last)
            if conditions := inside(self.tile, frame, place, self.within):
                self.block.out.line(f"if ({' && '.join(conditions)})")
            with self.block.out.block():
                yield place

    def _exists(self, frame: Frame, place: Point, shared: tuple[list[str], Edges]) -> str:
        """Whether an element is there, told without a branch."""
        here, edges = shared
        conditions = [*here, *(f"({text})" for text in self.block.valid(self.within, place, frame))]
        for name, guard in edges:
            own = self._part(guard.expression, of_rows=False)
            text = self.block.affine(own, place)
            conditions.append(f"(unsigned({name} + {text}) < {guard.upper - guard.lower}u)")
        return " & ".join(conditions) or "true"

    def _element(self, place: Point) -> str:
        """What lies at a place of a window."""
        source = f"row + {self._place(place)}"
        kind = held_type(self.tile.dtype, self.read)
        return f"*reinterpret_cast<const {kind}*>({source})" if self.read > 1 else f"*({source})"

    def _place(self, place: Point) -> str:
        """Elements of memory from where a window begins to a place in it."""
        own = self._part(self.load.access.address, of_rows=False)
        return self.block.affine(own, place)

    def _part(self, expression: Affine, of_rows: bool) -> Affine:
        """What an expression has of rows, its constant too, or of places in windows."""
        names, constant = {*self.within}, expression.constant if of_rows else 0
        terms = [(a, c) for a, c in expression.terms if bool(atom_names(a) & names) != of_rows]
        return Affine(tuple(terms), constant)


def window_copy(block: Block, load: Load, tile: Tile, read: int) -> WindowCopy | None:
    """The copy of a tile by windows, so many elements read at a time; None where a thread would
    gain nothing by taking whole ones, or the two parts of a place cannot be told apart.
    """
    access, grid = load.access, {axis.name for axis in block.kernel.grid}
    if access.coordinates or load.rest or load.fill or (isinstance(tile, Places) and tile.along):
        return None
    guards = [guard.expression for guard in access.guards]
    asked = asked_names(access.address, guards)
    known = [i for i in tile.order if i not in grid and block.frame.origin[i] == "0"]
    within = [i for i in known if i in asked or i == tile.order[-1]]
    near = window_rows(access.address, guards, within, tile.dtype.itemsize)
    rows = [*near, *(i for i in tile.order if i not in {*near, *within})]
    if not near or (read > 1 and tile.order[-1] not in within):
        return None
    written_out = prod(tile.extents[i] for i in within) // read <= LONGEST
    atoms = [atom_names(atom) for one in (access.address, *guards) for atom, _ in one.terms]
    mixed = any(names & {*within} and names - {*within} for names in atoms)
    if mixed or not written_out or any(map(block.is_wide, guards)):
        return None
    return WindowCopy(block, load, tile, rows, within, read)


def _share(digits: Digits, units: Mapping[str, int], rows: int, unit: int) -> dict[str, Digits]:
    """Runs of threads for each index, so that none has many points to take, places in windows
    so many together: the first so many are rows, which have all lanes of a warp, those next to each
    other in memory as many as there are; none where these are too few.
    """
    twos = tuple(digit for digit in digits if digit[1] == 2)
    odd = tuple(digit for digit in digits if digit[1] != 2)
    choices, nearest = [], next(iter(units.values()))
    lanes = min(WARP, 1 << (nearest - 1).bit_length()).bit_length() - 1
    for cuts in combinations_with_replacement(range(len(twos) + 1), len(units)):
        parts = [twos[first:last] for first, last in pairwise((0, *cuts))]
        if cuts[0] >= lanes and all(stride >= WARP for stride, _ in twos[cuts[rows - 1] :]):
            for n in range(len(units)):
                choices.append([part + odd * (i == n) for i, part in enumerate(parts)])

    def work(choice: Sequence[Digits]) -> tuple[int, int]:
        threads = [prod(radix for _, radix in taken) for taken in choice]
        each = [-(-n // t) for n, t in zip(units.values(), threads, strict=True)]
        return prod(each[:rows]) * (ROW_WORK + unit * prod(each[rows:])), prod(threads)

    return dict(zip(units, min(choices, key=work, default=()), strict=False))
