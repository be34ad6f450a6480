"""The integers among the arguments of functions: axes, sizes, offsets and counts."""

from collections.abc import Iterable
from operator import index
from typing import Any

from eqsat.errors import ShapeError


def is_integer(value: Any) -> bool:
    """Whether `as_integer` takes the value."""
    try:
        index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def as_integer(value: Any, what: str, of: str = "", advice: str = "Give an integer.") -> int:
    """The integer of Python's or NumPy's as an int; ShapeError for bool and anything else.

    what: the function and the argument, and `of` whose it is, for the error.
    """
    if not is_integer(value):
        raise ShapeError(f"{what} {value!r}{of} is no integer. {advice}")
    return index(value)


def as_integers(
    value: Any, what: str, of: str = "", advice: str = "Give integers."
) -> tuple[int, ...]:
    """The integers of a sequence or an array, or the one given alone; errors as `as_integer`."""
    return tuple(as_integer(one, what, of, advice) for one in entries(value))


def is_several(value: Any) -> bool:
    """Whether the value is a sequence or an array of 1 or more dimensions, not one entry."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes) and _has_axes(value)


def entries(value: Any) -> tuple[Any, ...]:
    """The entries of a sequence or an array; of anything else, itself alone."""
    return tuple(value) if is_several(value) else (value,)


def _has_axes(value: Any) -> bool:
    return getattr(value, "ndim", 1) != 0
