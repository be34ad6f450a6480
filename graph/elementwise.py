"""The array API's elementwise functions: operands promote, broadcast, and meet one primitive.

Each takes tensors, index expressions, arrays or scalars (scalars are weak) and returns a tensor.
"""

from collections.abc import Callable
from math import log as _log
from math import log10 as _log10

from eqsat.errors import ArgumentError, DTypeError
from eqsat.graph.arguments import as_integer
from eqsat.graph.build import (
    TensorLike,
    as_tensor,
    broadcast,
    build,
    cast,
    constant,
    elementwise,
    expand,
    is_scalar,
    plain_scalar,
    promote,
    select,
)
from eqsat.graph.dtypes import DTypeLike, as_dtype, finfo
from eqsat.graph.tensor import Tensor, weak_composition

Unary = Callable[[TensorLike], Tensor]
Binary = Callable[[TensorLike, TensorLike], Tensor]


def _unary(name: str, op: str, meaning: str, of_bool: str = "") -> Unary:
    def function(x: TensorLike, /) -> Tensor:
        found = elementwise(op, x)
        return elementwise(of_bool, x) if of_bool and found.dtype.kind == "bool" else found

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{meaning}, elementwise. DTypeError for a dtype it does not take."
    return function


def _binary(name: str, op: str, meaning: str, of_bool: str = "") -> Binary:
    def function(x1: TensorLike, x2: TensorLike, /) -> Tensor:
        found = elementwise(op, x1, x2)
        return elementwise(of_bool, x1, x2) if of_bool and found.dtype.kind == "bool" else found

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{meaning}, elementwise, after promotion and broadcasting."
    return function


def _rounding(name: str, meaning: str) -> Unary:
    def function(x: TensorLike, /) -> Tensor:
        tensor = as_tensor(x)
        return tensor if tensor.dtype.kind in ("int", "uint") else elementwise(name, tensor)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{meaning}; an integer tensor is returned as it is."
    return function


def _float_test(name: str, meaning: str, of_integers: bool) -> Unary:
    def function(x: TensorLike, /) -> Tensor:
        tensor = as_tensor(x)
        if tensor.dtype.kind in ("int", "uint"):
            return expand(constant(of_integers), tensor.shape)
        return elementwise(name, tensor)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{meaning}, elementwise, as bool."
    return function


negative = _unary("negative", "neg", "-x")
abs = _unary("abs", "abs", "The absolute value")
sign = _unary("sign", "sign", "-1, 0 or 1 by the sign of x; NaN stays")
square = _unary("square", "square", "x * x")
exp = _unary("exp", "exp", "e to the power x")
expm1 = _unary("expm1", "expm1", "exp(x) - 1, accurate near 0")
log = _unary("log", "log", "The natural logarithm")
log1p = _unary("log1p", "log1p", "log(1 + x), accurate near 0")
log2 = _unary("log2", "log2", "The logarithm to base 2")
sqrt = _unary("sqrt", "sqrt", "The square root")
rsqrt = _unary("rsqrt", "rsqrt", "1 / sqrt(x)")
sin = _unary("sin", "sin", "The sine")
cos = _unary("cos", "cos", "The cosine")
tan = _unary("tan", "tan", "The tangent")
sinh = _unary("sinh", "sinh", "The hyperbolic sine")
cosh = _unary("cosh", "cosh", "The hyperbolic cosine")
tanh = _unary("tanh", "tanh", "The hyperbolic tangent")
asin = _unary("asin", "asin", "The inverse sine")
acos = _unary("acos", "acos", "The inverse cosine")
atan = _unary("atan", "atan", "The inverse tangent")
erf = _unary("erf", "erf", "The error function")
reciprocal = _unary("reciprocal", "reciprocal", "1 / x")
logical_not = _unary("logical_not", "logical_not", "Not x, of bool")
bitwise_invert = _unary(
    "bitwise_invert", "bitwise_invert", "The bits of x inverted", of_bool="logical_not"
)
floor = _rounding("floor", "Rounded down")
ceil = _rounding("ceil", "Rounded up")
trunc = _rounding("trunc", "Rounded towards 0")
isnan = _float_test("isnan", "Whether x is NaN", False)
isinf = _float_test("isinf", "Whether x is infinite", False)
isfinite = _float_test("isfinite", "Whether x is neither infinite nor NaN", True)

add = _binary("add", "add", "x1 + x2")
subtract = _binary("subtract", "sub", "x1 - x2")
multiply = _binary("multiply", "mul", "x1 * x2")
divide = _binary("divide", "div", "x1 / x2 of floats")
floor_divide = _binary("floor_divide", "floor_divide", "The quotient rounded down")
remainder = _binary("remainder", "remainder", "The remainder, with the sign of the divisor")
maximum = _binary("maximum", "maximum", "The larger; NaN if either is NaN")
minimum = _binary("minimum", "minimum", "The smaller; NaN if either is NaN")
atan2 = _binary("atan2", "atan2", "The angle of the point (x2, x1)")
equal = _binary("equal", "equal", "x1 == x2")
not_equal = _binary("not_equal", "not_equal", "x1 != x2")
less = _binary("less", "less", "x1 < x2")
less_equal = _binary("less_equal", "less_equal", "x1 <= x2")
greater = _binary("greater", "greater", "x1 > x2")
greater_equal = _binary("greater_equal", "greater_equal", "x1 >= x2")
logical_and = _binary("logical_and", "logical_and", "x1 and x2, of bool")
logical_or = _binary("logical_or", "logical_or", "x1 or x2, of bool")
logical_xor = _binary("logical_xor", "logical_xor", "Either x1 or x2 but not both, of bool")
bitwise_and = _binary("bitwise_and", "bitwise_and", "The bits in both", of_bool="logical_and")
bitwise_or = _binary("bitwise_or", "bitwise_or", "The bits in either", of_bool="logical_or")
bitwise_xor = _binary(
    "bitwise_xor", "bitwise_xor", "The bits in one but not both", of_bool="logical_xor"
)
bitwise_left_shift = _binary(
    "bitwise_left_shift", "shift_left", "x1 shifted left by x2 bits (0 past the width)"
)
bitwise_right_shift = _binary(
    "bitwise_right_shift", "shift_right", "x1 shifted right by x2 bits, keeping the sign"
)


def pow(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 to the power x2, elementwise, after promotion and broadcasting.

    DTypeError, as in NumPy, for a negative number as the exponent of integers; of exponents that
    are tensors, negative ones give the quotient, cut to an integer.
    """
    found = elementwise("pow", x1, x2)
    if found.dtype.kind in ("int", "uint") and is_scalar(x2) and plain_scalar(x2) < 0:
        raise DTypeError(
            f"pow: {as_tensor(x1)} to the power {x2} is no integer. Convert the tensor first, with "
            f'astype(x, "float32").'
        )
    return found


def positive(x: TensorLike, /) -> Tensor:
    """The tensor itself."""
    return as_tensor(x)


def where(condition: TensorLike, x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 where the bool condition holds, else x2; x1 and x2 promote, all three broadcast."""
    return select(condition, x1, x2)


def astype(x: TensorLike, dtype: DTypeLike) -> Tensor:
    """The values in another dtype: floats cut towards 0 to integers, integers wrap, bool is != 0.

    A float outside the integer dtype, or NaN, gives an unspecified integer, as in NumPy. A
    rounding written so is kept; that of an operation's result may be dropped (`precision=`).
    """
    x, dtype = as_tensor(x), as_dtype(dtype)
    return x if x.dtype == dtype else build("cast", (x,), {"dtype": dtype, "written": True})


def clip(x: TensorLike, min: TensorLike | None = None, max: TensorLike | None = None) -> Tensor:
    """The values limited to [min, max]; None leaves that side open. NaN stays NaN."""
    with weak_composition("clip"):
        result = as_tensor(x)
        if min is not None:
            result = maximum(result, min)
        return result if max is None else minimum(result, max)


def round(x: TensorLike, decimals: int = 0) -> Tensor:
    """Rounded to the nearest multiple of 10**-decimals, ties to even, as NumPy has it:
    rint(x * 10**decimals) / 10**decimals.

    Integers are returned as they are, or rounded in float64 where decimals are below 0; floats of
    16 bits are in float32 until the result is rounded. ArgumentError where 10**decimals is none of
    that dtype, DTypeError for bool.
    """
    x, decimals = as_tensor(x), as_integer(decimals, "round: decimals")
    whole = x.dtype.kind in ("int", "uint")
    if decimals == 0 or x.dtype.kind == "bool":
        return x if whole else elementwise("round", x)
    if whole:
        return x if decimals > 0 else astype(_to_decimals(astype(x, "float64"), decimals), x.dtype)
    return cast(_to_decimals(cast(x, x.dtype.compute), decimals), x.dtype)


def _to_decimals(x: Tensor, decimals: int) -> Tensor:
    most = int(_log10(finfo(x.dtype).max))
    if not -most <= decimals <= most:
        raise ArgumentError(
            f"round: {x} to {decimals} decimals: {x.dtype} holds powers of 10 up to {most}. Use "
            f"{-most} to {most} decimals."
        )
    with weak_composition("round"):
        if decimals > 0:
            return divide(elementwise("round", multiply(x, 10.0**decimals)), 10.0**decimals)
        return multiply(elementwise("round", divide(x, 10.0**-decimals)), 10.0**-decimals)


def signbit(x: TensorLike, /) -> Tensor:
    """Whether x, a float, is negative or -0.0, as bool; False for NaN, whatever its sign."""
    with weak_composition("signbit"):
        return logical_or(less(x, 0.0), less(reciprocal(x), 0.0))


def copysign(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The size of x1 with the sign of x2, floats both; that of NaN counts as positive."""
    with weak_composition("copysign"):
        a, b = broadcast("copysign", *promote("copysign", x1, x2))
        size = abs(a)
        return where(signbit(b), negative(size), size)


def log10(x: TensorLike, /) -> Tensor:
    """The logarithm to base 10."""
    with weak_composition("log10"):
        return divide(log(x), _log(10.0))


def logaddexp(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """log(exp(x1) + exp(x2)) without overflow."""
    with weak_composition("logaddexp"):
        a, b = broadcast("logaddexp", *promote("logaddexp", x1, x2))
        gap = where(equal(a, b), 0.0, negative(abs(subtract(a, b))))
        return add(maximum(a, b), log1p(exp(gap)))


def hypot(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """sqrt(x1² + x2²) without overflow."""
    with weak_composition("hypot"):
        a, b = broadcast("hypot", *(abs(x) for x in promote("hypot", x1, x2)))
        large, small = maximum(a, b), minimum(a, b)
        ratio = where(logical_or(equal(large, 0.0), equal(a, b)), 1.0, divide(small, large))
        length = multiply(large, sqrt(add(square(ratio), 1.0)))
        infinite = logical_or(isinf(a), isinf(b))
        return where(infinite, float("inf"), length)


def asinh(x: TensorLike, /) -> Tensor:
    """The inverse hyperbolic sine: sign(x) * log1p(|x| + x² / (1 + sqrt(x² + 1)))."""
    with weak_composition("asinh"):
        x = as_tensor(x)
        size = abs(x)
        # Past 2**30 the square may overflow, and asinh(x) = log(2x) to within rounding.
        large = greater(size, _far("asinh", x))
        near = where(large, 1.0, size)
        root = add(sqrt(add(square(near), 1.0)), 1.0)
        small_result = log1p(add(near, divide(square(near), root)))
        far_result = add(log(where(large, size, 1.0)), _log(2.0))
        # At 0 both the sign of x and its derivative, 1, are kept.
        return where(equal(x, 0.0), x, multiply(sign(x), where(large, far_result, small_result)))


def acosh(x: TensorLike, /) -> Tensor:
    """The inverse hyperbolic cosine: log1p(t + sqrt(t) * sqrt(t + 2)), t = x - 1."""
    with weak_composition("acosh"):
        x = as_tensor(x)
        # Past 2**30 the sum may overflow, and acosh(x) = log(2x) to within rounding.
        large = greater(x, _far("acosh", x))
        t = subtract(where(large, 2.0, x), 1.0)
        near_result = log1p(add(t, multiply(sqrt(t), sqrt(add(t, 2.0)))))
        return where(large, add(log(where(large, x, 1.0)), _log(2.0)), near_result)


def _far(op: str, x: Tensor) -> float:
    """From where on log(2x) is asinh(x) and acosh(x) to within rounding."""
    if x.dtype.kind != "float":
        raise DTypeError(f"{op}: takes floating dtypes, got {x}. Convert with astype first.")
    return float(2**30 if x.dtype.itemsize > 2 else 2**6)


def atanh(x: TensorLike, /) -> Tensor:
    """The inverse hyperbolic tangent: (log1p(x) - log1p(-x)) / 2."""
    with weak_composition("atanh"):
        return multiply(subtract(log1p(x), log1p(negative(x))), 0.5)
