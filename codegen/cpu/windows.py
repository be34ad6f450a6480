"""A factor of windows that slide over memory, stored place by place instead of window by window.

Takes a load whose neighbours are the windows' and a product's columns; gives the load over places,
each of which lies in memory once, and where among them each term of the sum begins: the columns of
a term are a run of places, those of the next term are the same run some places on. Rows of
windows are a pitch apart, and what lies between them is multiplied and not looked at.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from eqsat.codegen.cpu.gemm import Groups
from eqsat.graph.index import Affine, add, const, row_major, scale, sub, substitute, var
from eqsat.kernel.ir import Axis, Guard, Load
from eqsat.layout.slides import Slide, slides
from eqsat.terms.algebra import Read

LINE = 64  # bytes: rows of what is multiplied begin lines


@dataclass(frozen=True)
class Windows:
    """`load`: over places; `axes`: theirs, beside the kernel's; `origins`: index of places -> that
    with whose tile it begins. `sizes`: of what a tile stores, the innermost index last, with the
    `steps` of each; `columns`: index of windows -> elements from one window to the next; `terms`:
    index of the sum -> where each of its points lies.
    """

    load: Load
    axes: tuple[Axis, ...]
    origins: Mapping[str, str]
    sizes: Mapping[str, int]
    steps: Mapping[str, int]
    columns: Mapping[str, int]
    terms: Mapping[str, tuple[int, ...]]

    @property
    def per_line(self) -> int:
        """Elements of a line."""
        return LINE // self.load.dtype.itemsize

    @property
    def room(self) -> int:
        """Elements that a tile stores, and a line beyond that the last columns reach."""
        return prod(self.sizes.values()) + self.per_line

    def run(self, sizes: Mapping[str, int]) -> int:
        """Places from a tile's first window to its last, in whole lines."""
        last = sum((sizes[name] - 1) * step for name, step in self.columns.items())
        return -(-(last + 1) // self.per_line) * self.per_line


def windows(load: Load, group: Groups, axes: Mapping[str, Axis]) -> Windows | None:
    """The windows of a product's right factor; None where the load has none, where they do not lie
    side by side in memory, or where a tile has some of their places only.
    """
    access, extents = load.access, {name: axis.extent for name, axis in axes.items()}
    if load.rest or access.coordinates or any(axes[i].tile < axes[i].extent for i in group.k):
        return None
    read = Read(access.buffer, load.dtype, access.address, access.guards)
    found = slides(read, extents, group.n, group.k)
    return _stored(load, found, axes, extents) if found else None


def _number(slide: Slide) -> str:
    """The index of places in steps of windows."""
    return f"{slide.moving}+{slide.inside}" if slide.inside else slide.moving


def _between(slide: Slide) -> str:
    """The index of places from one step to the next; empty where there is but one."""
    return f"{slide.moving}%{slide.inside}" if slide.inside and slide.step > 1 else ""


def _place(slide: Slide) -> Affine:
    """Where on the axis places lie."""
    first = {slide.moving: var(_number(slide)), slide.inside: const(0)}
    moved, between = substitute(slide.axis.place, first), _between(slide)
    return add(moved, var(between)) if between else moved


def _stored(
    load: Load, found: tuple[Slide, ...], axes: Mapping[str, Axis], extents: Mapping[str, int]
) -> Windows:
    """The load over places: what has no windows outermost, their numbers innermost."""
    in_tile = {name: min(axis.tile, axis.extent) for name, axis in axes.items()}
    sizes = {n: in_tile[n] for slide in found for n in slide.others if in_tile[n] > 1}
    made: dict[str, Axis] = {}
    address, guards = load.access.address, {g.expression: g for g in load.access.guards}
    for slide in (slide for slide in found if slide.inside):
        number, between, beyond = _number(slide), _between(slide), slide.beyond(extents)
        tile = in_tile[slide.moving] + beyond
        made[number] = Axis(number, extents[slide.moving] + beyond, tile)
        if between:
            sizes[between] = slide.between(extents)
            made[between] = Axis(between, sizes[between], sizes[between])
        place, axis = _place(slide), slide.axis
        address = add(address, scale(sub(place, axis.place), axis.stride))
        guard = guards.pop(axis.place, Guard(place, 0, axis.extent))
        guards[place] = replace(guard, expression=place)
    for slide in (slide for slide in found if slide.moving):
        sizes[_number(slide)] = in_tile[slide.moving] + slide.beyond(extents)
    steps = {str(name): step for name, step in row_major([*sizes], sizes).terms}
    terms = {n: tuple(steps[n] * at for at in range(sizes[n])) for n in sizes if n in in_tile}
    terms |= {s.inside: _terms(s, steps, extents[s.inside]) for s in found if s.inside}
    gone = {name for slide in found if slide.inside for name in (slide.moving, slide.inside)}
    kept = tuple(name for name in load.indices if name not in gone)
    access = replace(load.access, address=address, guards=tuple(guards.values()))
    return Windows(
        load=replace(load, indices=(*kept, *made), access=access),
        axes=tuple(made.values()),
        origins={_number(slide): slide.moving for slide in found if slide.inside},
        sizes=sizes,
        steps=steps,
        columns={slide.moving: steps[_number(slide)] for slide in found if slide.moving},
        terms=terms,
    )


def _terms(slide: Slide, steps: Mapping[str, int], count: int) -> tuple[int, ...]:
    """Where the points of a window lie."""
    places = [divmod(slide.apart * at, slide.step) for at in range(count)]
    number, between = steps[_number(slide)], steps.get(_between(slide), 0)
    return tuple(whole * number + rest * between for whole, rest in places)
