"""The kinds of value that a spec's keys hold, and their checks: one table for files and classes."""

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from eqsat.errors import SpecError

from .frozen_table import FrozenTable

DATA_TYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "float16", "bfloat16", "tfloat32",
    "float32", "float64", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
"""dtype names; tfloat32 is a float32 whose low 13 bits a tensor core ignores, uint8 also a byte."""

TARGETS = ("cuda", "cpu", "oracle")
SOURCED = ("cuda", "oracle")
"""The targets that read the native_implementation of an operation."""
MANAGED = ("software", "hardware")

_MOST_LISTED = 30
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_WORD = re.compile(r"[A-Za-z0-9_.+-]{1,64}")


def spec_field(kind: str, default: Any = dataclasses.MISSING, **limits: Any) -> Any:
    """A dataclass field of a spec; `kind` names its check, `limits` are the check's arguments."""
    return dataclasses.field(default=default, metadata={"kind": kind, **limits})


def table_field(entry: str, example: str, **limits: Any) -> dict[str, Any]:
    """The metadata of a field that is a table from identifiers to entries of one kind."""
    return {"kind": "table", "entry": entry, "example": example, **limits}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ "Did you mean `x`? Known: ..." for a name that was not found."""
    choices = list(known)
    close = difflib.get_close_matches(name, choices, 1)
    close = close or [choice for choice in choices if name and choice.startswith(name)]
    hint = f"Did you mean `{close[0]}`? " if close else ""
    if hint and len(choices) > _MOST_LISTED:
        return hint.rstrip()
    return f"{hint}Known: {', '.join(choices) or 'none'}."


def as_tuple(value: Any) -> tuple[Any, ...] | None:
    """A list or tuple as a tuple, else None."""
    return tuple(cast(Iterable[Any], value)) if isinstance(value, list | tuple) else None


def _name(value: Any, limits: Mapping[str, Any]) -> str:
    if value == "" and limits.get("optional"):
        return ""
    if isinstance(value, str) and _NAME.fullmatch(value):
        return ""
    return (
        f"is {value!r}, which is no identifier; names may reach generated source.\n"
        "Use letters, digits and _ only, at most 64, not a digit first."
    )


def _word(value: Any, limits: Mapping[str, Any]) -> str:
    if isinstance(value, str) and _WORD.fullmatch(value):
        return ""
    return f"is {value!r}; it must be 1 to 64 letters, digits or _ . + -, such as sm_90a."


def _text(value: Any, limits: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        return f"is {value!r}; it must be text. Put it in quotes."
    if limits.get("one_line") and ("\n" in value or "\r" in value):
        return f"is {value!r}; it must be one line. Move longer source to native_implementation."
    return ""


def _choice(value: Any, limits: Mapping[str, Any]) -> str:
    if isinstance(value, str) and value in limits["of"]:
        return ""
    return f"is {value!r}.\n{did_you_mean(str(value), limits['of'])}"


def _number(value: Any, limits: Mapping[str, Any]) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"is {value!r}; it must be a number. Its unit belongs in the key, not in the value."
    if not math.isfinite(value):
        return f"is {value!r}; it must be a finite number."
    if limits.get("positive") and value <= 0:
        return f"is {value!r}; it must be above 0."
    if value < 0:
        return f"is {value!r}; it must not be below 0."
    if "most" in limits and value > limits["most"]:
        return f"is {value!r}; it must not be above {limits['most']}."
    return ""


def _count(value: Any, limits: Mapping[str, Any]) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return f"is {value!r}; it must be a whole number."
    return _number(value, limits)


def _flag(value: Any, limits: Mapping[str, Any]) -> str:
    return "" if isinstance(value, bool) else f"is {value!r}; it must be true or false."


def _texts(value: Any, limits: Mapping[str, Any]) -> str:
    items = as_tuple(value)
    if items is not None and all(isinstance(item, str) for item in items):
        return ""
    return f"is {value!r}; it must be a list of texts."


_ENTRY: dict[str, tuple[Callable[[Any, Mapping[str, Any]], str], dict[str, Any]]] = {
    "names": (_name, {}),
    "extents": (_count, {}),
    "slots": (_number, {"positive": True}),
    "sources": (_text, {}),
    "dtype": (_choice, {"of": DATA_TYPES}),
}


def _table(value: Any, limits: Mapping[str, Any]) -> str:
    """A table from identifiers to values of the kind `limits["entry"]`."""
    if not isinstance(value, Mapping):
        return f"is {value!r}; it must be a table, as {limits['example']}."
    check, entry_limits = _ENTRY[limits["entry"]]
    for key, entry in cast(Mapping[str, Any], value).items():
        problem = _name(key, {})
        if problem:
            return f"key {problem}"
        if "keys" in limits and key not in limits["keys"]:
            return f"has the unknown key {key!r}.\n{did_you_mean(str(key), limits['keys'])}"
        problem = check(entry, entry_limits)
        if problem:
            return f"{key} {problem}"
    return ""


def _data_types(value: Any, limits: Mapping[str, Any]) -> str:
    example = {"entry": "dtype", "example": '{a = "bfloat16", d = "float32"}'}
    rows = as_tuple(value)
    if not rows:
        return f"is {value!r}; it must be a list of tables, as [{example['example']}]."
    for position, row in enumerate(rows):
        problem = _table(row, example)
        if problem or not row:
            return f"row {position + 1} {problem or 'is empty; name at least one operand.'}"
    return ""


_CHECKS = {
    "name": _name,
    "word": _word,
    "text": _text,
    "choice": _choice,
    "number": _number,
    "count": _count,
    "flag": _flag,
    "texts": _texts,
    "table": _table,
    "data_types": _data_types,
}


def problem_of(field: "dataclasses.Field[Any]", value: Any) -> str:
    """What is wrong with a value for a field, or ""."""
    if field.metadata.get("kind") in (None, "parts"):
        return ""
    return _CHECKS[field.metadata["kind"]](value, field.metadata)


def faulty_entry(field: "dataclasses.Field[Any]", value: Any) -> str:
    """The first key of a table at which something is wrong, "" for a value of another kind."""
    if field.metadata.get("kind") != "table" or not isinstance(value, Mapping):
        return ""
    entries = cast(Mapping[str, Any], value).items()
    return next((key for key, entry in entries if problem_of(field, {key: entry})), "")


def settle_fields(record: Any) -> None:
    """Raise SpecError for the first field of a new dataclass whose value breaks its kind.

    Then numbers become float and mappings FrozenTable, so that equal specs print alike.
    """
    for field in dataclasses.fields(record):
        problem = problem_of(field, getattr(record, field.name))
        if problem:
            label = f"{type(record).__name__} {getattr(record, 'name', '')!r}"
            raise SpecError(f"{label}: {field.name} {problem}")
        object.__setattr__(record, field.name, _settled(field, getattr(record, field.name)))


def _settled(field: "dataclasses.Field[Any]", value: Any) -> Any:
    kind = field.metadata.get("kind")
    if kind == "number":
        return float(value)
    if kind == "table":
        numeric = field.metadata["entry"] == "slots"
        return FrozenTable({key: float(v) if numeric else v for key, v in value.items()})
    if kind == "data_types":
        return tuple(FrozenTable(row) for row in value)
    return as_tuple(value) if isinstance(value, list) else value
