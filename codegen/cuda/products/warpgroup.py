"""Contractions by wgmma: the right factor in shared memory, the left one there or in registers.

The result lies in registers over the four warps of a warpgroup. The instruction is asynchronous:
`multiply` only issues it; whoever reads the result waits first.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from math import prod

from eqsat.errors import UnsupportedError
from eqsat.layout.narrow import products

from ..copy.box_tile import SWIZZLES, BoxTile
from ..place.block import Block
from ..place.placement import Matrix
from ..place.warpgroup_operations import WARPGROUP, WARPGROUP_ROWS, WarpgroupOperation
from .gather import UNDER_WAY, declare_terms, fill_left, fill_terms, prepare_left

COLUMNS = 8  # of a fragment
ROWS = 8  # that follow each other in a tile: a descriptor says how far such groups lie apart


def multiply(
    block: Block, matrix: Matrix, result: str, packed: str = "", fresh: bool = False
) -> None:
    """Issue the products that add to the registers `result`, or if `fresh` overwrite them.

    A left factor in registers may have been packed into an array before.
    """
    operation = matrix.operation
    assert isinstance(operation, WarpgroupOperation)
    _Product(block, matrix, operation).emit(result, packed, fresh)


def multiply_in_steps(
    block: Block,
    matrix: Matrix,
    result: str,
    packed: str,
    under_way: int,
    fill: Callable[[str], None] | None = None,
) -> None:
    """Issue the products of each step of the sum as a group of its own. Its left factor goes into
    the registers `packed` when all groups but the last `under_way` are done; `fill` writes them,
    if not what `prepare_left` gives.
    """
    operation = matrix.operation
    assert isinstance(operation, WarpgroupOperation)
    _Product(block, matrix, operation).emit_steps(result, packed, under_way, fill)


def rest_of(result: str) -> str:
    """The registers of the products of later terms."""
    return f"{result}_rest"


def packed_shape(block: Block, matrix: Matrix) -> tuple[int, int]:
    """Steps, and fragments of a warpgroup, of a left factor in registers."""
    steps = -(-block.distribution.padded(matrix.k) // matrix.operation.k)
    return steps, prod(block.distribution.parts[i].blocks for i in matrix.rows)


def factor_registers(block: Block, matrix: Matrix) -> int:
    """Registers of a thread that such a factor takes."""
    return prod(packed_shape(block, matrix)) * matrix.operation.left_registers


@dataclass(frozen=True)
class _Operand:
    """A factor in shared memory: its tile, and whether k is contiguous there."""

    tile: BoxTile
    along_k: bool

    @property
    def leading(self) -> int:
        """Bytes from one part along m or n to the next; unused where k is contiguous."""
        assert self.tile.box is not None
        return 16 if self.along_k else self.tile.box.rows * self.tile.box.row_bytes

    def step_bytes(self, k: int) -> str:
        """How far step `step` of k elements lies into the tile."""
        box = self.tile.box
        assert box is not None
        if not self.along_k:
            return f"step * {k * box.row_bytes}"
        each = k * box.dtype.itemsize
        per_row = box.row_bytes // each
        if box.blocks == 1:
            return f"step * {each}"
        return f"(step / {per_row} * {box.rows * box.row_bytes} + step % {per_row} * {each})"


@dataclass(frozen=True)
class _Product:
    block: Block
    matrix: Matrix
    operation: WarpgroupOperation

    def emit(self, result: str, packed: str, fresh: bool) -> None:
        block, out, operation = self.block, self.block.out, self.operation
        gathered, split = self.matrix.gathered, self.matrix.split
        right = self.factor(self.matrix.right)
        left = None if gathered or split or packed else self.factor(self.matrix.left)
        if right is None or (left is None and operation.packed != 2 and not gathered):
            raise self.refusal("its factors are not where the instruction reads them")
        self.check_indices(left is not None)
        steps, count = packed_shape(block, self.matrix)
        with out.block():
            if left is None and not packed and not split:
                packed = "left"
                out.line(f"unsigned left[{steps}][{count}][{operation.left_registers}];")
                fill_left(block, self.matrix, packed)
            if not self.matrix.partial and not split:
                out.line("products_begin();")
            if left is not None:
                self.describe("left", left, self.matrix.rows, WARPGROUP_ROWS)
            self.describe("right", right, self.matrix.columns, operation.n)
            across = self.across
            if self.matrix.partial:
                for fragment in product(range(count), range(across)):
                    self.add_partial(result, steps, fragment, left, packed, right)
                return
            if split:
                self.add_split(result, steps, right)
                return
            for i, j, target, kept in self.terms(result, fresh):
                with self.each_place():
                    out.line("#pragma unroll")
                    with out.block(f"for (int step = 0; step < {steps}; ++step)"):
                        sides = (left, i, packed), (right, j)
                        self.issue(target, kept, count, across, *sides)

    def emit_steps(
        self, result: str, packed: str, under_way: int, fill: Callable[[str], None] | None
    ) -> None:
        block, out, right = self.block, self.block.out, self.factor(self.matrix.right)
        if right is None:
            raise self.refusal("its factors are not where the instruction reads them")
        self.check_indices()
        steps, count = packed_shape(block, self.matrix)
        with out.block():
            fill = fill or prepare_left(block, self.matrix)
            self.describe("right", right, self.matrix.columns, self.operation.n)
            out.line("#pragma unroll")
            with out.block(f"for (int step = 0; step < {steps}; ++step)"):
                out.line(f"products_wait<{under_way}>();")
                fill(packed)
                out.line("products_begin();")
                self.issue(result, "1", count, self.across, (None, 0, packed), (right, 0))
                out.line("products_commit();")

    @property
    def across(self) -> int:
        """Instructions along the columns of a warpgroup."""
        parts = self.block.distribution.parts
        columns = prod(parts[i].blocks for i in self.matrix.columns) * COLUMNS
        if columns % self.operation.n:
            raise self.refusal(f"a warpgroup's columns are no multiple of {self.operation.n}")
        return columns // self.operation.n

    def terms(self, result: str, fresh: bool) -> list[tuple[int, int, str, str]]:
        """The terms of the factors to multiply, the registers to add the products to, and whether
        these hold anything to add to, as an expression: of terms in memory each sum starts anew.
        """
        c, seen = self.matrix.contract, set[str]()
        later = "place + step > 0" if self.places else "step > 0"
        if not c.term_index:
            return [(0, 0, result, later if fresh else "1")]
        found = []
        for i, j in products(c.terms):
            target = rest_of(result) if i or j else result
            found.append((i, j, target, "1" if target in seen else later))
            seen.add(target)
        return found

    def issue(
        self,
        result: str,
        kept: str,
        rows: int,
        columns: int,
        left: tuple[_Operand | None, int, str],
        right: tuple[_Operand, int],
    ) -> None:
        """The instructions of one step, for so many fragments of a term of each factor; of a left
        factor in registers its array is given.
        """
        wide = self.operation.n // COLUMNS
        for row, column in product(range(rows), range(columns)):
            registers = self.registers(result, row, column * wide, wide)
            self.instruction(registers, kept, (row, column), left, right)

    def instruction(
        self,
        registers: Sequence[str],
        kept: str,
        fragment: tuple[int, int],
        left: tuple[_Operand | None, int, str],
        right: tuple[_Operand, int],
    ) -> None:
        """One instruction, that of a fragment's row and column."""
        operation, (row, column) = self.operation, fragment
        step = f"step % {UNDER_WAY}" if self.matrix.split else "step"
        a = f"{left[2]}[{step}][{row}]"
        if left[0] is not None:
            a = self.place("left", left[0], self.matrix.rows, row, WARPGROUP_ROWS, left[1])
        b = self.place("right", right[0], self.matrix.columns, column, operation.n, right[1])
        kinds = [str(int(not right[0].along_k))]
        if left[0] is not None:
            kinds.insert(0, str(int(not left[0].along_k)))
        template = f"<{', '.join(kinds)}>" if operation.transposable else ""
        function = operation.name(left[0] is None)
        self.block.out.line(f"{function}{template}({', '.join(registers)}, {a}, {b}, {kept});")

    def add_split(self, result: str, steps: int, right: _Operand) -> None:
        """The products of terms of a left factor that is split step by step, while those of the
        step before run.
        """
        out, (_, count) = self.block.out, packed_shape(self.block, self.matrix)
        declare_terms(self.block, self.matrix, "left")
        out.line("#pragma unroll")
        with out.block(f"for (int step = 0; step < {steps}; ++step)"):
            if steps > UNDER_WAY:
                out.line(f"if (step >= {UNDER_WAY}) products_wait<{UNDER_WAY - 1}>();")
            fill_terms(self.block, self.matrix, "left")
            out.line("products_begin();")
            for i, j, target, kept in self.terms(result, fresh=False):
                sides = (None, i, f"left_{i}"), (right, j)
                self.issue(target, kept, count, self.across, *sides)
            out.line("products_commit();")

    def add_partial(
        self,
        result: str,
        steps: int,
        fragment: tuple[int, int],
        left: _Operand | None,
        packed: str,
        right: _Operand,
    ) -> None:
        """Sums of a fragment that start anew after so many steps, each waited for and added to the
        result, which has more bits than they.
        """
        out, count, (row, column) = self.block.out, self.operation.n // 2, fragment
        each = max(self.matrix.partial // self.operation.k, 1)
        wide = self.operation.n // COLUMNS
        out.line("#pragma unroll")
        with out.block(f"for (int first = 0; first < {steps}; first += {each})"):
            out.line(f"float sums[{count}];")
            out.line("products_begin();")
            last = str(steps) if steps <= each else f"min(first + {each}, {steps})"
            out.line("#pragma unroll")
            with out.block(f"for (int step = first; step < {last}; ++step)"):
                sums = [f"sums[{n}]" for n in range(count)]
                kept = "step > first"
                self.instruction(sums, kept, fragment, (left, 0, packed), (right, 0))
            out.line("products_commit();")
            out.line("products_wait<0>();")
            for n, register in enumerate(self.registers(result, row, column * wide, wide)):
                out.line(f"{register} += sums[{n}];")

    def refusal(self, reason: str) -> UnsupportedError:
        c = self.matrix.contract
        return UnsupportedError(
            f"contraction {c.name} of kernel {self.block.kernel.name} by {c.operation}: {reason}. "
            f"Choose another tile or operation."
        )

    def factor(self, name: str) -> _Operand | None:
        """The factor's tile, or None where registers hold it."""
        tile = self.block.tiles.get(name)
        if tile is None:
            return None
        if not isinstance(tile, BoxTile):
            raise self.refusal(f"the tile of {name} is not laid out as boxes")
        along_k = tile.order[-1] == self.matrix.k
        if not along_k and not self.operation.transposable:
            raise self.refusal(f"{name} is not contiguous along the sum")
        free = self.matrix.rows if name == self.matrix.left else self.matrix.columns
        inside = (self.matrix.k, self.matrix.contract.term_index, *self.places)
        own = [i for i in tile.order if i not in inside]
        if not along_k and own != [free[-1]]:
            raise self.refusal(f"{name} has several indices beside the sum")
        return _Operand(tile, along_k)

    @property
    def places(self) -> list[str]:
        """The indices of the sum of which instructions take one point at a time."""
        inside = (self.matrix.k, self.matrix.contract.term_index)
        padded = self.block.distribution.padded
        return [i for i in self.matrix.contract.over if i not in inside and padded(i) > 1]

    @contextmanager
    def each_place(self) -> Iterator[None]:
        """A loop over the points of these, if there are any."""
        count = prod(map(self.block.distribution.padded, self.places))
        if count == 1:
            yield
            return
        self.block.out.line("#pragma unroll")
        with self.block.out.block(f"for (int place = 0; place < {count}; ++place)"):
            yield

    def further_on(self, operand: _Operand) -> list[str]:
        """How many bytes into the tile the factor of a `place` lies, as terms of a sum."""
        box, below, terms = operand.tile.box, 1, list[str]()
        assert box is not None
        for i in reversed(self.places):
            count, rows = self.block.distribution.padded(i), operand.tile.strides.get(i, 0)
            digit = f"place / {below}" if below > 1 else "place"
            digit += f" % {count}" if i != self.places[0] else ""
            terms += [f"{digit} * {rows * box.row_bytes}"] if rows else []
            below *= count
        return terms

    def check_indices(self, in_memory: bool = False) -> None:
        """Every index of the result is a row, a column, or has one point; and every other one of
        the sum, but where both factors lie `in_memory`.
        """
        d, c = self.block.distribution, self.matrix.contract
        roles = {*self.matrix.rows, *self.matrix.columns}
        if any(d.padded(i) > 1 for i in c.indices if i not in roles):
            raise self.refusal("an index of the result is neither row nor column")
        if self.places and (not in_memory or self.matrix.partial):
            raise self.refusal("it sums over several indices at once")

    def describe(self, word: str, operand: _Operand, free: Sequence[str], size: int) -> None:
        """The descriptor of the factor's first fragment of this warpgroup."""
        box = operand.tile.box
        assert box is not None
        parts = []
        for i in free:
            for factor, weight in self.block.distribution.weighted(i, "thread"):
                if factor.stride >= WARPGROUP:
                    number = "warpgroup"
                    if factor.stride > WARPGROUP:
                        number += f" / {factor.stride // WARPGROUP}"
                    if factor.stride * factor.count < self.block.kernel.threads:
                        number += f" % {factor.count}"
                    parts.append(f"{number} * {self.bytes_at(operand, i, weight)}")
        place = f"reinterpret_cast<const char*>({operand.tile.pointer})"
        place = " + ".join([place, *parts])
        swizzle, apart = SWIZZLES[box.row_bytes], self.rows_apart(operand, free, size)
        numbers = f"{operand.leading}, {apart * box.row_bytes}, {swizzle}"
        self.block.out.line(
            f"const unsigned long long {word} = matrix_descriptor({place}, {numbers});"
            if word == "right"
            else f"const unsigned long long left_tile = matrix_descriptor({place}, {numbers});"
        )

    def bytes_at(self, operand: _Operand, index: str, points: int) -> int:
        """How far so many points of a row or column index lie into the tile."""
        box = operand.tile.box
        assert box is not None
        if operand.along_k:
            return points * operand.tile.strides.get(index, 0) * box.row_bytes
        if points % box.width:
            raise self.refusal(f"{points} points of {index} are no whole rows of the tile")
        return points // box.width * box.rows * box.row_bytes

    def place(
        self, word: str, operand: _Operand, free: Sequence[str], number: int, size: int, term: int
    ) -> str:
        """The descriptor of fragment `number` of `size` rows (or columns) of a term at `step`."""
        where = self.coordinates(free, number * size, 1)
        box = operand.tile.box
        assert box is not None
        if self.rows_apart(operand, free, size, number) != self.rows_apart(operand, free, size):
            raise self.refusal("its fragments lie in the tile each in its own way")
        first = sum(self.bytes_at(operand, i, where[0][i]) for i in free)
        if term:
            first += term * operand.tile.strides[self.matrix.contract.term_index] * box.row_bytes
        name = "right" if word == "right" else "left_tile"
        far = [operand.step_bytes(self.operation.k), *self.further_on(operand)]
        return f"{name} + (({' + '.join([str(first), *far])}) >> 4)"

    def rows_apart(self, operand: _Operand, free: Sequence[str], size: int, number: int = 0) -> int:
        """Rows of the tile from eight that follow each other to the next eight of the `size` rows
        (or columns) of a fragment.
        """
        if not operand.along_k:
            return ROWS
        where = self.coordinates(free, number * size, size)
        rows = [sum(at[i] * operand.tile.strides.get(i, 0) for i in free) for at in where]
        apart = rows[ROWS] - rows[0] if size > ROWS else ROWS
        if rows != [rows[0] + n // ROWS * apart + n % ROWS for n in range(size)]:
            raise self.refusal(
                f"its rows or columns do not lie in the tile by {ROWS}, evenly apart"
            )
        return apart

    def coordinates(self, free: Sequence[str], first: int, size: int) -> list[dict[str, int]]:
        """The coordinates within the warpgroup's part of consecutive rows (or columns)."""
        parts = self.block.distribution.parts
        whole = prod(parts[i].count for i in free)
        found = []
        for number in range(first, first + size):
            fragment, f = divmod(number, whole)
            at = {}
            for i in reversed(free):
                part = parts[i]
                fragment, digit = divmod(fragment, part.blocks)
                at[i] = digit * part.count + f // part.below % part.count
            found.append(at)
        return found

    def registers(self, result: str, row: int, column: int, count: int) -> list[str]:
        """The accumulators of a fragment, in the instruction's order."""
        c, d = self.matrix.contract, self.block.distribution
        indices = self.block.ordered(c.indices)
        texts = []
        for j, h, e in product(range(column, column + count), range(2), range(2)):
            numbers = {**self.numbers(self.matrix.rows, row, h)}
            numbers |= self.numbers(self.matrix.columns, j, e)
            place = 0
            for i in indices:
                place = place * d.registers(i) + numbers.get(i, 0)
            texts.append(f"{result}[{place}]")
        return texts

    def numbers(self, free: Sequence[str], fragment: int, pair: int) -> dict[str, int]:
        """Register numbers along each index of one of a lane's two rows (columns) of a fragment."""
        numbers = {}
        for i in reversed(free):
            part = self.block.distribution.parts[i]
            fragment, digit = divmod(fragment, part.blocks)
            numbers[i] = digit * 2 + pair if part.pair else digit
        return numbers
