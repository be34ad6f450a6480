"""The persistent cache: what a search decided and what a compile made, kept between processes.

A folder of our own holds records.sqlite (JSON values, each with its hash) and code/ (compiled
kernels, named after what they were compiled from, and Numba's own cache). Where both take more than
the limit, what was used longest ago goes. A value that cannot be trusted is discarded with a
CacheWarning and made again; where the folder cannot be written, entries stay in memory.
"""

import hashlib
import json
import re
import shutil
import sqlite3
import tempfile
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from eqsat import __version__
from eqsat.cache.folder import drop_oldest, private_folder, sizes
from eqsat.cache.records import FORMAT, Record, Records, is_busy, is_damaged
from eqsat.errors import CacheError, CacheWarning
from eqsat.settings import Settings

DEFAULT_MAX_BYTES = 2_000_000_000
CODE = "code"
_PUTS = 256  # values, between two looks at how much compiled code there is
_KIND = re.compile("[a-z][a-z0-9_]*")
_KEY = re.compile("[0-9a-f]{64}")
_IN_MEMORY = (
    "cannot use the cache folder {folder}: {error}. This process keeps new entries in memory. "
    "Make the folder writable, free some space, or set EQSAT_CACHE_DIR to another folder or to off."
)
_REBUILT = "cache folder {folder}: discarded a damaged or foreign database; it is being rebuilt"
T = TypeVar("T")


def content_key(*parts: str | bytes) -> str:
    """The cache key of `parts` in this order: sha256 as hex text; no two lists share one."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(f"{type(part).__name__}:{len(data)}:".encode() + data)
    return digest.hexdigest()


@dataclass(frozen=True)
class CacheStats:
    """What a cache holds: counts and bytes by kind on disk, of compiled files as `code`; and this
    process's hits and misses.
    """

    folder: Path | None
    entries: dict[str, int]
    bytes: dict[str, int]
    max_bytes: int
    in_memory: int
    hits: int
    misses: int


class Cache:
    """Values by kind and key, and a folder for compiled code; see `Cache.open`.

    kind: a plain word such as "program". key: 64 hex digits, from `content_key`.
    Several threads and processes may use one folder at once.
    """

    def __init__(self, folder: Path | None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._records: Records | None = None
        self._is_writable = True
        self._values: dict[tuple[str, str], str] = {}  # only what is not on disk
        self._scratch: Path | None = None
        self._hits = self._misses = self._puts = 0
        if folder is not None:
            self._start(folder)

    @classmethod
    def open(cls, path: Path | str | None = None, max_bytes: int = DEFAULT_MAX_BYTES) -> "Cache":
        """The cache in folder `path`; None asks the environment (EQSAT_CACHE_DIR, see settings).

        Raises CacheError if the folder belongs to someone else or others may write to it. A folder
        that cannot be made or written gives a cache in memory, with a CacheWarning.
        """
        if path is None:
            return cls(Settings.from_environment().cache_dir, max_bytes)
        return cls(Path(path).expanduser().absolute(), max_bytes)

    def get(self, kind: str, key: str) -> dict[str, Any] | None:
        """The value last put under `kind` and `key`, or None."""
        _check(kind, key)
        text = self._values.get((kind, key))
        value = self._read_value(kind, key) if text is None else json.loads(text)
        self._count(value is not None)
        return value

    def put(self, kind: str, key: str, value: dict[str, Any]) -> None:
        """Keep `value`, which must be JSON: str keys, lists not tuples."""
        _check(kind, key)
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))

        def write(records: Records) -> bool:
            with records.transaction():
                records.put(kind, key, text, len(text))
                self._evict(records)
            return True

        if self._on_disk(write, False, writes=True):
            self._values.pop((kind, key), None)
        else:
            self._values[kind, key] = text

    @property
    def code_dir(self) -> Path:
        """The folder for compiled code; a temporary one while nothing persists."""
        if self._folder is not None and self._records is not None and self._is_writable:
            return self._folder / CODE
        return self._scratch_folder()

    def clear(self) -> None:
        """Forget every entry and delete every file of the cache; folders stay."""
        self._values.clear()

        def wipe(records: Records) -> None:
            with records.transaction():
                records.drop_all()
                for path in sizes(self.code_dir):
                    path.unlink(missing_ok=True)

        self._on_disk(wipe, None, writes=True)

    def stats(self) -> CacheStats:
        nothing: dict[str, tuple[int, int]] = {}
        totals = self._on_disk(self._totals, nothing, writes=False)
        return CacheStats(
            folder=self._folder if self._records is not None else None,
            entries={kind: count for kind, (count, _) in totals.items()},
            bytes={kind: size for kind, (_, size) in totals.items()},
            max_bytes=self._max_bytes,
            in_memory=len(self._values),
            hits=self._hits,
            misses=self._misses,
        )

    def close(self) -> None:
        """Let go of the database; what was put is already safe, and later calls use memory."""
        if self._records is not None:
            self._records.close()
            self._records = None

    def _start(self, folder: Path) -> None:
        try:
            for part in (folder, folder / CODE):
                private_folder(part)
            records = Records(folder, __version__)
        except CacheError:
            raise
        except (OSError, sqlite3.Error) as error:
            _warn(_IN_MEMORY.format(folder=folder, error=error))
            return
        self._records = records
        dropped = self._on_disk(lambda records: records.drop_other_versions(), 0, writes=True)
        self._on_disk(self._evict_code, None, writes=True)
        if records.was_discarded:
            _warn(_REBUILT.format(folder=folder))
        if dropped:
            _warn(f"cache folder {folder}: discarded {dropped} entries of another eqsat version")

    def _on_disk(self, act: Callable[[Records], T], otherwise: T, writes: bool) -> T:
        """`act` on the records; `otherwise` if the disk is out of use or just failed."""
        for _ in range(2):
            if self._records is None or (writes and not self._is_writable):
                return otherwise
            try:
                return act(self._records)
            except (OSError, sqlite3.Error) as error:
                if not self._mend(error, writes):
                    return otherwise
        return otherwise

    def _mend(self, error: OSError | sqlite3.Error, writes: bool) -> bool:
        """After `error`: whether to try once more. Otherwise memory takes over, all of it or
        only what would be written."""
        if isinstance(error, sqlite3.Error) and is_busy(error):
            return False
        assert self._records is not None
        if isinstance(error, sqlite3.Error) and is_damaged(error):
            try:
                discarded = self._records.rebuild()
            except (OSError, sqlite3.Error) as second:
                error = second
                writes = False  # the connection is gone: nothing can be read either
            else:
                if discarded:
                    _warn(_REBUILT.format(folder=self._folder))
                return True
        if writes:
            self._is_writable = False
        else:
            self._records = None
        _warn(_IN_MEMORY.format(folder=self._folder, error=error))
        return False

    def _read(self, kind: str, key: str) -> Record | None:
        record = self._on_disk(lambda records: records.get(kind, key), None, writes=False)
        if record is None:
            return None
        if not record.is_whole:
            self._discard(kind, key, "its content does not match its hash")
            return None
        if (record.format, record.eqsat) != (FORMAT, __version__):
            self._discard(kind, key, f"it was written by eqsat {record.eqsat}")
            return None
        self._on_disk(lambda records: records.touch(kind, key), None, writes=True)
        return record

    def _read_value(self, kind: str, key: str) -> dict[str, Any] | None:
        record = self._read(kind, key)
        if record is None:
            return None
        if not record.value.startswith("{"):  # its hash holds, so that it is whole JSON
            self._discard(kind, key, "it holds no JSON object")
            return None
        return json.loads(record.value)

    def _discard(self, kind: str, key: str, reason: str) -> None:
        self._on_disk(lambda records: records.drop(kind, key), None, writes=True)
        _warn(f"cache folder {self._folder}: discarded {kind} {key[:12]}, since {reason}")

    def _evict(self, records: Records) -> None:
        if records.total_bytes() > self._max_bytes:
            records.drop_beyond(self._max_bytes)
        self._puts += 1
        if self._puts % _PUTS == 0:
            self._evict_code(records)

    def _evict_code(self, records: Records) -> None:
        """Leave as much compiled code as the limit has room for beside the records."""
        drop_oldest(self.code_dir, max(self._max_bytes - records.total_bytes(), 0))

    def _totals(self, records: Records) -> dict[str, tuple[int, int]]:
        code = sizes(self.code_dir)
        return records.totals() | ({CODE: (len(code), sum(code.values()))} if code else {})

    def _scratch_folder(self) -> Path:
        """A folder for compiled code that goes with this cache."""
        try:
            if self._scratch is None:
                self._scratch = Path(tempfile.mkdtemp(prefix="eqsat-"))
                weakref.finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)
            path = self._scratch / CODE
            path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise CacheError(
                f"no room for compiled files: {error}. Free some space in "
                f"{self._scratch or tempfile.gettempdir()}, or set TMPDIR or EQSAT_CACHE_DIR to a "
                "folder with space."
            ) from error
        return path

    def _count(self, found: bool) -> None:
        self._hits += found
        self._misses += not found


def _warn(message: str) -> None:
    warnings.warn(message, CacheWarning, stacklevel=4)


def _check(kind: str, key: str) -> None:
    assert _KIND.fullmatch(kind), f"cache kind {kind!r} is no plain word"
    assert _KEY.fullmatch(key), f"cache key {key!r} is no sha256 in hex; use content_key"
