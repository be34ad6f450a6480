"""What a cache reads once for processors side by side: prices, and the order of tiles."""

from dataclasses import replace

import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.driver import plan
from eqsat.kernel.ir import Kernel
from eqsat.kernel.tile_order import in_bands
from eqsat.planned import Launch
from eqsat.specs import ParallelProcessingUnit, load

pytestmark = pytest.mark.usefixtures("shared_search")

H200 = load("h200")


def with_cache(**fields: float) -> ParallelProcessingUnit:
    """The spec, its cache another one."""
    memories = (replace(m, **fields) if m.name == "l2" else m for m in H200.memory_domains)
    return replace(H200, memory_domains=tuple(memories))


ALONE = with_cache(merged_readers=1)


def found(m: int, n: int, k: int, spec: ParallelProcessingUnit, count: int = 1) -> list[Launch]:
    """The first kernels of the best candidates for a product."""
    product = g.input("x", (m, k), "bfloat16") @ g.input("w", (k, n), "bfloat16")
    first, *_ = plan([product], spec, candidates=count, cache=Cache(None)).parts.launches
    return [first, *(other[0] for other in first.alternatives)]


def read_together(kernel: Kernel, tiles: int) -> int:
    """Rows and columns of results that so many tiles, one after the other, read factors of."""
    rows, columns = kernel.cut[-2:]
    places = set()
    for tile in range(tiles):
        band, member = divmod(tile, kernel.band * columns.count)
        height = min(kernel.band, rows.count - band * kernel.band)
        places.add((band * kernel.band + member % height, member // height))
    high, wide = ({place[n] for place in places} for n in (0, 1))
    return len(high) * rows.tile + len(wide) * columns.tile


def test_a_long_sum_gains_nothing_by_copies_for_neighbours():
    """Tiles of 64 x 128 that each read by themselves would ask the cache for 405 MB."""
    (merged,), (alone,) = (found(2048, 512, 8192, spec) for spec in (H200, ALONE))
    assert merged.kernel.multicast == 1 < alone.kernel.multicast
    assert merged.seconds < alone.seconds


def test_tiles_of_several_waves_are_not_in_step():
    (merged,), (alone,) = (found(4096, 4096, 512, spec) for spec in (H200, ALONE))
    assert merged.kernel.tiles > H200.processors
    assert (merged.kernel, merged.seconds) == (alone.kernel, alone.seconds)


@pytest.mark.parametrize("size", [(2048, 512, 8192), (1024, 1024, 1024), (1000, 1200, 4096)])
def test_tiles_side_by_side_read_few_rows_and_columns(size):
    (launch,) = found(*size, H200)
    kernel = launch.kernel
    assert kernel.tiles <= H200.processors
    readers = H200.memory("l2").merged_readers
    merged, alone = (read_together(in_bands(kernel, spec), readers) for spec in (H200, ALONE))
    assert merged <= alone
    rows, columns = kernel.cut[-2:]
    square = 2 * (readers * rows.tile * columns.tile) ** 0.5
    assert merged <= 1.6 * max(square, readers * columns.tile / rows.count)


def test_sums_left_for_another_kernel_may_go_to_memory():
    """What is read meanwhile drives them out of a cache that has no room for all of it."""
    large = with_cache(size_bytes=1 << 34)

    def parted(spec: ParallelProcessingUnit) -> float:
        return next(
            one.seconds
            for one in found(128, 4096, 4096, spec, 24)
            if {"split i2 4", "tile i1 128", "stage shared 6"} <= {*one.kernel.rules}
        )

    assert parted(large) < parted(H200)
    assert not any("split" in rule for rule in found(128, 4096, 4096, H200)[0].kernel.rules)
