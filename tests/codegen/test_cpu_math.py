"""Accuracy, special values and vectorisation of the functions that generated CPU loops call."""

import functools
import math
import platform
import re

import ml_dtypes
import numba
import numpy as np
import pytest
from scipy import special

from eqsat.codegen.cpu import bits as cpu_bits
from eqsat.codegen.cpu import math as cpu_math

pytestmark = pytest.mark.usefixtures("shared_search")

DTYPES = ("float32", "float64")
NUMPY = {
    "abs": np.abs,
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": special.erf,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "floor": np.floor,
    "log": np.log,
    "log1p": np.log1p,
    "log2": np.log2,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "one_plus_erf": lambda x: special.erfc(-x),
    "pow": np.power,
    "reciprocal": np.reciprocal,
    "round": np.rint,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sign": np.sign,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
}
BINARY = ("atan2", "maximum", "minimum", "pow")
EXACT = ("abs", "ceil", "floor", "maximum", "minimum", "round", "sign", "trunc")
# Largest error in ulp, where it is not 1.2.
BOUND = dict.fromkeys(EXACT, 0.0) | {
    "sqrt": 0.51,
    "reciprocal": 0.51,
    "rsqrt": 1.5,
    "cosh": 1.6,
    "log1p": 1.6,
    "tanh": 1.6,
    "expm1": 2.4,
    "sinh": 2.6,
    "acos": 1.6,
    "atan": 1.8,
    "atan2": 2.0,
    "asin": 2.4,
}
# The reference for float64 is float64 again where long double is no wider (Windows, macOS).
WIDE = np.longdouble
SLACK = 0.0 if np.finfo(WIDE).nmant > 52 else 1.0


@functools.cache
def kernel(function, arity):
    if arity == 1:

        @numba.njit(nogil=True, error_model="numpy")
        def loop(x, out):
            for i in range(x.size):
                out[i] = function(x[i])
    else:

        @numba.njit(nogil=True, error_model="numpy")
        def loop(x, y, out):
            for i in range(x.size):
                out[i] = function(x[i], y[i])

    return loop


def apply(function, *arrays, out=None):
    out = np.empty_like(arrays[0]) if out is None else out
    kernel(function, len(arrays))(*arrays, out)
    return out


def reference(op, *arrays):
    """op in a wider type than the arrays, exact to far below their ulp."""
    if op == "one_plus_erf" and arrays[0].dtype == np.float64:
        return 1 + np.array([math.erf(v) for v in arrays[0]], WIDE)
    if op == "erf" and arrays[0].dtype == np.float64:
        return np.array([math.erf(v) for v in arrays[0]], WIDE)  # libm: below 1 ulp
    wide = np.float64 if arrays[0].dtype == np.float32 else WIDE
    with np.errstate(all="ignore"):
        return NUMPY[op](*(a.astype(wide) for a in arrays))


def ulp_error(got, wanted):
    """|got - wanted| in units of the last place of wanted; inf where NaN or inf disagree."""
    with np.errstate(all="ignore"):
        rounded = wanted.astype(got.dtype)
        unit = np.abs(np.spacing(np.where(np.isfinite(rounded), rounded, 1))).astype(wanted.dtype)
        error = np.abs(got.astype(wanted.dtype) - wanted) / unit
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    finite = np.isfinite(got) & np.isfinite(rounded)
    return np.where(finite, error, np.where(same, 0.0, np.inf))


def specials(dtype):
    limits = np.finfo(dtype)
    powers = [88.7228, 88.73, 89.0, 89.41, 89.42, 90.0, 87.4, 103.9, 104.1, 127.9, 128.0, 149.0]
    powers += [709.78, 709.79, 710.47, 710.48, 711.0, 745.13, 745.14, 1023.9, 1024.0, 1074.0]
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 8.0, 1e5, 1e30, 0.55, 0.875, 4.0, 6.0, *powers]
    values += [2.0**23, 2.0**24 + 2, 2.0**52, 2.0**53 + 2, math.pi / 2, math.inf, math.nan]
    values += [limits.max, limits.tiny, limits.smallest_subnormal, 3 * limits.smallest_subnormal]
    array = np.array(values, dtype)
    near_one = np.nextafter(np.ones(2, dtype), np.array([0, 2], dtype))
    return np.concatenate([array, near_one, -array, -near_one])


@functools.cache
def samples(dtype):
    """Specials, every stretch of the bit patterns, and dense and random points about zero."""
    random = np.random.default_rng(7)
    size, unsigned = (60_000, np.uint32) if dtype == "float32" else (15_000, np.uint64)
    patterns = random.integers(0, np.iinfo(unsigned).max, size, dtype=unsigned, endpoint=True)
    return np.concatenate(
        [
            specials(dtype),
            patterns.view(dtype),
            np.linspace(-7, 7, 2 * size).astype(dtype),
            random.normal(size=size).astype(dtype),
            random.uniform(-110, 110, size).astype(dtype),
            random.uniform(-750, 750, size).astype(dtype),
            (1 + random.normal(size=size) * 1e-3).astype(dtype),
        ]
    )


def pairs(dtype):
    """All pairs of special values, then random pairs whose power is often finite."""
    x, y = (a.ravel() for a in np.meshgrid(specials(dtype), specials(dtype)))
    random = np.random.default_rng(11)
    some = [random.normal(size=40_000), 10 ** random.uniform(-37, 37, 40_000)]
    other = [random.integers(-9, 9, 40_000), random.normal(size=40_000)]
    return np.concatenate([x, *some]).astype(dtype), np.concatenate([y, *other]).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", sorted(NUMPY.keys() - {"one_plus_erf"}))
def test_error_is_within_the_bound(op, dtype):
    arrays = pairs(dtype) if op in BINARY else (samples(dtype),)
    got, wanted = apply(cpu_math.FUNCTIONS[op, dtype], *arrays), reference(op, *arrays)
    error = ulp_error(got, wanted)
    worst = np.argmax(error)
    slack = SLACK if dtype == "float64" else 0.0
    assert error[worst] <= BOUND.get(op, 1.2) + slack, (
        f"{op}({', '.join(repr(a[worst]) for a in arrays)}) = {got[worst]!r}, "
        f"wanted {wanted[worst]!r}: {error[worst]:.3g} ulp"
    )
    if op not in ("maximum", "minimum"):  # these may return either zero
        zeros = (got == 0) & ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(wanted[zeros]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_power_follows_numpy_for_negative_bases_and_zeros(dtype):
    x = np.array([-2, -2, -2, 0, -0.0, -0.0, 1, math.nan, -math.inf, -1], dtype)
    y = np.array([3, 2, 0.5, 0, -3, -2, math.nan, 0, 0.5, math.inf], dtype)
    wanted = np.array([-8, 4, math.nan, 1, -math.inf, math.inf, 1, 1, math.inf, 1], dtype)
    np.testing.assert_array_equal(apply(cpu_math.FUNCTIONS["pow", dtype], x, y), wanted)


def test_float32_sine_is_right_for_huge_arguments():
    x = np.float32(2.0) ** np.arange(17, 128, dtype=np.float32)
    x = np.concatenate([x * np.float32(m) for m in (1, 1.1234567, 1.9999999, -1.5707964)])
    for op in ("sin", "cos", "tan"):
        wanted = np.array([getattr(math, op)(float(v)) for v in x])
        assert ulp_error(apply(cpu_math.FUNCTIONS[op, "float32"], x), wanted).max() <= 0.6


def test_two_functions_share_a_table_in_one_loop():
    sine, cosine = cpu_math.sin_f32, cpu_math.cos_f32

    @numba.njit(error_model="numpy")
    def norm(x, out):
        for i in range(x.size):
            out[i] = sine(x[i]) ** 2 + cosine(x[i]) ** 2

    x = np.linspace(-1e6, 1e6, 999, dtype=np.float32)
    out = np.empty_like(x)
    norm(x, out)
    np.testing.assert_allclose(out, 1, rtol=4e-7)


def equal_bits(got, wanted):
    """Same bits, or both NaN with the same sign."""
    sign = np.signbit(got) == np.signbit(wanted)
    bits = got.view(f"u{got.itemsize}") == wanted.view(f"u{got.itemsize}")
    with np.errstate(invalid="ignore"):  # isnan of a signalling NaN, in ml_dtypes
        return np.all(bits | (np.isnan(got) & np.isnan(wanted) & sign))


@pytest.mark.parametrize(("short", "dtype"), [("bf16", ml_dtypes.bfloat16), ("f16", np.float16)])
def test_every_16_bit_float_widens_and_returns(short, dtype):
    u = np.arange(2**16, dtype=np.uint16)
    wide = apply(getattr(cpu_bits, f"{short}_to_f32"), u, out=np.empty(u.size, np.float32))
    with np.errstate(invalid="ignore"):  # widening a signalling NaN
        assert equal_bits(wide, u.view(dtype).astype(np.float32))
    back = apply(getattr(cpu_bits, f"f32_to_{short}"), wide, out=np.empty_like(u))
    assert equal_bits(back.view(dtype), u.view(dtype))


@pytest.mark.parametrize(("short", "dtype"), [("bf16", ml_dtypes.bfloat16), ("f16", np.float16)])
def test_narrowing_rounds_to_nearest_even(short, dtype):
    half_units = np.arange(0, 2**32, 2**12, dtype=np.uint32)
    random = np.random.default_rng(5).integers(0, 2**32, 500_000, dtype=np.uint32)
    x = np.concatenate([half_units, half_units + 1, half_units - 1, random]).view(np.float32)
    x = np.concatenate([x, np.array([65519.996, 65520, 2**-25, 2**-24 * 1.5], np.float32)])
    got = apply(getattr(cpu_bits, f"f32_to_{short}"), x, out=np.empty(x.size, np.uint16))
    with np.errstate(all="ignore"):
        assert equal_bits(got.view(dtype), x.astype(dtype))


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="reads x86 assembly")
@pytest.mark.parametrize(
    "name",
    [*("exp_f32", "erf_f32", "tanh_f32", "log_f32", "sin_f32", "exp_f64", "asin_f32", "atan_f64")],
)
def test_loops_are_vectorised(name):
    loop = kernel(getattr(cpu_math, name), 1)
    x = np.ones(8, "float32" if name.endswith("32") else "float64")
    loop(x, np.empty_like(x))
    assembly = "\n".join(loop.inspect_asm().values())
    packed = "pd" if name.endswith("64") or name.startswith("sin") else "ps"
    assert re.search(rf"\bv?(fn?m(add|sub)\d+|mul){packed}\b", assembly)
    libm = name.partition("_")[0]
    assert not re.search(rf"\b(callq?|movabsq)\b.*\b{libm}f?\b", assembly)


def test_maximum_reduction_propagates_nan():
    maximum = cpu_math.maximum_f32

    @numba.njit(error_model="numpy")
    def largest(x):
        best = x[0]
        for i in range(1, x.size):
            best = maximum(best, x[i])
        return best

    x = np.random.default_rng(0).normal(size=999).astype(np.float32)
    assert largest(x) == x.max()
    x[500] = np.nan
    assert np.isnan(largest(x))


def test_arguments_are_cast_to_the_named_dtype():
    relu = cpu_math.maximum_f32

    @numba.njit
    def clamp(x):
        return relu(x, 0)

    assert clamp(np.float64(-1.5)) == 0 and clamp(np.float64(0.1)) == np.float32(0.1)
    assert numba.typeof(clamp(np.float32(1))) == numba.float64  # a Python float, from float32
    assert clamp.nopython_signatures[0].return_type == numba.float32


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1.6e-7), ("float64", 4.5e-16)])
def test_one_plus_erf_is_as_near_to_zero_as_to_two(dtype, bound):
    x = np.concatenate([samples(dtype), np.linspace(-12, 12, 200_001).astype(dtype)])
    got = apply(cpu_math.FUNCTIONS["one_plus_erf", dtype], x)
    wanted = reference("one_plus_erf", x)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(x))
    assert np.nanmax(np.abs(got - wanted)) <= bound
    assert got[x == -math.inf] == 0 and got[x == math.inf] == 2
    assert np.nanmin(got) == 0 <= np.nanmin(got[x > -3])


def test_each_function_has_a_name_and_a_row_in_both_formats():
    assert {op for op, _ in cpu_math.FUNCTIONS} == set(NUMPY)
    assert all((op, dtype) in cpu_math.FUNCTIONS for op in NUMPY for dtype in DTYPES)
    assert cpu_math.exp_f32 is cpu_math.FUNCTIONS["exp", "float32"]
    with pytest.raises(AttributeError, match="has no attribute 'exp_f16'"):
        _ = cpu_math.exp_f16
