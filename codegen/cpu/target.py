"""Compiles emitted Numba source, keeps it on disk, and runs it over a pool of threads."""

import hashlib
import importlib.util
import os
import re
import sys
import tempfile
import threading
from array import array as packed
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from math import prod
from pathlib import Path
from types import ModuleType

import numpy as np

from eqsat.cache.folder import temporary_folder
from eqsat.codegen.cpu import emit
from eqsat.codegen.host.memory import address_of
from eqsat.codegen.oracle import MONOIDS
from eqsat.errors import CompileError
from eqsat.graph.dtypes import as_dtype, neutral
from eqsat.kernel.ir import Buffer, Kernel
from eqsat.price.scatter import in_copies
from eqsat.settings import Settings

# Measured: handing ranges to other cores takes about 20 us, so that what takes one core 40 is worth
# two: some 100,000 points of one statement, 40,000 that are no vectors, up to 600,000 that are.
_POINTS_WORTH_A_THREAD = 100_000
_PRODUCTS = 16  # multiply-adds of an operation that are worth as much as one such point
_RANGES_PER_THREAD = 4

# Functions of so many steps that vectors of 64 bytes pay: a GELU takes 0.6 of the time on a Xeon.
_POLYNOMIALS = re.compile(
    r"\b(cosh?|(?:one_plus_)?erf|exp2?|expm1|log[12]?p?|pow|sinh?|tanh?)_f(32|64)\b"
)

Run = Callable[[Sequence[np.ndarray]], None]


def load(
    kernel: Kernel,
    cache_dir: Path | str | None = None,
    invocations: Mapping[str, str] | None = None,
) -> Run:
    """The kernel as a function of its buffers: contiguous arrays in the order of `kernel.buffers`.

    Floats of 16 and 8 bits may be given as such or as uint16 and uint8. The compiled code is kept
    in `cache_dir` (a private folder: what lies there is executed); without one it lasts as long as
    the process. `invocations`: see `emit.emit`. Raises CompileError if Numba refuses the
    source.
    """
    source = emit.emit(kernel, invocations)
    elements = [*map(_element, kernel.buffers)]
    function = _compiled(source, elements, cache_dir)
    tiles = kernel.tiles
    threads = _threads(tiles, _points(kernel))
    combined = _combined(kernel)
    if combined and not _worth_copies(kernel, threads):
        threads = 1

    checks = [_check_of(buffer) for buffer in kernel.buffers]

    def run(arrays: Sequence[np.ndarray]) -> None:
        for check, array in zip(checks, arrays, strict=True):
            check(array)
        if threads > 1 and combined:
            flat = [array.view(e).reshape(-1) for array, e in zip(arrays, elements, strict=True)]
            _spread_copies(function, tiles, threads, flat, combined)
        else:
            _spread(function, tiles, threads, arrays)

    return run


@dataclass(frozen=True)
class _Function:
    """A compiled kernel of a first and a last tile and the address of a table of its arrays, to be
    called from Python, and its address for threads outside of Python's lock; `spread` runs it on
    several (`pool.run_ranges`).
    """

    call: Callable[[int, int, int], None]
    address: int
    spread: Callable[[int, int, int, int, np.ndarray], None]


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


def _check_of(buffer: Buffer) -> Callable[[np.ndarray], None]:
    """What raises TypeError or ValueError for an array that the compiled code does not take."""
    own, element, size = buffer.dtype.numpy, _element(buffer), buffer.size

    def check(array: np.ndarray) -> None:
        if array.dtype != own and array.dtype != element:
            raise TypeError(f"buffer {buffer.name} has dtype {buffer.dtype}; got {array.dtype}.")
        if array.size != size or not array.flags.c_contiguous:
            raise ValueError(
                f"buffer {buffer.name} has {size} contiguous elements; got an array of shape "
                f"{array.shape} and strides {array.strides}. Copy it with numpy.ascontiguousarray."
            )

    return check


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


def _spread_copies(
    function: _Function,
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
            empty = neutral(monoid, as_dtype(arrays[n].dtype.name))
            own[n] = np.full_like(arrays[n], empty)
        ranges.append(own)
    tables = np.array([_words(own) for own in ranges], np.intp)
    function.spread(function.address, tiles, threads, threads, tables)
    for n, monoid in combined.items():
        for own in ranges:
            MONOIDS[monoid](arrays[n], own[n], out=arrays[n])


def _spread(function: _Function, tiles: int, threads: int, arrays: Sequence[np.ndarray]) -> None:
    """Run all tiles on `threads` cores, in a few ranges for each."""
    if threads < 2:
        words = packed("q", _words(arrays))
        function.call(0, tiles, words.buffer_info()[0])
        return
    table = np.array(_words(arrays), np.intp)
    function.spread(function.address, tiles, threads, threads * _RANGES_PER_THREAD, table)


def _words(arrays: Sequence[np.ndarray]) -> list[int]:
    """Address and size of each contiguous array, as compiled kernels take them."""
    words: list[int] = []
    for one in arrays:
        words += (address_of(one), one.size)
    return words


# --- compiling ---

_lock = threading.Lock()


@cache
def _emitter_fingerprint() -> str:
    """Over the modules whose code is inlined into compiled kernels, and the versions beneath."""
    digest = hashlib.sha256(f"{version('numba')} {version('llvmlite')}".encode())
    modules = ("bits", "coefficients", "math", "blas", "pool", "products", "runtime")
    for name in (f"{module}.py" for module in modules):
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()


def _compiled(source: str, elements: Sequence[np.dtype], cache_dir: Path | str | None) -> _Function:
    """The compiled `kernel` of the source, from the folder if it lies there."""
    from numba import njit, types
    from numba.core.errors import NumbaError

    folder = Path(cache_dir if cache_dir is not None else temporary_folder())
    source = _from_a_table(source, elements)
    key = f"{source}\n{_emitter_fingerprint()}"
    name = f"eqsat_kernel_{hashlib.sha256(key.encode()).hexdigest()[:32]}"
    path = folder / f"{name}.py"
    with _lock:
        if not path.exists():
            _write(path, source)
        module = _imported(name, path)
        function = njit(
            [types.void(types.intp, types.intp, types.intp)],
            nogil=True,
            error_model="numpy",
            fastmath={"contract"},
            boundscheck=False,
            cache=True,
        )
        try:
            compiled = function(module.kernel)
        except NumbaError as error:
            raise CompileError(f"{_numbered(source)}\n{error}") from error
        (overload,) = compiled.overloads.values()
        address = overload.library.get_pointer_to_function(overload.fndesc.llvm_func_name)
        return _Function(compiled, address, module.run_ranges)


def _from_a_table(source: str, elements: Sequence[np.dtype]) -> str:
    """The source with a kernel that takes its arrays from a table: one signature for all."""
    found = re.search(r"^def kernel\(start, stop(.*)\):\n", source, re.MULTILINE)
    assert found, "a kernel takes its first and its last tile"
    names = [name.strip() for name in found[1].split(",") if name.strip()]
    lines = [
        f"    {name} = array_at(table, {n}, np.{_scalar(one)}(0))\n"
        for n, (name, one) in enumerate(zip(names, elements, strict=True))
    ]
    if _POLYNOMIALS.search(source):
        lines.insert(0, "    wide_vectors()\n")
    own = "array_at, run_ranges, wide_vectors"
    head = f"from eqsat.codegen.cpu.pool import {own}\n{source[: found.start()]}"
    return head + "def kernel(start, stop, table):\n" + "".join(lines) + source[found.end() :]


def _scalar(element: np.dtype) -> str:
    return "bool_" if element.kind == "b" else element.name


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
