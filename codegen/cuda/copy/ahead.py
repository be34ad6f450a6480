"""What the threads of a loop over chunks load of the next chunk while they work on one.

Copies that run on by themselves are started chunks ahead. What no such copy serves, elements
shorter than a word, and what tiles are computed of, passes through registers: those of the next
chunk are asked for as soon as the tile at hand is written.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

from eqsat.kernel.ir import Load, Map, Phase

from ..place.block import Block
from ..place.placement import COMPUTED, SHARED
from .computed import ComputedTile, may_load_ahead, planned_tile
from .tile_copy import RegisterCopy, copied_by_registers


def load_chunks_ahead(
    block: Block,
    phase: Phase,
    copied: Collection[str],
    live: tuple[str, str],
    begin: Callable[[], None],
) -> None:
    """Before a loop over the `live` chunks: how each loads what its tiles need of the next one, as
    long as there are registers, and the first chunk's. The `copied` are copied by themselves;
    `begin` says where the chunk at hand begins.
    """
    streamed = {axis.name for axis in phase.stream}
    for s in phase.body:
        tile = _tile(block, s, copied) if isinstance(s, Load | Map) else None
        if tile is None or not streamed & {*s.indices}:
            continue
        if not may_load_ahead(block, tile.loads, tile.registers):
            if isinstance(tile, ComputedTile):
                block.ahead[s.name] = tile  # laid out once
            continue
        block.held_ahead += tile.registers
        tile.declare()
        loader = f"load_{block.names.of(s.name)}"
        with block.out.block(f"auto {loader} = [&](int chunk)", ";"):
            begin()
            tile.read()
        block.out.line(f"{loader}({live[0]});")
        following = f"if (chunk + 1 < {live[1]}) {loader}(chunk + 1);"
        block.ahead[s.name] = replace(tile, following=following)


def _tile(
    block: Block, s: Load | Map, copied: Collection[str]
) -> ComputedTile | RegisterCopy | None:
    where = block.placement.where[s.name]
    if isinstance(s, Map):
        return planned_tile(block, s) if where == COMPUTED else None
    if where != SHARED or s.name in copied or s.access.coordinates:
        return None
    return copied_by_registers(block, s, block.tiles[s.name])
