"""What generated Numba source calls: memory access, selection, reduction and integer arithmetic.

Loads and stores compute their address without bounds or wrap-around checks; the emitter proves
every address. Functions marked `register_jitable` are compiled into the kernels that use them.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic, register_jitable
from numba.np.arrayobj import load_item, make_array, store_item

LINE = 64  # bytes of a cache line


def address(context: Any, builder: ir.IRBuilder, kind: Any, array: Any, position: Any) -> Any:
    data = make_array(kind)(context, builder, array).data
    return builder.gep(data, [position], inbounds=True)


@register_jitable
def room(count, dtype):
    """An uninitialised flat array that begins a cache line, which vectors then do not cross."""
    whole = np.empty(count + LINE, dtype)
    first = -whole.ctypes.data % LINE // whole.itemsize
    return whole[first : first + count]


@intrinsic
def peek(typingctx, array, position):
    """array[position] of a flat array, unchecked."""

    def emit(context, builder, signature, arguments):
        kind = signature.args[0]
        return load_item(context, builder, kind, address(context, builder, kind, *arguments))

    return array.dtype(array, types.intp), emit


@intrinsic
def poke(typingctx, array, position, value):
    """array[position] = value of a flat array, unchecked."""

    def emit(context, builder, signature, arguments):
        kind = signature.args[0]
        target = address(context, builder, kind, *arguments[:2])
        store_item(context, builder, kind, arguments[2], target)

    return types.void(array, types.intp, array.dtype), emit


@intrinsic
def select(typingctx, condition, yes, no):
    """yes if condition else no, both evaluated."""

    def emit(context, builder, signature, arguments):
        return builder.select(*arguments)

    kind = types.unliteral(yes)
    return kind(types.boolean, kind, kind), emit


@intrinsic
def unknown(typingctx, value):
    """The value, of which the compiler knows nothing.

    Where it knows that one side of a selection changes no extreme, it parts maximum(m, select(c,
    -inf, x)) into branches, and then finds no reduction that it could do in vectors (LLVM 22).
    """

    def emit(context, builder, signature, arguments):
        (one,) = arguments
        fence = f"llvm.arithmetic.fence.{'f32' if one.type == ir.FloatType() else 'f64'}"
        kind = ir.FunctionType(one.type, [one.type])
        return builder.call(get_or_insert_function(builder.module, kind, fence), arguments)

    kind = types.unliteral(value)
    return kind(kind), emit


def _reassociated(name: str) -> Any:
    def typer(typingctx, a, b):
        def emit(context, builder, signature, arguments):
            return getattr(builder, name)(*arguments, flags=("reassoc", "contract"))

        return a(a, a), emit

    typer.__name__ = typer.__qualname__ = name
    return intrinsic(typer)


# a + b and a * b of floats, in any order over a loop: only so does LLVM vectorise a reduction.
accumulate_sum = _reassociated("fadd")
accumulate_prod = _reassociated("fmul")


@intrinsic
def quotient(typingctx, a, b):
    """a // b for a >= 0, b > 0."""

    def emit(context, builder, signature, arguments):
        return builder.udiv(*arguments)

    return types.intp(types.intp, types.intp), emit


@intrinsic
def modulo(typingctx, a, b):
    """a % b for a >= 0, b > 0."""

    def emit(context, builder, signature, arguments):
        return builder.urem(*arguments)

    return types.intp(types.intp, types.intp), emit


@register_jitable
def floor_divide_integer(a, b):
    """a // b; 0 where b is 0, wrapping where the quotient overflows."""
    if b == 0:
        return a - a
    if b == -1:
        return -a
    return a // b


@register_jitable
def remainder_integer(a, b):
    """a % b with the sign of b; 0 where b is 0."""
    if b == 0 or b == -1:
        return a - a
    return a % b


@register_jitable
def power_integer(a, b):
    """a ** b, wrapping; a negative power is the exact quotient, cut to 0."""
    if b < 0:
        odd = 1 - 2 * (b & 1)
        return 1 if a == 1 else (odd if a == -1 else 0)
    result = 1
    while b > 0:
        if b & 1:
            result *= a
        a *= a
        b >>= 1
    return result


@register_jitable
def shift_left(a, b, bits):
    """a << b; 0 where b is not within the width."""
    return a << b if 0 <= b < bits else 0


@register_jitable
def shift_right(a, b, bits):
    """a >> b; 0 or -1, the sign of a, where b is not within the width."""
    return a >> b if 0 <= b < bits else a >> 63


@register_jitable
def remainder_float(a, b):
    """a - floor(a / b) * b, with the sign of b; exact, as NumPy's npy_divmod has it."""
    rest = np.fmod(a, b)
    if rest == 0:
        return math.copysign(rest, b)
    return rest + b if (b < 0) != (rest < 0) else rest


@register_jitable
def floor_divide_float(a, b):
    """floor(a / b), from the exact remainder, as NumPy's npy_divmod has it."""
    if b == 0:
        return a / b
    rest = np.fmod(a, b)
    whole = (a - rest) / b
    if rest != 0 and (b < 0) != (rest < 0):
        whole -= 1
    if whole == 0:
        return math.copysign(whole, a / b)
    below = np.floor(whole)
    return below + 1 if whole - below > 0.5 else below
