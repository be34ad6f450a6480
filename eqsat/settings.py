"""What the environment says, parsed once and in one place.

Every variable is listed in `VARIABLES`; a bad value is refused with the good ones.
"""

import difflib
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from eqsat.errors import SettingsError

PRECISIONS = ("exact", "default", "tf32", "bf16")
"""What a program may round, from least to most; each allows what those before it allow."""

VARIABLES = {
    "EQSAT_DEBUG": "what to print: 0 nothing, 1 summary, 2 explain, 3 kernel IR, 4 source",
    "EQSAT_CACHE_DIR": "folder of the persistent cache, or off",
    "EQSAT_PRECISION": "what a program may round: exact, default, tf32 or bf16",
    "EQSAT_NUM_THREADS": "threads of the CPU target, from 1",
    "EQSAT_SEARCH_SECONDS": "limit of one search, in seconds of a core, above 0",
    "EQSAT_SEARCH_NODES": "e-node limit of one search, from 1",
    "EQSAT_SEARCH_MEMORY_MB": "memory limit of the search process in MB, from 1",
}


class SettingsWarning(UserWarning):
    """A variable of this package's that it does not know."""


class Debug(IntEnum):
    """What a compile prints; each level includes the ones below."""

    NONE = 0
    SUMMARY = 1
    EXPLAIN = 2
    KERNEL = 3
    SOURCE = 4


_DEBUG_MEANS = {
    Debug.NONE: "nothing",
    Debug.SUMMARY: "summary",
    Debug.EXPLAIN: "explain",
    Debug.KERNEL: "kernel IR",
    Debug.SOURCE: "source",
}


@dataclass(frozen=True)
class Settings:
    """The settings of one compile.

    cache_dir: absolute folder of the persistent cache; None keeps everything in memory.
    num_threads: threads that a CPU program may use.
    search_seconds, search_nodes, search_memory_mb: the search stops at the first limit it meets.
    precision: what a program may round where its compile does not say; see `eqsat.compile`.
    """

    debug: Debug = Debug.NONE
    cache_dir: Path | None = None
    num_threads: int = 1
    search_seconds: float = 8.0
    search_nodes: int = 250_000
    search_memory_mb: int = 1000
    precision: str = "default"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Settings":
        """The settings that `environment` (default `os.environ`) asks for.

        Raises SettingsError for a bad value, naming the variable and the good values. Warns of
        variables with the package's prefix that it does not know.
        """
        given = os.environ if environment is None else environment
        for name in given:
            if name.startswith("EQSAT_") and name not in VARIABLES:
                text = f"{name} is set, but is no setting. {_known(name)}"
                warnings.warn(text, SettingsWarning, 1)
        return cls(
            debug=_debug(given),
            cache_dir=_cache_dir(given),
            num_threads=_whole(given, "EQSAT_NUM_THREADS", _usable_cores()),
            search_seconds=_seconds(given, "EQSAT_SEARCH_SECONDS", cls.search_seconds),
            search_nodes=_whole(given, "EQSAT_SEARCH_NODES", cls.search_nodes),
            search_memory_mb=_whole(given, "EQSAT_SEARCH_MEMORY_MB", cls.search_memory_mb),
            precision=_precision(given),
        )


def _known(name: str) -> str:
    close = difflib.get_close_matches(name, VARIABLES, 1)
    hint = f"Did you mean `{close[0]}`? " if close else ""
    return f"{hint}Known: {', '.join(VARIABLES)}."


def _debug(given: Mapping[str, str]) -> Debug:
    text = given.get("EQSAT_DEBUG", "").strip()
    if not text:
        return Debug.NONE
    good = {str(level.value): level for level in Debug}
    if text not in good:
        levels = ", ".join(f"{level.value} ({_DEBUG_MEANS[level]})" for level in Debug)
        raise SettingsError(f"EQSAT_DEBUG is {text!r}. Use one of {levels}.")
    return good[text]


def _cache_dir(given: Mapping[str, str]) -> Path | None:
    text = given.get("EQSAT_CACHE_DIR", "").strip()
    if text.lower() == "off":
        return None
    if not text:
        return _default_cache_dir(given)
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise SettingsError(
            f"EQSAT_CACHE_DIR is {text!r}, whose home folder is not known. "
            "Use an absolute path, or off."
        ) from error


def _default_cache_dir(given: Mapping[str, str]) -> Path:
    base = Path(given.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():  # a relative one is to be ignored: XDG base directory specification
        return base / "eqsat"
    try:
        return Path.home() / ".cache" / "eqsat"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"eqsat-{os.getuid()}"


def _whole(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, "").strip()
    if not text:
        return default
    if not re.fullmatch("0*[1-9][0-9]{0,17}", text):
        raise SettingsError(f"{name} is {text!r}. Use a whole number: {VARIABLES[name]}.")
    return int(text)


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise SettingsError(f"{name} is {text!r}. Use a number of seconds: {VARIABLES[name]}.")
    return value


def _precision(given: Mapping[str, str]) -> str:
    text = given.get("EQSAT_PRECISION", "").strip() or Settings.precision
    if text not in PRECISIONS:
        raise SettingsError(f"EQSAT_PRECISION is {text!r}. Use one of {', '.join(PRECISIONS)}.")
    return text


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
