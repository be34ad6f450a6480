"""Stores and loads whose points change threads through a patch of shared memory for each warp, or
one for the block.

C++ names: `patch` is the patch; `row` and `column` the part of this thread in a place of its own
points; `warp_j` the first point of index j that its members hold; `pass` counts passes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from eqsat.kernel.ir import Access, Load, Phase, Store

from ..copy.tiles import owners
from ..place.block import Block
from ..place.distribution import WARP
from ..place.exchange import Digit, Exchange, exchange_for
from ..place.placement import REGISTERS, store_indices
from ..place.roles import comes_together
from ..place.tile import Point
from ..prelude.math import cast, storage_type, widen
from .anywhere import WORDS, anywhere, least, points_left
from .packs import write_pack
from .windows import shared_windows

Placed = tuple[Access, tuple[str, ...]]  # an access, and the indices over which it runs
AHEAD = 128  # bytes that a lane loads before it passes them on


def find_exchanges(block: Block, phase: Phase) -> dict[Placed, Exchange]:
    """The accesses of a phase that go through patches, each by what it runs over."""
    found = [
        (s, s.indices)
        for s in phase.body
        if isinstance(s, Load) and block.placement.where[s.name] == REGISTERS
        if not s.fill and not s.rest and not shared_windows(block, s)
    ]
    stores = (store for store in phase.stores if not store.monoid)
    found += [(s, tuple(store_indices(block.placement, s))) for s in stores]
    whole, result = comes_together(block.kernel, block.placement), {}
    for s, indices in found:
        run = block.ordered(indices)
        known = block.kernel, block.placement, block.distribution, s.access, run, whole
        chosen = None if anywhere(block, s) else exchange_for(*known)
        if chosen:
            result[s.access, tuple(run)] = chosen
    return result


@dataclass(frozen=True)
class Patch:
    """One exchange in the source: its access over some indices; patches begin at `offset`, with
    `bytes` for each warp.
    """

    block: Block
    exchange: Exchange
    access: Access
    indices: Sequence[str]
    offset: int
    bytes: int

    def store(self, store: Store, value: Callable[[Point], str]) -> None:
        """Write a store; `value` gives the C++ expression of the value at a point."""
        block, out, own = self.block, self.block.out, self.exchange.own_width
        target = block.buffer(store.access.buffer)
        unused = block.distribution.unused(self.indices)
        warps = owners(block, [f for f in unused if f.stride >= WARP])
        lanes = owners(block, [f for f in unused if f.stride < WARP])
        if warps:
            out.line(f"if ({warps})")
        with self.scope(), self.loop("pass", self.passes):
            self.wait()
            with self.own_points("pass", lanes) as (point, place):
                dtype, source = block.kernel.buffer(store.access.buffer).dtype, store.value

                def value_of(e: str) -> str:
                    return value(block.shifted(point, self.exchange.along, e) if own > 1 else point)

                write_pack(out, dtype, block.placement.dtypes[source], own, place, value_of)
            self.wait()
            with self.far_points("pass") as (point, place, condition):
                if condition:
                    out.line(f"if ({condition})")
                if self.exchange.anywhere:
                    self.store_between(target, point)
                else:
                    width = self.exchange.width
                    far = f"{target} + {block.address(self.access, point)}"
                    out.line(f"{self.vector(far, width)} = {self.vector(place, width, 'const ')};")

    def store_between(self, target: str, point: Point) -> None:
        """Write the aligned vector at or before a place of a row that begins anywhere."""
        block, out, exchange = self.block, self.block.out, self.exchange
        along, width, last = exchange.along, exchange.width, exchange.length - exchange.width
        low, high = (
            f"*reinterpret_cast<const {WORDS}*>({self.place('far_row', column)})"
            for column in (f"max(far_column - {width}, 0)", f"min(far_column, {last})")
        )
        row = Point(point.at | {along: "row_start"}, {}, point.origin)
        count = least([str(exchange.length), *points_left(block, along, row)])
        with out.block():
            out.line(f"const int row_start = {point.at[along]} - far_column;")
            place = block.address(self.access, point)
            what = f"{target}, {low}, {high}, far_column, {count}, {place}"
            out.line(f"store_between<{width}>({what});")

    def load(self, s: Load) -> None:
        """Write a load into registers that are declared; what does not exist is zero."""
        block, out, own = self.block, self.block.out, self.exchange.own_width
        buffer = block.kernel.buffer(s.access.buffer)
        width, vectors = self.exchange.width, self.exchange.vectors
        bytes_ = vectors * width * self.exchange.itemsize
        ahead = max(
            n
            for n in range(1, self.passes + 1)
            if self.passes % n == 0 and n <= max(AHEAD // bytes_, 1)
        )
        number, pack = ("(first + pass)", "ahead[pass][vector]")
        with self.scope(), self.loop("first", self.passes, ahead):
            out.line(f"{self.pack(width)} ahead[{ahead}][{vectors}] = {{}};")
            with self.loop("pass", ahead), self.far_points(number) as (point, _, condition):
                if condition:
                    out.line(f"if ({condition})")
                far = f"{block.buffer(buffer.name)} + {block.address(self.access, point)}"
                out.line(f"{pack} = {self.vector(far, width, 'const ')};")
            with self.loop("pass", ahead):
                self.wait()
                with self.far_slots() as (place, condition):
                    if condition:
                        out.line(f"if ({condition})")
                    out.line(f"{self.vector(place, width)} = {pack};")
                self.wait()
                with self.own_points(number) as (point, place):
                    shifted = block.shifted(point, self.exchange.along, "e") if own > 1 else point
                    out.line(f"const {self.pack(own)} pack = {self.vector(place, own, 'const ')};")
                    value = cast(buffer.dtype, s.dtype, widen(buffer.dtype, "pack.item[e]"))
                    self.each(own, f"{block.element(s.name, shifted)} = {value};")

    # parts of the source

    def wait(self) -> None:
        """Until all members have written and read what they were to."""
        if self.exchange.members > WARP:
            self.block.barrier()
            self.block.tiles_read = True  # from here on, by the block
        else:
            self.block.out.line("__syncwarp();")

    @property
    def passes(self) -> int:
        held = dict(self.exchange.held)
        return prod(self.block.distribution.registers(i) // held.get(i, 1) for i in self.indices)

    @property
    def kind(self) -> str:
        return storage_type(self.block.kernel.buffer(self.access.buffer).dtype)

    def pack(self, width: int) -> str:
        return f"Pack<{self.kind}, {width}>"

    def vector(self, pointer: str, width: int, const: str = "") -> str:
        return f"*reinterpret_cast<{const}{self.pack(width)}*>({pointer})"

    def each(self, width: int, line: str) -> None:
        """A line for each element of a vector."""
        self.block.out.line("#pragma unroll")
        self.block.out.line(f"for (int e = 0; e < {width}; ++e) {line}")

    @contextmanager
    def loop(self, name: str, count: int, step: int = 1) -> Iterator[None]:
        out = self.block.out
        out.line("#pragma unroll")
        advance = f"++{name}" if step == 1 else f"{name} += {step}"
        with out.block(f"for (int {name} = 0; {name} < {count}; {advance})"):
            yield

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A block of code in which the names of an exchange are defined."""
        block, out, exchange = self.block, self.block.out, self.exchange
        with out.block():
            self.begin()
            rows, columns = [], []
            for digit in exchange.digits:
                if digit.kind == "thread":
                    value = _digit(f"int({block.thread})", digit)
                    for weight, parts in zip(exchange.part(digit), (rows, columns), strict=True):
                        parts += [_scaled(value, weight)] if weight else []
            out.line(f"const int row = {' + '.join(rows) or '0'};")
            out.line(f"const int column = {' + '.join(columns) or '0'};")
            yield

    def begin(self) -> None:
        """The patch, and the first point of each index that its members hold."""
        block, out, members = self.block, self.block.out, self.exchange.members
        start = f"shared + {self.offset}"
        if members == WARP:
            start += f" + int(threadIdx.x) / {WARP} * {self.bytes}"
        out.line(f"{self.kind}* const patch = reinterpret_cast<{self.kind}*>({start});")
        for i in self.indices:
            factors = block.distribution.weighted(i, "thread")
            offset = block.thread_offset([(f, w) for f, w in factors if f.stride >= members])
            parts = [part for part in (block.frame.origin[i], offset) if part != "0"]
            out.line(f"const int {block.index('warp', i)} = {' + '.join(parts) or '0'};")

    def place(self, row: str, column: str) -> str:
        """A pointer into the patch."""
        e = self.exchange
        if e.mask:
            turned = f"(({column}) / {e.unit} ^ (({row}) >> {e.shift} & {e.mask})) * {e.unit}"
            column = f"{turned} + ({column}) % {e.unit}"
        return f"patch + ({row}) * {e.pitch} + {column}"

    def pass_numbers(self, number: str) -> dict[str, str]:
        """For each index, the first of its register numbers in a pass."""
        held, result, inner = dict(self.exchange.held), {}, 1
        for i in reversed(self.indices):
            count = self.block.distribution.registers(i) // held.get(i, 1)
            if count == 1:
                result[i] = "0"
                continue
            text = number if inner == 1 else f"{number} / {inner}"
            text = text if inner * count == self.passes else f"{text} % {count}"
            result[i] = _scaled(f"({text})" if "%" in text else text, held.get(i, 1))
            inner *= count
        return result

    @contextmanager
    def own_points(self, number: str, condition: str = "") -> Iterator[tuple[Point, str]]:
        """Loops over this thread's own vectors of a pass, each with its place in the patch."""
        block, out, exchange = self.block, self.block.out, self.exchange
        first, held, depth = self.pass_numbers(number), dict(exchange.held), 0
        at: dict[str, str] = {}
        register: dict[str, str] = {}
        if condition:
            out.line(f"if ({condition})")
        with out.block():
            for i in self.indices:
                step = exchange.own_width if i == exchange.along else 1
                name, text = block.index("r", i), first[i]
                if held.get(i, 1) > step:
                    out.line("#pragma unroll")
                    out.line(f"for (int {name} = 0; {name} < {held[i]}; {name} += {step}) {{")
                    out.depth += 1
                    depth += 1
                    text = name if text == "0" else f"({text} + {name})"
                offset = block.register_offset(block.distribution, i, f"({text})")
                at[i] = f"({block.index('base', i)} + {offset})"
                register[i] = text
            rows, columns = ["row"], ["column"]
            for digit in exchange.digits:
                step = exchange.own_width if digit.index == exchange.along else 1
                if digit.kind == "register" and held[digit.index] > step:
                    value = _digit(block.index("r", digit.index), digit)
                    for weight, parts in zip(exchange.part(digit), (rows, columns), strict=True):
                        parts += [_scaled(value, weight)] if weight else []
            place = self.place(" + ".join(rows), " + ".join(columns))
            with out.block():
                yield Point(at, register, block.frame.origin), place
            for _ in range(depth):
                out.depth -= 1
                out.line("}")

    @contextmanager
    def far_slots(self) -> Iterator[tuple[str, str]]:
        """A loop over the vectors that this thread moves between patch and memory in a pass."""
        out, exchange = self.block.out, self.exchange
        members, per_row = exchange.members, exchange.per_row
        with self.loop("vector", exchange.vectors):
            out.line(f"const int slot = int(threadIdx.x) % {members} + vector * {members};")
            out.line(f"const int far_row = slot / {per_row};")
            out.line(f"const int far_column = {_scaled(f'slot % {per_row}', exchange.width)};")
            missing = exchange.slots % members
            yield self.place("far_row", "far_column"), f"slot < {exchange.slots}" if missing else ""

    @contextmanager
    def far_points(self, number: str) -> Iterator[tuple[Point, str, str]]:
        """The same with the point in memory, and the condition for it to exist."""
        block, out, exchange = self.block, self.block.out, self.exchange
        first = self.pass_numbers(number)
        with self.far_slots() as (place, present):
            at: dict[str, str] = {}
            for i in self.indices:
                parts = [block.index("warp", i)]
                if first[i] != "0":
                    parts.append(block.register_offset(block.distribution, i, f"({first[i]})"))
                parts += ["far_column"] if i == exchange.along else []
                for span in exchange.rows:
                    if span.index == i:
                        text = f"far_row / {span.stride}" if span.stride > 1 else "far_row"
                        if span.stride * span.count < exchange.count:
                            text += f" % {span.count}"
                        parts.append(_scaled(text, span.weight))
                at[i] = block.index("far", i)
                out.line(f"const int {at[i]} = {' + '.join(parts)};")
            point = Point(at, {}, block.frame.origin)
            whole = [i for i in self.indices if i != exchange.along or not exchange.anywhere]
            conditions = [present] if present else []
            conditions += [*block.valid(whole, point), *block.exists(self.access, point)]
            yield point, place, " && ".join(conditions)


def _digit(number: str, digit: Digit) -> str:
    text = number if digit.place == 1 else f"{number} / {digit.place}"
    return f"{text} % {digit.count}"


def _scaled(text: str, weight: int) -> str:
    return text if weight == 1 else f"{text} * {weight}"
