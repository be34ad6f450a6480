"""Device functions of narrow floats: those of 8 bits, and float32 operands split into terms.

Conversions to 8 bits round to nearest even, and what rounds above the largest number is infinite,
or NaN where there is no infinity, as ml_dtypes has it; the instructions of sm_89 saturate.
Fragments are arrays [fragment][register] of float32 bits, their terms [term][fragment][register].
"""

_DEVICE = "__device__ __forceinline__"


def _float8(name: str, mantissa: int, bias: int, infinite: bool) -> dict[str, str]:
    form = f"{mantissa}, {bias}, {str(infinite).lower()}"
    return {
        f"from_{name}": f"""
{_DEVICE} float from_{name}(unsigned char bits) {{
    return widen_float8<{form}>(bits);
}}""",
        f"to_{name}": f"""
{_DEVICE} unsigned char to_{name}(float value) {{
    return narrow_float8<{form}>(value);
}}""",
        f"round_{name}": f"""
{_DEVICE} float round_{name}(float value) {{
    return from_{name}(to_{name}(value));
}}""",
    }


FUNCTIONS: dict[str, str] = {
    "widen_float8": f"""
template <int Mantissa, int Bias, bool Infinite>
{_DEVICE} float widen_float8(unsigned char bits) {{
    const unsigned low = bits & 0x7fu, moved = low << (23 - Mantissa);
    const unsigned finite = __float_as_uint(
        __uint_as_float(moved) * __uint_as_float(unsigned(254 - Bias) << 23));
    const unsigned special = Infinite ? moved | 0x7f800000u : 0x7fc00000u;
    const bool ordinary = low < (Infinite ? 0x1fu << Mantissa : 0x7fu);
    return __uint_as_float((ordinary ? finite : special) | unsigned(bits & 0x80) << 24);
}}""",
    "narrow_float8": f"""
template <int Mantissa, int Bias, bool Infinite>
{_DEVICE} unsigned char narrow_float8(float value) {{
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
    return (unsigned char)(bits | sign);
}}""",
    **_float8("float8_e4m3fn", 3, 7, False),
    **_float8("float8_e5m2", 2, 15, True),
    "cut_tf32": f"""
{_DEVICE} unsigned cut_tf32(float value) {{
    return __float_as_uint(value) & 0xffffe000u;
}}""",
    "pack_bfloat16_cut": f"""
{_DEVICE} unsigned pack_bfloat16_cut(float low, float high) {{
    unsigned bits;
    asm("cvt.rz.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}}""",
    "round_tf32_fragments": f"""
template <int Count, int Size>
{_DEVICE} void round_tf32_fragments(unsigned (&terms)[1][Count][Size],
                                          const unsigned (&raw)[Count][Size]) {{
#pragma unroll
    for (int n = 0; n < Count * Size; ++n)
        terms[0][n / Size][n % Size] = round_tf32(__uint_as_float(raw[n / Size][n % Size]));
}}""",
    "split_tf32_fragments": f"""
template <int Count, int Size>
{_DEVICE} void split_tf32_fragments(unsigned (&terms)[2][Count][Size],
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
{_DEVICE} void split_tf32_fragments_guarded(unsigned (&terms)[2][Count][Size],
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
{_DEVICE} void round_bfloat16_fragments(unsigned (&terms)[1][Count][To],
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
{_DEVICE} void split_bfloat16_fragments(unsigned (&terms)[Terms][Count][To],
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
"""By name, as those of `cuda_prelude`."""
