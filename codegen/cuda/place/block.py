"""The text of one kernel under construction: names, points, loops, and values that can be read.

C++ names: `p_x` a buffer, `v_a` a value in registers, `s_a` a tile in shared memory; for an index
j, `tile_j` is the first point of the tile, `base_j` the first point of this thread, `r_j` the
number of a point among the thread's registers and `at_j` the point itself.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from eqsat.graph.dtypes import DType, int64
from eqsat.graph.index import Affine, Atom, FloorDiv, bounds, free_names
from eqsat.kernel.ir import Access, Axis, Kernel, Load, Map, Phase, Position

from ..prelude.math import apply, cast, literal, operand_dtypes, widen
from .access import guarded_read
from .box import TensorBox
from .distribution import Distribution, Factor
from .placement import Placement, reads_again
from .tile import Point, Reader, Tile

INT_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class Frame:
    """A distribution in use: what its variables are called, and where its tiles begin."""

    distribution: Distribution
    origin: Mapping[str, str]
    prefix: str = ""


@dataclass
class Writer:
    """Lines of C++ at a depth of indentation."""

    lines: list[str] = field(default_factory=list)
    depth: int = 0

    def line(self, text: str = "") -> None:
        self.lines.append("    " * self.depth + text if text else "")

    @contextmanager
    def block(self, head: str = "", tail: str = "") -> Iterator[None]:
        self.line(f"{head} {{" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}" + tail)


class Names:
    """C++ identifiers for the names of a kernel; a name that is none gets a number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def of(self, name: str) -> str:
        if re.fullmatch(r"[A-Za-z0-9_]{1,48}", name):
            return name
        return f"{self.numbers.setdefault(name, len(self.numbers))}_"


class Block:
    """What every part of the emitter shares while one kernel is written."""

    def __init__(self, kernel: Kernel, placement: Placement, distribution: Distribution) -> None:
        self.kernel = kernel
        self.placement = placement
        self.distribution = distribution
        self.axes: dict[str, Axis] = kernel.axes()
        self.extents = {name: axis.extent for name, axis in self.axes.items()}
        self.out = Writer()
        self.names = Names()
        self.readers: dict[str, Reader] = {}
        self.chosen: dict[tuple[Access, ...], tuple[str, str]] = {}  # among places, see `place`
        self.aliases: dict[str, str] = {}  # an update that overwrites its carry's registers
        origin = {i: f"tile_{self.names.of(i)}" for i in self.axes}
        origin.update({i: "0" for i, axis in self.axes.items() if axis.count <= 1})
        self.frame = Frame(distribution, origin)
        self.matrix_steps = placement.matrix_steps
        self.tiles: dict[str, Tile] = {}  # values that are read from shared memory
        self.shared_bytes = 0
        self.shared_peak = 0
        self.scratch_bytes = 0
        self.tiles_written = False  # shared tiles written since the last barrier
        self.tiles_read = False
        self.copies_started = False  # that a barrier must wait for
        self.whole: frozenset[str] = frozenset()  # names of which the chunk at hand has all points
        self.has_producer = False  # then no other warp ever uses the memory of a warp's patch
        # The number of a thread among those that compute a tile.
        self.thread = "thread" if kernel.cluster > 1 else "threadIdx.x"
        self.exchange_bytes = 0  # of what the blocks of a cluster hand each other at once
        self.areas: Callable[[int, int], int] | None = None  # see `Pipeline.areas`
        self.ahead: dict[str, Any] = {}  # tiles of which a thread loads what the next chunk needs
        self.held_ahead = 0  # registers that it takes
        self.stored: dict[str, TensorBox] = {}  # what the tensor memory accelerator stores
        self.turns = 1  # tiles of a block under way, each with threads of its own
        self.copies: dict[str, int] = {}  # of each value in shared memory

    # names

    def index(self, prefix: str, index: str) -> str:
        return f"{prefix}_{self.names.of(index)}"

    def value(self, name: str) -> str:
        return f"v_{self.names.of(name)}"

    def buffer(self, name: str) -> str:
        return f"p_{self.names.of(name)}"

    def map_name(self, name: str) -> str:
        """The tensor map of a box."""
        return f"map_{self.names.of(name)}"

    def ordered(self, indices: Iterable[str]) -> list[str]:
        """In the kernel's order, which is that of registers and loops."""
        return sorted(indices, key=list(self.axes).index)

    def sorted_names(self, names: Iterable[str]) -> list[str]:
        """Values in the order of their definition."""
        return sorted(names, key=list(self.placement.where).index)

    # points

    def thread_offset(self, factors: Sequence[tuple[Factor, int]]) -> str:
        """The points by which this thread's coordinates move an index."""
        parts = []
        for factor, weight in factors:
            text = (
                f"int({self.thread})"
                if factor.stride == 1
                else f"int({self.thread}) / {factor.stride}"
            )
            if factor.stride * factor.count < self.kernel.tile_threads:
                text += f" % {factor.count}"
            parts.append(text if weight == 1 else f"{text} * {weight}")
        return " + ".join(parts) or "0"

    def define_bases(self, frame: Frame, indices: Iterable[str]) -> None:
        """`base_j` of each index: the first point of this thread."""
        for i in self.ordered(indices):
            offset = self.thread_offset(frame.distribution.weighted(i, "thread"))
            origin = frame.origin[i]
            text = " + ".join(part for part in (origin, offset) if part != "0") or "0"
            self.out.line(f"const int {self.index(frame.prefix + 'base', i)} = {text};")

    @contextmanager
    def points(
        self,
        indices: Iterable[str],
        frame: Frame | None = None,
        steps: Mapping[str, int] | None = None,
        unroll: bool = True,
        outer: Collection[str] = (),
        some: Mapping[str, tuple[str, int]] | None = None,
    ) -> Iterator[Point]:
        """Loops over this thread's points of some indices, those of `outer` around the others;
        `steps` registers at a time, or `some`: from a first one on, so many.
        """
        frame = frame or self.frame
        at, register, depth = {}, {}, 0
        for i in sorted(self.ordered(indices), key=lambda i: i not in outer):
            count = frame.distribution.registers(i)
            base, number = (self.index(frame.prefix + word, i) for word in ("base", "r"))
            step = (steps or {}).get(i, 1)
            if count == step:
                at[i], register[i] = base, "0"
                continue
            if unroll:
                self.out.line("#pragma unroll")
            advance = f"++{number}" if step == 1 else f"{number} += {step}"
            begin, end = "0", str(count)
            if some and i in some:
                begin, end = some[i][0], f"{some[i][0]} + {some[i][1]}"
            self.out.line(f"for (int {number} = {begin}; {number} < {end}; {advance}) {{")
            self.out.depth += 1
            depth += 1
            name = self.index(frame.prefix + "at", i)
            offset = self.register_offset(frame.distribution, i, number)
            self.out.line(f"const int {name} = {base} + {offset};")
            at[i], register[i] = name, number
        yield Point(at, register, frame.origin)
        for _ in range(depth):
            self.out.depth -= 1
            self.out.line("}")

    def register_offset(self, distribution: Distribution, index: str, number: str) -> str:
        """The points by which a register number moves an index."""
        parts, inner = [], 1
        factors = distribution.weighted(index, "register")
        for factor, weight in reversed(factors):
            text = number if inner == 1 else f"{number} / {inner}"
            if inner * factor.count < distribution.registers(index):
                text += f" % {factor.count}"
            parts.append(text if weight == 1 else f"{text} * {weight}")
            inner *= factor.count
        return " + ".join(reversed(parts)) or "0"

    def shifted(self, point: Point, index: str, number: str) -> Point:
        """The point `number` registers and coordinates further along a vector."""
        at = {**point.at, index: f"({point.at[index]} + {number})"}
        own = point.register.get(index)
        register = dict(point.register)
        if own is not None:
            register[index] = number if own == "0" else f"{own} + {number}"
        return Point(at, register, point.origin)

    def valid(
        self,
        indices: Iterable[str],
        point: Point,
        frame: Frame | None = None,
        by_vector: bool = False,
    ) -> list[str]:
        """Conditions for a point to lie in the tile and the extents; empty where always so, as
        along the names of which the chunk at hand is `whole`. `by_vector`: the same for all points
        of a vector that lies across no end, so that few are kept.
        """
        conditions = []
        for i in self.ordered(indices):
            axis = self.axes[i]
            covered = (frame or self.frame).distribution.padded(i)
            if covered > axis.tile and axis.count > 1:
                conditions.append(f"{point.local(i)} < {axis.tile}")
            last_is_smaller = axis.extent % axis.tile if axis.count > 1 else covered > axis.extent
            if last_is_smaller and i not in self.whole:
                at, vector = point.at[i], (frame or self.frame).distribution.vector(i)
                whole = axis.extent % vector == 0 and (axis.count == 1 or axis.tile % vector == 0)
                if by_vector and vector > 1 and whole:
                    at = f"{at} - {point.register[i]} % {vector}"
                conditions.append(f"{at} < {axis.extent}")
        return conditions

    # index expressions

    def affine(self, expression: Affine, point: Point, wide: bool = False) -> str:
        """An index expression at a point, as int or long long."""
        parts = []
        for atom, coefficient in expression.terms:
            if isinstance(atom, str):
                text = f"(long long)({point.at[atom]})" if wide else point.at[atom]
            else:
                text = self._division(atom, point, wide)
            suffix = "LL" if wide else ""
            parts.append(text if coefficient == 1 else f"{text} * {coefficient}{suffix}")
        if expression.constant or not parts:
            parts.append(f"{expression.constant}{'LL' if wide else ''}")
        return " + ".join(parts)

    def _division(self, atom: object, point: Point, wide: bool) -> str:
        text = self.affine(atom.numerator, point, wide)
        low, _ = bounds(atom.numerator, self.extents)
        quotient = isinstance(atom, FloorDiv)
        if low >= 0:
            return f"(({text}) {'/' if quotient else '%'} {atom.divisor})"
        function = "floor_divide" if quotient else "floor_remainder"
        kind = "long long" if wide else "int"
        return f"{function}<{kind}>({text}, {atom.divisor})"

    def is_wide(self, expression: Affine) -> bool:
        """Whether some partial sum of the expression may leave int."""
        reach = abs(expression.constant)
        for atom, coefficient in expression.terms:
            low, high = bounds(Affine(((atom, 1),), 0), self.extents)
            beyond = 2 * self.axes[atom].tile + 64 if atom in self.axes else 1024
            reach += abs(coefficient) * (max(abs(low), abs(high)) + beyond)
            if not isinstance(atom, str) and self.is_wide(atom.numerator):
                return True
        return reach > INT_LIMIT

    def address(self, access: Access, point: Point) -> str:
        """The element's flat address; coordinates must have been checked to be in range."""
        reach = self.kernel.buffer(access.buffer).size
        wide = reach > INT_LIMIT or self.is_wide(access.address)
        text = self.affine(access.address, point, wide)
        kind = "long long" if wide else "int"
        for c in access.coordinates:
            text += f" + ({kind})({self.readers[c.value](point)}) * {c.stride}"
        return text

    def exists(self, access: Access, point: Point) -> list[str]:
        """Conditions for the element of an access to exist."""
        conditions = []
        for guard in access.guards:
            low, high = bounds(guard.expression, self.extents)
            text = self.affine(guard.expression, point, self.is_wide(guard.expression))
            if low < guard.lower:
                conditions.append(f"{text} >= {guard.lower}")
            if high >= guard.upper:
                conditions.append(f"{text} < {guard.upper}")
        for c in access.coordinates:
            value = cast(self.placement.dtypes[c.value], int64, self.readers[c.value](point))
            conditions += [f"{value} >= 0", f"{value} < {c.extent}"]
        return conditions

    # values

    def register_count(self, indices: Iterable[str]) -> int:
        count = 1
        for i in indices:
            count *= self.distribution.registers(i)
        return count

    def register_number(
        self, indices: Iterable[str], point: Point, frame: Frame | None = None
    ) -> str:
        """The flat number of a value's element among this thread's registers."""
        distribution = (frame or self.frame).distribution
        parts, stride = [], 1
        for i in reversed(self.ordered(indices)):
            number = point.register[i]
            if number != "0":
                inner = f"({number})" if "+" in number and stride > 1 else number
                parts.append(inner if stride == 1 else f"{inner} * {stride}")
            stride *= distribution.registers(i)
        return " + ".join(reversed(parts)) or "0"

    def element(self, name: str, point: Point) -> str:
        """A register value at one of this thread's points, to read or write."""
        number = self.register_number(self.placement.indices[name], point)
        return f"{self.value(self.aliases.get(name, name))}[{number}]"

    def read(self, name: str, point: Point) -> str:
        return self.readers[name](point)

    def element_reader(self, name: str) -> Reader:
        """How to read the registers of a value."""
        return lambda point: self.element(name, point)

    def converted(self, name: str, dtype: DType, point: Point) -> str:
        """A value at a point, in the dtype in which `dtype` is computed."""
        return cast(self.placement.dtypes[name], dtype.compute, self.read(name, point))

    def is_read_late(self, phase: Phase, s: Load) -> bool:
        """Whether a load is read at each use: beside the results of products there are no registers
        to hold it.
        """
        return self.has_producer and not phase.stream and reads_again(self.placement, s)

    def present(self, s: Load, point: Point) -> str:
        """The condition under which a load reads memory; empty where it always does."""
        places = [self.exists(access, point) for access in s.accesses]
        if len(places) > 1:
            some = " || ".join(f"({' && '.join(place)})" for place in places)
            places = [[f"({some})"] if all(places) else []]
        return " && ".join([*self.valid(s.indices, point), *places[0]])

    def loaded(self, s: Load, point: Point, condition: str) -> str:
        """The value that a load gives at a point: its fill where the condition does not hold."""
        if not s.fill:
            return self.memory_element(s.accesses, point, s.dtype, condition)
        value = self.memory_element(s.accesses, point, s.dtype)
        return f"({condition} ? {value} : {literal(s.dtype, s.fill)})" if condition else value

    def place(self, accesses: Sequence[Access], point: Point) -> tuple[str, str]:
        """The pointer to a buffer, and the address in it, of the first of some accesses whose
        element exists: one does, if only that of the last.
        """
        if len(accesses) == 1:
            return self.buffer(accesses[0].buffer), self.address(accesses[0], point)
        alike = _shared_terms(accesses)
        own = self.chosen.get(tuple(accesses)) or self._choice(accesses, point, alike)
        whole = replace(accesses[-1], address=Affine(alike, 0))
        pointer, where = own
        return pointer, f"{self.address(whole, point)} + {where}" if alike else where

    @contextmanager
    def place_chosen(self, s: Load, steps: Mapping[str, int]) -> Iterator[None]:
        """Within it the accesses of a load are chosen among, before loops over a thread's points,
        so many registers of an index at a time, where all of these have the same.
        """
        alike = _shared_terms(s.accesses)
        names = {n for a in s.accesses for guard in a.guards for n in free_names(guard.expression)}
        names |= {n for a in s.accesses for n in free_names(_without(a, alike).address)}
        held = self.distribution.registers
        if len(s.accesses) == 1 or any(held(i) != steps.get(i, 1) for i in names):
            yield
            return
        at = {i: self.index("base", i) for i in names}
        point = Point(at, dict.fromkeys(names, "0"), self.frame.origin)
        pointer, where = self._choice(s.accesses, point, alike)
        wide = any(
            self.kernel.buffer(a.buffer).size > INT_LIMIT or self.is_wide(a.address)
            for a in s.accesses
        )
        place, source = self.index("place", s.name), self.index("from", s.name)
        self.out.line(f"const {'long long' if wide else 'int'} {place} = {where};")
        if pointer != self.buffer(s.access.buffer):
            self.out.line(f"const auto {source} = {pointer};")
            pointer = source
        self.chosen[s.accesses] = pointer, place
        yield
        del self.chosen[s.accesses]

    def _choice(
        self, accesses: Sequence[Access], point: Point, alike: tuple[tuple[Atom, int], ...]
    ) -> tuple[str, str]:
        """The pointer, and the address less what is alike; conditions are no branches."""
        *before, last = accesses
        pointer, where = self.buffer(last.buffer), self.address(_without(last, alike), point)
        for access in reversed(before):
            there = " & ".join(f"({one})" for one in self.exists(access, point))
            if (own := self.buffer(access.buffer)) != pointer:
                pointer = f"({there} ? {own} : {pointer})"
            where = f"({there} ? {self.address(_without(access, alike), point)} : {where})"
        return pointer, where

    def memory_element(
        self, accesses: Sequence[Access], point: Point, dtype: DType, condition: str = ""
    ) -> str:
        """The register value of a global element, of several accesses the first that exists; 0
        where a condition does not hold.
        """
        buffer = self.kernel.buffer(accesses[0].buffer)
        pointer, where = self.place(accesses, point)
        text = f"{pointer}[{where}]"
        if condition:
            text = f"{guarded_read(self.kernel, buffer.name)}({pointer}, {condition}, {where})"
        return cast(buffer.dtype, dtype, widen(buffer.dtype, text))

    def mapped(self, s: Map, point: Point, op: str = "") -> str:
        """A map's value at a point; by another operation `op` of the same operands."""
        dtypes = [self.placement.dtypes[name] for name in s.arguments]
        texts = [self.read(name, point) for name in s.arguments]
        if s.op != "cast":
            wanted = operand_dtypes(s.op, dtypes, s.dtype)
            pairs = zip(dtypes, wanted, texts, strict=True)
            texts = [cast(source, target.compute, text) for source, target, text in pairs]
            dtypes = wanted
        return apply(op or s.op, dtypes, texts, s.dtype)

    def position(self, s: Position, point: Point) -> str:
        """The value of an index expression at a point."""
        wide = s.dtype.itemsize == 8 or self.is_wide(s.expression)
        text = f"({self.affine(s.expression, point, wide)})"
        return cast(int64, s.dtype, text) if s.dtype != int64 else text

    # shared memory

    def allocate(self, size: int, alignment: int = 128) -> int:
        """Bytes of shared memory, aligned; returns their offset."""
        offset = -(-self.shared_bytes // alignment) * alignment
        self.shared_bytes = offset + -(-size // 128) * 128
        self.shared_peak = max(self.shared_peak, self.shared_bytes)
        return offset

    def scratch(self, size: int) -> str:
        """Memory for one collective of the whole block, which begins and ends with a barrier."""
        self._await_copies()
        self.scratch_bytes = max(self.scratch_bytes, size)
        self.tiles_written = self.tiles_read = False
        return "shared + scratch"

    def barrier(self) -> None:
        self._await_copies()
        self.out.line("block_barrier();")
        self.tiles_written = self.tiles_read = False

    def _await_copies(self) -> None:
        if self.copies_started:
            self.out.line("commit_copies();")
            self.out.line("wait_copies<0>();")
            self.copies_started = False

    def before_reading(self, names: Iterable[str]) -> None:
        """A barrier if one of the values is a tile that may not be complete yet."""
        if any(name in self.tiles and not self.tiles[name].guarded for name in names):
            if self.tiles_written:
                self.barrier()
            self.tiles_read = True


def _shared_terms(accesses: Sequence[Access]) -> tuple[tuple[Atom, int], ...]:
    """What the addresses of several accesses have in common."""
    first, *others = accesses
    return tuple(t for t in first.address.terms if all(t in one.address.terms for one in others))


def _without(access: Access, terms: tuple[tuple[Atom, int], ...]) -> Access:
    """The access at an address less some of its terms."""
    left = tuple(term for term in access.address.terms if term not in terms)
    return replace(access, address=Affine(left, access.address.constant))
