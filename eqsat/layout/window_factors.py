"""Products over windows: the names that number places in them, and factors beside windows that
threads would read element by element, such as the weights of a convolution of each channel by
itself.
"""

from collections.abc import Iterable, Iterator

from eqsat.graph.index import free_names
from eqsat.layout.needs import MOST_BOX, MOST_STEP
from eqsat.layout.pixels import pixel_axes
from eqsat.layout.relayout import WalkedAxis
from eqsat.terms.algebra import Read, Term
from eqsat.terms.form import Form

FEW_IN_BOX = 64  # points of a name, below which no other tile is as narrow


def window_places(made: Form, factors: Iterable[Term]) -> int:
    """The names that walk windows of one of the factors: beside each is a longer one, of the
    windows. An operation, which sums over one index, takes their points one at a time.
    """
    found: set[str] = set()
    for axis in sliding_axes(made, factors):
        found |= {*sorted(free_names(axis.place), key=made.extents.__getitem__)[:-1]}
    return made.facts.universe.mask(found)


def sliding_axes(made: Form, factors: Iterable[Term]) -> Iterator[WalkedAxis]:
    """The axes along which windows of factors overlap."""
    for factor in factors:
        read = factor.args[0] if factor.op == "read" else None
        axes = pixel_axes(read, made.extents) if isinstance(read, Read) else None
        yield from (axis for axis in axes or () if axis.slides)


def place_names(made: Form, term: Term) -> set[str]:
    """Names that number places in windows which several points of a product read."""
    factors = made.contraction(term)
    return {*made.facts.universe.members(window_places(made, factors))} if factors else set()


def sliding_names(made: Form) -> dict[str, bool]:
    """Names along which windows of a product's factors move, and whether elements lie together
    there.
    """
    found: dict[str, bool] = {}
    factors = (side for term in made.terms for side in made.contraction(term) or ())
    for axis in sliding_axes(made, factors):
        found |= dict.fromkeys(free_names(axis.place), axis.stride == 1)
    return found


def strided_factors(made: Form) -> Iterator[tuple[Term, tuple[str, ...]]]:
    """Factors beside windows that do not lie along what results lie along, or where they have no
    part in that, along names that they alone have; their names as a copy that does has them,
    outermost first.
    """
    universe, free, last = made.facts.universe, made.facts.free, made.stored[0].names[-1:]
    for term in made.terms:
        product = term.children[0] if term.op == "reduce_sum" else term
        if product is term or product.op != "mul":
            continue
        sides = [made.beneath_cast(side) for side in product.children]
        for own, other in (sides, sides[::-1]) if window_places(made, sides) else ():
            read = own.args[0]
            if own.op != "read" or not isinstance(read, Read):
                continue
            steps = {str(atom): step for atom, step in read.address.terms}
            names = universe.members(universe.mask(read.names))
            if {*steps} != {*names} or read.guards or read.extent or read.fill:
                continue
            order = sorted(names, key=lambda name: (-steps[name], name))
            alone = universe.members(free(own) & ~free(other))
            along = [n for n in order if n in last] or [n for n in order if n in alone][-1:]
            if along and steps[along[0]] > 1:
                yield own, (*(name for name in order if name not in along), *along)


def few_in_box(made: Form, name: str) -> list[int]:
    """The most points of a name, a power of two, that a box has of windows which it moves along an
    axis with ends, if these are few; none where windows move further than a box steps.
    """
    reads = (term.args[0] for term in made.terms if term.op == "read")
    guards = (guard for read in reads if isinstance(read, Read) for guard in read.guards)
    step = max((abs(dict(one.expression.terms).get(name, 1)) for one in guards), default=1)
    most = 1 << (MOST_BOX // step).bit_length() - 1 if step <= MOST_STEP else FEW_IN_BOX
    return [most] if most < FEW_IN_BOX else []
