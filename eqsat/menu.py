"""The tile choices that are considered for a form's grid, as arrays over one menu."""

import math
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


def schedule_menus(form: Form, spec: ParallelProcessingUnit, most: int = 4000) -> Menus:
    """Sizes for every axis of a form; thinned from the outside in until few enough schedules."""
    axes = [*form.grid, *form.reduced]
    if spec.group(spec.tile_group).max_resident <= 1:  # one instruction stream a processor
        tiles = {name: _nest_sizes(form.extents[name]) for name in form.grid}
        _thin(tiles, most)
        return Menus(tuple(axes), tiles, {}, form.reduced, (), ())
    tiles = {name: _block_sizes(form, name) for name in form.grid}
    matrix = any(form.contraction(term) for term in form.terms)
    lengths = (16, 32, 64) if matrix else (256, 1024, 4096)
    chunks = {n: [s for s in lengths if s < form.extents[n]] for n in form.reduced}
    block = spec.members(spec.tile_group, "thread")
    threads = tuple(count for count in (128, 256, 512) if count <= block)
    stages: tuple[tuple[str, int], ...] = ()
    placed = [m for m in spec.memory_domains if m.managed == "software"]
    shared = [m.name for m in placed if m.shared_across == spec.tile_group]
    if matrix:
        stages = (("registers", 1), *((name, depth) for name in shared for depth in (1, 2, 3)))
        axes.append("stages")
    axes.append("threads")
    fixed = len(threads) * max(len(stages), 1)
    for choices in chunks.values():
        fixed *= 1 + len(choices)
    _thin(tiles, most // fixed)
    return Menus(tuple(axes), tiles, chunks, form.reduced, threads, stages)


def _nest_sizes(extent: int) -> list[int]:
    """Tile extents of one grid name for a loop nest, the ones to keep longest first."""
    offered = [1, extent, 64, 128, 16, 4, 256, 32, 512, 8, 2]
    return list(dict.fromkeys(size for size in offered if size <= min(extent, 4096))) or [1]


def _block_sizes(form: Form, name: str) -> list[int]:
    """Tile extents of one grid name where threads share a tile: by its part in contractions."""
    extent = form.extents[name]
    bit = form.facts.universe.mask([name])
    sides = [
        [form.facts.free(factor) & bit for factor in factors]
        for term in form.terms
        if (factors := form.contraction(term))
    ]
    inner = [one.names[-1] for one in form.stored if one.names]
    if any(bool(left) != bool(right) for left, right in sides):
        offered = [128, 64, 256, 32, 16]
    elif name in inner:
        offered = [512, 128, 1024, 2048, 64, 32, 256]
    else:
        offered = [1, 4, 16, 2, 8, 32]
    kept = [size for size in offered if size < extent]
    if extent > max(offered):
        return kept
    return (
        list(dict.fromkeys([*kept[:1], extent, 1, *kept[1:]])) if extent <= 64 else [*kept, extent]
    )


def _thin(tiles: dict[str, list[int]], most: int) -> None:
    """Drop the last of the longest menu until there are at most so many combinations."""
    while math.prod(len(choices) for choices in tiles.values()) > max(most, 1):
        longest = max(tiles, key=lambda name: len(tiles[name]))
        if len(tiles[longest]) == 1:
            return
        del tiles[longest][-1]
