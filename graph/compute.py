"""`compute`: a tensor defined by an index expression, a parallel loop without reserved words.

    window = compute((n,), lambda i: sum_over(3, lambda k: a.at(i + k - 1, fill=0)))

An index is usable as an integer (`2 * i + k - 1`, `i // 3`, `i % 3`), compared (`i < j`), read with
(`a[i, j + 1]`), and used as an int64 value. Values are ordinary tensors over the index space.
"""

import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn

from eqsat.errors import DTypeError, ShapeError, UnsupportedError
from eqsat.graph import elementwise, reductions
from eqsat.graph import index as affine
from eqsat.graph.arguments import is_integer
from eqsat.graph.build import as_tensor, cast, expand, gather, iota, view
from eqsat.graph.dtypes import DTypeLike, Scalar, as_dtype
from eqsat.graph.index import Affine
from eqsat.graph.movement import (
    Shape,
    broadcast_shapes,
    normalise_shape,
    output_names,
    wrap_index,
)
from eqsat.graph.positions import count_from_end
from eqsat.graph.tensor import Coordinate, Tensor


@dataclass(frozen=True, eq=False)
class Scope:
    """The index space inside one lambda: its own axes, then those of the lambda around it.

    Values over an outer scope broadcast into an inner one, since its axes are the trailing ones.
    """

    own: Shape
    outer: "Scope | None"

    @property
    def shape(self) -> Shape:
        return self.own + (self.outer.shape if self.outer else ())

    @property
    def names(self) -> tuple[str, ...]:
        """One name per axis, counted from the right, so that an inner scope keeps the outer's."""
        ndim = len(self.shape)
        return tuple(f"x{ndim - 1 - axis}" for axis in range(ndim))

    @property
    def extents(self) -> dict[str, int]:
        return dict(zip(self.names, self.shape, strict=True))

    def encloses(self, other: "Scope") -> bool:
        return self is other or (other.outer is not None and self.encloses(other.outer))


_current: ContextVar[Scope | None] = ContextVar("eqsat_scope", default=None)


@dataclass(frozen=True, eq=False)
class Index(Coordinate):
    """A quasi-affine integer expression of the loop indices of a scope."""

    expression: Affine
    scope: Scope

    __hash__ = object.__hash__

    def value(self) -> Tensor:
        """The expression as an int64 tensor over its scope."""
        _check_live(self.scope)
        shape = self.scope.shape
        total: Tensor | None = None
        for atom, coefficient in self.expression.terms:
            if isinstance(atom, str):
                part = iota(shape, self.scope.names.index(atom))
            else:
                inner = Index(atom.numerator, self.scope).value()
                divided = isinstance(atom, affine.FloorDiv)
                divide = elementwise.floor_divide if divided else elementwise.remainder
                part = divide(inner, atom.divisor)
            part = part if coefficient == 1 else elementwise.multiply(part, coefficient)
            total = part if total is None else elementwise.add(total, part)
        constant = self.expression.constant
        if total is None:
            return expand(as_tensor(constant, as_dtype("int64")), shape)
        return total if constant == 0 else elementwise.add(total, constant)

    def read(self, table: Tensor, key: tuple[Any, ...], fill: Scalar | None) -> Tensor:
        return _read(table, key, fill)

    def _combine(self, other: Any, how: Callable[[Affine, Affine], Affine]) -> "Index | None":
        """The affine result, or None where `other` is no integer."""
        if isinstance(other, Index):
            scope = _inner(self.scope, other.scope)
            return Index(how(self.expression, other.expression), scope)
        if is_integer(other):
            return Index(how(self.expression, affine.const(int(other))), self.scope)
        return None

    def __add__(self, other: Any) -> Any:
        combined = self._combine(other, affine.add)
        return elementwise.add(self, other) if combined is None else combined

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        combined = self._combine(other, affine.sub)
        return elementwise.subtract(self, other) if combined is None else combined

    def __rsub__(self, other: Any) -> Any:
        combined = self._combine(other, lambda a, b: affine.sub(b, a))
        return elementwise.subtract(other, self) if combined is None else combined

    def __mul__(self, other: Any) -> Any:
        if is_integer(other):
            return Index(affine.scale(self.expression, int(other)), self.scope)
        return elementwise.multiply(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return elementwise.divide(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return elementwise.divide(other, self)

    def __floordiv__(self, other: Any) -> Any:
        if is_integer(other):
            quotient = affine.floordiv(self.expression, int(other), self.scope.extents)
            return Index(quotient, self.scope)
        return elementwise.floor_divide(self, other)

    def __mod__(self, other: Any) -> Any:
        if is_integer(other):
            return Index(affine.mod(self.expression, int(other), self.scope.extents), self.scope)
        return elementwise.remainder(self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return elementwise.floor_divide(other, self)

    def __rmod__(self, other: Any) -> Tensor:
        return elementwise.remainder(other, self)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return other // self, other % self

    def __pow__(self, other: Any) -> Tensor:
        return elementwise.pow(self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return elementwise.pow(other, self)

    def __and__(self, other: Any) -> Tensor:
        return elementwise.bitwise_and(self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Tensor:
        return elementwise.bitwise_or(self, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Tensor:
        return elementwise.bitwise_xor(self, other)

    __rxor__ = __xor__

    def __lshift__(self, other: Any) -> Tensor:
        return elementwise.bitwise_left_shift(self, other)

    def __rlshift__(self, other: Any) -> Tensor:
        return elementwise.bitwise_left_shift(other, self)

    def __rshift__(self, other: Any) -> Tensor:
        return elementwise.bitwise_right_shift(self, other)

    def __rrshift__(self, other: Any) -> Tensor:
        return elementwise.bitwise_right_shift(other, self)

    def __invert__(self) -> Tensor:
        return elementwise.bitwise_invert(self)

    def __abs__(self) -> Tensor:
        return elementwise.abs(self)

    def __pos__(self) -> "Index":
        return self

    def __neg__(self) -> "Index":
        return Index(affine.scale(self.expression, -1), self.scope)

    def __eq__(self, other: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return elementwise.equal(self, other)

    def __ne__(self, other: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return elementwise.not_equal(self, other)

    def __lt__(self, other: Any) -> Tensor:
        return elementwise.less(self, other)

    def __le__(self, other: Any) -> Tensor:
        return elementwise.less_equal(self, other)

    def __gt__(self, other: Any) -> Tensor:
        return elementwise.greater(self, other)

    def __ge__(self, other: Any) -> Tensor:
        return elementwise.greater_equal(self, other)

    def __bool__(self) -> NoReturn:
        raise UnsupportedError(
            f"truth value of the index {self}: it stands for every position at once. "
            f"Use where(condition, x, y) instead of if."
        )

    def __str__(self) -> str:
        return str(self.expression)


def _check_live(scope: Scope) -> None:
    current = _current.get()
    if current is None or not scope.encloses(current):
        raise ShapeError(
            "compute: an index is used outside the lambda that it was handed to. "
            "Build the tensor inside that lambda."
        )


def _inner(a: Scope, b: Scope) -> Scope:
    """The inner of two scopes, one of which encloses the other."""
    if a.encloses(b):
        return b
    if b.encloses(a):
        return a
    raise ShapeError(
        "compute: indices of two separate lambdas meet in one expression. "
        "Use an index only inside the lambda that it was handed to."
    )


def _read(table: Tensor, key: tuple[Any, ...], fill: Scalar | None) -> Tensor:
    """table[key] over the innermost scope of the key's indices."""
    if len(key) != table.ndim:
        raise ShapeError(
            f"compute: {len(key)} indices read {table}. Give one for each of its {table.ndim} axes."
        )
    scope = next(part.scope for part in key if isinstance(part, Index))
    for part in key:
        if isinstance(part, Index):
            scope = _inner(scope, part.scope)
    _check_live(scope)
    dynamic = [axis for axis, part in enumerate(key) if isinstance(part, Tensor)]
    if len(dynamic) > 1:
        raise ShapeError(
            f"compute: {table} is read at {len(dynamic)} tensor values. Use one: reshape the table "
            f"and combine them into one flat position."
        )
    names = dict(zip(scope.names, map(affine.var, output_names(len(scope.shape))), strict=True))
    coordinates = [
        None if isinstance(part, Tensor) else _coordinate(part, axis, table, names)
        for axis, part in enumerate(key)
    ]
    if fill is None:
        _check_inside(table, key, scope)
    if dynamic:
        return _read_dynamic(table, key[dynamic[0]], coordinates, scope, fill)
    return view(table, scope.shape, [c for c in coordinates if c is not None], fill)


def _coordinate(part: Any, axis: int, table: Tensor, names: dict[str, Affine]) -> Affine:
    if isinstance(part, Index):
        return affine.substitute(part.expression, names)
    if is_integer(part):
        return affine.const(wrap_index(int(part), table.shape[axis], axis, str(table)))
    raise DTypeError(
        f"compute: {part!r} on axis {axis} of {table} is no index. Use index expressions, integers "
        f"or one integer tensor."
    )


def _check_inside(table: Tensor, key: tuple[Any, ...], scope: Scope) -> None:
    if 0 in scope.shape:
        return
    for axis, part in enumerate(key):
        n = table.shape[axis]
        if isinstance(part, Index) and not affine.within(part.expression, scope.extents, n):
            low, high = affine.bounds(part.expression, scope.extents)
            raise ShapeError(
                f"compute: {part} reads positions {low} to {high} on axis {axis} of {table}, which "
                f"has {n}. Use .at({', '.join(map(str, key))}, fill=0) for reads that may leave it."
            )


def _read_dynamic(
    table: Tensor,
    index: Tensor,
    coordinates: Sequence[Affine | None],
    scope: Scope,
    fill: Scalar | None,
) -> Tensor:
    """A gather over the index space of the key's indices and of the value `index`."""
    if index.dtype.kind not in ("int", "uint"):
        raise DTypeError(f"compute: the index {index} is not integer. Use astype(., int64).")
    if fill is not None:
        raise ShapeError(
            f"compute: a read of {table} at the value {index} takes no fill. "
            f"Use where(condition, table[...], other)."
        )
    shape = broadcast_shapes([index.shape, scope.shape])
    current = _current.get()
    if shape is None or current is None or len(shape) > len(current.shape):
        raise ShapeError(
            f"compute: index {index} is no value over the index space {scope.shape}. "
            f"Read it at an index first, as in table[positions[i]]."
        )
    # An index over an inner scope has further axes in front.
    lifted = len(shape) - len(scope.shape)
    names = {f"i{d}": affine.var(f"i{d + lifted}") for d in range(len(scope.shape))}
    moved = [None if c is None else affine.substitute(c, names) for c in coordinates]
    axis = moved.index(None)
    at = count_from_end(expand(index, shape), table.shape[axis])
    return gather(table, at, axis, moved)


def _check_parameters(body: Callable[..., Any], count: int, scope: Scope) -> None:
    """Raise ShapeError unless the body takes an index for each axis."""
    if not callable(body):
        raise ShapeError(
            f"compute: the body {body!r} cannot be called. Give a function of an index for each "
            f"axis, as in compute((n,), lambda i: x[i])."
        )
    try:
        signature = inspect.signature(body)
        signature.bind(*range(count))
    except ValueError:  # a builtin says nothing of its parameters
        return
    except TypeError:
        name = getattr(body, "__name__", "the body")
        raise ShapeError(
            f"compute: {name}{inspect.signature(body)} cannot take {count} indices, one for each "
            f"axis of the index space {scope.own}. Give it as many parameters."
        ) from None


def _run(body: Callable[..., Any], scope: Scope) -> Tensor:
    """The body's value over the scope, for its own indices."""
    indices = [
        Index(affine.const(0) if n == 1 else affine.var(name), scope)
        for name, n in zip(scope.names, scope.own, strict=False)
    ]
    _check_parameters(body, len(indices), scope)
    token = _current.set(scope)
    try:
        value = body(*indices)
        if value is None:
            raise ShapeError("compute: the body returned None. Return the value at its indices.")
        result = as_tensor(value)
    finally:
        _current.reset(token)
    if broadcast_shapes([result.shape, scope.shape]) != scope.shape:
        raise ShapeError(
            f"compute: the body gave {result} over the index space {scope.shape}. "
            f"Read tensors at an index on every axis, as in a[i, j]."
        )
    return expand(result, scope.shape)


def compute(
    shape: int | Sequence[int], body: Callable[..., Any], dtype: DTypeLike | None = None
) -> Tensor:
    """The tensor whose element at (i, j, ...) is body(i, j, ...).

    Reads that may leave a tensor are a ShapeError, unless written `a.at(i - 1, fill=0)`. Nested
    calls of `sum_over`, `max_over`, `min_over` and `prod_over` reduce over further indices.
    """
    if _current.get() is not None:
        raise ShapeError("compute: called inside another compute. Define the tensor outside it.")
    result = _run(body, Scope(normalise_shape(shape, "compute"), None))
    return result if dtype is None else cast(result, as_dtype(dtype))


def _over(
    name: str,
    reduce: Callable[[Tensor, tuple[int, ...]], Tensor],
    extent: int | Sequence[int],
    body: Callable[..., Any],
) -> Tensor:
    own = normalise_shape(extent, name)
    return reduce(_run(body, Scope(own, _current.get())), tuple(range(len(own))))


def _extreme_over(
    name: str, op: str, extent: int | Sequence[int], body: Callable[..., Any]
) -> Tensor:
    return _over(name, lambda x, axes: reductions.reduce(op, x, axes, name=name), extent, body)


def sum_over(extent: int | Sequence[int], body: Callable[..., Any]) -> Tensor:
    """The sum of body(k) for k below the extent, or of body(k, l) below a pair; dtypes as `sum`."""
    return _over("sum_over", reductions.sum, extent, body)


def prod_over(extent: int | Sequence[int], body: Callable[..., Any]) -> Tensor:
    """The product of body(k) for k below the extent; dtypes as `prod`."""
    return _over("prod_over", reductions.prod, extent, body)


def max_over(extent: int | Sequence[int], body: Callable[..., Any]) -> Tensor:
    """The largest body(k) for k below the extent."""
    return _extreme_over("max_over", "reduce_max", extent, body)


def min_over(extent: int | Sequence[int], body: Callable[..., Any]) -> Tensor:
    """The smallest body(k) for k below the extent."""
    return _extreme_over("min_over", "reduce_min", extent, body)
