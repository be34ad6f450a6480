"""Each puzzle against NumPy: on the CPU, and as the kernels for a GPU, run by the oracle."""

from dataclasses import replace

import puzzles
import pytest

import eqsat
from eqsat import specs

pytestmark = pytest.mark.usefixtures("shared_search")


@pytest.mark.parametrize("puzzle", puzzles.PUZZLES, ids=lambda puzzle: puzzle.title)
def test_it_is_solved(puzzle):
    program, error = puzzles.solve(puzzle, "cpu")
    assert error <= 1e-4  # NaN fails
    assert len(program.kernels) == 1


@pytest.mark.parametrize("puzzle", puzzles.PUZZLES, ids=lambda puzzle: puzzle.title)
def test_its_kernels_for_a_gpu_are_right(puzzle):
    spec = replace(specs.load("example_cuda"), target="oracle")
    program, error = puzzles.solve(puzzle, spec)
    assert error <= 1e-4
    assert all(kernel.threads > 1 for kernel in program.kernels)


def test_there_are_fourteen():
    assert len({puzzle.title for puzzle in puzzles.PUZZLES}) == 14


def test_a_matrix_product_in_indices_reaches_a_routine_for_them():
    a, b = eqsat.input("a", (256, 256)), eqsat.input("b", (256, 256))
    program = eqsat.compile(puzzles.multiply_matrices(a, b), specs.cpu())
    assert "gemm_f32" in program.describe()


@pytest.mark.parametrize(("given", "status"), [("--hlep", 2), ("--help", 0)])
def test_its_arguments_are_checked(given, status, capsys):
    with pytest.raises(SystemExit) as stop:
        puzzles.main([given])
    assert stop.value.code == status
    assert "usage: puzzles.py" in "".join(capsys.readouterr())
