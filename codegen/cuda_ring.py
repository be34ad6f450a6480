"""Slots of shared memory that a producer fills in turn, and the barriers that hand them over."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from eqsat.codegen.cuda_box import TensorBox
from eqsat.codegen.cuda_multicast import Share


@dataclass
class Ring:
    """The boxes of one phase: their slots and barriers in shared memory.

    `role`: in a chain, which of its products read the boxes.
    """

    number: int
    stages: int
    boxes: Mapping[str, TensorBox]
    shares: Mapping[str, Share]
    offsets: dict[str, int] = field(default_factory=dict)
    barriers: int = 0
    role: str = ""

    @property
    def bytes(self) -> int:
        """Of one slot, as barriers count them."""
        return sum(box.bytes for box in self.boxes.values())

    @property
    def writers(self) -> int:
        """Blocks that write to each slot."""
        return max((one.blocks for one in self.shares.values()), default=1)

    def full(self, slot: str) -> str:
        return f"barriers + {self.barriers} + {slot}"

    def empty(self, slot: str) -> str:
        return f"barriers + {self.barriers + self.stages} + {slot}"
