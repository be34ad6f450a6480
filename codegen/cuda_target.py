"""Runs kernels on the GPU at hand through CuPy: cubin on disk, RawKernel, CUDA graphs."""

import hashlib
import os
import re
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from eqsat.codegen.cuda_compile import OPTIONS, compile_cubin
from eqsat.codegen.cuda_emit import CudaSource, emit
from eqsat.codegen.cuda_tensor_map import tensor_map
from eqsat.errors import ArgumentError, UnsupportedError
from eqsat.kernel import Kernel
from eqsat.specs.model import ParallelOperation

ALIGNMENT = 16  # bytes; vector accesses assume it of every base pointer
UNASKED_SHARED_BYTES = 48 * 1024  # a kernel that takes more must say so before it is launched


@dataclass(frozen=True)
class Launch:
    """A loaded kernel; calling it with device pointers launches it on CuPy's current stream."""

    kernel: Kernel
    source: CudaSource
    function: Any
    processors: int

    def __call__(self, pointers: Sequence[int]) -> None:
        """Launch on the buffers' addresses, in the kernel's order; an empty grid does nothing."""
        check_pointers(self.kernel, pointers)
        if self.source.grid:
            self.function(
                (self.blocks,),
                (self.source.threads,),
                (*(np.uint64(pointer) for pointer in pointers), *self.maps(pointers)),
                shared_mem=self.source.shared_bytes,
            )

    @property
    def blocks(self) -> int:
        """Blocks of the grid; where they stay for several tiles, as many as the device holds."""
        source = self.source
        return min(source.grid, source.resident * self.processors or source.grid)

    def maps(self, pointers: Sequence[int]) -> tuple[np.ndarray, ...]:
        """The tensor maps of the buffers at these addresses."""
        where = {b.name: p for b, p in zip(self.kernel.buffers, pointers, strict=True)}
        return tuple(tensor_map(box, where[box.buffer]) for box in self.source.maps)


def load(
    kernels: Sequence[Kernel],
    arch: str,
    folder: Path,
    operations: Mapping[str, ParallelOperation] | None = None,
) -> tuple[Launch, ...]:
    """Compile the kernels, unless `folder` has their cubins, and load them on CuPy's device.

    `arch` is the spec's architecture. Raises UnsupportedError where the device cannot run it, or
    has too little shared memory for a kernel.
    """
    target = device_arch(arch, kernels[0].spec if kernels else "")
    sources = [emit(kernel, operations) for kernel in kernels]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # NVRTC works outside of Python's lock
        paths = list(pool.map(build, kernels, sources, repeat(target), repeat(folder)))
    found = zip(kernels, sources, paths, strict=True)
    return tuple(_load(kernel, source, path, target) for kernel, source, path in found)


def build(kernel: Kernel, source: CudaSource, arch: str, folder: Path) -> Path:
    """The file in `folder` that has the kernel's cubin, compiled unless it is there."""
    digest = hashlib.sha256("\0".join((source.text, arch, *OPTIONS)).encode()).hexdigest()
    path = folder / f"{digest[:40]}.cubin"
    if not path.exists():
        _write(path, compile_cubin(source.text, arch, kernel.rules).data)
    return path


def device_arch(arch: str, spec: str) -> str:
    """The architecture to compile for: the device's own, if it runs code of `arch`.

    sm_90a and the like run on that very architecture only, others on later ones too.
    """
    cupy = import_cupy()
    device = cupy.cuda.Device()
    found = int(device.compute_capability)
    match = re.fullmatch(r"sm_(\d+)([a-z]?)", arch)
    assert match, f"architecture {arch!r}"
    wanted, exact = int(match[1]), bool(match[2])
    if found < wanted or (exact and found != wanted):
        name = cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode()
        raise UnsupportedError(
            f"the spec {spec or arch} is for {arch}; the device here is {name} (sm_{found}). "
            f"Compile for a spec of that architecture, or choose another device."
        )
    return arch if exact else f"sm_{found}"


def check_pointers(kernel: Kernel, pointers: Sequence[int]) -> None:
    """Raise ArgumentError unless there is one aligned address for each buffer."""
    if len(pointers) != len(kernel.buffers):
        raise ArgumentError(
            f"kernel {kernel.name} takes {len(kernel.buffers)} buffers, got {len(pointers)}. "
            f"Give one address for each, in order."
        )
    for buffer, pointer in zip(kernel.buffers, pointers, strict=True):
        if pointer % ALIGNMENT:
            raise ArgumentError(
                f"buffer {buffer.name} of kernel {kernel.name} is at {pointer:#x}, which is no "
                f"multiple of {ALIGNMENT} bytes. Pass it through aligned() first."
            )


def aligned(array: Any) -> Any:
    """The CuPy array itself, or a copy that is contiguous and aligned for vector accesses."""
    cupy = import_cupy()
    array = cupy.ascontiguousarray(array)
    return array if array.data.ptr % ALIGNMENT == 0 else array.copy()


def missing() -> str:
    """What keeps kernels from running here, and what to do about it; empty where nothing does."""
    try:
        cupy = import_cupy()
    except UnsupportedError as error:
        return str(error)
    try:
        found = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"running CUDA kernels needs an NVIDIA GPU; CUDA says: {error}. Check the driver."
    return "" if found else "running CUDA kernels needs an NVIDIA GPU, and there is none here."


def import_cupy() -> Any:
    """The module cupy; UnsupportedError where it cannot be imported."""
    try:
        import cupy
    except ImportError as error:
        raise UnsupportedError(
            f"running CUDA kernels needs CuPy, which cannot be imported ({error}). "
            f"Install it with: pip install 'eqsat[cuda13]' (or 'eqsat[cuda12]')."
        ) from error
    return cupy


def _load(kernel: Kernel, source: CudaSource, path: Path, arch: str) -> Launch:
    cupy = import_cupy()
    attributes = cupy.cuda.Device().attributes
    limit, processors = (
        attributes["MaxSharedMemoryPerBlockOptin"],
        attributes["MultiProcessorCount"],
    )
    if source.shared_bytes > limit:
        raise UnsupportedError(
            f"kernel {kernel.name} needs {source.shared_bytes} bytes of shared memory; the device "
            f"allows {limit}. Use fewer stages or a smaller tile."
        )
    try:
        return Launch(kernel, source, _function(path, source), processors)
    except cupy.cuda.driver.CUDADriverError as error:
        warnings.warn(f"{path} does not load ({error}); it is built again", stacklevel=3)
    path.unlink(missing_ok=True)
    built = build(kernel, source, arch, path.parent)
    return Launch(kernel, source, _function(built, source), processors)


def _write(path: Path, data: bytes) -> None:
    """Write a file so that no reader sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.replace(name, path)


def _function(path: Path, source: CudaSource) -> Any:
    function = import_cupy().RawModule(path=str(path)).get_function(source.entry)
    if source.shared_bytes > UNASKED_SHARED_BYTES:
        function.max_dynamic_shared_size_bytes = source.shared_bytes
    _ = function.num_regs  # loads the code now, so that a bad file is noticed here
    return function


class Graph:
    """Several launches, each after the one before, replayed by one call into the driver.

    New addresses are written into the nodes of the graph; nothing is copied.
    """

    def __init__(self, launches: Sequence[Launch], pointers: Sequence[Sequence[int]]) -> None:
        from cuda.bindings import driver

        self.driver = driver
        self.launches = [launch for launch in launches if launch.source.grid]
        self.pointers = self._used(launches, pointers)
        self.all = tuple(launches)
        self.graph = _done(driver.cuGraphCreate(0))
        self.values: Any = ()
        self.nodes: list[Any] = []
        for launch, addresses in zip(self.launches, self.pointers, strict=True):
            parameters = self._parameters(launch, addresses)
            before = self.nodes[-1:]
            add = driver.cuGraphAddKernelNode
            self.nodes.append(_done(add(self.graph, before, len(before), parameters)))
        self.executable = _done(driver.cuGraphInstantiate(self.graph, 0))

    def __call__(self, pointers: Sequence[Sequence[int]]) -> None:
        """Replay on CuPy's current stream, with these addresses for each launch."""
        used = self._used(self.all, pointers)
        for n, (launch, addresses) in enumerate(zip(self.launches, used, strict=True)):
            if addresses != self.pointers[n]:
                parameters = self._parameters(launch, addresses)
                update = self.driver.cuGraphExecKernelNodeSetParams
                _done(update(self.executable, self.nodes[n], parameters))
        self.pointers = used
        stream = self.driver.CUstream(import_cupy().cuda.get_current_stream().ptr)
        _done(self.driver.cuGraphLaunch(self.executable, stream))

    def close(self) -> None:
        """Free the graph."""
        if self.graph is not None:
            _done(self.driver.cuGraphExecDestroy(self.executable))
            _done(self.driver.cuGraphDestroy(self.graph))
            self.graph = None

    def _used(
        self, launches: Sequence[Launch], pointers: Sequence[Sequence[int]]
    ) -> list[tuple[int, ...]]:
        used = []
        for launch, addresses in zip(launches, pointers, strict=True):
            check_pointers(launch.kernel, addresses)
            if launch.source.grid:
                used.append(tuple(addresses))
        return used

    def _parameters(self, launch: Launch, pointers: Sequence[int]) -> Any:
        parameters = self.driver.CUDA_KERNEL_NODE_PARAMS()
        parameters.func = self.driver.CUfunction(launch.function.kernel.ptr)
        parameters.gridDimX = launch.blocks
        parameters.gridDimY = parameters.gridDimZ = 1
        parameters.blockDimX = launch.source.threads
        parameters.blockDimY = parameters.blockDimZ = 1
        parameters.sharedMemBytes = launch.source.shared_bytes
        addresses, maps = np.array(pointers, np.uint64), launch.maps(pointers)
        first, size = addresses.ctypes.data, addresses.itemsize
        places = [first + n * size for n in range(len(pointers))]
        where = np.array([*places, *(one.ctypes.data for one in maps)], np.uint64)
        parameters.kernelParams = where.ctypes.data
        self.values = (addresses, maps, where)  # alive until the driver has copied them
        return parameters


def _done(result: tuple[Any, ...]) -> Any:
    """The value of a driver call; its error code raised."""
    status, *values = result
    if int(status):
        raise RuntimeError(f"CUDA driver call failed: {status!r}")
    return values[0] if values else None
