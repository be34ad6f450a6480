"""What the converting threads of a kernel run: right factors made of copied tiles, chunk by chunk.

They go through tiles, phases and chunks in the order of the producer, who copies what each factor
is made of into a ring of its own; what they make lies in a slot of the ring that its readers wait
for, as if it had been copied there.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import TypeGuard

from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import float32
from eqsat.kernel.ir import Load, Map, Phase, Statement, operands
from eqsat.layout.needs import SIXTEEN
from eqsat.price.conversion import CONVERTING, GROUPS

from ..place.block import Block, Frame, Writer
from ..place.box import UNIT, TensorBox
from ..place.conversions import sources
from ..place.distribution import WARP, cover
from ..place.tile import Point, constant
from ..prelude import vectors
from ..prelude.math import WORD, register_type
from .copies import find_box
from .ring import Ring
from .tiles import fetch, if_inside

THREAD = "converter"  # the number of a converting thread in its group
TOGETHER = 16  # vectors of 8 elements that a thread reads before it converts the first


@dataclass
class Conversion:
    """A factor in the making: its last operation, the load of which a tile is copied, and boxes of
    both; the copied one has a ring of its own.
    """

    result: Map
    source: Load
    copied: TensorBox
    made: TensorBox
    ring: Ring = field(init=False)


class Converter:
    """The conversions of a kernel, and the program of the threads that do them."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.program = Writer(depth=4)
        self.found: dict[Phase, dict[str, Conversion]] = {}

    def find(self, phase: Phase) -> Mapping[str, Conversion]:
        """The conversions of a phase, by the factors that they make."""
        found: dict[str, Conversion] = {}
        converted = self.block.placement.converted
        for s in phase.body:
            if s.name in converted:
                assert isinstance(s, Map)
                (source,) = sources(self.block.placement.chains[s.name])
                copied = find_box(self.block, source)
                made = find_box(self.block, source, s.dtype)
                if copied is None or made is None or not self._is_widened(s, source, copied):
                    raise UnsupportedError(
                        f"factor {s.name} of kernel {self.block.kernel.name} is computed of "
                        f"{source.access.buffer}, of which threads make no such tile: it must be "
                        f"a box that the tensor memory accelerator copies, of floats of 16 bits or "
                        f"elements of 8 that are cast to such. Choose another operation."
                    )
                found[s.name] = Conversion(s, source, copied, made)
        if found and self.block.kernel.multicast > 1:
            raise UnsupportedError(
                f"kernel {self.block.kernel.name} has factors that are computed for products of a "
                f"warpgroup ({', '.join(found)}), and clusters of {self.block.kernel.multicast} "
                f"blocks that copy for each other. Give each tile a block by itself."
            )
        if found:
            self.found[phase] = found
        return found

    def _is_widened(self, result: Map, source: Load, copied: TensorBox) -> bool:
        """Whether what is copied may be float32 from the start, and results are packed in pairs."""
        chain = self.block.placement.chains[result.name]
        users = [s for s in chain if source.name in operands(s)]
        casts = all(s.op == "cast" and s.dtype.kind == "float" for s in users if isinstance(s, Map))
        widened = _unpack(copied) in vectors.FUNCTIONS
        short = result.dtype.name in SIXTEEN and widened
        return short and (casts or copied.dtype.kind == "float")

    @property
    def rings(self) -> list[Ring]:
        """Those of what is copied to be converted."""
        return [one.ring for found in self.found.values() for one in found.values()]

    def copied(self, phase: Phase) -> list[Ring]:
        """Those of one phase."""
        return [one.ring for one in self.found.get(phase, {}).values()]

    @contextmanager
    def converting(self) -> Iterator[None]:
        """Lines go to the converting threads' program."""
        block = self.block
        out, thread = block.out, block.thread
        block.out, block.thread = self.program, THREAD
        yield
        block.out, block.thread = out, thread

    def begin(self, first: int) -> list[str]:
        """What a converting thread knows of itself, where they begin with this one."""
        group = f"int(threadIdx.x - {first}) / {CONVERTING}"
        return [
            f"const int {THREAD} = threadIdx.x % {CONVERTING};",
            f"const int group = __shfl_sync(0xffffffffu, {group}, 0);",
        ]

    def hold(self, phase: Phase, rings: tuple[Ring, ...]) -> None:
        """Ask for what is read where it lies and is the same for all chunks."""
        for ring in rings:
            for name in ring.made:
                making = _Making(self.block, phase, self.found[phase][name], ring)
                making.hold(making.same)

    def convert(self, phase: Phase, rings: tuple[Ring, ...]) -> None:
        """Make the factors of the chunk at hand, which lie in these rings, each by one group."""
        out, conversions = self.block.out, self.found.get(phase, {})
        for ring in rings:
            for name in ring.made:
                with out.block(f"if ({self._group(conversions, name, ring)} == group)"):
                    _Making(self.block, phase, conversions[name], ring).emit()
                conversions[name].ring.advance(out)
            if ring.made:
                ring.advance(out)

    def _group(self, conversions: Mapping[str, Conversion], name: str, ring: Ring) -> str:
        """The group that makes a tile. A slot is always the same one's: a parity tells of its use
        only whether it is the one before or this, of which another group would know neither.
        """
        if len(conversions) % GROUPS == 0:
            return str([*conversions].index(name) % GROUPS)
        even = all(one.stages % GROUPS == 0 for one in (ring, conversions[name].ring))
        return f"slot_{ring.number} % {GROUPS}" if even else "0"


class _Making:
    """One factor of a chunk. A thread has vectors of `width` elements along the innermost index, in
    as many rows as it has points `along` another one; it reads some of them together.
    """

    def __init__(self, block: Block, phase: Phase, one: Conversion, ring: Ring) -> None:
        self.block, self.out, self.one, self.ring = block, block.out, one, ring
        self.tile = block.tiles[one.result.name]
        self.inner, self.width = self.tile.order[-1], UNIT // self.tile.dtype.itemsize
        self.order = [i for i in one.result.indices if i not in self.tile.order]
        self.order += self.tile.order
        points = [(i, self.tile.extents.get(i, 1)) for i in self.order]
        distribution = cover(points, self.width, CONVERTING)
        self.frame = Frame(distribution, block.frame.origin, "convert_")
        rows = {i: distribution.registers(i) for i in self.order[:-1]}
        self.along = max(rows, key=rows.__getitem__)
        self.rows = rows.pop(self.along)
        self.together = max(n for n in range(1, TOGETHER + 1) if self.rows % n == 0)
        self.row = block.index("convert_r", self.along) if self.rows > 1 else "0"
        self.words = f"Pack<unsigned, {self.width * one.copied.dtype.itemsize // WORD}>"
        alone = distribution.registers(self.inner) == self.width and prod(rows.values()) == 1
        self.held = [s for s in block.placement.chains[one.result.name] if alone and self.holds(s)]
        chunks = {axis.name for axis in phase.stream}
        self.same = [s for s in self.held if chunks and not chunks & {*s.indices}]

    def holds(self, s: Statement) -> TypeGuard[Load]:
        """Whether a thread has few elements of a load: one for each row, or for each column."""
        read = isinstance(s, Load) and s is not self.one.source
        return read and not {self.along, self.inner} <= {*s.indices}

    def emit(self) -> None:
        block, out, raw, ring = self.block, self.out, self.one.ring, self.ring
        block.define_bases(self.frame, self.order)
        self.hold([s for s in self.held if s not in self.same])
        out.line(f"barrier_wait({ring.empty(f'slot_{ring.number}')}, parity_{ring.number} ^ 1);")
        out.line(f"barrier_wait({raw.full(f'slot_{raw.number}')}, parity_{raw.number});")
        raw.point_at(out, self.one.source.name, block.tiles)
        ring.point_at(out, self.one.result.name, block.tiles, "")
        others = [i for i in self.order if i != self.along]
        with block.points(others, self.frame, {self.inner: self.width}) as point:
            out.line("#pragma unroll")
            with out.block(f"for (int first = 0; first < {self.rows}; first += {self.together})"):
                out.line(f"{self.words} copied[{self.together}];")
                for use in (self.read, self.convert):
                    with self.some_rows(point) as own:
                        use(own)
        out.line("shared_written();")
        out.line("__syncwarp();")
        for barrier in (raw.empty(f"slot_{raw.number}"), ring.full(f"slot_{ring.number}")):
            out.line(f"barrier_arrive({barrier}, {THREAD} % {WARP} == 0);")

    def hold(self, some: Sequence[Load]) -> None:
        """Ask for what is read where it lies before the copies are waited for."""
        block = self.block
        for s in some:
            rows = self.rows if self.along in s.indices else 1
            columns = self.width if self.inner in s.indices else 1
            kind, count = register_type(s.dtype), rows * columns
            self.out.line(f"{kind} {block.value(s.name)}_held[{count}];")
            with self.out.block():
                block.define_bases(self.frame, s.indices)
                with block.points(s.indices, self.frame) as point:
                    held = self.held_at(s, point.register.get(self.inner, ""))
                    self.out.line(f"{held} = {fetch(block, s, point, self.frame)};")

    def held_at(self, s: Statement, column: str) -> str:
        """What is held of a load in the row at hand, or in a column."""
        number = self.row if self.along in s.indices else "0"
        number = column if self.inner in s.indices else number
        return f"{self.block.value(s.name)}_held[{number}]"

    @contextmanager
    def some_rows(self, point: Point) -> Iterator[Point]:
        """The rows that are read together."""
        some = {self.along: ("first", self.together)}
        with self.block.points([self.along], self.frame, some=some) as row:
            own = Point(point.at | row.at, point.register | row.register, point.origin)
            if_inside(self.block, self.tile, self.frame, own)
            with self.out.block():
                yield own

    @property
    def copied(self) -> str:
        """A vector that has been read."""
        return f"copied[{self.row} - first]" if self.rows > 1 else "copied[0]"

    def read(self, point: Point) -> None:
        """Read the vector at a point."""
        tile = self.block.tiles[self.one.source.name]
        text = f"*reinterpret_cast<const {self.words}*>({tile.pointer} + {tile.offset(point)})"
        self.out.line(f"{self.copied} = {text};")

    def convert(self, point: Point) -> None:
        """Compute the elements of the factor at a point, and write them together."""
        block, out, one, width = self.block, self.out, self.one, self.width
        readers = dict(block.readers)
        out.line(f"float elements[{width}];")
        out.line(f"{_unpack(one.copied)}({self.copied}, elements);")
        out.line("#pragma unroll")
        with out.block(f"for (int e = 0; e < {width}; ++e)"):
            at = Point({**point.at, self.inner: f"({point.at[self.inner]} + e)"}, {}, point.origin)
            for s in block.placement.chains[one.result.name]:
                kind, text = self.element(s, at)
                out.line(f"const {kind} {block.value(s.name)} = {text};")
                block.readers[s.name] = constant(block.value(s.name))
            value = block.value(one.result.name)
            if valid := " && ".join(block.valid(self.summed, at, self.frame)):
                value = f"({valid} ? {value} : 0.0f)"
            out.line(f"elements[e] = {value};")
        packed = f"Pack<unsigned, {width // 2}>"
        pair = f"pack_{one.result.dtype.name}(elements[2 * n], elements[2 * n + 1])"
        out.line(f"{packed} made;")
        out.line("#pragma unroll")
        out.line(f"for (int n = 0; n < {width // 2}; ++n) made.item[n] = {pair};")
        place = f"{self.tile.pointer} + {self.tile.offset(point)}"
        out.line(f"*reinterpret_cast<{packed}*>({place}) = made;")
        block.readers = readers

    @property
    def summed(self) -> list[str]:
        """The indices beyond whose extents elements must be zeros."""
        matrices = self.block.placement.matrices.values()
        over = {i for m in matrices if m.right == self.one.result.name for i in m.contract.over}
        return [i for i in self.one.result.indices if i in over]

    def element(self, s: Statement, at: Point) -> tuple[str, str]:
        """The type and text of a value on the way; what is copied is float32 from the start."""
        block = self.block
        if s is self.one.source:
            return "float", "elements[e]"
        if s in self.held:
            return register_type(s.dtype), self.held_at(s, "e")
        if isinstance(s, Load):
            return register_type(s.dtype), fetch(block, s, at, self.frame)
        assert isinstance(s, Map)
        if s is self.one.result and s.op == "cast":  # rounded as it is stored
            return "float", block.converted(s.arguments[0], float32, at)
        return register_type(s.dtype), block.mapped(s, at)


def _unpack(box: TensorBox) -> str:
    """The device function that widens vectors of what is copied."""
    return f"unpack_{box.dtype.name}"
