"""Factors of products that are computed or gathered: in the product's kernel, or stored before."""

from functools import reduce

import numpy as np
import pytest
from terms import Terms, mul, universe

import eqsat as eg
from eqsat import nn
from eqsat.cache.store import Cache
from eqsat.driver import plan
from eqsat.price.issue import ISSUED
from eqsat.price.rates import Rates
from eqsat.specs import load
from eqsat.terms.algebra import Facts
from eqsat.terms.form import multiplies_anew

pytestmark = pytest.mark.usefixtures("shared_search")

H200 = load("h200")


def launches(y: eg.Tensor):
    return plan([y], H200, cache=Cache(None)).parts.launches


def multiplies(launch) -> bool:
    return any("mma" in rule for rule in launch.kernel.rules)


def test_rows_of_a_table_are_gathered_before_they_are_multiplied():
    """In the product's kernel each tile of columns would gather them again, and wait for them."""
    table, i = eg.input("table", (50000, 1024), "bfloat16"), eg.input("i", (2048,), "int64")
    w = eg.input("w", (1024, 2048), "bfloat16")
    gathered, product = launches(eg.take(table, i, axis=0) @ w)
    assert not multiplies(gathered) and multiplies(product)
    assert "_ss" in str(product.kernel.rules)


@pytest.mark.parametrize(("rows", "kernels"), [(16, [True, False]), (2048, [False, True])])
def test_weights_of_8_bits_are_widened_before_where_many_rows_are_multiplied(rows, kernels):
    """For few rows in the kernel of the product, parts of whose sums another one joins."""
    x, w = eg.input("x", (rows, 4096), "bfloat16"), eg.input("w", (4096, 4096), "int8")
    assert [*map(multiplies, launches(x @ eg.astype(w, "bfloat16")))] == kernels


def test_few_rows_are_scaled_before():
    """64 rows of an operation, for each tile of columns, would be scaled for 4 that there are."""
    x, g = eg.input("x", (4, 4096), "bfloat16"), eg.input("g", (4096,), "bfloat16")
    first, *rest = launches(nn.rms_norm(x, g) @ eg.input("w", (4096, 6144), "bfloat16"))
    assert not multiplies(first) and any(map(multiplies, rest))
    assert first.seconds + sum(one.seconds for one in rest) < 18e-6  # 12 to read the weights


def test_the_issue_of_instructions_is_a_unit_of_all():
    """As many as all rows of an operation have, on a device that has others' work to do besides."""
    pricer = Rates(H200, frozenset())
    rates = dict(pricer.rates("tanh", "float32"))
    rows = H200.elementwise("tanh", "float32")
    lanes = H200.group("thread").count * H200.cycles_per_s
    np.testing.assert_allclose(rates[ISSUED], sum(slots for _, slots in rows) / lanes)
    assert ISSUED not in dict(pricer.products("float32"))
    assert ISSUED not in dict(Rates(load("cpu"), frozenset()).rates("tanh", "float32"))


@pytest.mark.parametrize(
    ("names", "anew"),
    [
        (("ik", "kj"), False),  # a product of two factors in memory
        (("ik", "k", "kj"), True),  # one of them scaled
        (("ijk", "k"), False),  # a row of weights
        (("ijk", "ijk", "ijk"), False),  # nothing that is the same at several points
    ],
)
def test_products_of_what_is_computed(names, anew):
    over = universe(64, 32, 16, 2)
    t = Terms(over)
    inner = reduce(mul, (t.read(f"b{n}", one, "float32") for n, one in enumerate(names)))
    assert multiplies_anew(t.sum("k", inner), Facts(over)) == anew
