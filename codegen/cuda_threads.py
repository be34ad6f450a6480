"""Numbers of threads: their digits, and runs of digits as factors of an index."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

WARP = 32


@dataclass(frozen=True)
class Factor:
    """`count` coordinates, in registers or over threads that are `stride` apart."""

    kind: str
    count: int
    stride: int = 0


def thread_digits(threads: int, blocks: int = 1) -> list[tuple[int, int]]:
    """(stride, radix) of the digits of a thread number: twos, then one odd radix; the number of its
    block in the same way after that.
    """
    digits: list[tuple[int, int]] = []
    for first, count in ((1, threads // blocks), (threads // blocks, blocks)):
        stride = 1
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
