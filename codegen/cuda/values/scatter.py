"""Values combined in memory: atomically, or first in shared memory by blocks that stay.

A block that stays keeps what it combines of a buffer in shared memory, from the monoid's identity,
takes tile after tile, and in the end combines all of it in device memory, each block from another
place on, so that they do not wait for one another.
"""

from collections.abc import Sequence

from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import float32, int64
from eqsat.kernel.ir import Kernel, Store

from ..copy.tiles import owners, owns
from ..place.block import Block, Writer
from ..place.placement import store_indices
from ..place.threads import WARP, Factor
from ..place.tile import Reader
from ..prelude.math import identity, register_type

COMBINED = frozenset({"float32", "float64", "int32", "int64"})


def combine_stored(block: Block, store: Store, value: Reader, vector: tuple[str, int]) -> None:
    """Combine a value with elements of a buffer, of which it has the dtype. `vector`: the index
    along which a thread's elements are contiguous, and how many.
    """
    buffer = block.kernel.buffer(store.access.buffer)
    array = _own(block, buffer.name) if store.memory else block.buffer(buffer.name)
    if buffer.dtype.name not in COMBINED:
        raise UnsupportedError(
            f"kernel {block.kernel.name} combines {buffer.dtype} values by {store.monoid}; the "
            f"CUDA target combines numbers of 4 or 8 bytes."
        )
    indices = block.ordered(store_indices(block.placement, store))
    index, width = vector
    if store.memory or store.monoid != "sum" or buffer.dtype != float32:
        index, width = "", 1
    form = f"_{width}" if width > 1 else ""
    if store.memory and store.monoid == "sum" and buffer.dtype == int64:
        form = "_words"  # shared memory adds words of 32 bits, others by a loop
    function, several = f"combine_{store.monoid}{form}", block.register_count(indices) > 1
    alike = block.distribution.unused(indices)
    lanes = next((f for f in alike if f.count >= block.register_count(indices)), None)
    if store.memory and several and lanes:
        _combine_by_lanes(block, store, value, function, lanes)
        return
    owner = owns(block, indices)
    if owner:
        block.out.line(f"if ({owner})")
    with block.out.block(), block.points(indices, steps={index: width}) as point:
        conditions = [*block.valid(indices, point), *block.exists(store.access, point)]
        if conditions:
            block.out.line(f"if ({' && '.join(conditions)})")
        target = f"{array} + {block.address(store.access, point)}"
        elements = [value(block.shifted(point, index, str(e))) for e in range(width) if width > 1]
        values = ", ".join(elements or [value(point)])
        block.out.line(f"    {function}({target}, {values});")


def _combine_by_lanes(
    block: Block, store: Store, value: Reader, function: str, lanes: Factor
) -> None:
    """Combine points that several lanes hold alike, each lane another of them: one wait for all."""
    out, buffer = block.out, block.kernel.buffer(store.access.buffer)
    indices = block.ordered(store_indices(block.placement, store))
    others = [f for f in block.distribution.unused(indices) if f != lanes]
    if others:
        out.line(f"if ({owners(block, others)})")
    with out.block():
        first = "" if lanes.stride == 1 else f" / {lanes.stride}"
        out.line(f"const int lane = int({block.thread}){first} % {lanes.count};")
        out.line("int place = -1, number = 0;")
        out.line(f"{register_type(buffer.dtype)} own = 0;")
        with block.points(indices) as point:
            conditions = [*block.valid(indices, point), *block.exists(store.access, point)]
            with out.block(f"if ({' && '.join(['number++ == lane', *conditions])})"):
                out.line(f"place = {block.address(store.access, point)};")
                out.line(f"own = {value(point)};")
        out.line(f"if (place >= 0) {function}({_own(block, buffer.name)} + place, own);")


def allocate(block: Block) -> None:
    """Room in shared memory for what blocks that stay combine; it is held throughout."""
    for store in _kept(block.kernel):
        buffer = block.kernel.buffer(store.access.buffer)
        offset = block.allocate(buffer.bytes)
        kind, name = register_type(buffer.dtype), _own(block, buffer.name)
        block.out.line(f"{kind}* const {name} = reinterpret_cast<{kind}*>(shared + {offset});")


def program(block: Block, origins: Sequence[str], body: Sequence[str], first: int) -> list[str]:
    """The kernel's lines: those of `body` before number `first`, all tiles of the block in turn by
    the others, and what surrounds them.
    """
    kernel, out = block.kernel, Writer(depth=1)
    out.lines += body[:first]
    for store in _kept(kernel):
        buffer = kernel.buffer(store.access.buffer)
        with out.block(_each(buffer.size, kernel.threads)):
            neutral = identity(store.monoid, buffer.dtype)
            out.line(f"{_own(block, buffer.name)}[n] = {neutral};")
    out.line("block_barrier();")
    tiles = f"for (int tile = int(blockIdx.x); tile < {kernel.tiles}; tile += int(gridDim.x))"
    with out.block(tiles):
        for line in origins:
            out.line(line)
        out.lines += ["    " + line if line else line for line in body[first:]]
        if block.tiles_read or block.tiles_written or block.scratch_bytes:
            out.line("block_barrier();")
    out.line("block_barrier();")
    for store in _kept(kernel):
        buffer = kernel.buffer(store.access.buffer)
        with out.block():
            lines = f"int((long long)({buffer.size}) * blockIdx.x / gridDim.x) / {WARP} * {WARP}"
            out.line(f"const int first = {lines};")
            with out.block(_each(buffer.size, kernel.threads)):
                wrapped = f"n + first < {buffer.size} ? n + first : n + first - {buffer.size}"
                out.line(f"const int place = {wrapped};")
                kind, neutral = register_type(buffer.dtype), identity(store.monoid, buffer.dtype)
                out.line(f"const {kind} own = {_own(block, buffer.name)}[place];")
                target = f"{block.buffer(buffer.name)} + place"
                out.line(f"if (own != {neutral}) combine_{store.monoid}({target}, own);")
    return out.lines


def _kept(kernel: Kernel) -> list[Store]:
    return [store for phase in kernel.phases for store in phase.stores if store.memory]


def _own(block: Block, buffer: str) -> str:
    return f"own_{block.names.of(buffer)}"


def _each(size: int, threads: int) -> str:
    return f"for (int n = int(threadIdx.x); n < {size}; n += {threads})"
