"""What pricing a form under tile choices gives."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from eqsat.price.rates import Array
from eqsat.terms.algebra import Term


@dataclass
class Price:
    """Seconds for each tile choice, infinite where infeasible, and what they are made of."""

    seconds: Array
    parts: dict[str, Array] = field(default_factory=dict)
    refused: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    settled: dict[Term, tuple[list[str], NDArray[np.intp]]] = field(default_factory=dict)

    def operations(self, choice: int) -> dict[Term, str]:
        """The operation that suits each contraction best, where it depends on the tile."""
        return {term: names[numbers[choice]] for term, (names, numbers) in self.settled.items()}

    def bottleneck(self, choice: int) -> str:
        """The largest part of one choice."""
        return max(self.parts, key=lambda name: float(self.parts[name][choice]))
