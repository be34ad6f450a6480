"""A tile in shared memory as a box lies there: rows of which units of 16 bytes are swizzled."""

from dataclasses import dataclass

from ..place.box import PERIOD, UNIT, TensorBox
from ..place.tile import Point, Tile

SWIZZLES = {128: 1, 64: 2, 32: 3}  # row bytes to the matrix descriptor's code
SWIZZLED_ROWS = 8  # after which units are permuted as before, whatever a row's bytes


@dataclass(frozen=True)
class BoxTile(Tile):
    """A tile as the tensor memory accelerator writes it."""

    box: TensorBox | None = None

    @property
    def size(self) -> int:
        """Elements of one slot."""
        assert self.box is not None
        unit = self.box.alignment
        return -(-self.box.bytes // unit) * unit // self.dtype.itemsize

    def offset(self, point: Point) -> str:
        """The element's place within a slot: units of 16 bytes permuted by the row's number,
        counted from the first part's first where parts are no whole periods.
        """
        box = self.box
        assert box is not None
        row = self.row(point)
        inner = point.local(self.order[-1])
        unit, rows = 16 // self.dtype.itemsize, 128 // box.row_bytes
        period = box.row_bytes // 16
        turn = f"({row})"
        if box.blocks > 1 and box.rows * box.row_bytes % PERIOD:
            turn = f"({row} + ({inner}) / {box.width} * {box.rows})"
        turn += f" / {rows}" if rows > 1 else ""
        turn = turn if box.swizzled_bytes > UNIT else "0"
        within = inner if box.blocks == 1 else f"({inner}) % {box.width}"
        place = f"(({row}) * {box.width} + (({within}) ^ ({turn} % {period} * {unit})))"
        if box.blocks == 1:
            return place
        return f"(({inner}) / {box.width} * {box.rows * box.width} + {place})"

    def distance(self, index: str, points: int) -> int:
        """As of any tile, between rows whose units are permuted alike."""
        rows = points * self.strides[index]
        assert self.box is not None and index != self.order[-1] and rows % SWIZZLED_ROWS == 0
        return rows * self.box.width

    def row(self, point: Point) -> str:
        """The number of the point's row within a part."""
        parts = []
        for i in self.order[:-1]:
            if self.extents[i] > 1:
                stride = self.strides[i]
                parts.append(point.local(i) + ("" if stride == 1 else f" * {stride}"))
        return " + ".join(parts) or "0"


def box_tile(pointer: str, box: TensorBox, slots: int) -> BoxTile:
    """The tile of a box, in a ring of so many slots."""
    strides, stride = {box.order[-1]: 1}, 1
    for i in reversed(box.order[:-1]):
        strides[i] = stride
        stride *= box.extents[i]
    strides |= {index: step * strides[along] for index, along, step in box.slid}
    order = (*(index for index, _, _ in box.slid), *box.order)
    return BoxTile(pointer, box.dtype, order, box.extents, strides, slots, True, box=box)
