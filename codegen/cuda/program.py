"""The body of a kernel with a producer: its barriers, and the loop of each group of threads."""

from collections.abc import Iterable, Sequence

from eqsat.codegen.cuda import stream_k

from .copy.multicast import RANK
from .copy.ring import Ring
from .pipeline import Pipeline
from .place.block import Writer
from .place.distribution import WARP
from .place.registers import CONVERTER_REGISTERS, registers_of, shared_out
from .place.warpgroup_operations import WARPGROUP, WarpgroupOperation
from .prelude.asynchronous import ASYNC_FUNCTIONS
from .products import pairs


def functions(pipeline: Pipeline) -> dict[str, str]:
    """Device functions that only such kernels have."""
    block = pipeline.block
    threads = block.kernel.threads
    barrier = f"""
__device__ __forceinline__ void block_barrier() {{
    asm volatile("bar.sync 1, {threads};" ::: "memory");
}}"""
    operations = {
        o.name(held): o.definition(held)
        for m in block.placement.matrices.values()
        if isinstance(o := m.operation, WarpgroupOperation)
        for held in (False, True)
    }
    others = {**stream_k.FUNCTIONS, **pairs.FUNCTIONS}
    return {**ASYNC_FUNCTIONS, **operations, **others, "block_barrier": barrier}


def whole_program(pipeline: Pipeline, origins: Sequence[str]) -> str:
    """The kernel's body: the converting threads' program, the producer's, then that of those who
    compute.
    """
    block, out = pipeline.block, Writer(depth=1)
    kernel, turns = block.kernel, block.turns
    converting = block.placement.converting
    producing, registers = shared_out(pipeline.threads, pipeline.blocks, pipeline.held, converting)
    loop = f"for (int tile = blockIdx.x; tile < {kernel.all_turns}; tile += gridDim.x)"
    if kernel.stream_k:
        before, loop, begins = stream_k.loop(kernel)
        out.lines += ["    " + line for line in before]
        origins = [*begins, *origins]
    if kernel.uneven:  # tiles get shorter: who had a longer one has a shorter one next
        origins = [*_there_and_back(kernel.tiles), *origins]
        loop = _rounds(kernel.tiles)
    _initialise(pipeline, out)
    if pipeline.converter.found:
        first = pipeline.threads + WARPGROUP
        with out.block(f"if (threadIdx.x >= {first})"):
            launch, _ = registers_of(pipeline.threads, 1, converting=converting)
            out.line(f"fewer_registers<{min(CONVERTER_REGISTERS, launch)}>();")
            for line in pipeline.converter.begin(first):
                out.line(line)
            _state(out, pipeline.every_ring)
            with out.block(loop):
                for line in origins:
                    out.line(line)
                out.lines += pipeline.converter.program.lines
            out.line("return;")
    with out.block(f"if (threadIdx.x >= {pipeline.threads})"):
        out.line(f"fewer_registers<{producing}>();")
        with out.block(f"if (threadIdx.x == {pipeline.threads})"):
            _state(out, pipeline.every_ring)
            if pipeline.shares:
                out.line(f"const int {RANK} = cluster_rank();")
            with out.block(loop):
                for line in origins:
                    out.line(line)
                out.lines += pipeline.producer.lines
            _linger(pipeline, out)
        out.line("return;")
    out.line(f"more_registers<{registers}>();")
    if turns > 1:
        out.line(f"const int thread = threadIdx.x % {kernel.threads};")
        turn = f"int(threadIdx.x) / {kernel.threads}"
        out.line(f"const int turn = __shfl_sync(0xffffffffu, {turn}, 0);")
    if turns > 1 and kernel.uneven:
        loop = _rounds(kernel.tiles, "turn", turns)
    elif turns > 1 and not kernel.stream_k:
        start, step = "blockIdx.x + turn * gridDim.x", f"{turns} * gridDim.x"
        loop = f"for (int tile = {start}; tile < {kernel.all_turns}; tile += {step})"
    team = f"int({block.thread}) / {WARPGROUP}"
    out.line(f"const int warpgroup = __shfl_sync(0xffffffffu, {team}, 0);")
    _state(out, pipeline.all_rings)
    if turns > 1:
        out.line("int order = turn ^ 1;")
    if turns > 1 and not kernel.stream_k:
        with out.block("if (turn == 1)"):
            pipeline.pass_over(out)
    with out.block(loop):
        for line in _there_and_back(kernel.tiles) if kernel.uneven else ():
            out.line(line)
        if kernel.stream_k:
            for line in begins:
                out.line(line)
            if turns > 1:
                with out.block(f"if (item % {turns} != turn)"):
                    pipeline.pass_over(out)
                    out.line("continue;")
        out.lines += block.out.lines
        if turns > 1 and not kernel.stream_k:
            pipeline.pass_over(out)
    if block.stored:
        out.line("boxes_stored();")
    return "\n".join(out.lines)


def _initialise(pipeline: Pipeline, out: Writer) -> None:
    """Barriers set up by one thread."""
    block = pipeline.block
    warps = block.kernel.threads // WARP
    at = f"reinterpret_cast<unsigned long long*>(shared + {pipeline.offset})"
    out.line(f"unsigned long long* const barriers = {at};")
    with out.block("if (threadIdx.x == 0)"):
        for ring in pipeline.every_ring:
            readers = ring.readers or warps * ring.writers
            with out.block(f"for (int slot = 0; slot < {ring.stages}; ++slot)"):
                out.line(f"barrier_init({ring.full('slot')}, {ring.arrivals});")
                out.line(f"barrier_init({ring.empty('slot')}, {readers});")
        for turn in range(pipeline.order, pipeline.barriers):
            out.line(f"barrier_init(barriers + {turn}, {warps});")
        out.line("barriers_ready();")
        for name in pipeline.maps:
            out.line(f"prefetch_map({block.map_name(name)});")
    if pipeline.shares:  # `barriers_ready` has released those of all blocks
        out.line("cluster_arrive_relaxed();")
        out.line("cluster_wait();")
    else:
        out.line("__syncthreads();")
    out.line("earlier_launches_done();")
    out.line("next_launch_may_begin();")


def _state(out: Writer, rings: Iterable[Ring]) -> None:
    """Slot numbers and parities of one side."""
    for ring in rings:
        slot = "" if ring.stages == 1 else f"slot_{ring.number} = 0, "
        out.line(f"int {slot}parity_{ring.number} = 0;")
        if ring.stages == 1:
            out.line(f"constexpr int slot_{ring.number} = 0;")


def _linger(pipeline: Pipeline, out: Writer) -> None:
    """Wait until all blocks have let go of all slots: they tell the barriers of this one."""
    for ring in pipeline.all_rings:
        if ring.writers > 1:
            n = ring.number
            with out.block(f"for (int last = 0; last < {ring.stages}; ++last)"):
                out.line(f"barrier_wait({ring.empty(f'slot_{n}')}, parity_{n} ^ 1);")
                ring.advance(out)


def _rounds(tiles: int, first: str = "0", step: int = 1) -> str:
    """The loop over the rounds in which each block has a tile."""
    return f"for (int round = {first}; round * gridDim.x < {tiles}; round += {step})"


def _there_and_back(tiles: int) -> list[str]:
    """The tile of a round, and an end where the last round has none."""
    return [
        "const int last = gridDim.x - 1;",
        "const int tile = round * (last + 1) + (round % 2 ? last - blockIdx.x : blockIdx.x);",
        f"if (tile >= {tiles}) break;",
    ]
