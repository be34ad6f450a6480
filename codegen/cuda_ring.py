"""Slots of shared memory that a producer fills in turn, and the barriers that hand them over."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from eqsat.codegen.cuda_block import Writer
from eqsat.codegen.cuda_box import TensorBox
from eqsat.codegen.cuda_multicast import Share


@dataclass
class Ring:
    """The boxes of one phase: their slots and barriers in shared memory.

    `role`: in a chain, which of its products read the boxes. `made`: those that are converted
    from others, by so many warps `converting`, which arrive as the copies do. `readers`: the warps
    that let go of a slot; 0 where they are all that compute.
    """

    number: int
    stages: int
    boxes: Mapping[str, TensorBox]
    shares: Mapping[str, Share] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    barriers: int = 0
    role: str = ""
    made: Collection[str] = ()
    converting: int = 0
    readers: int = 0

    @property
    def copied(self) -> dict[str, TensorBox]:
        """The boxes that the producer copies."""
        return {name: box for name, box in self.boxes.items() if name not in self.made}

    @property
    def arrivals(self) -> int:
        """Of threads at a slot that fills: the producer's, and one of each warp that converts."""
        return bool(self.copied) + self.converting * len(self.made)

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

    def full(self, slot: str) -> str:
        return f"barriers + {self.barriers} + {slot}"

    def empty(self, slot: str) -> str:
        return f"barriers + {self.barriers + self.stages} + {slot}"
