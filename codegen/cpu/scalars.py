"""The emitter table of the Numba target: one Python expression per elementwise op and dtype.

Every expression has exactly the compute dtype: Numba widens small integers, so they are cut back.
"""

import math
from collections.abc import Sequence

from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import DType
from eqsat.kernel.ir import Number

_FLOAT_SUFFIX = {"float32": "f32", "float64": "f64"}

_BINARY_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
    "logical_and": "&", "logical_or": "|", "logical_xor": "^",
}  # fmt: skip

_COMPARISONS = {
    "equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=",
    "greater": ">", "greater_equal": ">=",
}  # fmt: skip

_INTEGER_FUNCTIONS = {
    "floor_divide": "floor_divide_integer",
    "remainder": "remainder_integer",
    "pow": "power_integer",
}
_WRAPPING = {"add": "+", "sub": "-", "mul": "*", "square": "*", "neg": "-"}
_SHIFTS = frozenset({"shift_left", "shift_right"})

# Functions of `math.py`, by op, that take one or two floats.
FLOAT_FUNCTIONS = frozenset({
    "exp", "expm1", "log", "log1p", "log2", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh", "cosh",
    "tanh", "asin", "acos", "atan", "erf", "floor", "ceil", "trunc", "round", "reciprocal", "sign",
    "abs", "pow", "atan2", "maximum", "minimum", "one_plus_erf",
})  # fmt: skip

# Functions of `runtime.py` that generated source may call.
RUNTIME = (
    "room", "peek", "poke", "select", "unknown", "quotient", "modulo", "accumulate_sum",
    "accumulate_prod", "remainder_float", "floor_divide_float",
    *_INTEGER_FUNCTIONS.values(), *_SHIFTS,
)  # fmt: skip

_SHORT = {"float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2"}
_TO_FLOAT32 = {name: f"{short}_to_f32" for name, short in _SHORT.items()}
_FROM_FLOAT32 = {name: f"f32_to_{short}" for name, short in _SHORT.items()}
CONVERSIONS = frozenset({*_TO_FLOAT32.values(), *_FROM_FLOAT32.values()})

OPS: frozenset[str] = FLOAT_FUNCTIONS | {
    *_BINARY_OPERATORS, *_COMPARISONS, *_INTEGER_FUNCTIONS, *_SHIFTS, "neg", "square",
    "logical_not", "bitwise_invert", "isnan", "isfinite", "isinf", "where", "cast",
    "exp_difference",
}  # fmt: skip


def constant(value: Number, dtype: DType) -> str:
    """A NumPy scalar of the compute dtype; a literal of a narrow float is rounded to it first."""
    rounded = dtype.numpy.type(value).item()
    if dtype.kind == "float" and not math.isfinite(rounded):
        return f'np.{dtype.compute.name}("{rounded}")'
    if dtype.kind == "bool":
        return f"np.bool_({bool(rounded)})"
    return f"np.{dtype.compute.name}({rounded!r})"


def convert(value: str, source: DType, target: DType) -> str:
    """The value of compute dtype of `source` in the compute dtype of `target`, not rounded further.

    Floats become small integers by way of int32, as on the machine; bool is `!= 0`.
    """
    source, target = source.compute, target.compute
    if source == target:
        return value
    if target.kind == "bool":
        return f"({value} != 0)"
    if source.kind == "float" and target.kind in ("int", "uint") and target.itemsize < 4:
        value = f"np.int32({value})"
    return f"np.{target.name}({value})"


def load(value: str, dtype: DType) -> str:
    """An element as it lies in memory, in its compute dtype."""
    return f"{_TO_FLOAT32[dtype.name]}({value})" if dtype.name in _TO_FLOAT32 else value


def store(value: str, source: DType, target: DType) -> str:
    """The value as an element of a buffer of dtype `target`."""
    value = convert(value, source, target)
    return f"{_FROM_FLOAT32[target.name]}({value})" if target.name in _FROM_FLOAT32 else value


def cast(value: str, source: DType, target: DType) -> str:
    """The value rounded to `target`, in its compute dtype."""
    return load(store(value, source, target), target)


def combine(monoid: str, dtype: DType, a: str, b: str, reassociate: bool) -> str:
    """monoid(a, b); a float sum or product may be told to come in any order."""
    dtype = dtype.compute
    if reassociate and dtype.kind == "float" and monoid in ("sum", "prod"):
        return f"accumulate_{monoid}({a}, {b})"
    op = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}[monoid]
    return expression(op, dtype, dtype, (a, b))


def expression(op: str, dtype: DType, operand: DType, arguments: Sequence[str]) -> str:
    """The op on arguments of dtype `operand` (of `where`: the dtype of its branches).

    Raises UnsupportedError for an op without a row here.
    """
    of, result = operand.compute, dtype.compute
    if op == "exp_difference" and len(arguments) == 3:
        first, second, rate = arguments
        different = f"select(({first} == {second}) & ({first} == -np.inf), -np.inf, "
        power = f"{different}({first} - {second}) * {rate})"
        return f"exp_{_FLOAT_SUFFIX[of.name]}({power})"
    a, b = arguments[0], arguments[-1]
    if op in _COMPARISONS:
        return f"({a} {_COMPARISONS[op]} {b})"
    if op == "where":
        return f"select({', '.join(arguments)})"
    text = (
        _float(op, of, a, b)
        if of.kind == "float"
        else _bool(op, a, b)
        if of.kind == "bool"
        else _integer(op, of, a, b)
    )
    if text is None:
        raise UnsupportedError(
            f"the Numba target has no row for {op} of {operand}. Add one to codegen/cpu/scalars.py."
        )
    return text if result.kind != "int" and result.kind != "uint" else f"np.{result.name}({text})"


def _float(op: str, dtype: DType, a: str, b: str) -> str | None:
    suffix = _FLOAT_SUFFIX[dtype.name]
    tests = {
        "isnan": f"({a} != {a})",
        "isfinite": f"({a} - {a} == 0)",
        "isinf": f"(abs_{suffix}({a}) == np.inf)",
        "neg": f"(-{a})",
        "square": f"({a} * {a})",
        "remainder": f"np.{dtype.name}(remainder_float({a}, {b}))",
        "floor_divide": f"np.{dtype.name}(floor_divide_float({a}, {b}))",
        "exp_difference": f"select(({a} == {b}) & ({a} == -np.inf), "
        f"np.{dtype.name}(0), exp_{suffix}({a} - {b}))",
    }
    if op in tests:
        return tests[op]
    if op in FLOAT_FUNCTIONS:
        return f"{op}_{suffix}({a}{f', {b}' if op in _TWO_FLOATS else ''})"
    return f"({a} {_BINARY_OPERATORS[op]} {b})" if op in ("add", "sub", "mul", "div") else None


_TWO_FLOATS = frozenset({"pow", "atan2", "maximum", "minimum"})


def _bool(op: str, a: str, b: str) -> str | None:
    if op in ("logical_not", "bitwise_invert"):
        return f"({a} == False)"
    either = {"maximum": "|", "minimum": "&", "add": "|", "mul": "&"}
    operator = either.get(op, _BINARY_OPERATORS.get(op))
    return f"({a} {operator} {b})" if operator in ("&", "|", "^") else None


def _integer(op: str, dtype: DType, a: str, b: str) -> str | None:
    if op in _INTEGER_FUNCTIONS:
        return f"{_INTEGER_FUNCTIONS[op]}(np.int64({a}), np.int64({b}))"
    if op in _SHIFTS:
        return f"{op}(np.int64({a}), np.int64({b}), {8 * dtype.itemsize})"
    if dtype.itemsize == 8 and op in _WRAPPING:  # signed sums would be taken not to overflow
        first, second = (f"np.uint64({x})" for x in (a, a if op == "square" else b))
        first = "np.uint64(0)" if op == "neg" else first
        return f"{first} {_WRAPPING[op]} {second}"
    simple = {
        "neg": f"-{a}",
        "abs": f"abs({a})" if dtype.kind == "int" else a,
        "sign": f"({a} > 0) - ({a} < 0)",
        "square": f"{a} * {a}",
        "bitwise_invert": f"~{a}",
        "maximum": f"select({a} > {b}, {a}, {b})",
        "minimum": f"select({a} < {b}, {a}, {b})",
    }
    if op in simple:
        return simple[op]
    return f"{a} {_BINARY_OPERATORS[op]} {b}" if op in _BINARY_OPERATORS and op != "div" else None
