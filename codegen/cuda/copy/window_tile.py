"""Tiles in shared memory of what overlapping windows read: each place of an axis once.

Several indices walk such an axis, so that each of them moves an element's place in the tile as far
as its step says; readers find an element by its indices as in any tile. What is copied is an array
over places, numbered along an index that walks the axis step by step, the others at the tile's
first point.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eqsat.graph.index import bounds
from eqsat.kernel.ir import Contract, Load, Map
from eqsat.layout.relayout import WalkedAxis

from ..place.access import sliding_axes
from ..place.block import Block, Frame
from ..place.tile import TILE_UNIT, Point, Tile


@dataclass(frozen=True)
class Places(Tile):
    """A tile as it is copied: `along` says which index numbers the places of which axis, `first`
    which indices stay at the first point.
    """

    along: Mapping[str, WalkedAxis] | None = None
    first: tuple[str, ...] = ()


@dataclass(frozen=True)
class WindowTile(Tile):
    """A tile as it is read, by indices of which several walk one axis."""

    held: Tile | None = None

    @property
    def size(self) -> int:
        """Elements of one slot."""
        return self.places.size

    @property
    def places(self) -> Tile:
        """As it is copied."""
        assert self.held is not None
        return self.held


def shared_axes(block: Block, load: Load, extents: Mapping[str, int]) -> dict[str, WalkedAxis]:
    """The axes of which several points of a tile read one place, each with the index that numbers
    its places; none where an operation reads elements together along one, or where places lie
    beyond the last point that is summed over, which are no zeros.
    """
    found: dict[str, WalkedAxis] = {}
    for axis in sliding_axes(block.kernel, load):
        if sum(extents[i] > 1 for i in axis.names) > 1:
            by_one = {str(atom) for atom, step in axis.place.terms if step == 1}
            found[block.ordered(by_one)[0]] = axis  # rows of a product, if these do
    inside = {i for axis in found.values() for i in axis.names}
    matrices = [block.placement.matrices[user] for user in _products(block, load)]
    inner = min(load.access.address.terms, key=lambda term: abs(term[1]), default=("", 0))[0]
    if matrices and (inner in inside or any(m.k in inside for m in matrices)):
        return {}
    summed = {i for i in inside if block.axes[i] not in block.kernel.grid}
    whole = all(extents[i] == min(block.axes[i].tile, block.axes[i].extent) for i in summed)
    even = not any(block.axes[i].extent % extents[i] for i in summed)
    return found if whole and even else {}


def _products(block: Block, load: Load) -> list[str]:
    """The products by matrix operations that read a load, or a cast of it."""
    found, waiting = [], [load.name]
    while waiting:
        for user in block.placement.users[waiting.pop()]:
            s = block.placement.statements.get(user)
            if isinstance(s, Contract) and user in block.placement.matrices:
                found.append(user)
            elif isinstance(s, Map):
                waiting.append(user)
    return found


def number_of_places(axes: Mapping[str, WalkedAxis], extents: Mapping[str, int]) -> dict[str, int]:
    """Places on each axis that a tile with so many points of each index reads."""
    return {
        along: 1 + sum(step * (extents[str(atom)] - 1) for atom, step in axis.place.terms)
        for along, axis in axes.items()
    }


def window_tile(
    tile: Tile, axes: Mapping[str, WalkedAxis], order: Sequence[str], extents: Mapping[str, int]
) -> WindowTile:
    """How a tile that has the places of some axes is read, by indices in an order: each moves an
    element's place as far as its steps along an axis do.
    """
    strides, first = dict(tile.strides), [i for i in order if i not in tile.order]
    for along, axis in axes.items():
        strides |= {str(atom): step * tile.strides[along] for atom, step in axis.place.terms}
    shape = (tile.pointer, tile.dtype, tile.order, tile.extents, tile.strides, tile.slots)
    held = Places(*shape, along=axes, first=tuple(first), permuted=tile.permuted)
    return WindowTile(
        tile.pointer, tile.dtype, tuple(order), extents, strides, tile.slots,
        permuted=tile.permuted, held=held,
    )  # fmt: skip


def rows_conflict(
    block: Block, load: Load, axes: Mapping[str, WalkedAxis], extents: Mapping[str, int], inner: str
) -> bool:
    """Whether rows of a fragment, whole units each, lie an even number of these apart however a
    tile is padded: windows move by an even step.
    """
    matrices = (block.placement.matrices[user] for user in _products(block, load))
    rows = {i for m in matrices for i in (*m.rows, *m.columns)}
    steps = {str(a): step for axis in axes.values() for a, step in axis.place.terms}
    bytes_ = extents[inner] * block.kernel.buffer(load.access.buffer).dtype.itemsize
    return bytes_ % TILE_UNIT == 0 and any(steps.get(i, 1) % 2 == 0 for i in rows)


def at_place(tile: Tile, point: Point) -> Point:
    """A point of what is copied, with indices that have no loop of their own."""
    if not isinstance(tile, Places):
        return point
    first = {i: point.origin[i] for i in tile.first}
    return Point({**first, **point.at}, point.register, point.origin)


def within_extents(block: Block, load: Load, tile: Tile, point: Point, frame: Frame) -> list[str]:
    """Conditions for a point of what is copied to lie within the extents: for places, of some index
    that walks them, unless the load's own guards tell as much.
    """
    if not isinstance(tile, Places) or not tile.along:
        return block.valid(tile.order, point, frame)
    conditions = block.valid([i for i in tile.order if i not in tile.along], point, frame)
    points = {i: min(axis.tile, axis.extent) for i, axis in block.axes.items()}
    fitting = number_of_places(tile.along, points)
    for along, axis in tile.along.items():
        beyond = tile.extents[along] > fitting[along]
        beyond |= any(block.axes[i].extent % block.axes[i].tile for i in axis.names)
        conditions += before_end(block, load, axis, point) if beyond else []
    return conditions


def before_end(block: Block, load: Load, axis: WalkedAxis, point: Point) -> list[str]:
    """The condition for a place on an axis to be one that points within the extents reach; none
    where the load's own guards tell as much.
    """
    _, high = bounds(axis.place, block.extents)
    if any(g.expression == axis.place and high >= g.upper for g in load.access.guards):
        return []
    return [f"{block.affine(axis.place, point, block.is_wide(axis.place))} <= {high}"]
