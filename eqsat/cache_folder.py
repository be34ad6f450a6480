"""Files of the persistent cache: a private folder, atomic writes, reads that check the hash."""

import hashlib
import os
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from eqsat.errors import CacheError

try:
    import fcntl
except ImportError:  # not on Windows, where the lock below guards nothing
    fcntl = None


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


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` so that `path` is seen whole or not at all, by readers and after a crash."""
    handle, name = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_checked(path: Path, sha256: str) -> bytes | None:
    """The content of `path`; None if its hash is not `sha256`, or it is a link or not ours.

    Raises FileNotFoundError if it is missing.
    """
    if path.is_symlink():
        return None
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_uid != os.getuid():
            return None
        data = file.read()
    return data if hashlib.sha256(data).hexdigest() == sha256 else None


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
