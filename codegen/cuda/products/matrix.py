"""Contractions by mma.sync: fragments from shared memory or from registers.

The sum over k may take its terms in any order that both factors share. A left factor that is
computed in registers lies there as a result fragment; its k order is then 8 (s / 2) + 2 (lane % 4)
+ s % 2 for the s-th element that a lane holds, which for 16-bit operands is the instruction's own.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod

from eqsat.errors import UnsupportedError

from ..copy.tiles import stage
from ..place.block import Block
from ..place.distribution import WARP, Distribution
from ..place.placement import COMPUTED, SHARED, Matrix
from ..place.tile import TILE_UNIT, Point, Tile
from ..prelude.functions import load_matrix_name
from ..prelude.math import literal


@dataclass(frozen=True)
class Side:
    """One factor: its tile in shared memory, or None if it stays in registers.

    `free` are the row indices of the left factor, the column indices of the right one.
    """

    name: str
    free: tuple[str, ...]
    tile: Tile | None


def multiply(
    block: Block, matrix: Matrix, result: str, product: "type[Product] | partial[Product]"
) -> None:
    """Add the product to the registers `result`, laid out over the contraction's indices."""
    _check_loops(block, matrix)
    k = matrix.k
    left = _side(block, matrix, matrix.left, matrix.rows, k)
    right = _side(block, matrix, matrix.right, matrix.columns, k)
    block.before_reading([matrix.left, matrix.right])
    taken = {*matrix.rows, *matrix.columns, k}
    others = [i for i in (*matrix.contract.indices, *matrix.contract.over) if i not in taken]
    with block.points(others) as point, block.out.block():
        product(block, matrix, left, right, point).emit(result)


def _check_loops(block: Block, matrix: Matrix) -> None:
    """The summed indices around the instruction must be loops of each thread."""
    c = matrix.contract
    spread = [i for i in c.over if i != matrix.k and block.distribution.spread([i])]
    if spread:
        raise UnsupportedError(
            f"contraction {c.name} of kernel {block.kernel.name} by {c.operation} sums over "
            f"{matrix.k} and {', '.join(spread)}, which other values spread over threads. "
            f"Give all but one the tile 1, or leave the operation empty."
        )


def _side(block: Block, matrix: Matrix, name: str, free: tuple[str, ...], k: str) -> Side:
    if block.placement.where[name] in (SHARED, COMPUTED):
        return Side(name, free, block.tiles[name])
    indices = block.placement.indices[name]
    if free == matrix.rows and lies_in_fragments(block, matrix):
        return Side(name, free, None)
    order = [i for i in block.ordered(indices) if i != k] + [k] * (k in indices)
    return Side(name, free, stage(block, name, order))


def lies_in_fragments(block: Block, matrix: Matrix) -> bool:
    """Whether a left factor that threads compute lies in their registers as an operation reads it:
    along k as the columns of a result, all steps of it.
    """
    d, k = block.distribution, matrix.k
    if k not in block.placement.indices[matrix.left]:
        return False
    lanes = [(f.count, f.stride) for f, _ in d.weighted(k, "thread")]
    return lanes == [(4, 1)] and d.vector(k) == 2 and d.padded(k) % matrix.operation.k == 0


def pack_step(block: Block, matrix: Matrix, target: str) -> None:
    """`target[step][fragment]` at a `step`: operand registers from a left factor in registers."""
    here = {i: "0" for i in block.axes}
    point = Point({i: block.index("base", i) for i in block.axes}, here, block.frame.origin)
    left = Side(matrix.left, matrix.rows, None)
    made = Product(block, matrix, left, left, point)
    block.out.line("#pragma unroll")
    with block.out.block(f"for (int block = 0; block < {made.fragments(matrix.rows)}; ++block)"):
        made.pack(f"{target}[step][block]")


@dataclass(frozen=True)
class Product:
    """One product of tiles: what its parts share."""

    block: Block
    matrix: Matrix
    left: Side
    right: Side
    point: Point

    def emit(self, result: str) -> None:
        block, operation = self.block, self.matrix.operation
        steps = -(-block.distribution.padded(self.matrix.k) // operation.k)
        self.declare_warps()
        block.out.line("#pragma unroll")
        with block.out.block(f"for (int step = 0; step < {steps}; ++step)"):
            self.load_left()
            self.load_right()
            self.invoke(result)

    def declare_warps(self) -> None:
        """The lane, and where this thread's warp begins along each row and column index."""
        block = self.block
        block.out.line(f"const int lane = threadIdx.x % {WARP};")
        for i in (*self.matrix.rows, *self.matrix.columns):
            factors = block.distribution.weighted(i, "thread")
            warps = [(f, weight) for f, weight in factors if f.stride >= WARP]
            block.out.line(f"const int {block.index('warp', i)} = {block.thread_offset(warps)};")

    @property
    def natural(self) -> bool:
        """Whether k runs in the instruction's own order."""
        return self.left.tile is not None or self.matrix.operation.packed == 2

    # where things are

    def fragments(self, free: Sequence[str]) -> int:
        """Fragments along the rows (or columns) that one warp holds."""
        return prod(self.block.distribution.parts[i].blocks for i in free)

    def places(self, free: Sequence[str], fragment: str, row: str) -> dict[str, str]:
        """Coordinates in the tile of row (or column) `row` of a fragment."""
        places, inner = {}, 1
        whole = prod(self.block.distribution.parts[i].count for i in free)
        for i in reversed(free):
            part = self.block.distribution.parts[i]
            along = _digit(fragment, inner, part.blocks, self.fragments(free))
            within = _digit(f"({row})", part.below, part.count, whole)
            warp = self.block.index("warp", i)
            places[i] = f"({warp} + ({along}) * {part.count} + {within})"
            inner *= part.blocks
        return places

    def offset(self, side: Side, free: Mapping[str, str], along: str) -> str:
        """The place in a factor's tile of coordinates within the tile."""
        at = {**self.point.at, **free, self.matrix.k: along}
        origin = {**self.point.origin, self.matrix.k: "0", **dict.fromkeys(free, "0")}
        assert side.tile is not None
        return side.tile.offset(Point(at, self.point.register, origin))

    def ks(self, half: int) -> list[str]:
        """The k of each element of a lane's register of that half, at `step`."""
        packed, k = self.matrix.operation.packed, self.matrix.operation.k
        if self.natural:
            first = f"step * {k} + {4 * packed * half} + lane % 4 * {packed}"
            return [f"({first} + {e})" for e in range(packed)]
        slots = [f"(step * {k // 4} + {half * packed + e})" for e in range(packed)]
        return [f"({slot} / 2 * 8 + lane % 4 * 2 + {slot} % 2)" for slot in slots]

    # operand registers

    def load_left(self) -> None:
        operation, out = self.matrix.operation, self.block.out
        count, registers = self.fragments(self.matrix.rows), operation.left_registers
        out.line(f"{operation.register} left[{count}][{registers}];")
        out.line("#pragma unroll")
        with out.block(f"for (int block = 0; block < {count}; ++block)"):
            if self.left.tile is None:
                self.pack()
            elif not self.load_matrices(self.left, registers):
                self.gather_left("left[block]")
        self.round("left", count * registers)

    def gather_left(self, target: str) -> None:
        """The registers of one fragment of the left factor, element by element."""
        for register in range(self.matrix.operation.left_registers):
            row = f"lane / 4 + {8 * (register % 2)}"
            place = self.places(self.matrix.rows, "block", row)
            self.gather(self.left, place, register // 2, f"{target}[{register}]")

    def load_right(self) -> None:
        operation, out = self.matrix.operation, self.block.out
        count, registers = self.fragments(self.matrix.columns), operation.right_registers
        out.line(f"{operation.register} right[{count}][{registers}];")
        pair = 2 if count % 2 == 0 else 1
        out.line("#pragma unroll")
        advance = "++block" if pair == 1 else f"block += {pair}"
        with out.block(f"for (int block = 0; block < {count}; {advance})"):
            if not self.natural or not self.load_matrices(self.right, pair * registers):
                for number in range(pair * registers):
                    other, register = divmod(number, registers)
                    place = self.places(self.matrix.columns, f"(block + {other})", "lane / 4")
                    self.gather(self.right, place, register, f"right[block + {other}][{register}]")
        self.round("right", count * registers)

    def load_matrices(self, side: Side, count: int) -> bool:
        """ldmatrix of `count` 8-row matrices; False where the tile's layout does not allow it.

        Left: matrix q holds rows 8 (q % 2), half q / 2 of k; right: block q / halves, half
        q % halves. Lane l points at row l % 8 of matrix l / 8, and gets 32 bits of it.
        """
        tile, operation = side.tile, self.matrix.operation
        assert tile is not None
        if operation.register != "unsigned":
            return False
        unit, inner = TILE_UNIT // tile.dtype.itemsize, tile.order[-1]
        aligned = all(tile.strides[i] % unit == 0 for i in tile.order[:-1] if tile.extents[i] > 1)
        parts = self.block.distribution.parts
        transposed = inner == side.free[-1] and parts[inner].count >= 8 and unit == 8
        if count not in (1, 2, 4) or not aligned or tile.extents[inner] < unit:
            return False
        if self.matrix.k not in tile.order or (inner != self.matrix.k and not transposed):
            return False
        number = f"lane / 8 % {count}" if count < 4 else "lane / 8"
        row = "0" if inner != self.matrix.k else "lane % 8"
        if side is self.left:
            half, block = f"{number} / 2", "block"
            row = f"{number} % 2 * 8 + {row}"
        else:
            half, block = (
                f"{number} % {operation.halves}",
                f"(block + {number} / {operation.halves})",
            )
        along = f"(step * {operation.k} + {half} * {unit})"
        if inner != self.matrix.k:
            along = f"(step * {operation.k} + {half} * 8 + lane % 8)"
        place = self.offset(side, self.places(side.free, block, row), along)
        target = "left[block]" if side is self.left else "right[block]"
        function = load_matrix_name(count, inner != self.matrix.k)
        self.block.out.line(f"{function}({target}, {tile.pointer} + {place});")
        return True

    def gather(self, side: Side, free: Mapping[str, str], half: int, target: str) -> None:
        """One operand register from single elements of a tile of any layout."""
        operand = self.matrix.operation.operand
        assert side.tile is not None
        parts = []
        for number, along in enumerate(self.ks(half)):
            text = f"{side.tile.pointer}[{self.offset(side, free, along)}]"
            parts.append(bits_at(text, operand.itemsize, number))
        self.block.out.line(f"{target} = {' | '.join(parts)};")

    def pack(self, target: str = "left[block]") -> None:
        """Left operand registers from a value that this thread holds; zero outside the extents."""
        operation, block = self.matrix.operation, self.block
        for register in range(operation.left_registers):
            row, half = register % 2, register // 2
            parts = []
            for e in range(operation.packed):
                number = f"step * {operation.k // 4} + {half * operation.packed + e}"
                own = self.own(str(row), number)
                text = block.read(self.left.name, own)
                valid = " && ".join(block.valid(self.matrix.contract.over, own))
                zero = literal(operation.operand, 0)
                parts.append(f"({valid} ? {text} : {zero})" if valid else text)
            if operation.packed == 2:
                text = f"pack_{operation.operand.name}({', '.join(parts)})"
            else:
                size = operation.operand.itemsize
                text = " | ".join(bits_at(part, size, e) for e, part in enumerate(parts))
            block.out.line(f"{target}[{register}] = {text};")

    def own(self, row: str, number: str) -> Point:
        """This thread's point of the left factor: one of its rows of a block, a register of k."""
        rows = fragment_numbers(self.block.distribution, self.matrix.rows, "block", row)
        registers = {**self.point.register, **rows, self.matrix.k: number}
        offset = self.block.register_offset(self.block.distribution, self.matrix.k, f"({number})")
        at = {
            **self.point.at,
            self.matrix.k: f"({self.block.index('base', self.matrix.k)} + {offset})",
        }
        return Point(at, registers, self.point.origin)

    def round(self, fragment: str, count: int) -> None:
        if self.matrix.operation.is_rounded:
            self.block.out.line(f"round_fragment<{count}>(&{fragment}[0][0]);")

    def invoke(self, result: str) -> None:
        with self.targets(result) as registers:
            text = f"{self.matrix.function}({', '.join(registers)}, left[i], right[j]);"
            self.block.out.line(text)

    @contextmanager
    def targets(self, result: str) -> Iterator[list[str]]:
        """The four result registers of fragment (i, j), in loops over all fragments."""
        out, matrix = self.block.out, self.matrix
        out.line("#pragma unroll")
        with out.block(f"for (int i = 0; i < {self.fragments(matrix.rows)}; ++i)"):
            out.line("#pragma unroll")
            with out.block(f"for (int j = 0; j < {self.fragments(matrix.columns)}; ++j)"):
                registers = []
                for number in range(4):
                    rows = fragment_numbers(
                        self.block.distribution, matrix.rows, "i", str(number // 2)
                    )
                    columns = fragment_numbers(
                        self.block.distribution, matrix.columns, "j", str(number % 2)
                    )
                    own = {**self.point.register, **rows, **columns}
                    at = Point(self.point.at, own, self.point.origin)
                    place = self.block.register_number(matrix.contract.indices, at)
                    registers.append(f"{result}[{place}]")
                yield registers


def fragment_numbers(
    distribution: Distribution, free: Sequence[str], fragment: str, pair: str
) -> dict[str, str]:
    """Register numbers of row (or column) `pair` of a lane in a fragment, by index."""
    whole = prod(distribution.parts[i].blocks for i in free)
    numbers, inner = {}, 1
    for i in reversed(free):
        part = distribution.parts[i]
        along = _digit(fragment, inner, part.blocks, whole)
        numbers[i] = f"{along} * 2 + {pair}" if part.pair else along
        inner *= part.blocks
    return numbers


def _digit(number: str, inner: int, count: int, whole: int) -> str:
    """The digit of a mixed-radix number; `inner` is what lies below it, `whole` their product."""
    if count == 1:
        return "0"
    text = number if inner == 1 else f"{number} / {inner}"
    return text if inner * count == whole else f"{text} % {count}"


def bits_at(text: str, itemsize: int, number: int) -> str:
    """An element's bits at its place in an operand register; a float64 is one by itself."""
    if itemsize == 8:
        return text
    if itemsize == 4:
        return f"__float_as_uint({text})"
    shift = f" << {8 * itemsize * number}" if number else ""
    return f"(unsigned({text}) & {256**itemsize - 1}u){shift}"
