"""Contractions without a matrix operation: a square of registers, one multiply-add at a time.

So are other reductions whose results share factors (eqsat.terms.outer_reductions), by an
expression of both in place of a product.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import DType
from eqsat.kernel.ir import Contract, Load, Map, Reduce
from eqsat.layout.needs import VECTOR_BYTES
from eqsat.terms.outer_reductions import Outer

from ..copy.tiles import stage
from ..place.access import vector_along
from ..place.block import Block
from ..place.placement import COMPUTED, FETCH, INLINE, REGISTERS, SHARED
from ..place.tile import Point, Reader, Tile, constant
from ..place.warpgroup_operations import WarpgroupOperation
from ..prelude.math import cast, combine, literal, register_type, storage_type, widen
from ..values.loads import load_vector
from ..values.windows import Windows, load_windows, windows_in_turn
from .matrix import Product, multiply
from .narrow import multiply_narrowed
from .warpgroup import multiply as multiply_by_warpgroups

UNROLLED = 256  # multiply-adds of one thread that are written out; longer sums stay loops
PARTLY = 8
MOST_AHEAD = 64  # elements of a factor that a thread reads for several steps


@dataclass(frozen=True)
class Accumulator:
    """The registers to add to, laid out over `indices`."""

    array: str
    indices: tuple[str, ...]


@dataclass(frozen=True)
class Factor:
    """A value that results share: the name that is read of it, which may be a cast of it, the dtype
    of what threads hold of it, and in which registers; the tile in shared memory that they read.
    """

    name: str
    read: str
    dtype: DType
    word: str
    tile: Tile | None = None


def contract(block: Block, c: Contract, target: Accumulator) -> None:
    """Add the contraction to the accumulator: by its operation, or by scalar arithmetic."""
    matrix = block.placement.matrices.get(c.name)
    if matrix is not None:
        if isinstance(matrix.operation, WarpgroupOperation):
            multiply_by_warpgroups(block, matrix, target.array)
        elif matrix.partial:
            raise UnsupportedError(
                f"contraction {c.name} of kernel {block.kernel.name} by {c.operation}, whose sums "
                f"have few bits: the CUDA target adds partial sums of a warpgroup's operations "
                f"alone. Choose another."
            )
        elif c.term_index:
            raise UnsupportedError(
                f"contraction {c.name} of kernel {block.kernel.name} multiplies terms that lie in "
                f"memory by {c.operation}, which is no operation of a warpgroup. Choose another."
            )
        elif c.narrow:
            multiply_narrowed(block, matrix, target.array)
        else:
            multiply(block, matrix, target.array, Product)
        return
    sides = zip(("left", "right"), (c.left, c.right), strict=True)
    factors = [Factor(name, name, c.dtype, word) for word, name in sides]
    with _held(block, c, factors) as (_, held), block.points(c.indices) as point:
        a, b = (read(point) for read in held)
        place = f"{target.array}[{block.register_number(target.indices, point)}]"
        block.out.line(f"{place} = multiply_add({a}, {b}, {place});")


def monoid_of(s: Contract | Reduce) -> str:
    """By what a reduction combines what it reduces."""
    return s.monoid if isinstance(s, Reduce) else "sum"


def reduce_outer(block: Block, outer: Outer, target: Accumulator) -> None:
    """Reduce what lies between the sides of an outer combination into the accumulator."""
    s, dtypes = outer.reduce, block.placement.dtypes
    factors = [
        Factor(name, read, dtypes[read], f"{block.value(read)}_side")
        for read, name in outer.sides.items()
    ]
    before = dict(block.readers)
    with _held(block, s, factors) as (summed, held), block.points(s.indices) as point:
        for factor, read in zip(factors, held, strict=True):
            block.readers[factor.read] = read
        at = summed.joined(point)
        for one in outer.between:
            name = block.value(one.name)
            block.out.line(f"const {register_type(one.dtype)} {name} = {block.mapped(one, at)};")
            block.readers[one.name] = constant(name)
        value = block.converted(s.argument, s.dtype, at)
        place = f"{target.array}[{block.register_number(target.indices, point)}]"
        block.out.line(f"{place} = {combine(s.monoid, place, value)};")
    block.readers = before


@contextmanager
def _held(
    block: Block, c: Contract | Reduce, factors: Sequence[Factor]
) -> Iterator[tuple[Point, list[Reader]]]:
    """Loops over what is reduced, in which threads hold the factors of their results: the point,
    and how to read each factor at a point of its own indices.
    """
    serial, over = c.name in block.placement.serial, block.ordered(c.over)
    factors = [replace(factor, tile=_tile(block, c, factor, serial)) for factor in factors]
    shared = _shared_windows(block, c, factors) if serial else {}
    readers = {factor.name: _reader(block, factor, serial, shared) for factor in factors}
    block.before_reading([factor.name for factor in factors])
    ahead = _find_steps(block, factors, over) if serial else None
    loops = (
        _serial_points(block, c, factors, ahead, shared, readers) if serial else block.points(over)
    )
    beyond = isinstance(c, Reduce)  # of a sum of products, factors are zero there
    with loops as summed:
        valid = " && ".join(block.valid(over, summed)) if beyond else ""
        with block.out.block(f"if ({valid})" if valid else ""):
            held: list[Reader] = []
            for factor in factors:
                if ahead and factor.word in ahead.tiles:
                    held.append(ahead.reader(block, factor.word))
                else:
                    own = _own(block, factor, over)
                    held.append(_registers(block, factor.word, own))
                    plain = factor.name not in shared
                    _read(block, c, factor, readers[factor.name], summed, plain)
            yield summed, held


def _own(block: Block, factor: Factor, over: Sequence[str]) -> list[str]:
    """The indices of a factor that are not reduced."""
    return [i for i in block.ordered(block.placement.indices[factor.name]) if i not in over]


def _read(
    block: Block,
    c: Contract | Reduce,
    factor: Factor,
    reader: Reader,
    summed: Point,
    plain: bool,
) -> None:
    """A factor's elements at a point of what is reduced, to registers; `plain`: from memory."""
    serial, word, own = c.name in block.placement.serial, factor.word, _own(block, factor, c.over)
    block.out.line(f"{register_type(factor.dtype)} {word}[{block.register_count(own)}];")
    load, index, width = _vector(block, factor, own) if serial and plain else (None, "", 1)
    tile, inner, together = _row(block, factor, own) if serial else (None, "", 1)
    with block.points(own, steps={index: width, inner: together}) as point:
        at, place = summed.joined(point), block.register_number(own, point)
        if tile is not None:
            _read_row(block, tile, at, together, factor.dtype, f"{word}[{place} + e]")
        elif load is None:
            block.out.line(f"{word}[{place}] = {_masked(block, c, factor, reader, at)};")
        else:
            with block.out.block():
                load_vector(
                    block, load, at, block.present(load, at), width,
                    lambda e, point=point:
                        f"{word}[{block.register_number(own, block.shifted(point, index, e))}]",
                )  # fmt: skip


def _registers(block: Block, word: str, own: list[str]) -> Reader:
    """How to read a factor at a point of its own indices."""
    return lambda point: f"{word}[{block.register_number(own, point)}]"


@dataclass(frozen=True)
class Steps:
    """Steps along a summed index that threads take several of at a time from tiles in shared
    memory, whose elements lie together along it: by word, the tile, the factor's own indices, and
    the dtype that it is held in.
    """

    index: str
    width: int
    tiles: Mapping[str, tuple[Tile, list[str], DType]]

    def read(self, block: Block, summed: Point) -> None:
        """All steps' elements of the factors, to registers."""
        for word, (tile, own, dtype) in self.tiles.items():
            count = block.register_count(own) * self.width
            block.out.line(f"{register_type(dtype)} {word}[{count}];")
            with block.points(own) as point:
                place = f"({block.register_number(own, point)}) * {self.width} + e"
                at = summed.joined(point)
                _read_row(block, tile, at, self.width, dtype, f"{word}[{place}]")

    def reader(self, block: Block, word: str) -> Reader:
        """As `_registers`, of the step that is done."""
        step, (_, own, _) = block.index("step", self.index), self.tiles[word]
        return lambda at: f"{word}[({block.register_number(own, at)}) * {self.width} + {step}]"


def _find_steps(block: Block, factors: Sequence[Factor], over: list[str]) -> Steps | None:
    """The steps along a summed index of more than one, the innermost along which a factor lies."""
    for index in reversed([i for i in over if _length(block, i) > 1]):
        found: dict[str, tuple[Tile, list[str], DType]] = {}
        widths: list[int] = []
        for factor in factors:
            tile, inner, strides = _read_along(factor)
            if tile is None or inner != index:
                continue
            own, width = _own(block, factor, over), VECTOR_BYTES // tile.dtype.itemsize
            whole = (_length(block, index), *strides)
            while width > 1 and (
                width * block.register_count(own) > MOST_AHEAD or any(n % width for n in whole)
            ):
                width //= 2
            if width > 1:
                found[factor.word] = tile, own, factor.dtype
                widths.append(width)
        if found:
            return Steps(index, min(widths), found)
    return None


@contextmanager
def _serial_points(
    block: Block,
    c: Contract | Reduce,
    factors: Sequence[Factor],
    ahead: Steps | None,
    shared: Mapping[str, tuple[Load, Windows]],
    readers: dict[str, Reader],
) -> Iterator[Point]:
    """Plain loops over the summed indices, every thread running through all of the tile; of those
    that are read ahead a loop over the steps that are. Windows that are loaded in turn are, within
    the loops that they wait for, and what reads them is put among the readers.
    """
    at, register, depth = {}, {}, 0
    waiting = {name: found for name, found in shared.items() if found[1].looped}
    turns = {i for _, found in waiting.values() for i in found.looped}
    over = block.ordered(c.over)
    over.sort(key=lambda i: (bool(ahead) and i == ahead.index, i not in turns))
    each = block.register_count(c.indices)
    held = any(
        name in shared
        or (
            block.placement.where[name] == REGISTERS
            and set(over) & set(block.placement.indices[name])
            and not _is_spread(block, c, name)
        )
        for name in (factor.name for factor in factors)
    )
    for i in over:
        number, name = block.index("r", i), block.index("at", i)
        each *= _length(block, i)
        whole = (held or each <= UNROLLED) and i not in turns
        steps = ahead if ahead and ahead.index == i else None
        width = steps.width if steps else 1
        partly = 1 if i in turns else PARTLY // width
        block.out.line("#pragma unroll" if whole else f"#pragma unroll {partly}")
        by = f"{number} += {width}" if steps else f"++{number}"
        block.out.line(f"for (int {number} = 0; {number} < {_length(block, i)}; {by}) {{")
        block.out.depth += 1
        depth += 1
        origin = block.frame.origin[i]
        text = number if origin == "0" else f"{origin} + {number}"
        at[i], register[i] = name, number
        if steps:
            first = {i: f"({text})"}
            steps.read(block, Point({**at, **first}, register, block.frame.origin))
            step = block.index("step", i)
            block.out.line("#pragma unroll")
            block.out.line(f"for (int {step} = 0; {step} < {width}; ++{step}) {{")
            block.out.depth += 1
            depth += 1
            text += f" + {step}"
            register[i] = f"({number} + {step})"
        block.out.line(f"const int {name} = {text};")
        point = Point(at, register, block.frame.origin)
        for factor, (load, found) in [*waiting.items()]:
            if at.keys() >= {*found.looped}:
                readers[factor] = load_windows(block, load, found, point)
                del waiting[factor]
    yield Point(at, register, block.frame.origin)
    for _ in range(depth):
        block.out.depth -= 1
        block.out.line("}")


def _length(block: Block, index: str) -> int:
    axis = block.axes[index]
    return min(axis.tile, axis.extent)


def _tile(block: Block, c: Contract | Reduce, factor: Factor, serial: bool) -> Tile | None:
    """The tile in shared memory of a factor that is read as it lies there, or that is written there
    since other threads hold what one of them sums up.
    """
    name, where = factor.name, block.placement.where[factor.name]
    if where in (SHARED, COMPUTED):
        return block.tiles.get(name)
    if not serial or where in (FETCH, INLINE) or not _is_spread(block, c, name):
        return None
    return stage(block, name, block.ordered(block.placement.indices[name]))


def _reader(
    block: Block, factor: Factor, serial: bool, shared: Mapping[str, tuple[Load, Windows]]
) -> Reader:
    """How to read a factor at any point of the summed indices; windows are loaded, but for those
    that are in turn.
    """
    name = factor.name
    if name in shared and not shared[name][1].looped:
        return load_windows(block, *shared[name])
    if factor.tile is None or block.placement.where[name] in (SHARED, COMPUTED):
        return block.readers[name]
    return factor.tile.reader(block.placement.dtypes[name])


def _vector(block: Block, factor: Factor, own: list[str]) -> tuple[Load | None, str, int]:
    """The load of a factor that threads take from memory several elements at a time, the index
    along which these lie, and how many.
    """
    placement, name = block.placement, factor.name
    load = placement.statements.get(name)
    if placement.where[name] != FETCH or not isinstance(load, Load) or load.access.coordinates:
        return None, "", 1
    if load.dtype.compute != factor.dtype.compute:
        return None, "", 1
    buffer, held = block.kernel.buffer(load.access.buffer), block.distribution.vector
    index, width = vector_along(load.access, own, buffer, block.axes, placement.indices, held)
    return (load, index, width) if width > 1 else (None, "", 1)


def _read_along(factor: Factor) -> tuple[Tile | None, str, list[int]]:
    """The tile in shared memory of a factor that is read as it lies there, the index along which
    its elements lie together, and how far apart they are along the others.
    """
    tile = factor.tile
    if tile is None:
        return None, "", []
    widened = tile.dtype.compute == factor.dtype and factor.read == factor.name
    if tile.dtype != factor.dtype and not widened:
        return None, "", []
    *outer, inner = [i for i in tile.order if tile.extents[i] > 1] or [""]
    return tile, inner, [tile.strides[i] for i in outer]


def _row(block: Block, factor: Factor, own: list[str]) -> tuple[Tile | None, str, int]:
    """The tile in shared memory of which threads take several elements of a factor at a time, the
    index along which these lie, and how many.
    """
    tile, inner, strides = _read_along(factor)
    if tile is None or own[-1:] != [inner]:
        return None, "", 1
    width, held = VECTOR_BYTES // tile.dtype.itemsize, block.distribution.vector(inner)
    while any(n % width for n in (held, tile.extents[inner], *strides)):
        width //= 2
    return (tile, inner, width) if width > 1 else (None, "", 1)


def _read_row(block: Block, tile: Tile, at: Point, width: int, dtype: DType, register: str) -> None:
    """One access to `width` elements of a tile that lie together, to registers of that dtype."""
    pack = f"Pack<{storage_type(tile.dtype)}, {width}>"
    with block.out.block():
        place = f"{tile.pointer} + {tile.offset(at)}"
        block.out.line(f"const {pack} pack = *reinterpret_cast<const {pack}*>({place});")
        block.out.line("#pragma unroll")
        value = cast(tile.dtype, dtype, widen(tile.dtype, "pack.item[e]"))
        block.out.line(f"for (int e = 0; e < {width}; ++e) {register} = {value};")


def _shared_windows(
    block: Block, c: Contract | Reduce, factors: Sequence[Factor]
) -> dict[str, tuple[Load, Windows]]:
    """By factor the load of which points share elements, these in registers, and its windows."""
    found = {}
    for name in (factor.name for factor in factors):
        load = block.placement.statements.get(name)
        if block.placement.where[name] == FETCH and isinstance(load, Load):
            results = block.register_count(c.indices)
            windows = windows_in_turn(
                block.kernel, block.distribution, load, block.ordered(c.over), results
            )
            found |= {name: (load, windows)} if windows else {}
    return found


def _is_spread(block: Block, c: Contract | Reduce, name: str) -> bool:
    """Whether threads hold different points of the summed indices of a factor."""
    own = block.placement.indices[name]
    return bool(block.distribution.spread(i for i in c.over if i in own))


def _masked(
    block: Block, c: Contract | Reduce, factor: Factor, reader: Reader, point: Point
) -> str:
    """A factor in the dtype that it is held in, zero outside the extents of the summed indices."""
    name = factor.name
    saved, block.readers[name] = block.readers[name], reader
    if factor.read == name:
        text = block.converted(name, factor.dtype, point)
    else:
        made = block.placement.statements[factor.read]
        assert isinstance(made, Map)
        text = block.mapped(made, point)
    block.readers[name] = saved
    if isinstance(c, Reduce):
        return text
    valid = " && ".join(block.valid([i for i in c.over if i in point.at], point))
    zeroed = factor.tile is not None or block.placement.where[name] in (COMPUTED, FETCH)
    return f"({valid} ? {text} : {literal(factor.dtype, 0)})" if valid and not zeroed else text
