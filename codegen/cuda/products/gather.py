"""A factor that lies across the sum, read from its tile into the registers of warpgroup products.

The instruction wants of each lane two rows at a time (`Part.pair`) at the k of its number in fours.
Of 32-bit elements `ROWS_IN_PAIRS` lays these rows side by side: both are read at once. Half a warp
then reads, of four rows of a tile, two units of 16 bytes each that lie four units apart: swizzled
by the rows' numbers they meet in no bank.

A step leads from every element to the next one equally far where the swizzle begins again (eight
rows). So places are computed once for all steps, and nothing but reads lies between the end of
one chunk's products and the start of the next one's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

from eqsat.errors import UnsupportedError

from ..copy.box_tile import BoxTile
from ..place.block import Block
from ..place.placement import Matrix
from ..place.tile import Point, Tile
from ..prelude.math import storage_type
from .matrix import bits_at, fragment_numbers, lies_in_fragments, pack_step

UNDER_WAY = 2  # steps whose terms of a split factor registers hold: multiplied, and in the making


def fill_left(block: Block, matrix: Matrix, target: str) -> None:
    """`target[step][fragment]`: operand registers from a left factor in registers, or gathered."""
    steps = -(-block.distribution.padded(matrix.k) // matrix.operation.k)
    with block.out.block():
        fill = prepare_left(block, matrix)
        block.out.line("#pragma unroll")
        with block.out.block(f"for (int step = 0; step < {steps}; ++step)"):
            fill(target)


def declare_terms(block: Block, matrix: Matrix, target: str) -> None:
    """`target_term[number][fragment]`: operand registers of each term of a float32 factor, for as
    many steps as are under way.
    """
    gather = _Gather(block, matrix, block.tiles[matrix.left])
    size = f"[{UNDER_WAY}][{gather.fragments}][{matrix.operation.left_registers}]"
    for term in range(matrix.contract.terms):
        block.out.line(f"unsigned {target}_{term}{size};")


def fill_terms(block: Block, matrix: Matrix, target: str) -> None:
    """Read the factor's elements of a `step` from its tile, and split them."""
    out, terms = block.out, range(matrix.contract.terms)
    gather = _Gather(block, matrix, block.tiles[matrix.left])
    out.line("#pragma unroll")
    with out.block(f"for (int block = 0; block < {gather.fragments}; ++block)"):
        for half, row in product(range(matrix.operation.halves), range(2)):
            with out.block():
                gather.read_two(half, row)
                for term in terms:
                    number = f"[step % {UNDER_WAY}][block][{2 * half + row}]"
                    place = f"{target}_{term}{number}"
                    out.line(f"{place} = pack_bfloat16_cut(low, high);")
                    if term < terms[-1]:
                        out.line(f"low -= __uint_as_float({place} << 16);")
                        out.line(f"high -= __uint_as_float({place} & 0xffff0000u);")


def prepare_left(block: Block, matrix: Matrix) -> Callable[[str], None]:
    """What writes the fragments of one `step` of a left factor; what all steps share is written
    before them. UnsupportedError where threads hold the factor in another way.
    """
    if not matrix.gathered:
        if not lies_in_fragments(block, matrix):
            c = matrix.contract
            raise UnsupportedError(
                f"contraction {c.name} of kernel {block.kernel.name} by {c.operation}: threads "
                f"hold {matrix.left} as others use it along {matrix.k}. Leave the operation empty."
            )
        return partial(pack_step, block, matrix)
    gather = _Gather(block, matrix, block.tiles[matrix.left])
    gather.declare_places()
    return gather.fill


@dataclass(frozen=True)
class _Gather:
    """The reads of a factor's fragments."""

    block: Block
    matrix: Matrix
    tile: Tile

    @property
    def rows_at_once(self) -> int:
        """Rows of a lane that one read takes: both where they lie side by side."""
        row, packed = self.matrix.rows[-1], self.matrix.operation.packed
        paired = self.block.distribution.vector(row) == 2 and self.tile.order[-1] == row
        return 2 if paired and packed == 1 and isinstance(self.tile, BoxTile) else 1

    @property
    def fragments(self) -> int:
        return prod(self.block.distribution.parts[i].blocks for i in self.matrix.rows)

    def declare_places(self) -> None:
        """`place_h_r_e[b]`: where element e of half h of the first k lies, for row r of the lane in
        fragment b.
        """
        operation, kind = self.matrix.operation, storage_type(self.tile.dtype)
        out, places = self.block.out, {}
        for half in range(operation.halves):
            for row in range(0, 2, self.rows_at_once):
                for e in range(operation.packed):
                    first = 4 * operation.packed * half + e
                    k = f"({first} + int({self.block.thread}) % 4 * {operation.packed})"
                    places[f"place_{half}_{row}_{e}"] = self.offset(row, k)
        for place in places:
            out.line(f"const {kind}* {place}[{self.fragments}];")
        out.line("#pragma unroll")
        with out.block(f"for (int block = 0; block < {self.fragments}; ++block)"):
            for place, offset in places.items():
                out.line(f"{place}[block] = {self.tile.pointer} + {offset};")

    def fill(self, target: str) -> None:
        """The registers of the fragments of one `step`."""
        far = self.tile.distance(self.matrix.k, self.matrix.operation.k)
        self.block.out.line("#pragma unroll")
        with self.block.out.block(f"for (int block = 0; block < {self.fragments}; ++block)"):
            self.read(f"{target}[step][block]", f"step * {far}")

    def offset(self, row: int, along: str) -> str:
        """The place in the tile of one of this lane's two rows of the fragment, at a k."""
        block, d = self.block, self.block.distribution
        at = {i: block.index("base", i) for i in block.axes}
        for i, number in fragment_numbers(d, self.matrix.rows, "block", str(row)).items():
            threads = block.thread_offset(d.weighted(i, "thread"))
            at[i] = f"({threads} + {block.register_offset(d, i, f'({number})')})"
        origin = {**block.frame.origin, **dict.fromkeys((*self.matrix.rows, self.matrix.k), "0")}
        registers = dict.fromkeys(block.axes, "0")
        return self.tile.offset(Point(at | {self.matrix.k: along}, registers, origin))

    def read_two(self, half: int, row: int) -> None:
        """`low` and `high`: the float32 neighbours along k of one register at a `step`."""
        first = f"step * {self.matrix.operation.k} + {8 * half}"
        k = f"({first} + int({self.block.thread}) % 4 * 2)"
        out, pointer = self.block.out, self.tile.pointer
        if self.tile.order[-1] == self.matrix.k:
            place = f"{pointer} + {self.offset(row, k)}"
            out.line(
                f"const Pack<float, 2> two = *reinterpret_cast<const Pack<float, 2>*>({place});"
            )
            out.line("float low = two.item[0], high = two.item[1];")
            return
        places = (self.offset(row, at) for at in (k, f"({k} + 1)"))
        low, high = (f"({pointer})[{place}]" for place in places)
        out.line(f"float low = {low}, high = {high};")

    def read(self, target: str, beyond: str) -> None:
        """The registers of one step, whose elements lie so far beyond their places."""
        operation, out = self.matrix.operation, self.block.out
        size = operation.operand.itemsize
        for half in range(operation.halves):
            if self.rows_at_once == 2:
                place = f"place_{half}_0_0[block] + {beyond}"
                pack = f"reinterpret_cast<const Pack<unsigned, 2>*>({place})"
                out.line(f"const Pack<unsigned, 2> rows_{half} = *{pack};")
                out.line(f"{target}[{2 * half}] = rows_{half}.item[0];")
                out.line(f"{target}[{2 * half + 1}] = rows_{half}.item[1];")
                continue
            for row in range(2):
                elements = (
                    bits_at(f"place_{half}_{row}_{e}[block][{beyond}]", size, e)
                    for e in range(operation.packed)
                )
                out.line(f"{target}[{2 * half + row}] = {' | '.join(elements)};")
