"""Device functions of scans over the threads of a block."""

_DEVICE = "__device__ __forceinline__"

FUNCTIONS: dict[str, str] = {
    "scan_lanes": f"""
template <int Count, int Stride, typename Combine, typename T>
{_DEVICE} void scan_lanes(T& total, T& before, T identity) {{
    const int lane = threadIdx.x % 32, at = lane / Stride % Count;
    T running = total;
#pragma unroll
    for (int step = 1; step < Count; step *= 2) {{
        const T other = T(__shfl_up_sync(0xffffffffu, running, step * Stride));
        if (at >= step) running = Combine()(other, running);
    }}
    const T previous = T(__shfl_up_sync(0xffffffffu, running, Stride));
    before = Combine()(at > 0 ? previous : identity, before);
    total = T(__shfl_sync(0xffffffffu, running, lane + (Count - 1 - at) * Stride));
}}""",
    "scan_warps": f"""
template <int Count, int Stride, typename Combine, typename T>
{_DEVICE} void scan_warps(T& total, T& before, T identity, void* memory) {{
    T* scratch = reinterpret_cast<T*>(memory);
    const int at = threadIdx.x / Stride % Count, first = threadIdx.x - at * Stride;
    block_barrier();
    scratch[threadIdx.x] = total;
    block_barrier();
    T running = identity;
#pragma unroll
    for (int other = 0; other < Count; ++other) {{
        if (other == at) before = Combine()(running, before);
        running = Combine()(running, scratch[first + other * Stride]);
    }}
    total = running;
}}""",
    # The totals of N vectors of each thread, whose warps hold one row each, Stride threads apart.
    "scan_totals": f"""
template <int Warps, int Stride, typename Combine, typename T, int N>
{_DEVICE} void scan_totals(T (&total)[N], T (&before)[N], T identity, void* memory) {{
    constexpr int Totals = N * Warps, Each = (Totals + 31) / 32;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / Stride % Warps;
    T* scratch = reinterpret_cast<T*>(memory) + (threadIdx.x - warp * Stride) / 32 * Totals;
    block_barrier();
    if (lane == 0) {{
#pragma unroll
        for (int n = 0; n < N; ++n) scratch[n * Warps + warp] = total[n];
    }}
    block_barrier();
    T own[Each], running = identity;
#pragma unroll
    for (int e = 0; e < Each; ++e) {{
        own[e] = running;
        const int at = lane * Each + e;
        running = Combine()(running, at < Totals ? scratch[at] : identity);
    }}
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {{
        const T other = T(__shfl_up_sync(0xffffffffu, running, step));
        if (lane >= step) running = Combine()(other, running);
    }}
    T previous = T(__shfl_up_sync(0xffffffffu, running, 1));
    if (lane == 0) previous = identity;
#pragma unroll
    for (int e = 0; e < Each; ++e) own[e] = Combine()(previous, own[e]);
#pragma unroll
    for (int n = 0; n < N; ++n) {{
        const int at = n * Warps + warp, part = (Warps % Each ? at : warp) % Each;
        T found = own[0];
#pragma unroll
        for (int e = 1; e < Each; ++e) found = part == e ? own[e] : found;
        before[n] = Combine()(T(__shfl_sync(0xffffffffu, found, at / Each)), before[n]);
    }}
}}""",
}
