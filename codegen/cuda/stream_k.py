"""Stream-K: the loop over tiles and a share of one, and sums that blocks leave for each other.

The block that has a tile's first share waits for those that have the others. Shares run against the
numbers of blocks: whom a block waits for has begun before it. Each warp takes over what the warp of
its number left, thread by thread, as it lay in registers.
"""

from math import prod

from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import float32
from eqsat.kernel.ir import Carry, Kernel, Phase, Update

from .place.block import Block
from .place.distribution import WARP
from .prelude.math import FUNCTORS

FIRST, LAST = "first_chunk", "last_chunk"  # of the tile at hand, that this block computes

FUNCTIONS: dict[str, str] = {
    "give_sums": """
template <int Threads, int N>
__device__ __forceinline__ void give_sums(float* place, const float (&sums)[N], int thread) {
#pragma unroll
    for (int e = 0; e + 3 < N; e += 4)
        reinterpret_cast<float4*>(place)[e / 4 * Threads + thread] =
            make_float4(sums[e], sums[e + 1], sums[e + 2], sums[e + 3]);
#pragma unroll
    for (int e = N / 4 * 4; e < N; ++e) place[e * Threads + thread] = sums[e];
}""",
    "four_from_cache": """
// Not from a processor's own cache, which other blocks do not write to.
__device__ __forceinline__ float4 four_from_cache(const float* place) {
    float4 four;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w) : "l"(place) : "memory");
    return four;
}""",
    "take_sums": """
// Those of so many blocks, one after the other in memory.
template <int Threads, int Others, typename Combine, int N>
__device__ __forceinline__ void take_sums(const float* place, int apart, float (&sums)[N],
                                          int thread) {
#pragma unroll
    for (int e = 0; e + 3 < N; e += 4) {
        float4 other[Others];
#pragma unroll
        for (int n = 0; n < Others; ++n)
            other[n] = four_from_cache(place + n * apart + (e / 4 * Threads + thread) * 4);
#pragma unroll
        for (int n = 0; n < Others; ++n) {
            sums[e] = Combine()(sums[e], other[n].x);
            sums[e + 1] = Combine()(sums[e + 1], other[n].y);
            sums[e + 2] = Combine()(sums[e + 2], other[n].z);
            sums[e + 3] = Combine()(sums[e + 3], other[n].w);
        }
    }
#pragma unroll
    for (int e = N / 4 * 4; e < N; ++e)
        for (int n = 0; n < Others; ++n) {
            const float* from = place + n * apart + e * Threads + thread;
            sums[e] = Combine()(sums[e], *(const volatile float*)from);
        }
}""",
    "sums_given": """
__device__ __forceinline__ void sums_given(int* given) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        __threadfence();
        *(volatile int*)given = 1;
    }
}""",
    "await_sums": """
template <int Others>
__device__ __forceinline__ void await_sums(int* given, int apart) {  // leaves numbers as they were
    const int lane = threadIdx.x % 32;
    bool there = lane >= Others;
    do {  // all lanes alike: products after a loop that parts them would wait for each other
        if (!there) there = *(volatile int*)(given + lane * apart) != 0;
    } while (!__all_sync(0xffffffffu, there));
    if (lane < Others) {
        *(volatile int*)(given + lane * apart) = 0;
        __threadfence();
    }
    __syncwarp();
}""",
}


def check(kernel: Kernel, has_producer: bool) -> None:
    """Raise UnsupportedError for a kernel whose chunks no blocks share."""
    streams = [phase for phase in kernel.phases if phase.stream]
    carries = [carry for phase in streams for carry in phase.carries]
    rescaled = any(isinstance(s, Update) and s.scale for s in kernel.statements())
    plain = not rescaled and all(carry.dtype == float32 for carry in carries)
    whole = len(streams) != 1 or kernel.multicast > 1 or kernel.uneven
    if whole or not plain or not has_producer or _chunks(kernel) < kernel.stream_k:
        raise UnsupportedError(
            f"kernel {kernel.name} has tiles in {kernel.stream_k} parts, and no one stream of "
            f"plain sums, of that many chunks, which one thread copies ahead. Give each block "
            f"whole tiles."
        )


def loop(kernel: Kernel) -> tuple[list[str], str, list[str]]:
    """What comes before the loop over a block's tiles, the loop, and how each turn begins: with the
    tile, and the chunks of it that are the block's.
    """
    chunks, parts = _chunks(kernel), kernel.stream_k
    waves, rest = divmod(kernel.tiles, kernel.blocks)
    before = ["const int share = gridDim.x - 1 - blockIdx.x;"]
    head = f"for (int item = 0; item < {waves} + (share < {rest * parts}); ++item)"
    begins = [
        f"int tile = blockIdx.x + item * gridDim.x, {FIRST} = 0, {LAST} = {chunks};",
        f"if (item == {waves}) {{",
        f"    tile = {waves * kernel.blocks} + share / {parts};",
        f"    {FIRST} = share % {parts} * {chunks} / {parts};",
        f"    {LAST} = (share % {parts} + 1) * {chunks} / {parts};",
        "}",
    ]
    return before, head, begins


def join_sums(block: Block, phase: Phase) -> None:
    """Leave the sums of a tile that another block stores; take those that others left."""
    kernel, out, chunks = block.kernel, block.out, _chunks(block.kernel)
    sums, given = kernel.workspace
    sizes = [block.register_count(carry.indices) * kernel.threads for carry in phase.carries]
    if sum(sizes) > sums.shape[1]:
        raise UnsupportedError(
            f"kernel {kernel.name} has {sum(sizes)} sums in the registers of a block, and room for "
            f"{sums.shape[1]} in {sums.name}. Give each block whole tiles."
        )
    warp = f"int({block.thread}) / {WARP}"

    def places(share: str) -> tuple[str, list[tuple[Carry, str]]]:
        """What says that the sums of a share are there, and where those of each carry are."""
        start, found = f"{block.buffer(sums.name)} + {share} * {sums.shape[1]}", []
        for n, carry in enumerate(phase.carries):
            found.append((carry, f"{start} + {sum(sizes[:n])}"))
        return f"{block.buffer(given.name)} + {share} * {given.shape[1]} + {warp}", found

    with out.block(f"if ({FIRST} > 0)"):
        told, found = places("share")
        for carry, start in found:
            value = block.value(carry.name)
            out.line(f"give_sums<{kernel.threads}>({start}, {value}, int({block.thread}));")
        out.line(f"sums_given({told});")
        out.line("continue;")
    with out.block(f"if ({LAST} < {chunks})"):
        (told, found), others = places("(share + 1)"), kernel.stream_k - 1
        out.line(f"await_sums<{others}>({told}, {given.shape[1]});")
        for carry, start in found:
            kinds = f"{kernel.threads}, {others}, {FUNCTORS[carry.monoid]}"
            value = block.value(carry.name)
            arguments = f"{start}, {sums.shape[1]}, {value}, int({block.thread})"
            out.line(f"take_sums<{kinds}>({arguments});")


def passed(slot: str, parity: str, stages: int) -> str:
    """A ring's state beyond the slots that the chunks of another team's tile take."""
    if stages == 1:
        return f"{parity} ^= ({LAST} - {FIRST}) & 1;"
    return f"{slot} += {LAST} - {FIRST}, {parity} ^= {slot} / {stages} & 1, {slot} %= {stages};"


def _chunks(kernel: Kernel) -> int:
    (phase,) = (phase for phase in kernel.phases if phase.stream)
    return prod(axis.count for axis in phase.stream)
