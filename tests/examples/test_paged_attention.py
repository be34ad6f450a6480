"""Attention over pages against NumPy, and its kernel for a large GPU."""

from math import prod

import numpy as np
import paged_attention
import pytest

import eqsat
from eqsat.driver import plan
from eqsat.kernel.ir import Contract, Load
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")


@pytest.mark.parametrize(
    ("most", "dtype", "error"),
    [(5, "bfloat16", 1e-2), pytest.param(9, "float32", 1e-5, marks=pytest.mark.slow)],
)
def test_it_is_right(most, dtype, error):
    tensors = paged_attention.inputs(sequences=3, pages=40, most=most, dtype=dtype)
    program = eqsat.compile([paged_attention.attend(**tensors)], inputs=list(tensors.values()))
    arrays = paged_attention.draw(tensors)
    (answer,) = program(*arrays.values())
    wanted = paged_attention.expected(arrays)
    np.testing.assert_allclose(np.asarray(answer, np.float64), wanted, rtol=0, atol=error)


def test_a_gpu_reads_the_pages_where_they_lie():
    """One kernel whose products are a warpgroup's: a stream of tokens, no copy of the cache."""
    parts = plan([paged_attention.attend()], load("h200")).parts
    (launch,) = parts.launches
    products = [s for s in launch.kernel.statements() if isinstance(s, Contract)]
    assert [s.operation.startswith("wgmma") for s in products] == [True, True]
    ((tokens,),) = (phase.stream for phase in launch.kernel.phases if phase.stream)
    assert tokens.extent == paged_attention.ROWS * paged_attention.MOST
    caches = [s for s in launch.kernel.statements() if isinstance(s, Load) and s.access.coordinates]
    assert len(caches) == 2
    assert not [b for b in parts.buffers.values() if b.role == "temporary" and prod(b.shape)]


@pytest.mark.parametrize(("given", "status"), [("--hlep", 2), ("--help", 0)])
def test_its_arguments_are_checked(given, status, capsys):
    with pytest.raises(SystemExit) as stop:
        paged_attention.main([given])
    assert stop.value.code == status
    assert "usage: paged_attention.py" in "".join(capsys.readouterr())
