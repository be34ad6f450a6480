"""Device functions that emitted kernels call, as text; a kernel gets those that it names.

No header is needed: conversions of 16-bit floats, asynchronous copies and matrix operations are
PTX. Integer arithmetic wraps and division rounds down, as NumPy's does.
"""

import re
from collections.abc import Sequence

from eqsat.codegen.erfc import LOG2_ERFC

from . import anywhere, atomics, clusters, floats, nearly, reductions, scans, vectors
from .math import DEVICE, LINE_OF_BANKS

_EACH = f"template <typename T>\n{DEVICE} T"


def _horner(variable: str, result: str, coefficients: Sequence[float]) -> str:
    """Statements that add up a float32 polynomial in place."""
    *rest, first = coefficients
    steps = [f"    float {result} = {first!r}f;"]
    steps += [f"    {result} = fmaf({result}, {variable}, {c!r}f);" for c in reversed(rest)]
    return "\n".join(steps)


GIVEN = ".reg .pred p; setp.ne.b32 p, %1, 0; @p ld.global.nc.{0} %0, [%2]; @!p mov.{1} %0, 0;"
LAST_BLOCKS = 2048  # tell the next launch: on an H200 one starts in 1.3 ns, others in 0.65
FUNCTIONS: dict[str, str] = {
    "block_barrier": f"""
{DEVICE} void block_barrier() {{ __syncthreads(); }}""",
    "earlier_launches_done": f"""
// Waits until launches before this one have ended and what they wrote is seen.
{DEVICE} void earlier_launches_done() {{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}}""",
    "next_launch_may_begin": f"""
// The next launch is set up while the last blocks run: those that say so start half as fast.
{DEVICE} void next_launch_may_begin() {{
#if __CUDA_ARCH__ >= 900
    if (gridDim.x - blockIdx.x <= {LAST_BLOCKS})
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}}""",
    "element_or_zero": f"""
// Without a branch, in which one load would wait for another.
template <typename T, typename I>
{DEVICE} T element_or_zero(const T* values, bool present, I place) {{
    const T value = values[present ? place : 0];
    return present ? value : T(0);
}}""",
    "given_or_zero": f"""
// The same of what no thread of the kernel writes: elements some steps apart have one address.
template <typename T, typename I>
{DEVICE} T given_or_zero(const T* values, bool present, I place) {{
    T value;
    if constexpr (sizeof(T) == 8) {{
        unsigned long long bits;
        asm volatile("{{{GIVEN.format("b64", "b64")}}}"
            : "=l"(bits) : "r"(int(present)), "l"(values + place));
        memcpy(&value, &bits, 8);
    }} else if constexpr (sizeof(T) == 4) {{
        unsigned bits;
        asm volatile("{{{GIVEN.format("b32", "b32")}}}"
            : "=r"(bits) : "r"(int(present)), "l"(values + place));
        memcpy(&value, &bits, 4);
    }} else if constexpr (sizeof(T) == 2) {{
        unsigned short bits;
        asm volatile("{{{GIVEN.format("b16", "b16")}}}"
            : "=h"(bits) : "r"(int(present)), "l"(values + place));
        memcpy(&value, &bits, 2);
    }} else {{
        unsigned short bits;
        asm volatile("{{{GIVEN.format("u8", "b16")}}}"
            : "=h"(bits) : "r"(int(present)), "l"(values + place));
        const unsigned char low = bits;
        memcpy(&value, &low, 1);
    }}
    return value;
}}""",
    "hold": f"""
// Values that are there from here on: their loads are not moved to where they are used.
template <typename T>
{DEVICE} void hold_one(T& value) {{}}
template <>
{DEVICE} void hold_one(float& value) {{
    asm volatile("" : "+f"(value));
}}
template <>
{DEVICE} void hold_one(double& value) {{
    asm volatile("" : "+d"(value));
}}
template <>
{DEVICE} void hold_one(int& value) {{
    asm volatile("" : "+r"(value));
}}
template <>
{DEVICE} void hold_one(long long& value) {{
    asm volatile("" : "+l"(value));
}}
template <typename T, int N>
{DEVICE} void hold(T (&values)[N]) {{
#pragma unroll
    for (int n = 0; n < N; ++n) hold_one(values[n]);
}}""",
    "Pack": """
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
    T item[N];
};""",
    "Wrapping": """
template <typename T>
struct Wrapping {
    using type = unsigned;
};
template <>
struct Wrapping<long long> {
    using type = unsigned long long;
};
template <>
struct Wrapping<float> {
    using type = float;
};
template <>
struct Wrapping<double> {
    using type = double;
};""",
    "wrapping_add": f"""
{_EACH} wrapping_add(T a, T b) {{
    using Wide = typename Wrapping<T>::type;
    return T(Wide(a) + Wide(b));
}}""",
    "wrapping_subtract": f"""
{_EACH} wrapping_subtract(T a, T b) {{
    using Wide = typename Wrapping<T>::type;
    return T(Wide(a) - Wide(b));
}}""",
    "wrapping_multiply": f"""
{_EACH} wrapping_multiply(T a, T b) {{
    using Wide = typename Wrapping<T>::type;
    return T(Wide(a) * Wide(b));
}}""",
    "wrapping_negate": f"""
{_EACH} wrapping_negate(T a) {{
    return wrapping_subtract(T(0), a);
}}""",
    "wrapping_abs": f"""
{_EACH} wrapping_abs(T a) {{
    return a < 0 ? wrapping_negate(a) : a;
}}""",
    "multiply_add": f"""
{_EACH} multiply_add(T a, T b, T c) {{
    return wrapping_add(wrapping_multiply(a, b), c);
}}
template <>
{DEVICE} float multiply_add<float>(float a, float b, float c) {{
    return fmaf(a, b, c);
}}
template <>
{DEVICE} double multiply_add<double>(double a, double b, double c) {{
    return fma(a, b, c);
}}""",
    "sign_of": f"""
{_EACH} sign_of(T a) {{
    return a > T(0) ? T(1) : a < T(0) ? T(-1) : a == T(0) ? T(0) : a;
}}""",
    "is_finite": f"""
{DEVICE} bool is_finite(float a) {{
    return fabsf(a) < __int_as_float(0x7f800000);
}}
{DEVICE} bool is_finite(double a) {{
    return fabs(a) < __longlong_as_double(0x7ff0000000000000);
}}""",
    "is_infinite": f"""
{DEVICE} bool is_infinite(float a) {{
    return fabsf(a) == __int_as_float(0x7f800000);
}}
{DEVICE} bool is_infinite(double a) {{
    return fabs(a) == __longlong_as_double(0x7ff0000000000000);
}}""",
    "maximum": f"""
{_EACH} maximum(T a, T b) {{
    return (a >= b || a != a) ? a : b;
}}
template <>
{DEVICE} float maximum<float>(float a, float b) {{
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}}""",
    "minimum": f"""
{_EACH} minimum(T a, T b) {{
    return (a <= b || a != a) ? a : b;
}}
template <>
{DEVICE} float minimum<float>(float a, float b) {{
    float result;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}}""",
    "floor_remainder": f"""
{_EACH} floor_remainder(T a, T b) {{
    if (b == 0 || (b < 0 && T(b + 1) == 0)) return T(0);
    const T rest = T(a % b);
    return rest != 0 && (rest < 0) != (b < 0) ? T(rest + b) : rest;
}}
template <>
{DEVICE} double floor_remainder<double>(double a, double b) {{
    const double rest = fmod(a, b);
    if (b == 0 || rest != rest) return rest;
    if (rest == 0) return copysign(0.0, b);
    return (rest < 0) != (b < 0) ? rest + b : rest;
}}
template <>
{DEVICE} float floor_remainder<float>(float a, float b) {{
    const float rest = fmodf(a, b);
    if (b == 0 || rest != rest) return rest;
    if (rest == 0) return copysignf(0.0f, b);
    return (rest < 0) != (b < 0) ? rest + b : rest;
}}""",
    "floor_divide": f"""
{_EACH} floor_divide(T a, T b) {{
    if (b == 0) return T(0);
    if (b < 0 && T(b + 1) == 0) return T(wrapping_subtract(T(0), a));
    const T quotient = T(a / b);
    return a % b != 0 && (a < 0) != (b < 0) ? T(quotient - 1) : quotient;
}}
template <>
{DEVICE} double floor_divide<double>(double a, double b) {{
    if (b == 0) return a / b;
    const double rest = fmod(a, b);
    double quotient = (a - rest) / b;
    if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
    if (quotient == 0) return copysign(0.0, a / b);
    const double whole = floor(quotient);
    return quotient - whole > 0.5 ? whole + 1 : whole;
}}
template <>
{DEVICE} float floor_divide<float>(float a, float b) {{
    if (b == 0) return a / b;
    const float rest = fmodf(a, b);
    float quotient = (a - rest) / b;
    if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
    if (quotient == 0) return copysignf(0.0f, a / b);
    const float whole = floorf(quotient);
    return quotient - whole > 0.5f ? whole + 1 : whole;
}}""",
    "integer_power": f"""
{_EACH} integer_power(T base, T exponent) {{
    if (exponent < 0) return base == T(-1) ? (exponent & 1 ? T(-1) : T(1)) : T(base == 1);
    T result = 1;
    for (; exponent; exponent = T(exponent >> 1)) {{
        if (exponent & 1) result = wrapping_multiply(result, base);
        base = wrapping_multiply(base, base);
    }}
    return result;
}}""",
    "shift_left": f"""
{_EACH} shift_left(T a, T count) {{
    using Wide = typename Wrapping<T>::type;
    return count >= 0 && count < T(8 * sizeof(T)) ? T(Wide(a) << count) : T(0);
}}""",
    "shift_right": f"""
{_EACH} shift_right(T a, T count) {{
    return count >= 0 && count < T(8 * sizeof(T)) ? T(a >> count) : a < 0 ? T(-1) : T(0);
}}""",
    "exp_difference": f"""
{DEVICE} float exp_difference(float a, float b) {{
    const float base = b == __int_as_float(0xff800000) ? 0.0f : b;  // the same for a whole row
    return power_of_two((a - base) * 1.4426950408889634f);
}}
{DEVICE} float exp_difference(float a, float b, float rate) {{
    const float base = b == __int_as_float(0xff800000) ? 0.0f : b;
    const float scale = rate * 1.4426950408889634f;
    return power_of_two(fmaf(a, scale, -(base * scale)));
}}
{DEVICE} double exp_difference(double a, double b, double rate) {{
    const double base = b == __longlong_as_double(0xfff0000000000000) ? 0.0 : b;
    return exp((a - base) * rate);
}}
{DEVICE} double exp_difference(double a, double b) {{
    const double lowest = __longlong_as_double(0xfff0000000000000);
    const double result = exp(a - b);
    return a == lowest && b == lowest ? 0.0 : result;
}}""",
    "one_plus_erf": f"""
{DEVICE} float one_plus_erf(float a) {{
    const float t = fabsf(a);
{_horner("t", "power", LOG2_ERFC)}
    const float rest = power_of_two(power * t);  // 1 - erf(t)
    return a >= 0.0f ? 2.0f - rest : rest;
}}
{DEVICE} double one_plus_erf(double a) {{
    return erfc(-a);
}}""",
    "from_bfloat16": f"""
{DEVICE} float from_bfloat16(unsigned short bits) {{
    return __int_as_float(int(bits) << 16);
}}""",
    "to_bfloat16": f"""
{DEVICE} unsigned short to_bfloat16(float value) {{
    unsigned bits;  // in pairs: several times the rate of one; beside 0 it would be merged
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(1.0f), "f"(value));
    return (unsigned short)bits;
}}""",
    "round_bfloat16": f"""
{DEVICE} float round_bfloat16(float value) {{
    return from_bfloat16(to_bfloat16(value));
}}""",
    "from_float16": f"""
{DEVICE} float from_float16(unsigned short bits) {{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}}""",
    "to_float16": f"""
{DEVICE} unsigned short to_float16(float value) {{
    unsigned bits;  // in pairs: several times the rate of one; beside 0 it would be merged
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(1.0f), "f"(value));
    return (unsigned short)bits;
}}
{DEVICE} unsigned short to_float16(double value) {{
    unsigned short bits;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(bits) : "d"(value));
    return bits;
}}""",
    "round_float16": f"""
{_EACH} round_float16(T value) = delete;
{DEVICE} float round_float16(float value) {{
    return from_float16(to_float16(value));
}}
{DEVICE} float round_float16(double value) {{
    return from_float16(to_float16(value));
}}""",
    "half_of": f"""
{DEVICE} unsigned short half_of(unsigned pair, int number) {{
    return (unsigned short)(pair >> 16 * number);
}}""",
    "pack_bfloat16": f"""
{DEVICE} unsigned pack_bfloat16(float low, float high) {{
    unsigned bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}}""",
    "pack_float16": f"""
{DEVICE} unsigned pack_float16(float low, float high) {{
    unsigned bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}}""",
    "round_tf32": f"""
{DEVICE} unsigned round_tf32(float value) {{
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return value == value ? bits : 0x7fffffffu;  // the lowest bits of a NaN may be all it has
}}""",
    "round_fragment": f"""
template <int Count>
{DEVICE} void round_fragment(unsigned* fragment) {{
#pragma unroll
    for (int i = 0; i < Count; ++i) fragment[i] = round_tf32(__uint_as_float(fragment[i]));
}}""",
    "Sum": f"""
struct Sum {{
    template <typename T>
    {DEVICE} T operator()(T a, T b) const {{
        return wrapping_add(a, b);
    }}
}};""",
    "Product": f"""
struct Product {{
    template <typename T>
    {DEVICE} T operator()(T a, T b) const {{
        return wrapping_multiply(a, b);
    }}
}};""",
    "Maximum": f"""
struct Maximum {{
    template <typename T>
    {DEVICE} T operator()(T a, T b) const {{
        return maximum(a, b);
    }}
}};""",
    "Minimum": f"""
struct Minimum {{
    template <typename T>
    {DEVICE} T operator()(T a, T b) const {{
        return minimum(a, b);
    }}
}};""",
    "permuted": f"""
template <int Size>
{DEVICE} int permuted(int place) {{
    const unsigned p = place;
    return int(p ^ (p / ({LINE_OF_BANKS} / Size) % 8 * (16 / Size)));
}}""",
    "copy_async": f"""
template <int Bytes, bool Near = false>
{DEVICE} void copy_async(void* target, const void* source, bool exists) {{
    const unsigned to = unsigned(__cvta_generic_to_shared(target));
    const int size = exists ? Bytes : 0;
    if (Bytes == 16 && !Near)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(source),
                     "r"(size) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(source),
                     "r"(size), "n"(Bytes) : "memory");
}}""",
    "commit_copies": f"""
{DEVICE} void commit_copies() {{
    asm volatile("cp.async.commit_group;" ::: "memory");
}}""",
    "wait_copies": f"""
template <int Pending>
{DEVICE} void wait_copies() {{
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}}""",
}


def _load_matrix(count: int, trans: bool) -> str:
    name = load_matrix_name(count, trans)
    outputs = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"=r"(fragment[{i}])' for i in range(count))
    modifier = ".trans" if trans else ""
    instruction = f"ldmatrix.sync.aligned.m8n8.x{count}{modifier}.shared.b16"
    return f"""
{DEVICE} void {name}(unsigned* fragment, const void* row) {{
    const unsigned from = unsigned(__cvta_generic_to_shared(row));
    asm volatile("{instruction} {{{outputs}}}, [%{count}];"
                 : {operands}
                 : "r"(from)
                 : "memory");
}}"""


def load_matrix_name(count: int, trans: bool) -> str:
    """The device function around ldmatrix of `count` 8 x 8 matrices."""
    return f"load_matrix_x{count}{'_transposed' if trans else ''}"


FUNCTIONS.update(anywhere.FUNCTIONS)
FUNCTIONS.update(atomics.FUNCTIONS)
FUNCTIONS.update(clusters.FUNCTIONS)
FUNCTIONS.update(floats.FUNCTIONS)
FUNCTIONS.update(nearly.FUNCTIONS)
FUNCTIONS.update(reductions.FUNCTIONS)
FUNCTIONS.update(scans.FUNCTIONS)
FUNCTIONS.update(vectors.FUNCTIONS)
FUNCTIONS.update(
    {load_matrix_name(n, trans): _load_matrix(n, trans) for n in (1, 2, 4) for trans in (0, 1)}
)

_WORD = re.compile(r"[A-Za-z_]\w*")


def select(text: str, extra: dict[str, str]) -> str:
    """The device functions that `text` names, those they name in turn, each after its own needs."""
    table = {**FUNCTIONS, **extra}
    chosen: dict[str, str] = {}

    def visit(body: str) -> None:
        for word in dict.fromkeys(_WORD.findall(body)):
            if word in table and word not in chosen:
                chosen[word] = ""  # marks it as begun: a function names itself
                visit(table[word])
                del chosen[word]
                chosen[word] = table[word].strip()

    visit(text)
    return "\n\n".join(chosen.values())
