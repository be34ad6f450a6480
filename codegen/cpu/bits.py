"""Branch-free arithmetic on LLVM values, as Numba intrinsics, and the narrow float formats.

An intrinsic writes its instructions into the loop that calls it, so LLVM vectorises that loop as
it would plain arithmetic; there is no call to inline and no second function to compile.
"""

import platform
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@dataclass(frozen=True)
class Format:
    """An IEEE 754 binary format: bit width, stored mantissa bits, LLVM type and Numba type."""

    name: str
    width: int
    mantissa: int
    real: ir.Type
    numba: Any

    @property
    def integer(self) -> ir.IntType:
        return ir.IntType(self.width)

    @property
    def bias(self) -> int:
        return (1 << (self.width - self.mantissa - 2)) - 1

    @property
    def round_magic(self) -> float:
        """1.5 * 2^mantissa: t = x + magic holds round(x) in its low bits, for |x| < magic / 4."""
        return 1.5 * 2.0**self.mantissa

    def bits_of(self, number: float) -> int:
        real, word = {32: ("<f", "<I"), 64: ("<d", "<Q")}[self.width]
        return struct.unpack(word, struct.pack(real, number))[0]


FLOAT32 = Format("float32", 32, 23, ir.FloatType(), types.float32)
FLOAT64 = Format("float64", 64, 52, ir.DoubleType(), types.float64)
FORMATS = {"float32": FLOAT32, "float64": FLOAT64}
_FORMAT_OF = {str(f.real): f for f in FORMATS.values()}


class Value:
    """An LLVM value and the builder that extends it; Python numbers take its type.

    Integers are unsigned. Comparisons are ordered: false where an operand is NaN. No fast-math
    flag is set, so LLVM keeps the order and the rounding of what is written here.
    """

    __slots__ = ("builder", "ir")

    def __init__(self, builder: ir.IRBuilder, value: ir.Value):
        self.builder = builder
        self.ir = value

    @property
    def format(self) -> Format:
        return _FORMAT_OF[str(self.ir.type)]

    def constant(self, number: float) -> "Value":
        return Value(self.builder, ir.Constant(self.ir.type, number))

    def _emit(self, real: str, integer: str, other: Any, swap: bool = False) -> "Value":
        pair = (self.ir, coerce(other, self).ir)
        name = integer if isinstance(self.ir.type, ir.IntType) else real
        return Value(self.builder, getattr(self.builder, name)(*(pair[::-1] if swap else pair)))

    def _compare(self, sign: str, other: Any) -> "Value":
        integer = isinstance(self.ir.type, ir.IntType)
        compare = self.builder.icmp_unsigned if integer else self.builder.fcmp_ordered
        return Value(self.builder, compare(sign, self.ir, coerce(other, self).ir))

    def __add__(self, other: Any) -> "Value":
        return self._emit("fadd", "add", other)

    def __sub__(self, other: Any) -> "Value":
        return self._emit("fsub", "sub", other)

    def __rsub__(self, other: Any) -> "Value":
        return self._emit("fsub", "sub", other, swap=True)

    def __mul__(self, other: Any) -> "Value":
        return self._emit("fmul", "mul", other)

    def __truediv__(self, other: Any) -> "Value":
        return self._emit("fdiv", "", other)

    def __rtruediv__(self, other: Any) -> "Value":
        return self._emit("fdiv", "", other, swap=True)

    def __neg__(self) -> "Value":
        return Value(self.builder, self.builder.fneg(self.ir))

    def __and__(self, other: Any) -> "Value":
        return self._emit("", "and_", other)

    def __or__(self, other: Any) -> "Value":
        return self._emit("", "or_", other)

    def __xor__(self, other: Any) -> "Value":
        return self._emit("", "xor", other)

    def __lshift__(self, other: Any) -> "Value":
        return self._emit("", "shl", other)

    def __rshift__(self, other: Any) -> "Value":
        return self._emit("", "lshr", other)

    def __lt__(self, other: Any) -> "Value":
        return self._compare("<", other)

    def __gt__(self, other: Any) -> "Value":
        return self._compare(">", other)

    def __ge__(self, other: Any) -> "Value":
        return self._compare(">=", other)

    def equals(self, other: Any) -> "Value":
        return self._compare("==", other)

    def negated(self) -> "Value":
        """The other truth value."""
        return Value(self.builder, self.builder.not_(self.ir))

    def bits(self) -> "Value":
        """The float's bit pattern as an unsigned integer."""
        return Value(self.builder, self.builder.bitcast(self.ir, self.format.integer))

    def as_float(self) -> "Value":
        """The float with this integer's bit pattern."""
        real = FORMATS[f"float{self.ir.type.width}"].real
        return Value(self.builder, self.builder.bitcast(self.ir, real))

    def resized(self, width: int) -> "Value":
        """The integer, or the float, in `width` bits: zero-extended, truncated or rounded."""
        if isinstance(self.ir.type, ir.IntType):
            grow, shrink, kind = self.builder.zext, self.builder.trunc, ir.IntType(width)
            here = self.ir.type.width
        else:
            grow, shrink = self.builder.fpext, self.builder.fptrunc
            kind, here = FORMATS[f"float{width}"].real, self.format.width
        return Value(self.builder, (grow if width > here else shrink)(self.ir, kind))


def coerce(operand: Any, like: Value) -> Value:
    """`operand` as a value of the type of `like`."""
    return operand if isinstance(operand, Value) else like.constant(operand)


def select(condition: Value, yes: Any, no: Any) -> Value:
    """yes if condition else no; at least one of the two is a Value."""
    like = yes if isinstance(yes, Value) else no
    chosen = condition.builder.select(condition.ir, coerce(yes, like).ir, coerce(no, like).ir)
    return Value(condition.builder, chosen)


def call(name: str, *operands: Any, flags: tuple[str, ...] = ()) -> Value:
    """LLVM's intrinsic `name` (https://llvm.org/docs/LangRef.html) on the first operand's type."""
    first = operands[0]
    arguments = [coerce(operand, first).ir for operand in operands]
    kind = ir.FunctionType(first.ir.type, [first.ir.type] * len(arguments))
    function = first.builder.module.declare_intrinsic(f"llvm.{name}", [first.ir.type], kind)
    return Value(first.builder, first.builder.call(function, arguments, fastmath=flags))


def fma(a: Value, b: Any, c: Any) -> Value:
    """a * b + c, fused where the target has the instruction."""
    return call("fmuladd", a, b, c)


def horner(x: Value, coefficients: tuple[float, ...]) -> Value:
    """sum_i coefficients[i] * x^i."""
    total: Any = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        total = fma(x, total, c)
    return total


def lookup(name: str, table: tuple[float, ...], index: Value) -> Value:
    """float64 table[index]; the table becomes one constant `name` of the module."""
    builder, module = index.builder, index.builder.module
    if name not in module.globals:
        kind = ir.ArrayType(FLOAT64.real, len(table))
        cgutils.global_constant(module, name, ir.Constant(kind, list(table)))
    zero = ir.Constant(ir.IntType(64), 0)
    address = builder.gep(module.globals[name], [zero, index.resized(64).ir], inbounds=True)
    return Value(builder, builder.load(address))


def elementwise(name: str, result: Any, parameters: tuple[Any, ...], body: Callable[..., Value]):
    """The Numba intrinsic result(*parameters) whose instructions `body` writes.

    Arguments of another number type are cast to `parameters` first.
    """

    def emit(_context: Any, builder: ir.IRBuilder, _signature: Any, arguments: Any) -> ir.Value:
        return body(*(Value(builder, argument) for argument in arguments)).ir

    return scalar_intrinsic(name, result(*parameters), emit)


def scalar_intrinsic(name: str, signature: Any, emit: Callable[..., ir.Value]):
    """The Numba intrinsic of this signature (one or two numbers), lowered by `emit`."""

    def unary(typingctx, x):
        return (signature, emit) if isinstance(x, types.Number) else None

    def binary(typingctx, x, y):
        numbers = isinstance(x, types.Number) and isinstance(y, types.Number)
        return (signature, emit) if numbers else None

    typer: Any = {1: unary, 2: binary}[len(signature.args)]
    typer.__name__ = typer.__qualname__ = name
    return intrinsic(typer)


def _converts_halves() -> bool:
    """Whether this processor has instructions for it: LLVM calls a library elsewhere."""
    arm = platform.machine() in ("aarch64", "arm64")
    return arm or bool(llvm.get_host_cpu_features().get("f16c"))


_CONVERTS_HALVES = _converts_halves()


def _bf16_to_f32(h: Value) -> Value:
    return (h.resized(32) << 16).as_float()


def _f32_to_bf16(x: Value) -> Value:
    # Round to nearest even: add half a unit less one, plus the lowest kept bit. A NaN could round
    # to inf, so it keeps its upper payload bits and the quiet bit instead.
    u = x.bits()
    rounded = (u + 0x7FFF + ((u >> 16) & 1)) >> 16
    nan = (u & 0x7FFFFFFF) > 0x7F800000
    return select(nan, (u >> 16) | 0x40, rounded).resized(16)


def _f16_to_f32(h: Value) -> Value:
    if _CONVERTS_HALVES:
        half = h.builder.bitcast(h.ir, ir.HalfType())
        return Value(h.builder, h.builder.fpext(half, FLOAT32.real))
    # The exponent fields differ by 127 - 15 = 112; one exact product also normalises subnormals.
    u = h.resized(32)
    magnitude = (u & 0x7FFF) << 13
    finite = (magnitude.as_float() * 2.0**112).bits()
    bits = select(magnitude >= 0x7C00 << 13, magnitude | 0x7F800000, finite)
    return (bits | ((u & 0x8000) << 16)).as_float()


def _f32_to_f16(x: Value) -> Value:
    if _CONVERTS_HALVES:
        half = x.builder.fptrunc(x.ir, ir.HalfType())
        return Value(x.builder, x.builder.bitcast(half, ir.IntType(16)))
    u = x.bits()
    a = u & 0x7FFFFFFF
    # a - 112 * 2^23 moves the exponent; a carry out of the mantissa rounds 65520 and above to inf.
    normal = (a + (0xFFF - (112 << 23)) % 2**32 + ((a >> 13) & 1)) >> 13
    # The unit of float32 at 0.5 is 2^-24, the unit of float16's subnormals.
    subnormal = (a.as_float() + 0.5).bits() - 0x3F000000
    finite = select(a >= 113 << 23, normal, subnormal)
    special = select(a > 0x7F800000, ((a >> 13) & 0x1FF) | 0x7E00, 0x7C00)
    bits = select(a >= 143 << 23, special, finite)
    return (bits | ((u >> 16) & 0x8000)).resized(16)


def _f8_to_f32(mantissa: int, bias: int, infinite: bool) -> Callable[[Value], Value]:
    def convert(h: Value) -> Value:
        u = h.resized(32)
        low = u & 0x7F
        # As for float16: an exact product moves the exponent and normalises subnormals.
        finite = ((low << (23 - mantissa)).as_float() * 2.0 ** (127 - bias)).bits()
        top = 0x1F << mantissa if infinite else 0x7F
        special = finite | 0x7FC00000
        if infinite:
            special = (low << (23 - mantissa)) | 0x7F800000
        return (select(low >= top, special, finite) | ((u & 0x80) << 24)).as_float()

    return convert


def _f32_to_f8(mantissa: int, bias: int, infinite: bool) -> Callable[[Value], Value]:
    """To nearest even; what rounds above the largest is infinite, or NaN where there is none."""
    shift, least = 23 - mantissa, 128 - bias  # the exponent field of the smallest normal number
    # The unit of float32 at this number is the unit of the subnormals.
    magic = 2.0 ** (1 - bias - mantissa + 23)
    top, nan = (0x7C, 0x7E) if infinite else (0x7F, 0x7F)
    # From here on nothing rounds to a finite number: 61440, and just above 464.
    over = 0x47700000 if infinite else 0x43E80001

    def convert(x: Value) -> Value:
        u = x.bits()
        a = u & 0x7FFFFFFF
        half = (1 << (shift - 1)) - 1
        normal = (a + (half - ((127 - bias) << 23)) % 2**32 + ((a >> shift) & 1)) >> shift
        subnormal = (a.as_float() + magic).bits() - FLOAT32.bits_of(magic)
        finite = select(a >= least << 23, normal, subnormal)
        bits = select(a > 0x7F800000, nan, select(a >= over, top, finite))
        return (bits | ((u >> 24) & 0x80)).resized(8)

    return convert


bf16_to_f32 = elementwise("bf16_to_f32", types.float32, (types.uint16,), _bf16_to_f32)
f32_to_bf16 = elementwise("f32_to_bf16", types.uint16, (types.float32,), _f32_to_bf16)
f16_to_f32 = elementwise("f16_to_f32", types.float32, (types.uint16,), _f16_to_f32)
f32_to_f16 = elementwise("f32_to_f16", types.uint16, (types.float32,), _f32_to_f16)
_E4M3, _E5M2 = (3, 7, False), (2, 15, True)  # bits of the mantissa, bias, whether there is inf
f8e4m3_to_f32 = elementwise("f8e4m3_to_f32", types.float32, (types.uint8,), _f8_to_f32(*_E4M3))
f32_to_f8e4m3 = elementwise("f32_to_f8e4m3", types.uint8, (types.float32,), _f32_to_f8(*_E4M3))
f8e5m2_to_f32 = elementwise("f8e5m2_to_f32", types.float32, (types.uint8,), _f8_to_f32(*_E5M2))
f32_to_f8e5m2 = elementwise("f32_to_f8e5m2", types.uint8, (types.float32,), _f32_to_f8(*_E5M2))
