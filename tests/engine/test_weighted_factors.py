"""What weights multiply in an attention of float32 is read as the factor of any product is."""

import re

import pytest
from fast_products import H200

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import emit
from eqsat.driver import plan
from eqsat.kernel.ir import Contract, Load

pytestmark = pytest.mark.usefixtures("shared_search")


def test_values_are_staged_and_weights_are_read_in_vectors():
    """Where threads multiply and add: results share both, so that each is read many times."""
    q, k, v = (g.input(name, (8, 12, 384, 64)) for name in "qkv")
    program = plan(g.attention(q, k, v), H200, cache=Cache(None), precision="exact")
    (launch,) = program.parts.launches
    statements = list(launch.kernel.statements())
    values = next(s for s in statements if isinstance(s, Load) and s.access.buffer == "x2")
    assert values.memory == "shared"
    (product,) = [s for s in statements if isinstance(s, Contract) and s.right == values.name]
    assert not product.operation
    read = r"reinterpret_cast<const Pack<float, 4>\*>\(s_v\d+_staged"
    assert re.search(read, emit(launch.kernel, H200).text)
