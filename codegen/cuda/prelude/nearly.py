"""Device functions by a GPU's own approximations, as they are or corrected, and what keeps exact
ones from their slow ways.
"""

from .math import DEVICE

FUNCTIONS: dict[str, str] = {
    "power_of_two": f"""
{DEVICE} float power_of_two(float a) {{
    float result;  // relative error 2^-22
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(a));
    return result;
}}""",
    "divide_nearly": f"""
{DEVICE} float divide_nearly(float a, float b) {{
    float result;  // within 2 units in the last place, and without a branch
    asm("div.full.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}}""",
    "reciprocal_nearly": f"""
{DEVICE} float reciprocal_nearly(float a) {{
    float result;  // within a unit in the last place
    asm("rcp.approx.f32 %0, %1;" : "=f"(result) : "f"(a));
    return result;
}}""",
    "exp_nearly": f"""
{DEVICE} float exp_nearly(float a) {{
    float result;  // the product is rounded: 2^-17 where the result is largest
    asm("ex2.approx.f32 %0, %1;" : "=f"(result) : "f"(a * 1.4426950408889634f));
    return result;
}}""",
    "exp_from": f"""
// exp(c a - base), given c log2 e; 0 below 2^-126.
{DEVICE} float exp_from(float a, float rate, float base) {{
    return power_of_two(fmaf(a, rate, -(base * 1.4426950408889634f)));
}}""",
    "quotient": f"""
{DEVICE} float quotient(float a, float b) {{
    const float near = (a == 0.0f ? 1.0f : a) / b;  // three times as slow where it divides zeros
    if (a != 0.0f) return near;
    return fabsf(b) > 0.0f ? a * copysignf(1.0f, b) : a * near;  // 1 / b may be infinite
}}
{DEVICE} double quotient(double a, double b) {{
    return a / b;
}}""",
    "inverse_root_nearly": f"""
{DEVICE} float inverse_root_nearly(float a) {{
    float result;  // within 2 units in the last place
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(result) : "f"(a));
    return result;
}}""",
    "inverse_root": f"""
{DEVICE} float inverse_root(float a) {{
    const float near = inverse_root_nearly(a), off = fmaf(-a * near, near, 1.0f);
    return fabsf(off) < 1.0f ? fmaf(0.5f * near, off, near) : near;
}}
{DEVICE} double inverse_root(double a) {{
    return rsqrt(a);
}}""",
    "reciprocal": f"""
{DEVICE} float reciprocal(float a) {{
    const float near = reciprocal_nearly(a), off = fmaf(-a, near, 1.0f);
    return fabsf(off) < 1.0f ? fmaf(off, near, near) : near;  // as rounded once, without a branch
}}
{DEVICE} double reciprocal(double a) {{
    return 1.0 / a;
}}""",
}
"""By name, as those of `functions.py`."""
