"""What NumPy is told when a function of its own is given a tensor or an index expression.

Operators of an array and a tensor are the tensor's own, as `array + x`. Other calls raise an error
that says what to write, rather than build an array of objects.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import numpy as np

from eqsat.errors import ArgumentError
from eqsat.graph.elsewhere import called

# The ufunc that NumPy calls for `array op x` -> the method of x for `op` from the right.
REFLECTED = {
    "add": "__radd__",
    "subtract": "__rsub__",
    "multiply": "__rmul__",
    "divide": "__rtruediv__",
    "floor_divide": "__rfloordiv__",
    "remainder": "__rmod__",
    "divmod": "__rdivmod__",
    "power": "__rpow__",
    "matmul": "__rmatmul__",
    "bitwise_and": "__rand__",
    "bitwise_or": "__ror__",
    "bitwise_xor": "__rxor__",
    "left_shift": "__rlshift__",
    "right_shift": "__rrshift__",
    "equal": "__eq__",
    "not_equal": "__ne__",
    "less": "__gt__",
    "less_equal": "__ge__",
    "greater": "__lt__",
    "greater_equal": "__le__",
}
# NumPy compares a scalar of its own as an array of no dimensions: it is taken for the scalar.
COMPARED = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
DESCRIBED = ("shape", "ndim", "size")  # what needs no values


class OutsideNumpy:
    """What is no array to NumPy."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        name = ufunc.__name__
        operator = REFLECTED.get(name, "")
        if method != "__call__":
            _refuse(f"{name}.{method}", self, inputs)
        if not hasattr(type(self), operator):
            _refuse(name, self, inputs)
        if options.get("out") is not None:
            raise ArgumentError(
                f"an array cannot hold {self}, which has no values yet. Where `array += x` was "
                f"meant, or another operator, write `array = array + x`: a tensor."
            )
        if options or inputs[-1] is not self:
            _refuse(name, self, inputs)
        is_scalar = name in COMPARED and isinstance(inputs[0], np.ndarray) and inputs[0].ndim == 0
        return getattr(self, operator)(inputs[0][()] if is_scalar else inputs[0])

    def __array_function__(
        self, function: Any, types: Iterable[type], given: tuple[Any, ...], named: Mapping[str, Any]
    ) -> Any:
        name = function.__name__
        if name in DESCRIBED and hasattr(self, name) and len(given) == 1 and not named:
            return getattr(self, name)
        _refuse(name, self, given)


def _refuse(name: str, x: object, given: tuple[Any, ...]) -> NoReturn:
    """Raise an error that says what to write in place of NumPy's function."""
    here = called(
        name, sys.modules["eqsat.graph"], "x" if len(given) == 1 and given[0] is x else "..."
    )
    advice = f"Write {here} instead" if here else "Use the functions of eqsat"
    raise ArgumentError(
        f"{name} of NumPy takes arrays, and {x} has no values yet. {advice}, or compile the graph "
        f"and give NumPy its result."
    )
