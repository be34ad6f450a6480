"""The specs of real machines: fake /proc and /sys trees, fake CUDA properties."""

import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from eqsat.errors import SpecError
from eqsat.specs import cpu, dumps, from_device, load, loads
from eqsat.specs.adapt import adapt
from eqsat.specs.query import fit

INTEL = """\
vendor_id\t: GenuineIntel
cpu family\t: 6
model name\t: Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz
cpu MHz\t\t: 3123.456
flags\t\t: fpu sse2 avx2 fma avx512f
"""
ZEN_4 = """\
vendor_id\t: AuthenticAMD
cpu family\t: 25
model name\t: AMD EPYC
cpu MHz\t\t: 2596.140
flags\t\t: fpu sse2 avx2 fma avx512f
"""


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def caches(**sizes: str) -> dict[str, str]:
    files: dict[str, str] = {}
    for index, (key, size) in enumerate(sizes.items()):
        folder = f"sys/devices/system/cpu/cpu0/cache/index{index}"
        kind = "Instruction" if key == "l1i" else "Data" if key == "l1" else "Unified"
        files |= {f"{folder}/level": key[1], f"{folder}/type": kind, f"{folder}/size": size + "\n"}
    return files


def test_this_machine() -> None:
    unit = cpu()
    assert unit.target == "cpu"
    assert 1 <= unit.processors <= (os.cpu_count() or 1)
    assert cpu().fingerprint == unit.fingerprint
    assert loads(dumps(unit)) == unit


def test_empty_tree_keeps_the_file(tmp_path: Path) -> None:
    shipped, unit = load("cpu"), adapt(load("cpu"), tmp_path, cores=2)
    for name in ("dram", "l3", "l2", "l1"):
        assert unit.memory(name).size_bytes == shipped.memory(name).size_bytes
    assert unit.clock_mhz == shipped.clock_mhz
    assert unit.operation("simd_fma_f32") == shipped.operation("simd_fma_f32")


def test_the_shared_cache_of_a_mesh_is_slower(tmp_path: Path) -> None:
    shipped = load("cpu").memory("l3")
    for info, share in ((INTEL, 1 / 3), (ZEN_4, 1.0)):
        unit = adapt(load("cpu"), machine(tmp_path, {"proc/cpuinfo": info}), cores=2)
        l3 = unit.memory("l3")
        assert l3.bandwidth_gb_per_s == pytest.approx(share * shipped.bandwidth_gb_per_s)
        alone = share * shipped.bandwidth_per_processor_gb_per_s
        assert l3.bandwidth_per_processor_gb_per_s == pytest.approx(alone)
        assert unit.memory("l2") == load("cpu").memory("l2")


def test_caches_and_memory(tmp_path: Path) -> None:
    files = caches(l1="48K", l1i="32K", l2="2048K", l3="54M")
    files["proc/meminfo"] = "MemTotal:       16384 kB\nMemFree: 1 kB\n"
    unit = adapt(load("cpu"), machine(tmp_path, files), cores=8)
    sizes = {memory.name: memory.size_bytes for memory in unit.memory_domains}
    assert sizes["l1"] == 48 << 10
    assert sizes["l2"] == 2 << 20
    assert sizes["l3"] == 54 << 20
    assert sizes["dram"] == 16 << 20
    assert unit.processors == 8
    shipped = load("cpu")
    assert unit.memory("l2").bandwidth_gb_per_s == 4 * shipped.memory("l2").bandwidth_gb_per_s
    many = adapt(shipped, tmp_path, cores=96)
    assert many.memory("dram").bandwidth_gb_per_s == 200


def test_vector_width(tmp_path: Path) -> None:
    intel = adapt(load("cpu"), machine(tmp_path / "intel", {"proc/cpuinfo": INTEL}), cores=2)
    zen = adapt(load("cpu"), machine(tmp_path / "zen", {"proc/cpuinfo": ZEN_4}), cores=2)
    assert intel.group("core").size == zen.group("core").size == 16
    assert intel.operation("simd_fma_f32").throughput_per_cycle == 32
    assert zen.operation("simd_fma_f32").throughput_per_cycle == 16
    assert intel.operation("blas_gemm_f64").throughput_per_cycle == 16
    old = ZEN_4.replace(" avx2 fma avx512f", "")
    narrow = adapt(load("cpu"), machine(tmp_path / "old", {"proc/cpuinfo": old}), cores=2)
    assert narrow.group("core").size == 4
    assert narrow.operation("simd_fma_f32").throughput_per_cycle == 8


def test_clock_is_stable(tmp_path: Path) -> None:
    nominal = adapt(load("cpu"), machine(tmp_path / "a", {"proc/cpuinfo": INTEL}), cores=2)
    assert nominal.clock_mhz == 4100
    files = {
        "proc/cpuinfo": INTEL,
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3500000\n",
    }
    assert adapt(load("cpu"), machine(tmp_path / "b", files), cores=2).clock_mhz == 3500
    assert adapt(load("cpu"), machine(tmp_path / "c", {"proc/cpuinfo": ZEN_4})).clock_mhz == 3600


def test_container_quota(tmp_path: Path) -> None:
    one = adapt(load("cpu"), machine(tmp_path / "q", {"sys/fs/cgroup/cpu.max": "50000 100000\n"}))
    assert one.processors == 1
    free = adapt(load("cpu"), machine(tmp_path / "m", {"sys/fs/cgroup/cpu.max": "max 100000\n"}))
    assert free.processors >= 1


def test_garbage_is_ignored(tmp_path: Path) -> None:
    files = {
        "proc/cpuinfo": "\x00??",
        "proc/meminfo": "MemTotal: many",
        "sys/fs/cgroup/cpu.max": "x",
    }
    files |= caches(l1="huge", l2="0K")
    unit = adapt(load("cpu"), machine(tmp_path, files), cores=2)
    assert unit.memory("l1").size_bytes == load("cpu").memory("l1").size_bytes


PROPERTIES: dict[str, Any] = {
    "name": b"NVIDIA Half A100", "major": 8, "minor": 0, "multiProcessorCount": 54,
    "clockRate": 1410000, "warpSize": 32, "maxThreadsPerMultiProcessor": 2048,
    "maxBlocksPerMultiProcessor": 32, "memoryClockRate": 1215000, "memoryBusWidth": 5120,
    "totalGlobalMem": 40 << 30, "l2CacheSize": 20 << 20, "sharedMemPerMultiprocessor": 164 << 10,
    "sharedMemPerBlockOptin": 163 << 10, "regsPerMultiprocessor": 65536,
}  # fmt: skip


def test_device_properties() -> None:
    unit = fit(PROPERTIES)
    assert unit.architecture == "sm_80"
    assert unit.processors == 54
    assert unit.memory("dram").size_bytes == 40 << 30
    assert unit.memory("dram").bandwidth_gb_per_s == 1555
    assert unit.memory("l2").size_bytes == 20 << 20
    half = load("a100").memory("shared").bandwidth_gb_per_s / 2
    assert unit.memory("shared").bandwidth_gb_per_s == pytest.approx(half, rel=1e-3)
    assert fit({**PROPERTIES, "major": 9}).architecture == "sm_90a"
    assert fit({**PROPERTIES, "major": 8, "minor": 6}).architecture == "sm_86"
    assert loads(dumps(unit)) == unit


def test_old_device() -> None:
    with pytest.raises(SpecError, match=r"has compute capability 7.5; the shipped specs start at"):
        fit({**PROPERTIES, "major": 7, "minor": 5})


def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(SpecError, match=r"needs CuPy(?s:.*)Install eqsat\[cuda13\]"):
        from_device()


def test_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class CUDARuntimeError(RuntimeError):
        pass

    def fail(device_id: int) -> None:
        raise CUDARuntimeError("cudaErrorNoDevice")

    runtime = types.SimpleNamespace(CUDARuntimeError=CUDARuntimeError, getDeviceProperties=fail)
    cuda = types.SimpleNamespace(runtime=runtime)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))
    with pytest.raises(SpecError, match=r"no GPU 3: cudaErrorNoDevice.\nCheck nvidia-smi"):
        from_device(3)


@pytest.mark.gpu
def test_the_gpu_at_hand() -> None:
    unit = from_device()
    assert unit.processors > 1
    assert loads(dumps(unit)) == unit
