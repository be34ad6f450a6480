"""The fourteen exercises of GPU Puzzles (github.com/srush/GPU-Puzzles) as index expressions.

There, each is a kernel written for one thread: which element it computes, what it must guard
against, what goes to shared memory. Here only the element is written. Threads, blocks, guards at
the edges and shared memory are the compiler's, so some puzzles become the same program: they are
kept, as the tests run each at sizes that do not fit a block.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

import eqsat
from eqsat.graph import Tensor
from eqsat.specs import ParallelProcessingUnit

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Puzzle:
    """A program over its inputs, what it means in NumPy, and the shapes it is tried at."""

    title: str
    program: Callable[..., Tensor]
    meaning: Callable[..., np.ndarray]
    shapes: Shapes


def add_ten(a: Tensor) -> Tensor:
    """out[i] = a[i] + 10"""
    return eqsat.compute(a.shape, lambda i: a[i] + 10)


def add_pairs(a: Tensor, b: Tensor) -> Tensor:
    """out[i] = a[i] + b[i]"""
    return eqsat.compute(a.shape, lambda i: a[i] + b[i])


def add_ten_square(a: Tensor) -> Tensor:
    """out[i, j] = a[i, j] + 10"""
    return eqsat.compute(a.shape, lambda i, j: a[i, j] + 10)


def add_outer(a: Tensor, b: Tensor) -> Tensor:
    """out[i, j] = a[i, 0] + b[0, j]"""
    return eqsat.compute((a.shape[0], b.shape[1]), lambda i, j: a[i, 0] + b[0, j])


def sum_window(a: Tensor) -> Tensor:
    """out[i] = a[i - 2] + a[i - 1] + a[i], where they exist"""
    return eqsat.compute(a.shape, lambda i: eqsat.sum_over(3, lambda k: a.at(i - k, fill=0)))


def dot(a: Tensor, b: Tensor) -> Tensor:
    """out[0] = sum_k a[k] * b[k]"""
    return eqsat.compute(1, lambda _: eqsat.sum_over(a.shape[0], lambda k: a[k] * b[k]))


def convolve(a: Tensor, b: Tensor) -> Tensor:
    """out[i] = sum_k a[i + k] * b[k], a being 0 beyond its end"""
    return eqsat.compute(
        a.shape, lambda i: eqsat.sum_over(b.shape[0], lambda k: a.at(i + k, fill=0) * b[k])
    )


def sum_blocks(a: Tensor, block: int = 8) -> Tensor:
    """out[i] = the sum of block i of a"""
    count = -(-a.shape[0] // block)
    return eqsat.compute(
        count, lambda i: eqsat.sum_over(block, lambda k: a.at(block * i + k, fill=0))
    )


def sum_rows(a: Tensor) -> Tensor:
    """out[i, 0] = sum_j a[i, j]"""
    return eqsat.compute(
        (a.shape[0], 1), lambda i, _: eqsat.sum_over(a.shape[1], lambda j: a[i, j])
    )


def multiply_matrices(a: Tensor, b: Tensor) -> Tensor:
    """out[i, j] = sum_k a[i, k] * b[k, j]"""
    return eqsat.compute(
        (a.shape[0], b.shape[1]),
        lambda i, j: eqsat.sum_over(a.shape[1], lambda k: a[i, k] * b[k, j]),
    )


# --- what they mean ---


def window_in_numpy(a: np.ndarray) -> np.ndarray:
    """As sum_window."""
    return np.array([a[max(i - 2, 0) : i + 1].sum() for i in range(len(a))])


def convolution_in_numpy(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """As convolve."""
    longer = np.pad(a, (0, len(b)))
    return np.array([longer[i : i + len(b)] @ b for i in range(len(a))])


def blocks_in_numpy(a: np.ndarray) -> np.ndarray:
    """As sum_blocks."""
    return np.pad(a, (0, -len(a) % 8)).reshape(-1, 8).sum(1)


def ten_more(a: np.ndarray) -> np.ndarray:
    """a + 10"""
    return a + 10


PUZZLES = (
    Puzzle("map", add_ten, ten_more, ((4,),)),
    Puzzle("zip", add_pairs, np.add, ((4,), (4,))),
    Puzzle("guards", add_ten, ten_more, ((5,),)),
    Puzzle("map 2D", add_ten_square, ten_more, ((2, 2),)),
    Puzzle("broadcast", add_outer, np.add, ((3, 1), (1, 5))),
    Puzzle("blocks", add_ten, ten_more, ((1031,),)),
    Puzzle("blocks 2D", add_ten_square, ten_more, ((67, 131),)),
    Puzzle("shared", add_ten, ten_more, ((8192,),)),
    Puzzle("pooling", sum_window, window_in_numpy, ((257,),)),
    Puzzle("dot product", dot, lambda a, b: np.array([a @ b]), ((1009,), (1009,))),
    Puzzle("1D convolution", convolve, convolution_in_numpy, ((129,), (4,))),
    Puzzle("prefix sum", sum_blocks, blocks_in_numpy, ((1003,),)),
    Puzzle("axis sum", sum_rows, lambda a: a.sum(1, keepdims=True), ((17, 263),)),
    Puzzle("matrix multiply", multiply_matrices, np.matmul, ((65, 127), (127, 33))),
)


def solve(
    puzzle: Puzzle, spec: ParallelProcessingUnit | str | None = None
) -> tuple[eqsat.Program, float]:
    """The compiled puzzle, and the largest error of its answer for random inputs, by float64."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, np.float32) for shape in puzzle.shapes]
    inputs = [eqsat.input(name, a.shape) for name, a in zip("ab", arrays, strict=False)]
    program = eqsat.compile(puzzle.program(*inputs), spec, inputs=inputs)
    expected = puzzle.meaning(*(a.astype(np.float64) for a in arrays))
    found = program(*arrays)
    assert found.shape == expected.shape
    return program, float(np.abs(found - expected).max())


def main(arguments: Sequence[str] | None = None) -> None:
    """Solve each puzzle on this machine's CPU, and show how."""
    argparse.ArgumentParser(prog="puzzles.py", description=__doc__).parse_args(arguments)
    table = Table("puzzle", "element", "kernels", "rules", "max error")
    for number, puzzle in enumerate(PUZZLES, 1):
        program, error = solve(puzzle)
        rules = dict.fromkeys(rule for kernel in program.kernels for rule in kernel.rules)
        table.add_row(
            f"{number} {puzzle.title}",
            (puzzle.program.__doc__ or "").replace("[", "\\["),
            str(len(program.kernels)),
            ", ".join(rules),
            f"{error:.1e}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
