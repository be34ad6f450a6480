"""C++ expressions of every elementwise op, cast, literal and monoid, by dtype.

Register values of narrow floats are float; memory holds their bits (`storage_type`). Expressions
call the device functions of `functions.py`, whose names they report by appearing in the text.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import DType, bool_, float32, float64, is_exact, neutral, promote
from eqsat.layout.needs import SIXTEEN

DEVICE = "__device__ __forceinline__"  # what device functions are declared as
LINE_OF_BANKS = 128  # bytes: what the banks of shared memory hold beside each other
WORD = 4  # bytes: the least that cp.async copies, and registers hold

_STORAGE = {
    "float8_e4m3fn": "unsigned char",
    "float8_e5m2": "unsigned char",
    "float16": "unsigned short",
    "bfloat16": "unsigned short",
    "float32": "float",
    "float64": "double",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "bool": "unsigned char",
}

MONOIDS: dict[str, str] = {
    "sum": "wrapping_add",
    "prod": "wrapping_multiply",
    "max": "maximum",
    "min": "minimum",
}
"""The device function that combines two values of a monoid."""

FUNCTORS: dict[str, str] = {"sum": "Sum", "prod": "Product", "max": "Maximum", "min": "Minimum"}
"""The same as a type, for the collective templates."""


def storage_type(dtype: DType) -> str:
    """The C++ type of an element in memory."""
    return _STORAGE[dtype.name]


def held_type(dtype: DType, width: int) -> str:
    """That of elements on their way through registers: of short ones, each has one."""
    kind = storage_type(dtype)
    if width > 1:
        return f"Pack<{kind}, {width}>"
    return "int" if dtype.itemsize < WORD else kind


def register_type(dtype: DType) -> str:
    """The C++ type of a value in registers."""
    return "bool" if dtype == bool_ else _STORAGE[dtype.compute.name]


def widen(dtype: DType, text: str) -> str:
    """The register value of an element read from memory."""
    if dtype.compute != dtype:
        return f"from_{dtype.name}({text})"
    return f"({text} != 0)" if dtype == bool_ else text


def narrow(dtype: DType, text: str) -> str:
    """The element to write to memory for a register value of that dtype."""
    return f"to_{dtype.name}({text})" if dtype.compute != dtype else text


def literal(dtype: DType, value: bool | int | float) -> str:
    """A constant of the dtype, rounded to it."""
    if dtype == bool_:
        return "true" if value else "false"
    if dtype.kind != "float":
        return _integer_literal(dtype, int(value))
    exact = np.asarray(value, dtype.numpy).astype(dtype.compute.numpy)[()]
    single = dtype.compute == float32
    if not math.isfinite(exact):
        bits = exact.view(np.int32 if single else np.int64)
        convert = "__int_as_float" if single else "__longlong_as_double"
        return f"{convert}(0x{int(bits) & (2**32 - 1 if single else 2**64 - 1):x})"
    text = repr(float(exact)) if not single else str(np.float32(exact))
    text = f"{text}f" if single else text
    return f"({text})" if text.startswith("-") else text  # a minus before it must not make `--`


def _integer_literal(dtype: DType, value: int) -> str:
    if dtype.itemsize < 4:
        return f"({_STORAGE[dtype.name]})({value})"
    suffix = "LL" if dtype.itemsize == 8 else ""
    if value == -(2 ** (8 * dtype.itemsize - 1)):
        return f"(-{-(value + 1)}{suffix} - 1)"
    return f"{value}{suffix}" if value >= 0 else f"({value}{suffix})"


def identity(monoid: str, dtype: DType) -> str:
    """The neutral element of a monoid as a register value."""
    held = dtype.compute if monoid in ("sum", "prod") or dtype.kind == "float" else dtype
    return literal(held, neutral(monoid, dtype))


def cast(source: DType, target: DType, text: str) -> str:
    """A register value converted to another dtype; to a narrow float it is rounded, unless that has
    every number of its own.
    """
    if source == target:
        return text
    if target == bool_:
        return f"({text} != 0)"
    if target.compute != target:
        direct = source.name == "float64" and target.name == "float16"
        value = text if direct else cast(source, float32, text)
        return value if is_exact(source, target) else f"round_{target.name}({value})"
    if source.compute == target:
        return text
    if source.kind == "float" and target.kind != "float" and target.itemsize < 4:
        return f"({register_type(target)})(int)({text})"
    return f"({register_type(target)})({text})"


def combine(monoid: str, a: str, b: str) -> str:
    """monoid(a, b)"""
    return f"{MONOIDS[monoid]}({a}, {b})"


Row = Callable[[DType, Sequence[str]], str]


def _call(name: str) -> Row:
    return lambda _, a: f"{name}({', '.join(a)})"


def _libm(name: str) -> Row:
    """A function of the CUDA math library; `f` marks its float32 form."""
    return lambda dtype, a: f"{name}{'f' if dtype.compute == float32 else ''}({', '.join(a)})"


def _infix(operator: str) -> Row:
    return lambda _, a: f"({a[0]} {operator} {a[1]})"


def _bits(operator: str) -> Row:
    return lambda dtype, a: f"({register_type(dtype)})({a[0]} {operator} {a[1]})"


def _quotient(dtype: DType, a: Sequence[str]) -> str:
    one = a[0] == literal(dtype.compute, 1)
    return f"reciprocal({a[1]})" if one else f"quotient({a[0]}, {a[1]})"


def _invert(dtype: DType, a: Sequence[str]) -> str:
    return f"(!{a[0]})" if dtype == bool_ else f"({register_type(dtype)})(~{a[0]})"


def _magnitude(dtype: DType, a: Sequence[str]) -> str:
    if dtype.kind == "uint":
        return a[0]
    return _libm("fabs")(dtype, a) if dtype.kind == "float" else f"wrapping_abs({a[0]})"


def _power(dtype: DType, a: Sequence[str]) -> str:
    return (_libm("pow") if dtype.kind == "float" else _call("integer_power"))(dtype, a)


def _negative(dtype: DType, a: Sequence[str]) -> str:
    return f"(-{a[0]})" if dtype.kind == "float" else f"wrapping_negate({a[0]})"


NARROW = frozenset({*SIXTEEN, "float8_e4m3fn", "float8_e5m2"})
_LIBM = (
    "exp expm1 log log1p log2 sqrt sin cos tan sinh cosh tanh asin acos atan erf floor ceil trunc"
)

# The dtype given to a row is that of the operands (of the values, for `where`).
OPS: dict[str, Row] = {
    "neg": _negative,
    "abs": _magnitude,
    "sign": _call("sign_of"),
    "square": lambda _, a: f"wrapping_multiply({a[0]}, {a[0]})",
    **{name: _libm(name) for name in _LIBM.split()},
    "rsqrt": _call("inverse_root"),
    "round": _libm("rint"),
    "reciprocal": _call("reciprocal"),
    "logical_not": lambda _, a: f"(!{a[0]})",
    "bitwise_invert": _invert,
    "isnan": lambda _, a: f"({a[0]} != {a[0]})",
    "isfinite": _call("is_finite"),
    "isinf": _call("is_infinite"),
    "add": _call("wrapping_add"),
    "sub": _call("wrapping_subtract"),
    "mul": _call("wrapping_multiply"),
    "div": _quotient,
    "divide_nearly": _call("divide_nearly"),
    "reciprocal_nearly": _call("reciprocal_nearly"),
    "inverse_root_nearly": _call("inverse_root_nearly"),
    "exp_nearly": _call("exp_nearly"),
    "floor_divide": _call("floor_divide"),
    "remainder": _call("floor_remainder"),
    "pow": _power,
    "maximum": _call("maximum"),
    "minimum": _call("minimum"),
    "atan2": _libm("atan2"),
    "equal": _infix("=="),
    "not_equal": _infix("!="),
    "less": _infix("<"),
    "less_equal": _infix("<="),
    "greater": _infix(">"),
    "greater_equal": _infix(">="),
    "logical_and": _infix("&&"),
    "logical_or": _infix("||"),
    "logical_xor": _infix("!="),
    "bitwise_and": _bits("&"),
    "bitwise_or": _bits("|"),
    "bitwise_xor": _bits("^"),
    "shift_left": _call("shift_left"),
    "shift_right": _call("shift_right"),
    "where": lambda _, a: f"({a[0]} ? {a[1]} : {a[2]})",
    "exp_difference": _call("exp_difference"),
    "one_plus_erf": _call("one_plus_erf"),
}


def apply(op: str, dtypes: Sequence[DType], arguments: Sequence[str], result: DType) -> str:
    """The expression of an elementwise op on register values; `cast` converts to `result`."""
    if op == "cast":
        return cast(dtypes[0], result, arguments[0])
    if op not in OPS:
        raise UnsupportedError(
            f"the CUDA target has no row for the elementwise op {op!r}. "
            f"Add it to OPS in codegen/cuda/prelude/math.py."
        )
    return OPS[op](dtypes[-1], arguments)


def operand_dtypes(op: str, dtypes: list[DType], result: DType) -> list[DType]:
    """The dtypes to which an op's operands are converted: one for all, save for a condition."""
    if op == "where":
        return [bool_, result, result]
    if result != bool_ or dtypes[0] == bool_:
        return [result] * len(dtypes)
    common = dtypes[0]
    for dtype in dtypes[1:]:
        common = promote(common, dtype) or float64
    return [common] * len(dtypes)
