"""Source that maps elements to integers in the same order: floats of any width exactly, NaN after
all others; or in the other order. Unsigned integers in CUDA C++, signed ones in Python for Numba.
"""

import math

import ml_dtypes
import numpy as np

from eqsat.graph.dtypes import DType

UNSIGNED = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}

_ORDERED = """// An integer as wide as the element, in the order of the elements.
static __device__ __forceinline__ word ordered(word bits) {{
    const word sign = {sign}ull, all = 2 * sign - 1;
    {ordered}
    return {down} bits & all;
}}
"""
_RESTORED = """static __device__ __forceinline__ word restored(word bits) {{
    const word sign = {sign}ull, all = 2 * sign - 1;
    bits = {down} bits & all;
    {restored}
    return bits & all;
}}
"""
_FLOATS = """const word size = bits & (sign - 1);
    {zeros}
    bits = size > {infinity}ull ? all : bits & sign ? ~bits : bits | sign;"""
_SIGNED = """    size = np.{word}(bits & {last})
    key = np.{word}(bits ^ np.{word}(np.{word}(bits >> {sign}) & {last}))
    key = select(size == 0, np.{word}(0), key)  # zeros of either sign are equal
    key = select(size > {infinity}, np.{word}({last}), key)
"""
_ZEROS = "bits = size ? bits : 0;  // zeros of either sign are equal"


def ordering(dtype: DType, descending: bool, ties: bool) -> str:
    """The function `ordered`, from an element's bits to a `word`; descending, NaN comes first.

    `ties`: zeros of either sign are one number, and no key says which of them it was.
    """
    ordered = {"uint": "", "int": "bits ^= sign;"}.get(dtype.kind, "")
    if dtype.kind == "float":
        ordered = _FLOATS.format(zeros=_ZEROS if ties else "", infinity=_infinity(dtype))
    return _ORDERED.format(sign=_sign(dtype), down="~" if descending else "", ordered=ordered)


def restoring(dtype: DType, descending: bool) -> str:
    """The function `restored`, from what `ordered` without ties made back to an element's bits."""
    restored = {"uint": "", "int": "bits ^= sign;"}.get(dtype.kind, "")
    if dtype.kind == "float":
        restored = "bits = bits & sign ? bits ^ sign : ~bits;"
    return _RESTORED.format(sign=_sign(dtype), down="~" if descending else "", restored=restored)


def signed_key(dtype: DType, descending: bool) -> str:
    """The body of a function of `bits`, a signed integer of an element's bits.

    It calls `np`, and `select` of `cpu/runtime.py`.
    """
    sign = 8 * dtype.itemsize - 1
    word, last = f"int{sign + 1}", (1 << sign) - 1
    text = "    key = bits\n"
    if dtype.kind == "float":
        text = _SIGNED.format(word=word, last=last, sign=sign, infinity=_infinity(dtype))
    elif dtype.kind == "uint":
        text = f"    key = np.{word}(bits ^ {-1 << sign})\n"
    return f"{text}    return np.{word}(~key)" if descending else f"{text}    return key"


def _sign(dtype: DType) -> int:
    return 1 << (8 * dtype.itemsize - 1)


def _infinity(dtype: DType) -> int:
    """The bits of the largest number that is no NaN."""
    none = ml_dtypes.finfo(dtype.numpy)
    bits = np.dtype(f"uint{8 * dtype.itemsize}")
    infinite = np.array([math.inf]).astype(dtype.numpy)
    largest = infinite if np.isinf(infinite.astype(np.float64))[0] else np.array([none.max])
    return int(largest.astype(dtype.numpy).view(bits)[0])
