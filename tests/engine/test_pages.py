"""A gather's page and the row in it: one index, by which sums run over both."""

from dataclasses import replace

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.driver import compile, plan
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Load
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")

PAGES, ROWS, SIZE, MOST = 11, 6, 16, 5


def weighed(scaled: bool = False) -> Tensor:
    """out[b, d] = sum over i, r of w[b, 6 i + r] x[table[b, i], r, d] (scale[b, i])"""
    x, w = g.input("x", (PAGES, ROWS, SIZE)), g.input("w", (4, MOST * ROWS))
    table = g.input("table", (4, MOST), "int32")
    rows = g.take(x, table, axis=0)
    if scaled:
        rows = rows * g.input("scale", (4, MOST))[:, :, None, None]
    return g.sum(w[:, :, None] * g.reshape(rows, (4, MOST * ROWS, SIZE)), 1)


def reads(tensor: Tensor) -> list[Load]:
    launches = plan([tensor], load("h200")).parts.launches
    return [s for one in launches for s in one.kernel.statements() if isinstance(s, Load)]


def test_page_and_row_are_one_index():
    """The row is a remainder in the address, the page a quotient in the table's."""
    (rows,) = (s for s in reads(weighed()) if s.access.coordinates)
    assert f"% {ROWS}" in str(rows.access.address)
    (table,) = (
        s
        for s in reads(weighed())
        if s.access.buffer != rows.access.buffer and "//" in str(s.access.address)
    )
    assert f"// {ROWS}" in str(table.access.address)


def test_what_is_read_for_each_page_does_not_part_them():
    quotients = [s for s in reads(weighed(scaled=True)) if "//" in str(s.access.address)]
    assert len(quotients) == 2


def test_points_that_lie_side_by_side_are_no_rows():
    """out[b] = sum over i, d of x[table[b, i], d]: a row is read along its elements."""
    x, table = g.input("x", (PAGES, 64)), g.input("table", (4, 64), "int32")
    found = reads(g.sum(g.take(x, table, axis=0), (1, 2)))
    assert not [s for s in found if "//" in str(s.access.address) or "%" in str(s.access.address)]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("spec", ["cpu", "oracle"])
def test_sums_over_pages_are_right(spec, scaled):
    random = np.random.default_rng(3)
    x, w, scale = (
        random.standard_normal(shape).astype(np.float32)
        for shape in ((PAGES, ROWS, SIZE), (4, MOST * ROWS), (4, MOST))
    )
    table = random.integers(-PAGES, PAGES, (4, MOST)).astype(np.int32)
    arrays = {"x": x, "w": w, "table": table, "scale": scale}
    output = weighed(scaled)
    chosen = None if spec == "cpu" else replace(load("example_cuda"), target="oracle")
    program = compile(output, chosen)
    given = [arrays[a.name] for a in program.arguments]
    rows = x[table].astype(np.float64) * (scale[:, :, None, None] if scaled else 1)
    wanted = np.einsum("bs,bsd->bd", w, rows.reshape(4, MOST * ROWS, SIZE))
    np.testing.assert_allclose(program(*given), wanted, rtol=1e-5, atol=1e-5)
