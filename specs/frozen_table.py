"""A small mapping that can be a field of a frozen, hashable dataclass."""

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import TypeVar

Value = TypeVar("Value", covariant=True)


class FrozenTable(Mapping[str, Value]):
    """An immutable, hashable, picklable mapping that keeps the order in which it was written."""

    __slots__ = ("_values",)
    _values: dict[str, Value]

    def __init__(self, values: "Mapping[str, Value] | Iterable[tuple[str, Value]]" = ()) -> None:
        object.__setattr__(self, "_values", dict(values))

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def values(self) -> ValuesView[Value]:
        return self._values.values()

    def items(self) -> ItemsView[str, Value]:
        return self._values.items()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a FrozenTable does not change; got {name} = {value!r}")

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return f"FrozenTable({self._values!r})"

    def __reduce__(self) -> tuple[type, tuple[dict[str, Value]]]:
        return FrozenTable, (self._values,)
