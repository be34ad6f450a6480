"""Fill a GPU spec's sizes and counts from the device at hand, through CuPy."""

import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eqsat.errors import SpecError

from .model import ParallelGroup, ParallelMemory, ParallelProcessingUnit
from .toml_format import load

# Compute capability from which a shipped spec serves, highest first.
_SPECS = ((90, "h200"), (80, "a100"))


def from_device(device_id: int = 0) -> ParallelProcessingUnit:
    """The nearest shipped spec with sizes and counts of GPU `device_id`.

    Raises SpecError without CuPy, without such a GPU, or for one older than the shipped specs.
    """
    try:
        runtime = importlib.import_module("cupy").cuda.runtime  # optional, and slow to import
    except ImportError as error:
        raise SpecError(
            "from_device needs CuPy, which is not installed.\n"
            "Install eqsat[cuda13] or eqsat[cuda12], or load a spec by name: load('h200')."
        ) from error
    try:
        properties = runtime.getDeviceProperties(device_id)
    except runtime.CUDARuntimeError as error:
        raise SpecError(
            f"no GPU {device_id}: {error}.\nCheck nvidia-smi and CUDA_VISIBLE_DEVICES, or load a"
            " spec by name: load('h200')."
        ) from error
    return fit(properties)


def fit(properties: Mapping[str, Any]) -> ParallelProcessingUnit:
    """The nearest shipped spec with the sizes and counts of CUDA device properties."""
    major, minor = properties["major"], properties["minor"]
    name = _device_name(properties)
    shipped = next((spec for least, spec in _SPECS if 10 * major + minor >= least), None)
    if shipped is None:
        raise SpecError(
            f"{name} has compute capability {major}.{minor}; the shipped specs start at 8.0.\n"
            "Write a spec for it (docs/specs.md) and load that."
        )
    unit = load(shipped)
    sms = properties["multiProcessorCount"]
    architecture = "sm_90a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"
    scale = sms / unit.processors
    clock = properties.get("clockRate", 0) / 1000 or unit.clock_mhz
    return replace(
        unit,
        architecture=architecture,
        clock_mhz=clock,
        description=f"{name}, read from the device onto {shipped}.toml",
        parallel_groups=tuple(_fit_group(g, properties, scale) for g in unit.parallel_groups),
        memory_domains=tuple(
            _fit_memory(m, properties, scale * clock / unit.clock_mhz) for m in unit.memory_domains
        ),
    )


def _device_name(properties: Mapping[str, Any]) -> str:
    name = properties.get("name", b"GPU")
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def _fit_group(group: ParallelGroup, properties: Mapping[str, Any], scale: float) -> ParallelGroup:
    warp, threads = properties["warpSize"], properties["maxThreadsPerMultiProcessor"]
    count = round(group.count * scale)
    if group.name == "thread":
        return replace(group, count=count, max_resident=threads)
    if group.name == "warp":
        return replace(group, count=count, size=warp, max_resident=threads // warp)
    if group.name == "block":
        blocks = properties.get("maxBlocksPerMultiProcessor", 0) or group.max_resident
        return replace(group, count=properties["multiProcessorCount"], max_resident=blocks)
    return replace(group, count=count)


def _fit_memory(
    memory: ParallelMemory, properties: Mapping[str, Any], scale: float
) -> ParallelMemory:
    """Sizes from the device; on-chip bandwidths follow SMs and clock, dram its bus."""
    if memory.name == "dram":
        # memoryClockRate is in kHz, the bus width in bits, and each clock carries two transfers
        bus = properties.get("memoryClockRate", 0) * properties.get("memoryBusWidth", 0)
        peak = bus * 2e3 / 8 / 1e9 or memory.bandwidth_gb_per_s
        return replace(
            memory, size_bytes=properties["totalGlobalMem"], bandwidth_gb_per_s=round(peak)
        )
    memory = replace(memory, bandwidth_gb_per_s=round(memory.bandwidth_gb_per_s * scale, 1))
    if memory.name == "l2":
        return replace(memory, size_bytes=properties["l2CacheSize"])
    if memory.name == "shared":
        size_bytes = properties["sharedMemPerMultiprocessor"]
        most = properties.get("sharedMemPerBlockOptin", 0)
        most = most or size_bytes - memory.reserved_per_group_bytes
        return replace(memory, size_bytes=size_bytes, max_per_group_bytes=most)
    if memory.name == "registers":
        return replace(memory, size_bytes=4 * properties["regsPerMultiprocessor"])
    return memory
