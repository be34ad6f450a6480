"""Rows on the GPU at hand: arrays by CuPy, every contender captured in a CUDA graph, events.

A graph holds some hundreds of calls over the rotated inputs, so that neither Python nor the launch
of the graph shows in the time of one. Before each timed block a fill of several times the last
cache is queued: it empties the cache of what the one before left, and while it runs, the events
and the graphs are queued behind it. A block is as long as a device needs to settle at the clock
that its power allows: the first milliseconds of products run a fifth faster.
"""

import gc
import importlib.util
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from eqsat.bench.bound_launches import BoundLaunches
from eqsat.bench.case import Case, Input, Instance, Sizes
from eqsat.bench.contender import Contender, MissingPeerError, Sets
from eqsat.bench.cuda_peer import as_tensor, capture_torch, whole_error
from eqsat.bench.inputs import numbers
from eqsat.bench.peer_functions import require_peer, torch_function, versions
from eqsat.cache.store import Cache
from eqsat.codegen.targets import TARGETS
from eqsat.errors import UnsupportedError
from eqsat.graph import Tensor, as_dtype
from eqsat.kernel.ir import Kernel
from eqsat.program import Launch, Program
from eqsat.specs import ParallelProcessingUnit

BLOCK_SECONDS = 20e-3
GRAPH_SECONDS = 2e-3
MAX_CALLS = 512  # in a captured graph, or one for each set of inputs
FLUSH_CACHES = 8


class Cuda:
    """CuPy's current device. 16-bit floats travel as their bits."""

    pause_seconds = 0.0  # the device stays at the clock that steady work leaves it

    def __init__(self, spec: ParallelProcessingUnit) -> None:
        cupy = _cupy()
        self.cupy = cupy
        self.backend = TARGETS["cuda"].backend(spec, Cache.open().code_dir)
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.flush = cupy.empty(FLUSH_CACHES * spec.last_level_cache_bytes, np.uint8)
        self.has_torch = importlib.util.find_spec("torch") is not None

    def describe(self) -> dict[str, Any]:
        """Name of the device, driver and runtime, library versions."""
        runtime = self.cupy.cuda.runtime
        properties = runtime.getDeviceProperties(self.cupy.cuda.Device().id)
        names = ("numpy", "cupy-cuda13x", "cupy-cuda12x", "cupy", "torch", "triton")
        return {
            "name": properties["name"].decode(),
            "driver": f"CUDA {runtime.driverGetVersion()}{_driver_release()}",
            "runtime": runtime.runtimeGetVersion(),
            "libraries": versions(*names),
        }

    def sets(self, case: Case, sizes: Sizes, count: int) -> Sets:
        """Sets drawn on the device."""
        made = []
        for seed in range(count):
            random = self.cupy.random.default_rng(seed)
            made.append(tuple(self._draw(one, sizes, random) for one in case.inputs.values()))
        self.cupy.cuda.Device().synchronize()
        return made

    def _draw(self, one: Input, sizes: Sizes, random: Any) -> Any:
        dtype, shape = as_dtype(one.dtype), one.shape(sizes)
        if one.below:
            return random.integers(0, sizes[one.below], shape).astype(dtype.numpy)
        values = self.cupy.asarray(numbers(one, sizes, random))
        if dtype.kind != "float":
            return values.astype(dtype.numpy)
        if dtype.itemsize == 1:
            return self.cupy.asarray(values.get().astype(dtype.numpy).view(np.uint8))
        if dtype.name == "bfloat16":
            bits = values.view(np.uint32)  # round to nearest, ties to even
            return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return values.astype(dtype.numpy).view(np.uint16 if dtype.itemsize == 2 else dtype.numpy)

    def ours(self, program: Program, sets: Sets) -> Contender:
        """The program's launches captured; its public call is checked besides."""

        def public() -> list[Any]:
            cleared = [self.backend.empty(shape, d) for _, shape, d in program.parts.outputs]
            _clear(cleared)
            program(*sets[0], out=cleared)
            self.cupy.cuda.Device().synchronize()
            return cleared

        return self._launches("eqsat", program, program.parts.launches, sets, public)

    def variant(
        self, name: str, program: Program, launches: Sequence[Launch], sets: Sets
    ) -> Contender:
        """Other launches, captured likewise."""
        return self._launches(name, program, launches, sets, None)

    def _launches(
        self,
        name: str,
        program: Program,
        launches: Sequence[Launch],
        sets: Sets,
        public: Callable[[], list[Any]] | None,
    ) -> Contender:
        bound = BoundLaunches(program, launches, self.backend, sets)
        self.cupy.cuda.Device().synchronize()  # our stream does not wait for the default one
        with self.stream:
            bound.run(0)  # loads the code, which a capture must not
        self.stream.synchronize()

        def capture(calls: int) -> tuple[Callable[[], None], list[Any]]:
            with self.stream:
                self.stream.begin_capture()
                try:
                    for place in range(calls):
                        bound.run(place % len(sets))
                finally:
                    graph = self.stream.end_capture()
            graph.upload(self.stream)
            return partial(_launch, graph, self.stream, bound), bound.outputs[0]

        return self._contender(name, capture, len(sets), _clear, public)

    def build(self, kernels: Sequence[Kernel]) -> None:
        """As the backend does: several at a time on a GPU, and on the host as they are prepared."""
        self.backend.build(kernels)

    def peer(self, name: str, case: Case, sets: Sets) -> Contender:
        """torch eager, or torch.compile ("inductor"), over the same memory."""
        if name == "numpy":
            raise MissingPeerError("NumPy does not run on the GPU")
        require_peer(name, case)
        function = torch_function(case, compiled=name == "inductor")
        tensors = [
            tuple(as_tensor(a, one.dtype) for a, one in zip(v, case.inputs.values(), strict=True))
            for v in sets
        ]

        def capture(calls: int) -> tuple[Callable[[], None], list[Any]]:
            return capture_torch(function, tensors, calls, self.stream.ptr)

        def clear(outputs: list[Any]) -> None:
            for output in outputs:
                output.fill_(math.nan if output.is_floating_point() else -1)

        return self._contender(name, capture, len(sets), clear, None)

    def _contender(
        self,
        name: str,
        capture: Callable[[int], tuple[Callable[[], None], list[Any]]],
        sets: int,
        clear: Callable[[list[Any]], None],
        public: Callable[[], list[Any]] | None,
    ) -> Contender:
        """Captured once to see how long a call takes, and again with as many as a graph needs."""
        launch, outputs = capture(sets)
        self._time(launch)
        once = min(self._time(launch) for _ in range(3)) / sets
        rotations = math.ceil(GRAPH_SECONDS / max(once * sets, 1e-9))
        calls = sets * max(1, min(rotations, MAX_CALLS // sets))
        if calls != sets:
            del launch, outputs
            launch, outputs = capture(calls)
        launches = math.ceil(BLOCK_SECONDS / max(once * calls, 1e-6))

        def answer() -> list[Any]:
            device = self.cupy.cuda.Device()
            clear(outputs)
            device.synchronize()
            launch()
            device.synchronize()
            return outputs

        def block() -> float:
            return self._time(launch, launches) / (launches * calls)

        return Contender(name, answer, block, launches * calls, public)

    def _time(self, launch: Callable[[], None], launches: int = 1) -> float:
        cuda = self.cupy.cuda
        first, last = cuda.Event(), cuda.Event()
        self.flush.data.memset_async(0, self.flush.nbytes, self.stream)
        first.record(self.stream)
        for _ in range(launches):
            launch()
        last.record(self.stream)
        last.synchronize()
        return cuda.get_elapsed_time(first, last) * 1e-3

    def fetch(self, array: Any, like: Tensor, rows: np.ndarray | None, axis: int | None) -> Any:
        """The rows as NumPy, in the graph's dtype."""
        if isinstance(array, self.cupy.ndarray):
            if rows is not None and axis is not None:
                array = self.cupy.take(array, self.cupy.asarray(rows), axis)
            return array.get().view(like.dtype.numpy)
        import torch

        if rows is not None and axis is not None:
            array = array.index_select(axis, torch.from_numpy(rows).to(array.device))
        array = array.double() if like.dtype.kind == "float" else array
        return array.cpu().numpy()

    def whole_error(
        self, instance: Instance, inputs: Sequence[Any], outputs: Sequence[Any], chunk: int
    ) -> float | None:
        """Every row against torch in float64, some rows at a time; None without torch."""
        if not self.has_torch:
            return None
        case = instance.case
        tensors = [
            as_tensor(array, one.dtype)
            for array, one in zip(inputs, case.inputs.values(), strict=True)
        ]
        results = [
            as_tensor(array, like.dtype.name) if isinstance(array, self.cupy.ndarray) else array
            for array, like in zip(outputs, instance.outputs, strict=True)
        ]
        return whole_error(instance, tensors, results, chunk)

    def release(self) -> None:
        """Free both libraries' pools; raises CuPy's error where the context is lost."""
        gc.collect()
        self.cupy.cuda.Device().synchronize()
        self.cupy.get_default_memory_pool().free_all_blocks()
        if self.has_torch:
            import torch

            torch.cuda.empty_cache()


def _launch(graph: Any, stream: Any, bound: BoundLaunches) -> None:
    """Launch a graph over arrays of `bound`, which are alive as long as this can be called."""
    del bound
    graph.launch(stream)


def _cupy() -> Any:
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # ImportError, or the runtime's own error where no GPU is
        raise UnsupportedError(
            f"a GPU spec runs on a GPU, through CuPy: {error}. Use --spec cpu, or install "
            f"eqsat[cuda13] (or eqsat[cuda12]) on a machine with an NVIDIA GPU."
        ) from error
    return cupy


def _clear(arrays: Sequence[Any]) -> None:
    """Bytes of 255: NaN, or -1."""
    for array in arrays:
        array.reshape(-1).view(np.uint8).fill(255)


def _driver_release() -> str:
    """The driver's own version, where the kernel module tells it."""
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            words = file.readline().split()
    except OSError:
        return ""
    release = next((word for word in words if word[:1].isdigit() and "." in word), "")
    return f", {release}" if release else ""
