"""What the bench captures on the GPU."""

from dataclasses import replace

import pytest

from eqsat.bench import variants
from eqsat.bench.case import instance
from eqsat.bench.cases import CASES
from eqsat.bench.check import measured_error, reference
from eqsat.bench.cuda import Cuda
from eqsat.specs import from_device

pytestmark = pytest.mark.gpu


def test_a_contender_keeps_the_arrays_that_its_graph_writes_to():
    """Among them what must be zero between launches, of tiles in parts."""
    cupy = pytest.importorskip("cupy")
    case = next(c for c in CASES if c.name == "matmul-bf16-2048")
    case = replace(case, sizes={**case.sizes, "full": {"m": 2560, "n": 2560, "k": 2560}})
    spec = from_device()
    device, whole = Cuda(spec), instance(case, case.sizes["full"])
    program = variants.build(whole, spec, candidates=4)
    sets = device.sets(case, whole.sizes, 2)
    expected = reference(whole, sets, device)
    for one in variants.candidates(program, 4):
        contender = device.variant(one.name, program, one.launches, sets)
        filled = [cupy.full(1 << 16, 7, cupy.int32) for _ in range(64)]  # where arrays were freed
        for _ in range(3):
            assert measured_error(contender, expected, device) <= whole.tolerance
        del filled
