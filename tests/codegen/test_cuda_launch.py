"""How launches are set up early: blocks that spread over the device, without one."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from cuda_cases import case
from kernels import SAMPLES

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.run import target as cuda_target
from eqsat.codegen.cuda.run.target import share_of_shared
from eqsat.driver import plan
from eqsat.graph import float32
from eqsat.kernel.ir import Buffer
from eqsat.specs import load

SHARED = {"MaxSharedMemoryPerMultiprocessor": 233472, "MaxSharedMemoryPerBlockOptin": 232448}
RESERVED, PROCESSORS, MOST = 1024, 132, 16
NEXT = "next_launch_may_begin"


@dataclass
class Function:
    """A loaded kernel, which takes no more than 48 KiB before it says so."""

    kernel: object = field(default_factory=lambda: SimpleNamespace(ptr=7))
    max_dynamic_shared_size_bytes: int = 48 * 1024


def fitting(function: Function, shared: int) -> int:
    """Blocks that an SM has room for: threads for `MOST`, and shared memory."""
    assert shared <= function.max_dynamic_shared_size_bytes
    return min(MOST, 233472 // (shared + RESERVED))


def launched(monkeypatch, blocks: int, capability: int = 90, shared: int = 2048, **changes):
    """A row reduction of so many blocks, as it is loaded, and its function."""
    function = Function(max_dynamic_shared_size_bytes=max(shared, 48 * 1024))
    device = SimpleNamespace(compute_capability=str(capability), attributes=SHARED)
    occupancy = lambda pointer, threads, shared: fitting(function, shared)  # noqa: E731
    driver = SimpleNamespace(occupancyMaxActiveBlocksPerMultiprocessor=occupancy)
    cupy = SimpleNamespace(cuda=SimpleNamespace(Device=lambda: device, driver=driver))
    monkeypatch.setattr(cuda_target, "import_cupy", lambda: cupy)
    monkeypatch.setattr(cuda_target, "_function", lambda path, source: function)
    kernel = case("rows", SAMPLES["row_reduce"](8, 9, 10), 128).kernel
    source = replace(emit(kernel), grid=blocks, shared_bytes=shared)
    kernel = replace(kernel, **{"beside": 12, **changes})
    return cuda_target._launch(kernel, source, Path(), PROCESSORS), function


@pytest.mark.parametrize("blocks", [133, 264, 512, 1152, 1400])
def test_shares_of_shared_memory_leave_room_for_no_more(blocks):
    asked, share = share_of_shared(blocks, PROCESSORS, SHARED), -(-blocks // PROCESSORS)
    assert share * (asked + RESERVED) <= 233472 < (share + 1) * (asked + RESERVED)


def test_one_block_for_each_sm_asks_for_nothing():
    assert share_of_shared(132, PROCESSORS, SHARED) == 0
    assert share_of_shared(1 << 20, PROCESSORS, SHARED) == 0  # nor do as many as no bytes keep out


def test_blocks_that_would_crowd_ask_for_their_share(monkeypatch):
    launch, function = launched(monkeypatch, 1152)
    assert launch.early and launch.source.shared_bytes == 24832
    assert function.max_dynamic_shared_size_bytes == 24832


def test_blocks_that_fill_the_device_ask_for_no_more(monkeypatch):
    launch, _ = launched(monkeypatch, 2048)
    assert launch.early and launch.source.shared_bytes == 2048


def test_what_is_not_spread_is_set_up_after_the_launch_before(monkeypatch):
    """Tiles that may read again, clusters, shares that differ much, older devices."""
    for changes in ({"beside": 0}, {"cluster": 2}):
        launch, _ = launched(monkeypatch, 1152, **changes)
        assert not launch.early and launch.source.shared_bytes == 2048
    launch, _ = launched(monkeypatch, 140)  # two on half of the SMs
    assert not launch.early and launch.source.shared_bytes == 2048
    launch, _ = launched(monkeypatch, 1152, capability=80)
    assert not launch.early


@pytest.mark.parametrize(("blocks", "elements"), [(64, 1 << 24), (64, 1 << 20), (120, 1 << 24)])
def test_few_blocks_that_read_much_begin_on_an_empty_device(monkeypatch, blocks, elements):
    """Else they lie on a few GPCs, each of which reads a part of what memory gives."""
    buffers = (Buffer("x", (elements,), float32, "input"),)
    launch, _ = launched(monkeypatch, blocks, shared=150 * 1024, buffers=buffers)
    assert launch.early == ((blocks, elements) != (64, 1 << 24))


def test_what_joins_parts_keeps_the_next_launch_back():
    """It is over when that could begin, and would lie between the blocks of a product."""
    a, b = g.input("a", (128, 32768), "bfloat16"), g.input("b", (32768, 128), "bfloat16")
    spec = load("h200")
    kernels = [x.kernel for x in plan(a @ b, spec, cache=Cache(None)).parts.launches]
    operations = {one.name: one for one in spec.operations}
    assert [kernel.joins for kernel in kernels] == [False, True]
    calls = [text.count(f"    {NEXT}();") for text in (emit(k, operations).text for k in kernels)]
    assert calls == [1, 0]
