"""What menus offer for products over windows: tiles of pixels that share most of what their windows
read, and places in windows that a tile holds whole.
"""

import math
from collections.abc import Iterator

from eqsat.graph.index import free_names
from eqsat.layout.pixels import pixel_axes
from eqsat.layout.window_factors import place_names, sliding_names
from eqsat.terms.algebra import Read, Term, post_order
from eqsat.terms.form import Form, shares_factors

SWIZZLED = 128  # bytes of a row of staged operands that keeps clear of bank conflicts
# Rows of pixels of a tile, and pixels of a row, whose windows share most of what they read: of few
# channels, which threads copy, and of such as boxes do, whose rows operations take by eight.
FEW_CHANNELS = ([8, 4], [128, 64, 32, 16])
MANY_CHANNELS = ([16, 32, 8], [128, 8, 64])
BOXED = 64  # bytes of the channels of a pixel, from which on boxes have them in rows
FEW_RESULTS = 128  # channels of a result, up to which copies of windows outweigh those of weights


def moves_beside(form: Form, name: str, group: list[str]) -> bool:
    """Whether a name moves windows of a product along one axis, another of its group along one."""
    moving = sliding_names(form).keys() & {*group}
    return name in moving and len(moving) > 1


def places_of(form: Form) -> set[str]:
    """Names of places in windows of products."""
    return {name for _, places, _ in _window_sums(form) for name in places}


def summed_through_windows(form: Form) -> set[str]:
    """Names that products over windows sum over."""
    summed = (term.args[0] for term, _, _ in _window_sums(form))
    found = (form.facts.universe.members(over) for over in summed if isinstance(over, int))
    return set[str]().union(*found)


def places_held(form: Form, most: int) -> set[str]:
    """Those that a tile may hold whole: with all that is summed over, of so many points at most,
    or for few results with a row of the other names.
    """
    held = set[str]()
    for term, places, others in _window_sums(form):
        whole = others * math.prod(places.values()) <= most
        few, row = _columns(form, term) <= FEW_RESULTS, min(others, SWIZZLED // form.narrowest)
        held |= {name for name, size in places.items() if whole or (few and size * row <= most)}
    return held


def _columns(form: Form, term: Term) -> int:
    """Points of the names that only the smaller factor of a product brings to its result."""
    left, right = (form.facts.free(factor) for factor in form.contraction(term) or ())
    return min(form.facts.universe.size(own) for own in (left & ~right, right & ~left))


def shared_rows(form: Form) -> tuple[list[int], list[int]]:
    """Rows of pixels of a tile, and pixels of a row."""
    wide = any(others * form.narrowest >= BOXED for _, _, others in _window_sums(form))
    return MANY_CHANNELS if wide else FEW_CHANNELS


def _window_sums(form: Form) -> Iterator[tuple[Term, dict[str, int], int]]:
    """The products over windows: how long each name of a place is, and how many points of other
    names they sum over.
    """
    for term in form.terms:
        over, places = term.args[0], place_names(form, term)
        if places and isinstance(over, int):
            sizes = {name: form.extents[name] for name in places}
            yield term, sizes, form.facts.universe.size(over) // math.prod(sizes.values())


def places_alone(form: Form, term: Term, sides: tuple[int, int]) -> set[str]:
    """Names of the places in overlapping windows that a term reduces, each point by itself: no
    factor of a product has names of its own beside them.
    """
    if shares_factors(*sides):
        return set()
    found: set[str] = set()
    for read in (below.args[0] for below in post_order([term]) if below.op == "read"):
        for axis in (isinstance(read, Read) and pixel_axes(read, form.extents)) or ():
            names = free_names(axis.place)
            longest = max((form.extents[name] for name in names & {*form.grid}), default=0)
            inside = {name for name in names if form.extents[name] <= longest}
            found |= inside - {*form.grid} if axis.slides else set()
    return found
