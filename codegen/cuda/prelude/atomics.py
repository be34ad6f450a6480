"""Device functions that combine a value with what lies in memory, where other threads do too.

`atomicAdd` of a float32 flushes subnormal numbers in device memory. Floats are ordered as integers
of their bits are, positive ones as signed and negative ones, the other way, as unsigned; a NaN is
made the last of either, so that it stays.
"""

from .math import DEVICE


def _combine_extreme(monoid: str, positive: str, negative: str) -> dict[str, str]:
    """`positive` and `negative`: by what floats of either sign are combined, as signed and as
    unsigned integers.
    """
    sign = int(monoid == "max")  # all bits of a NaN are set, but this one for maxima
    name = f"combine_{monoid}"
    text = f"""
template <typename T>
{DEVICE} void {name}(T* target, T value) {{
    atomic{positive}(target, value);
}}
template <>
{DEVICE} void {name}<float>(float* target, float value) {{
    const int bits = value == value ? __float_as_int(value) : int(~0u >> {sign});
    if (bits >= 0) atomic{positive}(reinterpret_cast<int*>(target), bits);
    else atomic{negative}(reinterpret_cast<unsigned*>(target), unsigned(bits));
}}
template <>
{DEVICE} void {name}<double>(double* target, double value) {{
    using Word = unsigned long long;
    const Word none = ~0ull >> {sign};
    const long long bits = (long long)(value == value ? Word(__double_as_longlong(value)) : none);
    if (bits >= 0) atomic{positive}(reinterpret_cast<long long*>(target), bits);
    else atomic{negative}(reinterpret_cast<Word*>(target), Word(bits));
}}"""
    return {name: text}


FUNCTIONS: dict[str, str] = {
    "combine_sum": f"""
template <typename T>
{DEVICE} void combine_sum(T* target, T value) {{
    atomicAdd(target, value);
}}
template <>
{DEVICE} void combine_sum<long long>(long long* target, long long value) {{
    using Word = unsigned long long;
    atomicAdd(reinterpret_cast<Word*>(target), Word(value));
}}""",
    "combine_sum_2": f"""
{DEVICE} void combine_sum_2(float* target, float a, float b) {{
#if __CUDA_ARCH__ >= 900
    atomicAdd(reinterpret_cast<float2*>(target), make_float2(a, b));
#else
    atomicAdd(target, a);
    atomicAdd(target + 1, b);
#endif
}}""",
    "combine_sum_4": f"""
{DEVICE} void combine_sum_4(float* target, float a, float b, float c, float d) {{
#if __CUDA_ARCH__ >= 900
    atomicAdd(reinterpret_cast<float4*>(target), make_float4(a, b, c, d));
#else
    combine_sum_2(target, a, b);
    combine_sum_2(target + 2, c, d);
#endif
}}""",
    "combine_sum_words": f"""
{DEVICE} void combine_sum_words(long long* target, long long value) {{
    unsigned* const words = reinterpret_cast<unsigned*>(target);  // the low one first
    const unsigned low = unsigned(value), before = atomicAdd(words, low);
    const unsigned high = unsigned(value >> 32) + (before + low < before);
    if (high) atomicAdd(words + 1, high);
}}""",
    **_combine_extreme("max", "Max", "Min"),
    **_combine_extreme("min", "Min", "Max"),
}
