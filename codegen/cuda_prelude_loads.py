"""Device functions that load from memory at the place where they are written.

A compiler may put off a load into registers until just before its use; these stay where they are
among barriers. A kernel that reads by them writes none of it: else barriers would wait for them.
Source: PTX ISA, ld.global.nc.
"""

_DEVICE = "__device__ __forceinline__"


def _load(words: int, kind: str) -> str:
    """The assembly of a load of so many 32-bit words, or of a shorter element."""
    registers = [f"%{n}" for n in range(words)]
    target = registers[0] if words == 1 else f"{{{{{', '.join(registers)}}}}}"
    zeros = " ".join(f"mov.u32 {register}, 0;" for register in registers)
    outputs = ", ".join(f'"=&r"(words[{n}])' for n in range(words))
    return f"""asm volatile("{{{{ .reg .pred p; setp.ne.u32 p, %{words + 1}, 0; {zeros} "
                     "@p ld.global.nc.{kind} {target}, [%{words}]; }}}}"
                     : {outputs}
                     : "l"(place), "r"(unsigned(present))
                     : "memory");"""


FUNCTIONS: dict[str, str] = {
    "load_now": f"""
// Zero where it is not present: without a branch, in which one load would wait for another.
template <typename T>
{_DEVICE} T load_now(const T* place, bool present) {{
    alignas(16) unsigned words[(sizeof(T) + 3) / 4];
    if constexpr (sizeof(T) == 16)
        {_load(4, "v4.u32")}
    else if constexpr (sizeof(T) == 8)
        {_load(2, "v2.u32")}
    else if constexpr (sizeof(T) == 4)
        {_load(1, "u32")}
    else if constexpr (sizeof(T) == 2)
        {_load(1, "u16")}
    else
        {_load(1, "u8")}
    T value;
    memcpy(&value, words, sizeof(T));
    return value;
}}""".replace("{{", "{").replace("}}", "}"),
}
