"""Things by their names: each once, and what a wrong one may have meant."""

import difflib
from collections.abc import Iterable
from typing import Protocol, TypeVar

from eqsat.errors import RuleError


class Named(Protocol):
    """What has a name."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


def distinct(items: Iterable[N], kind: str = "rules") -> tuple[N, ...]:
    """Things of a kind, in order, each once; RuleError for a second one of one name."""
    found: dict[str, N] = {}
    for one in items:
        if found.setdefault(one.name, one) != one:
            raise RuleError(f"two {kind} are named {one.name}; rename one of them")
    return tuple(found.values())


def nearest(name: str, names: Iterable[str]) -> str:
    """What a wrong name may have meant."""
    found = difflib.get_close_matches(name, [*names], n=1)
    return f"Did you mean {found[0]}?" if found else f"Use one of {', '.join(names)}."
