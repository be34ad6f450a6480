"""Points as C++ sees them, values that can be read at one, and arrays in shared memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eqsat.graph.dtypes import DType

from ..prelude.math import LINE_OF_BANKS, cast, widen

TILE_UNIT = 16  # bytes of one row of an ldmatrix matrix, and of the widest copy


@dataclass(frozen=True)
class Point:
    """A point of some indices: its coordinates, and its register numbers where it is this
    thread's own."""

    at: Mapping[str, str]
    register: Mapping[str, str]
    origin: Mapping[str, str]

    def local(self, index: str) -> str:
        """The coordinate within the tile."""
        origin = self.origin[index]
        return self.at[index] if origin == "0" else f"({self.at[index]} - {origin})"

    def joined(self, other: "Point") -> "Point":
        """A point that has what both say."""
        return Point({**self.at, **other.at}, {**self.register, **other.register}, self.origin)


Reader = Callable[[Point], str]
"""The C++ expression of a value at a point, of the value's register type."""


def flat_number(texts: Sequence[str], sizes: Sequence[int]) -> str:
    """The number of an element, given its place along each of some sizes, the last contiguous."""
    parts, stride = [], 1
    for text, size in zip(reversed(texts), reversed(sizes), strict=True):
        if text != "0":
            parts.append(text if stride == 1 else f"({text}) * {stride}")
        stride *= size
    return " + ".join(reversed(parts)) or "0"


def constant(text: str) -> Reader:
    """A value that is the same at all points."""
    return lambda point: text


@dataclass(frozen=True)
class Tile:
    """An array in shared memory: `order` outermost first, `strides` in elements; `slots` copies.

    Of one that is `permuted`, units of every line of banks are by the line's number.
    """

    pointer: str
    dtype: DType
    order: tuple[str, ...]
    extents: Mapping[str, int]
    strides: Mapping[str, int]
    slots: int = 1
    guarded: bool = False  # barriers of its own order its copies and reads
    permuted: bool = False

    @property
    def size(self) -> int:
        """Elements of one slot, a multiple of 16 bytes; of whole lines where these are permuted."""
        outer = self.order[0] if self.order else None
        size = self.extents[outer] * self.strides[outer] if outer else 1
        unit = (LINE_OF_BANKS if self.permuted else TILE_UNIT) // self.dtype.itemsize
        return -(-size // unit) * unit

    def offset(self, point: Point) -> str:
        """The element's place within a slot."""
        parts = []
        for i in self.order:
            if self.extents[i] > 1:
                stride = self.strides[i]
                parts.append(point.local(i) + ("" if stride == 1 else f" * {stride}"))
        text = " + ".join(parts) or "0"
        return f"permuted<{self.dtype.itemsize}>({text})" if self.permuted else text

    @property
    def places(self) -> "Tile":
        """As it is copied."""
        return self

    def distance(self, index: str, points: int) -> int:
        """How far every element lies from the one so many points of an index before it."""
        assert not self.permuted
        return points * self.strides[index]

    def reader(self, dtype: DType) -> Reader:
        """Reads an element as a register value of `dtype`."""

        def read(point: Point) -> str:
            text = widen(self.dtype, f"{self.pointer}[{self.offset(point)}]")
            return cast(self.dtype, dtype, text)

        return read
