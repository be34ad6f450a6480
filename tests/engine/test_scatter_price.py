"""What combining in memory and in groups is predicted to take, beside what an H200 took."""

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.driver import plan
from eqsat.price.scatter import Combining, cache_line, staying
from eqsat.specs import load

H200 = load("h200")
MANY = 1 << 20


def rows(count: int, points: float = 64e6) -> Combining:
    """Rows of 64 sums."""
    return Combining("scatter_sum", "float32", 4, points, 64 * count, True)


def places(count: int, dtype: str = "float32", points: float = 1e6) -> Combining:
    """Places all over a buffer."""
    return Combining("scatter_sum", dtype, np.dtype(dtype).itemsize, points, count, False)


def giga_points(work: Combining, seconds: float) -> float:
    return work.points / seconds * 1e-9


@pytest.mark.parametrize(
    ("work", "measured"),
    [
        (rows(16), 85),
        (rows(64), 314),
        (rows(256), 559),
        (rows(1024), 707),
        (rows(16384), 769),
        (places(256), 3.8),
        (places(4096), 33),
        (places(65536), 79),
        (places(MANY), 88),
        (places(256, "float64"), 6.1),
        (places(65536, "int64"), 80),
    ],
)
def test_atomics_in_memory_wait_for_those_on_their_line(work: Combining, measured: float) -> None:
    found = giga_points(work, work.in_memory(H200, cache_line(H200)))
    assert 0.6 < found / measured < 1.5


@pytest.mark.parametrize(
    ("work", "groups", "threads", "measured"),
    [
        (places(1024), 8, 256, 458),
        (places(256), 8, 256, 427),
        (places(1024, "float64"), 8, 256, 294),
        (places(1024, "int64"), 8, 256, 1216),
        (rows(256), 3, 128, 379),
    ],
)
def test_atomics_in_groups_wait_for_their_answers(
    work: Combining, groups: int, threads: int, measured: float
) -> None:
    seconds = work.in_group(H200, np.array([132.0 * groups]), np.array([float(threads)]))
    assert 0.5 < giga_points(work, seconds[0]) / measured < 1.5


def groups(works: list[Combining], threads: float = 512, fit: float = 8, unit=H200) -> int:
    return int(staying(works, *map(np.array, ([7813.0], [threads], [fit])), unit).groups[0])


def test_groups_stay_where_memory_is_crowded() -> None:
    """Few lines of memory are in each other's way, many are not, nor do they fit in a group."""
    assert groups([places(256)]) and groups([rows(256)])
    assert not groups([places(MANY)]) and not groups([rows(1 << 14)])
    crowded = H200.replace_operation("atomic_l2", repeat_cycles=0.0, throughput_per_cycle=50.0)
    assert not groups([rows(256)], unit=crowded)
    assert not groups([rows(256)], unit=H200.without_operation("atomic_shared_loop"))


def test_how_many_groups_stay() -> None:
    """As many as memory, threads and registers of a processor have room for, for all buffers."""
    both = [rows(256), places(256)]
    assert groups(both, threads=256) == 3
    assert groups(both, threads=1024) == 2
    assert groups(both, threads=256, fit=2) == 2
    assert groups([*both, rows(100)], threads=512) == 2


def test_each_buffer_is_kept_or_not_by_itself() -> None:
    """Of few points the sums of rows are joined where they lie, counts of few places never."""
    both = [rows(256, 6.4e6), places(256, points=1e5)]
    found = staying(both, *map(np.array, ([782.0] * 2, [256.0, 512.0], [8.0, 8.0])), H200)
    assert found.kept.tolist() == [2, 2]
    every = staying([rows(256), places(256)], *map(np.array, ([7813.0], [512.0], [2.0])), H200)
    assert every.kept.tolist() == [3] and every.groups.tolist() == [2]


@pytest.mark.usefixtures("shared_search")
def test_means_of_segments_keep_sums_and_counts() -> None:
    """Blocks of as many threads as wait for memory and for one another's sums at the least."""
    points, ids = g.input("points", (MANY, 64)), g.input("ids", (MANY,), "int64")
    count = g.astype(g.bincount(ids, 256), "float32")
    mean = g.segment_sum(points, ids, 256) / g.maximum(count, 1.0)[:, None]
    launches = plan(mean, H200, cache=Cache(None)).parts.launches
    (launch,) = (one for one in launches if one.kernel.resident)
    assert [s.memory for phase in launch.kernel.phases for s in phase.stores] == ["shared"] * 2
    assert launch.kernel.threads * launch.kernel.resident >= 768
    assert launch.kernel.beside == launch.kernel.resident
    assert 60e-6 < launch.seconds < 110e-6  # measured: 100 us; 443 where all combine in memory
