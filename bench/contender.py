"""What takes part in a race, and the device on which it runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from eqsat.bench.case import Case, Instance, Sizes
from eqsat.graph import Tensor
from eqsat.kernel.ir import Kernel
from eqsat.program import Launch, Program


class MissingPeerError(Exception):
    """A peer that cannot take part, with the reason."""


@dataclass(frozen=True)
class Contender:
    """A way to compute a row's answer.

    `answer` clears the outputs of the first set of inputs, computes them by the very work that is
    timed, and gives them. `block` runs a timed block over the rotated inputs and gives the seconds
    of one call. `calls`: in a block. `public`: the answer through the public call, where `answer`
    takes another path.
    """

    name: str
    answer: Callable[[], list[Any]]
    block: Callable[[], float]
    calls: int
    public: Callable[[], list[Any]] | None = None


Sets = Sequence[tuple[Any, ...]]  # the inputs of a row, several times with other numbers


class Device(Protocol):
    """Where a row runs: its arrays, its clock, its peers."""

    pause_seconds: float  # before each timed block

    def describe(self) -> dict[str, Any]:
        """Name, driver, library versions."""
        ...

    def sets(self, case: Case, sizes: Sizes, count: int) -> Sets:
        """`count` sets of inputs with different numbers."""
        ...

    def ours(self, program: Program, sets: Sets) -> Contender:
        """A compiled program."""
        ...

    def variant(
        self, name: str, program: Program, launches: Sequence[Launch], sets: Sets
    ) -> Contender:
        """The program with other launches in place of its own."""
        ...

    def build(self, kernels: Sequence[Kernel]) -> None:
        """Compile kernels that will be prepared one after another, if that can be done at once."""
        ...

    def peer(self, name: str, case: Case, sets: Sets) -> Contender:
        """A row as a library computes it; MissingPeerError where that cannot be."""
        ...

    def fetch(self, array: Any, like: Tensor, rows: np.ndarray | None, axis: int | None) -> Any:
        """Rows of an array along the axis, as a NumPy array of the dtype of `like`."""
        ...

    def whole_error(
        self, instance: Instance, inputs: Sequence[Any], outputs: Sequence[Any], chunk: int
    ) -> float | None:
        """The error of all rows against float64 on the device; None where it has no such means.

        `chunk`: rows that may be computed at a time.
        """
        ...

    def release(self) -> None:
        """Give memory of the last row back. Raises where the device no longer works."""
        ...
