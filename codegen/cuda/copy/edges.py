"""The last tile along an axis, where it reaches beyond the tensor: only what is there is copied.

The accelerator writes zeros for what lies outside a tensor, which takes longer than to copy as
much: on an H200 m x 4096 x 4096 in bfloat16, in tiles of 128 rows, took 19.9 us for m = 384 and
35.0 us for m = 272. What lies in a tile beyond an axis of the grid makes results that are not
stored: whatever was left in shared memory does. Of rows a map of its own copies as many as are
left; of parts along the innermost index those that begin outside are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from eqsat.graph.index import var
from eqsat.kernel.ir import Kernel

from ..place.box import TensorBox
from .multicast import RANK, Share


@dataclass(frozen=True)
class Edge:
    """Of a tile that begins at point `start` of axis `index` only `left` of its `of` points are
    copied.

    Along the innermost index they are parts of `width`. Otherwise they are rows, `step` for each
    copy, which is the whole tile or one block's slice of it; `box` copies what is left of the last
    slice, None where whole slices are left.
    """

    index: str
    start: int
    left: int
    of: int
    width: int = 0
    step: int = 0
    box: TensorBox | None = None

    def bytes(self, box: TensorBox) -> int:
        """What is copied of such a tile of the whole `box`."""
        return box.bytes // self.of * self.left

    def is_here(self, origins: Mapping[str, str]) -> str:
        """Whether the tile at hand is the last one, as text."""
        return f"{origins[self.index]} == {self.start}"

    def is_whole(self, origins: Mapping[str, str]) -> str:
        """Whether all rows that the block copies of the tile at hand are there, as text."""
        inside = f"{origins[self.index]} != {self.start}"
        return f"{inside} || {RANK} < {self.left // self.step}" if self.step < self.of else inside

    @property
    def otherwise(self) -> str:
        """Where they are not, whether some of them are, as text."""
        return f"else if ({RANK} == {self.left // self.step})" if self.step < self.of else "else"

    def has_part(self, part: str, origins: Mapping[str, str]) -> str:
        """Whether a part of the tile at hand is there, as text; nothing where it always is."""
        parts, inside = self.left // self.width, f"{origins[self.index]} != {self.start}"
        if part.isdigit():
            return "" if int(part) < parts else inside
        return f"{inside} || {part} < {parts}"


def find_edge(kernel: Kernel, box: TensorBox, share: Share | None) -> Edge | None:
    """The edge of a box along an axis of the grid: the outermost of its indices, or the innermost,
    where that is in several parts.
    """
    if box.pixels or box.paged:
        return None
    axes = {axis.name: axis for axis in kernel.grid}
    for index in dict.fromkeys((box.order[0], box.order[-1])):
        moved = [n for n, d in enumerate(box.dimensions) if d.coordinate == var(index)]
        moved = [n for n in moved if box.dimensions[n].box > 1]
        axis, whole = axes.get(index), box.extents[index]
        if axis is None or len(moved) != 1:
            continue
        (at,), start = moved, (axis.count - 1) * axis.tile
        left, dimension = axis.extent - start, box.dimensions[at]
        if left >= whole or dimension.guarded or dimension.step != 1:
            continue
        if at == 0:
            parts = -(-left // box.width)
            if parts < box.blocks:
                return Edge(index, start, parts * box.width, whole, width=box.width)
        elif share is None or share.cut in (0, at):
            step = share.step if share and share.cut else whole
            copied, rest = share.box if share else box, replace(dimension, box=left % step)
            sizes = (*copied.dimensions[:at], rest, *copied.dimensions[at + 1 :])
            own = replace(copied, dimensions=sizes) if rest.box else None
            return Edge(index, start, left, whole, step=step, box=own)
    return None
