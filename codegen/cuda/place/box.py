"""Loads that the tensor memory accelerator can do: a tile as a box of a strided tensor.

A tile in shared memory is rows of 32, 64 or 128 bytes along its innermost index, swizzled: within
eight rows the 16-byte units of a row are permuted by its number, as matrix operations read them.
A tile that is wider lies there as several such boxes, one after the other. Points outside the
tensor are zero: that is how extents, and guards such as a convolution's padding, are met. A box may
begin anywhere but along the innermost dimension.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, prod

from eqsat.graph.dtypes import DType
from eqsat.graph.index import Affine, FloorDiv, Mod, add, bounds, const, free_names, scale, sub, var
from eqsat.kernel.ir import Access, Axis, Buffer, Guard, Load
from eqsat.layout.needs import MOST_BOX, MOST_STEP

from ..prelude.asynchronous import MOST_DIMENSIONS

UNIT = 16  # bytes: of alignment in memory, and what the swizzle permutes
LINE = 128  # bytes: of alignment of a box in shared memory
PERIOD = 1024  # bytes: eight rows of 128, after which the widest swizzle begins again
WIDTHS = (128, 64, 32)  # bytes of a swizzled row
ORIGIN = const(0)
OFTEN = 8  # times that an element is copied, from which on its copies are the cache's work


@dataclass(frozen=True)
class Dimension:
    """One dimension of the tensor: `box` of its `extent` elements are copied, every `step`th.

    `stride` is the distance of neighbours in memory, in elements; `coordinate` says where the box
    begins, as an expression in the first points of the kernel's indices. Where it is `guarded`,
    that may be outside the tensor. With a `value` the box begins where that one of the kernel says.
    A run of pixels goes along it from its first place plus `corners[0]` to its last plus
    `corners[1]`, and reads what lies `within` further on.
    """

    extent: int
    stride: int
    box: int
    step: int
    coordinate: Affine
    guarded: bool = False
    value: str = ""
    corners: tuple[int, int] = (0, 0)
    within: Affine = ORIGIN


@dataclass(frozen=True)
class TensorBox:
    """A box of a buffer, its dimensions innermost first; `offset` elements lie before the tensor.

    In shared memory the tile has `blocks` parts along its inner index of `order`, each of `rows`
    rows of `width` elements. `often`: the kernel's tiles together copy each element many times.
    A tile of pages is copied `each` points of the index `paged` at a time, the outermost one. With
    `pixels` it is a run of so many of them: along the second dimension, then along the next; and
    `runs` such, each `apart` places along the last dimension, where terms of values are. Where
    windows overlap, `order` has of each axis the index that numbers its places, one by one, and
    `slid` every other index that walks it, with that one and how many places it moves on.
    """

    buffer: str
    dtype: DType
    offset: int
    dimensions: tuple[Dimension, ...]
    order: tuple[str, ...]
    extents: Mapping[str, int] = field(hash=False)
    width: int
    often: bool = False
    paged: str = ""
    each: int = 1
    pixels: int = 0
    runs: int = 1
    apart: int = 1
    slid: tuple[tuple[str, str, int], ...] = ()

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    @property
    def swizzled_bytes(self) -> int:
        """Bytes of a row whose units are permuted; of parts of one row none are."""
        return self.row_bytes if self.rows > 1 else UNIT

    @property
    def alignment(self) -> int:
        """Bytes, of the tile in shared memory."""
        return PERIOD if self.swizzled_bytes > UNIT else LINE

    @property
    def rows(self) -> int:
        """Rows of one part."""
        return prod(self.extents[i] for i in self.order[:-1])

    @property
    def blocks(self) -> int:
        """Parts along the inner index."""
        return self.extents[self.order[-1]] // self.width

    @property
    def pages(self) -> int:
        """How many copies bring the tile."""
        return self.extents[self.paged] // self.each if self.paged else 1

    @property
    def bytes(self) -> int:
        """Of the whole tile."""
        return self.rows * self.blocks * self.row_bytes

    def copies(self) -> Iterator[tuple[str, str, dict[int, str]]]:
        """Of each part its number, how many bytes into the tile it goes, and what is added to which
        of the box's coordinates, as text.
        """
        for part in range(self.blocks):
            at = {0: str(part * self.width)} if part else {}
            for further_in, again in self.again():
                yield str(part), str(part * self.rows * self.row_bytes + further_in), at | again

    def again(self) -> Iterator[tuple[int, dict[int, str]]]:
        """Of each run of a part how many bytes into it that goes, and what is added to which of the
        box's coordinates.
        """
        for run in range(self.runs):
            at = {len(self.dimensions) - 1: str(run * self.apart)} if run else {}
            yield run * self.rows // self.runs * self.row_bytes, at


def tensor_box(
    load: Load,
    buffer: Buffer,
    axes: Mapping[str, Axis],
    points: Mapping[str, int],
    inner: str,
    summed: Collection[str],
    outer: str = "",
    alike: Mapping[str, int] | None = None,
) -> TensorBox | None:
    """The box of a load with `inner` innermost, or None where the accelerator cannot copy it; with
    `outer` outermost if it is one of the load's indices. Of the indices in `alike` so many points
    have the same values of the load's coordinates; None where these cannot be had beforehand.

    `points` are the tile's extents by index, padding included. Padding of an index shows what
    lies beyond the tile or, beyond the tensor, zero; in that of `summed` indices all must be zero.
    """
    access = load.access
    if not ends_in_zeros(load, axes, points, summed):
        return None
    if (access.coordinates and alike is None) or load.fill or load.dtype != buffer.dtype:
        return None
    moved = {i: n for i, n in (alike or {}).items() if points.get(i, 1) > 1}
    if len(moved) > 1 or (moved and (outer or inner in moved)):
        return None
    each = {i: gcd(n, points[i], *_starts(axes[i])) for i, n in moved.items()}
    order = [i for i in load.indices if i != inner and points[i] > 1]
    # rows of an operation follow each other, whatever is summed over
    order.sort(key=lambda i: (i != outer and i not in moved, i not in summed))
    order.append(inner)
    found = _dimensions(access, axes, points, each)
    if found is None:
        return None
    offset, dimensions = found
    by_index = {i: d for i in order for d in dimensions if _moves(d, i)}
    if set(by_index) != set(order):
        return None  # an index that does not move the address
    first, size = by_index[inner], buffer.dtype.itemsize
    if first.stride != 1 or first.step != 1 or not is_aligned(first.coordinate, axes, size):
        return None
    wide = points[inner] * size
    alone = len(order) == 1 and wide % LINE == 0 and points[inner] <= MOST_BOX  # is not swizzled
    width = next((w for w in (wide * alone, *WIDTHS) if w and wide % w == 0), 0)
    if not width:
        return None
    columns = [by_index[i] for i in reversed(order[:-1])]
    rest = [d for d in dimensions if d is not first and all(d is not c for c in columns)]
    guarded = [d for d in rest if d.guarded]  # only by themselves do they tell what is absent
    others = [d for d in _merged([d for d in rest if not d.guarded]) if d.extent > 1]
    others += [
        Dimension(c.extent, c.stride, 1, 1, const(0), value=c.value) for c in access.coordinates
    ]
    first, others = _folded(first, others, MOST_DIMENSIONS - 1 - len(columns) - len(guarded))
    first, runs, apart = replace(first, box=width // size), 1, 1
    if columns and 1 + len(columns) + len(guarded) + len(others) > MOST_DIMENSIONS:
        columns, others, runs, apart = _in_runs(columns, others)
    ordered = [first, *columns, *guarded, *others]
    if runs > 1 and not others:  # what they are places along comes last
        ordered = [first, *guarded, *columns]
    if len(ordered) == 1:  # a tensor map has two dimensions at least
        rest_of_line = -(-buffer.size * size // UNIT) * UNIT // size
        ordered.append(Dimension(1, rest_of_line, 1, 1, const(0)))
    if len(set(map(id, columns))) != len(columns) or not is_legal(ordered, offset, size):
        return None
    extents = {i: points[i] for i in order}
    box = TensorBox(
        buffer.name, buffer.dtype, offset, tuple(ordered), tuple(order), extents, width // size
    )
    if runs > 1:
        box = replace(box, runs=runs, apart=apart)
        if each or box.rows // runs * box.row_bytes % PERIOD:
            return None
    for i, n in each.items():
        box = replace(box, paged=i, each=n)
    if box.pages > 1 and box.rows // box.pages * box.row_bytes % PERIOD:
        return None
    return box if box.blocks == 1 or box.rows * box.row_bytes % LINE == 0 else None


def is_copied_often(box: TensorBox, load: Load, axes: Mapping[str, Axis]) -> bool:
    """Whether tiles and chunks copy an element OFTEN times, with `axes` those of the tile's loops:
    along axes that do not move the box, and where windows overlap.
    """
    points = prod(axes[i].extent for i in load.indices)
    times = prod(axis.count for i, axis in axes.items() if i not in load.indices)
    return points * times >= OFTEN * prod(d.extent for d in box.dimensions)


def ends_in_zeros(
    load: Load, axes: Mapping[str, Axis], points: Mapping[str, int], summed: Collection[str]
) -> bool:
    """Whether the padding of a tile along `summed` indices lies beyond the tensor: not where guards
    have it together with others, as in windows; by itself an index ends with its dimension.
    """
    for i in set(summed) & set(load.indices):
        expressions = [guard.expression for guard in load.access.guards]
        guarded = any(_holds(one, i) and one.terms != ((i, 1),) for one in expressions)
        partial = axes[i].extent % axes[i].tile if axes[i].count > 1 else points[i] > axes[i].extent
        if (points[i] > axes[i].tile and axes[i].count > 1) or (guarded and partial):
            return False
    return True


def is_aligned(coordinate: Affine, axes: Mapping[str, Axis], size: int) -> bool:
    """Whether every tile and chunk begins at a whole unit: of memory elsewhere than at multiples of
    16 bytes the accelerator copies nothing, it ends the kernel with an illegal instruction.
    """
    steps = [coordinate.constant]
    for atom, c in coordinate.terms:
        axis = axes[atom] if isinstance(atom, str) else None
        steps.append(c if axis is None else c * axis.tile * (axis.count > 1))
    return all(step * size % UNIT == 0 for step in steps)


def _dimensions(
    access: Access, axes: Mapping[str, Axis], points: Mapping[str, int], each: Mapping[str, int]
) -> tuple[int, list[Dimension]] | None:
    """The dimensions that guards and indices give, and the elements before the tensor; of an index
    in `each` so many points are copied at a time.
    """
    strides = {atom: c for atom, c in access.address.terms if isinstance(atom, str)}
    offset = access.address.constant
    dimensions: list[Dimension] = []
    extents = {i: axis.extent for i, axis in axes.items()}
    for atom, stride in access.address.terms:  # quotients that are one number for a whole tile
        if not isinstance(atom, str):
            once = Affine(((atom, 1),), 0)
            index = next((i for i, n in each.items() if _is_rest(atom, i, n)), "")
            if index and stride > 0:
                dimensions.append(Dimension(atom.divisor, stride, each[index], 1, once))
                continue
            if stride < 0 or any(points.get(i, 1) > 1 for i in free_names(once)):
                return None
            dimensions.append(Dimension(bounds(once, extents)[1] + 1, stride, 1, 1, once))
    for guard in access.guards:
        times = _follows(guard, strides)
        if not times:
            return None
        tiled = [(i, c) for i, c in _terms(guard.expression) if points.get(i, 1) > 1]
        if len(tiled) > 1:
            return None
        index, step = tiled[0] if tiled else ("", 1)
        coordinate = sub(guard.expression, const(guard.lower))
        upper = min(guard.upper, bounds(guard.expression, extents)[1] + 1)  # what can be read
        box = points.get(index, 1)
        dimensions.append(Dimension(upper - guard.lower, times, box, step, coordinate, True))
        offset += times * (guard.lower - guard.expression.constant)
        for i, _ in _terms(guard.expression):
            del strides[i]
    for i, stride in strides.items():
        if stride < 0 or i in each:
            return None
        dimensions.append(Dimension(axes[i].extent, stride, points.get(i, 1), 1, var(i)))
    return offset, dimensions


def _follows(guard: Guard, strides: Mapping[str, int]) -> int:
    """The factor by which the address follows the guard's expression; 0 where it does not."""
    terms = _terms(guard.expression)
    if not terms or any(i not in strides or c <= 0 or strides[i] % c for i, c in terms):
        return 0
    factors = {strides[i] // c for i, c in terms}
    return max(min(factors), 0) if len(factors) == 1 else 0


def _terms(expression: Affine) -> list[tuple[str, int]]:
    return [(str(atom), c) for atom, c in expression.terms]


def _starts(axis: Axis) -> tuple[int, ...]:
    """What divides where tiles begin."""
    return (axis.tile,) if axis.count > 1 else ()


def _is_rest(atom: FloorDiv | Mod, index: str, each: int) -> bool:
    """Whether the atom is the index's remainder by a multiple of `each`."""
    return isinstance(atom, Mod) and atom.numerator == var(index) and atom.divisor % each == 0


def _moves(dimension: Dimension, index: str) -> bool:
    """Whether the dimension is walked along the index."""
    if _holds(dimension.coordinate, index):
        return True
    return dimension.box > 1 and index in free_names(dimension.coordinate)


def _holds(expression: Affine, index: str) -> bool:
    return any(i == index for i, _ in _terms(expression))


def _merged(dimensions: Sequence[Dimension]) -> list[Dimension]:
    """Dimensions of one point each, those joined whose strides are multiples of each other."""
    result: list[Dimension] = []
    for d in sorted(dimensions, key=lambda d: d.stride):
        last = result[-1] if result else None
        if last is not None and d.stride % last.stride == 0 and last.box == d.box == 1:
            times = d.stride // last.stride
            coordinate = add(last.coordinate, scale(d.coordinate, times))
            extent = last.extent + times * (d.extent - 1)
            result[-1] = Dimension(extent, last.stride, 1, 1, coordinate)
        else:
            result.append(d)
    return result


def _folded(
    first: Dimension, others: list[Dimension], most: int
) -> tuple[Dimension, list[Dimension]]:
    """The innermost dimension and at most so many others: of those beyond, of one place each, the
    nearest is part of the coordinate along the innermost one, whose boxes never pass its end.
    """
    while len(others) > most and not first.guarded and not first.value:
        near = min((d for d in others if not d.value), key=lambda d: d.stride, default=None)
        if near is None or near.box > 1 or first.extent % first.box:
            break
        others = [d for d in others if d is not near]
        coordinate = add(first.coordinate, scale(near.coordinate, near.stride))
        extent = first.extent + near.stride * (near.extent - 1)
        first = replace(first, extent=extent, coordinate=coordinate)
    return first, others


def _in_runs(
    columns: list[Dimension], others: list[Dimension]
) -> tuple[list[Dimension], list[Dimension], int, int]:
    """The dimensions without the outermost of the columns, which is copied place by place, if
    these may lie along another one, then the last; how many they are, and how far apart.
    """
    top, below = columns[-1], columns[:-1]
    for d in [*others, *below[-1:]]:
        apart = top.stride // max(d.stride, 1)
        plain = not (top.guarded or top.value or d.guarded or d.value) and top.step == d.step == 1
        whole = top.box == top.extent and d.extent % d.box == 0
        if plain and whole and top.stride == apart * d.stride and d.extent <= apart:
            both = replace(d, extent=d.extent + apart * (top.extent - 1))
            if d in others:
                return below, [*(o for o in others if o is not d), both], top.box, apart
            return [*below[:-1], both], others, top.box, apart
    return columns, others, 1, 1


def is_legal(dimensions: Sequence[Dimension], offset: int, size: int) -> bool:
    """The limits of a tensor map."""
    spans = [(d.box - 1) * d.step + 1 for d in dimensions]
    return (
        len(dimensions) <= MOST_DIMENSIONS
        and offset >= 0
        and offset * size % UNIT == 0
        and all(d.stride * size % UNIT == 0 for d in dimensions[1:])
        and all(0 < d.stride * size < 1 << 40 for d in dimensions)
        and all(0 < d.extent < 1 << 32 for d in dimensions)
        and all(
            span <= MOST_BOX and d.step <= MOST_STEP
            for d, span in zip(dimensions, spans, strict=True)
        )
    )
