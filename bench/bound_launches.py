"""A program's launches bound to arrays, one set of inputs after another."""

from collections.abc import Sequence
from typing import Any

from eqsat.bench.contender import Sets
from eqsat.program import Backend, Launch, Program, workspace


class BoundLaunches:
    """Runs launches over arrays of its own, each launch as a call of the backend by itself.

    That leaves out the checks of `Program.__call__`, and makes every launch one that a stream
    capture records. Temporaries are shared between sets, outputs are not.
    """

    def __init__(
        self, program: Program, launches: Sequence[Launch], backend: Backend, sets: Sets
    ) -> None:
        parts = program.parts
        shared = {name: backend.constant(value) for name, value in parts.constants.items()}
        shared |= workspace(parts, backend, {name for one in launches for name in one.buffers})
        self.runs = [backend.prepare([launch]) for launch in launches]
        self.arrays: list[dict[str, Any]] = []
        self.outputs: list[list[Any]] = []
        for values in sets:
            given = {
                argument.buffer: backend.receive(value, argument)
                for argument, value in zip(parts.arguments, values, strict=True)
            }
            results = {name: backend.empty(shape, dtype) for name, shape, dtype in parts.outputs}
            self.arrays.append({**shared, **given, **results})
            self.outputs.append([results[name] for name, _, _ in parts.outputs])

    def run(self, place: int) -> None:
        """All launches over one set."""
        for run in self.runs:
            run(self.arrays[place])
