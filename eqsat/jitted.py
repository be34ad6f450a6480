"""Functions of tensors, compiled when they are called: once for each signature of arguments."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
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
from eqsat.program import Program, flatten

PLAIN = (type(None), bool, int, float, complex, str, bytes, Enum, np.dtype, type)
FUNCTIONS = (FunctionType, BuiltinFunctionType, np.ufunc)
LONGEST = 48  # letters of an input's name


@dataclass(frozen=True)
class _Input:
    """An array's place among the inputs of a program."""

    number: int


class Jit:
    """A function of tensors, compiled once for each signature of shapes, dtypes and plain values.

    Arrays, also within dictionaries, lists and tuples, are inputs. What else is passed must be of a
    kind that never changes: None, numbers, texts, enumerations, dtypes, types, functions and frozen
    dataclasses; another value is another program. ArgumentError for anything else, and for
    arguments that the function does not take. Within another such function it is a part of that.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self.function = function
        self.options = dict(options)
        self.signature = inspect.signature(function)
        self.programs: dict[object, Program] = {}
        update_wrapper(self, function)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def program(self, *args: Any, **named: Any) -> Program:
        """The program for arrays (or anything with shape and dtype) like these."""
        return self._program(*self._bind(args, named))

    def __call__(self, *args: Any, **named: Any) -> Any:
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
            name = self.function.__name__
            raise ArgumentError(f"{name}{self.signature}: {error}.") from error
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
        frozen = is_dataclass(value) and getattr(type(value), "__hash__", None) is not None
        if not isinstance(value, PLAIN + FUNCTIONS) and not frozen:
            raise ArgumentError(
                f"{self.function.__name__}: {name} is a {type(value).__name__}, which may change "
                f"between calls without notice. Pass arrays (also in dictionaries, lists and "
                f"tuples), plain values, functions or frozen dataclasses."
            )
        return value

    def _program(self, bound: inspect.BoundArguments, arrays: list[Any]) -> Program:
        dtypes = [as_dtype(str(array.dtype).removeprefix("torch.")) for array in arrays]
        shapes = [tuple(array.shape) for array in arrays]
        key = (tuple(zip(shapes, dtypes, strict=True)), _key(dict(bound.arguments)))
        if key not in self.programs:
            names = self._names(bound)
            inputs = [graph_input(*one) for one in zip(names, shapes, dtypes, strict=True)]
            for name, value in bound.arguments.items():
                bound.arguments[name] = _filled(value, inputs)
            outputs = self.function(*bound.args, **bound.kwargs)
            for one in flatten(outputs):
                if not isinstance(one, Tensor):
                    raise ArgumentError(
                        f"{self.function.__name__} returned a {type(one).__name__} where programs "
                        f"give tensors. Return tensors, alone or in dictionaries, lists or tuples."
                    )
            self.programs[key] = compile_program(outputs, inputs=inputs, **self.options)
        return self.programs[key]

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


def _key(value: Any) -> object:
    """What tells values apart: by type too, numbers by their bits."""
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in cast("dict[Any, Any]", value).items())
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_key, cast("list[Any]", value)))
    return type(value), value.hex() if isinstance(value, float) else value


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function of tensors when it is called: `@jit`, or `@jit(spec="h200")`.

    Strict: what the target cannot express raises UnsupportedError. Options are those of `compile`;
    what may be passed to the function: see `Jit`.
    """

    def decorate(decorated: Callable[..., Any]) -> Jit:
        if not callable(decorated):
            raise ArgumentError(
                f"jit takes a function of tensors; got a {type(decorated).__name__}."
            )
        return Jit(decorated, options)

    return decorate if function is None else decorate(function)
