"""Interleaved rounds, and what is said of them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.bench.contender import Contender


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, in each round."""

    seconds: tuple[float, ...]

    def quantile(self, part: float) -> float:
        """The seconds that `part` of the rounds stay below."""
        return float(np.quantile(self.seconds, part))

    @property
    def median(self) -> float:
        """The middle round."""
        return self.quantile(0.5)

    def record(self) -> dict[str, object]:
        """Milliseconds for JSON."""
        return {
            "median_ms": self.median * 1e3,
            "lower_quartile_ms": self.quantile(0.25) * 1e3,
            "upper_quartile_ms": self.quantile(0.75) * 1e3,
            "rounds_ms": [one * 1e3 for one in self.seconds],
        }


def interleave(
    contenders: Sequence[Contender], rounds: int, pause_seconds: float
) -> dict[str, Timing]:
    """A block of each contender in turn, there and back (A B B A ...), so that none is always the
    one after another, and after one of each that does not count.
    """
    seconds: dict[str, list[float]] = {one.name: [] for one in contenders}
    for one in contenders:
        one.block()
    for turn in range(rounds):
        for one in contenders if turn % 2 == 0 else contenders[::-1]:
            time.sleep(pause_seconds)
            seconds[one.name].append(one.block())
    return {name: Timing(tuple(values)) for name, values in seconds.items()}
