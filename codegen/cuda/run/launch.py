"""Loaded kernels and their launches: one by one, and several as a CUDA graph.

A kernel is set up while the launch before it ends, where the device can do that (from sm_90 on);
its own first step is to wait for that end (`earlier_launches_done`, which every kernel calls).
Source: CUDA driver API, programmatic dependent launch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np

from eqsat.errors import ArgumentError, UnsupportedError
from eqsat.kernel.ir import Kernel

from ..emit import CudaSource
from .tensor_map import tensor_map

ALIGNMENT = 16  # bytes; vector accesses assume it of every base pointer
MOST_KNOWN = 256  # sets of addresses whose arguments a launch keeps


@dataclass(frozen=True)
class Launch:
    """A loaded kernel; calling it with device pointers launches it on CuPy's current stream.

    `early`: the device can set it up while the launch before it ends. `configurations` by stream
    and `known` arguments by addresses are kept for the calls to come.
    """

    kernel: Kernel
    source: CudaSource
    function: Any
    processors: int
    early: bool = False
    configurations: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)
    known: dict[tuple[int, ...], "Parameters"] = field(
        default_factory=dict, compare=False, repr=False
    )

    def __call__(self, pointers: Sequence[int]) -> None:
        """Launch on the buffers' addresses, in the kernel's order; an empty grid does nothing."""
        if not self.source.grid:
            check_pointers(self.kernel, pointers)
            return
        from cuda.bindings import driver

        stream = import_cupy().cuda.get_current_stream().ptr
        configuration = self.configurations.get(stream)
        if configuration is None:
            configuration = self.configurations[stream] = self._configuration(driver, stream)
        parameters = self.parameters(tuple(pointers))
        function = driver.CUfunction(self.function.kernel.ptr)
        done(driver.cuLaunchKernelEx(configuration, function, parameters.address, 0))

    def parameters(self, pointers: tuple[int, ...]) -> "Parameters":
        """The kernel's arguments for these addresses, which are checked."""
        found = self.known.get(pointers)
        if found is None:
            check_pointers(self.kernel, pointers)
            if len(self.known) >= MOST_KNOWN:
                self.known.clear()
            found = self.known[pointers] = Parameters(pointers, self.maps(pointers))
        return found

    def _configuration(self, driver: Any, stream: int) -> Any:
        configuration = driver.CUlaunchConfig()
        configuration.gridDimX = self.blocks
        configuration.gridDimY = configuration.gridDimZ = 1
        configuration.blockDimX = self.source.threads
        configuration.blockDimY = configuration.blockDimZ = 1
        configuration.sharedMemBytes = self.source.shared_bytes
        configuration.hStream = driver.CUstream(stream)
        if self.early:
            attribute = driver.CUlaunchAttribute()
            kinds = driver.CUlaunchAttributeID
            attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            configuration.attrs, configuration.numAttrs = [attribute], 1
        return configuration

    @property
    def blocks(self) -> int:
        """Blocks of the grid; where they stay for several tiles, as many as the device holds, or
        fewer that have as many tiles each, if no processor gets more tiles by that; whole clusters.
        """
        source, together = self.source, self.kernel.multicast
        processors = self.processors // together * together
        most = min(source.grid, source.resident * processors or source.grid)
        if source.resident < 2 or self.kernel.uneven or together > 1:
            return most
        rounds = ceil(source.grid / most)
        even = ceil(source.grid / rounds)
        longest = ceil(even / processors) * rounds
        return even if longest <= ceil(source.grid / processors) else most

    def maps(self, pointers: Sequence[int]) -> tuple[np.ndarray, ...]:
        """The tensor maps of the buffers at these addresses."""
        where = {b.name: p for b, p in zip(self.kernel.buffers, pointers, strict=True)}
        return tuple(tensor_map(box, where[box.buffer]) for box in self.source.maps)


class Parameters:
    """A kernel's arguments in memory, alive as long as this is; `address` of where each lies, and
    `node`, once a graph was made with them: what its node is told.
    """

    def __init__(self, pointers: Sequence[int], maps: Sequence[np.ndarray]) -> None:
        self.pointers, self.maps = np.array(pointers, np.uint64), maps
        first, size = self.pointers.ctypes.data, self.pointers.itemsize
        places = [first + n * size for n in range(len(pointers))]
        self.places = np.array([*places, *(one.ctypes.data for one in maps)], np.uint64)
        self.address = self.places.ctypes.data
        self.node: Any = None


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
        self.graph = done(driver.cuGraphCreate(0))
        self.nodes: list[Any] = []
        for launch, addresses in zip(self.launches, self.pointers, strict=True):
            parameters = self._parameters(launch, addresses)
            added = driver.cuGraphAddKernelNode(self.graph, [], 0, parameters.node)
            self.nodes.append(done(added))
            if len(self.nodes) > 1:
                self._order(*self.nodes[-2:], launch.early)
        self.executable = done(driver.cuGraphInstantiate(self.graph, 0))

    def __call__(self, pointers: Sequence[Sequence[int]]) -> None:
        """Replay on CuPy's current stream, with these addresses for each launch."""
        used = self._used(self.all, pointers)
        for n, (launch, addresses) in enumerate(zip(self.launches, used, strict=True)):
            if addresses != self.pointers[n]:
                parameters = self._parameters(launch, addresses)
                update = self.driver.cuGraphExecKernelNodeSetParams
                done(update(self.executable, self.nodes[n], parameters.node))
        self.pointers = used
        stream = self.driver.CUstream(import_cupy().cuda.get_current_stream().ptr)
        done(self.driver.cuGraphLaunch(self.executable, stream))

    def close(self) -> None:
        """Free the graph."""
        if self.graph is not None:
            done(self.driver.cuGraphExecDestroy(self.executable))
            done(self.driver.cuGraphDestroy(self.graph))
            self.graph = None

    def _order(self, first: Any, second: Any, early: bool) -> None:
        """Run the second node after the first; early: set it up when all the first's blocks run."""
        driver, edge = self.driver, self.driver.CUgraphEdgeData()
        if early:
            edge.type = driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC.value
            edge.from_port = driver.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
        add = getattr(driver, "cuGraphAddDependencies_v2", driver.cuGraphAddDependencies)
        done(add(self.graph, [first], [second], [edge], 1))

    def _used(
        self, launches: Sequence[Launch], pointers: Sequence[Sequence[int]]
    ) -> list[tuple[int, ...]]:
        used = []
        for launch, addresses in zip(launches, pointers, strict=True):
            check_pointers(launch.kernel, addresses)
            if launch.source.grid:
                used.append(tuple(addresses))
        return used

    def _parameters(self, launch: Launch, pointers: tuple[int, ...]) -> "Parameters":
        """The launch's arguments, with what a node of a graph is told of it."""
        found = launch.parameters(pointers)
        if found.node is None:
            node = self.driver.CUDA_KERNEL_NODE_PARAMS()
            node.func = self.driver.CUfunction(launch.function.kernel.ptr)
            node.gridDimX = launch.blocks
            node.gridDimY = node.gridDimZ = 1
            node.blockDimX = launch.source.threads
            node.blockDimY = node.blockDimZ = 1
            node.sharedMemBytes = launch.source.shared_bytes
            node.kernelParams = found.address
            found.node = node
        return found


def done(result: tuple[Any, ...]) -> Any:
    """The value of a driver call; its error code raised."""
    status, *values = result
    if int(status):
        raise import_cupy().cuda.driver.CUDADriverError(int(status))
    return values[0] if values else None
