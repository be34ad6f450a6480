"""The tile choices that are considered for a form's grid, as arrays over one menu."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from eqsat.form import Form
from eqsat.specs import ParallelProcessingUnit


def sizes(extent: int, least: int = 1, most: int = 1 << 14) -> list[int]:
    """Powers of two below the extent, and the extent itself."""
    out = [1 << p for p in range(15) if least <= 1 << p < min(extent, most + 1)]
    return [*out, extent] if extent <= most else out


def chunks(form: Form) -> dict[str, NDArray[np.float64]]:
    """Tiles that are blocks of the grid cut at one or two names.

    Names outside the first cut have tile 1, those inside the last cut their whole extent.
    """
    rows = _blocks(tuple(form.extents[name] for name in form.grid))
    return {name: rows[:, i] for i, name in enumerate(form.grid)}


@lru_cache(maxsize=1024)
def _blocks(extents: tuple[int, ...], most_points: int = 1 << 20) -> NDArray[np.float64]:
    rank = len(extents)
    rows: list[list[int]] = [[1] * rank]
    for first in range(rank):
        inside = list(extents[first + 1 :])
        rows += [[1] * first + [size, *inside] for size in sizes(extents[first])]
        for second in range(first + 1, rank):
            between, tail = extents[first + 1 : second], extents[second + 1 :]
            for size in sizes(extents[first], 16)[-6:]:
                for other in sizes(extents[second], 16)[:-1]:
                    rows.append([1] * first + [size, *between, other, *tail])
    table = np.array(rows, dtype=np.float64).reshape(len(rows), rank)
    kept = table[table.prod(axis=1) <= most_points] if rank else table[:1]
    return np.unique(kept if len(kept) else table[:1], axis=0)


def pick(tiles: dict[str, NDArray[np.float64]], choice: int, names: Sequence[str]) -> dict[str, int]:
    """One row of a menu."""
    return {name: int(tiles[name][choice]) for name in names}


@dataclass(frozen=True)
class Menus:
    """What the schedule rules may choose from: axes in order, and the sizes of each."""

    axes: tuple[str, ...]
    tiles: dict[str, list[int]]
    chunks: dict[str, list[int]]
    kept: tuple[str, ...]
    threads: tuple[int, ...]
    stages: tuple[tuple[str, int], ...]

    def facts(self) -> list[str]:
        """As egglog facts."""
        lines = [f'(axis {i} "{name}")' for i, name in enumerate(self.axes)]
        lines += [f'(tile_menu "{n}" {s})' for n, sizes in self.tiles.items() for s in sizes]
        lines += [f'(chunk_menu "{n}" {s})' for n, sizes in self.chunks.items() for s in sizes]
        lines += [f'(keep_menu "{name}")' for name in self.kept]
        lines += [f"(thread_menu {count})" for count in self.threads]
        lines += [f'(stage_menu "{memory}" {count})' for memory, count in self.stages]
        return lines


def schedule_menus(form: Form, spec: ParallelProcessingUnit, most: int = 1500) -> Menus:
    """Sizes for every axis of a form; thinned from the outside in until few enough schedules."""
    tiles = {name: sizes(form.extents[name], 1, 512)[::-1] for name in form.grid}
    chunks: dict[str, list[int]] = {}
    kept = form.reduced
    axes = [*form.grid, *form.reduced]
    threads: tuple[int, ...] = ()
    stages: tuple[tuple[str, int], ...] = ()
    if spec.target == "cuda":
        chunks = {n: [s for s in (16, 32, 64, 256) if s < form.extents[n]] for n in form.reduced}
        block = spec.members(spec.tile_group, "thread")
        threads = tuple(count for count in (64, 128, 256) if count <= block)
        axes.append("threads")
        if any(form.contraction(term) for term in form.terms):
            stages = (("registers", 1), ("shared", 1), ("shared", 2))
            axes.insert(-1, "stages")
    fixed = len(threads or (0,)) * len(stages or (0,))
    for size in chunks.values():
        fixed *= 1 + len(size)
    for name in form.grid:
        while _product(tiles) * fixed > most and len(tiles[name]) > 2:
            middle = tiles[name][1:-1]
            tiles[name] = [tiles[name][0], *middle[1::2], tiles[name][-1]]
    return Menus(tuple(axes), tiles, chunks, kept, threads, stages)


def _product(tiles: dict[str, list[int]]) -> int:
    product = 1
    for choices in tiles.values():
        product *= len(choices)
    return product
