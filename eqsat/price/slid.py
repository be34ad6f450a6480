"""Windows that a CPU's own routine multiplies where they lie: each place is stored once in a tile,
rows of windows are as far apart as those of places, and what lies between them is multiplied too.
"""

from dataclasses import dataclass
from functools import cached_property

from eqsat.layout.slides import Slide, slides
from eqsat.price.rates import Array, Contraction
from eqsat.price.tiling import Tiling
from eqsat.specs import ParallelOperation
from eqsat.terms.algebra import Read, Term

WINDOWED = "vector_gemm"  # what such an operation is invoked as


@dataclass(frozen=True)
class Slid:
    """The windows of one factor of a product, in the tiles of a nest."""

    tiling: Tiling
    side: Term
    axes: tuple[Slide, ...]

    @cached_property
    def rows(self) -> dict[str, Array]:
        """Places along each index that moves windows, in steps of these; the innermost last."""
        extents = self.tiling.form.extents
        return {
            one.moving: self._points(one.moving) + one.beyond(extents)
            for one in self.axes
            if one.moving
        }

    @property
    def places(self) -> Array:
        """Elements that a tile stores."""
        extents, stored = self.tiling.form.extents, self.tiling.shape
        for length in self.rows.values():
            stored = stored * length
        for one in self.axes:
            stored = stored * (one.between(extents) if one.inside else 1)
            for name in one.others:
                stored = stored * self._points(name)
        return stored

    @property
    def columns(self) -> Array:
        """What the routine multiplies in place of a tile's windows: from the first to the last."""
        last, step = 0 * self.tiling.shape, self.tiling.shape
        for name, length in reversed(self.rows.items()):
            last = last + (self._points(name) - 1) * step
            step = step * length
        return last + 1

    @property
    def run(self) -> Array:
        """Places beside each other."""
        return list(self.rows.values())[-1]

    @property
    def apart(self) -> bool:
        """Whether what lies beside each other in memory does not so in a tile."""
        return bool(self.axes[-1].inside) and self.axes[-1].step > 1

    def _points(self, name: str) -> Array:
        return self.tiling.tile_points(self.tiling.form.facts.universe.mask([name]))


def slid(tiling: Tiling, operation: ParallelOperation | None, found: Contraction) -> Slid | None:
    """The windows of a product, where the operation multiplies them as they lie."""
    if operation is None or operation.invocation_name != WINDOWED:
        return None
    form, members = tiling.form, tiling.form.facts.universe.members
    summed = members(found.summed)
    if any(name in tiling.chunks for name in summed):
        return None
    if not (found.rows and found.columns):
        return None
    result = found.batch | found.rows | found.columns
    _, side = form.oriented((found.left, found.right), result)
    own = found.columns if side is found.right else found.rows
    read = side.args[0] if side.op == "read" else None
    if not isinstance(read, Read) or read.joined or form.uses[side] > 1:
        return None
    if read.dtype != form.facts.dtype(found.term):
        return None
    axes = slides(read, form.extents, members(own), summed)
    return Slid(tiling, side, axes) if axes else None
