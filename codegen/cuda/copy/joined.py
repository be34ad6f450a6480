"""Tiles of what lies in pieces: each is copied from the piece that it lies in, by a map of its own.

The accelerator writes zeros for a box outside a tensor, which takes it longer than to copy one.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

from eqsat.errors import UnsupportedError
from eqsat.kernel.ir import Contract, Kernel, Load
from eqsat.kernel.joined import is_apart

from ..place.block import Block
from ..place.box import TensorBox
from ..place.tile import Point
from .copies import find_box


def pieces(load: Load) -> list[Load]:
    """A load of each piece, the first by the name of all."""
    names = [load.name, *(f"{load.name}_piece{n}" for n in range(1, len(load.accesses)))]
    each = zip(names, load.accesses, strict=True)
    return [replace(load, name=name, access=access, rest=()) for name, access in each]


def piece_boxes(block: Block, name: str, first: TensorBox) -> dict[str, TensorBox]:
    """The boxes of a load's pieces but the first, which lie in shared memory as that one does.

    Raises UnsupportedError where they do not, or a tile lies in several pieces.
    """
    found: dict[str, TensorBox] = {}
    load = block.placement.statements[name]
    assert isinstance(load, Load)
    apart = is_apart(load, block.axes)
    for one in pieces(load)[1:]:
        box = find_box(block, one)
        if box is None or not apart or _layout(box) != _layout(first):
            raise UnsupportedError(
                f"{load.name} of kernel {block.kernel.name} is in pieces, of which a tile is not "
                f"one box of {one.access.buffer}: a piece must begin where a tile does. Choose "
                f"other tiles."
            )
        found[one.name] = box
    return found


def _layout(box: TensorBox) -> object:
    """How a tile lies in shared memory."""
    extents = tuple(box.extents[i] for i in box.order)
    return box.dtype, box.order, extents, box.width, box.paged, box.pixels, box.runs


def copy_from_piece(block: Block, name: str, copy: Callable[[Load], None]) -> None:
    """The copy of a load's tile, from the piece that it lies in."""
    load = block.placement.statements[name]
    assert isinstance(load, Load)
    if not load.rest:
        copy(load)
        return
    at = Point(dict(block.frame.origin), {}, block.frame.origin)
    *before, last = pieces(load)
    for number, one in enumerate(before):
        guard = one.access.guards[0]
        there = f"{block.affine(guard.expression, at)} < {guard.upper}"
        with block.out.block(f"{'else ' * (number > 0)}if ({there})"):
            copy(one)
    with block.out.block("else"):
        copy(last)


def check_joined(kernel: Kernel, copied: Collection[str]) -> None:
    """Raises UnsupportedError where threads would read factors that lie in pieces."""
    multiplied = any(isinstance(s, Contract) for s in kernel.statements())
    for s in kernel.statements() if multiplied else ():
        if isinstance(s, Load) and s.rest and s.name not in copied:
            raise UnsupportedError(
                f"{s.name} of kernel {kernel.name} is in pieces, which only copies of boxes read. "
                f"Choose an operation that takes it from shared memory."
            )
