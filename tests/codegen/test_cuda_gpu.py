"""The CUDA target on a GPU: every case against its answer, and replay as a CUDA graph."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cluster_cases import cluster_cases
from computed_cases import computed_cases
from cuda_cases import all_cases, case
from float64_cases import early_cases, hopper_cases
from grouped_cases import grouped_cases
from kernel_building import arrays, check
from kernels import SAMPLES
from multicast_cases import multicast_cases
from paged_cases import paged_cases
from parts_cases import parts_cases
from pipeline_cases import OPERATIONS, pipeline_cases
from pixel_cases import pixel_cases
from prologue_cases import prologue_cases
from stencil_cases import stencil_cases
from stream_k_cases import stream_k_cases
from window_box_cases import window_box_cases
from window_cases import window_cases

from eqsat.codegen.cuda.run.launch import Graph
from eqsat.codegen.cuda.run.target import aligned, device_arch, load
from eqsat.errors import ArgumentError, UnsupportedError

pytestmark = pytest.mark.gpu
GUARD = 64  # elements before and after each buffer, which keep it aligned to 16 bytes


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cubins")


class Device:
    """The buffers of a sample on the device, guards around each."""

    def __init__(self, cupy, sample) -> None:
        self.cupy = cupy
        self.host = arrays(sample, GUARD)
        self.memory = {
            name: cupy.asarray(array.base.view(np.uint8)) for name, array in self.host.items()
        }
        sizes = {b.name: b.dtype.itemsize for b in sample.kernel.buffers}
        self.pointers = [
            self.memory[b.name].data.ptr + GUARD * sizes[b.name] for b in sample.kernel.buffers
        ]

    def fetch(self) -> dict[str, np.ndarray]:
        """The buffers; fails if a guard changed."""
        found = {}
        for name, array in self.host.items():
            bytes_ = self.cupy.asnumpy(self.memory[name]).view(array.dtype)
            for part in (slice(None, GUARD), slice(-GUARD, None)):
                assert bytes_[part].tobytes() == array.base[part].tobytes(), f"guard of {name}"
            found[name] = bytes_[GUARD:-GUARD]
        return found


@pytest.mark.parametrize(
    "c",
    [
        *all_cases(),
        *computed_cases(),
        *window_cases(),
        *grouped_cases(),
        *stencil_cases(),
        *early_cases(),
    ],
    ids=lambda c: c.name,
)
def test_a_kernel_gives_its_answer(cupy, folder, c):
    (launch,) = load([c.kernel], "sm_80", folder)
    device = Device(cupy, c.sample)
    launch(device.pointers)
    cupy.cuda.get_current_stream().synchronize()
    check(c.sample, device.fetch())


@pytest.mark.parametrize(
    "c", [*all_cases()[::20], *cluster_cases(), *hopper_cases()], ids=lambda c: c.name
)
def test_the_exact_architecture_gives_the_same(cupy, folder, c):
    if cupy.cuda.Device().compute_capability != "90":
        pytest.skip("needs sm_90")
    (launch,) = load([c.kernel], "sm_90a", folder)
    device = Device(cupy, c.sample)
    launch(device.pointers)
    cupy.cuda.get_current_stream().synchronize()
    check(c.sample, device.fetch())


@pytest.mark.parametrize(
    "c",
    [
        *pipeline_cases(),
        *parts_cases(),
        *prologue_cases(),
        *pixel_cases(),
        *window_box_cases(),
        *multicast_cases(),
        *paged_cases(),
        *stream_k_cases(),
    ],
    ids=lambda c: c.name,
)
def test_a_kernel_of_warpgroups_gives_its_answer(cupy, folder, c):
    """By as many blocks as the device holds, and by one, or one cluster, that takes every tile."""
    if cupy.cuda.Device().compute_capability != "90":
        pytest.skip("needs sm_90")
    (launch,) = load([c.kernel], "sm_90a", folder, OPERATIONS)
    together = c.kernel.multicast
    alone = launch
    if not c.kernel.stream_k:  # or so many blocks count on each other
        alone = replace(launch, processors=together, source=replace(launch.source, resident=1))
        assert alone.blocks == together
    for one in (launch, alone):
        device = Device(cupy, c.sample)
        one(device.pointers)
        cupy.cuda.get_current_stream().synchronize()
        check(c.sample, device.fetch())


def test_a_graph_of_warpgroups_replays_with_new_addresses(cupy, folder):
    """Tensor maps hold addresses: they are made anew."""
    if cupy.cuda.Device().compute_capability != "90":
        pytest.skip("needs sm_90")
    c = next(c for c in pipeline_cases() if c.name == "swiglu")
    launches = load([c.kernel, c.kernel], "sm_90a", folder, OPERATIONS)
    first = [Device(cupy, c.sample) for _ in launches]
    graph = Graph(launches, [device.pointers for device in first])
    for devices in (first, [Device(cupy, c.sample) for _ in launches]):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            graph([device.pointers for device in devices])
            stream.synchronize()
        for device in devices:
            check(c.sample, device.fetch())
    graph.close()


def test_a_graph_replays_with_new_addresses(cupy, folder):
    cases = [case(f"graph_{n}", SAMPLES[n](33, 37, 19)) for n in ("softmax_online", "matmul")]
    launches = load([c.kernel for c in cases], "sm_80", folder)
    first = [Device(cupy, c.sample) for c in cases]
    graph = Graph(launches, [device.pointers for device in first])
    for devices in (first, [Device(cupy, c.sample) for c in cases]):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            graph([device.pointers for device in devices])
            stream.synchronize()
        for c, device in zip(cases, devices, strict=True):
            check(c.sample, device.fetch())
    graph.close()


def test_more_than_48_kilobytes_of_shared_memory(cupy, folder):
    c = case("large_tile", SAMPLES["transpose"](128, 128, 1, (128, 128, 1)), 256, shared=True)
    (launch,) = load([c.kernel], "sm_80", folder)
    assert launch.source.shared_bytes > 48 * 1024
    device = Device(cupy, c.sample)
    launch(device.pointers)
    check(c.sample, device.fetch())


def test_a_damaged_cubin_is_built_again(cupy, tmp_path):
    c = case("damaged", SAMPLES["row_reduce"](9, 9, 9))
    load([c.kernel], "sm_80", tmp_path / "good")
    (path,) = (tmp_path / "good").glob("*.cubin")
    (tmp_path / "bad").mkdir()  # CuPy remembers what it loaded from a path
    (tmp_path / "bad" / path.name).write_bytes(b"not a cubin")
    with pytest.warns(UserWarning, match="built again"):
        (launch,) = load([c.kernel], "sm_80", tmp_path / "bad")
    device = Device(cupy, c.sample)
    launch(device.pointers)
    check(c.sample, device.fetch())


def test_the_wrong_architecture_and_address_are_refused(cupy, folder):
    with pytest.raises(UnsupportedError, match=r"is for sm_999; the device here is NVIDIA"):
        device_arch("sm_999", "future")
    c = case("misaligned", SAMPLES["row_reduce"](8, 8, 8))
    (launch,) = load([c.kernel], "sm_80", folder)
    with pytest.raises(ArgumentError, match="no multiple of 16 bytes"):
        launch([4 for _ in c.kernel.buffers])
    view = cupy.zeros(9, np.float32)[1:]
    assert aligned(view).data.ptr % 16 == 0
