"""Programs on the GPU at hand: CuPy arrays in and out, launches replayed as one CUDA graph."""

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from eqsat.cache.folder import temporary_folder
from eqsat.codegen.cuda import emit
from eqsat.errors import ArgumentError, EqsatError, UnsupportedError
from eqsat.graph.dtypes import DType
from eqsat.kernel.ir import Kernel
from eqsat.library import LibraryCall
from eqsat.program import Argument, Lane, Launch
from eqsat.specs import ParallelProcessingUnit

from . import compile as cuda_compile
from . import faults, streams, target
from . import launch as cuda_launch
from .arrays import as_cupy, borrowed, carrier, library_of, same_dtype
from .calls import cuda_call
from .select import INVOCATION as SELECT
from .select import cuda_select

BURST = 10e-3  # seconds of the calls that are measured at once, and of those before them
MOST_CALLS = 64  # in a graph
Runner = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Replay:
    """Launches over arrays: as one graph, or `each` by itself, as a stream capture takes them."""

    run: Runner
    each: Runner
    captured: bool = True  # whether a stream capture can take them: a library's call waits

    def __call__(self, arrays: Mapping[str, Any]) -> None:
        """Run all of them."""
        self.run(arrays)


def _called(run: Replay, turns: Sequence[Mapping[str, Any]]) -> float:
    """Seconds of one call of several, by the host's clock."""
    device = target.import_cupy().cuda.Device()
    started = time.perf_counter()
    for arrays in turns:
        run(arrays)
    device.synchronize()
    return (time.perf_counter() - started) / len(turns)


class CudaBackend:
    """Arrays on CuPy's current device. float16 and bfloat16 travel as their 16 bits."""

    def __init__(self, spec: ParallelProcessingUnit, cache_dir: Path | None) -> None:
        self.spec = spec
        self.folder = (cache_dir or temporary_folder()) / "cubin"
        self.operations = {operation.name: operation for operation in spec.operations}

    @property
    def device(self) -> str:
        """Name and driver of CuPy's current device."""
        runtime = target.import_cupy().cuda.runtime
        name = runtime.getDeviceProperties(target.import_cupy().cuda.Device().id)["name"].decode()
        return f"{name} {runtime.driverGetVersion()} {self.spec.fingerprint}"

    @property
    def cold_bytes(self) -> int:
        """Twice the L2: of what a program is given, little lies there when it is called."""
        return 2 * self.spec.last_level_cache_bytes

    def timer(self, run: Replay, sets: Sequence[Mapping[str, Any]]) -> Callable[[], float]:
        """Seconds of one call on the device, of several captured in a graph where that can be: as
        many as there are sets of arrays, or more. As many calls go before those that are measured:
        a device that has just been idle runs at a clock that steady work does not leave it.
        """
        cuda = target.import_cupy().cuda
        _called(run, sets[:1])  # loads the code, which a capture must not
        once = _called(run, sets[:1])
        calls = max(int(min(max(BURST / once, 2), MOST_CALLS)), len(sets))
        turns = [sets[number % len(sets)] for number in range(calls)]
        if not run.captured:
            return partial(_called, run, turns)
        stream = cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            for arrays in turns:
                run.each(arrays)
            graph = stream.end_capture()

        def replayed(launches: int) -> float:
            first, last = cuda.Event(), cuda.Event()
            first.record(stream)
            for _ in range(launches):
                graph.launch(stream)
            last.record(stream)
            last.synchronize()
            return float(cuda.get_elapsed_time(first, last) * 1e-3 / launches)

        replayed(1)  # the first launch takes the graph to the device
        launches = math.ceil(BURST / max(replayed(1), 1e-6))

        def seconds() -> float:
            for _ in range(launches):
                graph.launch(stream)
            return replayed(launches) / calls

        return seconds

    def receive(self, value: Any, argument: Argument) -> Any:
        """The argument as a contiguous aligned CuPy array; NumPy arrays are copied over."""
        array = as_cupy(value, argument.name)
        wanted = argument.dtype
        if tuple(array.shape) != argument.shape:
            raise ArgumentError(
                f"input {argument.name!r} has shape {tuple(array.shape)}; the program was compiled "
                f"for {argument.shape}. Reshape it, or compile for this shape."
            )
        if not same_dtype(value, array, wanted):
            raise ArgumentError(
                f"input {argument.name!r} is {value.dtype}; the program was compiled for "
                f"{wanted.name}. Convert it, or compile for this dtype."
            )
        return target.aligned(array)

    def constant(self, value: Any) -> Any:
        """A constant on the device."""
        return as_cupy(value, "constant")

    def wait(self) -> None:
        """Until CuPy's current stream has done what it was given."""
        target.import_cupy().cuda.get_current_stream().synchronize()

    def copy(self, array: Any) -> Any:
        """Another CuPy array of the same values."""
        return array.copy()

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """An uninitialised CuPy array."""
        return target.import_cupy().empty(shape, carrier(dtype))

    def result(
        self, shape: tuple[int, ...], dtype: DType, like: Any
    ) -> tuple[Any, Callable[[], Any]]:
        """An uninitialised CuPy array, and what gives it as an array of the caller's kind. It is
        the caller's own from the start where that can be.
        """
        library = library_of(like)
        if library == "torch" and (pair := borrowed(shape, dtype, like)) is not None:
            tensor, array = pair
            return array, lambda: tensor
        array = self.empty(shape, dtype)
        if library == "numpy":
            return array, lambda: self.host(array, dtype)
        if library == "torch":
            torch = sys.modules["torch"]
            return array, lambda: torch.from_dlpack(array).view(getattr(torch, dtype.name))
        return array, lambda: array.view(np.float16) if dtype.name == "float16" else array

    def output(self, value: Any, shape: tuple[int, ...], dtype: DType) -> Any:
        """A caller's device array to be written in place."""
        if isinstance(value, np.ndarray):
            raise ArgumentError(
                "out= is a NumPy array; a GPU program writes to device arrays only."
            )
        array = as_cupy(value, None)
        right = tuple(array.shape) == shape and same_dtype(value, array, dtype)
        if not right or not array.flags.c_contiguous or array.data.ptr % cuda_launch.ALIGNMENT:
            raise ArgumentError(
                f"out= is {value.dtype}{list(array.shape)}; the result needs a C-contiguous "
                f"{dtype.name}{list(shape)} aligned to {cuda_launch.ALIGNMENT} bytes."
            )
        return array

    def host(self, array: Any, dtype: DType) -> np.ndarray:
        """A copy as a NumPy array of the dtype that is carried."""
        return array.get().view(dtype.numpy)

    def overlap(self, a: Any, b: Any) -> bool:
        """Whether the address ranges of two arrays meet."""
        return a.data.ptr < b.data.ptr + b.nbytes and b.data.ptr < a.data.ptr + a.nbytes

    @contextmanager
    def calling(self, launches: Sequence[Launch], values: Sequence[Any]) -> Iterator[Lane]:
        """On torch's stream where the values are torch's; CUDA's errors told with the kernels that
        were launched.
        """
        try:
            with streams.on_stream_of(values) as lane:
                yield lane
        except Exception as error:
            told = faults.named(error, launches)
            if told is None:
                raise
            raise told from error

    def build(self, kernels: Sequence[Kernel]) -> None:
        """Compile kernels ahead, several at a time; what fails here fails again when prepared."""
        arch = target.device_arch(self.spec.architecture, self.spec.name)

        def attempt(kernel: Kernel) -> None:
            with suppress(EqsatError):
                source = emit.emit(kernel, self.operations)
                target.build(kernel, source, arch, self.folder)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(attempt, kernels))

    def prepare(self, launches: Sequence[Launch]) -> Runner:
        """A function that replays the launches over the arrays' addresses: kernels that follow one
        another as one CUDA graph, and calls of a library between them.

        Without a GPU the program can still be read (source, ptx); running it says what is missing.
        """
        missing = target.missing()
        if missing:
            return _unable(missing)
        kernels = [one.kernel for one in launches if isinstance(one.kernel, Kernel)]
        distinct = {kernel.fingerprint: kernel for kernel in kernels}
        loaded = dict(
            zip(
                distinct,
                target.load(
                    list(distinct.values()), self.spec.architecture, self.folder, self.operations
                ),
                strict=True,
            )
        )
        parts: list[Replay] = []
        for called, group in groupby(launches, lambda one: isinstance(one.kernel, LibraryCall)):
            if called:
                parts += map(self._called, group)
            else:
                own = list(group)
                parts.append(_replayed([loaded[o.kernel.fingerprint] for o in own], own))
        return parts[0] if len(parts) == 1 else _in_turn(parts)

    def _called(self, launch: Launch) -> Replay:
        """A call of a library; what orders rows by sorting waits for the device."""
        assert isinstance(launch.kernel, LibraryCall)
        arch = target.device_arch(self.spec.architecture, self.spec.name)
        captured = launch.kernel.invocation == SELECT
        call = (cuda_select if captured else cuda_call)(launch.kernel, arch, self.folder)

        def run(arrays: Mapping[str, Any]) -> None:
            if not captured and streams.is_capturing():
                raise UnsupportedError(
                    f"a stream capture cannot take a call of {launch.kernel.name}, which waits for "
                    f"the device. Capture the program without it, or call it outside of a capture."
                )
            call([arrays[name] for name in launch.buffers])

        return Replay(run, run, captured)

    def source(self, kernel: Kernel) -> str:
        """The emitted CUDA C++."""
        return emit.emit(kernel, self.operations).text

    def ptx(self, kernel: Kernel) -> str:
        """The PTX of a kernel; needs NVRTC, no GPU."""
        return cuda_compile.compile_ptx(self.source(kernel), self.spec.architecture)

    def sass(self, kernel: Kernel) -> str:
        """The machine code of a kernel; needs NVRTC and nvdisasm, no GPU."""
        cubin = cuda_compile.compile_cubin(self.source(kernel), self.spec.architecture)
        return cuda_compile.disassemble(cubin.data)


def _in_turn(parts: Sequence[Replay]) -> Replay:
    """One after the other."""

    def run(arrays: Mapping[str, Any]) -> None:
        for part in parts:
            part.run(arrays)

    def each(arrays: Mapping[str, Any]) -> None:
        for part in parts:
            part.each(arrays)

    return Replay(run, each, all(part.captured for part in parts))


def _replayed(steps: Sequence[cuda_launch.Launch], launches: Sequence[Launch]) -> Replay:
    """Kernels as one CUDA graph."""
    names = [launch.buffers for launch in launches]
    lock = threading.Lock()
    graphs: list[cuda_launch.Graph] = []

    def each(arrays: Mapping[str, Any]) -> None:
        for step, buffers in zip(steps, names, strict=True):
            step([arrays[name].data.ptr for name in buffers])

    def run(arrays: Mapping[str, Any]) -> None:
        pointers = [[arrays[name].data.ptr for name in buffers] for buffers in names]
        alone = len(steps) == 1 or os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
        if alone or streams.is_capturing():
            each(arrays)
            return
        with lock:
            if not graphs:
                graphs.append(cuda_launch.Graph(steps, pointers))
            graphs[0](pointers)

    return Replay(run, each)


def _unable(missing: str) -> Runner:
    """A function that refuses to run."""

    def run(arrays: Mapping[str, Any]) -> None:
        del arrays
        raise UnsupportedError(missing)

    return run
