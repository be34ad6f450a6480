"""Reductions and scans over the threads of a tile: shuffles within warps, then shared memory; in
the end blocks of a cluster write to the shared memory of each other.
"""

import re
from collections.abc import Iterable

from eqsat.codegen.cuda_block import Block, Point
from eqsat.codegen.cuda_distribution import WARP, Factor
from eqsat.codegen.cuda_math import FUNCTORS, combine, identity, register_type
from eqsat.codegen.cuda_tiles import owners
from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import DType
from eqsat.kernel import Scan

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
        block.out.line(f"reduce_warps<{sizes}, {functor}>({array}, {block.scratch(size)});")


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
    out, d = block.out, block.distribution
    factors = d.factors[s.over]
    if not re.fullmatch("r?t*r?", "".join(f.kind[0] for f in factors if f.count > 1)):
        raise UnsupportedError(
            f"scan {s.name} of kernel {block.kernel.name} runs along {s.over}, which a matrix "
            f"operation spreads over registers and threads in turns. Scan in a kernel of its own."
        )
    kind = register_type(s.dtype)
    vector = d.vector(s.over) if len(factors) > 1 else d.registers(s.over)
    neutral = identity(s.monoid, s.dtype)
    vectors = d.registers(s.over) // vector
    with out.block(), block.points([i for i in s.indices if i != s.over]) as point:
        warps = _warps_of_rows(block, s)
        if vectors > 1 and warps:
            _scan_at_once(block, s, point, (vector, vectors), warps)
            return
        out.line(f"{kind} carried = {neutral};")
        out.line("#pragma unroll")
        with out.block(f"for (int start = 0; start < {vectors * vector}; start += {vector})"):
            out.line(f"{kind} total = {neutral}, before = {neutral};")
            _scan_vector(block, s, point, vector, "total")
            _scan_threads(block, s, kind, neutral)
            out.line(f"before = {combine(s.monoid, 'carried', 'before')};")
            _add_before(block, s, point, vector, "before")
            out.line(f"carried = {combine(s.monoid, 'carried', 'total')};")


def _warps_of_rows(block: Block, s: Scan) -> Factor | None:
    """The warps along a scan whose warps hold one row each; None where lanes hold several rows."""
    lanes = [f.count for f in block.distribution.spread([s.over]) if f.stride < WARP]
    warps = [f for f in block.distribution.spread([s.over]) if f.stride >= WARP]
    return warps[0] if lanes == [WARP] and len(warps) == 1 else None


def _scan_at_once(
    block: Block, s: Scan, point: Point, size: tuple[int, int], warps: Factor
) -> None:
    """The totals of all vectors (their width, their number) are scanned together."""
    out, functor, (vector, vectors) = block.out, FUNCTORS[s.monoid], size
    kind, neutral = register_type(s.dtype), identity(s.monoid, s.dtype)
    totals = vectors * warps.count * block.kernel.threads // WARP
    scratch = block.scratch(totals * s.dtype.compute.itemsize)
    each = f"for (int n = 0; n < {vectors}; ++n)"
    out.line(f"{kind} total[{vectors}], before[{vectors}];")
    out.line("#pragma unroll")
    with out.block(each):
        out.line(f"const int start = n * {vector};")
        out.line(f"total[n] = before[n] = {neutral};")
        _scan_vector(block, s, point, vector, "total[n]")
        out.line(f"scan_lanes<{WARP}, 1, {functor}>(total[n], before[n], ({kind})({neutral}));")
    sizes = f"{warps.count}, {warps.stride}, {functor}"
    out.line(f"scan_totals<{sizes}>(total, before, ({kind})({neutral}), {scratch});")
    out.line("#pragma unroll")
    with out.block(each):
        out.line(f"const int start = n * {vector};")
        _add_before(block, s, point, vector, "before[n]")


def _scan_vector(block: Block, s: Scan, point: Point, vector: int, total: str) -> None:
    """Scan the registers of one vector into those of the result."""
    out, number = block.out, block.index("r", s.over)
    out.line("#pragma unroll")
    with out.block(f"for (int {number} = start; {number} < start + {vector}; ++{number})"):
        own, element = _element(block, s, point, number)
        out.line(f"{total} = {combine(s.monoid, total, own)};")
        out.line(f"{element} = {total};")


def _add_before(block: Block, s: Scan, point: Point, vector: int, before: str) -> None:
    """Combine what lies before a vector with each of its points."""
    out, number = block.out, block.index("r", s.over)
    out.line("#pragma unroll")
    with out.block(f"for (int {number} = start; {number} < start + {vector}; ++{number})"):
        element = block.element(s.name, _own(block, s, point, number))
        out.line(f"{element} = {combine(s.monoid, before, element)};")


def _own(block: Block, s: Scan, point: Point, number: str) -> Point:
    offset = block.register_offset(block.distribution, s.over, number)
    at = {**point.at, s.over: f"({block.index('base', s.over)} + {offset})"}
    return Point(at, {**point.register, s.over: number}, point.origin)


def _element(block: Block, s: Scan, point: Point, number: str) -> tuple[str, str]:
    """The scanned value at a point, neutral outside the extents, and the result's register."""
    own = _own(block, s, point, number)
    text = block.converted(s.argument, s.dtype, own)
    valid = " && ".join(block.valid([s.over], own))
    return f"({valid} ? {text} : {identity(s.monoid, s.dtype)})" if valid else text, block.element(
        s.name, own
    )


def _scan_threads(block: Block, s: Scan, kind: str, neutral: str) -> None:
    functor = FUNCTORS[s.monoid]
    for f in block.distribution.spread([s.over]):
        sizes = f"{f.count}, {f.stride}, {functor}"
        arguments = f"total, before, ({kind})({neutral})"
        if f.stride < WARP:
            block.out.line(f"scan_lanes<{sizes}>({arguments});")
        else:
            scratch = block.scratch(block.kernel.threads * s.dtype.compute.itemsize)
            block.out.line(f"scan_warps<{sizes}>({arguments}, {scratch});")
