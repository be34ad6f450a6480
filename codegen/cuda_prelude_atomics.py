"""Device functions that combine a value with what lies in memory, where other threads do too.

`atomicAdd` of a float32 flushes subnormal numbers in device memory; extremes of floats are
exchanged until no other thread came between, a NaN staying.
"""

_DEVICE = "__device__ __forceinline__"


def _combine_extreme(monoid: str, word: str) -> dict[str, str]:
    name = f"combine_{monoid}"
    text = f"""
template <typename T>
{_DEVICE} void {name}(T* target, T value) {{
    T seen = *static_cast<volatile T*>(target);
    while (!exchange_bits(target, seen, {monoid}imum(seen, value))) {{}}
}}
template <>
{_DEVICE} void {name}<int>(int* target, int value) {{
    atomic{word}(target, value);
}}"""
    return {name: text}


FUNCTIONS: dict[str, str] = {
    "combine_sum": f"""
template <typename T>
{_DEVICE} void combine_sum(T* target, T value) {{
    atomicAdd(target, value);
}}
template <>
{_DEVICE} void combine_sum<long long>(long long* target, long long value) {{
    using Word = unsigned long long;
    atomicAdd(reinterpret_cast<Word*>(target), Word(value));
}}""",
    "combine_sum_2": f"""
{_DEVICE} void combine_sum_2(float* target, float a, float b) {{
#if __CUDA_ARCH__ >= 900
    atomicAdd(reinterpret_cast<float2*>(target), make_float2(a, b));
#else
    atomicAdd(target, a);
    atomicAdd(target + 1, b);
#endif
}}""",
    "combine_sum_4": f"""
{_DEVICE} void combine_sum_4(float* target, float a, float b, float c, float d) {{
#if __CUDA_ARCH__ >= 900
    atomicAdd(reinterpret_cast<float4*>(target), make_float4(a, b, c, d));
#else
    combine_sum_2(target, a, b);
    combine_sum_2(target + 2, c, d);
#endif
}}""",
    "combine_sum_words": f"""
{_DEVICE} void combine_sum_words(long long* target, long long value) {{
    unsigned* const words = reinterpret_cast<unsigned*>(target);  // the low one first
    const unsigned low = unsigned(value), before = atomicAdd(words, low);
    const unsigned high = unsigned(value >> 32) + (before + low < before);
    if (high) atomicAdd(words + 1, high);
}}""",
    "exchange_bits": f"""
{_DEVICE} bool exchange_bits(float* target, float& seen, float next) {{
    const int old = __float_as_int(seen);
    if (old == __float_as_int(next)) return true;
    const int found = atomicCAS(reinterpret_cast<int*>(target), old, __float_as_int(next));
    seen = __int_as_float(found);
    return found == old;
}}
{_DEVICE} bool exchange_bits(double* target, double& seen, double next) {{
    using Word = unsigned long long;
    const Word old = __double_as_longlong(seen), word = __double_as_longlong(next);
    if (old == word) return true;
    const Word found = atomicCAS(reinterpret_cast<Word*>(target), old, word);
    seen = __longlong_as_double((long long)(found));
    return found == old;
}}""",
    **_combine_extreme("max", "Max"),
    **_combine_extreme("min", "Min"),
}
