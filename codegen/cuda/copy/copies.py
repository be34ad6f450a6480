"""What one thread copies ahead: the loads that are boxes, and the lines by which they are copied.

A gather's box begins where a value says, such as the number of a page in a table: the thread
computes that from memory, for each page of the tile.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import gcd

from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import DType, int64
from eqsat.graph.index import Affine, FloorDiv, free_names, var
from eqsat.kernel.ir import Literal, Load, Map, Phase, Position, Statement, operands

from ..place.access import unit_stride
from ..place.block import Block
from ..place.box import TensorBox, is_copied_often, tensor_box
from ..place.placement import SHARED
from ..place.tile import Point
from ..prelude.asynchronous import copy_box_name
from ..prelude.math import cast, literal, register_type
from .edges import Edge
from .multicast import Share
from .pixels import pixel_box
from .tiles import fetch
from .window_box import window_box


def find_boxes(block: Block, phase: Phase) -> dict[str, TensorBox]:
    """The loads of a phase that the producer copies; those of matrix operations must be such. Of
    what lies in pieces the box of the first.
    """
    boxes: dict[str, TensorBox] = {}
    factors = {n for m in block.placement.matrices.values() for n in (m.left, m.right)}
    for s in phase.body:
        if not isinstance(s, Load) or block.placement.where[s.name] != SHARED:
            continue
        box = find_box(block, s)
        if box is not None:
            loops = {a.name: a for a in (*block.kernel.grid, *phase.stream)}
            often = is_copied_often(box, s, {**loops, **{i: block.axes[i] for i in s.indices}})
            boxes[s.name] = replace(box, often=often)
        elif s.name in factors:
            must = "its strides must be multiples of 16 bytes"
            if s.access.coordinates:
                must = "what each value of its index reads must be multiples of eight rows"
            raise UnsupportedError(
                f"operand {s.name} of a warpgroup's matrix operation in kernel {block.kernel.name} "
                f"is no box of {s.access.buffer} that the tensor memory accelerator can copy: "
                f"{must}. Choose another operation."
            )
    return boxes


def find_box(block: Block, s: Load, dtype: DType | None = None) -> TensorBox | None:
    """The box of what a load's first access reads, or of as many elements of another dtype; None
    where the producer cannot copy it.
    """
    summed = {i for m in block.placement.matrices.values() for i in m.contract.over}
    terms = {m.contract.term_index for m in block.placement.matrices.values()} - {""}
    inner = [i for i in s.indices if unit_stride(s.access, i)]
    inner = [i for i in inner if block.axes[i].extent > 1] or inner
    if not inner:
        return None
    points = {}
    for i in s.indices:
        step = block.matrix_steps.get(i, 1)
        points[i] = -(-block.distribution.padded(i) // step) * step
    outer = next(iter(terms & {*s.indices}), "")
    buffer = block.kernel.buffer(s.access.buffer)
    if dtype is not None:
        s, buffer = replace(s, dtype=dtype), replace(buffer, dtype=dtype)
    tile = (s, buffer, block.axes, points, inner[-1], summed)
    return (
        window_box(*tile)
        or tensor_box(*tile, outer, same_points(block, s))
        or pixel_box(*tile, outer)
    )


def same_points(block: Block, load: Load) -> Mapping[str, int] | None:
    """For each index that the load's coordinates depend on, how many neighbouring points have the
    same; None where they are more than loads and elementwise operations.
    """
    found: dict[str, int] = {}
    for s in _sources(block, operands(load)) or ():
        expressions = [s.expression] if isinstance(s, Position) else []
        if isinstance(s, Load):
            expressions += [s.access.address, *(guard.expression for guard in s.access.guards)]
        for expression in expressions:
            for i in free_names(expression):
                found[i] = gcd(found.get(i, 0), _same_points(expression, i))
    return None if _sources(block, operands(load)) is None else found


def _same_points(expression: Affine, index: str) -> int:
    """Of how many points of an index, from a multiple on, an expression has the same value."""
    steps = [
        atom.divisor if isinstance(atom, FloorDiv) and atom.numerator == var(index) else 1
        for atom, _ in expression.terms
        if atom == index or (not isinstance(atom, str) and index in free_names(atom.numerator))
    ]
    return gcd(*steps)


def told_value(block: Block, name: str, at: Point, prefix: str) -> str:
    """Compute a value at a point from memory, by lines whose variables begin with `prefix`; what it
    is then called.
    """
    readers = dict(block.readers)
    for s in _sources(block, [name]) or ():
        text = _value(block, s, at)
        variable = f"{prefix}_{block.names.of(s.name)}"
        block.out.line(f"const {register_type(s.dtype)} {variable} = {text};")
        block.readers[s.name] = lambda point, variable=variable: variable
    text = block.read(name, at)
    block.readers = readers
    return text


def _sources(block: Block, names: Iterable[str]) -> tuple[Statement, ...] | None:
    """What values are computed from, in order, down to memory; None where that is not all loads and
    elementwise operations.
    """
    found: dict[str, Statement] = {}
    waiting = list(names)
    while waiting:
        s = block.placement.statements.get(waiting.pop())
        if not isinstance(s, Load | Map | Literal | Position):
            return None
        found.pop(s.name, None)
        found[s.name] = s
        waiting += operands(s)
    return tuple(reversed(found.values()))


def edge_name(name: str) -> str:
    """The name of the map that copies the edge of a load's box."""
    return f"{name}_edge"


def copy_boxes(
    block: Block,
    load: Load,
    what: TensorBox | Share,
    place: str,
    barrier: str,
    edge: Edge | None = None,
) -> None:
    """Copy a load's tile, or this block's share of it, to `place` in shared memory, of the last
    tile what is there; `barrier` counts the bytes.
    """
    out, at = block.out, Point(dict(block.frame.origin), {}, block.frame.origin)
    box = what if isinstance(what, TensorBox) else what.box
    arguments = f"{block.map_name(load.name)}, {barrier}"
    if not any(d.value for d in box.dimensions):
        if edge is None or edge.width:
            _copy_parts(block, what, at, place, arguments, {}, edge)
            return
        with out.block(f"if ({edge.is_whole(block.frame.origin)})"):
            _copy_parts(block, what, at, place, arguments, {})
        if edge.box:
            with out.block(edge.otherwise):
                own = f"{block.map_name(edge_name(load.name))}, {barrier}"
                _copy_parts(block, what, at, place, own, {})
        return
    with out.block(f"for (int page = 0; page < {box.pages}; ++page)"):
        if box.paged:
            first = f"({at.at[box.paged]} + page * {box.each})"
            at = Point({**at.at, box.paged: first}, {}, at.origin)
        values = _coordinates(block, box, at)
        each = box.rows // box.pages * box.row_bytes
        _copy_parts(block, what, at, f"{place} + page * {each}", arguments, values)


def _coordinates(block: Block, box: TensorBox, at: Point) -> dict[str, str]:
    """Where the box begins by each value; before the tensor, so that zeros are copied, where the
    load reads nothing.
    """
    values: dict[str, str] = {}
    partial = box.paged and block.extents[box.paged] % box.extents[box.paged]
    for n, d in enumerate(box.dimensions):
        if d.value:
            value = told_value(block, d.value, at, f"of_{n}")
            value = cast(block.placement.dtypes[d.value], int64, value)
            exists = [f"{value} >= 0", f"{value} < {d.extent}"]
            exists += [f"{at.at[box.paged]} < {block.extents[box.paged]}"] if partial else []
            text = f"{' && '.join(exists)} ? int({value}) : -1"
            values[d.value] = f"page_{n}"
            block.out.line(f"const int page_{n} = {text};")
    return values


def _copy_parts(
    block: Block,
    what: TensorBox | Share,
    at: Point,
    place: str,
    arguments: str,
    values: Mapping[str, str],
    edge: Edge | None = None,
) -> None:
    """The copies of a box by a map, at a barrier; `values` say where it begins along dimensions
    that these move, an `edge` which parts are there.
    """
    box, shared = (what, 1) if isinstance(what, TensorBox) else (what.box, what.blocks)
    pixels = bool(box.pixels)
    function = copy_box_name(len(box.dimensions), shared > 1, pixels)
    function += f"<{shared}>" if shared > 1 else ""
    for part, further_in, further in what.copies():
        where = [values.get(d.value) or block.affine(d.coordinate, at) for d in box.dimensions]
        for n, text in further.items():
            where[n] += f" + {text}"
        if pixels:  # but for channels and images, where in its window each pixel reads
            where += [block.affine(d.within, at) for d in box.dimensions[1:-1]]
        target = f"shared + {place} + {further_in}"
        there = edge.has_part(part, block.frame.origin) if edge else ""
        call = f"{function}({target}, {arguments}, {', '.join(where)});"
        block.out.line(f"if ({there}) {call}" if there else call)


def _value(block: Block, s: Statement, at: Point) -> str:
    match s:
        case Literal(dtype=dtype, value=value):
            return literal(dtype, value)
        case Position():
            return block.position(s, at)
        case Load():
            return fetch(block, s, at)
        case Map():
            return block.mapped(s, at)
    raise AssertionError(s)
