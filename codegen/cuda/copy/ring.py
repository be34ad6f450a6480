"""Slots of shared memory that a producer fills in turn, and the barriers that hand them over."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from eqsat.price.conversion import CONVERTING

from ..place.block import Writer
from ..place.box import TensorBox
from ..place.distribution import WARP
from ..place.tile import Tile
from ..prelude.math import storage_type
from .multicast import Share

WARPS = CONVERTING // WARP  # that make a tile together


@dataclass
class Ring:
    """The boxes of one phase: their slots and barriers in shared memory.

    `role`: in a chain, which of its products read the boxes. `made`: those that are converted
    from others, by warps which arrive as the copies do. `readers`: the warps that let go of a slot;
    0 where they are all that compute.
    """

    number: int
    stages: int
    boxes: Mapping[str, TensorBox]
    shares: Mapping[str, Share] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    barriers: int = 0
    role: str = ""
    made: Collection[str] = ()
    readers: int = 0

    @property
    def copied(self) -> dict[str, TensorBox]:
        """The boxes that the producer copies."""
        return {name: box for name, box in self.boxes.items() if name not in self.made}

    @property
    def arrivals(self) -> int:
        """Of threads at a slot that fills: the producer's, and one of each warp that converts."""
        return bool(self.copied) + WARPS * len(self.made)

    @property
    def writers(self) -> int:
        """Blocks that write to each slot."""
        return max((one.blocks for one in self.shares.values()), default=1)

    def advance(self, out: Writer) -> None:
        """The next slot."""
        if self.stages == 1:
            out.line(f"parity_{self.number} ^= 1;")
        else:
            slot = f"slot_{self.number}"
            out.line(f"if (++{slot} == {self.stages}) {slot} = 0, parity_{self.number} ^= 1;")

    def point_at(
        self, out: Writer, name: str, tiles: Mapping[str, Tile], const: str = "const "
    ) -> None:
        """The pointer to a tile in the slot at hand."""
        tile = tiles[name]
        kind = f"{const}{storage_type(tile.dtype)}*"
        slot = "" if self.stages == 1 else f" + slot_{self.number} * {tile.size}"
        place = f"reinterpret_cast<{kind}>(shared + {self.offsets[name]}){slot}"
        out.line(f"{kind} const {tile.pointer} = {place};")

    def full(self, slot: str) -> str:
        return f"barriers + {self.barriers} + {slot}"

    def empty(self, slot: str) -> str:
        return f"barriers + {self.barriers + self.stages} + {slot}"
