"""The sum of a window's product over one name, where each of its own names is short.

An operation multiplies many points of one summed name at once. A window of few channels, or a patch
of an image, has no name of so many: its rows, columns and channels as digits of one number have. No
box of memory walks such a number: its factor is copied first, each point of a window beside the
next.
"""

from math import prod

from eqsat.layout.coalesce import as_digits, index_names, taken_whole
from eqsat.layout.pixels import pixel_groups, together
from eqsat.layout.relayout import walked_axes
from eqsat.terms.algebra import Facts, Read
from eqsat.terms.form import Form, Stored, form

DEEP = 16  # points of a sum that operations multiply at once
LONG = 32  # those of a name that is enough by itself, where no window slides
Values = tuple[tuple[Stored, ...], Facts]


def merged_sums(stored: tuple[Stored, ...], facts: Facts) -> Values | None:
    """The same values, the outputs of sliding windows one name and the sum over a window another;
    None where a name of its sum is long, or the only one.
    """
    made = form(stored, facts)
    summed = _short_sum(made)
    if not summed:
        return None
    pixels = next((group for group in pixel_groups(made) if not {*group} & {*summed}), ())
    return as_digits(stored, facts, together(index_names(stored, facts), pixels, summed))


def _short_sum(made: Form) -> tuple[str, ...]:
    """The names of the sum of a product whose factor is read through windows, as they lie there;
    empty where one is long, or something else takes but some of them.
    """
    universe = made.facts.universe
    for term in made.terms:
        factors, over = made.contraction(term) or (), term.args[0]
        reads = [f.args[0] for f in factors if f.op == "read"]
        plain = [r for r in reads if isinstance(r, Read) and not (r.extent or r.fill)]
        walks = [walked_axes(read, made.extents) or () for read in plain]
        most = DEEP if any(axis.slides for axes in walks for axis in axes) else LONG
        for read, axes in zip(plain, walks, strict=True):
            assert isinstance(over, int)
            strides = {str(atom): step for atom, step in read.address.terms}
            names = sorted(universe.members(over), key=lambda name: -strides.get(name, 0))
            short = len(names) > 1 and all(made.extents[name] < most for name in names)
            whole = prod(made.extents[name] for name in names) > DEEP
            slides = most == LONG or any(axis.slides for axis in axes)
            if axes and slides and short and whole and taken_whole(made, tuple(names)):
                return tuple(names)
    return ()
