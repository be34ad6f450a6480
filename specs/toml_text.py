"""Write spec dataclasses as TOML text; values at their default are left out."""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, cast

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_MAX_WIDTH = 100


def write_unit(unit: Any) -> str:
    """The TOML text of a processing unit: its plain keys, then one table per part."""
    lines: list[str] = []
    parts: list[str] = []
    for field in dataclasses.fields(unit):
        value = getattr(unit, field.name)
        if field.metadata.get("kind") == "parts":
            for part in value:
                parts += ["", f"[[{field.name}]]", *_lines(part)]
        elif _is_written(field, value):
            lines.append(_pair(field.name, value))
    return "\n".join([*lines, *parts]) + "\n"


def _lines(record: Any) -> list[str]:
    fields = dataclasses.fields(record)
    values = [(field, getattr(record, field.name)) for field in fields]
    return [_pair(field.name, value) for field, value in values if _is_written(field, value)]


def _is_written(field: "dataclasses.Field[Any]", value: Any) -> bool:
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    return default is dataclasses.MISSING or value != default


def _pair(key: str, value: Any) -> str:
    line = f"{key} = {_value(value)}"
    if isinstance(value, tuple) and len(line) > _MAX_WIDTH:
        items = "".join(f"  {_value(item)},\n" for item in cast(tuple[Any, ...], value))
        return f"{key} = [\n{items}]"
    return line


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        pairs = cast(Mapping[str, Any], value).items()
        return "{" + ", ".join(f"{key} = {_value(entry)}" for key, entry in pairs) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_value, cast(tuple[Any, ...], value))) + "]"
    return _text(str(value))


def _text(value: str) -> str:
    plain = not _CONTROL.search(value) and "'''" not in value and not value.endswith("'")
    if "\n" in value and plain:
        return f"'''\n{value}'''"
    escaped = json.dumps(value, ensure_ascii=False)
    return escaped.replace("\x7f", "\\u007f")
