"""Reductions and scans over the threads of a tile: shuffles within warps, then shared memory; in
the end blocks of a cluster write to the shared memory of each other.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import DType
from eqsat.kernel.ir import Scan

from ..copy.tiles import owners
from ..place.block import Block
from ..place.distribution import WARP, Factor
from ..place.tile import Point
from ..prelude.math import FUNCTORS, combine, identity, register_type

FEW_WARPS = 4  # whose values each thread reads by itself
BATCH = 8  # values that go through shared memory between two barriers


def reduce_threads(
    block: Block, name: str, indices: Iterable[str], over: Iterable[str], monoid: str, dtype: DType
) -> None:
    """Combine the registers of a value over the threads of the indices `over`; every thread gets
    the result.
    """
    array, count = block.value(name), block.register_count(indices)
    factors = block.distribution.spread(over)
    kind, functor = register_type(dtype), FUNCTORS[monoid]
    alike = all(f.stride >= WARP for f in block.distribution.spread(indices))
    for f in factors:
        if f.stride >= block.kernel.threads:
            _reduce_blocks(block, array, count, indices, f, (kind, functor, dtype))
            continue
        if f.stride < WARP:
            block.out.line(f"reduce_lanes<{f.count}, {f.stride}, {functor}>({array});")
            continue
        batch = min(count, BATCH)
        size = batch * block.kernel.threads * (1 if kind == "bool" else dtype.compute.itemsize)
        sizes = f"{f.count}, {f.stride}, {block.kernel.threads}, {batch}"
        by_lanes = alike and FEW_WARPS < f.count <= WARP and f.count & (f.count - 1) == 0
        function = "reduce_alike" if by_lanes else "reduce_warps"
        block.out.line(f"{function}<{sizes}, {functor}>({array}, {block.scratch(size)});")


def _reduce_blocks(
    block: Block,
    array: str,
    count: int,
    indices: Iterable[str],
    blocks: Factor,
    how: tuple[str, str, DType],
) -> None:
    """Combine over blocks of a cluster: one of the threads that hold a value in each block writes
    it to all of them, where it is read after a barrier.
    """
    kind, functor, dtype = how
    threads = block.kernel.threads
    own = [f for f in block.distribution.spread(indices) if f.stride < threads]
    place, places = [], 1
    for f in own:
        digit = f"threadIdx.x / {f.stride} % {f.count}"
        place.append(digit if places == 1 else f"{digit} * {places}")
        places *= f.count
    unused = [f for f in block.distribution.unused(indices) if f.stride < threads]
    lanes = [f.count for f in unused if f.stride == 1 and f.count % blocks.count == 0]
    step = blocks.count if lanes else 1  # a lane for each block that is written to
    owner = owners(block, [f for f in unused if f.stride > 1 or not lanes]) if unused else ""
    if lanes and lanes[0] > step:
        owner = " && ".join(filter(None, [owner, f"threadIdx.x % {lanes[0]} < {step}"]))
    batch = min(count, BATCH)
    size = places * batch * blocks.count * (1 if kind == "bool" else dtype.compute.itemsize)
    block.exchange_bytes = max(block.exchange_bytes, -(-size // 16) * 16)
    sizes = f"{blocks.count}, {blocks.stride // threads}, {places}, {batch}, {step}"
    block.out.line(
        f"reduce_blocks<{sizes}, {functor}>({array}, shared + exchange, shared + exchange_again, "
        f"{' + '.join(place) or '0'}, {owner or 'true'}, turn);"
    )


def scan(block: Block, s: Scan) -> None:
    """An inclusive scan: along vectors, then threads, then the outer registers in order."""
    factors = block.distribution.factors[s.over]
    if not re.fullmatch("r?t*r?", "".join(f.kind[0] for f in factors if f.count > 1)):
        raise UnsupportedError(
            f"scan {s.name} of kernel {block.kernel.name} runs along {s.over}, which a matrix "
            f"operation spreads over registers and threads in turns. Scan in a kernel of its own."
        )
    (_Recurrence if s.factor else _Prefix)(block, s).run()


class _Prefix:
    """A scan of values: `total` is the sum of a vector, `before` of what lies before it."""

    def __init__(self, block: Block, s: Scan) -> None:
        self.block, self.s = block, s
        self.kind = register_type(s.dtype)
        self.itemsize = s.dtype.compute.itemsize
        self.functor, self.neutral = FUNCTORS[s.monoid], identity(s.monoid, s.dtype)

    def run(self) -> None:
        out, s, d = self.block.out, self.s, self.block.distribution
        vector = d.vector(s.over) if len(d.factors[s.over]) > 1 else d.registers(s.over)
        vectors = d.registers(s.over) // vector
        warps = self.warps_of_rows()
        with out.block(), self.block.points([i for i in s.indices if i != s.over]) as point:
            if vectors > 1 and warps:
                self.scan_at_once(point, vector, vectors, warps)
                return
            out.line(f"{self.kind} carried = {self.neutral};")
            out.line("#pragma unroll")
            with out.block(f"for (int start = 0; start < {vectors * vector}; start += {vector})"):
                out.line(f"{self.kind} total = {self.neutral}, before = {self.neutral};")
                self.add_up(point, vector, "total")
                self.scan_threads()
                out.line(f"before = {self.combine('carried', 'before')};")
                self.add_before(point, vector, "before")
                out.line(f"carried = {self.combine('carried', 'total')};")

    def warps_of_rows(self) -> Factor | None:
        """The warps along the scan whose warps hold one row each; None where lanes hold several."""
        spread = self.block.distribution.spread([self.s.over])
        lanes = [f.count for f in spread if f.stride < WARP]
        warps = [f for f in spread if f.stride >= WARP]
        return warps[0] if lanes == [WARP] and len(warps) == 1 else None

    def scan_at_once(self, point: Point, vector: int, vectors: int, warps: Factor) -> None:
        """The totals of all vectors are scanned together."""
        out, kind = self.block.out, self.kind
        totals = vectors * warps.count * self.block.kernel.threads // WARP
        scratch = self.block.scratch(totals * self.itemsize)
        each = f"for (int n = 0; n < {vectors}; ++n)"
        out.line(f"{kind} total[{vectors}], before[{vectors}];")
        out.line("#pragma unroll")
        with out.block(each):
            out.line(f"const int start = n * {vector};")
            out.line(f"total[n] = before[n] = {self.neutral};")
            self.add_up(point, vector, "total[n]")
            sizes = f"{WARP}, 1, {self.functor}"
            out.line(f"scan_lanes<{sizes}>(total[n], before[n], ({kind})({self.neutral}));")
        sizes = f"{warps.count}, {warps.stride}, {self.functor}"
        out.line(f"scan_totals<{sizes}>(total, before, ({kind})({self.neutral}), {scratch});")
        out.line("#pragma unroll")
        with out.block(each):
            out.line(f"const int start = n * {vector};")
            self.add_before(point, vector, "before[n]")

    def scan_threads(self) -> None:
        """Scan the totals of one vector of each thread."""
        for f in self.block.distribution.spread([self.s.over]):
            sizes = f"{f.count}, {f.stride}, {self.functor}"
            arguments = f"total, before, ({self.kind})({self.neutral})"
            if f.stride < WARP:
                self.block.out.line(f"scan_lanes<{sizes}>({arguments});")
            else:
                scratch = self.block.scratch(self.block.kernel.threads * self.itemsize)
                self.block.out.line(f"scan_warps<{sizes}>({arguments}, {scratch});")

    @contextmanager
    def each(self, point: Point, vector: int) -> Iterator[Point]:
        """A loop over the points of one vector."""
        block, over = self.block, self.s.over
        number = block.index("r", over)
        loop = f"for (int {number} = start; {number} < start + {vector}; ++{number})"
        block.out.line("#pragma unroll")
        with block.out.block(loop):
            offset = block.register_offset(block.distribution, over, number)
            at = {**point.at, over: f"({block.index('base', over)} + {offset})"}
            yield Point(at, {**point.register, over: number}, point.origin)

    def value(self, name: str, own: Point, neutral: str | int | float) -> str:
        """An operand at a point, neutral outside the extents."""
        text = self.block.converted(name, self.s.dtype, own)
        valid = " && ".join(self.block.valid([self.s.over], own))
        return f"({valid} ? {text} : {neutral})" if valid else text

    def combine(self, earlier: str, later: str) -> str:
        return combine(self.s.monoid, earlier, later)

    def add_up(self, point: Point, vector: int, total: str) -> None:
        """The total of one vector; its registers of the result hold the scan of the vector."""
        with self.each(point, vector) as own:
            value = self.value(self.s.argument, own, self.neutral)
            self.block.out.line(f"{total} = {self.combine(total, value)};")
            self.block.out.line(f"{self.block.element(self.s.name, own)} = {total};")

    def add_before(self, point: Point, vector: int, before: str) -> None:
        """Combine what lies before a vector with each of its points."""
        with self.each(point, vector) as own:
            element = self.block.element(self.s.name, own)
            self.block.out.line(f"{element} = {self.combine(before, element)};")


class _Recurrence(_Prefix):
    """A scan of maps from one state to another: `total` is that of a vector's steps one after the
    other, `before` that of the steps before it, which its own then follow.
    """

    def __init__(self, block: Block, s: Scan) -> None:
        super().__init__(block, s)
        self.kind = f"Steps<{self.kind}>"
        self.itemsize *= 2
        self.functor, self.neutral = "Composed", f"{self.kind}{{1, 0}}"

    def combine(self, earlier: str, later: str) -> str:
        return f"Composed()({earlier}, {later})"

    def step(self, own: Point) -> str:
        factor, offset = self.value(self.s.factor, own, 1), self.value(self.s.argument, own, 0)
        return f"step({factor}, {offset})"

    def add_up(self, point: Point, vector: int, total: str) -> None:
        """The steps of one vector, composed."""
        with self.each(point, vector) as own:
            self.block.out.line(f"{total}.{self.step(own)};")

    def add_before(self, point: Point, vector: int, before: str) -> None:
        """The states of one vector, from the state before it."""
        with self.each(point, vector) as own:
            element = self.block.element(self.s.name, own)
            self.block.out.line(f"{before}.{self.step(own)};")
            self.block.out.line(f"{element} = {before}.offset;")
