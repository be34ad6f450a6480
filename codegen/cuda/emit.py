"""CUDA C++ for a kernel: one function, one block per grid tile, tiles in order of the grid.

Arrays of registers hold each thread's points of a value; loops over them are unrolled, so that the
compiler keeps them in registers. Elementwise statements over the same indices share a loop.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from eqsat.codegen.cuda import stream_k
from eqsat.errors import UnsupportedError
from eqsat.kernel.ir import Axis, Kernel, Literal, Load, Map, Position, Reduce, Update
from eqsat.specs.model import ParallelOperation

from .copy.joined import check_joined
from .phase import emit_phase
from .pipeline import Pipeline, needs_producer
from .place.block import Block
from .place.box import PERIOD, TensorBox
from .place.distribution import WARP, Distribution, distribute
from .place.operations import MatrixOperation
from .place.placement import FETCH, INLINE, REGISTERS, Placement, place, unique_names
from .place.tile import Point
from .place.warpgroup_operations import WARPGROUP
from .prelude.functions import select
from .prelude.math import storage_type
from .program import functions, whole_program
from .values.scatter import allocate, program

MOST_THREADS = 1024
MOST_BLOCKS = 2**31 - 1


@dataclass(frozen=True)
class CudaSource:
    """A kernel's source: launch `grid` blocks of `threads`, with `shared_bytes` of dynamic shared
    memory and the kernel's buffers, in order, as pointers aligned to 16 bytes; after them a tensor
    map for each of `maps`. With `resident`, so many blocks an SM will do: each takes several tiles.
    """

    text: str
    entry: str
    threads: int
    shared_bytes: int
    grid: int
    maps: tuple[TensorBox, ...] = ()
    resident: int = 0


def emit(kernel: Kernel, operations: Mapping[str, ParallelOperation] | None = None) -> CudaSource:
    """The source of a kernel.

    `operations` are those of the spec, by the names that contractions use; a contraction may also
    name an instruction itself. An operation's native implementation for cuda, if it has one, is
    taken in place of the instruction: a device function of the operation's name with the
    parameters (d0, d1, d2, d3, const unsigned* a, const unsigned* b) of one warp's fragments, for
    float64 const double*.
    Raises UnsupportedError for what the target cannot express.
    """
    _check(kernel)
    kernel = unique_names(kernel)
    placement = place(kernel, operations or {})
    if kernel.cluster > 1:
        _check_cluster(kernel, placement)
    distribution = distribute(kernel, placement)
    turns = (2, 1) if kernel.threads == WARPGROUP else (1,)
    found = (_emit(kernel, operations or {}, placement, distribution, n) for n in turns)
    return next(source for source in found if source)


def _emit(
    kernel: Kernel,
    operations: Mapping[str, ParallelOperation],
    placement: Placement,
    distribution: Distribution,
    turns: int,
) -> CudaSource | None:
    """The source where so many tiles of a block take turns; None where they cannot."""
    block = Block(kernel, placement, distribution)
    needed = needs_producer(placement.matrices.values())
    if kernel.multicast > 1 and not needed:
        raise UnsupportedError(
            f"kernel {kernel.name} has clusters of {kernel.multicast} blocks that copy for each "
            f"other, and no operation of a warpgroup, for which one thread copies ahead. Give each "
            f"tile a block by itself."
        )
    if kernel.stream_k:
        stream_k.check(kernel, needed)
    pipeline = Pipeline(block, turns) if needed else None
    rings = pipeline.all_rings if pipeline else []
    check_joined(kernel, {name for ring in rings for name in ring.boxes})
    block.out.depth = 2 if pipeline else 1
    stays = bool(pipeline or kernel.resident)
    allocate(block)
    held = len(block.out.lines)
    number = "int(blockIdx.x)" if kernel.cluster == 1 else f"int(blockIdx.x) / {kernel.cluster}"
    origins = _origin_lines(block, "tile" if stays else number)
    for text in origins if not kernel.resident else ():
        block.out.line(text)
    block.define_bases(block.frame, [axis.name for axis in (*kernel.grid, *kernel.inner)])
    for phase in kernel.phases:
        emit_phase(block, phase, pipeline)
    entry = f"eqsat_{block.names.of(kernel.name)}"
    threads, shared = kernel.threads, block.shared_peak + block.scratch_bytes
    maps: dict[str, TensorBox] = {}
    if pipeline:
        shared, threads = pipeline.close(shared), pipeline.all_threads
        if not pipeline.fits:
            return None
        maps = {block.map_name(name): box for name, box in pipeline.maps.items()}
        body = whole_program(pipeline, origins)
    else:
        lines = block.out.lines
        whole = program(block, origins, lines, held) if kernel.resident else lines
        begun = ["    earlier_launches_done();"]
        begun += [] if kernel.joins else ["    next_launch_may_begin();"]
        body = "\n".join([*begun, *whole])
    shared += 2 * block.exchange_bytes
    text = _assemble(block, entry, body, operations, pipeline)
    resident = pipeline.resident if pipeline else kernel.resident
    grid = kernel.blocks or kernel.all_turns * kernel.cluster
    return CudaSource(text, entry, threads, shared, grid, tuple(maps.values()), resident)


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
    if kernel.tiles * kernel.cluster > MOST_BLOCKS:
        raise UnsupportedError(
            f"kernel {kernel.name} has {kernel.tiles} tiles, more than the {MOST_BLOCKS} blocks of "
            f"a CUDA grid. Choose larger tiles."
        )


def _check_cluster(kernel: Kernel, placement: Placement) -> None:
    """Each block of a cluster has a part of the tile in its registers, and no other's."""
    alone = (Load, Literal, Position, Map, Reduce, Update)
    shared = [n for n, where in placement.where.items() if where not in (REGISTERS, INLINE, FETCH)]
    other = [s.name for s in kernel.statements() if not isinstance(s, alone)]
    if shared or other or kernel.resident:
        raise UnsupportedError(
            f"kernel {kernel.name} computes {', '.join(shared or other) or 'tile after tile'} by "
            f"the threads of one block, and has clusters of {kernel.cluster}. Give each tile one."
        )


def _origin_lines(block: Block, tile: str) -> list[str]:
    """The first point of tile number `tile` along each grid axis.

    Of the last two axes that are cut, or of the last and all others together where tiles are
    uneven, `band` tiles of one come before the next of the other, so that tiles which run together
    share what they read.
    """
    kernel, lines, inner = block.kernel, [], 1
    rest, numbers = kernel.cut, dict[str, str]()
    if len(rest) > 1 and (kernel.band > 1 or kernel.uneven):
        rows, columns = rest[:-1] if kernel.uneven else rest[-2:-1], rest[-1]
        rest = rest[: -1 - len(rows)]
        height, width = prod(map(kernel.turns, rows)), kernel.turns(columns)
        band = min(kernel.band, height)
        inner = height * width
        within = tile if inner == kernel.all_turns else f"{tile} % {inner}"
        lines.append(f"const int within = {within}, band = within / {band * width};")
        lines.append(f"const int member = within % {band * width};")
        left, high = height % band, str(band)
        if left:
            lines.append(f"const int height = band == {height // band} ? {left} : {band};")
            high = "height"
        numbers |= _digits(kernel, rows, f"(band * {band} + member % {high})", 1, height)
        number = f"member / {high}"
        numbers[columns.name] = f"({columns.count - 1} - {number})" if kernel.backwards else number
    numbers |= _digits(kernel, rest, tile, inner, kernel.all_turns)
    for axis in reversed(kernel.cut):
        text = numbers[axis.name]
        if axis.name == kernel.repeats:
            text = f"min({text}, {axis.count - 1})"
        scaled = text if axis.tile == 1 else f"{text} * {axis.tile}"
        lines.append(f"const int {block.frame.origin[axis.name]} = {scaled};")
    return lines


def _digits(
    kernel: Kernel, axes: Sequence[Axis], number: str, inner: int, count: int
) -> dict[str, str]:
    """Which tile along each of the axes, the last of them innermost, a number below a count stands
    for, of which so many `inner` ones stand for the same.
    """
    found: dict[str, str] = {}
    for axis in reversed(axes):
        turns = kernel.turns(axis)
        text = number if inner == 1 else f"{number} / {inner}"
        found[axis.name] = text if inner * turns >= count else f"{text} % {turns}"
        inner *= turns
    return found


def _assemble(
    block: Block,
    entry: str,
    body: str,
    operations: Mapping[str, ParallelOperation],
    pipeline: Pipeline | None,
) -> str:
    kernel = block.kernel
    extra = functions(pipeline) if pipeline else {}
    for matrix in block.placement.matrices.values():
        spec = operations.get(matrix.contract.operation)
        native = spec.native_implementation.get("cuda") if spec else None
        if isinstance(matrix.operation, MatrixOperation):
            extra[matrix.function] = native or matrix.operation.definition
    body = "\n".join([*_cluster_lines(block), body])
    prelude = select(body, extra)
    stored = {store.access.buffer for phase in kernel.phases for store in phase.stores}
    stored |= {buffer.name for buffer in kernel.workspace}
    parameters = []
    for buffer in kernel.buffers:
        const = "" if buffer.name in stored else "const "
        kind = storage_type(buffer.dtype)
        alone = "" if buffer in kernel.workspace else " __restrict__"  # other blocks write to it
        parameters.append(f"{const}{kind}*{alone} {block.buffer(buffer.name)}")
    bounds, alignment = f"{kernel.threads}", 128
    if kernel.beside > 1:
        bounds += f", {kernel.beside}"
    if pipeline:
        bounds, alignment = pipeline.launch_bounds, PERIOD
        parameters += [
            f"const __grid_constant__ TensorMap {block.map_name(name)}" for name in pipeline.maps
        ]
    lines = [_comment(block), "", prelude, ""] if prelude else [_comment(block), ""]
    count = kernel.cluster * kernel.multicast
    cluster = f"__cluster_dims__({count}, 1, 1) " if count > 1 else ""
    lines.append(f'extern "C" __global__ void {cluster}__launch_bounds__({bounds})')
    lines.append(f"{entry}({', '.join(parameters)}) {{")
    if block.shared_peak + block.scratch_bytes + block.exchange_bytes:
        lines.append(f"    extern __shared__ __align__({alignment}) unsigned char shared[];")
    if block.scratch_bytes:
        lines.append(f"    constexpr int scratch = {block.shared_peak};")
    if not pipeline and _ends(block):  # whole tiles ask nothing; their addresses fold as they are
        lines.append(f"    __builtin_assume(threadIdx.x < {kernel.threads});")
    return "\n".join([*lines, body, "}", ""])


def _ends(block: Block) -> bool:
    """Whether threads ask of points if they exist: a compiler that knows how many threads there are
    knows the answer for most.
    """
    first = Point(dict(block.frame.origin), {}, block.frame.origin)
    return any(block.valid([name], first) for name in block.distribution.factors)


def _cluster_lines(block: Block) -> list[str]:
    """The thread's number in its cluster; where blocks exchange results, and how often they did."""
    if block.kernel.cluster == 1:
        return []
    lines = [f"const int thread = cluster_rank() * {block.kernel.threads} + int(threadIdx.x);"]
    if block.exchange_bytes:
        first = block.shared_peak + block.scratch_bytes
        again = first + block.exchange_bytes
        lines.append(f"constexpr int exchange = {first}, exchange_again = {again};")
        lines += ["int turn = 0;", "cluster_arrive();"]
    return ["    " + line for line in lines]


def _comment(block: Block) -> str:
    """What the kernel is: its name, spec, rules and tiles. Nothing in it can end the comment."""
    kernel = block.kernel
    axes = " ".join(f"{a.name}:{a.tile}/{a.extent}" for a in kernel.grid) or "one tile"
    lines = [f"kernel {kernel.name}", f"spec {kernel.spec or 'none'}", f"grid {axes}"]
    if kernel.cluster > 1:
        lines.append(f"cluster {kernel.cluster}")
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
