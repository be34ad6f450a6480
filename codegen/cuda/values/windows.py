"""Loads through overlapping windows: what several points of a thread read is read once.

Where several indices walk one axis of memory, as i and k of x[2 i + k], points of one thread share
places on it. These are loaded in loops over places, and each point takes its element from there.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod

from eqsat.kernel.ir import Kernel, Load, Map, Reduce, Update
from eqsat.layout.relayout import WalkedAxis
from eqsat.price.window import MOST_PLACES

from ..copy.window_tile import before_end
from ..place.access import places_in_vectors, sliding_axes, vector_along
from ..place.block import Block
from ..place.distribution import Distribution
from ..place.placement import REGISTERS
from ..place.tile import Point, Reader, flat_number
from ..prelude.math import cast, literal, register_type, storage_type, widen
from .loads import load_vector

MOST_WINDOWED = 1024  # multiply-adds of a thread over windows that are held, all written out


@dataclass(frozen=True)
class Windows:
    """What a thread reads for its points: `counts` are its points along each index, `places` those
    along each axis that points share. Indices of these axes are in no loop of their own.
    """

    axes: tuple[WalkedAxis, ...]
    places: tuple[int, ...]
    counts: Mapping[str, int]
    rest: tuple[str, ...]
    serial: frozenset[str]
    looped: tuple[str, ...] = ()

    @property
    def elements(self) -> int:
        """Registers that hold them."""
        return prod(self.places) * prod(self.counts[i] for i in self.rest)


def windows(
    kernel: Kernel,
    distribution: Distribution,
    load: Load,
    serial: Collection[str] = (),
    looped: Collection[str] = (),
) -> Windows | None:
    """The places that a thread's points of a load share; None where they share none, or too many
    to hold. `serial`: indices of which each thread runs through all points; `looped`: of these, the
    ones for each of whose points the places are loaded anew.
    """
    axes = kernel.axes()
    walked = sliding_axes(kernel, load)
    if any(axes[i].extent % min(axes[i].tile, axes[i].extent) for i in serial):
        return None
    counts = {i: distribution.registers(i) for i in load.indices}
    counts |= {i: min(axes[i].tile, axes[i].extent) for i in load.indices if i in serial}
    counts |= dict.fromkeys(looped, 1)
    shared: list[tuple[WalkedAxis, int]] = []
    for axis in walked:
        steps = {str(atom): step for atom, step in axis.place.terms}
        together = all(i in serial or _side_by_side(distribution, i) for i in steps)
        places = 1 + sum(step * (counts[i] - 1) for i, step in steps.items())
        if together and places < prod(counts[i] for i in steps):
            shared.append((axis, places))
    inside = {str(atom) for axis, _ in shared for atom, _ in axis.place.terms}
    rest = tuple(i for i in axes if i in load.indices and i not in inside and i not in looped)
    known = frozenset(i for i in load.indices if i in serial)
    held, places = tuple(axis for axis, _ in shared), tuple(n for _, n in shared)
    found = Windows(held, places, counts, rest, known, tuple(looped))
    return found if shared and found.elements <= MOST_PLACES else None


def windows_in_turn(
    kernel: Kernel, distribution: Distribution, load: Load, serial: Sequence[str], results: int
) -> Windows | None:
    """`windows`, of all points of the serial indices at once; where these are too many to hold, or
    for so many results to write out, those for each point of some indices in turn, such that a
    thread loads the fewest elements.
    """
    axes = kernel.axes()
    lengths = {i: min(axes[i].tile, axes[i].extent) for i in serial}
    own = [i for i in serial if i in load.indices]
    for count in range(len(own)):
        found = []
        for turns in combinations(own, count):
            written = results * prod(n for i, n in lengths.items() if i not in turns)
            one = windows(kernel, distribution, load, serial, turns)
            if one and written <= MOST_WINDOWED:
                found.append(one)
        if found:
            return min(found, key=lambda one: one.elements * prod(lengths[i] for i in one.looped))
    return None


def shared_windows(block: Block, load: Load) -> Windows | None:
    """What a load's points share, where nothing but elementwise statements reads it."""
    placement = block.placement
    users = (placement.statements.get(name) for name in placement.users[load.name])
    if placement.where[load.name] != REGISTERS:
        return None
    if not all(isinstance(u, Map | Update | Reduce) for u in users):
        return None
    return windows(block.kernel, block.distribution, load)


def _side_by_side(distribution: Distribution, index: str) -> bool:
    return all(weight == 1 for _, weight in distribution.weighted(index, "register"))


def load_windows(block: Block, load: Load, found: Windows, around: Point | None = None) -> Reader:
    """Write the loads; returns what reads an element by the register numbers of its point. `around`
    is the point of what is looped over.
    """
    out, array = block.out, f"w_{block.names.of(load.name)}"
    buffer, held = block.kernel.buffer(load.access.buffer), block.distribution.vector
    own = [i for i in found.rest if i not in found.serial]
    indices_of = block.placement.indices
    along, width = vector_along(load.access, own, buffer, block.axes, indices_of, held)
    sizes = [*(found.counts[i] for i in found.rest), *found.places]

    def element(register: Mapping[str, str], places: Sequence[str]) -> str:
        texts = [*(register[i] for i in found.rest), *places]
        return f"{array}[{flat_number(texts, sizes)}]"

    def read(point: Point) -> str:
        places = []
        for axis in found.axes:
            terms = [(str(atom), step) for atom, step in axis.place.terms]
            numbers = [(point.register[i], step) for i, step in terms if i not in found.looped]
            texts = [n if step == 1 else f"({n}) * {step}" for n, step in numbers if n != "0"]
            places.append(" + ".join(texts) or "0")
        return element(point.register, places)

    out.line(f"{register_type(load.dtype)} {array}[{found.elements}];")
    if line := _line(block, load, found):
        if _load_line(block, load, found, line, element, around):
            out.line(f"hold({array});")
        return read
    guarded = False
    with _points(block, load, found, {along: width}, around) as (point, places):
        condition = " && ".join(_conditions(block, load, found, point))
        guarded = bool(condition)
        if width == 1:
            value = _element(block, load, point, condition)
            out.line(f"{element(point.register, places)} = {value};")
        else:
            with out.block():
                load_vector(
                    block, load, point, condition, width,
                    lambda e: element(block.shifted(point, along, e).register, places),
                )  # fmt: skip
    if guarded:
        out.line(f"hold({array});")
    return read


@dataclass(frozen=True)
class _Line:
    """What the windows of a thread span in memory: so many places, read in aligned vectors of
    `width` elements, of which the first has so many `before` those places.
    """

    width: int
    before: int
    places: int

    @property
    def vectors(self) -> int:
        return -(-(self.before + self.places) // self.width)


def _line(block: Block, load: Load, found: Windows) -> _Line | None:
    """How a thread reads windows that slide along memory, point by point; None for others."""
    axis, kernel = found.axes[-1], block.kernel
    moving = [i for i in axis.names if i not in found.serial and block.distribution.vector(i) > 1]
    width = places_in_vectors(kernel, load, axis, moving[0]) if len(moving) == 1 else 0
    if not width or block.distribution.vector(moving[0]) % width:
        return None
    return _Line(width, load.access.address.constant % width, found.places[-1])


def _load_line(
    block: Block,
    load: Load,
    found: Windows,
    line: _Line,
    element: Callable[[Mapping[str, str], Sequence[str]], str],
    around: Point | None,
) -> bool:
    """Write the loads of all lines, in vectors where every place of one is there: at its ends, as
    what tells that is linear; whether that has to be asked.
    """
    out, axis, buffer = block.out, found.axes[-1], block.kernel.buffer(load.access.buffer)
    kind, number = storage_type(buffer.dtype), f"place_{len(found.axes) - 1}"
    with _points(block, load, found, {}, around, len(found.axes) - 1) as (point, places):
        ends = (_moved(axis, point, place) for place in ("0", str(line.places - 1)))
        asked = [one for at in ends for one in _conditions(block, load, found, at)]
        first = block.address(load.access, point) + f" - {line.before}" * bool(line.before)
        if buffer.size % line.width:
            asked.append(f"{first} + {line.vectors * line.width} <= {buffer.size}")
        if asked:
            out.line(f"if ({' && '.join(dict.fromkeys(asked))})")
        with out.block():
            out.line(f"const {kind}* const line = {block.buffer(buffer.name)} + {first};")
            out.line("#pragma unroll")
            with out.block(f"for (int n = 0; n < {line.vectors}; ++n)"):
                pack = f"const Pack<{kind}, {line.width}>"
                out.line(f"{pack} pack = *reinterpret_cast<{pack}*>(line + n * {line.width});")
                out.line("#pragma unroll")
                with out.block(f"for (int e = 0; e < {line.width}; ++e)"):
                    at_first = f" - {line.before}" * bool(line.before)
                    out.line(f"const int {number} = n * {line.width} + e{at_first};")
                    value = cast(buffer.dtype, load.dtype, widen(buffer.dtype, "pack.item[e]"))
                    there = f"if ({number} >= 0 && {number} < {line.places})"
                    out.line(f"{there} {element(point.register, [*places, number])} = {value};")
        if asked:
            out.line("else")
            with out.block():
                out.line("#pragma unroll")
                with out.block(f"for (int {number} = 0; {number} < {line.places}; ++{number})"):
                    at = _moved(axis, point, number)
                    condition = " && ".join(_conditions(block, load, found, at))
                    value = _element(block, load, at, condition)
                    out.line(f"{element(point.register, [*places, number])} = {value};")
    return bool(asked)


def _element(block: Block, load: Load, point: Point, condition: str) -> str:
    """An element, or the fill where a condition does not hold: predicated, so that one base address
    serves all. Zeros of fewer bits are widened with the rest, or each load would be waited for.
    """
    buffer = block.kernel.buffer(load.access.buffer)
    value = block.memory_element([load.access], point, load.dtype)
    if not condition:
        return value
    if load.fill or buffer.dtype.compute == buffer.dtype:
        return f"{condition} ? {value} : {literal(load.dtype, load.fill)}"
    place = f"{block.buffer(buffer.name)}[{block.address(load.access, point)}]"
    bits = f"({condition} ? {place} : ({storage_type(buffer.dtype)})0)"
    return cast(buffer.dtype, load.dtype, widen(buffer.dtype, bits))


@contextmanager
def _points(
    block: Block,
    load: Load,
    found: Windows,
    steps: Mapping[str, int],
    around: Point | None,
    most: int | None = None,
) -> Iterator[tuple[Point, list[str]]]:
    """Loops over what a thread reads: a point, and the number of its place on each axis, or on so
    many of them: of the others it is at the first.
    """
    own = [i for i in found.rest if i not in found.serial]
    places = [f"place_{n}" for n in range(len(found.axes) if most is None else most)]
    serial = [i for i in found.rest if i in found.serial]
    loops = [(block.index("r", i), found.counts[i]) for i in serial]
    with block.points(own, steps=steps) as point, ExitStack() as stack:
        for name, count in (*loops, *zip(places, found.places, strict=False)):
            block.out.line("#pragma unroll")
            stack.enter_context(
                block.out.block(f"for (int {name} = 0; {name} < {count}; ++{name})")
            )
        at = {i: _first(block, i, found) for i in load.indices} | dict(point.at)
        register = dict(point.register)
        if around:
            at |= {i: around.at[i] for i in found.looped}
        for i in serial:
            register[i] = block.index("r", i)
            at[i] = f"({at[i]} + {register[i]})"
        reached = Point(at, register, point.origin)
        for axis, place in zip(found.axes, places, strict=False):
            reached = _moved(axis, reached, place)
        yield reached, places


def _moved(axis: WalkedAxis, point: Point, place: str) -> Point:
    """The point so many places further on along an axis."""
    index = next(str(atom) for atom, step in axis.place.terms if step == 1)
    return replace(point, at={**point.at, index: f"({point.at[index]} + {place})"})


def _first(block: Block, index: str, found: Windows) -> str:
    return block.frame.origin[index] if index in found.serial else block.index("base", index)


def _conditions(block: Block, load: Load, found: Windows, point: Point) -> list[str]:
    """When an element of the windows is read: it exists, and some point's extents reach it."""
    conditions = [*block.valid(found.rest, point), *block.exists(load.access, point)]
    for axis in found.axes:
        if block.valid(axis.names, point):
            conditions += before_end(block, load, axis, point)
    return conditions
