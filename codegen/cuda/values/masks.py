"""Masks of products by comparisons of positions: most chunks need no look at them."""

from collections.abc import Collection, Iterable

from eqsat.graph.index import Affine
from eqsat.kernel.idle_chunks import least, mask_margins
from eqsat.kernel.ir import Contract, Literal, Map, Phase, operands

from ..place.block import Block
from ..place.tile import Point


def find_masks(block: Block, phase: Phase) -> dict[str, list[Affine]]:
    """For each where(mask, x, c) of a stream, x a product that nothing else reads: index
    expressions that are at least 0 where the mask holds.
    """
    found: dict[str, list[Affine]] = {}
    placement = block.placement
    for s in phase.body if phase.stream else ():
        if not isinstance(s, Map) or s.op != "where":
            continue
        mask, x, other = s.arguments
        made = placement.statements.get(x)
        alone = placement.users[x] == (s.name,) and placement.dtypes[x] == s.dtype
        known = isinstance(made, Contract) and isinstance(placement.statements.get(other), Literal)
        if alone and known and set(s.indices) == set(placement.indices[x]):
            margins = mask_margins(block.kernel, mask)
            if margins:
                found[s.name] = margins
    return found


def find_conditions(block: Block, phase: Phase, masks: Collection[str]) -> dict[str, list[Affine]]:
    """For each comparison of positions that elementwise operations of a stream read, other than
    `masks`: index expressions that are at least 0 where it holds.
    """
    found: dict[str, list[Affine]] = {}
    placement = block.placement
    read = {name for s in phase.body if s.name not in masks for name in operands(s)}
    for s in phase.body if phase.stream else ():
        users = [placement.statements.get(name) for name in placement.users[s.name]]
        if isinstance(s, Map) and s.name in read and all(isinstance(u, Map) for u in users):
            margins = mask_margins(block.kernel, s.name)
            if margins:
                found[s.name] = margins
    return found


def holds(block: Block, margins: Iterable[Affine], point: Point) -> str:
    """The condition that index expressions are at least 0 at a point."""
    return " && ".join(f"{block.affine(m, point)} >= 0" for m in margins)


def holds_throughout(block: Block, margins: Iterable[Affine]) -> str:
    """The condition that index expressions are at least 0 in the whole tile and chunk."""
    tile = Point(dict(block.frame.origin), {}, block.frame.origin)
    return holds(block, [least(m, block.axes) for m in margins], tile)


def apply_mask(block: Block, s: Map, margins: list[Affine]) -> None:
    """Overwrite the product where the mask fails, if it does anywhere in the chunk."""
    out, throughout = block.out, holds_throughout(block, margins)
    with out.block(f"if (!({throughout}))"), block.points(s.indices) as point:
        value = block.converted(s.arguments[2], s.dtype, point)
        fails = f"!({holds(block, margins, point)})"
        out.line(f"if ({fails}) {block.element(s.name, point)} = {value};")
