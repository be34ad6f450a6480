"""Stores that the tensor memory accelerator does, while the threads go on with the next tile.

A warp writes what it holds, 16-bit fragments of matrix operations, as matrices of 8 x 8 into areas
of shared memory of its own, swizzled as the accelerator reads them. One lane then has each area
copied as a box; what lies beyond the tensor is not stored. Areas are written again when the copies
before have read them, which is mostly long ago: with the next tile's results.

C++ names: `patch` is the first of the warp's areas, each of one pass; `matrix_row` the row of a
matrix whose place this lane gives.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from eqsat.graph.dtypes import float64
from eqsat.graph.index import var
from eqsat.kernel.ir import Guard, Load, Store
from eqsat.layout.needs import SIXTEEN

from ..copy.tiles import owners
from ..place.block import Block
from ..place.box import LINE, PERIOD, UNIT, WIDTHS, TensorBox, tensor_box
from ..place.distribution import WARP
from ..place.exchange import Digit, Exchange, shape_of
from ..place.tile import Point
from ..prelude.asynchronous import store_box_name
from .patch import Patch

LEAST_AREAS = 2  # with one for several passes, each waits until the one before is read


@dataclass(frozen=True)
class Fragments:
    """Of a pass: the digits of the eight lanes along its rows, that of the two rows of a lane, and
    how many registers lie along the columns.
    """

    lanes: tuple[Digit, ...]
    rows: Digit
    held: int


@dataclass(frozen=True)
class BoxStore(Patch):
    """A store by boxes: `bytes` of a warp's `areas` from `offset` on, and the box of one pass."""

    fragments: Fragments
    name: str
    box: TensorBox
    areas: int

    def store(self, store: Store, value: Callable[[Point], str]) -> None:
        """Write a store; `value` gives the C++ expression of the value at a point."""
        block, out = self.block, self.block.out
        warps = owners(block, block.distribution.unused(self.indices))
        if warps:
            out.line(f"if ({warps})")
        with out.block():
            self.begin()
            out.line(f"const int matrix_row = {self.matrix_row()};")
            with self.loop("first", self.passes, self.areas):
                out.line("boxes_read();")
                out.line("__syncwarp();")
                with self.each_pass():
                    self.write(value)
                out.line("shared_written();")
                out.line("__syncwarp();")
                with out.block(f"if (threadIdx.x % {WARP} == 0)"):
                    with self.each_pass():
                        self.copy()
                    out.line("boxes_commit();")

    @contextmanager
    def each_pass(self) -> Iterator[None]:
        """A loop over the areas, each for the next pass."""
        with self.loop("area", self.areas):
            self.block.out.line("const int pass = first + area;")
            yield

    def place(self, row: str, column: str) -> str:
        """A pointer into the area at hand."""
        return f"{super().place(row, column)} + {self.area}"

    @property
    def area(self) -> str:
        """Elements before the area at hand."""
        elements = self.bytes // self.areas // self.exchange.itemsize
        return "0" if self.areas == 1 else f"area * {elements}"

    def matrix_row(self) -> str:
        """The row whose place a lane gives: of the first rows, or of those beside them."""
        parts: list[str] = []
        for digit in self.fragments.lanes:  # lane 4 r holds a part of row r
            text = f"int(threadIdx.x) % 8 * 4 / {digit.place} % {digit.count}"
            parts.append(f"{text} * {self.exchange.part(digit)[0]}")
        rows = self.exchange.part(self.fragments.rows)[0]
        return " + ".join([*parts, f"int(threadIdx.x) / 8 % 2 * {rows}"])

    def write(self, value: Callable[[Point], str]) -> None:
        """Four matrices at a time: both of rows, of each two neighbouring ones of columns."""
        out, along = self.block.out, self.exchange.along
        kind = self.block.kernel.buffer(self.access.buffer).dtype.name
        first = self.pass_numbers("pass")
        out.line("#pragma unroll")
        with out.block(f"for (int held = 0; held < {self.fragments.held}; held += 4)"):
            words: list[str] = []
            for column, row in ((0, 0), (0, 1), (2, 0), (2, 1)):
                pair: list[str] = []
                for e in range(2):
                    numbers = {along: f"held + {column + e}", self.fragments.rows.index: str(row)}
                    pair.append(value(self.point(first, numbers)))
                words.append(f"pack_{kind}({', '.join(pair)})")
            column = "(held / 2 + int(threadIdx.x) / 16 % 2) * 8"
            out.line(f"store_matrices({self.place('matrix_row', column)}, {', '.join(words)});")

    def point(self, first: Mapping[str, str], numbers: Mapping[str, str]) -> Point:
        """This thread's point of these register numbers, counted from the first of a pass."""
        block = self.block
        at: dict[str, str] = {}
        register: dict[str, str] = {}
        for i in self.indices:
            parts = [text for text in (first[i], numbers.get(i, "0")) if text != "0"]
            register[i] = " + ".join(parts) or "0"
            offset = block.register_offset(block.distribution, i, f"({register[i]})")
            at[i] = f"({block.index('base', i)} + {offset})"
        return Point(at, register, block.frame.origin)

    def copy(self) -> None:
        """Have the area at hand copied."""
        block = self.block
        first, at = self.pass_numbers("pass"), dict(block.frame.origin)
        for i in self.indices:
            at[i] = block.index("warp", i)
            if first[i] != "0":
                offset = block.register_offset(block.distribution, i, f"({first[i]})")
                at[i] = f"({at[i]} + {offset})"
        point = Point(at, {}, block.frame.origin)
        where = [block.affine(d.coordinate, point) for d in self.box.dimensions]
        arguments = [f"patch + {self.area}", block.map_name(self.name), *where]
        block.out.line(f"{store_box_name(len(where))}({', '.join(arguments)});")


def box_store(block: Block, store: Store, indices: Sequence[str]) -> BoxStore | None:
    """The store by boxes; None where the accelerator cannot do it, or too little is left of shared
    memory, or another team of threads multiplies meanwhile anyhow.

    Only stores of the last phase are such: then all rings have their room.
    """
    last = block.kernel.phases[-1].stores
    if block.areas is None or block.turns > 1 or store not in last or store.monoid:
        return None
    partial = (i for i in indices if block.axes[i].count > 1)
    if any(block.distribution.padded(i) != block.axes[i].tile for i in partial):
        return None  # the box would reach into the next tile
    shape = shape_of(block.kernel, block.placement, block.distribution, store.access, indices)
    exchange = shape and swizzled(shape)
    fragments = exchange and find_fragments(block, store, indices, exchange)
    box = exchange and _box(block, store, indices, exchange)
    if not exchange or not fragments or not box:
        return None
    name = f"store {len(block.stored)}"
    whole = BoxStore(block, exchange, store.access, indices, 0, 0, fragments, name, box, 1)
    each = -(-exchange.bytes // PERIOD) * PERIOD
    warps = block.kernel.threads // WARP
    areas = block.areas(whole.passes, each * warps * len(last))
    if areas < min(whole.passes, LEAST_AREAS):
        return None
    block.stored[name] = box
    offset = block.allocate(each * warps * areas, PERIOD)
    return replace(whole, offset=offset, bytes=each * areas, areas=areas)


def swizzled(shape: Exchange) -> Exchange | None:
    """The rows of a pass laid out as the accelerator reads a box; None where they are no box."""
    row = shape.length * shape.itemsize
    whole = all(span.weight == 1 for span in shape.rows)
    names = [span.index for span in shape.rows]
    if row not in WIDTHS or not whole or len({*names, shape.along}) <= len(names):
        return None
    mask, shift = row // UNIT - 1, (LINE // row).bit_length() - 1
    return replace(shape, width=UNIT // shape.itemsize, pitch=shape.length, mask=mask, shift=shift)


def find_fragments(
    block: Block, store: Store, indices: Sequence[str], exchange: Exchange
) -> Fragments | None:
    """The fragments that a pass consists of; None where it is otherwise."""
    dtype = block.kernel.buffer(store.access.buffer).dtype
    unused = block.distribution.unused(indices)
    if dtype.name not in SIXTEEN or block.placement.dtypes[store.value] == float64:
        return None
    own = [d for d in exchange.digits if d.index == exchange.along]
    others = [d for d in exchange.digits if d.index != exchange.along]
    columns = [(d.kind, d.count, d.place, d.weight) for d in own[:2]]
    lanes = tuple(d for d in others if d.kind == "thread")
    rows = [d for d in others if d.kind == "register"]
    held = dict(exchange.held)[exchange.along]
    if columns != [("register", 2, 1, 1), ("thread", 4, 1, 2)] or held % 4:
        return None
    if any(d.kind == "thread" for d in own[2:]) or any(f.stride < WARP for f in unused):
        return None
    return Fragments(lanes, rows[0], held) if [d.count for d in rows] == [2] else None


def _box(
    block: Block, store: Store, indices: Sequence[str], exchange: Exchange
) -> TensorBox | None:
    """The box of one pass, its rows in the exchange's order. What of a last tile lies beyond its
    extent is told by a dimension of its own: beside another index it would be that one's next.
    """
    buffer = block.kernel.buffer(store.access.buffer)
    points = dict.fromkeys(indices, 1) | {span.index: span.count for span in exchange.rows}
    points[exchange.along] = exchange.length
    outer = [span.index for span in reversed(exchange.rows)]
    rest = [i for i in indices if i not in outer]
    axes = [block.axes[i] for i in indices]
    beyond = tuple(Guard(var(a.name), 0, a.extent) for a in axes if a.extent % a.tile)
    access = replace(store.access, guards=(*store.access.guards, *beyond))
    load = Load(store.value, buffer.dtype, (*outer, *rest), access)
    box = tensor_box(load, buffer, block.axes, points, exchange.along, ())
    if box is None or box.blocks > 1 or any(d.step > 1 for d in box.dimensions):
        return None
    return box
