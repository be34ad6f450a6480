"""The persistent cache: private, checked, shared by processes, and never the end of a compile."""

import errno
import hashlib
import multiprocessing
import os
import sqlite3
import stat
import warnings
from contextlib import closing
from pathlib import Path

import pytest

from eqsat.cache import folder as cache_folder
from eqsat.cache.store import Cache, content_key
from eqsat.errors import CacheError, CacheWarning

KEY = content_key("a graph", "a spec")
OTHER = content_key("another graph")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


def change(folder: Path, statement: str, *values: object) -> None:
    """Run one statement on the database behind the cache's back."""
    with closing(sqlite3.connect(folder / "records.sqlite")) as db:
        db.execute(statement, values)
        db.commit()


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_values_outlive_the_process_that_put_them(folder):
    first = Cache.open(folder)
    first.put("program", KEY, {"cost": 1.5, "tile": [128, 64], "text": "π"})
    first.close()
    second = Cache.open(folder)
    assert second.get("program", KEY) == {"cost": 1.5, "tile": [128, 64], "text": "π"}
    assert second.get("program", OTHER) is None and second.get("other", KEY) is None
    assert second.code_dir == folder / "code" and second.code_dir.is_dir()


def test_a_later_put_wins(folder):
    cache = Cache.open(folder)
    cache.put("program", KEY, {"v": 1})
    cache.put("program", KEY, {"v": 2})
    assert cache.get("program", KEY) == {"v": 2}


def test_keys_tell_parts_apart():
    keys = [content_key("ab"), content_key("a", "b"), content_key("b", "a"), content_key(b"ab")]
    assert len({*keys, content_key()}) == 5


@pytest.mark.parametrize("key", ["short", "../" * 21 + "x", KEY.upper()])
def test_a_key_that_is_no_hash_is_our_own_bug(folder, key):
    with pytest.raises(AssertionError, match="content_key"):
        Cache.open(folder).get("program", key)


def test_everything_is_private(folder):
    before = os.umask(0o022)
    try:
        Cache.open(folder).put("program", KEY, {"v": 1})
    finally:
        os.umask(before)
    for item in [folder, *folder.rglob("*")]:
        assert stat.S_IMODE(item.stat().st_mode) & 0o077 == 0, item


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
@pytest.mark.parametrize("part", ["", "code"])
def test_a_folder_that_others_may_write_to_is_refused(folder, mode, part):
    (folder / part).mkdir(parents=True)
    (folder / part).chmod(mode)
    with pytest.raises(CacheError) as caught:
        Cache.open(folder)
    message = str(caught.value)
    assert f"{mode:04o}" in message and f"chmod 700 {folder / part}" in message
    assert "EQSAT_CACHE_DIR" in message


def test_a_folder_of_someone_else_is_refused(folder, monkeypatch):
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(cache_folder.os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(CacheError, match=r"mode 0700\) belongs to user \d+, not to you"):
        Cache.open(folder)


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"", b"SQLite format 3\0"])
def test_a_damaged_database_is_discarded_and_rebuilt(folder, content):
    cache = Cache.open(folder)
    cache.close()
    (folder / "records.sqlite").write_bytes(content)
    if content:
        with pytest.warns(CacheWarning, match="discarded a damaged or foreign database"):
            cache = Cache.open(folder)
    else:
        cache = Cache.open(folder)  # an empty file is a new database
    cache.put("program", KEY, {"v": 1})
    assert Cache.open(folder).get("program", KEY) == {"v": 1}


@pytest.mark.parametrize(
    "statement",
    ["CREATE TABLE theirs (x)", "CREATE TABLE records (x)", "PRAGMA user_version=999"],
)
def test_a_foreign_database_is_discarded_and_rebuilt(folder, statement):
    folder.mkdir(mode=0o700)
    if statement.startswith("PRAGMA"):
        Cache.open(folder).close()
    change(folder, statement)
    with pytest.warns(CacheWarning, match="discarded a damaged or foreign database"):
        cache = Cache.open(folder)
    cache.put("program", KEY, {"v": 1})
    assert cache.get("program", KEY) == {"v": 1}


def test_damage_found_while_running_is_mended(folder):
    cache = Cache.open(folder)
    for number in range(200):
        cache.put("program", content_key(str(number)), {"text": "x" * 1000})
    cache.close()
    path = folder / "records.sqlite"
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.warns(CacheWarning, match="discarded a damaged"):
        cache = Cache.open(folder)
        assert cache.get("program", content_key("7")) is None
        cache.put("program", KEY, {"v": 1})
    assert Cache.open(folder).get("program", KEY) == {"v": 1}


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE records SET value='{\"v\":2}'", "content does not match its hash"),
        ("UPDATE records SET eqsat='0.0.0'", "written by eqsat 0.0.0"),
        (
            "UPDATE records SET value='[]', sha256='" + hashlib.sha256(b"[]").hexdigest() + "'",
            "holds no JSON object",
        ),
    ],
)
def test_an_entry_that_cannot_be_trusted_is_discarded(folder, statement, reason):
    cache = Cache.open(folder)
    cache.put("program", KEY, {"v": 1})
    change(folder, statement)
    with pytest.warns(CacheWarning, match=f"discarded program {KEY[:12]}, since .*{reason}"):
        assert cache.get("program", KEY) is None
    assert cache.get("program", KEY) is None, "and it is gone, without a second warning"


def test_entries_of_another_version_are_discarded_with_one_warning(folder):
    cache = Cache.open(folder)
    for key in (KEY, OTHER):
        cache.put("program", key, {"v": 1})
    change(folder, "UPDATE records SET eqsat='0.0.0'")
    with pytest.warns(CacheWarning, match="discarded 2 entries of another eqsat version") as caught:
        cache = Cache.open(folder)
    assert len(caught) == 1 and cache.get("program", KEY) is None


def test_an_unwritable_folder_gives_a_cache_in_memory(tmp_path):
    (tmp_path / "file").write_text("no folder can be made below this")
    with pytest.warns(CacheWarning, match="cannot use the cache folder .*EQSAT_CACHE_DIR"):
        cache = Cache.open(tmp_path / "file" / "cache")
    check_in_memory(cache)


def test_off_keeps_everything_in_memory_and_says_nothing(monkeypatch):
    monkeypatch.setenv("EQSAT_CACHE_DIR", "off")
    check_in_memory(Cache.open())


def check_in_memory(cache: Cache) -> None:
    cache.put("program", KEY, {"v": 1})
    assert cache.get("program", KEY) == {"v": 1}
    assert cache.code_dir.is_dir()
    assert cache.stats().folder is None and cache.stats().in_memory == 1
    scratch = cache.code_dir.parent
    cache.clear()
    assert cache.get("program", KEY) is None
    del cache
    assert scratch.name.startswith("eqsat-")


def test_the_temporary_folder_goes_with_its_cache():
    cache = Cache(None)
    path = cache.code_dir
    del cache
    assert not path.parent.exists()


def test_no_room_for_compiled_files_is_a_named_error(monkeypatch):
    monkeypatch.setattr("tempfile.mkdtemp", no_space)
    with pytest.raises(CacheError, match=r"no room for compiled files.*Free some space in /"):
        _ = Cache(None).code_dir


def test_a_full_disk_at_a_value_loses_nothing(folder):
    cache = Cache.open(folder)
    cache.put("program", KEY, {"v": 1})
    cache._records._db.execute("PRAGMA max_page_count=1")  # SQLite's own "disk is full"
    with pytest.warns(CacheWarning, match=r"disk is full.*keeps new entries in memory"):
        cache.put("program", OTHER, {"text": "x" * 100_000})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put("program", content_key("third"), {"v": 3})
    assert cache.get("program", OTHER) == {"text": "x" * 100_000}
    assert cache.get("program", KEY) == {"v": 1}


def test_a_busy_database_costs_no_entry(folder, monkeypatch):
    monkeypatch.setattr("eqsat.cache.records._BUSY_SECONDS", 0.05)
    cache = Cache.open(folder)
    with closing(sqlite3.connect(folder / "records.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        cache.put("program", KEY, {"v": 1})
        assert cache.get("program", KEY) == {"v": 1}
    cache.put("program", KEY, {"v": 2})
    assert Cache.open(folder).get("program", KEY) == {"v": 2}


def test_the_least_recently_used_goes_first(folder, monkeypatch):
    ticks = iter(range(1_000_000))
    monkeypatch.setattr("eqsat.cache.records.time.time", lambda: float(next(ticks)))
    cache = Cache.open(folder, max_bytes=350)
    keys = [content_key(str(number)) for number in range(4)]
    for key in keys[:3]:
        cache.put("program", key, {"v": "x" * 92})
    assert cache.get("program", keys[0])
    cache.put("program", keys[3], {"v": "x" * 92})
    assert [cache.get("program", key) is None for key in keys] == [False, True, False, False]
    cache.put("program", KEY, {"v": "x" * 1000})
    assert cache.get("program", KEY), "what was just put stays, however big"
    assert cache.stats().entries == {"program": 1}


def test_compiled_code_counts_and_what_was_used_longest_ago_goes(folder):
    cache = Cache.open(folder)
    cache.put("program", KEY, {"v": "x" * 92})
    paths = [cache.code_dir / name for name in ("a.cubin", "b.cubin", "f/c.nbi", "d.cubin")]
    for age, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 100)
        os.utime(path, (10_000.0 + age,) * 2)
    os.utime(paths[0], (20_000.0, 1.0))  # read since
    stats = cache.stats()
    assert (stats.entries["code"], stats.bytes["code"]) == (4, 400)
    Cache.open(folder, max_bytes=500)
    assert all(path.exists() for path in paths)
    Cache.open(folder, max_bytes=350)
    assert [path.exists() for path in paths] == [True, False, False, True]
    new = cache.code_dir / "new.cubin"
    new.write_bytes(b"x" * 1000)
    assert Cache.open(folder, max_bytes=10).stats().entries["code"] == 1
    assert new.exists(), "a process may be about to load it"


def test_a_process_that_puts_much_looks_at_its_code_again(folder, monkeypatch):
    monkeypatch.setattr("eqsat.cache.store._PUTS", 2)
    cache = Cache.open(folder, max_bytes=150)
    path = cache.code_dir / "a.cubin"
    path.write_bytes(b"x" * 200)
    os.utime(path, (1.0, 1.0))
    cache.put("program", KEY, {"v": 1})
    assert path.exists()
    cache.put("program", OTHER, {"v": 1})
    assert not path.exists()


def test_clear_empties_and_stats_count(folder):
    cache = Cache.open(folder)
    cache.put("program", KEY, {"v": 1})
    (cache.code_dir / "f.nbi").write_bytes(b"xyz")
    (cache.code_dir / "empty").touch()
    cache.get("program", KEY)
    cache.get("program", OTHER)
    stats = cache.stats()
    assert (stats.folder, stats.hits, stats.misses) == (folder, 1, 1)
    assert stats.entries == {"program": 1, "code": 2} and stats.bytes["code"] == 3
    cache.clear()
    assert cache.stats().entries == {}
    assert cache.code_dir.is_dir() and not list(cache.code_dir.iterdir())


def share(folder: Path, number: int, barrier, filter: str) -> None:
    warnings.simplefilter(filter)
    barrier.wait()
    cache = Cache.open(folder)
    for turn in range(25):
        key = content_key(str(turn))
        cache.put("program", key, {"turn": turn})
        assert cache.get("program", key) == {"turn": turn}
    cache.put("process", content_key(str(number)), {"number": number})


@pytest.mark.parametrize("damaged", [False, True])
def test_processes_share_one_folder(folder, damaged):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    if damaged:
        Cache.open(folder).close()
        (folder / "records.sqlite").write_bytes(b"damaged" * 1000)
    common = (barrier, "ignore" if damaged else "error")
    processes = [context.Process(target=share, args=(folder, n, *common)) for n in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    cache = Cache.open(folder)
    assert cache.stats().entries == {"program": 25, "process": 3}
    assert all(cache.get("process", content_key(str(n))) == {"number": n} for n in range(3))


def test_a_forked_process_gets_a_connection_of_its_own(folder):
    cache = Cache.open(folder)
    cache.put("program", KEY, {"v": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process with threads
        child = os.fork()
    if child == 0:
        seen = cache.get("program", KEY)
        cache.put("program", OTHER, {"child": True})
        os._exit(0 if seen == {"v": 1} else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert cache.get("program", OTHER) == {"child": True}
