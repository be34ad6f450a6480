"""Sums over the places of images and over their batch, as in gradients by weights, over one name.

An image lies along its rows, along which the windows of its gradient slide: no box of memory begins
at any place of them. Stored along its batch it begins at multiples of that, and a place in a row
and a number in the batch are one run, in which windows are whole batches apart.
"""

from math import prod

from eqsat.layout.coalesce import as_digits, index_names, taken_whole
from eqsat.layout.pixels import together
from eqsat.layout.relayout import WalkedAxis, walked_axes
from eqsat.terms.algebra import Facts, Read
from eqsat.terms.form import Form, Stored, form

EVEN = 8  # points of a batch that fill the units in which boxes begin
LONG = 64  # points of a batch that are enough by themselves
Values = tuple[tuple[Stored, ...], Facts]


def merged_batches(stored: tuple[Stored, ...], facts: Facts) -> Values | None:
    """The same values with a sum over places in rows and over a batch as one; None where no product
    has both, its windows sliding along the rows.
    """
    made = form(stored, facts)
    group = _row_and_batch(made)
    if not group:
        return None
    return as_digits(stored, facts, together(index_names(stored, facts), group))


def _row_and_batch(made: Form) -> tuple[str, ...]:
    """The summed names that walk the rows of two factors, one of them through windows, and their
    batch; empty where a product has none, or something else takes but one of them.
    """
    universe = made.facts.universe
    for term in made.terms:
        factors, over = made.contraction(term) or (), term.args[0]
        reads = [factor.args[0] for factor in factors if factor.op == "read"]
        axes = [_axes(read, made) for read in reads if isinstance(read, Read)]
        if len(axes) != 2 or not all(axes):
            continue
        assert isinstance(over, int)
        summed = {*universe.members(over)}
        alone = [{axis.alone for axis in own if axis.alone} for own in axes]
        rows = [{str(a) for a, step in own[-1].place.terms if step == 1} for own in axes]
        slides = [own[-1].slides for own in axes]
        along = rows[0] & rows[1] & summed
        batches = [n for n in sorted(alone[0] & alone[1] & summed - along) if _is_even(made, n)]
        if len(along) != 1 or not batches or not any(slides):
            continue
        group = (*along, max(batches, key=made.extents.__getitem__))
        if taken_whole(made, group):
            return group
    return ()


def _is_even(made: Form, name: str) -> bool:
    return made.extents[name] < LONG and made.extents[name] % EVEN == 0


def _axes(read: Read, made: Form) -> tuple[WalkedAxis, ...]:
    """The axes of a read that lie together along the last; none of any other."""
    axes = () if read.extent or read.fill else walked_axes(read, made.extents) or ()
    return axes if axes and axes[-1].stride == 1 and prod(a.extent for a in axes) > 1 else ()
