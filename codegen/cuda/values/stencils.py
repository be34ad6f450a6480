"""Loads of a point's neighbours: what several points of a thread read is read once.

Where a thread has points side by side, as of x[i - 1, j], x[i, j] and x[i + 1, j] several i, most
of what one of them reads others read too.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from eqsat.graph.index import Affine, Mod, add, bounds, const, scale, sub, substitute, var
from eqsat.kernel.ir import Axis, Guard, Kernel, Load
from eqsat.kernel.stencils import Walk, steps_between

from ..place.access import extents_of, guarded_read
from ..place.block import INT_LIMIT, Block
from ..place.roles import is_plain, neighbours, walk_of
from ..place.tile import Point, Reader, flat_number
from ..prelude.math import cast, literal, register_type, widen


@dataclass(frozen=True)
class Stencil:
    """Loads that lie some steps apart along indices of which a thread has all points of a tile.

    A thread reads cells, `sizes` along each such index, the lowest `low` steps from what the first
    load reads; each load's points are cells from `starts` on. `guards` tell which cells are there.
    """

    first: Load
    low: Mapping[str, int]
    sizes: Mapping[str, int]
    starts: Mapping[str, Mapping[str, int]]
    guards: tuple[Guard, ...]

    def reads_all(self, axes: Mapping[str, Axis]) -> bool:
        """Whether some load reads each cell."""
        points = [range(min(axes[name].tile, axes[name].extent)) for name in self.sizes]
        read = {
            tuple(starts[name] + at for name, at in zip(self.sizes, place, strict=True))
            for starts in self.starts.values()
            for place in product(*points)
        }
        return len(read) == prod(self.sizes.values())

    @property
    def beside(self) -> tuple[str, ...]:
        """The indices along which nothing is shared."""
        return tuple(i for i in self.first.indices if i not in self.sizes)


def find_stencils(kernel: Kernel, loads: Iterable[Load]) -> dict[str, Stencil]:
    """By the name of each load of one."""
    held, axes = neighbours(kernel), kernel.axes()
    extents = extents_of(kernel)
    groups: list[dict[Load, Mapping[str, int]]] = []
    walks: dict[Load, Walk] = {}
    for s in filter(is_plain, loads) if held else ():
        walks[s] = walk_of(kernel, s)
        for steps in groups:
            found = [steps_between(walks[s], walks[other], extents) for other in steps]
            (first, *_), own = steps, found[0]
            alike = (first.dtype, first.fill) == (s.dtype, s.fill)
            if own is not None and None not in found and own.keys() <= held and alike:
                steps[s] = own
                break
        else:
            groups.append({s: {}})
    stencils: dict[str, Stencil] = {}
    for steps in groups:
        names = sorted({name for own in steps.values() for name in own}, key=[*axes].index)
        if not names:
            continue
        (first, *_) = steps
        every = {name: [own.get(name, 0) for own in steps.values()] for name in names}
        guards = dict.fromkeys(g for s, own in steps.items() for g in walks[s].guards_from(own))
        around = {i: axes[i].extent for s in steps for i in walks[s].shifts}
        low = {name: min(found) for name, found in every.items()}
        points = {name: min(axes[name].tile, axes[name].extent) for name in names}
        sizes = {name: max(every[name]) - low[name] + points[name] for name in names}
        starts = {s.name: {n: own.get(n, 0) - low[n] for n in names} for s, own in steps.items()}
        access = replace(first.access, address=_around(walks[first], around), guards=())
        made = Stencil(replace(first, access=access), low, sizes, starts, (*guards,))
        stencils |= dict.fromkeys(starts, made)
    return stencils


def _around(walk: Walk, sizes: Mapping[str, int]) -> Affine:
    """A walk's address where names of so many points begin anew where they end."""
    found = walk.address
    for atom, stride in walk.address.terms:
        if (size := sizes.get(str(atom))) and isinstance(atom, str):
            by = walk.shifts.get(atom, 0)
            moved = Mod(add(var(atom), const(by + size)), size)
            own = add(scale(var(atom), stride), const(by * stride))
            found = add(sub(found, own), Affine(((moved, stride),), 0))
    return found


def load_stencil(block: Block, stencil: Stencil) -> dict[str, Reader]:
    """Write the loads of all cells, those that nothing reads to be left out by the compiler; gives
    how to read each load at a point. Cells beyond the buffer's ends are none that a point needs.
    """
    out, first, array = block.out, stencil.first, f"near_{block.names.of(stencil.first.name)}"
    size, all_read = block.kernel.buffer(first.access.buffer).size, stencil.reads_all(block.axes)
    unsigned = "unsigned" if size <= INT_LIMIT else "unsigned long long"
    count = prod(stencil.sizes.values()) * block.register_count(stencil.beside)
    out.line(f"{register_type(first.dtype)} {array}[{count}];")
    cells = {name: block.index("cell", name) for name in stencil.sizes}
    strides = {str(atom): stride for atom, stride in first.access.address.terms}
    with block.points(stencil.beside) as point, ExitStack() as loops:
        at, base, offsets = dict(point.at), dict(point.at), list[str]()
        for name, cell in cells.items():
            out.line("#pragma unroll")
            loop = f"for (int {cell} = 0; {cell} < {stencil.sizes[name]}; ++{cell})"
            loops.enter_context(out.block(loop))
            lowest = f" + {stencil.low[name]}" if stencil.low[name] else ""
            at[name] = f"({block.index('base', name)} + {cell}{lowest})"
            if step := strides.get(name):
                base[name] = f"({block.index('base', name)}{lowest})"
                offsets.append(f"{cell} * {step}")
            else:
                base[name] = at[name]
        own = replace(point, at=at)
        conditions = [*_there(block, stencil, own)]
        if not all_read or block.valid(first.indices, own):
            conditions.append(f"({unsigned})({block.address(first.access, own)}) < {size}u")
        where = block.address(first.access, replace(point, at=base)), " + ".join(offsets) or "0"
        value = _value(block, first, where, " && ".join(conditions))
        out.line(f"{_element(block, stencil, array, point, cells)} = {value};")

    def reader(starts: Mapping[str, int]) -> Reader:
        def read(point: Point) -> str:
            register = point.register
            own = {n: f"{register[n]} + {by}" if by else register[n] for n, by in starts.items()}
            return _element(block, stencil, array, point, own)

        return read

    return {name: reader(starts) for name, starts in stencil.starts.items()}


def _value(block: Block, load: Load, where: tuple[str, str], condition: str) -> str:
    """An element at a place, so many elements beyond that of the first cell: a number that the
    compiler knows, so that cells have one address.
    """
    buffer = block.kernel.buffer(load.access.buffer)
    first, beyond = where
    pointer = f"{block.buffer(buffer.name)} + ({first})"
    text = f"({pointer})[{beyond}]"
    if condition:
        text = f"{guarded_read(block.kernel, buffer.name)}({pointer}, {condition}, {beyond})"
    text = cast(buffer.dtype, load.dtype, widen(buffer.dtype, text))
    filled = condition and load.fill
    return f"({condition} ? {text} : {literal(load.dtype, load.fill)})" if filled else text


def _there(block: Block, stencil: Stencil, cell: Point) -> Iterator[str]:
    """What guards tell of a cell, but for what they tell of all."""
    sizes, lows = {i: axis.extent for i, axis in block.axes.items()}, dict[str, Affine]()
    for name, low in stencil.low.items():
        sizes[name] += stencil.sizes[name] - min(block.axes[name].tile, sizes[name])
        lows[name] = add(var(name), const(low))
    for guard in stencil.guards:
        low, high = bounds(substitute(guard.expression, lows), sizes)
        text = block.affine(guard.expression, cell)
        if low < guard.lower:
            yield f"{text} >= {guard.lower}"
        if high >= guard.upper:
            yield f"{text} < {guard.upper}"


def _element(
    block: Block, stencil: Stencil, array: str, point: Point, cells: Mapping[str, str]
) -> str:
    texts = [*(cells[name] for name in stencil.sizes), *(point.register[i] for i in stencil.beside)]
    registers = [block.distribution.registers(i) for i in stencil.beside]
    return f"{array}[{flat_number(texts, [*stencil.sizes.values(), *registers])}]"
