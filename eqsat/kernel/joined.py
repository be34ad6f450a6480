"""Pieces of memory that lie apart and are read as one array, as what `concat` joins."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, prod

from eqsat.graph.index import Affine, Atom, add, const, scale, sub
from eqsat.kernel.ir import Access, Axis, Guard, Load


@dataclass(frozen=True)
class Piece:
    """Points `start` to `stop` of the joined axis: elements of a buffer, the first of them at
    `offset`; `steps` is how far neighbours along each axis of the array are apart.
    """

    buffer: str
    start: int
    stop: int
    offset: int
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Joined:
    """An array of a shape whose `axis` is in pieces, in order and without gaps. Addresses in it are
    row-major; it lies nowhere itself.
    """

    shape: tuple[int, ...]
    axis: int
    pieces: tuple[Piece, ...]

    def accesses(self, address: Affine) -> tuple[Access, ...]:
        """Of each piece what an address in the array is there, where it lies in the piece."""
        at = self._coordinates(address)
        found = []
        for piece in self.pieces:
            own = [*at]
            own[self.axis] = sub(at[self.axis], const(piece.start))
            steps = (scale(c, step) for c, step in zip(own, piece.steps, strict=True))
            guard = Guard(own[self.axis], 0, piece.stop - piece.start)
            found.append(Access(piece.buffer, add(const(piece.offset), *steps), (guard,)))
        return tuple(found)

    def place(self, address: Affine) -> Affine:
        """The place along the joined axis of what an address in the array is."""
        return self._coordinates(address)[self.axis]

    def _coordinates(self, address: Affine) -> list[Affine]:
        """The place along each axis."""
        strides = [prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        terms: list[list[tuple[Atom, int]]] = [[] for _ in self.shape]
        constants, left = [], address.constant
        for axis, stride in enumerate(strides):
            constants.append(left // stride)
            left %= stride
            for atom, step in address.terms:
                above = strides[axis - 1] if axis else step + 1
                if stride <= step < above:
                    assert step % stride == 0, f"{address} walks between the axes of {self.shape}"
                    terms[axis].append((atom, step // stride))
        return [Affine(tuple(t), c) for t, c in zip(terms, constants, strict=True)]


def is_apart(load: Load, axes: Mapping[str, Axis]) -> bool:
    """Whether each tile of a load in pieces lies in one of them, or beyond the last."""
    for access in load.rest:
        place = access.guards[0].expression
        span, between = 0, 0  # points of a tile, and what divides the distance of tiles
        for atom, step in place.terms:
            if not isinstance(atom, str):
                return False
            axis = axes[atom]
            span += abs(step) * (min(axis.tile, axis.extent) - 1)
            between = gcd(between, step * axis.tile * (axis.count > 1))
        if not between or place.constant % between or span >= between:
            return False
    return True
