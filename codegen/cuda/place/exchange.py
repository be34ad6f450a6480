"""Which stores and loads go through shared memory, so that neighbouring lanes touch whole lines.

The threads of a warp exchange the points that they hold among themselves, in passes: a pass covers
all lanes and as many registers as make the points along the access's unit-stride index fill a
line. Data stays inside the warp, so that no barrier of the block is needed. Where all threads of a
block may wait for each other, all of them may exchange: rows are longer then. An exchange is
chosen where it costs less than the access as the distribution has it, counted over the lanes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from eqsat.graph.index import evaluate, free_names
from eqsat.kernel.ir import Access, Kernel
from eqsat.layout.needs import VECTOR_BYTES
from eqsat.layout.relayout import SECTOR
from eqsat.price.tiling import LINE

from .access import continued, unit_stride, vector_along, vector_width, width_anywhere
from .distribution import WARP, Distribution
from .placement import Placement

BANKS, BANK = 32, 4  # of shared memory, and bytes of each
PATCH = 2048  # bytes of a warp's patch, unless rows of one line need more
LINE_COST = 2  # a line on its way to memory, in passes over the banks
PART_COST = 4  # the same of each sector that is written in part: 57 of them a ns on an H100
WAIT_COST = 16  # of a pass, for the patch to be written and read
LONG = 4 * LINE  # bytes of a row, whose ends are little of what single elements write
SAMPLES = 8  # accesses of a pass that are looked at; registers only move their addresses

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Digit:
    """Part of an index: points `weight` apart, by lane or by register number.

    `place`: the stride in lanes, or the product of the index's register digits below.
    """

    index: str
    kind: str
    count: int
    weight: int
    place: int


@dataclass(frozen=True)
class Span:
    """Points of an index, `weight` apart, that lie `stride` rows apart in a patch."""

    index: str
    count: int
    weight: int
    stride: int


@dataclass(frozen=True)
class Exchange:
    """How the points of one warp, or block, pass through its patch of rows in shared memory.

    `members`: threads that exchange among each other. A row is `length` points along the index
    `along`; rows run over `rows`, the first innermost. `held`: registers of each index that a pass
    covers. `width`: elements that a thread moves between patch and memory at once; `own_width`:
    between patch and registers. Rows lie `pitch` elements apart, and vectors within a row are
    turned by the row number: see `place`. `anywhere`: rows of memory begin at any element, and what
    is moved at once are the aligned vectors that have some of a row, one more than fill it.
    """

    along: str
    length: int
    rows: tuple[Span, ...]
    digits: tuple[Digit, ...]
    held: tuple[tuple[str, int], ...]
    width: int
    own_width: int
    itemsize: int
    pitch: int
    members: int = WARP
    anywhere: bool = False
    mask: int = 0
    shift: int = 0

    @property
    def unit(self) -> int:
        """Elements that are turned as one."""
        return max(self.width, self.own_width)

    @property
    def count(self) -> int:
        """Rows of a patch."""
        return prod(span.count for span in self.rows)

    @property
    def slots(self) -> int:
        """Vectors that the threads move between patch and memory in a pass."""
        return self.count * self.per_row

    @property
    def per_row(self) -> int:
        """Vectors of a row."""
        return self.length // self.width + self.anywhere

    @property
    def vectors(self) -> int:
        """Of these, those of one thread."""
        return -(-self.slots // self.members)

    @property
    def bytes(self) -> int:
        """Of a patch for each warp of its members, a multiple of the widest access."""
        size = -(-self.count * self.pitch * self.itemsize * WARP // self.members)
        return -(-size // VECTOR_BYTES) * VECTOR_BYTES

    def part(self, digit: Digit) -> tuple[int, int]:
        """The rows and columns by which a digit moves a point."""
        if digit.index == self.along and digit.weight < self.length:
            return 0, digit.weight
        span = next(
            s
            for s in self.rows
            if s.index == digit.index and s.weight <= digit.weight < s.weight * s.count
        )
        return span.stride * (digit.weight // span.weight), 0

    def place(self, row: Numbers, column: Numbers) -> Numbers:
        """The element of the patch in which a point lies."""
        turned = column // self.unit ^ (row >> self.shift & self.mask)
        return row * self.pitch + turned * self.unit + column % self.unit

    def own_places(self) -> list[Numbers]:
        """Where each thread's vector lies, for a sample of the accesses by registers."""
        found = []
        for values in _register_values(self.digits, self.along, self.own_width, self.members):
            row, column = np.zeros(self.members, np.int64), np.zeros(self.members, np.int64)
            for digit, value in values:
                down, right = self.part(digit)
                row, column = row + value * down, column + value * right
            found.append(self.place(row, column))
        return found

    def far_points(self) -> list[tuple[Numbers, Numbers]]:
        """Row and first column of each thread's vector, for a sample of the accesses to memory."""
        found, each = [], self.members
        for number in _sample(self.vectors):
            slot = np.arange(number * each, min((number + 1) * each, self.slots))
            column = slot % self.per_row * self.width
            found.append((slot // self.per_row, np.minimum(column, self.length - self.width)))
        return found

    def at(self, row: Numbers, column: Numbers) -> dict[str, Numbers]:
        """Coordinates of a row and column, those of the warp and of the pass left out."""
        at = {self.along: column}
        for span in self.rows:
            value = row // span.stride % span.count * span.weight
            at[span.index] = at.get(span.index, 0) + value
        return at

    def bank_passes(self) -> tuple[float, float]:
        """Passes over the banks that a warp's access by registers, and one to memory, takes."""
        own = [bank_passes(places, self.own_width, self.itemsize) for places in self.own_places()]
        places = (self.place(row, column) for row, column in self.far_points())
        far = [bank_passes(place, self.width, self.itemsize) for place in places]
        warps = self.members / WARP
        return _mean(own) / warps, _mean(far) / warps


def bank_passes(places: Numbers, width: int, itemsize: int) -> int:
    """Passes over the banks of one access: lanes' vectors of `width` elements from `places`.

    At most 128 bytes are served at a time, of consecutive lanes; of these, different words of one
    bank one after the other.
    """
    bytes_ = width * itemsize
    together = min(WARP, LINE // max(bytes_, BANK))
    words = places[:, None] * itemsize // BANK + np.arange(max(bytes_ // BANK, 1))
    total = 0
    for first in range(0, len(places), together):
        banks = np.unique(words[first : first + together]) % BANKS
        total += int(np.bincount(banks).max())
    return total


def exchange_for(
    kernel: Kernel,
    placement: Placement,
    distribution: Distribution,
    access: Access,
    indices: Sequence[str],
    whole: bool = False,
) -> Exchange | None:
    """The exchange of a store or load over `indices`; None where the access is as good without.

    `whole`: all threads of the block come by here, and may wait for each other.
    """
    buffer, axes = kernel.buffer(access.buffer), kernel.axes()
    stores = _is_stored(kernel, access)

    def cost(at: Mapping[str, Numbers], width: int, aligned: bool = False) -> float:
        """Of one access by all members, for each warp: the lines that it touches, and the sectors
        that it writes to but in part.
        """
        points = {name: at.get(name, 0) for name in free_names(access.address)}
        place = np.asarray(evaluate(access.address, points))
        address = (place - place % width if aligned else place) * buffer.dtype.itemsize
        warps = np.split(np.atleast_1d(address), range(WARP, address.size, WARP))
        parts = sum(_parts(each, width * buffer.dtype.itemsize) for each in warps) if stores else 0
        lines = sum(len(np.unique(each // LINE)) for each in warps)
        return (LINE_COST * lines + PART_COST * parts) / len(warps)

    by = vector_along(access, indices, buffer, axes, placement.indices, distribution.vector)
    _, on = continued(access, by, indices, buffer, axes, distribution.vector)
    wide = by[1] * (on if stores else 1)
    members = distribution.threads if whole and not distribution.unused(indices) else WARP
    shape = shape_of(kernel, placement, distribution, access, indices, members)
    if shape is None:
        return None
    digits = _digits(distribution, indices, members)
    own_points = _own_points(digits, *by, members)
    direct = _accesses(digits, wide) * _mean(cost(at, wide) for at in own_points)
    exchange = _lay_out(shape)
    own, far = exchange.bank_passes()
    points = (exchange.at(row, column) for row, column in exchange.far_points())
    lines = _mean(cost(at, exchange.width, exchange.anywhere) for at in points)
    each = _accesses(exchange.digits, exchange.own_width) * own + exchange.vectors * (far + lines)
    passes = _accesses(digits, 1) / _accesses(exchange.digits, 1)
    return exchange if passes * (each + WAIT_COST) < direct else None


def _parts(address: Numbers, size: int) -> int:
    """Sectors of which accesses of `size` bytes at some addresses cover but a part."""
    sectors, place = np.unique(address // SECTOR, return_inverse=True)
    covered = np.bincount(place.ravel(), minlength=len(sectors)) * size
    return int((covered < SECTOR).sum())


def shape_of(
    kernel: Kernel,
    placement: Placement,
    distribution: Distribution,
    access: Access,
    indices: Sequence[str],
    members: int = WARP,
) -> Exchange | None:
    """What so many threads hold of an access over `indices` in one pass, as rows that are not yet
    laid out; None where no points lie side by side.
    """
    digits = _digits(distribution, indices, members)
    buffer, axes = kernel.buffer(access.buffer), kernel.axes()
    along = next((i for i in indices if unit_stride(access, i) and axes[i].extent > 1), "")
    if access.coordinates or not along or not any(d.kind == "thread" for d in digits):
        return None
    width = vector_width(access, along, buffer, axes, placement.indices)
    size = buffer.dtype.itemsize
    strides = {i: abs(c) for i, c in access.address.terms if isinstance(i, str)}
    most = width_anywhere(access, along, buffer, placement.indices)
    if _is_stored(kernel, access) and members > WARP and width < most:
        shape = _shape(digits, along, most, size, strides, members)
        if shape and shape.width == most and shape.length * size <= LONG:
            return replace(shape, anywhere=True)
    return _shape(digits, along, width, size, strides, members)


def _is_stored(kernel: Kernel, access: Access) -> bool:
    return any(access == store.access for phase in kernel.phases for store in phase.stores)


def _digits(distribution: Distribution, indices: Sequence[str], members: int) -> tuple[Digit, ...]:
    """Digits of the indices by register and by thread among the members, of each index innermost
    first.
    """
    found = []
    for i in indices:
        for kind in ("register", "thread"):
            place = 1
            for factor, weight in reversed(distribution.weighted(i, kind)):
                if factor.stride < members:
                    below = place if kind == "register" else factor.stride
                    found.append(Digit(i, kind, factor.count, weight, below))
                place *= factor.count
    return tuple(sorted(found, key=lambda d: (indices.index(d.index), d.weight)))


def _register_values(
    digits: Sequence[Digit], along: str, width: int, members: int
) -> Iterator[list[tuple[Digit, Numbers]]]:
    """For a sample of the members' accesses, the value of each digit in each thread."""
    registers = [d for d in digits if d.kind == "register"]
    ways = [d.count // width if (d.index, d.weight) == (along, 1) else d.count for d in registers]
    thread = np.arange(members)
    for number in _sample(prod(ways)):
        numbers = np.unravel_index(number, ways) if ways else ()
        values = []
        for digit, way in zip(registers, numbers, strict=True):
            step = width if (digit.index, digit.weight) == (along, 1) else 1
            values.append((digit, np.full(members, int(way) * step)))
        yield values + [(d, thread // d.place % d.count) for d in digits if d.kind == "thread"]


def _own_points(
    digits: Sequence[Digit], along: str, width: int, members: int
) -> Iterator[dict[str, Numbers]]:
    """Coordinates of each thread's point, for a sample of the accesses without an exchange."""
    for values in _register_values(digits, along, width, members):
        at: dict[str, Numbers] = {}
        for digit, value in values:
            at[digit.index] = at.get(digit.index, 0) + value * digit.weight
        yield at


def _accesses(digits: Sequence[Digit], width: int) -> int:
    """Accesses of a warp to its registers' points, `width` of them at once."""
    return prod(d.count for d in digits if d.kind == "register") // width


def _sample(count: int) -> list[int]:
    return sorted({n * count // SAMPLES for n in range(SAMPLES)})


def _mean(numbers: Iterable[float]) -> float:
    found = list(numbers)
    return sum(found) / len(found)


def _shape(
    digits: Sequence[Digit],
    along: str,
    width: int,
    itemsize: int,
    strides: Mapping[str, int],
    members: int,
) -> Exchange | None:
    """The patch of a pass, its rows not yet padded; None where no points lie side by side."""
    own = [d for d in digits if d.index == along]
    length, held = 1, {along: 1}
    for digit in own:
        if digit.weight != length:
            break  # other warps hold what comes next
        need = -(-LINE // (length * itemsize))
        taken = digit.count if digit.kind == "thread" else _at_least(digit.count, need)
        length *= taken
        held[along] *= taken if digit.kind == "register" else 1
        if taken < digit.count:
            break
    if length == 1:
        return None
    lanes = prod(d.count for d in digits if d.kind == "thread")
    others = sorted((d for d in digits if d.index != along), key=lambda d: strides.get(d.index, 0))
    full, patch = set(), PATCH * members // WARP
    for digit in others:
        room = patch // (lanes * prod(held.values()) * itemsize)
        if digit.kind == "register" and digit.index not in full:
            taken = max(n for n in _divisors(digit.count) if n <= max(room, 1))
            held[digit.index] = held.get(digit.index, 1) * taken
            if taken < digit.count:
                full.add(digit.index)
    inside = tuple(_inside(digits, held))
    while length % width:
        width //= 2
    first = next(d for d in inside if d.index == along)
    vector = first.count if first.kind == "register" and first.weight == 1 else 1
    own_width = max(n for n in (1, 2, 4, 8, 16) if vector % n == 0 and n * itemsize <= VECTOR_BYTES)
    return Exchange(
        along,
        length,
        _rows(inside, along, length, strides),
        inside,
        tuple(sorted(held.items())),
        width,
        own_width,
        itemsize,
        length,
        members,
    )


def _at_least(count: int, need: int) -> int:
    """The smallest divisor that is at least `need`, or the whole count."""
    return next(n for n in _divisors(count) if n >= min(need, count))


def _divisors(count: int) -> list[int]:
    return [n for n in range(1, count + 1) if count % n == 0]


def _inside(digits: Sequence[Digit], held: Mapping[str, int]) -> Iterator[Digit]:
    """The digits of one pass: all lanes, and the innermost registers."""
    for digit in digits:
        left = held.get(digit.index, 1) // digit.place
        if digit.kind == "thread":
            yield digit
        elif left > 1:
            yield replace(digit, count=min(digit.count, left))


def _rows(
    digits: Sequence[Digit], along: str, length: int, strides: Mapping[str, int]
) -> tuple[Span, ...]:
    """The digits beyond a row, joined where they follow each other, nearest in memory first."""
    spans: list[Span] = []
    for digit in digits:
        if digit.index == along and digit.weight < length:
            continue
        last = spans[-1] if spans else None
        if last and last.index == digit.index and last.weight * last.count == digit.weight:
            spans[-1] = replace(last, count=last.count * digit.count)
        else:
            spans.append(Span(digit.index, digit.count, digit.weight, 1))
    spans.sort(key=lambda s: strides.get(s.index, 0) * s.weight)
    result, stride = [], 1
    for span in spans:
        result.append(replace(span, stride=stride))
        stride *= span.count
    return tuple(result)


@lru_cache(maxsize=1024)
def _lay_out(shape: Exchange) -> Exchange:
    """The patch with the fewest conflicts: rows padded, or else vectors turned within rows."""
    unit = shape.unit
    pads = [shape.length + pad * unit for pad in range(max(LINE // (unit * shape.itemsize), 2))]
    candidates = [replace(shape, pitch=pitch) for pitch in dict.fromkeys(pads)]
    units = shape.length // unit
    mask = (units & -units) - 1
    candidates += [replace(shape, mask=mask, shift=shift) for shift in range(6 if mask else 0)]

    def conflicts(exchange: Exchange) -> float:
        own, far = exchange.bank_passes()
        accesses = _accesses(exchange.digits, exchange.own_width)
        return own * accesses + far * exchange.vectors

    def size(exchange: Exchange) -> int:
        return exchange.bytes * exchange.members // WARP + (LINE if exchange.mask else 0)

    return min(candidates, key=lambda e: (conflicts(e), size(e)))
