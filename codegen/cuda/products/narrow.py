"""Contractions of float32 factors by mma.sync of narrower floats: rounded, or split into terms.

Fragments are read as those of a tf32 operation, whose registers are float32, and split there. Two
of them along k make one of a 16-bit operation: its pairs then join k and k + 4, for both factors
alike. The products of a step are summed apart, the smallest first, and added to the result in
float32: the matrix unit cuts sums, which is no matter for a few terms. Several steps are split
before any is multiplied, where that takes few registers: their products do not wait for each other.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from eqsat.graph.dtypes import bfloat16, float32
from eqsat.layout.narrow import products

from ..place.block import Block
from ..place.distribution import Distribution
from ..place.operations import TABLE, MatrixOperation
from ..place.placement import Matrix, Placement
from ..place.warpgroup_operations import WarpgroupOperation
from .gather import UNDER_WAY
from .matrix import Product, multiply

TEMPORARY = 16  # registers of a split factor's terms that others of a step take over
AHEAD = 48  # registers of split fragments of several steps, so that their products do not wait

SPLITS: frozenset[str] = frozenset(
    name
    for row in TABLE
    if row.operand in (bfloat16, float32)
    for name in (row.instruction, ".".join(row.instruction.split(".")[:6]))
)
"""Invocation names for which float32 factors can be rounded or split on the way."""


def multiply_narrowed(block: Block, matrix: Matrix, result: str) -> None:
    """Add the product to the registers `result`, the factors rounded or split."""
    instruction = matrix.operation
    assert isinstance(instruction, MatrixOperation)
    most = min(8, instruction.k)
    loaded = next(row for row in TABLE if row.operand == float32 and row.k == most)
    product = partial(NarrowProduct, instruction=instruction)
    multiply(block, replace(matrix, operation=loaded), result, product)


def term_bytes(placement: Placement, distribution: Distribution) -> int:
    """The most bytes of split or float64 fragments that a thread holds at once, besides tile
    values; or, of terms that lie in memory, of the products of later ones; or of partial sums.
    """
    most = 0
    for m in placement.matrices.values():
        if m.partial and isinstance(m.operation, WarpgroupOperation):
            most = max(most, 4 * m.operation.n // 2)
        if m.contract.term_index:
            count = prod(distribution.registers(i) for i in m.contract.indices)
            if m.split:
                fragments = prod(distribution.parts[i].blocks for i in m.rows)
                split = UNDER_WAY * fragments * m.operation.left_registers * m.contract.terms
                count += max(split - TEMPORARY, 0)
            most = max(most, m.contract.dtype.itemsize * count)
        if not isinstance(m.operation, MatrixOperation):
            continue
        each = max(4, m.operation.operand.itemsize)
        if m.contract.narrow or each > 4:  # as they are, those of 32 bits are few
            sides = ((m.rows, m.operation.left_registers), (m.columns, m.operation.right_registers))
            registers = sum(
                prod(distribution.parts[i].blocks for i in free) * count for free, count in sides
            )
            if m.contract.narrow:
                registers *= _ahead(distribution, m, m.operation)
            most = max(most, each * registers * m.contract.terms)
    return most


def _ahead(distribution: Distribution, matrix: Matrix, instruction: MatrixOperation) -> int:
    """How many steps of the instruction are split before any is multiplied."""
    terms, steps = matrix.contract.terms, -(-distribution.padded(matrix.k) // instruction.k)
    if terms == 1:  # all are unrolled
        return 1
    sides = (matrix.rows, instruction.left_registers), (matrix.columns, instruction.right_registers)
    each = terms * sum(prod(distribution.parts[i].blocks for i in free) * n for free, n in sides)
    return max(n for n in range(1, steps + 1) if steps % n == 0 and (n == 1 or n * each <= AHEAD))


@dataclass(frozen=True)
class NarrowProduct(Product):
    """A product whose `matrix.operation` is that by which fragments are read."""

    instruction: MatrixOperation

    def emit(self, result: str) -> None:
        out, c, operation = self.block.out, self.matrix.contract, self.instruction
        steps = -(-self.block.distribution.padded(self.matrix.k) // operation.k)
        ahead = _ahead(self.block.distribution, self.matrix, operation)
        self.declare_warps()
        held = self.left.tile is None or self.right.tile is None  # registers need fixed numbers
        out.line("#pragma unroll" if held or c.terms == 1 else "#pragma unroll 1")
        with out.block(f"for (int group = 0; group < {steps // ahead}; ++group)"):
            for side, free, registers in self.fragment_shapes():
                count = self.fragments(free)
                out.line(f"unsigned {side}_terms[{ahead}][{c.terms}][{count}][{registers}];")
            if c.terms > 1:
                out.line("float check = 0;")
            with self.each_step(ahead):
                check = ", check" if c.terms > 1 else ""
                self.split(ahead, self.splitter(), check)
            self.multiply_terms(result, ahead)

    def each_step(self, count: int) -> AbstractContextManager[None]:
        """A loop over the steps that are split before any is multiplied, by `ahead`."""
        self.block.out.line("#pragma unroll")
        return self.block.out.block(f"for (int ahead = 0; ahead < {count}; ++ahead)")

    def split(self, count: int, function: str, check: str) -> None:
        """Read the fragments of the step `ahead` of so many, and split them."""
        out, operation = self.block.out, self.instruction
        ratio = operation.k // self.matrix.operation.k
        out.line("#pragma unroll")
        with out.block(f"for (int part = 0; part < {ratio}; ++part)"):
            out.line(f"const int step = (group * {count} + ahead) * {ratio} + part;")
            self.load_left()
            self.load_right()
            for side, _, _ in self.fragment_shapes():
                part = ", part" if operation.packed > 1 else ""
                out.line(f"{function}({side}_terms[ahead], {side}{part}{check});")

    def fragment_shapes(self) -> tuple[tuple[str, Sequence[str], int], ...]:
        """Each factor's name, its indices, and the registers of its fragment."""
        return (
            ("left", self.matrix.rows, self.instruction.left_registers),
            ("right", self.matrix.columns, self.instruction.right_registers),
        )

    def splitter(self) -> str:
        """The device function that makes the terms of a fragment."""
        how = "split" if self.matrix.contract.terms > 1 else "round"
        return f"{how}_{'tf32' if self.instruction.packed == 1 else 'bfloat16'}_fragments"

    def round(self, fragment: str, count: int) -> None:
        """Fragments stay float32 until they are split."""

    def multiply_terms(self, result: str, ahead: int) -> None:
        """Every product of terms of every fragment, of so many steps."""
        out = self.block.out
        if self.matrix.contract.terms == 1:
            with self.each_step(ahead), self.targets(result) as registers:
                self.call(registers, (0, 0))
            return
        with out.block("if (__all_sync(0xffffffffu, is_finite(check)))"), self.each_step(ahead):
            self.add_terms(result, ("whole", "whole"))
        with out.block("else"), self.each_step(ahead):  # an infinite factor has no later terms
            if self.instruction.packed == 1:
                self.split(ahead, "split_tf32_fragments_guarded", "")
            self.add_terms(result, ("rest", "whole"))

    def add_terms(self, result: str, into: tuple[str, str]) -> None:
        """Add to the result the products of later terms and of the first, summed in `into`."""
        out, terms = self.block.out, self.matrix.contract.terms
        *small, leading = products(terms)
        with self.targets(result) as registers:
            for name in dict.fromkeys(into):
                out.line(f"float {name}[4] = {{0, 0, 0, 0}};")
            for pair in small:
                self.call([f"{into[0]}[{n}]" for n in range(4)], pair)
            self.call([f"{into[1]}[{n}]" for n in range(4)], leading)
            for n, register in enumerate(registers):
                first = f"{into[1]}[{n}]"
                other = f"({first} + {into[0]}[{n}])"
                text = first if into[0] == into[1] else f"is_finite({first}) ? {other} : {first}"
                out.line(f"{register} += {text};")

    def call(self, registers: Sequence[str], pair: tuple[int, int]) -> None:
        """The instruction on a term of each factor."""
        sides = f"left_terms[ahead][{pair[0]}][i], right_terms[ahead][{pair[1]}][j]"
        self.block.out.line(f"{self.matrix.function}({', '.join(registers)}, {sides});")
