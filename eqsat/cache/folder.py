"""Files of the persistent cache: a private folder, its lock, and what is used longest ago."""

import os
import stat
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from eqsat.errors import CacheError

try:
    import fcntl
except ImportError:  # not on Windows, where the lock below guards nothing
    fcntl = None


LEAST_AGE = 3600.0  # seconds that a file stays, however large


def private_folder(path: Path) -> Path:
    """`path` as a folder that no other user can write to, created with mode 0700 if missing.

    Raises CacheError if it belongs to someone else or others may write to it: what lies in a
    cache is loaded and run. Raises OSError if it cannot be created.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.getuid():
        raise CacheError(
            f"cache folder {path} (mode {mode:04o}) belongs to user {status.st_uid}, "
            f"not to you ({os.getuid()}). Set EQSAT_CACHE_DIR to a folder of your own, or to off."
        )
    if mode & 0o022:
        raise CacheError(
            f"cache folder {path} has mode {mode:04o}: others may write to it. "
            f"Run chmod 700 {path}, or set EQSAT_CACHE_DIR to another folder, or to off."
        )
    return path


@cache
def _process_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="eqsat-")


def temporary_folder() -> Path:
    """A private folder that goes with this process."""
    return Path(_process_folder().name)


def sizes(folder: Path) -> dict[Path, int]:
    """The files below a folder and their bytes; of those that another process deletes nothing."""
    return {path: status.st_size for path, status in _files(folder)}


def drop_oldest(folder: Path, most: int) -> None:
    """Delete the files below a folder that were used longest ago, until the others have no more
    than `most` bytes; none that is so new that a process may be about to load it.
    """
    used = [(max(s.st_atime, s.st_mtime), s.st_size, path) for path, s in _files(folder)]
    total, now = sum(size for _, size, _ in used), time.time()
    for when, size, path in sorted(used):
        if total <= most or now - when < LEAST_AGE:
            return
        path.unlink(missing_ok=True)
        total -= size


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode):
                yield path, status


@contextmanager
def folder_lock(folder: Path) -> Generator[None, None, None]:
    """Hold the folder's lock: one process at a time opens or rebuilds the database."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)  # which also unlocks
