"""The op table: every primitive that the compiler sees, one row each.

A row holds the name, the arity, the rule for the result's shape, the rule for its dtype, and the
NumPy meaning. All other operations are composed from these rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from eqsat.errors import DTypeError, ShapeError
from eqsat.graph import meanings
from eqsat.graph.dtypes import DType, as_dtype, bool_, int64
from eqsat.graph.movement import Shape

Attributes = Mapping[str, Any]


class Typed(Protocol):
    """What a rule may ask of an operand; `str` of it names it in errors."""

    @property
    def shape(self) -> Shape: ...
    @property
    def dtype(self) -> DType: ...


@dataclass(frozen=True)
class Given:
    """The shape and dtype stated by the caller, for ops whose operands do not fix them."""

    shape: Shape | None = None
    dtype: DType | None = None


ShapeRule = Callable[[str, Sequence[Typed], Attributes, Given], Shape]
DTypeRule = Callable[[str, Sequence[Typed], Attributes, Given], DType]
# (operand arrays, attributes, result shape, dtype in which to compute) -> array
Meaning = Callable[[Sequence[np.ndarray], Attributes, Shape, np.dtype], np.ndarray]


@dataclass(frozen=True)
class Op:
    """One row of the table."""

    name: str
    arity: int
    shape: ShapeRule
    dtype: DTypeRule
    meaning: Meaning
    elementwise: bool = False


FLOAT = ("float",)
INTEGER = ("int", "uint")
NUMERIC = ("int", "uint", "float")
BITS = ("bool", "int", "uint")
BOOL = ("bool",)
ANY = ("bool", "int", "uint", "float")

_KIND_WORDS: dict[tuple[str, ...], str] = {
    FLOAT: "floating dtypes",
    INTEGER: "integer dtypes",
    NUMERIC: "numeric dtypes",
    BITS: "integer and bool dtypes",
    BOOL: "the dtype bool",
    ANY: "any dtype",
}


def _same_shape(op: str, operands: Sequence[Typed], _: Attributes, __: Given) -> Shape:
    first = operands[0].shape
    if any(operand.shape != first for operand in operands):
        raise ShapeError(
            f"{op}: operands {_listed(operands)} differ in shape. Make them equal with "
            f"broadcast_to or reshape first."
        )
    return first


def _given_shape(op: str, _: Sequence[Typed], __: Attributes, given: Given) -> Shape:
    assert given.shape is not None, f"{op} is built without a shape"
    return given.shape


def _constant_shape(_: str, __: Sequence[Typed], attributes: Attributes, ___: Given) -> Shape:
    return attributes["value"].shape


def _reduced_shape(op: str, operands: Sequence[Typed], attributes: Attributes, _: Given) -> Shape:
    operand, axes = operands[0], attributes["axes"]
    assert list(axes) == sorted(set(axes)), f"{op} axes {axes} are not sorted"
    if op in ("reduce_max", "reduce_min"):
        check_not_empty(op.removeprefix("reduce_"), operand, axes)
    return tuple(n for axis, n in enumerate(operand.shape) if axis not in axes)


def check_not_empty(name: str, operand: Typed, axes: Sequence[int]) -> None:
    """Raise ShapeError, naming the function, where an extreme is sought over an empty axis."""
    empty = [axis for axis in axes if operand.shape[axis] == 0]
    if empty:
        raise ShapeError(
            f"{name}: axis {empty[0]} of {operand} is empty and an empty maximum or minimum has no "
            f"value. Reduce over an axis of at least 1 position."
        )


def _gathered_shape(op: str, operands: Sequence[Typed], attributes: Attributes, _: Given) -> Shape:
    table, index = operands
    if table.shape[attributes["axis"]] == 0 and 0 not in index.shape:
        raise ShapeError(
            f"{op}: axis {attributes['axis']} of {table} is empty, so {index} has nothing to "
            f"read. Use a table with at least 1 position there."
        )
    return index.shape


def _kinds(allowed: tuple[str, ...], result: DType | None = None) -> DTypeRule:
    """Operands of one dtype, of the allowed kinds; the result has that dtype, or `result`."""

    def rule(op: str, operands: Sequence[Typed], _: Attributes, __: Given) -> DType:
        _check_kinds(op, operands, operands, allowed)
        return operands[0].dtype if result is None else result

    return rule


def _check_kinds(
    op: str, operands: Sequence[Typed], same: Sequence[Typed], allowed: tuple[str, ...]
) -> None:
    dtypes = {operand.dtype for operand in same}
    if len(dtypes) > 1:
        raise DTypeError(
            f"{op}: operands {_listed(operands)} differ in dtype. Convert with astype first."
        )
    if same[0].dtype.kind not in allowed:
        raise DTypeError(
            f"{op}: takes {_KIND_WORDS[allowed]}, got {_listed(operands)}. "
            f"Convert with astype first."
        )


def _where_dtype(op: str, operands: Sequence[Typed], _: Attributes, __: Given) -> DType:
    if operands[0].dtype != bool_:
        raise DTypeError(
            f"{op}: the condition {operands[0]} is not bool. Compare it, or use astype(., bool)."
        )
    _check_kinds(op, operands, operands[1:], ANY)
    return operands[1].dtype


def _counted_shape(op: str, operands: Sequence[Typed], attributes: Attributes, _: Given) -> Shape:
    *outer, length = operands[0].shape
    assert 0 < attributes["count"] <= length, f"{op} of {operands[0]} takes {attributes['count']}"
    return (*outer, attributes["count"])


def _gather_dtype(op: str, operands: Sequence[Typed], _: Attributes, __: Given) -> DType:
    if operands[1].dtype.kind not in INTEGER:
        raise DTypeError(
            f"{op}: the index {operands[1]} is not integer. Convert with astype(., int64) first."
        )
    return operands[0].dtype


def _given_dtype(op: str, _: Sequence[Typed], __: Attributes, given: Given) -> DType:
    assert given.dtype is not None, f"{op} is built without a dtype"
    return given.dtype


def _elementwise(
    name: str,
    meaning: Callable[..., np.ndarray],
    allowed: tuple[str, ...],
    result: DType | None = None,
    arity: int = 1,
) -> Op:
    def run(arrays: Sequence[np.ndarray], _: Attributes, __: Shape, ___: np.dtype) -> np.ndarray:
        return np.asarray(meaning(*arrays))

    return Op(name, arity, _same_shape, _kinds(allowed, result), run, elementwise=True)


def _binary(
    name: str,
    meaning: Callable[..., np.ndarray],
    allowed: tuple[str, ...],
    result: DType | None = None,
) -> Op:
    return _elementwise(name, meaning, allowed, result, arity=2)


def _reduction(name: str, monoid: np.ufunc, allowed: tuple[str, ...]) -> Op:
    def run(arrays: Sequence[np.ndarray], a: Attributes, _: Shape, dtype: np.dtype) -> np.ndarray:
        return np.asarray(monoid.reduce(arrays[0], axis=a["axes"], dtype=dtype))

    return Op(name, 1, _reduced_shape, _kinds(allowed), run)


def _no_meaning(_: Sequence[np.ndarray], __: Attributes, ___: Shape, ____: np.dtype) -> np.ndarray:
    raise AssertionError("an input has the value that the caller gives")


_SOURCES = [
    Op("input", 0, _given_shape, _given_dtype, _no_meaning),
    Op(
        "constant",
        0,
        _constant_shape,
        lambda _, __, attributes, ___: as_dtype(attributes["value"].dtype),
        lambda _, attributes, __, dtype: attributes["value"].astype(dtype, copy=False),
    ),
    Op(
        "iota",
        0,
        _given_shape,
        lambda _, __, ___, ____: int64,
        lambda _, attributes, shape, __: meanings.iota(shape, attributes["axis"]),
    ),
]

_UNARY = [
    _elementwise("neg", np.negative, NUMERIC),
    _elementwise("abs", np.abs, NUMERIC),
    _elementwise("sign", np.sign, NUMERIC),
    _elementwise("square", np.square, NUMERIC),
    _elementwise("exp", np.exp, FLOAT),
    _elementwise("expm1", np.expm1, FLOAT),
    _elementwise("log", np.log, FLOAT),
    _elementwise("log1p", np.log1p, FLOAT),
    _elementwise("log2", np.log2, FLOAT),
    _elementwise("sqrt", np.sqrt, FLOAT),
    _elementwise("rsqrt", meanings.rsqrt, FLOAT),
    _elementwise("sin", np.sin, FLOAT),
    _elementwise("cos", np.cos, FLOAT),
    _elementwise("tan", np.tan, FLOAT),
    _elementwise("sinh", np.sinh, FLOAT),
    _elementwise("cosh", np.cosh, FLOAT),
    _elementwise("tanh", np.tanh, FLOAT),
    _elementwise("asin", np.arcsin, FLOAT),
    _elementwise("acos", np.arccos, FLOAT),
    _elementwise("atan", np.arctan, FLOAT),
    _elementwise("erf", meanings.erf, FLOAT),
    _elementwise("floor", np.floor, FLOAT),
    _elementwise("ceil", np.ceil, FLOAT),
    _elementwise("trunc", np.trunc, FLOAT),
    _elementwise("round", np.rint, FLOAT),
    _elementwise("reciprocal", np.reciprocal, FLOAT),
    _elementwise("logical_not", np.logical_not, BOOL),
    _elementwise("bitwise_invert", np.bitwise_not, BITS),
    _elementwise("isnan", np.isnan, FLOAT, bool_),
    _elementwise("isfinite", np.isfinite, FLOAT, bool_),
    _elementwise("isinf", np.isinf, FLOAT, bool_),
]

_BINARY = [
    _binary("add", np.add, NUMERIC),
    _binary("sub", np.subtract, NUMERIC),
    _binary("mul", np.multiply, NUMERIC),
    _binary("div", np.true_divide, FLOAT),
    _binary("floor_divide", np.floor_divide, NUMERIC),
    _binary("remainder", np.remainder, NUMERIC),
    _binary("pow", meanings.power, NUMERIC),
    _binary("maximum", np.maximum, ANY),
    _binary("minimum", np.minimum, ANY),
    _binary("atan2", np.arctan2, FLOAT),
    _binary("equal", np.equal, ANY, bool_),
    _binary("not_equal", np.not_equal, ANY, bool_),
    _binary("less", np.less, NUMERIC, bool_),
    _binary("less_equal", np.less_equal, NUMERIC, bool_),
    _binary("greater", np.greater, NUMERIC, bool_),
    _binary("greater_equal", np.greater_equal, NUMERIC, bool_),
    _binary("logical_and", np.logical_and, BOOL),
    _binary("logical_or", np.logical_or, BOOL),
    _binary("logical_xor", np.logical_xor, BOOL),
    _binary("bitwise_and", np.bitwise_and, BITS),
    _binary("bitwise_or", np.bitwise_or, BITS),
    _binary("bitwise_xor", np.bitwise_xor, BITS),
    _binary("shift_left", np.left_shift, INTEGER),
    _binary("shift_right", np.right_shift, INTEGER),
]

_OTHER_ELEMENTWISE = [
    Op(
        "where",
        3,
        _same_shape,
        _where_dtype,
        lambda arrays, _, __, ___: np.where(arrays[0], arrays[1], arrays[2]),
        elementwise=True,
    ),
    Op(
        "cast",
        1,
        _same_shape,
        lambda _, __, attributes, ___: attributes["dtype"],
        lambda arrays, _, __, dtype: arrays[0].astype(dtype),
        elementwise=True,
    ),
]

_STRUCTURAL = [
    _reduction("reduce_sum", np.add, NUMERIC),
    _reduction("reduce_prod", np.multiply, NUMERIC),
    _reduction("reduce_max", np.maximum, ANY),
    _reduction("reduce_min", np.minimum, ANY),
    Op(
        "view",
        1,
        _given_shape,
        _kinds(ANY),
        lambda arrays, a, shape, _: meanings.read_view(
            arrays[0], a["coordinates"], shape, a["fill"]
        ),
    ),
    Op(
        "gather",
        2,
        _gathered_shape,
        _gather_dtype,
        lambda arrays, a, shape, _: meanings.gather(
            arrays[0], arrays[1], a["axis"], a["coordinates"], shape
        ),
    ),
    Op(
        "scan_sum",
        1,
        _same_shape,
        _kinds(NUMERIC),
        lambda arrays, a, _, dtype: np.cumsum(arrays[0], axis=a["axis"], dtype=dtype),
    ),
    Op(
        "scan_affine",
        2,
        _same_shape,
        _kinds(NUMERIC),
        lambda arrays, a, _, __: meanings.affine_scan(arrays[0], arrays[1], a["axis"]),
    ),
    Op(
        "sort",
        1,
        _same_shape,
        _kinds(NUMERIC),
        lambda arrays, a, _, __: meanings.sorted_rows(arrays[0], a["descending"]),
    ),
    Op(
        "argsort",
        1,
        _counted_shape,
        _kinds(NUMERIC, int64),
        lambda arrays, a, _, __: meanings.order(arrays[0], a["descending"], a["count"]),
    ),
]

OPS: dict[str, Op] = {
    op.name: op for op in [*_SOURCES, *_UNARY, *_BINARY, *_OTHER_ELEMENTWISE, *_STRUCTURAL]
}
LIBRARY: frozenset[str] = frozenset({"sort", "argsort"})  # of whole rows, along the last axis
ELEMENTWISE: frozenset[str] = frozenset(op.name for op in OPS.values() if op.elementwise)


def _listed(operands: Sequence[Typed]) -> str:
    words = [str(operand) for operand in operands]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
