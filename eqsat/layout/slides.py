"""Windows that slide over memory side by side: which index moves them along each axis, and which
index is that of places in a window. Where a CPU multiplies them, each place is stored once.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from eqsat.layout.relayout import WalkedAxis, walked_axes
from eqsat.terms.algebra import Read


@dataclass(frozen=True)
class Slide:
    """An axis of memory, the index that moves windows along it, and that of places in a window.
    Either may be missing; `others` walk an axis without windows.
    """

    axis: WalkedAxis
    moving: str = ""
    inside: str = ""
    others: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        """Places from one window to the next."""
        return dict(self.axis.place.terms)[self.moving]

    @property
    def apart(self) -> int:
        """Places from one element of a window to the next."""
        return dict(self.axis.place.terms)[self.inside]

    def reach(self, extents: Mapping[str, int]) -> int:
        """Places from the first element of a window to its last."""
        return self.apart * (extents[self.inside] - 1) if self.inside else 0

    def beyond(self, extents: Mapping[str, int]) -> int:
        """Steps of windows that the last one reaches."""
        return self.reach(extents) // self.step

    def between(self, extents: Mapping[str, int]) -> int:
        """Places from one step to the next, as far as windows have them."""
        return min(self.step, self.reach(extents) + 1)


def slides(
    read: Read, extents: Mapping[str, int], columns: Collection[str], summed: Collection[str]
) -> tuple[Slide, ...] | None:
    """The axes of a read, the longest stride first, whose windows `columns` move and of which
    places are `summed`; None where they do not lie side by side in memory, none slides, or more
    than one index does so along an axis.
    """
    axes = walked_axes(read, extents)
    if not axes or axes[-1].stride != 1:
        return None
    inside = [name for name in summed if extents[name] > 1]
    found = [_slide(axis, columns, inside) for axis in axes]
    moving = [slide.moving for slide in found if slide.moving]
    alone = sorted(moving) == sorted(columns) and found[-1].moving
    return tuple(found) if alone and any(slide.inside for slide in found) else None


def _slide(axis: WalkedAxis, columns: Collection[str], summed: Collection[str]) -> Slide:
    """Without an index that moves windows where more than one does, or one goes backwards."""
    steps = {str(name): step for name, step in axis.place.terms}
    moving, inside = ([name for name in steps if name in own] for own in (columns, summed))
    forwards = min(steps.values()) > 0 and axis.steps is None
    if len(moving) == 1 and len(inside) < 2 and forwards:
        return Slide(axis, *moving, *inside)
    return Slide(axis, others=(*steps,))
