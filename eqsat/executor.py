"""Run a function of tensors on a processing unit, with its grid and block left open or given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eqsat.jitted import jit
from eqsat.specs import ParallelProcessingUnit


@dataclass(frozen=True)
class ExecutionConfig:
    """Where to run, and how far the schedule is settled.

    grid_dim: the number of tiles of every kernel; block_dim: the threads of a tile. None leaves
    the choice to the cost model; a number that no legal schedule has raises SpecError. precision:
    as that of `eqsat.compile`.
    """

    processing_unit: ParallelProcessingUnit
    grid_dim: int | None = None
    block_dim: int | None = None
    precision: str | None = None


class KernelExecutor:
    """Compiles functions of tensors for a config when they are run, once for each signature."""

    def __init__(self, config: ExecutionConfig) -> None:
        self.config = config
        self._compiled: dict[Callable[..., Any], Any] = {}

    def run(self, function: Callable[..., Any], *arrays: Any) -> Any:
        """The function's outputs for these arrays; its parameters are tensors of their shapes."""
        if function not in self._compiled:
            self._compiled[function] = jit(
                function,
                spec=self.config.processing_unit,
                grid_dim=self.config.grid_dim,
                block_dim=self.config.block_dim,
                precision=self.config.precision,
            )
        return self._compiled[function](*arrays)
