"""The element types and how they promote: array API 2024.12, and floats of 16 and 8 bits."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

import ml_dtypes
import numpy as np

from eqsat.errors import DTypeError

Scalar = bool | int | float
_FOREIGN = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})


@dataclass(frozen=True)
class DType:
    """An element type: its name, its kind (bool, int, uint or float) and its size in bytes."""

    name: str
    kind: str
    itemsize: int

    @cached_property
    def numpy(self) -> np.dtype:
        """The NumPy dtype of the same layout; that of some narrow floats comes from ml_dtypes."""
        return np.dtype(getattr(ml_dtypes, self.name) if self.name in _FOREIGN else self.name)

    @property
    def compute(self) -> "DType":
        """The dtype in which arithmetic is done: float32 for narrower floats, else itself."""
        return float32 if self.kind == "float" and self.itemsize < 4 else self

    def __repr__(self) -> str:
        return f"eqsat.{self.name}"

    def __str__(self) -> str:
        return self.name


float16 = DType("float16", "float", 2)
bfloat16 = DType("bfloat16", "float", 2)
float32 = DType("float32", "float", 4)
float64 = DType("float64", "float", 8)
float8_e4m3fn = DType("float8_e4m3fn", "float", 1)
float8_e5m2 = DType("float8_e5m2", "float", 1)
int8 = DType("int8", "int", 1)
int16 = DType("int16", "int", 2)
int32 = DType("int32", "int", 4)
int64 = DType("int64", "int", 8)
uint8 = DType("uint8", "uint", 1)
bool_ = DType("bool", "bool", 1)

DTYPES: tuple[DType, ...] = (
    float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2,
    int8, int16, int32, int64, uint8, bool_,
)  # fmt: skip
BY_NAME: dict[str, DType] = {dtype.name: dtype for dtype in DTYPES}

DTypeLike = DType | str | np.dtype | type


class HasDType(Protocol):
    """A tensor or an array, of which a dtype is known."""

    @property
    def dtype(self) -> Any: ...


def as_dtype(value: DTypeLike) -> DType:
    """The DType that `value` names.

    Takes a DType, a name, a NumPy dtype or scalar type, or one of Python's bool, int (int64) and
    float (float32, the default float). Raises DTypeError for anything else.
    """
    if isinstance(value, DType):
        return value
    if value is float:
        return float32
    try:
        # NumPy takes None for float64, and an array for its dtype.
        named = isinstance(value, str | None | np.ndarray | np.generic)
        name = str(value) if named else np.dtype(value).name
    except (TypeError, ValueError):
        name = str(value)
    if name not in BY_NAME:
        raise DTypeError(f"dtype {value!r} is not supported. Use one of {', '.join(BY_NAME)}.")
    return BY_NAME[name]


def as_float_dtype(value: DTypeLike | None) -> DType:
    """The DType that `value` names; for None float32, the default float of the array API."""
    return float32 if value is None else as_dtype(value)


def _dtype_of(value: Any) -> DType:
    """The dtype of a tensor or an array; the one that anything else names."""
    own: Any = getattr(value, "dtype", None)
    return as_dtype(cast(Any, own) if isinstance(own, DType | np.dtype) else value)


@dataclass(frozen=True)
class FInfo:
    """Limits of a floating dtype, as the array API's `finfo` names them."""

    dtype: DType
    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float


@dataclass(frozen=True)
class IInfo:
    """Limits of an integer dtype, as the array API's `iinfo` names them."""

    dtype: DType
    bits: int
    max: int
    min: int


def finfo(dtype: DTypeLike | HasDType) -> FInfo:
    """Limits of a floating dtype, or of the one of a tensor or array; DTypeError for others."""
    dtype = _dtype_of(dtype)
    if dtype.kind != "float":
        raise DTypeError(f"finfo: {dtype} is no floating dtype. Use iinfo for integers.")
    limits = cast(Any, ml_dtypes.finfo(dtype.numpy))
    return FInfo(
        dtype,
        8 * dtype.itemsize,
        float(limits.eps),
        float(limits.max),
        float(limits.min),
        float(limits.smallest_normal),
    )


def neutral(monoid: str, dtype: DTypeLike | HasDType) -> bool | int | float:
    """What changes nothing that a sum, a prod, a max or a min combines it with: 0, 1, the lowest or
    the highest value of the dtype, of floats infinite.
    """
    dtype = _dtype_of(dtype)
    if monoid in ("sum", "prod"):
        return dtype.compute.numpy.type(monoid == "prod").item()
    highest = monoid == "min"
    if dtype.kind == "bool":
        return highest
    if dtype.kind == "float":
        return math.inf if highest else -math.inf
    limits = iinfo(dtype)
    return limits.max if highest else limits.min


def is_held(narrow: DTypeLike, wide: DTypeLike) -> bool:
    """Whether a float of more bytes has every number of another, infinities and NaN included."""
    a, b = as_dtype(narrow), as_dtype(wide)
    if {a.kind, b.kind} != {"float"} or a.itemsize >= b.itemsize:
        return False
    few, many = finfo(a), finfo(b)
    least = many.smallest_normal * many.eps <= few.smallest_normal * few.eps
    return many.eps <= few.eps and many.max >= few.max and least


def is_exact(source: DTypeLike, target: DTypeLike) -> bool:
    """Whether a cast to a float rounds no number of a dtype: another float, integers or bool."""
    source, target = as_dtype(source), as_dtype(target)
    if source.kind in ("int", "uint"):
        limit = 2.0 / finfo(target).eps  # below it integers lie no further apart than 1
        return -iinfo(source).min <= limit and iinfo(source).max <= limit
    return source.kind == "bool" or source == target or is_held(source, target)


def iinfo(dtype: DTypeLike | HasDType) -> IInfo:
    """Limits of an integer dtype, or of the one of a tensor or array; DTypeError for others."""
    dtype = _dtype_of(dtype)
    if dtype.kind not in ("int", "uint"):
        raise DTypeError(f"iinfo: {dtype} is no integer dtype. Use finfo for floats.")
    limits = np.iinfo(dtype.numpy)
    return IInfo(dtype, 8 * dtype.itemsize, int(limits.max), int(limits.min))


def promote(a: DType, b: DType) -> DType | None:
    """The dtype that holds both, or None where the standard leaves the pair undefined."""
    if a == b:
        return a
    kinds = {a.kind, b.kind}
    if kinds == {"float"}:
        if a.itemsize == b.itemsize:
            return float32  # two formats of one size: neither holds the other
        return max(a, b, key=lambda dtype: dtype.itemsize)
    if kinds == {"int"}:
        return max(a, b, key=lambda dtype: dtype.itemsize)
    if kinds == {"int", "uint"}:
        signed = a if a.kind == "int" else b
        return int16 if signed == int8 else signed
    return None


def result_type(*values: DTypeLike | HasDType | Scalar) -> DType:
    """The dtype to which dtypes, those of tensors and arrays, and Python scalars promote together.

    Mixed kinds (integer with float, bool with a number) raise DTypeError, as the standard leaves
    them undefined. Python scalars are weak: they take the dtype of the others if their kind fits.
    """
    scalars = [v for v in values if isinstance(v, bool | int | float)]
    dtypes = [_dtype_of(v) for v in values if not isinstance(v, bool | int | float)]
    if not dtypes:
        if not scalars:
            raise DTypeError("result_type: no operands. Give at least one dtype or scalar.")
        return max((scalar_dtype(v) for v in scalars), key=_scalar_rank)
    result = dtypes[0]
    for dtype in dtypes[1:]:
        joined = promote(result, dtype)
        if joined is None:
            raise DTypeError(
                f"no common dtype for {result} and {dtype}: the array API standard leaves mixed "
                f"kinds undefined. Convert one operand with astype first."
            )
        result = joined
    for scalar in scalars:
        check_scalar(scalar, result)
    return result


def scalar_dtype(value: Scalar) -> DType:
    """The default dtype of a Python scalar that meets no tensor: bool, int64 or float32."""
    return bool_ if isinstance(value, bool) else int64 if isinstance(value, int) else float32


def check_scalar(value: Scalar, dtype: DType) -> None:
    """Raise DTypeError unless the Python scalar can weakly take the dtype."""
    if isinstance(value, bool):
        fits = dtype.kind == "bool"
    elif isinstance(value, int):
        fits = dtype.kind in ("int", "uint", "float")
    else:
        fits = dtype.kind == "float"
    if not fits:
        raise DTypeError(
            f"the Python {type(value).__name__} {value!r} does not take the dtype {dtype} of the "
            f"other operand. Convert that operand with astype first."
        )
    if dtype.kind in ("int", "uint"):
        limits = iinfo(dtype)
        if not limits.min <= value <= limits.max:
            raise DTypeError(
                f"the Python int {value} is outside {dtype}, which holds {limits.min} to "
                f"{limits.max}. Convert the other operand to a wider dtype with astype first."
            )


def _scalar_rank(dtype: DType) -> int:
    return (bool_, int64, float32).index(dtype)
