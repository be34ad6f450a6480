"""The whole table, and the choice of rows by name, group or pattern."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from eqsat.bench import attention_cases, host_cases, model_cases, product_cases, stream_cases
from eqsat.bench.case import Case

CASES: tuple[Case, ...] = (
    *product_cases.CASES,
    *stream_cases.CASES,
    *attention_cases.CASES,
    *model_cases.CASES,
    *host_cases.CASES,
)


def select(patterns: str, cases: Sequence[Case] = CASES) -> list[Case]:
    """The rows whose name or group matches one of the comma-separated patterns, in table order.

    Raises KeyError with a pattern that matches nothing.
    """
    chosen: dict[str, Case] = {}
    for pattern in patterns.split(","):
        found = [
            case
            for case in cases
            if fnmatchcase(case.name, pattern.strip()) or case.group == pattern.strip()
        ]
        if not found:
            raise KeyError(pattern)
        chosen |= {case.name: case for case in found}
    return [case for case in cases if case.name in chosen]
