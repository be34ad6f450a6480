"""Vectors that begin at any element: rows of an odd length, views that begin in between.

A load takes the two aligned vectors around each of its own, all of them before it shifts any. Of a
store each thread writes an aligned vector, which begins with elements of the thread before it: of
the lane before, or of another warp's last lane, which leaves them in shared memory. Ends of rows in
a tile, and of the array, go element by element.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from eqsat.kernel.ir import Access, Load, Store
from eqsat.layout.needs import VECTOR_BYTES

from ..copy.tiles import owns
from ..place.access import WORD_BYTES, vector_along, width_anywhere
from ..place.block import Block
from ..place.distribution import WARP, Distribution
from ..place.placement import store_indices
from ..place.roles import comes_together
from ..place.tile import Point
from ..prelude.math import cast, storage_type, widen
from .packs import pack_of

WORDS = "Pack<unsigned, 4>"  # the type of a vector's words


@dataclass(frozen=True)
class Run:
    """So many threads in a row hold vectors that follow each other in memory, and so many times
    one after the other: `steps`.
    """

    threads: int
    steps: int


@dataclass(frozen=True)
class Anywhere:
    """An access over `indices` in vectors of `width` elements along one of them."""

    block: Block
    access: Access
    indices: Sequence[str]
    index: str
    width: int
    run: Run

    def load(self, s: Load) -> None:
        """Write a load into registers that are declared; what does not exist is zero."""
        block, out = self.block, self.block.out
        buffer = block.kernel.buffer(self.access.buffer)
        source = block.buffer(buffer.name)
        pack = f"Pack<{storage_type(buffer.dtype)}, {self.width}>"

        def place(point: Point) -> str:
            return block.address(self.access, point)

        with out.block():
            out.line(f"Around around[{self.vector_count}];")
            out.line(f"{WORDS} words[{self.vector_count}];")
            out.line("bool ends = false;")
            with self.vectors() as (point, number):
                found = f"vectors_around<{self.kind}>({source}, {place(point)}, {buffer.size})"
                out.line(f"around[{number}] = {found};")
            with self.vectors() as (point, number):
                found = f"words_around<{self.kind}>(around[{number}], {place(point)})"
                out.line(f"words[{number}] = {found};")
                inside = f"lies_inside<{self.width}>({place(point)}, {buffer.size})"
                out.line(f"ends |= !{inside} || {self.count(point)} < {self.width};")
            out.line("if (ends)")
            with out.block(), self.vectors() as (point, number):
                what = f"words[{number}], {source}, {place(point)}, {buffer.size}"
                found = f"words_at_end<{self.kind}>({what}, {self.count(point)})"
                out.line(f"words[{number}] = {found};")
            with self.vectors() as (point, number):
                found = f"reinterpret_cast<const {pack}&>(words[{number}]).item[e]"
                value = cast(buffer.dtype, s.dtype, widen(buffer.dtype, found))
                element = block.element(s.name, block.shifted(point, self.index, "e"))
                out.line("#pragma unroll")
                out.line(f"for (int e = 0; e < {self.width}; ++e) {element} = {value};")

    def store(self, store: Store, value: Callable[[Point], str]) -> None:
        """Write a store; `value` gives the C++ expression of the value at a point."""
        block, out, warps = self.block, self.block.out, self.block.kernel.threads // WARP
        target = block.buffer(store.access.buffer)
        owner, lanes = owns(block, self.indices), min(self.run.threads, WARP)
        hands = not self.aligned and (self.run.threads > WARP or self.run.steps > 1)
        with out.block():
            out.line(f"{WORDS} own[{self.vector_count}];")
            if hands:
                memory = block.scratch(self.vector_count * warps * VECTOR_BYTES)
                first = f"reinterpret_cast<{WORDS}*>({memory}) + int(threadIdx.x) / {WARP}"
                out.line(f"{WORDS}* const hand = {first};")
                out.line("block_barrier();")
            with self.vectors() as (point, number), out.block():
                self.pack(store, point, value)
                out.line(f"own[{number}] = *reinterpret_cast<const {WORDS}*>(&pack);")
                if hands:
                    out.line(f"hand_on(hand + ({number}) * {warps}, own[{number}]);")
            if hands:
                out.line("block_barrier();")
            with self.vectors() as (point, number):
                count = f"({owner}) ? {self.count(point)} : 0" if owner else self.count(point)
                place = block.address(self.access, point)
                if self.aligned:
                    what = f"{target} + {place}, own[{number}], 0, {count}"
                    out.line(f"store_some<{self.width}>({what});")
                else:
                    what = f"{target}, own[{number}], {count}, {place}"
                    ends = f"{self.hand(point) if hands else 'nullptr'}, {self.ends(point)}"
                    out.line(f"store_anywhere<{lanes}, {self.kind}>({what}, {ends});")

    def pack(self, store: Store, point: Point, value: Callable[[Point], str]) -> None:
        """Define `pack`, the vector that begins at a point, as memory is to hold it."""
        block = self.block
        dtype, source = block.kernel.buffer(store.access.buffer).dtype, store.value

        def value_of(e: str) -> str:
            return value(block.shifted(point, self.index, e))

        pack_of(block.out, dtype, block.placement.dtypes[source], self.width, value_of)

    def ends(self, point: Point) -> str:
        """Whether the vector at a point is the first of its row in the tile, and the last."""
        run, at = self.run, f"int(threadIdx.x) % {self.run.threads}"
        first, last = [f"{at} == 0"], [f"{at} == {run.threads - 1}"]
        if run.steps > 1:
            step = f"({point.register[self.index]}) / {self.width}"
            first.append(f"{step} == 0")
            last.append(f"{step} == {run.steps - 1}")
        return f"{' && '.join(first)}, {' && '.join(last)}"

    def hand(self, point: Point) -> str:
        """Where another warp left what comes before the vector at a point: the one before it, or
        the last of the row, a step before.
        """
        warps, order = self.block.kernel.threads // WARP, self.block.ordered(self.indices)
        inside = order[order.index(self.index) + 1 :]
        step = prod(self.block.distribution.registers(i) for i in inside) * warps
        at = f"int(threadIdx.x) % {self.run.threads}"
        back = f"({at} ? 1 : {step - (self.run.threads // WARP - 1)})"
        return f"hand + ({self.number(point)}) * {warps} - {back}"

    def number(self, point: Point) -> str:
        """A vector's number among those of its thread."""
        parts, stride = [], 1
        for i in reversed(self.block.ordered(self.indices)):
            width = self.width if i == self.index else 1
            count = self.block.distribution.registers(i) // width
            if count > 1:
                parts.append(f"({point.register[i]}) / {width} * {stride}")
            stride *= count
        return " + ".join(reversed(parts)) or "0"

    @property
    def vector_count(self) -> int:
        """Vectors of a thread."""
        return self.block.register_count(self.indices) // self.width

    @property
    def kind(self) -> str:
        """Template arguments: elements of a vector, and their type in memory."""
        buffer = self.block.kernel.buffer(self.access.buffer)
        return f"{self.width}, {storage_type(buffer.dtype)}"

    @property
    def aligned(self) -> bool:
        """Whether all vectors are aligned: the last one alone may lack elements."""
        address = self.access.address
        steps = [step for atom, step in address.terms if atom != self.index]
        steps += [c.stride for c in self.access.coordinates]
        return all(step % self.width == 0 for step in (*steps, address.constant))

    @contextmanager
    def vectors(self) -> Iterator[tuple[Point, str]]:
        """Loops over a thread's vectors: the first point of each, and its number among them."""
        with self.block.points(self.indices, steps={self.index: self.width}) as point:
            yield point, self.number(point)

    def count(self, point: Point) -> str:
        """How many elements there are from a point on, or the width if the vector is whole."""
        block, index = self.block, self.index
        others = [i for i in self.indices if i != index]
        conditions = [*block.valid(others, point), *block.exists(self.access, point)]
        count = least([*points_left(block, index, point)] or [str(self.width)])
        return f"({' && '.join(conditions)} ? {count} : 0)" if conditions else count


def points_left(block: Block, index: str, point: Point) -> Iterator[str]:
    """How many points of an index there are from one on: in its extent, and in the tile; none where
    all those asked for are there.
    """
    axis = block.axes[index]
    if block.valid([index], point):
        yield f"{axis.extent} - {point.at[index]}"
    if block.distribution.padded(index) > axis.tile and axis.count > 1:
        yield f"{axis.tile} - {point.local(index)}"


def least(numbers: Sequence[str]) -> str:
    """The C++ expression of the least of some integers."""
    found = numbers[0]
    for number in numbers[1:]:
        found = f"min({found}, {number})"
    return found


def anywhere(block: Block, s: Load | Store) -> Anywhere | None:
    """How a load or store that no aligned vectors serve is done in others; None where the registers
    of a thread do not hold any, or, of a store, those of threads side by side do not, or where
    accesses of single elements by a warp fill lines.
    """
    if isinstance(s, Load) and s.rest:
        return None
    names = s.indices if isinstance(s, Load) else store_indices(block.placement, s)
    indices, access = block.ordered(names), s.access
    buffer, held = block.kernel.buffer(access.buffer), block.distribution.vector
    axes, placement = block.axes, block.placement
    aligned = vector_along(access, indices, buffer, axes, placement.indices, held)[1] > 1
    if aligned or (isinstance(s, Load) and s.fill) or buffer.dtype.itemsize >= WORD_BYTES:
        return None
    whole = comes_together(block.kernel, placement)
    for i in indices:
        width = width_anywhere(access, i, buffer, placement.indices)
        if width > 1 and held(i) % width == 0:
            run = find_run(block.distribution, i, width, whole)
            if run.threads > 1 or isinstance(s, Load):
                return Anywhere(block, access, indices, i, width, run)
    return None


def find_run(distribution: Distribution, index: str, width: int, whole: bool) -> Run:
    """The threads of a row, of one warp unless `whole`, and its steps: one unless the vectors of
    each follow those of another.
    """
    threads = 1
    for factor, weight in reversed(distribution.weighted(index, "thread")):
        if factor.stride == threads and weight == threads * width:
            threads *= factor.count
    if not whole:
        threads = min(threads, WARP)
    further = distribution.weighted(index, "register")[:-1]
    follows = threads >= WARP and [weight for _, weight in further] == [threads * width]
    steps = distribution.registers(index) // width if whole and follows else 1
    return Run(threads, steps)
