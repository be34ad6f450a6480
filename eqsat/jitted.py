"""Functions of tensors, compiled when they are called: once for each signature of arguments."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import update_wrapper
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, cast

import numpy as np

from eqsat.driver import compile as compile_program
from eqsat.errors import ArgumentError
from eqsat.graph import input as graph_input
from eqsat.graph.dtypes import as_dtype
from eqsat.graph.tensor import Tensor
from eqsat.nesting import flatten
from eqsat.program import Program

PLAIN = (type(None), bool, int, float, complex, str, bytes, Enum, np.dtype, type)
FUNCTIONS = (FunctionType, BuiltinFunctionType, np.ufunc)
NAMED = inspect.signature(compile_program).parameters  # what `compile` takes
OPTIONS = tuple(name for name in NAMED if name not in ("outputs", "inputs"))
LONGEST = 48  # letters of an input's name


@dataclass(frozen=True)
class _Input:
    """An array's place among the inputs of a program."""

    number: int


class Jit:
    """A function of tensors, compiled once for each signature of shapes, dtypes and plain values.

    Arrays, also within dictionaries, lists and tuples, are inputs. What else is passed must be of a
    kind that never changes: None, numbers, texts, enumerations, dtypes, types, functions and frozen
    dataclasses, of fields that never change either; another value, told by type and bits, is
    another program. ArgumentError for anything else, and for arguments that the function does not
    take. Within another such function it is a part of that.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        update_wrapper(self, function)  # first, since it copies attributes of the function
        self.function = function
        self.name = _name_of(function)
        self.options = dict(options)
        self.signature = _signature(function)
        self.programs: dict[object, Program] = {}

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def program(self, /, *args: Any, **named: Any) -> Program:
        """The program for arrays (or anything with shape and dtype) like these."""
        return self._program(*self._bind(args, named))

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        bound, arrays = self._bind(args, named)
        if any(isinstance(array, Tensor) for array in arrays):
            return self.function(*args, **named)
        return self._program(bound, arrays)(*arrays)

    def _bind(
        self, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[inspect.BoundArguments, list[Any]]:
        """The arguments by name, places of inputs for arrays, and the arrays."""
        try:
            bound = self.signature.bind(*args, **named)
        except TypeError as error:
            raise ArgumentError(f"{self.name}{self.signature}: {error}.") from error
        bound.apply_defaults()
        arrays: list[Any] = []
        for name, value in bound.arguments.items():
            bound.arguments[name] = self._taken(name, value, arrays)
        return bound, arrays

    def _taken(self, name: str, value: Any, arrays: list[Any]) -> Any:
        """A value with places of inputs for its arrays, which go to the end of the list."""
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            arrays.append(value)
            return _Input(len(arrays) - 1)
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            return {k: self._taken(f"{name}[{k!r}]", v, arrays) for k, v in items}
        if isinstance(value, list | tuple):
            parts = cast("list[Any] | tuple[Any, ...]", value)
            taken = [self._taken(f"{name}[{n}]", v, arrays) for n, v in enumerate(parts)]
            if isinstance(value, tuple) and hasattr(value, "_fields"):
                return type(value)(*taken)
            return taken if isinstance(value, list) else tuple(taken)
        if not isinstance(value, PLAIN + FUNCTIONS) and not _is_frozen(value):
            raise ArgumentError(
                f"{self.name}: {name} is of type {type(value).__name__}, which may "
                f"change between calls without notice. Pass arrays (also in dictionaries, lists "
                f"and tuples), plain values, functions or frozen dataclasses."
            )
        return value

    def _program(self, bound: inspect.BoundArguments, arrays: list[Any]) -> Program:
        dtypes = [as_dtype(str(array.dtype).removeprefix("torch.")) for array in arrays]
        shapes = [tuple(array.shape) for array in arrays]
        key = (tuple(zip(shapes, dtypes, strict=True)), _key(dict(bound.arguments)))
        try:
            known = key in self.programs
        except TypeError:  # a part without a hash
            known = False
        if not known:
            self._refuse_changing(bound)
            names = self._names(bound)
            inputs = [graph_input(*one) for one in zip(names, shapes, dtypes, strict=True)]
            for name, value in bound.arguments.items():
                bound.arguments[name] = _filled(value, inputs)
            outputs = self.function(*bound.args, **bound.kwargs)
            for one in flatten(outputs):
                if not isinstance(one, Tensor):
                    raise ArgumentError(
                        f"{self.name} returned a value of type {type(one).__name__} "
                        f"where programs give tensors. Return tensors, alone or in dictionaries, "
                        f"lists or tuples."
                    )
            self.programs[key] = compile_program(outputs, inputs=inputs, **self.options)
        return self.programs[key]

    def _refuse_changing(self, bound: inspect.BoundArguments) -> None:
        """ArgumentError for a frozen dataclass with a field that may change."""
        for name, value in bound.arguments.items():
            for where, part in _changing(name, value):
                raise ArgumentError(
                    f"{self.name}: {where} is of type {type(part).__name__}, which may change "
                    f"between calls without notice. Let fields of dataclasses be plain values, "
                    f"functions, tuples or frozen dataclasses; pass arrays as arguments."
                )

    def _names(self, bound: inspect.BoundArguments) -> list[str]:
        """A name for each input: the parameter's, with its place where it is within another."""
        found: list[str] = []
        for name, value in bound.arguments.items():
            for path in _paths(value):
                fresh = re.sub(r"[^A-Za-z0-9_]", "_", "_".join([name, *path]))[:LONGEST]
                while fresh in found:
                    fresh += "_"
                found.append(fresh)
        return found


def _paths(value: Any) -> Iterator[tuple[str, ...]]:
    """Where the inputs of a value are, in order."""
    if isinstance(value, _Input):
        yield ()
    elif isinstance(value, dict):
        for key, part in cast("dict[Any, Any]", value).items():
            yield from ((str(key), *path) for path in _paths(part))
    elif isinstance(value, list | tuple):
        for number, part in enumerate(cast("list[Any]", value)):
            yield from ((str(number), *path) for path in _paths(part))


def _filled(value: Any, inputs: list[Tensor]) -> Any:
    """A value with tensors in the places of inputs."""
    if isinstance(value, _Input):
        return inputs[value.number]
    if isinstance(value, dict):
        return {k: _filled(v, inputs) for k, v in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        parts = [_filled(v, inputs) for v in cast("list[Any]", value)]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*parts)
        return parts if isinstance(value, list) else tuple(parts)
    return value


def _is_frozen(value: Any) -> bool:
    return is_dataclass(value) and bool(cast(Any, value).__dataclass_params__.frozen)


def _fields(value: Any) -> list[tuple[str, Any]]:
    """The fields of a dataclass that are set, also those that it does not compare."""
    names = (field.name for field in fields(value))
    return [(name, getattr(value, name)) for name in names if hasattr(value, name)]


def _changing(name: str, value: Any, copied: bool = True) -> Iterator[tuple[str, Any]]:
    """The parts of a value that may change unseen, by name. `copied`: its lists and dictionaries
    are those of one call, not of the caller.
    """
    if isinstance(value, (*PLAIN, *FUNCTIONS, np.generic, Tensor, Jit)):
        return
    if isinstance(value, dict) and copied:
        for key, part in cast("dict[Any, Any]", value).items():
            yield from _changing(f"{name}[{key!r}]", part)
    elif isinstance(value, tuple | frozenset) or (isinstance(value, list) and copied):
        for number, part in enumerate(cast("list[Any]", value)):
            yield from _changing(f"{name}[{number}]", part, copied)
    elif _is_frozen(value):
        for field, part in _fields(value):
            yield from _changing(f"{name}.{field}", part, copied=False)
    elif not _hashes_by_value(value):
        yield name, value


def _hashes_by_value(value: Any) -> bool:
    """Whether values that differ are told apart, which those of a method's object are not."""
    try:
        hash(value)
    except TypeError:
        return False
    array = hasattr(value, "shape") and hasattr(value, "dtype")
    by_identity = type(value).__hash__ is object.__hash__
    return not array and not by_identity and not isinstance(value, MethodType)


def _key(value: Any) -> object:
    """What tells values apart: by type too, numbers by their bits."""
    if isinstance(value, dict):
        return tuple((_key(k), _key(v)) for k, v in cast("dict[Any, Any]", value).items())
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_key, cast("list[Any]", value)))
    if isinstance(value, frozenset):
        return type(value), frozenset(map(_key, cast("frozenset[Any]", value)))
    if isinstance(value, np.generic):
        return type(value), str(value.dtype), value.tobytes()
    if isinstance(value, complex):
        return type(value), value.real.hex(), value.imag.hex()
    if _is_frozen(value) and not isinstance(value, type | Tensor):
        return type(value), tuple((name, _key(part)) for name, part in _fields(value))
    return type(value), value.hex() if isinstance(value, float) else value


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        name = _name_of(function)
        raise ArgumentError(
            f"jit names inputs by the function's parameters; Python knows none of {name}. Wrap it "
            f"in a function that has them, as lambda x: {name}(x)."
        ) from error


def _check_options(options: Mapping[str, Any]) -> None:
    for name in options:
        if name in NAMED and name not in OPTIONS:
            raise ArgumentError(
                f"jit takes no option {name!r}: it is made of the function when that is called. "
                f"Drop it; inputs are in the order of the function's parameters."
            )
        if name not in OPTIONS:
            raise ArgumentError(
                f"jit has no option {name!r}. Its options are those of compile: "
                f"{', '.join(OPTIONS)}."
            )


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function of tensors when it is called: `@jit`, or `@jit(spec="h200")`.

    Strict: what the target cannot express raises UnsupportedError. Options are those of `compile`
    but `inputs`; ArgumentError for others. What may be passed to the function: see `Jit`.
    """
    _check_options(options)

    def decorate(decorated: Callable[..., Any]) -> Jit:
        if not callable(decorated):
            raise ArgumentError(
                f"jit takes a function of tensors; got a value of type {type(decorated).__name__}."
            )
        return Jit(decorated, options)

    return decorate if function is None else decorate(function)
