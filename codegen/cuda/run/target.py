"""Kernels for the GPU at hand through CuPy: cubin on disk, loaded as a RawKernel."""

import hashlib
import os
import re
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

from eqsat.errors import UnsupportedError
from eqsat.kernel.ir import Kernel
from eqsat.specs.model import ParallelOperation

from ..emit import CudaSource, emit
from ..pipeline import RESERVED_BYTES
from .compile import OPTIONS, compile_cubin
from .launch import ALIGNMENT, Launch, import_cupy

EARLY_CAPABILITY = 90  # compute capability from which on a launch is set up before the last ended
MOST_UNEVEN = 1.25  # how much more than its share an SM may get of blocks that are set up early
NEARLY_ALL = 0.9  # of the SMs, from where on it does not matter which ones have a block
MUCH_READ = 128 * 1024  # bytes for each block, of which it takes longer than to be set up
GRANULE = 128  # bytes, of which blocks take shared memory in multiples
UNASKED_SHARED_BYTES = 48 * 1024  # a kernel that takes more must say so before it is launched


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
    return stored(source.text, arch, folder, kernel.rules)


def stored(text: str, arch: str, folder: Path, rules: Sequence[str] = ()) -> Path:
    """The file in `folder` that has the cubin of a source, compiled unless it is there."""
    digest = hashlib.sha256("\0".join((text, arch, *OPTIONS)).encode()).hexdigest()
    path = folder / f"{digest[:40]}.cubin"
    if not path.exists():
        _write(path, compile_cubin(text, arch, rules).data)
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
        return _launch(kernel, source, path, processors)
    except cupy.cuda.driver.CUDADriverError as error:
        warnings.warn(f"{path} does not load ({error}); it is built again", stacklevel=3)
    path.unlink(missing_ok=True)
    return _launch(kernel, source, build(kernel, source, arch, path.parent), processors)


def _launch(kernel: Kernel, source: CudaSource, path: Path, processors: int) -> Launch:
    """The kernel loaded. Blocks that are set up early go where there is room, which may be on few
    SMs: so one must fill an SM, or all of them about the device. Where tiles read what they reduce
    once, and have no use for a near cache, they ask for the shared memory of their share of an SM.
    """
    cupy, function = import_cupy(), _function(path, source)
    device = cupy.cuda.Device()
    launch = Launch(kernel, source, function, processors)
    if int(device.compute_capability) < EARLY_CAPABILITY:
        return launch
    if _is_even(launch):
        return replace(launch, early=True)
    once = kernel.beside and kernel.cluster == 1
    asked = share_of_shared(launch.blocks, processors, device.attributes) if once else 0
    if asked <= source.shared_bytes:
        return launch
    function.max_dynamic_shared_size_bytes = asked
    spread = replace(launch, source=replace(source, shared_bytes=asked))
    return replace(spread, early=True) if _is_even(spread) else launch


def _is_even(launch: Launch) -> bool:
    """Whether the blocks cannot all lie on a few SMs, or, where they read much, on a few GPCs: set
    up early they fill one of these after another, and an H200's read 0.6 TB/s of memory each.
    """
    source, processors = launch.source, launch.processors
    fit = import_cupy().cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
        launch.function.kernel.ptr, source.threads, source.shared_bytes
    )
    if fit > 1:
        return bool(fit * processors <= MOST_UNEVEN * launch.blocks)
    read = sum(buffer.bytes for buffer in launch.kernel.buffers)
    return launch.blocks >= NEARLY_ALL * processors or read < MUCH_READ * launch.blocks


def share_of_shared(blocks: int, processors: int, attributes: Mapping[str, int]) -> int:
    """Bytes of shared memory for a block of so many, with which no SM has room for more than its
    share of them; 0 where there is one for each SM at most, or where no number of bytes does it.
    """
    share = -(-blocks // processors)
    if share < 2:
        return 0
    room = attributes["MaxSharedMemoryPerMultiprocessor"]
    asked = (room // share - RESERVED_BYTES) // GRANULE * GRANULE
    asked = min(asked, attributes["MaxSharedMemoryPerBlockOptin"])
    enough = (share + 1) * (asked + RESERVED_BYTES) > room
    return asked if asked > 0 and enough else 0


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
