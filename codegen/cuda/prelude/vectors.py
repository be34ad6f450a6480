"""Device functions that widen vectors of short elements to float32, several by one instruction.

A vector is words of 32 bits. An integer of 8 bits becomes the lowest byte of 2^23 + u, u being it
or it plus 128, and what that is too much is taken off: at the full rate, where a conversion has a
quarter of it.
"""

from .math import DEVICE


def _unpacked(name: str, each: str) -> str:
    """Of so many words; `each` widens those of one `word`, from `to` on."""
    return f"""
template <int Words, int Count>
{DEVICE} void unpack_{name}(const Pack<unsigned, Words>& from, float (&values)[Count]) {{
#pragma unroll
    for (int n = 0; n < Words; ++n) {{
        const unsigned word = from.item[n];
        float* const to = values + n * (Count / Words);
{each}
    }}
}}"""


def _byte(bits: str, less: str) -> str:
    return f"""#pragma unroll
        for (int byte = 0; byte < 4; ++byte)
            to[byte] =
                __uint_as_float(__byte_perm({bits}, 0x4b000000u, 0x7540u + byte)) - {less};"""


_HALVES = """        to[{0}] = from_float16((unsigned short){1});
        to[{0} + 1] = from_float16((unsigned short)({1} >> 16));"""

FUNCTIONS: dict[str, str] = {
    "unpack_bfloat16": _unpacked(
        "bfloat16",
        "        to[0] = __uint_as_float(word << 16), to[1] = __uint_as_float(word & 0xffff0000u);",
    ),
    "unpack_float16": _unpacked("float16", _HALVES.format("0", "word")),
    "unpack_float8_e4m3fn": _unpacked(
        "float8_e4m3fn",
        f"""#pragma unroll
        for (int pair = 0; pair < 4; pair += 2) {{
            unsigned halves;
            asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves)
                : "h"((unsigned short)(word >> pair * 8)));
    {_HALVES.format("pair", "halves")}
        }}""",
    ),
    "unpack_float8_e5m2": _unpacked(
        "float8_e5m2",  # the first half of a float16
        f"""#pragma unroll
        for (int pair = 0; pair < 4; pair += 2) {{
            const unsigned halves = __byte_perm(word, 0, pair ? 0x3424 : 0x1404);
    {_HALVES.format("pair", "halves")}
        }}""",
    ),
    "unpack_int8": _unpacked("int8", _byte("word ^ 0x80808080u", "8388736.0f")),
    "unpack_uint8": _unpacked("uint8", _byte("word", "8388608.0f")),
}
