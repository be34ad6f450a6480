"""Compiles emitted Numba source, keeps it on disk, and runs it over a pool of threads."""

import ctypes
import hashlib
import importlib.util
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.metadata import version
from itertools import count
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from eqsat.codegen import numba_emit
from eqsat.codegen.oracle import MONOIDS, identity
from eqsat.errors import CompileError
from eqsat.graph.dtypes import as_dtype
from eqsat.kernel import Buffer, Kernel
from eqsat.scatter_price import in_copies
from eqsat.settings import Settings

# Measured: handing a range to a waiting thread takes about 20 us, in which one core makes some
# 50,000 points of one statement: 20,000 that are no vectors, up to 300,000 that are.
_POINTS_WORTH_A_THREAD = 50_000
_PRODUCTS = 64  # multiply-adds of an operation in the time of one such point
_RANGES_PER_THREAD = 4

Run = Callable[[Sequence[np.ndarray]], None]


def load(
    kernel: Kernel,
    cache_dir: Path | str | None = None,
    invocations: Mapping[str, str] | None = None,
) -> Run:
    """The kernel as a function of its buffers: contiguous arrays in the order of `kernel.buffers`.

    Floats of 16 and 8 bits may be given as such or as uint16 and uint8. The compiled code is kept
    in `cache_dir` (a private folder: what lies there is executed); without one it lasts as long as
    the process. `invocations`: see `numba_emit.emit`. Raises CompileError if Numba refuses the
    source.
    """
    source = numba_emit.emit(kernel, invocations)
    function = _compiled(source, list(map(_element, kernel.buffers)), cache_dir)
    tiles = kernel.tiles
    threads = _threads(tiles, _points(kernel))
    combined = _combined(kernel)
    if combined and not _worth_copies(kernel, threads):
        threads = 1

    takers = [_taker(buffer) for buffer in kernel.buffers]

    def run(arrays: Sequence[np.ndarray]) -> None:
        flat = [take(array) for take, array in zip(takers, arrays, strict=True)]
        if threads > 1 and combined:
            _spread_copies(function, tiles, threads, flat, combined)
        else:
            _spread(function, tiles, threads, flat)

    return run


def load_source(
    source: str,
    elements: Sequence[np.dtype],
    ranges: int,
    points: int,
    cache_dir: Path | str | None = None,
) -> Run:
    """`kernel(start, stop, *arrays)` of a source, over flat arrays of these elements.

    Its `ranges` are spread over as many threads as its `points` are worth. `cache_dir` and errors
    as in `load`.
    """
    function = _compiled(source, elements, cache_dir)
    threads = _threads(ranges, points)
    return lambda arrays: _spread(function, ranges, threads, arrays)


def _threads(ranges: int, points: int) -> int:
    worth = max(points // _POINTS_WORTH_A_THREAD, 1)
    return min(Settings.from_environment().num_threads, ranges, worth)


def _element(buffer: Buffer) -> np.dtype:
    """The NumPy dtype in which compiled code sees a buffer."""
    dtype = buffer.dtype
    return dtype.numpy if dtype.compute == dtype else np.dtype(f"uint{8 * dtype.itemsize}")


def _taker(buffer: Buffer) -> Callable[[np.ndarray], np.ndarray]:
    """What makes an array what the compiled code takes: flat, narrow floats unsigned integers."""
    own, element, size = buffer.dtype.numpy, _element(buffer), buffer.size

    def take(array: np.ndarray) -> np.ndarray:
        if array.dtype != element:
            if array.dtype != own:
                raise TypeError(
                    f"buffer {buffer.name} has dtype {buffer.dtype}; got {array.dtype}."
                )
            array = array.view(element)
        if array.size != size or not array.flags.c_contiguous:
            raise ValueError(
                f"buffer {buffer.name} has {size} contiguous elements; got an array of shape "
                f"{array.shape} and strides {array.strides}. Copy it with numpy.ascontiguousarray."
            )
        return array if array.ndim == 1 else array.reshape(-1)

    return take


def _points(kernel: Kernel) -> int:
    """The points of all statements; operations multiply several in the time of one."""
    axes = kernel.axes()
    points = 0
    for statement in kernel.statements():
        over = getattr(statement, "over", ())
        used = {*statement.indices, *((over,) if isinstance(over, str) else over)}
        own = prod(axes[name].extent for name in used)
        points += own // _PRODUCTS if getattr(statement, "operation", "") else own
    return points


def _combined(kernel: Kernel) -> dict[int, str]:
    """The monoids by which the tiles of a kernel combine values in memory, by parameter."""
    names = [buffer.name for buffer in kernel.buffers]
    stores = [store for phase in kernel.phases for store in phase.stores if store.monoid]
    return {names.index(store.access.buffer): store.monoid for store in stores}


def _worth_copies(kernel: Kernel, threads: int) -> bool:
    """Whether copies of what is combined, one for each thread, are less than what goes there."""
    points = prod(axis.extent for axis in kernel.grid)
    return all(in_copies(kernel.buffers[n].size, points, threads) for n in _combined(kernel))


# --- threads ---


@cache
def _worker(process: int, core: int) -> ThreadPoolExecutor:
    """One thread, bound to a core (a forked process gets its own).

    Left to the scheduler, a woken thread often shares its waker's core for the 3 ms until the next
    rebalancing, while the other core idles: measured, every second program ran at half speed.
    """

    def bind() -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {core})

    return ThreadPoolExecutor(1, f"eqsat-{core}", bind)


@cache
def _current_core() -> Callable[[], int]:
    """A function that gives the core of the calling thread, -1 where the system does not say."""
    library: Any = ctypes.PyDLL(None) if os.name == "posix" else None
    return getattr(library, "sched_getcpu", lambda: -1)


def _cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _spread_copies(
    function: Any,
    tiles: int,
    threads: int,
    arrays: Sequence[np.ndarray],
    combined: Mapping[int, str],
) -> None:
    """Run all tiles on `threads` cores, one range on each, which combines in copies of its own.

    They are joined in the order of the ranges: sums are the same from run to run.
    """
    ranges: list[list[np.ndarray]] = []
    for _ in range(threads):
        own = list(arrays)
        for n, monoid in combined.items():
            neutral = identity(monoid, as_dtype(arrays[n].dtype.name))
            own[n] = np.full_like(arrays[n], neutral)
        ranges.append(own)
    _run_ranges(function, tiles, threads, ranges)
    for n, monoid in combined.items():
        for own in ranges:
            MONOIDS[monoid](arrays[n], own[n], out=arrays[n])


def _spread(function: Any, tiles: int, threads: int, arrays: Sequence[np.ndarray]) -> None:
    """Run all tiles on `threads` cores, in a few ranges for each."""
    if threads < 2:
        function(0, tiles, *arrays)
        return
    _run_ranges(function, tiles, threads, [arrays] * (threads * _RANGES_PER_THREAD))


def _run_ranges(
    function: Any, tiles: int, threads: int, arrays: Sequence[Sequence[np.ndarray]]
) -> None:
    """Run all tiles on `threads` cores, the caller's included; each takes the next range, of which
    there are as many as lists of arrays.
    """
    ranges = min(tiles, len(arrays))
    turns = count()

    def work() -> None:
        for turn in turns:
            if turn >= ranges:
                return
            function(turn * tiles // ranges, (turn + 1) * tiles // ranges, *arrays[turn])

    others = sorted(_cores() - {_current_core()()})[: threads - 1]
    futures = [_worker(os.getpid(), core).submit(work) for core in others]
    work()
    for future in futures:
        future.result()


# --- compiling ---

_lock = threading.Lock()


@cache
def _temporary_folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="eqsat-")


@cache
def _emitter_fingerprint() -> str:
    """Over the modules whose code is inlined into compiled kernels, and the versions beneath."""
    digest = hashlib.sha256(f"{version('numba')} {version('llvmlite')}".encode())
    modules = ("cpu_bits", "cpu_math", "numba_blas", "numba_products", "numba_runtime")
    for name in (f"{module}.py" for module in modules):
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()


def _compiled(source: str, elements: Sequence[np.dtype], cache_dir: Path | str | None) -> Any:
    """The compiled `kernel` of the source, from the folder if it lies there."""
    from numba import from_dtype, njit, types
    from numba.core.errors import NumbaError

    folder = Path(cache_dir if cache_dir is not None else _temporary_folder().name)
    parameters = (types.intp, types.intp, *(from_dtype(one)[::1] for one in elements))
    key = f"{source}\n{parameters}\n{_emitter_fingerprint()}"
    name = f"eqsat_kernel_{hashlib.sha256(key.encode()).hexdigest()[:32]}"
    path = folder / f"{name}.py"
    with _lock:
        if not path.exists():
            _write(path, source)
        module = _imported(name, path)
        function = njit(
            [types.void(*parameters)],
            nogil=True,
            error_model="numpy",
            fastmath={"contract"},
            boundscheck=False,
            cache=True,
        )
        try:
            return function(module.kernel)
        except NumbaError as error:
            raise CompileError(f"{_numbered(source)}\n{error}") from error


def _write(path: Path, source: str) -> None:
    """Write a file so that no other process ever sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
        file.write(source)
    os.replace(file.name, path)


def _imported(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # by this name compiled code finds its module again
    spec.loader.exec_module(module)
    return module


def _numbered(source: str) -> str:
    return "\n".join(f"{n:4} {line}" for n, line in enumerate(source.splitlines(), 1))
