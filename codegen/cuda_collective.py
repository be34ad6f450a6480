"""Reductions and scans over the threads of a block: shuffles within warps, then shared memory."""

import re
from collections.abc import Sequence

from eqsat.codegen.cuda_block import Block, Point
from eqsat.codegen.cuda_distribution import WARP, Factor
from eqsat.codegen.cuda_math import FUNCTORS, combine, identity, register_type
from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import DType
from eqsat.kernel import Scan

BATCH = 8  # values that go through shared memory between two barriers


def reduce_threads(
    block: Block, array: str, count: int, monoid: str, dtype: DType, factors: Sequence[Factor]
) -> None:
    """Combine `count` registers over thread factors; every thread gets the result."""
    kind, functor = register_type(dtype), FUNCTORS[monoid]
    for f in factors:
        if f.stride < WARP:
            block.out.line(f"reduce_lanes<{f.count}, {f.stride}, {functor}>({array});")
            continue
        batch = min(count, BATCH)
        size = batch * block.kernel.threads * (1 if kind == "bool" else dtype.compute.itemsize)
        sizes = f"{f.count}, {f.stride}, {block.kernel.threads}, {batch}"
        block.out.line(f"reduce_warps<{sizes}, {functor}>({array}, {block.scratch(size)});")


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
    count = d.registers(s.over)
    neutral = identity(s.monoid, s.dtype)
    others = [i for i in s.indices if i != s.over]
    number = block.index("r", s.over)
    with block.points(others) as point:
        out.line(f"{kind} carried = {neutral};")
        out.line("#pragma unroll")
        with out.block(f"for (int start = 0; start < {count}; start += {vector})"):
            out.line(f"{kind} total = {neutral}, before = {neutral};")
            out.line("#pragma unroll")
            with out.block(f"for (int {number} = start; {number} < start + {vector}; ++{number})"):
                own, element = _element(block, s, point, number)
                out.line(f"total = {combine(s.monoid, 'total', own)};")
                out.line(f"{element} = total;")
            _scan_threads(block, s, kind, neutral)
            out.line(f"before = {combine(s.monoid, 'carried', 'before')};")
            out.line("#pragma unroll")
            with out.block(f"for (int {number} = start; {number} < start + {vector}; ++{number})"):
                element = block.element(s.name, _own(block, s, point, number))
                out.line(f"{element} = {combine(s.monoid, 'before', element)};")
            out.line(f"carried = {combine(s.monoid, 'carried', 'total')};")


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
