"""Records of the persistent cache: one SQLite table that several processes share.

A database that is damaged, foreign or of another layout is discarded and made anew.
"""

import hashlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eqsat.cache.folder import folder_lock

FORMAT = 2  # layout of the table and meaning of its columns; raise it on any change
_APPLICATION = 0x65717361  # "eqsa": marks the database as ours
_BUSY_SECONDS = 10.0
_TABLE = """
CREATE TABLE records (
    kind TEXT NOT NULL, key TEXT NOT NULL, format INTEGER NOT NULL, eqsat TEXT NOT NULL,
    bytes INTEGER NOT NULL, created REAL NOT NULL, used REAL NOT NULL,
    sha256 TEXT NOT NULL, value TEXT NOT NULL,
    UNIQUE (kind, key)
)"""
_COLUMNS = "kind, key, format, eqsat, bytes, created, used, sha256, value"
_BEYOND_LIMIT = """
SELECT rowid FROM (
    SELECT rowid, sum(bytes) OVER (ORDER BY used DESC, rowid DESC) AS total FROM records
) WHERE total > ? AND rowid != (SELECT rowid FROM records ORDER BY used DESC, rowid DESC LIMIT 1)
"""
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}


class ForeignDatabaseError(sqlite3.DatabaseError):
    """A database of another program, or of another format of ours."""


def is_damaged(error: sqlite3.Error) -> bool:
    """Whether `error` means that the database itself is bad, not busy, full or unwritable."""
    return isinstance(error, ForeignDatabaseError) or _code(error) in _DAMAGED


def is_busy(error: sqlite3.Error) -> bool:
    """Whether `error` means that another process held the database for too long."""
    return _code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _code(error: sqlite3.Error) -> int:
    # The low byte is the primary code: https://www.sqlite.org/rescode.html
    return getattr(error, "sqlite_errorcode", 0) & 255


@dataclass(frozen=True)
class Record:
    """One entry: `value` is JSON text."""

    value: str
    sha256: str
    format: int
    eqsat: str

    @property
    def is_whole(self) -> bool:
        return hashlib.sha256(self.value.encode()).hexdigest() == self.sha256


class Records:
    """The table in `folder`/records.sqlite; one connection, used by one thread at a time.

    A process forked from this one gets a connection of its own. Methods raise sqlite3.Error.
    """

    def __init__(self, folder: Path, version: str) -> None:
        self._folder = folder
        self._version = version
        self._lock = threading.RLock()
        self._inherited: list[sqlite3.Connection] = []
        self.was_discarded = self._reopen(check="PRAGMA user_version")

    def get(self, kind: str, key: str) -> Record | None:
        with self._use() as db:
            row = db.execute(
                "SELECT value, sha256, format, eqsat FROM records WHERE kind=? AND key=?",
                (kind, key),
            ).fetchone()
            return None if row is None else Record(*row)

    def touch(self, kind: str, key: str) -> None:
        with self._use() as db:
            db.execute("UPDATE records SET used=? WHERE kind=? AND key=?", (time.time(), kind, key))

    def put(self, kind: str, key: str, value: str, size: int) -> None:
        digest = hashlib.sha256(value.encode()).hexdigest()
        now = time.time()
        row = (kind, key, FORMAT, self._version, size, now, now, digest, value)
        with self._use() as db:
            db.execute("INSERT OR REPLACE INTO records VALUES (?,?,?,?,?,?,?,?,?)", row)

    def drop(self, kind: str, key: str) -> None:
        with self._use() as db:
            db.execute("DELETE FROM records WHERE kind=? AND key=?", (kind, key))

    def drop_beyond(self, limit: int) -> int:
        """Drop the least recently used records whose bytes exceed `limit`, never the newest."""
        statement = f"DELETE FROM records WHERE rowid IN ({_BEYOND_LIMIT})"
        with self._use() as db:
            return db.execute(statement, (limit,)).rowcount

    def drop_all(self) -> None:
        with self._use() as db:
            db.execute("DELETE FROM records")

    def drop_other_versions(self) -> int:
        """Drop what another version of eqsat or of the format wrote; how many there were."""
        with self._use() as db:
            return db.execute(
                "DELETE FROM records WHERE format != ? OR eqsat != ?", (FORMAT, self._version)
            ).rowcount

    def total_bytes(self) -> int:
        with self._use() as db:
            return db.execute("SELECT coalesce(sum(bytes), 0) FROM records").fetchone()[0]

    def totals(self) -> dict[str, tuple[int, int]]:
        """For each kind, how many records and how many bytes."""
        with self._use() as db:
            rows = db.execute("SELECT kind, count(*), sum(bytes) FROM records GROUP BY kind")
            return {kind: (count, size) for kind, count, size in rows}

    @contextmanager
    def transaction(self) -> Generator[None, None, None]:
        """Hold the only writer's place, for changes that belong together."""
        with self._use() as db:
            try:
                db.execute("BEGIN IMMEDIATE")
                yield
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def rebuild(self) -> bool:
        """Connect again; if the database is bad, discard it first. True if it was discarded."""
        self.close()
        return self._reopen(check="PRAGMA quick_check(1)")

    def close(self) -> None:
        with self._lock:
            self._finalizer()

    @property
    def _path(self) -> Path:
        return self._folder / "records.sqlite"

    @contextmanager
    def _use(self) -> Generator[sqlite3.Connection, None, None]:
        if os.getpid() != self._process:
            # SQLite forbids a connection carried across a fork, even to close it.
            self._inherited.append(self._db)
            self._finalizer.detach()
            self._lock = threading.RLock()
            self._reopen(check="PRAGMA user_version")
        with self._lock:
            yield self._db

    def _reopen(self, check: str) -> bool:
        with folder_lock(self._folder):  # another process may be opening or discarding it too
            discarded = False
            try:
                db = self._open(check)
            except sqlite3.Error as error:
                if not is_damaged(error):
                    raise
                for suffix in ("", "-wal", "-shm"):
                    Path(f"{self._path}{suffix}").unlink(missing_ok=True)
                db = self._open(check)
                discarded = True
            self._db = db
            self._process = os.getpid()
            self._finalizer = weakref.finalize(self, db.close)
            return discarded

    def _open(self, check: str) -> sqlite3.Connection:
        """A connection to our own table, created if missing, that passes `check`."""
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(
            self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            self._prepare(db)
            if db.execute(check).fetchone() not in {("ok",), (FORMAT,)}:
                raise ForeignDatabaseError(f"{self._path} fails {check}")
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if tables == 0:
            db.execute("BEGIN IMMEDIATE")
            db.execute(_TABLE)
            db.execute(f"PRAGMA application_id={_APPLICATION}")
            db.execute(f"PRAGMA user_version={FORMAT}")
            db.execute("COMMIT")
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if (application, version) != (_APPLICATION, FORMAT):
            raise ForeignDatabaseError(f"{self._path} was not written by this format of the cache")
        db.execute(f"SELECT {_COLUMNS} FROM records LIMIT 0")  # fails on other columns
