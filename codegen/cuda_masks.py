"""Masks of products by comparisons of positions: most chunks need no look at them."""

from eqsat.codegen.cuda_block import Block, Point
from eqsat.graph.index import Affine
from eqsat.idle_chunks import least, mask_margins
from eqsat.kernel import Contract, Literal, Map, Phase


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


def apply_mask(block: Block, s: Map, margins: list[Affine]) -> None:
    """Overwrite the product where the mask fails, if it does anywhere in the chunk."""
    out = block.out
    tile = Point(dict(block.frame.origin), {}, block.frame.origin)
    smallest = [f"{block.affine(least(m, block.axes), tile)} < 0" for m in margins]
    with out.block(f"if ({' || '.join(smallest)})"), block.points(s.indices) as point:
        fails = " || ".join(f"{block.affine(m, point)} < 0" for m in margins)
        value = block.converted(s.arguments[2], s.dtype, point)
        out.line(f"if ({fails}) {block.element(s.name, point)} = {value};")
