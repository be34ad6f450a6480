"""Contractions by mma.sync: fragments from shared memory or from registers.

The sum over k may take its terms in any order that both factors share. A left factor that is
computed in registers lies there as a result fragment; its k order is then 8 (s / 2) + 2 (lane % 4)
+ s % 2 for the s-th element that a lane holds, which for 16-bit operands is the instruction's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from eqsat.codegen.cuda_block import TILE_UNIT, Block, Point, Tile
from eqsat.codegen.cuda_distribution import WARP
from eqsat.codegen.cuda_math import literal
from eqsat.codegen.cuda_operations import COLUMNS, ROWS, MatrixOperation
from eqsat.codegen.cuda_placement import SHARED, Matrix
from eqsat.codegen.cuda_prelude import load_matrix_name
from eqsat.codegen.cuda_tiles import stage
from eqsat.errors import UnsupportedError


@dataclass(frozen=True)
class Factor:
    """One side of a contraction: its tile in shared memory, or None if it stays in registers.

    `free` are the row indices of a left factor, the column indices of a right one.
    """

    name: str
    free: tuple[str, ...]
    k: str
    tile: Tile | None


def multiply(block: Block, matrix: Matrix, result: str) -> None:
    """Add the product to the registers `result`, laid out over the contraction's indices."""
    c, operation = matrix.contract, matrix.operation
    summed = [i for i in c.over if block.axes[i].tile > 1] or list(c.over[-1:])
    if len(summed) != 1:
        raise UnsupportedError(
            f"contraction {c.name} of kernel {block.kernel.name} by {c.operation} sums over "
            f"{', '.join(c.over) or 'nothing'}; it needs one tiled index. Give the others tile 1."
        )
    (k,) = summed
    others = [i for i in (*c.indices, *c.over) if i not in (matrix.row, matrix.column, k)]
    left = _factor(block, matrix, matrix.left, matrix.row, k)
    right = _factor(block, matrix, matrix.right, matrix.column, k)
    block.before_reading([matrix.left, matrix.right])
    steps = -(-block.distribution.padded(k) // operation.k)
    with block.points(others) as point, block.out.block():
        _define_lanes(block, matrix)
        block.out.line("#pragma unroll")
        with block.out.block(f"for (int step = 0; step < {steps}; ++step)"):
            natural = left.tile is not None or operation.packed == 2
            _load_left(block, matrix, left, k, point)
            _load_right(block, matrix, right, k, point, natural)
            _invoke(block, matrix, result, point)


def _factor(block: Block, matrix: Matrix, name: str, free: str, k: str) -> Factor:
    if block.placement.where[name] == SHARED:
        return Factor(name, free, block.tiles[name])
    d, indices = block.distribution, block.placement.indices[name]
    lanes = [(f.count, f.stride) for f, _ in d.weighted(k, "thread")] if k in indices else []
    in_fragment = lanes == [(4, 1)] and d.vector(k) == 2 and d.padded(k) % matrix.operation.k == 0
    if free == matrix.row and in_fragment and free in indices:
        return Factor(name, free, None)
    order = [i for i in block.ordered(indices) if i != k] + [k] * (k in indices)
    return Factor(name, free, stage(block, name, order))


def _define_lanes(block: Block, matrix: Matrix) -> None:
    """The lane, and the first row and column of the warp's part of the tile."""
    block.out.line(f"const int lane = threadIdx.x % {WARP};")
    for word, index in (("row", matrix.row), ("column", matrix.column)):
        factors = block.distribution.weighted(index, "thread")
        warps = [(f, weight) for f, weight in factors if f.stride >= WARP]
        block.out.line(f"const int warp_{word} = {block.thread_offset(warps)};")


def _blocks(block: Block, index: str) -> int:
    """Fragments along a row or column index that one warp holds."""
    return block.distribution.registers(index) // 2


def _load_left(block: Block, matrix: Matrix, factor: Factor, k: str, point: Point) -> None:
    operation = matrix.operation
    blocks = _blocks(block, matrix.row)
    block.out.line(f"unsigned left[{blocks}][{operation.left_registers}];")
    block.out.line("#pragma unroll")
    with block.out.block(f"for (int block = 0; block < {blocks}; ++block)"):
        first = f"warp_row + block * {ROWS}"
        if factor.tile is None:
            _pack_registers(block, matrix, factor, k, point)
        elif not _load_matrices(
            block, operation, factor, k, point, first, "left[block]", operation.left_registers, True
        ):
            for register in range(operation.left_registers):
                row = f"{first} + lane / 4 + {8 * (register % 2)}"
                elements = _elements(operation, register // 2, True)
                _gather(
                    block, operation, factor, k, point, row, elements, f"left[block][{register}]"
                )
    _round(block, operation, "left", blocks * operation.left_registers)


def _load_right(
    block: Block, matrix: Matrix, factor: Factor, k: str, point: Point, natural: bool
) -> None:
    operation = matrix.operation
    blocks = _blocks(block, matrix.column)
    block.out.line(f"unsigned right[{blocks}][{operation.right_registers}];")
    pair = 2 if blocks % 2 == 0 else 1
    block.out.line("#pragma unroll")
    advance = "++block" if pair == 1 else f"block += {pair}"
    with block.out.block(f"for (int block = 0; block < {blocks}; {advance})"):
        first = f"warp_column + block * {COLUMNS}"
        count = pair * operation.right_registers
        if not natural or not _load_matrices(
            block, operation, factor, k, point, first, "right[block]", count, False
        ):
            for number in range(count):
                other, register = divmod(number, operation.right_registers)
                column = f"{first} + {8 * other} + lane / 4"
                elements = _elements(operation, register, natural)
                target = f"right[block + {other}][{register}]"
                _gather(block, operation, factor, k, point, column, elements, target)
    _round(block, operation, "right", blocks * operation.right_registers)


def _elements(operation: MatrixOperation, half: int, natural: bool) -> list[str]:
    """The k of each element of a lane's register of that half, at `step`."""
    packed, k = operation.packed, operation.k
    if natural:
        first = f"step * {k} + {4 * packed * half} + lane % 4 * {packed}"
        return [f"({first} + {e})" for e in range(packed)]
    slots = [f"(step * {k // 4} + {half * packed + e})" for e in range(packed)]
    return [f"({slot} / 2 * 8 + lane % 4 * 2 + {slot} % 2)" for slot in slots]


def _at(block: Block, factor: Factor, k: str, point: Point, free: str, along: str) -> Point:
    """The point of a factor at local coordinates of its free and its summed index."""
    at = {**point.at, factor.free: free, k: along}
    return Point(at, point.register, {**point.origin, factor.free: "0", k: "0"})


def _load_matrices(
    block: Block,
    operation: MatrixOperation,
    factor: Factor,
    k: str,
    point: Point,
    first: str,
    target: str,
    count: int,
    is_left: bool,
) -> bool:
    """ldmatrix of `count` 8-row matrices; False where the tile's layout does not allow it.

    Left: matrix q holds rows 8 (q % 2), half q / 2 of k; right: columns 8 (q / halves), half
    q % halves. Lane l points at row l % 8 of matrix l / 8.
    """
    tile = factor.tile
    assert tile is not None
    unit = TILE_UNIT // tile.dtype.itemsize
    transposed = tile.strides.get(factor.free) == 1 and tile.order[-1] == factor.free
    along_k = tile.order[-1] == k
    rows_aligned = all(tile.strides[i] % unit == 0 for i in tile.order[:-1] if tile.extents[i] > 1)
    both = factor.free in tile.order and k in tile.order
    if (
        count not in (1, 2, 4)
        or not both
        or not rows_aligned
        or tile.extents[tile.order[-1]] < unit
    ):
        return False
    if not along_k and not (transposed and tile.dtype.itemsize == 2):
        return False
    number = f"lane / 8 % {count}" if count < 4 else "lane / 8"
    if is_left:
        across, half = f"({number}) % 2", f"({number}) / 2"
    else:
        across, half = f"({number}) / {operation.halves}", f"({number}) % {operation.halves}"
    if along_k:
        free = f"({first} + {across} * 8 + lane % 8)"
        along = f"(step * {operation.k} + {half} * {unit})"
    else:
        free = f"({first} + {across} * 8)"
        along = f"(step * {operation.k} + {half} * 8 + lane % 8)"
    place = tile.offset(_at(block, factor, k, point, free, along))
    function = load_matrix_name(count, not along_k)
    block.out.line(f"{function}({target}, {tile.pointer} + {place});")
    return True


def _gather(
    block: Block,
    operation: MatrixOperation,
    factor: Factor,
    k: str,
    point: Point,
    free: str,
    elements: Sequence[str],
    target: str,
) -> None:
    """One operand register from single elements of a tile of any layout."""
    tile = factor.tile
    assert tile is not None
    parts = []
    for number, along in enumerate(elements):
        place = tile.offset(_at(block, factor, k, point, f"({free})", along))
        text = f"{tile.pointer}[{place}]"
        if operation.operand.itemsize == 4:
            parts.append(f"__float_as_uint({text})")
        else:
            bits = 8 * operation.operand.itemsize
            mask = 2**bits - 1
            shift = f" << {bits * number}" if number else ""
            parts.append(f"(unsigned({text}) & {mask}u){shift}")
    block.out.line(f"{target} = {' | '.join(parts)};")


def _pack_registers(block: Block, matrix: Matrix, factor: Factor, k: str, point: Point) -> None:
    """Left operand registers from a value that this thread holds; zero outside the extents."""
    operation = matrix.operation
    for register in range(operation.left_registers):
        row, half = register % 2, register // 2
        parts = []
        for e in range(operation.packed):
            slot = half * operation.packed + e
            own = _own(block, matrix, k, point, row, f"step * {operation.k // 4} + {slot}")
            text = block.read(factor.name, own)
            valid = " && ".join(block.valid([k], own))
            zero = literal(operation.operand, 0)
            parts.append(f"({valid} ? {text} : {zero})" if valid else text)
        block.out.line(f"left[block][{register}] = {_packed(operation, parts)};")


def _own(block: Block, matrix: Matrix, k: str, point: Point, row: int, number: str) -> Point:
    registers = {**point.register, matrix.row: f"block * 2 + {row}", k: number}
    offset = block.register_offset(block.distribution, k, f"({number})")
    at = {**point.at, k: f"({block.index('base', k)} + {offset})", matrix.row: "0"}
    return Point(at, registers, point.origin)


def _packed(operation: MatrixOperation, parts: Sequence[str]) -> str:
    if operation.packed == 1:
        return f"__float_as_uint({parts[0]})"
    if operation.packed == 2:
        return f"pack_{operation.operand.name}({parts[0]}, {parts[1]})"
    return " | ".join(f"(unsigned({part}) & 255u) << {8 * e}" for e, part in enumerate(parts))


def _round(block: Block, operation: MatrixOperation, fragment: str, count: int) -> None:
    if operation.packed == 1:
        block.out.line(f"round_fragment<{count}>(&{fragment}[0][0]);")


def _invoke(block: Block, matrix: Matrix, result: str, point: Point) -> None:
    out = block.out
    rows, columns = (_blocks(block, i) for i in (matrix.row, matrix.column))
    out.line("#pragma unroll")
    with out.block(f"for (int i = 0; i < {rows}; ++i)"):
        out.line("#pragma unroll")
        with out.block(f"for (int j = 0; j < {columns}; ++j)"):
            registers = []
            for number in range(4):
                own = {
                    **point.register,
                    matrix.row: f"i * 2 + {number // 2}",
                    matrix.column: f"j * 2 + {number % 2}",
                }
                at = Point(point.at, own, point.origin)
                place = block.register_number(matrix.contract.indices, at)
                registers.append(f"{result}[{place}]")
            arguments = ", ".join(registers)
            out.line(f"{matrix.function}({arguments}, left[i], right[j]);")
