"""Factors that lie in pieces, in the emulator: a tile may reach beyond the last piece."""

import numpy as np
import pytest
from cuda_cases import case
from cuda_emulation import emulate
from kernel_building import Body, Sample, arrays, check
from pipeline_cases import OPERATIONS, at, buffers, by, integers, wide

from eqsat.graph.dtypes import bfloat16, float32
from eqsat.graph.index import row_major
from eqsat.kernel.ir import Axis, Buffer, Carry, Kernel, Store
from eqsat.kernel.joined import Joined, Piece

M, N, PITCH = 70, 64, 8


def rows_in_pieces(first: int, second: int, tile: int) -> Sample:
    """y[i,j] = sum_l x[i,l] w[l,j]: of w the first rows lie in one buffer, the others in another.
    What is beyond these, and beyond those of x, is not zero.
    """
    k = first + second
    x, a, b = buffers(bfloat16, x=(M, -(-k // PITCH) * PITCH), a=(first, N), b=(second + 3, N))
    y = Buffer("y", (M, N), float32, "output")
    pieces = Piece("a", 0, first, 0, (N, 1)), Piece("b", first, k, 0, (N, 1))
    joined = Joined((k, N), 0, pieces).accesses(row_major(("l", "j"), {"l": k, "j": N}))
    body, end = Body(bfloat16), Body()
    body.load("f", "i l", at(x, "i", "l"))
    body.load("g", "l j", joined[0], rest=joined[1:])
    body.dtype = float32
    body.contract("p", "i j", "l", "f", "g", by(N))
    body.update("next", "i j", "acc", "sum", "p")
    carry = Carry("acc", float32, ("i", "j"), "sum")
    stream = body.phase(stream=(Axis("l", k, tile),), carries=(carry,))
    grid = (Axis("i", M, 64), Axis("j", N, N))
    phases = (stream, end.phase(Store(at(y, "i", "j"), "acc")))
    given = integers(x.shape, a.shape, b.shape, dtype=bfloat16)
    p, *parts = (wide(one) for one in given)
    answer = p[:, :k] @ np.concatenate([parts[0], parts[1][:second]])
    kernel = Kernel("joined", (x, a, b, y), grid, (), phases)
    return Sample(kernel, dict(zip("xab", given, strict=True)), {"y": answer}, 1e-6)


CASES = [
    case(f"joined-{first}-{second}", rows_in_pieces(first, second, tile), 128, 2)
    for first, second, tile in ((64, 1, 64), (128, 40, 64), (64, 64, 32), (32, 1, 16))
]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return emulate([c.kernel for c in CASES], tmp_path_factory.mktemp("joined"), OPERATIONS)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[c.name for c in CASES])
def test_what_lies_beyond_the_last_piece_is_not_added(emulator, number):
    for blocks, schedule in ((1, 0), (3, 2)):
        found = arrays(CASES[number].sample)
        emulator.run(number, found, blocks, schedule)
        check(CASES[number].sample, found)
