"""Rows on the cores of this machine: NumPy arrays, perf_counter, the same threads for all."""

import math
import platform
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from eqsat.bench.bound_launches import BoundLaunches
from eqsat.bench.case import Case, Instance, Sizes
from eqsat.bench.contender import Contender, Sets
from eqsat.bench.inputs import host_set
from eqsat.bench.peer_functions import require_peer, torch_function, versions
from eqsat.bench.vocabulary import NumpyVocabulary
from eqsat.cache.store import Cache
from eqsat.codegen.targets import TARGETS
from eqsat.graph import Tensor
from eqsat.kernel.ir import Kernel
from eqsat.nesting import flatten
from eqsat.program import Launch, Program
from eqsat.settings import Settings
from eqsat.specs import ParallelProcessingUnit

BLOCK_SECONDS = 0.02
MAX_CALLS = 500


class Host:
    """The CPU. Results are allocated by each contender, as its users would have it."""

    pause_seconds = 0.2  # idle BLAS threads of the contender before spin for about 0.1 s

    def __init__(self, spec: ParallelProcessingUnit) -> None:
        self.threads = Settings.from_environment().num_threads
        self.backend = TARGETS[spec.target].backend(spec, Cache.open().code_dir)

    def describe(self) -> dict[str, Any]:
        """Name of the processor, threads, library versions."""
        info = Path("/proc/cpuinfo")
        text = info.read_text(errors="replace") if info.exists() else ""
        model = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
        return {
            "name": model[1] if model else platform.processor() or platform.machine(),
            "driver": "none",
            "threads": self.threads,
            "libraries": versions("numpy", "scipy", "numba", "torch"),
        }

    def sets(self, case: Case, sizes: Sizes, count: int) -> Sets:
        """Sets of NumPy arrays."""
        return [host_set(case, sizes, seed) for seed in range(count)]

    def ours(self, program: Program, sets: Sets) -> Contender:
        """The program by its public call."""

        def answer() -> list[np.ndarray]:
            cleared = [_filled(shape, dtype.numpy) for _, shape, dtype in program.parts.outputs]
            program(*sets[0], out=cleared)
            return cleared

        return self._contender("eqsat", answer, lambda place: program(*sets[place]), len(sets))

    def variant(
        self, name: str, program: Program, launches: Sequence[Launch], sets: Sets
    ) -> Contender:
        """Other launches over arrays of their own."""
        bound = BoundLaunches(program, launches, self.backend, sets)

        def answer() -> list[np.ndarray]:
            for array in bound.outputs[0]:
                array.reshape(-1).view(np.uint8).fill(255)
            bound.run(0)
            return bound.outputs[0]

        return self._contender(name, answer, bound.run, len(sets))

    def build(self, kernels: Sequence[Kernel]) -> None:
        """As the backend does: several at a time on a GPU, and on the host as they are prepared."""
        self.backend.build(kernels)

    def peer(self, name: str, case: Case, sets: Sets) -> Contender:
        """NumPy, torch eager, or torch.compile ("inductor")."""
        require_peer(name, case)
        if name == "numpy":
            controller = ThreadpoolController()
            return self._peer(
                name,
                lambda *arrays: case.function(NumpyVocabulary, *arrays),
                sets,
                lambda: controller.limit(limits=self.threads, user_api="blas"),
            )
        import torch

        torch.set_num_threads(self.threads)
        function = torch_function(case, compiled=name == "inductor")
        tensors = [tuple(_tensor(array) for array in values) for values in sets]
        return self._peer(name, function, tensors, torch.no_grad)

    def _peer(
        self,
        name: str,
        function: Callable[..., Any],
        sets: Sets,
        around: Callable[[], AbstractContextManager[Any]],
    ) -> Contender:
        def answer() -> list[Any]:
            with around():
                return flatten(function(*sets[0]))

        return self._contender(name, answer, lambda i: function(*sets[i]), len(sets), around)

    def _contender(
        self,
        name: str,
        answer: Callable[[], list[Any]],
        call: Callable[[int], Any],
        sets: int,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Contender:
        """Blocks of calls, each on the next set; the first calls compile and are not counted."""
        turn = 0

        def block(calls: int) -> float:
            nonlocal turn
            with around():
                started = time.perf_counter()
                for place in range(turn, turn + calls):
                    call(place % sets)
                seconds = time.perf_counter() - started
            turn += calls
            return seconds / calls

        block(1)
        once = min(block(1) for _ in range(3))
        calls = max(1, min(MAX_CALLS, math.ceil(BLOCK_SECONDS / max(once, 1e-9))))
        return Contender(name, answer, lambda: block(calls), calls)

    def fetch(self, array: Any, like: Tensor, rows: np.ndarray | None, axis: int | None) -> Any:
        """The rows as NumPy."""
        if not isinstance(array, np.ndarray):
            array = array.double().numpy() if like.dtype.kind == "float" else array.numpy()
        return array if rows is None or axis is None else np.take(array, rows, axis)

    def whole_error(
        self, instance: Instance, inputs: Sequence[Any], outputs: Sequence[Any], chunk: int
    ) -> float | None:
        """None: the graph's own float64 is all there is."""
        return None

    def release(self) -> None:
        """Nothing to do."""


def _filled(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array of bytes 255: NaN, or -1."""
    return np.full(int(np.prod(shape)) * dtype.itemsize, 255, np.uint8).view(dtype).reshape(shape)


def _tensor(array: np.ndarray) -> Any:
    import torch

    if array.dtype.kind == "V" or array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
