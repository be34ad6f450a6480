"""Device functions of scans over the threads of a block."""

from .math import DEVICE


def _from_lane(name: str, shuffle: str) -> str:
    """A value of another lane, or steps of it, so far before or of that number."""
    return f"""
template <typename T>
{DEVICE} T {name}(T value, int lane) {{
    return T({shuffle}(0xffffffffu, value, lane));
}}
template <typename T>
{DEVICE} Steps<T> {name}(Steps<T> value, int lane) {{
    return {{{name}(value.factor, lane), {name}(value.offset, lane)}};
}}"""


FUNCTIONS: dict[str, str] = {
    # h -> factor * h + offset, one step or several.
    "Steps": f"""
template <typename T>
struct Steps {{
    T factor, offset;
    {DEVICE} void step(T next, T added) {{
        factor = wrapping_multiply(next, factor);
        offset = multiply_add(next, offset, added);
    }}
}};""",
    # The product of the later factors may overflow where each of their steps leaves 0 as it is.
    "Composed": f"""
struct Composed {{
    template <typename T>
    {DEVICE} Steps<T> operator()(Steps<T> earlier, Steps<T> later) const {{
        const T state = multiply_add(later.factor, earlier.offset, later.offset);
        const T factor = wrapping_multiply(earlier.factor, later.factor);
        return {{factor, earlier.offset == T(0) ? later.offset : state}};
    }}
}};""",
    "lane_before": _from_lane("lane_before", "__shfl_up_sync"),
    "lane_value": _from_lane("lane_value", "__shfl_sync"),
    "scan_lanes": f"""
template <int Count, int Stride, typename Combine, typename T>
{DEVICE} void scan_lanes(T& total, T& before, T identity) {{
    const int lane = threadIdx.x % 32, at = lane / Stride % Count;
    T running = total;
#pragma unroll
    for (int step = 1; step < Count; step *= 2) {{
        const T other = lane_before(running, step * Stride);
        if (at >= step) running = Combine()(other, running);
    }}
    const T previous = lane_before(running, Stride);
    before = Combine()(at > 0 ? previous : identity, before);
    total = lane_value(running, lane + (Count - 1 - at) * Stride);
}}""",
    "scan_warps": f"""
template <int Count, int Stride, typename Combine, typename T>
{DEVICE} void scan_warps(T& total, T& before, T identity, void* memory) {{
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
{DEVICE} void scan_totals(T (&total)[N], T (&before)[N], T identity, void* memory) {{
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
        const T other = lane_before(running, step);
        if (lane >= step) running = Combine()(other, running);
    }}
    T previous = lane_before(running, 1);
    if (lane == 0) previous = identity;
#pragma unroll
    for (int e = 0; e < Each; ++e) own[e] = Combine()(previous, own[e]);
#pragma unroll
    for (int n = 0; n < N; ++n) {{
        const int at = n * Warps + warp, part = (Warps % Each ? at : warp) % Each;
        T found = own[0];
#pragma unroll
        for (int e = 1; e < Each; ++e) found = part == e ? own[e] : found;
        before[n] = Combine()(lane_value(found, at / Each), before[n]);
    }}
}}""",
}
