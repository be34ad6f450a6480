"""Elementary functions for generated Numba loops, written so that LLVM vectorises the loop.

FUNCTIONS maps (op name, dtype name) to a function callable from nopython code; each also has a
name of its own, as in `from eqsat.codegen.cpu.math import exp_f32`. NaN, inf and signed zero
follow NumPy. Those with a body here are branch-free; the others call libm.

Largest errors seen, in ulp: erf, exp, exp2, log, log2 1.1; log1p, tanh, cosh, rsqrt 1.5; expm1 1.7
in float32 and 2.3 in float64; acos 1.6, atan 1.8, atan2 2, asin 2.3; sinh 2.5; float32 sin, cos,
tan (for any x) and pow 0.6.

Every polynomial is a Remez fit in 50-digit arithmetic; a comment above it gives the function, the
interval, and the largest relative error of the function built from it (half an ulp is 6.0e-8 in
float32, 1.1e-16 in float64). Schemes: Muller, "Elementary Functions", 3rd ed., ch. 3, 5 and 11;
the logarithms follow FreeBSD's e_log.c and k_log.h.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from eqsat.codegen.erfc import LOG2_ERFC

from . import arcs
from .bits import (
    FLOAT32,
    FLOAT64,
    FORMATS,
    Value,
    call,
    elementwise,
    fma,
    horner,
    lookup,
    scalar_intrinsic,
    select,
)
from .coefficients import COS, ERF_FAR, ERF_NEAR, EXP, LOG, SIN, TANH

_LN2 = math.log(2.0)
_LOG2E = 1 / _LN2

# ln 2 = high + low; high has enough trailing zeros that k * high is exact for every exponent k.
_LN2_SPLIT = {
    "float32": (0.693359375, -2.1219444005469058e-4),
    "float64": (6.93147180369123816490e-01, 1.90821492927058770002e-10),
}

# 1 / ln 2 = high + low; high has enough trailing zeros for an exact product with a cut mantissa.
_LOG2E_SPLIT = {
    "float32": (1.4428710938, -1.7605285393e-4),
    "float64": (1.44269504072144627571e00, 1.67517131648865118353e-10),
}


def _reduce(x: Value) -> tuple[Value, Value]:
    """(r, t): x = r + k ln2 with |r| <= ln2 / 2, and t = magic + k."""
    high, low = _LN2_SPLIT[x.format.name]
    t = fma(x, _LOG2E, x.format.round_magic)
    k = t - x.format.round_magic
    return fma(k, -low, fma(k, -high, x)), t


def _expm1_near(r: Value) -> Value:
    """e^r - 1 for |r| <= ln2 / 2."""
    return fma(r * r, horner(r, EXP[r.format.name]), r)


def _power_of_two(t: Value, shift: int = 0) -> Value:
    """2^(k + shift) for t = magic + k, where that is a normal number."""
    f = t.format
    offset = f.bias + shift - f.bits_of(f.round_magic)
    return ((t.bits() + offset % 2**f.width) << f.mantissa).as_float()


def _scale(p: Value, t: Value, shift: int) -> Value:
    """p * 2^(k + shift) for t = magic + k; two factors, so that it may overflow or underflow."""
    f = t.format
    exponents = t.bits() + (2 * f.bias + shift - f.bits_of(f.round_magic)) % 2**f.width
    half = exponents >> 1
    return p * (half << f.mantissa).as_float() * ((exponents - half) << f.mantissa).as_float()


def _at_most(x: Value, bound: float) -> Value:
    """min(x, bound), NaN kept."""
    return select(x > bound, bound, x)


def _at_least(x: Value, bound: float) -> Value:
    """max(x, bound), NaN kept."""
    return select(x < bound, bound, x)


def _copysign(x: Value, y: Value) -> Value:
    return call("copysign", x, y)


def _abs(x: Value) -> Value:
    return call("fabs", x)


# (least, greatest): beyond them e^x rounds to 0 and to inf, and 2^x likewise.
_EXP_RANGE = {"float32": (-104.0, 89.0), "float64": (-746.0, 710.0)}
_EXP2_RANGE = {"float32": (-151.0, 129.0), "float64": (-1076.0, 1025.0)}


def _exp(x: Value, shift: int = 0) -> Value:
    """e^x * 2^shift."""
    least, greatest = _EXP_RANGE[x.format.name]
    # Far below the range the product is cut out rather than left to underflow: masked attention
    # takes e^-inf often, and some processors are slow on underflow.
    zero = x < least
    r, t = _reduce(_at_most(select(zero, 0.0, x), greatest - shift))
    return select(zero, 0.0, _scale(_expm1_near(r) + 1.0, t, shift))


def _exp2(x: Value) -> Value:
    least, greatest = _EXP2_RANGE[x.format.name]
    zero = x < least
    x = _at_most(select(zero, 0.0, x), greatest)
    t = x + x.format.round_magic
    r = (x - (t - x.format.round_magic)) * _LN2
    return select(zero, 0.0, _scale(_expm1_near(r) + 1.0, t, 0))


# Above it, tanh(x / 2) rounds to 1; below it, e^x - 1 rounds to -1.
_TANH_GREATEST = {"float32": 20.0, "float64": 40.0}
_EXPM1_LEAST = {"float32": -20.0, "float64": -40.0}


def _quarter_expm1(x: Value) -> Value:
    """(e^x - 1) / 4 = h p + (h - 1/4) with h = 2^(k - 2), p = e^r - 1."""
    name = x.format.name
    # Half above the range: sinh is finite up to log(2 * greatest float) = 89.42 and 710.48.
    r, t = _reduce(_at_least(_at_most(x, _EXP_RANGE[name][1] + 0.5), _EXPM1_LEAST[name]))
    h = _power_of_two(t, -2)
    return fma(h, _expm1_near(r), h - 0.25)


def _where_tiny(x: Value, y: Value) -> Value:
    """x where |x| is so small that f(x) = x + O(x^2) rounds to x, else y; keeps -0."""
    return select(_abs(x) < 2.0 ** -(x.format.mantissa + 4), x, y)


def _expm1(x: Value) -> Value:
    return _where_tiny(x, _quarter_expm1(x) * 4.0)


def _sinh(x: Value) -> Value:
    """With t = e^|x| - 1: sinh|x| = (t + t / (t + 1)) / 2."""
    quarter = _quarter_expm1(_abs(x))
    half = quarter * 2.0  # the one product that may overflow, as sinh does
    return _where_tiny(x, _copysign(half + quarter / (half + 0.5), x))


def _cosh(x: Value) -> Value:
    """With h = e^|x| / 2: cosh x = h + 1 / (4 h)."""
    h = _exp(_abs(x), -1)
    return h + 0.25 / h


def _tanh(x: Value) -> Value:
    """With a = |x|, z = a^2: tanh a = a (1 + z near(z)) below 0.55, else 1 - 2 / (1 + e^(2a))."""
    name = x.format.name
    a = _abs(x)
    r, t = _reduce(_at_most(a * 2.0, _TANH_GREATEST[name]))
    power = _power_of_two(t)
    far = 1.0 - 2.0 / (fma(power, _expm1_near(r), power) + 1.0)
    z = a * a
    near = fma(a * z, horner(z, TANH[name]), a)
    return _copysign(select(a < 0.55, near, far), x)


def _split(x: Value) -> tuple[Value, Value]:
    """(m, k): x = m 2^k with m in [sqrt(1/2), sqrt(2)), for x normal and positive."""
    f = x.format
    root, one = f.bits_of(math.sqrt(0.5)), f.bits_of(1.0)
    u = x.bits() + (one - root)
    # The exponent field as the low mantissa bits of 2^mantissa is that number plus the field.
    k = ((u >> f.mantissa) | f.bits_of(2.0**f.mantissa)).as_float() - (2.0**f.mantissa + f.bias)
    return ((u & (2**f.mantissa - 1)) + root).as_float(), k


def _split_positive(x: Value) -> tuple[Value, Value]:
    """The split of any x > 0: subnormals are scaled up first."""
    f = x.format
    subnormal = x < 2.0 ** (1 - f.bias)
    m, k = _split(select(subnormal, x * 2.0 ** (f.mantissa + 1), x))
    return m, select(subnormal, k - (f.mantissa + 1.0), k)


def _log_terms(f: Value) -> tuple[Value, Value]:
    """(h, w) with log(1 + f) = f - (h - w), h = f^2 / 2, for 1 + f in [sqrt(1/2), sqrt(2)]."""
    s = f / (f + 2.0)
    z = s * s
    h = f * f * 0.5
    return h, s * fma(z, horner(z, LOG[f.format.name]), h)


def _log_of(f: Value, k: Value) -> Value:
    """log(1 + f) + k ln2, the small terms first."""
    high, low = _LN2_SPLIT[f.format.name]
    h, w = _log_terms(f)
    return fma(k, high, f - (h - fma(k, low, w)))


def _log_specials(x: Value, y: Value) -> Value:
    """y for finite x > 0, else the logarithm's value at x: -inf, inf or NaN."""
    other = select(x.equals(0.0), x.constant(-math.inf), math.nan)
    return select(x > 0.0, select(x < math.inf, y, math.inf), other)


def _log(x: Value) -> Value:
    m, k = _split_positive(x)
    return _log_specials(x, _log_of(m - 1.0, k))


def _log2(x: Value) -> Value:
    """k + (f - h + w) / ln2, with f - h cut short so that its product by `high` is exact."""
    high, low = _LOG2E_SPLIT[x.format.name]
    m, k = _split_positive(x)
    f = m - 1.0
    h, w = _log_terms(f)
    cut = (f - h).bits() & (-(2 ** (12 if x.format is FLOAT32 else 32)) % 2**x.format.width)
    a = cut.as_float()
    b = f - a - h + w
    tail = fma(a + b, low, b * high)
    # |k| >= |a * high| or k = 0, so the error of the sum is exact (Dekker).
    total = k + a * high
    return _log_specials(x, total + (k - total + a * high + tail))


def _log1p(x: Value) -> Value:
    """log(u) for u + c = 1 + x exactly: 1 + x = 2^k (m + c 2^-k), u = 2^k m."""
    u = x + 1.0
    v = u - 1.0
    c = (1.0 - (u - v)) + (x - v)
    m, k = _split(u)
    # c 2^-k is below half an ulp of m beyond this bound, and 2^-k might not be normal.
    power = _power_of_two(k.format.round_magic - k)
    f = (m - 1.0) + select(u < 2.0 ** (x.format.mantissa + 2), c * power, 0.0)
    return _where_tiny(x, _log_specials(u, _log_of(f, k)))


def _erf(x: Value) -> Value:
    """With a = |x|: erf a = a (1 + near(a^2)) below `start`, 1 - e^far(a) from there on."""
    name = x.format.name
    start, end, far = ERF_FAR[name]
    a = _abs(x)
    r, t = _reduce(horner(_at_most(a, end) - start, far))
    power = _power_of_two(t)
    beyond = (1.0 - power) - power * _expm1_near(r)
    near = fma(a, horner(a * a, ERF_NEAR[name]), a)
    return _copysign(select(a < start, near, beyond), x)


def _one_plus_erf(x: Value) -> Value:
    """1 - erf t = 2^(t p(t)) for t = |x|, in one piece: no digit of the sum is lost below zero."""
    t = _abs(x)
    power = horner(t, LOG2_ERFC) * t
    near = power + x.format.round_magic
    r = (power - (near - x.format.round_magic)) * _LN2
    scale = _power_of_two(near)
    rest = select(power < 1.0 - x.format.bias, 0.0, fma(_expm1_near(r), scale, scale))
    return select(x < 0.0, rest, 2.0 - rest)


def _pi(bits: int) -> int:
    """floor(pi * 2^bits), nearly: Machin's 16 atan(1/5) - 4 atan(1/239)."""

    def arctangent(n: int) -> int:
        term = total = (1 << bits) // n
        i, sign = 3, -1
        while term:
            term //= n * n
            total += sign * (term // i)
            i, sign = i + 2, -sign
        return total

    return 16 * arctangent(5) - 4 * arctangent(239)


def _quarter_turns() -> tuple[tuple[float, ...], ...]:
    """Three tables by the exponent field e of a float32 x; their sum T has x T = x 2/pi (mod 4).

    T 2^q = (2^q 2/pi) mod 4 with 2^q the unit of x, so x / 2^q is an integer (Payne, Hanek). The
    first two hold 29 bits each: their products by the 24 bits of x are exact in float64. The sum
    is off by at most 2^-110 T. An infinite or NaN x gets NaN.
    """
    precision = 400
    two_over_pi = (1 << (2 * precision + 1)) // _pi(precision)
    rows = []
    for field in range(255):
        unit = max(field, 1) - 150
        rest = two_over_pi % (1 << (precision + 2 - unit)) if unit > 0 else two_over_pi
        row = []
        for bits in (29, 29, 53):
            drop = max(rest.bit_length() - bits, 0)
            piece = rest >> drop << drop
            row.append(float(Fraction(piece, 1 << precision)))
            rest -= piece
        rows.append(tuple(row))
    return tuple(zip(*rows, (math.nan,) * 3, strict=True))


_TURNS = _quarter_turns()


def _quadrant(x: Value) -> tuple[Value, Value, Value]:
    """(q, sin r, cos r) with x = q pi/2 + r (mod 2 pi), |r| <= pi/4, for any float32 x."""
    field = (x.bits() >> 23) & 0xFF
    x = x.resized(64)
    a, b, c = (x * lookup(f"quarter_turns_{i}", table, field) for i, table in enumerate(_TURNS))
    t = (a + b) + FLOAT64.round_magic
    r = ((a - (t - FLOAT64.round_magic)) + b + c) * (math.pi / 2)
    z = r * r
    sine = r * fma(z, horner(z, SIN), 1.0)
    cosine = fma(z * z, horner(z, COS), fma(z, -0.5, 1.0))
    return t.bits(), sine, cosine


def _turn(q: Value, even: Value, odd: Value) -> Value:
    """even, odd, -even, -odd for q = 0, 1, 2, 3 (mod 4), in float32."""
    chosen = select((q & 1).equals(0), even, odd)
    return (chosen.bits() ^ ((q & 2) << 62)).as_float().resized(32)


def _sin(x: Value) -> Value:
    q, sine, cosine = _quadrant(x)
    return _turn(q, sine, cosine)


def _cos(x: Value) -> Value:
    q, sine, cosine = _quadrant(x)
    return _turn(q + 1, sine, cosine)


def _tan(x: Value) -> Value:
    q, sine, cosine = _quadrant(x)
    even = (q & 1).equals(0)
    return (select(even, sine, -cosine) / select(even, cosine, sine)).resized(32)


def _pow(x: Value, y: Value) -> Value:
    """sign * 2^(y log2|x|) in float64, for float32 x and y; special cases as C's pow."""
    x, y = x.resized(64), y.resized(64)
    # A finite stand-in for inf makes (+-1)^inf = 2^(y * 0) = 1.
    y = _at_least(_at_most(y, 1e300), -1e300)
    power = _exp2(y * _log2(_abs(x)))
    integer = call("rint", y).equals(y)
    even = call("rint", y * 0.5).equals(y * 0.5)
    power = select(integer & even.negated(), _copysign(power, x), power)
    root_of_negative = (x < 0.0) & (x > -math.inf) & integer.negated()
    power = select(root_of_negative, math.nan, power)
    return select(y.equals(0.0) | x.equals(1.0), 1.0, power).resized(32)


def _sign(x: Value) -> Value:
    return select(x > 0.0, x.constant(1.0), select(x < 0.0, -1.0, x + 0.0))  # -0 + 0 = 0


# NaN propagates; which of -0 and +0 is returned is left open, as in NumPy.
def _maximum(x: Value, y: Value) -> Value:
    return call("maximum", x, y, flags=("nsz",))


def _minimum(x: Value, y: Value) -> Value:
    return call("minimum", x, y, flags=("nsz",))


def _llvm(name: str) -> Callable[[Value], Value]:
    return lambda x: call(name, x)


# Op name -> its branch-free body, for both formats.
_BODIES: dict[str, Callable[..., Value]] = {
    "abs": _abs,
    "acos": arcs.acos,
    "asin": arcs.asin,
    "atan": arcs.atan,
    "atan2": arcs.atan2,
    "ceil": _llvm("ceil"),
    "cosh": _cosh,
    "erf": _erf,
    "exp": _exp,
    "exp2": _exp2,
    "expm1": _expm1,
    "floor": _llvm("floor"),
    "log": _log,
    "log1p": _log1p,
    "log2": _log2,
    "maximum": _maximum,
    "minimum": _minimum,
    "one_plus_erf": lambda x: _erf(x) + 1.0,
    "reciprocal": lambda x: 1.0 / x,
    "round": _llvm("rint"),  # half to even
    "rsqrt": lambda x: 1.0 / call("sqrt", x),
    "sign": _sign,
    "sinh": _sinh,
    "sqrt": _llvm("sqrt"),
    "tanh": _tanh,
    "trunc": _llvm("trunc"),
}

# The same, for float32 only: these compute in float64, but for the second.
_FLOAT32_BODIES: dict[str, Callable[..., Value]] = {
    "cos": _cos,
    "one_plus_erf": _one_plus_erf,
    "pow": _pow,
    "sin": _sin,
    "tan": _tan,
}

# Op name -> the function of `math` whose libm call it becomes, where no body is given above.
_LIBM: dict[str, Callable[..., float]] = {
    "cos": math.cos,
    "pow": math.pow,
    "sin": math.sin,
    "tan": math.tan,
}

_BINARY = frozenset({"atan2", "maximum", "minimum", "pow"})
_SUFFIX = {"float32": "f32", "float64": "f64"}


def _bodies(dtype: str) -> dict[str, Callable[..., Value]]:
    return _BODIES | (_FLOAT32_BODIES if dtype == "float32" else {})


def _function(op: str, dtype: str) -> Any:
    name, scalar = f"{op}_{_SUFFIX[dtype]}", FORMATS[dtype].numba
    parameters = (scalar,) * (2 if op in _BINARY else 1)
    body = _bodies(dtype).get(op)
    if body is not None:
        return elementwise(name, scalar, parameters, body)
    signature = scalar(*parameters)

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return context.get_function(_LIBM[op], signature)(builder, arguments)

    return scalar_intrinsic(name, signature, emit)


FUNCTIONS: dict[tuple[str, str], Any] = {
    (op, dtype): _function(op, dtype) for op in sorted({*_BODIES, *_LIBM}) for dtype in FORMATS
}

_NAMED = {f"{op}_{_SUFFIX[dtype]}": function for (op, dtype), function in FUNCTIONS.items()}


def __getattr__(name: str) -> Any:
    """FUNCTIONS["exp", "float32"] as exp_f32, and so on."""
    if name in _NAMED:
        return _NAMED[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMED])
