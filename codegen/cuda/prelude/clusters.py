"""Device functions of thread-block clusters, whose blocks write to each other's shared memory.

What is exchanged lies in one of two halves by turns. A block writes to a half again only after the
barrier of the exchange between, where all blocks arrive when they have read it; so one barrier does
for each exchange, and after the last nothing is written to a block that may have ended. Before the
first, each block waits until all have begun.
Source: PTX ISA, mapa and barrier.cluster.
"""

from .math import DEVICE

FUNCTIONS: dict[str, str] = {
    "cluster_rank": f"""
{DEVICE} int cluster_rank() {{
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}}""",
    "in_block": f"""
template <typename T>
{DEVICE} T* in_block(T* place, int rank) {{
    unsigned long long there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(place), "r"(rank));
    return reinterpret_cast<T*>(there);
}}""",
    "cluster_arrive": f"""
{DEVICE} void cluster_arrive() {{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}}""",
    "cluster_arrive_relaxed": f"""
{DEVICE} void cluster_arrive_relaxed() {{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}}""",
    "cluster_wait": f"""
{DEVICE} void cluster_wait() {{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}}""",
    "reduce_blocks": f"""
// Blocks that are `Stride` apart; `Places` values of different threads, `place` this thread's own.
// Of the threads that hold the same value the `owner` writes it; by `Lanes` they share the blocks.
template <int Blocks, int Stride, int Places, int Batch, int Lanes, typename Combine, typename T,
          int N>
{DEVICE} void reduce_blocks(T (&values)[N], void* half0, void* half1, int place, bool owner,
                             int& turn) {{
    const int rank = cluster_rank(), member = rank / Stride % Blocks;
    const int lane = Lanes > 1 ? int(threadIdx.x) % Lanes : 0;
#pragma unroll
    for (int start = 0; start < N; start += Batch, ++turn) {{
        T* half = reinterpret_cast<T*>(turn % 2 ? half1 : half0);
        if (turn == 0) cluster_wait();
        if (owner) {{
#pragma unroll
            for (int other = lane; other < Blocks; other += Lanes) {{
                T* there = in_block(half, rank + (other - member) * Stride);
#pragma unroll
                for (int n = start; n < N && n < start + Batch; ++n)
                    there[(member * Batch + n - start) * Places + place] = values[n];
            }}
        }}
        cluster_arrive();
        cluster_wait();
#pragma unroll
        for (int n = start; n < N && n < start + Batch; ++n) {{
            T total = half[(n - start) * Places + place];
#pragma unroll
            for (int other = 1; other < Blocks; ++other)
                total = Combine()(total, half[(other * Batch + n - start) * Places + place]);
            values[n] = total;
        }}
    }}
}}""",
}
