"""Library calls on the GPU at hand: rows ordered by CuPy's sort of integer keys.

A kernel of our own maps every element to an unsigned integer whose order is that of the elements:
exactly, for floats of any width, NaN after all others. Where 64 bits have room the key also holds
the number of the row above and the position below, so that one sort of all keys does every row and
leaves equal elements as they came. Otherwise the positions are sorted with the keys, and then, all
of a row staying in its order, by row.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eqsat.codegen.order_keys import UNSIGNED, ordering, restoring
from eqsat.library import LibraryCall

from . import target

Launched = Callable[[Any, Any], None]  # a kernel over what it reads and what it writes

INVOCATION = "cupy_sort"
PACK = "pack_keys"
THREADS = 256

_SOURCE = """// {title}
typedef unsigned long long word;

{ordering}
{restoring}
extern "C" __global__ void pack_keys(const {element}* elements, {key}* keys) {{
    const word at = (word) blockIdx.x * {threads} + threadIdx.x;
    if (at >= {size}ull) return;
    word key = ordered(elements[at]) << {below};
    {row}
    {place}
    keys[at] = ({key}) key;
}}

extern "C" __global__ void unpack_places(const {key}* keys, long long* places) {{
    const word at = (word) blockIdx.x * {threads} + threadIdx.x;
    if (at >= {made}ull) return;
    const word key = keys[at / {count}ull * {length}ull + at % {count}ull];
    places[at] = (long long) (key & ((1ull << {below}) - 1));
}}

extern "C" __global__ void unpack_elements(const {key}* keys, {element}* elements) {{
    const word at = (word) blockIdx.x * {threads} + threadIdx.x;
    if (at >= {size}ull) return;
    elements[at] = ({element}) restored(keys[at]);
}}
"""


def key_source(call: LibraryCall) -> str:
    """The CUDA C++ that maps the elements of a call to keys, and keys to positions or elements."""
    source, made, keys = call.buffers
    places = call.function == "argsort"
    width, below = 8 * source.dtype.itemsize, 0
    if places and call.packed:
        below = (call.length - 1).bit_length()
    row = f"key |= at / {call.length}ull << {width + below};"
    return _SOURCE.format(
        title=f"keys of {call.function} over {source.dtype.name}{list(source.shape)}",
        ordering=ordering(source.dtype, call.descending, places),
        restoring=restoring(source.dtype, call.descending),
        element=UNSIGNED[source.dtype.itemsize],
        key=UNSIGNED[keys.dtype.itemsize],
        threads=THREADS,
        size=source.size,
        made=made.size,
        count=call.count,
        length=call.length,
        below=below,
        row=row if call.packed and call.rows > 1 else "",
        place=f"key |= at % {call.length}ull;" if below else "",
    )


def cuda_call(call: LibraryCall, arch: str, folder: Path) -> Callable[[Sequence[Any]], None]:
    """The call as a function of its buffers' CuPy arrays, in order, on CuPy's current stream.

    It allocates from CuPy's pool and waits for the device, so that no stream capture takes it.
    """
    path = target.stored(key_source(call), arch, folder)
    module = target.import_cupy().RawModule(path=str(path))

    def launched(name: str) -> Launched:
        function = module.get_function(name)

        def launch(given: Any, made: Any) -> None:
            threads = given.size if name == PACK else made.size
            function((-(-threads // THREADS),), (THREADS,), (given, made))

        return launch

    pack, unpack = launched(PACK), launched(unpacking(call))
    return lambda arrays: order_rows(call, pack, unpack, arrays)


def order_rows(call: LibraryCall, pack: Launched, unpack: Launched, arrays: Sequence[Any]) -> None:
    """Keys made by `pack`, sorted by the library of the arrays, and read by `unpack`."""
    elements, result, room = arrays
    keys = room.reshape(-1).view(np.dtype(f"uint{8 * room.itemsize}"))
    pack(elements, keys)
    if call.packed:
        keys.sort()
        unpack(keys, result)
        return
    order = keys.argsort()
    if call.rows > 1:
        order = order[(order // call.length).argsort()]
    if call.function == "sort":
        unpack(keys[order], result)
    else:
        first = order.reshape(call.rows, call.length)[:, : call.count]
        result.reshape(call.rows, call.count)[...] = first % call.length


def unpacking(call: LibraryCall) -> str:
    """The kernel that reads keys."""
    return "unpack_places" if call.function == "argsort" else "unpack_elements"
