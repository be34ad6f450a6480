"""Numbers of threads: their digits, and runs of digits as factors of an index; the factors of the
fragments of matrix operations, shared out to indices.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

WARP = 32


@dataclass(frozen=True)
class Factor:
    """`count` coordinates, in registers or over threads that are `stride` apart."""

    kind: str
    count: int
    stride: int = 0


Units = tuple[Factor, ...]  # of one fragment's rows or columns, innermost first

ROWS_IN_PAIRS: Units = (  # a lane's two first: `products/gather.py` reads both, of two banks
    Factor("register", 2), Factor("thread", 2, 4), Factor("thread", 2, 16),
    Factor("thread", 2, WARP), Factor("thread", 2, 8), Factor("thread", 2, 2 * WARP),
)  # fmt: skip


def thread_digits(
    threads: int, blocks: int = 1, used: Iterable[Factor] = ()
) -> list[tuple[int, int]]:
    """(stride, radix) of the digits of a thread number: twos, then one odd radix; the number of its
    block in the same way after that. No digit lies across the ends of what is used already.
    """
    edges = {1, threads // blocks, threads}
    edges.update(edge for f in used for edge in (f.stride, f.stride * f.count))
    digits: list[tuple[int, int]] = []
    for first, last in pairwise(sorted(edges)):
        count, stride = last // first, 1
        while count % (2 * stride) == 0:
            digits.append((first * stride, 2))
            stride *= 2
        digits += [(first * stride, count // stride)] if stride < count else []
    return digits


def merge(digits: Iterable[tuple[int, int]], block: int = 0) -> list[Factor]:
    """Thread factors for some digits, those that follow each other joined, lanes first.

    A factor lies inside a warp, across warps or across blocks of so many threads, never in two.
    """
    factors: list[Factor] = []
    for stride, radix in sorted(digits):
        last = factors[-1] if factors else None
        if last and last.stride * last.count == stride and stride not in (WARP, block):
            factors[-1] = Factor("thread", last.count * radix, last.stride)
        else:
            factors.append(Factor("thread", radix, stride))
    return factors


def between(used: Iterable[Factor], threads: int, block: int) -> list[Factor]:
    """The thread factors that are left, lanes first, where some, in order, are used. As `merge` has
    it, each lies inside a warp, across warps or across blocks of so many threads.
    """
    free: list[Factor] = []
    below = 1
    for factor in (*used, Factor("thread", 1, threads)):
        while below < factor.stride:
            edges = (edge for edge in (WARP, block) if below < edge < factor.stride)
            above = min(edges, default=factor.stride)
            free.append(Factor("thread", above // below, below))
            below = above
        below = max(below, factor.stride * factor.count)
    return free


def are_digits(factors: Sequence[Factor]) -> bool:
    """Whether thread factors, in order, are digits of one number: any coordinates of one go with
    any of another.
    """
    return all(b.stride % (a.stride * a.count) == 0 for a, b in pairwise(factors))


def spread_over(
    points: int, width: int, digits: Sequence[tuple[int, int]], block: int = 0
) -> tuple[Factor, ...]:
    """The factors of an index: threads of some digits, each with `width` points side by side."""
    threads = prod(radix for _, radix in digits)
    outer = -(-points // (width * threads))
    return (
        Factor("register", max(outer, 1)),
        *reversed(merge(digits, block)),
        Factor("register", width),
    )


def shares(points: Sequence[int], units: Units) -> list[tuple[list[Factor], int]]:
    """For each index, outermost first: its factors of a fragment, innermost first, and fragments.

    The innermost index fills its share of the fragment first; what is left goes to the next.
    """
    left = list(units)
    found: list[tuple[list[Factor], int]] = []
    for n in reversed(range(len(points))):
        taken: list[Factor] = []
        while left and (n == 0 or prod(f.count for f in taken) < points[n]):
            unit = left.pop(0)
            need = 1
            while n and need * prod(f.count for f in taken) < points[n]:
                need *= 2
            if n and need < unit.count:
                left.insert(0, Factor(unit.kind, unit.count // need, unit.stride * need))
                unit = Factor(unit.kind, need, unit.stride)
            taken.append(unit)
        found.append((taken, max(-(-points[n] // prod(f.count for f in taken)), 1)))
    return found[::-1]


def fragments(points: Sequence[int], units: Units) -> list[int]:
    """How many fragments lie along each index."""
    return [count for _, count in shares(points, units)]


def split_warps(
    warps: int, rows: Sequence[Sequence[int]], columns: Sequence[Sequence[int]], stay: bool
) -> tuple[int, int]:
    """Warps, or teams of them, along rows and columns of so many fragments: least work, then least
    operand traffic, per warp. `stay`: each row inside one warp, where that is possible.
    """

    def per_warp(groups: Sequence[Sequence[int]], over: int) -> int:
        return max(prod(g) // max(g) * -(-max(g) // over) for g in groups)

    best: tuple[tuple[int, ...], tuple[int, int]] | None = None
    for along in range(1, warps + 1):
        for across in range(1, warps // along + 1):
            if warps % (along * across):
                continue
            down, right = per_warp(rows, along), per_warp(columns, across)
            key = (stay and across > 1, down * right, 2 * down + right, along * across)
            if best is None or key < best[0]:
                best = (key, (along, across))
    assert best is not None
    return best[1]
