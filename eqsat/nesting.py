"""Nestings of mappings, lists and tuples: what a program takes and gives its results in."""

from collections.abc import Mapping, Sequence
from typing import Any, cast


def flatten(structure: Any) -> list[Any]:
    """The leaves of nested mappings, lists and tuples, in order."""
    if isinstance(structure, Mapping):
        nested = cast("Mapping[Any, Any]", structure)
        return [leaf for value in nested.values() for leaf in flatten(value)]
    if isinstance(structure, list | tuple):
        parts = cast("Sequence[Any]", structure)
        return [leaf for value in parts for leaf in flatten(value)]
    return [structure]


def same_structure(a: Any, b: Any) -> bool:
    """Whether two nestings have the same keys and lengths; a list is as good as a tuple."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        one, other = cast("Mapping[Any, Any]", a), cast("Mapping[Any, Any]", b)
        return [*one] == [*other] and all(same_structure(one[k], other[k]) for k in one)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        pair = cast("Sequence[Any]", a), cast("Sequence[Any]", b)
        return len(pair[0]) == len(pair[1]) and all(map(same_structure, *pair))
    return not isinstance(a, Mapping | list | tuple) and not isinstance(b, Mapping | list | tuple)


def outline(structure: Any) -> str:
    """A nesting as text, each leaf a dot."""
    if isinstance(structure, Mapping):
        items = cast("Mapping[Any, Any]", structure).items()
        return "{" + ", ".join(f"{key!r}: {outline(value)}" for key, value in items) + "}"
    if isinstance(structure, list | tuple):
        return "(" + ", ".join(map(outline, cast("Sequence[Any]", structure))) + ")"
    return "."


def unflatten(structure: Any, leaves: list[Any]) -> Any:
    """Leaves put back into the same nesting."""
    if isinstance(structure, Mapping):
        nested = cast("Mapping[Any, Any]", structure)
        return {key: unflatten(value, leaves) for key, value in nested.items()}
    if isinstance(structure, list | tuple):
        parts = cast("Sequence[Any]", structure)
        values = [unflatten(value, leaves) for value in parts]
        if isinstance(structure, list):
            return values
        named = hasattr(parts, "_fields")
        return cast(Any, type(parts))(*values) if named else tuple(values)
    return leaves.pop(0)
