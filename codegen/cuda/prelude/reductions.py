"""Device functions that combine values over the threads of a block."""

from .math import DEVICE

FUNCTIONS: dict[str, str] = {
    "reduce_lanes": f"""
template <int Count, int Stride, typename Combine, typename T, int N>
{DEVICE} void reduce_lanes(T (&values)[N]) {{
#pragma unroll
    for (int n = 0; n < N; ++n) {{
#pragma unroll
        for (int step = Stride; step < Count * Stride; step *= 2)
            values[n] = Combine()(values[n], T(__shfl_xor_sync(0xffffffffu, values[n], step)));
    }}
}}""",
    "reduce_warps": f"""
template <int Count, int Stride, int Threads, int Batch, typename Combine, typename T, int N>
{DEVICE} void reduce_warps(T (&values)[N], void* memory) {{
    T* scratch = reinterpret_cast<T*>(memory);
    const int first = threadIdx.x - threadIdx.x / Stride % Count * Stride;
#pragma unroll
    for (int start = 0; start < N; start += Batch) {{
        block_barrier();
#pragma unroll
        for (int n = start; n < N && n < start + Batch; ++n)
            scratch[(n - start) * Threads + threadIdx.x] = values[n];
        block_barrier();
#pragma unroll
        for (int n = start; n < N && n < start + Batch; ++n) {{
            const T* row = scratch + (n - start) * Threads + first;
            T total = row[0];
#pragma unroll
            for (int other = 1; other < Count; ++other)
                total = Combine()(total, row[other * Stride]);
            values[n] = total;
        }}
    }}
}}""",
    "reduce_alike": f"""
// Of values that are the same in all lanes of a warp: lanes take those of as many warps.
template <int Count, int Stride, int Threads, int Batch, typename Combine, typename T, int N>
{DEVICE} void reduce_alike(T (&values)[N], void* memory) {{
    T* scratch = reinterpret_cast<T*>(memory);
    constexpr int warps = Threads / 32, apart = Stride / 32;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first = warp - warp / apart % Count * apart;
#pragma unroll
    for (int start = 0; start < N; start += Batch) {{
        block_barrier();
        if (lane == 0) {{
#pragma unroll
            for (int n = start; n < N && n < start + Batch; ++n)
                scratch[(n - start) * warps + warp] = values[n];
        }}
        block_barrier();
#pragma unroll
        for (int n = start; n < N && n < start + Batch; ++n) {{
            T total = scratch[(n - start) * warps + first + lane % Count * apart];
#pragma unroll
            for (int step = 1; step < Count; step *= 2)
                total = Combine()(total, T(__shfl_xor_sync(0xffffffffu, total, step)));
            values[n] = total;
        }}
    }}
}}""",
}
"""By name, as those of `functions.py`."""
