"""Fit the shipped CPU spec to the machine at hand: cores, caches, lanes, clock."""

import math
import os
import platform
import re
from dataclasses import replace
from pathlib import Path

from .model import ParallelMemory, ParallelOperation, ParallelProcessingUnit
from .toml_format import load

# A machine that tells its nominal clock alone runs faster when all cores are busy. Measured: sgemm
# at 104 GFLOP/s per core where 2.6 GHz nominal would allow 83; 1.4 gives the 3.6 GHz of cpu.toml.
_BOOST = 1.4
# What a socket's memory channels carry at most: 8 of DDR4-3200.
_SOCKET_DRAM_GB_PER_S = 200.0
_FILE_LANE_BITS = 256
# What a core of Intel's servers gets of the cache that lies in parts about their mesh: y = x + 1
# over 8 to 64 MB, 25 GB/s by one core, 42 to 50 by two.
_MESH_L3 = 1 / 3
_XEON = re.compile(r"^model name\s*:.*Xeon", re.MULTILINE)
_AMD = re.compile(r"^vendor_id\s*:\s*AuthenticAMD", re.MULTILINE)


def cpu(root: Path = Path("/")) -> ParallelProcessingUnit:
    """The CPU spec of this machine; what /proc and /sys under `root` omit stays as shipped."""
    return adapt(load("cpu"), root)


def adapt(
    unit: ParallelProcessingUnit, root: Path, cores: int | None = None
) -> ParallelProcessingUnit:
    """A CPU spec with counts, cache sizes, lanes and clock read under `root`."""
    info = _read(root / "proc/cpuinfo")
    cores = cores or _cores(root)
    lane_bits = _lane_bits(info)
    unit = replace(unit, architecture=_architecture(), clock_mhz=_clock_mhz(root, info, unit))
    shipped_cores = unit.group("core").count
    unit = unit.replace_group("core", count=cores, size=max(1, lane_bits // 32))
    unit = unit.replace_group("socket", size=cores)
    sizes = _cache_sizes(root) | _dram_size(root)
    memories = tuple(
        _fit_memory(memory, sizes, cores, shipped_cores, lane_bits, bool(_XEON.search(info)))
        for memory in unit.memory_domains
    )
    widening = _vector_rate(lane_bits, info)
    # On AMD's newest the BLAS of SciPy's wheels takes its AVX2 kernels: 110 of 250 GFLOP/s.
    library = min(widening, 1.0) if _AMD.search(info) else widening
    operations = tuple(_fit_operation(op, widening, library) for op in unit.operations)
    return replace(unit, memory_domains=memories, operations=operations)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _architecture() -> str:
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine) or "x86_64"


def _cores(root: Path) -> int:
    """The cores that this process may use: its affinity, cut by a container's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = _read(root / "sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit() and int(quota[1]):
        cores = min(cores, math.ceil(int(quota[0]) / int(quota[1])))
    return max(1, cores)


def _flags(info: str) -> set[str]:
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", info, re.MULTILINE)
    return set(found[1].split()) if found else set()


def _lane_bits(info: str) -> int:
    flags = _flags(info)
    if "avx512f" in flags:
        return 512
    if "avx2" in flags:
        return 256
    if flags or _architecture() == "aarch64":
        return 128  # SSE2 and NEON are part of their base architectures
    return _FILE_LANE_BITS


def _vector_rate(lane_bits: int, info: str) -> float:
    """Elements per cycle against the shipped two pipes of 256 bits."""
    if lane_bits == 512 and _AMD.search(info):
        family = re.search(r"^cpu family\s*:\s*(\d+)", info, re.MULTILINE)
        if family and int(family[1]) < 26:
            return 1.0  # Zen 4 executes 512-bit instructions on its 256-bit pipes
    return lane_bits / _FILE_LANE_BITS


def _clock_mhz(root: Path, info: str, unit: ParallelProcessingUnit) -> float:
    """The clock under load: the driver's maximum, else nominal with the usual boost.

    Read from what stays the same between runs: the spec's fingerprint is part of cache keys.
    """
    most = _read(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").strip()
    if most.isdigit() and int(most):
        return round(int(most) / 1000, -2) or unit.clock_mhz
    nominal = re.search(r"^model name\s*:.*@\s*([\d.]+)\s*GHz", info, re.MULTILINE)
    if nominal:
        return round(float(nominal[1]) * 1000 * _BOOST, -2)
    current = re.search(r"^cpu MHz\s*:\s*([\d.]+)", info, re.MULTILINE)
    if current and float(current[1]) > 100:
        return round(float(current[1]) * _BOOST, -2)
    return unit.clock_mhz


def _cache_sizes(root: Path) -> dict[str, int]:
    """Cache name -> bytes of one instance, from sysfs, else from sysconf."""
    sizes: dict[str, int] = {}
    for index in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind = _read(index / "level").strip(), _read(index / "type").strip()
        size = re.fullmatch(r"(\d+)([KMG]?)", _read(index / "size").strip())
        if level in ("1", "2", "3") and kind in ("Data", "Unified") and size and int(size[1]):
            sizes[f"l{level}"] = int(size[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[size[2]]
    if sizes or root != Path("/"):
        return sizes
    for name, key in (
        ("l1", "SC_LEVEL1_DCACHE_SIZE"),
        ("l2", "SC_LEVEL2_CACHE_SIZE"),
        ("l3", "SC_LEVEL3_CACHE_SIZE"),
    ):
        size_bytes = os.sysconf(key) if key in getattr(os, "sysconf_names", {}) else 0
        if size_bytes > 0:
            sizes[name] = size_bytes
    return sizes


def _dram_size(root: Path) -> dict[str, int]:
    total = re.search(r"^MemTotal:\s*(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    return {"dram": int(total[1]) << 10} if total and int(total[1]) else {}


def _fit_memory(
    memory: ParallelMemory,
    sizes: dict[str, int],
    cores: int,
    shipped_cores: int,
    lane_bits: int,
    mesh: bool,
) -> ParallelMemory:
    share = _MESH_L3 if mesh and memory.name == "l3" else 1.0
    bandwidth = memory.bandwidth_gb_per_s * cores / shipped_cores * share
    alone = memory.bandwidth_per_processor_gb_per_s * share
    if memory.name == "dram":
        bandwidth = min(max(bandwidth, alone), _SOCKET_DRAM_GB_PER_S)
    size_bytes = sizes.get(memory.name, memory.size_bytes)
    if memory.name == "registers":
        count = 32 if lane_bits == 512 or _architecture() == "aarch64" else 16
        size_bytes = count * lane_bits // 8
    return replace(
        memory,
        size_bytes=size_bytes,
        bandwidth_gb_per_s=bandwidth,
        bandwidth_per_processor_gb_per_s=alone,
    )


def _fit_operation(
    operation: ParallelOperation, widening: float, library: float
) -> ParallelOperation:
    """Rows of lanes, and routines that are made of them, follow the vector width."""
    if operation.supported_by == "lane" or operation.semantics is not None:
        wider = library if operation.invocation_name == "cblas_gemm" else widening
        return replace(operation, throughput_per_cycle=operation.throughput_per_cycle * wider)
    return operation
