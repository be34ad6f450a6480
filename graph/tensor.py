"""The tensor: an immutable node of the graph, compared by identity.

An operator means the function of the same name in `eqsat.graph`, as the array API standard says.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType, ModuleType
from typing import Any, NoReturn

from eqsat.errors import ArgumentError, ShapeError, UnsupportedError
from eqsat.graph.dtypes import DType, Scalar
from eqsat.graph.elsewhere import called
from eqsat.graph.names import check_identifier
from eqsat.graph.outside import OutsideNumpy

_label: ContextVar[str] = ContextVar("eqsat_label", default="")


@contextmanager
def composition(name: str) -> Generator[None]:
    """Label the nodes built inside with the composite function `name`; nests as "outer/inner".

    IdentifierError unless the name is a plain identifier.
    """
    check_identifier(name, "composition name")
    outer = _label.get()
    token = _label.set(f"{outer}/{name}" if outer else name)
    try:
        yield
    finally:
        _label.reset(token)


@contextmanager
def weak_composition(name: str) -> Generator[None]:
    """As `composition`, but only where no other label is set."""
    token = _label.set(_label.get() or name)
    try:
        yield
    finally:
        _label.reset(token)


def current_label() -> str:
    """The label that a node built now gets."""
    return _label.get()


@dataclass(frozen=True, eq=False, repr=False, slots=True, weakref_slot=True)
class Tensor(OutsideNumpy):
    """A lazy array: one primitive operation applied to other tensors.

    `op` is a row of `eqsat.graph.ops.OPS`. `label` names the composite function in which the node
    was written ("softmax", "attention/softmax"), or is empty. `==` is elementwise; nodes hash by
    identity.
    """

    op: str
    operands: tuple["Tensor", ...]
    attributes: Mapping[str, Any]
    shape: tuple[int, ...]
    dtype: DType
    label: str = field(default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))

    __hash__ = object.__hash__

    def __copy__(self) -> "Tensor":
        return self  # nothing of it changes

    def __deepcopy__(self, memo: Any) -> "Tensor":
        return self

    def __reduce__(self) -> NoReturn:
        raise ArgumentError(
            f"{self} is a node of a graph of this process, and is not pickled. Pickle its values, "
            f"or the function that builds it."
        )

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def T(self) -> "Tensor":
        """The transpose of a matrix; ShapeError unless ndim is 2."""
        if self.ndim != 2:
            raise ShapeError(f"T: {self} has {self.ndim} dimensions, not 2. Use mT.")
        return _standard().matrix_transpose(self)

    @property
    def mT(self) -> "Tensor":
        """The last two dimensions swapped."""
        return _standard().matrix_transpose(self)

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        return _standard()

    def __str__(self) -> str:
        name = self.attributes["name"] if self.op == "input" else self.op
        return f"{name} {self.dtype}[{', '.join(map(str, self.shape))}]"

    def __repr__(self) -> str:
        return f"<Tensor {self}{f' in {self.label}' if self.label else ''}>"

    # No value exists before the program runs.
    def _no_value(self, wanted: str) -> NoReturn:
        raise UnsupportedError(
            f"{wanted} of {self}: a lazy tensor has no value yet. Use where, sum or another tensor "
            f"function instead, or compile the graph and use its result."
        )

    def __getattr__(self, name: str) -> NoReturn:
        here = None if name.startswith("_") else called(name, _standard(), "x")
        hint = f". Write {here}" if here else ""
        raise AttributeError(f"tensors have no attribute {name!r}{hint}")

    def __len__(self) -> int:
        raise TypeError(f"a tensor has no len(): {self} has the shape {self.shape}. Use shape[0].")

    def __bool__(self) -> bool:
        self._no_value("truth value")

    def __float__(self) -> float:
        self._no_value("float()")

    def __int__(self) -> int:
        self._no_value("int()")

    def __iter__(self) -> Iterator["Tensor"]:
        self._no_value("iteration over the values")

    def __contains__(self, item: object) -> bool:
        self._no_value("membership test in the values")

    def __array__(self, *_: object, **__: object) -> NoReturn:
        self._no_value("NumPy array")

    def __getitem__(self, key: Any) -> "Tensor":
        return sys.modules["eqsat.graph.indexing"].read(self, key)

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise ArgumentError(
            f"{self} does not change in place. Make another tensor of it, as "
            f"where(arange(n) == k, value, x) or concat."
        )

    def at(self, *key: Any, fill: Scalar | None = None) -> "Tensor":
        """The element at index expressions of `compute`; `fill` where they leave the tensor."""
        return sys.modules["eqsat.graph.indexing"].read(self, key, fill)

    def __add__(self, other: Any) -> "Tensor":
        return _standard().add(self, other)

    def __radd__(self, other: Any) -> "Tensor":
        return _standard().add(other, self)

    def __sub__(self, other: Any) -> "Tensor":
        return _standard().subtract(self, other)

    def __rsub__(self, other: Any) -> "Tensor":
        return _standard().subtract(other, self)

    def __mul__(self, other: Any) -> "Tensor":
        return _standard().multiply(self, other)

    def __rmul__(self, other: Any) -> "Tensor":
        return _standard().multiply(other, self)

    def __truediv__(self, other: Any) -> "Tensor":
        return _standard().divide(self, other)

    def __rtruediv__(self, other: Any) -> "Tensor":
        return _standard().divide(other, self)

    def __floordiv__(self, other: Any) -> "Tensor":
        return _standard().floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> "Tensor":
        return _standard().floor_divide(other, self)

    def __mod__(self, other: Any) -> "Tensor":
        return _standard().remainder(self, other)

    def __rmod__(self, other: Any) -> "Tensor":
        return _standard().remainder(other, self)

    def __pow__(self, other: Any) -> "Tensor":
        return _standard().pow(self, other)

    def __rpow__(self, other: Any) -> "Tensor":
        return _standard().pow(other, self)

    def __matmul__(self, other: Any) -> "Tensor":
        return _standard().matmul(self, other)

    def __rmatmul__(self, other: Any) -> "Tensor":
        return _standard().matmul(other, self)

    def __eq__(self, other: Any) -> "Tensor":  # pyright: ignore[reportIncompatibleMethodOverride]
        return _standard().equal(self, other)

    def __ne__(self, other: Any) -> "Tensor":  # pyright: ignore[reportIncompatibleMethodOverride]
        return _standard().not_equal(self, other)

    def __lt__(self, other: Any) -> "Tensor":
        return _standard().less(self, other)

    def __le__(self, other: Any) -> "Tensor":
        return _standard().less_equal(self, other)

    def __gt__(self, other: Any) -> "Tensor":
        return _standard().greater(self, other)

    def __ge__(self, other: Any) -> "Tensor":
        return _standard().greater_equal(self, other)

    def __and__(self, other: Any) -> "Tensor":
        return _standard().bitwise_and(self, other)

    def __rand__(self, other: Any) -> "Tensor":
        return _standard().bitwise_and(other, self)

    def __or__(self, other: Any) -> "Tensor":
        return _standard().bitwise_or(self, other)

    def __ror__(self, other: Any) -> "Tensor":
        return _standard().bitwise_or(other, self)

    def __xor__(self, other: Any) -> "Tensor":
        return _standard().bitwise_xor(self, other)

    def __rxor__(self, other: Any) -> "Tensor":
        return _standard().bitwise_xor(other, self)

    def __lshift__(self, other: Any) -> "Tensor":
        return _standard().bitwise_left_shift(self, other)

    def __rlshift__(self, other: Any) -> "Tensor":
        return _standard().bitwise_left_shift(other, self)

    def __rshift__(self, other: Any) -> "Tensor":
        return _standard().bitwise_right_shift(self, other)

    def __rrshift__(self, other: Any) -> "Tensor":
        return _standard().bitwise_right_shift(other, self)

    def __neg__(self) -> "Tensor":
        return _standard().negative(self)

    def __pos__(self) -> "Tensor":
        return self

    def __abs__(self) -> "Tensor":
        return _standard().abs(self)

    def __invert__(self) -> "Tensor":
        return _standard().bitwise_invert(self)


class Coordinate(OutsideNumpy, ABC):
    """An index expression of `compute`: reads tensors, and is an int64 value itself."""

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise UnsupportedError(
            f"NumPy array of the index {self}: it stands for every position at once. Use it in "
            f"expressions, or to read tensors with."
        )

    @abstractmethod
    def value(self) -> Tensor:
        """The expression as an int64 tensor over the index space."""

    @abstractmethod
    def read(self, table: Tensor, key: tuple[Any, ...], fill: Scalar | None) -> Tensor:
        """The table read at the key, over the index space."""


def _standard() -> ModuleType:
    return sys.modules["eqsat.graph"]
