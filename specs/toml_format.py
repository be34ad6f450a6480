"""Read and write specs as TOML. A malformed file gives one SpecError with every located problem."""

import dataclasses
import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from eqsat.errors import SpecError

from .fields import as_tuple, did_you_mean, faulty_entry, problem_of
from .model import ParallelGroup, ParallelMemory, ParallelOperation, ParallelProcessingUnit
from .references import Problem, reference_problems
from .semantics import OperationSemantics
from .toml_text import write_unit

_FOLDER = Path(__file__).parent
_SECTIONS: dict[str, type] = {
    "parallel_groups": ParallelGroup,
    "memory_domains": ParallelMemory,
    "operations": ParallelOperation,
}
_MAX_BYTES = 4_000_000


def available() -> list[str]:
    """The names of the shipped specs."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load(path_or_name: str | os.PathLike[str]) -> ParallelProcessingUnit:
    """Read a spec from a file, or a shipped one by its name. Raises SpecError."""
    if not _is_path(path_or_name):
        raise SpecError(
            f"a spec is read from a path, or by a shipped name; got a "
            f"{type(path_or_name).__name__}.\nGive one of {', '.join(available())}, or a path."
        )
    path = Path(path_or_name)
    if isinstance(path_or_name, str) and path_or_name in available():
        path = _FOLDER / f"{path_or_name}.toml"
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise SpecError(f"{path} is above {_MAX_BYTES} bytes.\nGive a smaller file.")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        if isinstance(error, SpecError):
            raise
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise SpecError(
            f"cannot read the spec `{path_or_name}`: {reason}.\n"
            f"Give a path, or a shipped name. {did_you_mean(str(path_or_name), available())}"
        ) from error
    return loads(text, origin=path.name)


def _is_path(value: object) -> bool:
    return isinstance(value, str | os.PathLike)


def loads(text: str, origin: str = "spec text") -> ParallelProcessingUnit:
    """Read a spec from TOML text; `origin` is the file name that errors show."""
    return _unit(text, origin)


@lru_cache(maxsize=16)
def _unit(text: str, origin: str) -> ParallelProcessingUnit:
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SpecError(f"{origin}: no valid TOML: {error}.\nCorrect the syntax there.") from error
    reader = _Reader(document)
    fields = reader.unit()
    if reader.problems:
        raise _report(origin, text, reader.problems)
    return ParallelProcessingUnit(**fields)


def dumps(unit: ParallelProcessingUnit) -> str:
    """The TOML text of a spec; `loads(dumps(unit)) == unit`."""
    return write_unit(unit)


class _Reader:
    """Turns a TOML document into field values and collects what is wrong with it."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.problems: list[Problem] = []

    def unit(self) -> dict[str, Any]:
        fields = self.table(ParallelProcessingUnit, self.document, "", 0)
        for section, part in _SECTIONS.items():
            fields[section] = self.parts(section, part)
        if not self.problems:
            self.problems += reference_problems(
                fields["tile_group"],
                fields["parallel_groups"],
                fields["memory_domains"],
                fields["operations"],
            )
        return fields

    def parts(self, section: str, part: type) -> tuple[Any, ...]:
        tables = as_tuple(self.document.get(section, ()))
        if tables is None or not all(isinstance(table, dict) for table in tables):
            text = f"is no list of tables. Head each with [[{section}]]."
            self.problems.append(Problem("", 0, section, text))
            return ()
        found: list[Any] = []
        for position, table in enumerate(tables):
            before = len(self.problems)
            fields = self.table(part, table, section, position)
            if len(self.problems) == before:
                found.append(part(**fields))
        return tuple(found)

    def table(
        self, part: type, table: Mapping[str, Any], section: str, position: int
    ) -> dict[str, Any]:
        """The field values of one table; problems are noted, not raised."""
        known = {field.name: field for field in dataclasses.fields(part)}
        values: dict[str, Any] = {}
        meant: set[str] = set()  # a misspelt key is one problem, not also a missing one
        label = str(table.get("name", position + 1))

        def note(key: str, text: str, entry: str = "") -> None:
            self.problems.append(Problem(section, position, key, text, label, entry))

        for key, value in table.items():
            if key not in known:
                note(key, f"is an unknown key.\n{did_you_mean(key, known)}")
                meant.update(difflib.get_close_matches(key, known, 1))
            elif known[key].metadata.get("kind") == "parts":
                continue
            elif key == "semantics":
                values[key] = self.semantics(value, note)
            elif problem := problem_of(known[key], value):
                note(key, problem, faulty_entry(known[key], value))
            else:
                values[key] = as_tuple(value) if isinstance(value, list) else value
        for key, field in known.items():
            if key in table or key in meant or field.default is not dataclasses.MISSING:
                continue
            if section or key not in _SECTIONS:
                note(key, f"is missing. Add `{key} = ...`.")
        return values

    def semantics(self, value: Any, note: Any) -> OperationSemantics | None:
        if not isinstance(value, str):
            note("semantics", f"is {value!r}; it must be text, as 'd[m,n] += a[m,k] * b[k,n]'.")
            return None
        try:
            return OperationSemantics.parse(value)
        except SpecError as error:
            note("semantics", f"does not parse: {error}")
            return None


def _report(origin: str, text: str, problems: list[Problem]) -> SpecError:
    lines = text.splitlines()
    located: list[tuple[int, str]] = []
    for problem in problems:
        line = _line_of(lines, problem)
        place = f"{origin}:{line}" if line else origin
        message = problem.text.replace("\n", "\n    ")
        located.append((line, f"{place}: {problem.where} {message}"))
    messages = [message for _, message in sorted(located, key=lambda pair: pair[0])]
    if len(messages) == 1:
        return SpecError(messages[0])
    return SpecError(f"{len(messages)} problems in {origin}:\n  " + "\n  ".join(messages))


def _line_of(lines: list[str], problem: Problem) -> int:
    """The line of the problem's entry, else of its key, else of its table's header; 0 if none is
    found.
    """
    first, last = _extent_of(lines, problem.section, problem.position)
    name, entry = re.escape(problem.key), re.escape(problem.entry)
    key = re.compile(
        rf"""\s*(?:["']?{name}["']?\s*[=.]|\[\s*{problem.section}\s*\.\s*{name}\s*\])"""
    )
    at = next((number for number in range(first, last) if key.match(lines[number])), None)
    if at is None:
        return first if problem.section else 0
    own = re.compile(rf"""\s*(?:{name}\s*\.\s*)?["']?{entry}["']?\s*=""")
    found = (number for number in range(at, last) if entry and own.match(lines[number]))
    return next(found, at) + 1


def _extent_of(lines: list[str], section: str, position: int) -> tuple[int, int]:
    """The range of lines of one table's body; its header is just before."""
    heads = [number for number, line in enumerate(lines) if re.match(r"\s*\[\[", line)]
    if not section:
        return 0, heads[0] if heads else len(lines)
    own = [n for n in heads if re.match(rf"\s*\[\[\s*{re.escape(section)}\s*\]\]", lines[n])]
    if position >= len(own):
        return 0, 0
    later = [number for number in heads if number > own[position]]
    return own[position] + 1, later[0] if later else len(lines)
