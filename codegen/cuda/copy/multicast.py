"""Boxes that the blocks of a cluster copy for each other.

Blocks whose tiles follow one another along some axes read the same tiles of whatever these do not
move. Of such a box each block copies a part, to the same place of every block's shared memory;
each counts all of its bytes. A slot is free when all blocks have let go of it, since every one of
them writes to it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from eqsat.errors import UnsupportedError
from eqsat.graph.index import free_names
from eqsat.kernel.ir import Kernel
from eqsat.kernel.tile_order import run_axes

from ..place.box import PERIOD, TensorBox

RANK = "rank"  # a variable: the block's number in its cluster


@dataclass(frozen=True)
class Share:
    """What one of `blocks` copies of a box: every so many parts of it, or of all parts a slice of
    the rows. `box` is what is copied at once; slices are `step` apart along dimension `cut`.
    """

    blocks: int
    box: TensorBox
    cut: int = 0
    step: int = 0

    def copies(self) -> Iterator[tuple[str, str, dict[int, str]]]:
        """Of each copy the number of the part, how many bytes into the tile it goes, and what is
        added to which of the box's coordinates.
        """
        box = self.box
        part_bytes = box.rows * box.row_bytes
        if not self.cut:
            for first in range(0, box.blocks, self.blocks):
                part = f"({RANK} + {first})" if first else RANK
                for further_in, again in box.again():
                    place = f"{part} * {part_bytes}" + (f" + {further_in}" if further_in else "")
                    yield part, place, {0: f"{part} * {box.width}"} | again
            return
        slice_bytes = part_bytes // self.blocks
        for part in range(box.blocks):
            at = {self.cut: f"{RANK} * {self.step}"}
            yield (
                str(part),
                f"{part * part_bytes} + {RANK} * {slice_bytes}",
                at | ({0: str(part * box.width)} if part else {}),
            )


def share(box: TensorBox, blocks: int) -> Share | None:
    """The share of each block; None where slices would begin within a period of the swizzle."""
    if box.blocks % blocks == 0:
        return Share(blocks, box)
    cut = max((n for n, d in enumerate(box.dimensions) if n and d.box > 1), default=0)
    whole = box.dimensions[cut]
    if (
        not cut
        or box.runs > 1
        or whole.box % blocks
        or box.rows * box.row_bytes % (blocks * PERIOD)
    ):
        return None
    part = replace(whole, box=whole.box // blocks)
    dimensions = (*box.dimensions[:cut], part, *box.dimensions[cut + 1 :])
    return Share(blocks, replace(box, dimensions=dimensions), cut, part.box * part.step)


def shares(kernel: Kernel, boxes: Mapping[str, TensorBox]) -> dict[str, Share]:
    """Of the boxes that all blocks of a cluster read alike, what each of them copies."""
    if kernel.multicast == 1:
        return {}
    axes = {axis.name for axis in run_axes(kernel, kernel.multicast)}
    if not axes:
        raise UnsupportedError(
            f"kernel {kernel.name} has clusters of {kernel.multicast} blocks that copy for each "
            f"other, and {kernel.tiles} tiles, of which as many are no run. Give each tile a block "
            f"by itself."
        )
    found = {}
    for name, box in boxes.items():
        moved = {n for d in box.dimensions for n in free_names(d.coordinate)}
        told = any(d.value for d in box.dimensions)
        own = None if told or axes & moved else share(box, kernel.multicast)
        if own:
            found[name] = own
    return found
