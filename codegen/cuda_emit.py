"""CUDA C++ for a kernel: one function, one block per grid tile, tiles in order of the grid.

Arrays of registers hold each thread's points of a value; loops over them are unrolled, so that the
compiler keeps them in registers. Elementwise statements over the same indices share a loop.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from eqsat.codegen.cuda_block import Block
from eqsat.codegen.cuda_distribution import WARP, Distribution, distribute
from eqsat.codegen.cuda_math import storage_type
from eqsat.codegen.cuda_phase import emit_phase
from eqsat.codegen.cuda_placement import Placement, place, unique_names
from eqsat.codegen.cuda_prelude import select
from eqsat.errors import UnsupportedError
from eqsat.kernel import Kernel
from eqsat.specs.model import ParallelOperation

MOST_THREADS = 1024
MOST_BLOCKS = 2**31 - 1


@dataclass(frozen=True)
class CudaSource:
    """A kernel's source: launch `grid` blocks of `threads`, with `shared_bytes` of dynamic shared
    memory and the kernel's buffers, in order, as pointers aligned to 16 bytes."""

    text: str
    entry: str
    threads: int
    shared_bytes: int
    grid: int


def emit(kernel: Kernel, operations: Mapping[str, ParallelOperation] | None = None) -> CudaSource:
    """The source of a kernel.

    `operations` are those of the spec, by the names that contractions use; a contraction may also
    name an instruction itself. An operation's native implementation for cuda, if it has one, is
    taken in place of the instruction: a device function of the operation's name with the
    parameters (d0, d1, d2, d3, const unsigned* a, const unsigned* b) of one warp's fragments.
    Raises UnsupportedError for what the target cannot express.
    """
    _check(kernel)
    kernel = unique_names(kernel)
    placement = place(kernel, operations or {})
    distribution = distribute(kernel, placement)
    block = Block(kernel, placement, distribution)
    block.out.depth = 1
    _origins(block)
    for phase in kernel.phases:
        emit_phase(block, phase)
    entry = f"eqsat_{block.names.of(kernel.name)}"
    body = "\n".join(block.out.lines)
    text = _assemble(block, entry, body, operations or {})
    shared = block.shared_peak + block.scratch_bytes
    return CudaSource(text, entry, kernel.threads, shared, kernel.tiles)


def choose(
    kernel: Kernel, operations: Mapping[str, ParallelOperation] | None = None
) -> tuple[Placement, Distribution]:
    """Where the values of a kernel live and how its tiles are spread, as `emit` decides it."""
    kernel = unique_names(kernel)
    placement = place(kernel, operations or {})
    return placement, distribute(kernel, placement)


def _check(kernel: Kernel) -> None:
    if kernel.threads % WARP or not 0 < kernel.threads <= MOST_THREADS:
        raise UnsupportedError(
            f"kernel {kernel.name} asks for blocks of {kernel.threads} threads; the CUDA target "
            f"takes multiples of {WARP} up to {MOST_THREADS}. Choose one of these."
        )
    if kernel.tiles > MOST_BLOCKS:
        raise UnsupportedError(
            f"kernel {kernel.name} has {kernel.tiles} tiles, more than the {MOST_BLOCKS} blocks of "
            f"a CUDA grid. Choose larger tiles."
        )


def _origins(block: Block) -> None:
    """The first point of this block's tile along each grid axis, and of this thread's part."""
    kernel, out = block.kernel, block.out
    cut = [axis for axis in kernel.grid if axis.count > 1]
    inner = 1
    for axis in reversed(cut):
        text = "int(blockIdx.x)" if inner == 1 else f"int(blockIdx.x) / {inner}"
        if inner * axis.count < kernel.tiles:
            text += f" % {axis.count}"
        scaled = text if axis.tile == 1 else f"{text} * {axis.tile}"
        out.line(f"const int {block.frame.origin[axis.name]} = {scaled};")
        inner *= axis.count
    block.define_bases(block.frame, [axis.name for axis in (*kernel.grid, *kernel.inner)])


def _assemble(
    block: Block, entry: str, body: str, operations: Mapping[str, ParallelOperation]
) -> str:
    kernel = block.kernel
    extra = {}
    for matrix in block.placement.matrices.values():
        spec = operations.get(matrix.contract.operation)
        native = spec.native_implementation.get("cuda") if spec else None
        extra[matrix.function] = native or matrix.operation.definition
    prelude = select(body, extra)
    stored = {store.access.buffer for phase in kernel.phases for store in phase.stores}
    parameters = []
    for buffer in kernel.buffers:
        const = "" if buffer.name in stored else "const "
        kind = storage_type(buffer.dtype)
        parameters.append(f"{const}{kind}* __restrict__ {block.buffer(buffer.name)}")
    lines = [_comment(block), "", prelude, ""] if prelude else [_comment(block), ""]
    lines.append(f'extern "C" __global__ void __launch_bounds__({kernel.threads})')
    lines.append(f"{entry}({', '.join(parameters)}) {{")
    if block.shared_peak + block.scratch_bytes:
        lines.append("    extern __shared__ __align__(128) unsigned char shared[];")
    if block.scratch_bytes:
        lines.append(f"    constexpr int scratch = {block.shared_peak};")
    return "\n".join([*lines, body, "}", ""])


def _comment(block: Block) -> str:
    """What the kernel is: its name, spec, rules and tiles. Nothing in it can end the comment."""
    kernel = block.kernel
    axes = " ".join(f"{a.name}:{a.tile}/{a.extent}" for a in kernel.grid) or "one tile"
    lines = [f"kernel {kernel.name}", f"spec {kernel.spec or 'none'}", f"grid {axes}"]
    if kernel.inner:
        lines.append("inner " + " ".join(f"{a.name}:{a.extent}" for a in kernel.inner))
    for phase in kernel.phases:
        if phase.stream:
            stages = f" stages {phase.stages}" if phase.stages > 1 else ""
            axes = " ".join(f"{a.name}:{a.tile}/{a.extent}" for a in phase.stream)
            lines.append(f"stream {axes}{stages}")
    lines.append(f"rules {', '.join(kernel.rules) or 'none'}")
    return "\n".join("// " + _printable(line) for line in lines)


def _printable(text: str) -> str:
    return re.sub(r"[^ -\[\]-~]", "?", text)  # ASCII, no backslash: it would join lines
