"""Streams of single steps, and of rows that are reduced: what a step reads is asked for before.

Nothing else hides the latency of memory where a state is carried from step to step, and little
where threads wait for each other's sums in each chunk. Each warp has slots in shared memory, into
which its lanes copy asynchronously what they will read: a compiler may put off a load into
registers until just before its use, a copy it may not. What is too narrow for a copy is loaded
into slots of registers. The loop is unrolled by the number of slots, unless it is long.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from eqsat.kernel.ir import Axis, Kernel, Load, Phase, Reduce
from eqsat.terms.scans import AHEAD_BYTES, MOST_SLOTS_BYTES, SLOTS_BYTES, most_ahead

from .copy.tiles import owners
from .place.access import vector_along
from .place.block import Block
from .place.distribution import WARP, Distribution
from .place.exchange import exchange_for
from .place.placement import REGISTERS, SHARED, Placement
from .place.roles import rows_of_chunks
from .place.tile import Point
from .prelude.math import cast, register_type, storage_type, widen
from .statements import Statements

COPIED = (4, 8, 16)  # bytes that one asynchronous copy moves
MOST_STATEMENTS = 800  # of the unrolled steps, so that they are compiled soon and stay in a cache
MOST_ROLLED = 4  # slots of steps that are longer


@dataclass(frozen=True)
class Copy:
    """A load through slots: `width` elements along an index at once, by as many lanes of a warp."""

    load: Load
    index: str
    width: int
    lanes: int
    pieces: int

    @property
    def size(self) -> int:
        """Elements of a slot."""
        return self.pieces * self.lanes * self.width


@dataclass(frozen=True)
class Ahead:
    """Copies and loads into registers that run so many steps ahead; bytes of registers in all;
    whether the loop is unrolled by them.
    """

    copies: tuple[Copy, ...]
    loads: tuple[Load, ...]
    steps: int
    bytes: int
    unrolled: bool = True

    @property
    def every(self) -> tuple[Load, ...]:
        """The loads of both kinds."""
        return (*(copy.load for copy in self.copies), *self.loads)


def loads_ahead(
    kernel: Kernel, placement: Placement, distribution: Distribution, phase: Phase
) -> Ahead | None:
    """What a stream of steps asks for ahead; None for another stream, or for nothing."""
    stepped = len(phase.stream) == 1 and _is_stepped(kernel, phase.stream[0])
    if not stepped or placement.matrices:
        return None
    tiles = [s for s in phase.body if isinstance(s, Load) and placement.where[s.name] == SHARED]
    if phase.stages > 1 and tiles:
        return None  # whole chunks are copied ahead
    (axis,), axes = phase.stream, kernel.axes()
    written = {store.access.buffer for other in kernel.phases for store in other.stores}
    order = list(axes)

    def held(indices: tuple[str, ...]) -> int:
        return prod(distribution.registers(i) for i in indices)

    copies: list[Copy] = []
    loads: list[Load] = []
    for s in phase.body:
        if not isinstance(s, Load) or placement.where[s.name] != REGISTERS:
            continue
        run = sorted(s.indices, key=order.index)
        if axis.name not in run or s.access.coordinates or s.access.buffer in written:
            continue
        if exchange_for(kernel, placement, distribution, s.access, run):
            continue
        buffer = kernel.buffer(s.access.buffer)
        known = (buffer, axes, placement.indices, distribution.vector)
        index, width = vector_along(s.access, run, *known)
        if s.fill or width * buffer.dtype.itemsize not in COPIED:
            loads.append(s)
            continue
        lanes = prod(f.count for f in distribution.spread(s.indices) if f.stride < WARP)
        copies.append(Copy(s, index, width, lanes, held(s.indices) // width))
    each = sum(held(s.indices) * s.dtype.compute.itemsize for s in loads)
    shared = sum(c.size * kernel.buffer(c.load.access.buffer).dtype.itemsize for c in copies)
    shared *= kernel.threads // WARP
    over = {s.name: s.over for s in phase.body if isinstance(s, Reduce)}
    work = sum(held((*s.indices, *over.get(s.name, ()))) for s in phase.body)
    room = SLOTS_BYTES if 2 * shared <= SLOTS_BYTES else MOST_SLOTS_BYTES
    most = min(axis.count, room // max(shared, 1), AHEAD_BYTES // max(each, 1))
    unrolled = bool(loads) or work <= MOST_STATEMENTS // 2
    most = min(most, MOST_STATEMENTS // max(work, 1) if unrolled else MOST_ROLLED)
    steps = most_ahead(axis.count)
    while steps > most:
        steps //= 2
    if steps < 2 or not (copies or loads):
        return None
    return Ahead(tuple(copies), tuple(loads), steps, each * steps, unrolled)


def _is_stepped(kernel: Kernel, axis: Axis) -> bool:
    """Whether a stream takes one point at a time, or chunks of rows that are reduced."""
    return axis.tile == 1 or axis.name in rows_of_chunks(kernel)


def declare_slots(block: Block, ahead: Ahead) -> None:
    """Slots for what is asked for ahead."""
    out = block.out
    if ahead.copies and (block.tiles_read or block.tiles_written):
        block.barrier()  # what lay there before
    for copy in ahead.copies:
        dtype = block.kernel.buffer(copy.load.access.buffer).dtype
        kind, size = storage_type(dtype), ahead.steps * copy.size
        warps = block.kernel.threads // WARP
        offset = block.allocate(size * warps * dtype.itemsize)
        place, inner = f"threadIdx.x / {WARP} * {size}", copy.width
        for f in block.distribution.spread(copy.load.indices):
            if f.stride < WARP:
                place += f" + threadIdx.x / {f.stride} % {f.count} * {inner}"
                inner *= f.count
        slots = f"reinterpret_cast<{kind}*>(shared + {offset})"
        out.line(f"{kind}* const {_slots(block, copy.load)} = {slots} + {place};")
    for s in ahead.loads:
        count = ahead.steps * block.register_count(s.indices)
        out.line(f"{register_type(s.dtype)} {_slots(block, s)}[{count}];")


def fill_slot(block: Block, phase: Phase, ahead: Ahead) -> None:
    """Ask for what one step reads, for the slot of that number."""
    out, body = block.out, Statements(block, phase)
    for copy in ahead.copies:
        s, source = copy.load, block.buffer(copy.load.access.buffer)
        size = copy.width * block.kernel.buffer(s.access.buffer).dtype.itemsize
        alike = [f for f in block.distribution.unused(s.indices) if f.stride < WARP]
        if alike:
            out.line(f"if ({owners(block, alike)})")
        with out.block(), block.points(s.indices, steps={copy.index: copy.width}) as point:
            conditions = [*block.valid(s.indices, point), *block.exists(s.access, point)]
            address = f"{source} + {block.address(s.access, point)}"
            place = f"{_slots(block, s)} + {_place(block, copy, point)}"
            with out.block():
                out.line(f"const bool exists = {' && '.join(conditions) or 'true'};")
                origin = f"exists ? {address} : {source}" if conditions else address
                out.line(f"copy_async<{size}>({place}, {origin}, exists);")
    for s in ahead.loads:
        body.load(s)
        count = block.register_count(s.indices)
        out.line("#pragma unroll")
        target = f"{_slots(block, s)}[slot * {count} + e]"
        out.line(f"for (int e = 0; e < {count}; ++e) {target} = {block.value(s.name)}[e];")


def commit_slot(block: Block, ahead: Ahead) -> None:
    """Close the group of a step's copies, be there any or not: groups are counted."""
    if ahead.copies:
        block.out.line("commit_copies();")


class SteppedStatements(Statements):
    """One step, part of whose loads lie in a slot."""

    def __init__(
        self, block: Block, phase: Phase, partial: Mapping[str, str], ahead: Ahead
    ) -> None:
        super().__init__(block, phase, None, partial)
        self.copies_alone = False
        self.ahead = ahead

    def take(self) -> None:
        """What was asked for for this step; its slot is free then."""
        if self.ahead.copies:
            self.out.line(f"wait_copies<{self.ahead.steps - 1}>();")
            self.out.line("__syncwarp();")
        for copy in self.ahead.copies:
            self._take_copy(copy)
        for s in self.ahead.loads:
            self.declare(s.name)
            count = self.block.register_count(s.indices)
            source = f"{_slots(self.block, s)}[slot * {count} + e]"
            self.out.line("#pragma unroll")
            target = self.block.value(s.name)
            self.out.line(f"for (int e = 0; e < {count}; ++e) {target}[e] = {source};")
        if self.ahead.copies:
            self.out.line("__syncwarp();")

    def _take_copy(self, copy: Copy) -> None:
        block, out, s = self.block, self.out, copy.load
        dtype = block.kernel.buffer(s.access.buffer).dtype
        pack = f"Pack<{storage_type(dtype)}, {copy.width}>"
        self.declare(s.name)
        with block.points(s.indices, steps={copy.index: copy.width}) as point, out.block():
            place = f"{_slots(block, s)} + {_place(block, copy, point)}"
            out.line(f"const {pack} pack = *reinterpret_cast<const {pack}*>({place});")
            out.line("#pragma unroll")
            value = cast(dtype, s.dtype, widen(dtype, "pack.item[e]"))
            own = block.shifted(point, copy.index, "e") if copy.index else point
            out.line(
                f"for (int e = 0; e < {copy.width}; ++e) {block.element(s.name, own)} = {value};"
            )

    def plain_loads(self) -> Iterator[Load]:
        """Those of this step alone."""
        return (s for s in super().plain_loads() if s not in self.ahead.every)

    def load(self, s: Load) -> None:
        """A load of this step alone; others are in registers already."""
        if s not in self.ahead.every:
            super().load(s)


def _place(block: Block, copy: Copy, point: Point) -> str:
    """Where a piece lies behind the lane's place in the first slot."""
    parts, stride = [f"slot * {copy.pieces}"], 1
    for i in reversed(block.ordered(copy.load.indices)):
        width, number = copy.width if i == copy.index else 1, point.register[i]
        if number != "0":
            piece = f"({number}) / {width}" if width > 1 else f"({number})"
            parts.append(f"{piece} * {stride}")
        stride *= block.distribution.registers(i) // width
    return f"({' + '.join(parts)}) * {copy.lanes * copy.width}"


def _slots(block: Block, s: Load) -> str:
    return f"{block.value(s.name)}_ahead"
