"""The targets by name: what they can emit, and what runs their kernels."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eqsat.codegen import oracle
from eqsat.codegen.cpu import emit as numba_emit
from eqsat.codegen.cpu import select as numba_select
from eqsat.codegen.cpu import target as numba_target
from eqsat.codegen.cpu import values as numba_values
from eqsat.codegen.cuda.copy import pixels as cuda_pixels
from eqsat.codegen.cuda.fit import misfit
from eqsat.codegen.cuda.place import operations as cuda_operations
from eqsat.codegen.cuda.place.warpgroup_operations import STORED_TERMS
from eqsat.codegen.cuda.products.narrow import SPLITS
from eqsat.codegen.cuda.run import calls as cuda_calls
from eqsat.codegen.cuda.run import select as cuda_select
from eqsat.codegen.cuda.run.backend import CudaBackend
from eqsat.codegen.host import calls as host_calls
from eqsat.codegen.host.arrays import as_numpy, given_back
from eqsat.codegen.host.memory import HostMemory
from eqsat.errors import ArgumentError, UnsupportedError
from eqsat.graph.dtypes import DType
from eqsat.kernel.ir import Kernel
from eqsat.library import LibraryCall
from eqsat.program import Argument, Backend, Lane, Launch
from eqsat.specs import ParallelProcessingUnit

Misfit = Callable[[Kernel, ParallelProcessingUnit], str]
Runner = Callable[[Mapping[str, Any]], None]
_CALLING = nullcontext(Lane())
_MEMORY = HostMemory()


class HostBackend:
    """Arrays in the machine's own memory, as NumPy arrays."""

    def __init__(self, spec: ParallelProcessingUnit, cache_dir: Path | None) -> None:
        self.spec = spec
        self.cache_dir = cache_dir

    @property
    def device(self) -> str:
        """The spec as adapted to this machine."""
        return f"{self.spec.name} {self.spec.fingerprint}"

    @property
    def cold_bytes(self) -> int:
        """Kernels of the host are measured one after another over the same arrays."""
        return 0

    def timer(self, run: Runner, sets: Sequence[Mapping[str, Any]]) -> Callable[[], float]:
        """Seconds of one call."""

        def seconds() -> float:
            started = time.perf_counter()
            for arrays in sets:
                run(arrays)
            return (time.perf_counter() - started) / len(sets)

        return seconds

    def receive(self, value: Any, argument: Argument) -> np.ndarray:
        """The argument as a contiguous array; ArgumentError if it does not match."""
        array = value if type(value) is np.ndarray else as_numpy(value, argument.name)
        if array.shape != argument.shape:
            raise ArgumentError(
                f"input {argument.name!r} has shape {array.shape}; the program was compiled for "
                f"{argument.shape}. Reshape it, or compile for this shape."
            )
        wanted = argument.dtype.numpy
        if array.dtype != wanted:
            raise ArgumentError(
                f"input {argument.name!r} is {array.dtype}; the program was compiled for "
                f"{argument.dtype.name}. Convert it with .astype, or compile for this dtype."
            )
        return array if array.flags.carray else _unlocked(np.ascontiguousarray(array))

    def build(self, kernels: Sequence[Kernel]) -> None:
        """Nothing: kernels are compiled one by one, as they are prepared."""

    def constant(self, value: Any) -> np.ndarray:
        """A constant as a contiguous array."""
        return _unlocked(np.ascontiguousarray(value))

    def wait(self) -> None:
        """A call ends before it returns."""

    def copy(self, array: np.ndarray) -> np.ndarray:
        """Another array of the same values."""
        return array.copy()

    def empty(self, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        """An uninitialised array."""
        return _MEMORY.empty(shape, dtype.numpy)

    def result(
        self, shape: tuple[int, ...], dtype: DType, like: Any
    ) -> tuple[np.ndarray, Callable[[], Any]]:
        """An uninitialised array, and what gives it as an array of the caller's kind."""
        array = self.empty(shape, dtype)
        if like is None or type(like) is np.ndarray:
            return array, lambda: array
        return array, lambda: given_back(array, like)

    def output(self, value: Any, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        """A caller's array to be written in place."""
        array = as_numpy(value, None)
        right = array.shape == shape and array.dtype == dtype.numpy
        if not right or not array.flags.c_contiguous or not array.flags.writeable:
            faults = ["read-only"] * (not array.flags.writeable)
            faults += ["not C-contiguous"] * (not array.flags.c_contiguous)
            also = "".join(f", {fault}" for fault in faults)
            raise ArgumentError(
                f"out= is {array.dtype}{list(array.shape)}{also}; the result needs a writeable "
                f"C-contiguous {dtype.name}{list(shape)}. Pass numpy.empty(shape, dtype)."
            )
        return array

    def host(self, array: np.ndarray, dtype: DType) -> np.ndarray:
        """The array itself."""
        del dtype  # NumPy arrays carry their own
        return array

    def overlap(self, a: np.ndarray, b: np.ndarray) -> bool:
        """Whether the address ranges of two arrays meet."""
        return np.may_share_memory(a, b)

    def calling(
        self, launches: Sequence[Launch], values: Sequence[Any]
    ) -> AbstractContextManager[Lane]:
        """The host has no errors of its own; a call ends before it returns."""
        del launches, values
        return _CALLING

    def ptx(self, kernel: Kernel) -> str:
        """There is no PTX on the host."""
        raise UnsupportedError(
            f"kernel {kernel.name} runs on the host ({self.spec.name}), which has no PTX or SASS. "
            f"Compile with a GPU spec, or use source()."
        )

    sass = ptx


class _Unlocked:
    """The memory of a read-only array, without the lock."""

    def __init__(self, array: np.ndarray) -> None:
        plain = array.view(np.uint8) if array.itemsize == 1 else array  # no name for narrow floats
        interface = dict(plain.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self.array = array


def _unlocked(array: np.ndarray) -> np.ndarray:
    """The array itself, or a view without its lock: compiled code is typed for unlocked arrays.

    Kernels never write to their inputs.
    """
    if array.flags.writeable:
        return array
    return np.asarray(_Unlocked(array)).view(array.dtype)


class OracleBackend(HostBackend):
    """The NumPy tile interpreter; runs any spec's kernels, operations by their semantics."""

    def prepare(self, launches: Sequence[Launch]) -> Runner:
        """A function that interprets the launches in order."""
        operations = {op.name: op for op in self.spec.operations if op.semantics}

        def run(arrays: Mapping[str, np.ndarray]) -> None:
            for launch in launches:
                if isinstance(launch.kernel, LibraryCall):
                    host_calls.host_call(launch.kernel)([arrays[name] for name in launch.buffers])
                    continue
                names = (buffer.name for buffer in launch.kernel.buffers)
                oracle.run(
                    launch.kernel,
                    {n: arrays[b] for n, b in zip(names, launch.buffers, strict=True)},
                    operations,
                )

        return run

    def source(self, kernel: Kernel) -> str:
        """The oracle has no source but the kernel itself."""
        return repr(kernel)


class CpuBackend(HostBackend):
    """Numba kernels over the cores of this machine, and NumPy's own functions."""

    def prepare(self, launches: Sequence[Launch]) -> Runner:
        """A function that runs the launches in order; equal kernels are compiled once."""
        loaded: dict[str, numba_target.Run] = {}
        for launch in launches:
            kernel, key = launch.kernel, launch.kernel.fingerprint
            if key not in loaded and isinstance(kernel, LibraryCall):
                loaded[key] = self._called(kernel)
            elif key not in loaded:
                loaded[key] = numba_target.load(kernel, self.cache_dir, self._invocations())
        steps = [(loaded[launch.kernel.fingerprint], launch.buffers) for launch in launches]

        def run(arrays: Mapping[str, np.ndarray]) -> None:
            for kernel, buffers in steps:
                kernel([arrays[name] for name in buffers])

        return run

    def source(self, kernel: Kernel) -> str:
        """The emitted Numba source."""
        return numba_emit.emit(kernel, self._invocations())

    def _called(self, call: LibraryCall) -> numba_target.Run:
        if call.invocation == numba_select.INVOCATION:
            return numba_select.numba_select(call, self.cache_dir)
        return host_calls.host_call(call)

    def _invocations(self) -> dict[str, str]:
        return {op.name: op.invocation_name for op in self.spec.operations}


@dataclass(frozen=True)
class Target:
    """A way to run kernels: the operations it can emit, by invocation name, and its backend.

    `splits` are those operations whose float32 factors it can round or split in registers, `terms`
    those that multiply terms which lie in memory.

    `misfit` says what a kernel takes too much of for a spec, or nothing.
    """

    name: str
    operations: frozenset[str]
    backend: Callable[[ParallelProcessingUnit, Path | None], Backend]
    misfit: Misfit
    splits: frozenset[str] = frozenset()
    terms: frozenset[str] = frozenset()


def _fits(kernel: Kernel, spec: ParallelProcessingUnit) -> str:
    """Memory of the host holds any tile."""
    del kernel, spec
    return ""


HOST_CALLS = frozenset({host_calls.INVOCATION, numba_select.INVOCATION})
TARGETS = {
    "cpu": Target("cpu", numba_values.ROUTINES | HOST_CALLS, CpuBackend, _fits),
    "cuda": Target(
        "cuda",
        cuda_operations.OPERATIONS
        | {cuda_calls.INVOCATION, cuda_select.INVOCATION, cuda_pixels.INVOCATION},
        CudaBackend,
        misfit,
        SPLITS,
        STORED_TERMS,
    ),
    "oracle": Target("oracle", HOST_CALLS, OracleBackend, _fits),
}
