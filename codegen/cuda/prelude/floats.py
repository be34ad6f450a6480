"""Device functions of narrow floats: those of 8 bits, and float32 operands split into terms.

Conversions to 8 bits round to nearest even, and what rounds above the largest number is infinite,
or NaN where there is no infinity, as ml_dtypes has it; the instructions of sm_89 saturate, so that
what lies beyond is corrected after them.
Fragments are arrays [fragment][register] of float32 bits, their terms [term][fragment][register].
"""

from .math import DEVICE


def _float8(name: str, short: str, form: str, largest: str, over: str) -> dict[str, str]:
    """Of one such type: what rounds beyond `largest` has the bits `over`, and its sign; of devices
    that lack the instruction by the arithmetic of its `form`.
    """
    return {
        f"pack_{name}": f"""
{DEVICE} unsigned short pack_{name}(float low, float high) {{
#if __CUDA_ARCH__ >= 890
    unsigned short bits;  // saturated
    asm("cvt.rn.satfinite.{short}x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
    if (fabsf(low) {largest}) bits = (bits & 0xff80u) | {over}u;
    if (fabsf(high) {largest}) bits = (bits & 0x80ffu) | {over}00u;
    return bits;
#else
    return (unsigned short)(narrow_float8<{form}>(low) | narrow_float8<{form}>(high) << 8);
#endif
}}""",
        f"to_{name}": f"""
{DEVICE} unsigned char to_{name}(float value) {{
    return (unsigned char)pack_{name}(value, 1.0f);
}}""",
        f"round_{name}": f"""
{DEVICE} float round_{name}(float value) {{
    return from_{name}(to_{name}(value));
}}""",
    }


FUNCTIONS: dict[str, str] = {
    "from_float8_e4m3fn": f"""
{DEVICE} float from_float8_e4m3fn(unsigned char bits) {{
#if __CUDA_ARCH__ >= 890
    unsigned pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)bits));
    return from_float16((unsigned short)pair);
#else
    const unsigned low = bits & 0x7fu;
    const unsigned finite = __float_as_uint(
        __uint_as_float(low << 20) * __uint_as_float(247u << 23));
    return __uint_as_float((low < 0x7fu ? finite : 0x7fc00000u) | unsigned(bits & 0x80) << 24);
#endif
}}""",
    "from_float8_e5m2": f"""
{DEVICE} float from_float8_e5m2(unsigned char bits) {{
    return from_float16((unsigned short)(bits << 8));  // the first half of a float16
}}""",
    "narrow_float8": f"""
template <int Mantissa, int Bias, bool Infinite>
{DEVICE} unsigned narrow_float8(float value) {{
    constexpr int Shift = 23 - Mantissa;
    constexpr unsigned Half = (1u << (Shift - 1)) - 1, Offset = unsigned(127 - Bias) << 23;
    constexpr unsigned Magic = unsigned(151 - Bias - Mantissa) << 23;  // has the subnormals' unit
    constexpr unsigned Over = Infinite ? 0x47700000u : 0x43e80001u;    // 61440; just above 464
    const unsigned sign = __float_as_uint(value) >> 24 & 0x80u;
    const unsigned a = __float_as_uint(value) & 0x7fffffffu;
    const float shifted = __uint_as_float(a) + __uint_as_float(Magic);
    unsigned bits = __float_as_uint(shifted) - Magic;
    if (a >= unsigned(128 - Bias) << 23) bits = (a + Half - Offset + (a >> Shift & 1u)) >> Shift;
    if (a >= Over) bits = Infinite ? 0x7cu : 0x7fu;
    if (a > 0x7f800000u) bits = Infinite ? 0x7eu : 0x7fu;
    return bits | sign;
}}""",
    **_float8("float8_e4m3fn", "e4m3", "3, 7, false", "> 464.0f", "0x7f"),
    **_float8("float8_e5m2", "e5m2", "2, 15, true", ">= 61440.0f", "0x7c"),
    "cut_tf32": f"""
{DEVICE} unsigned cut_tf32(float value) {{
    return __float_as_uint(value) & 0xffffe000u;
}}""",
    "pack_bfloat16_cut": f"""
{DEVICE} unsigned pack_bfloat16_cut(float low, float high) {{
    unsigned bits;
    asm("cvt.rz.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}}""",
    "round_tf32_fragments": f"""
template <int Count, int Size>
{DEVICE} void round_tf32_fragments(unsigned (&terms)[1][Count][Size],
                                          const unsigned (&raw)[Count][Size]) {{
#pragma unroll
    for (int n = 0; n < Count * Size; ++n)
        terms[0][n / Size][n % Size] = round_tf32(__uint_as_float(raw[n / Size][n % Size]));
}}""",
    "split_tf32_fragments": f"""
template <int Count, int Size>
{DEVICE} void split_tf32_fragments(unsigned (&terms)[2][Count][Size],
                                          const unsigned (&raw)[Count][Size], float& check) {{
#pragma unroll
    for (int n = 0; n < Count * Size; ++n) {{
        const float value = __uint_as_float(raw[n / Size][n % Size]);
        const unsigned first = round_tf32(value);
        const float rest = value - __uint_as_float(first);
        check += rest;
        terms[0][n / Size][n % Size] = first;
        terms[1][n / Size][n % Size] = cut_tf32(rest);
    }}
}}""",
    "split_tf32_fragments_guarded": f"""
template <int Count, int Size>
{DEVICE} void split_tf32_fragments_guarded(unsigned (&terms)[2][Count][Size],
                                                  const unsigned (&raw)[Count][Size]) {{
#pragma unroll
    for (int n = 0; n < Count * Size; ++n) {{
        const float value = __uint_as_float(raw[n / Size][n % Size]);
        const unsigned nearest = round_tf32(value);
        const bool over = is_infinite(__uint_as_float(nearest));
        const unsigned first = over ? cut_tf32(value) : nearest;
        terms[0][n / Size][n % Size] = first;
        terms[1][n / Size][n % Size] = cut_tf32(value - __uint_as_float(first));
    }}
}}""",
    "round_bfloat16_fragments": f"""
template <int Count, int From, int To>
{DEVICE} void round_bfloat16_fragments(unsigned (&terms)[1][Count][To],
                                              const unsigned (&raw)[Count][From], int part) {{
    constexpr int Rows = From / 2;
#pragma unroll
    for (int n = 0; n < Count * Rows; ++n) {{
        const unsigned* pair = raw[n / Rows] + n % Rows;
        terms[0][n / Rows][part * Rows + n % Rows] =
            pack_bfloat16(__uint_as_float(pair[0]), __uint_as_float(pair[Rows]));
    }}
}}""",
    "split_bfloat16_fragments": f"""
template <int Terms, int Count, int From, int To>
{DEVICE} void split_bfloat16_fragments(unsigned (&terms)[Terms][Count][To],
                                              const unsigned (&raw)[Count][From], int part,
                                              float& check) {{
    constexpr int Rows = From / 2;
#pragma unroll
    for (int n = 0; n < Count * Rows; ++n) {{
        const unsigned* pair = raw[n / Rows] + n % Rows;
        float low = __uint_as_float(pair[0]), high = __uint_as_float(pair[Rows]);
#pragma unroll
        for (int term = 0; term < Terms; ++term) {{
            const unsigned packed = pack_bfloat16_cut(low, high);
            terms[term][n / Rows][part * Rows + n % Rows] = packed;
            low -= __uint_as_float(packed << 16);
            high -= __uint_as_float(packed & 0xffff0000u);
            if (term == 0) check += low + high;
        }}
    }}
}}""",
}
"""By name, as those of `functions.py`."""
