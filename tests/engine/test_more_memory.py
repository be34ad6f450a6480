"""A spec with more of something gives no slower program."""

import pytest

import eqsat.graph as g
from eqsat import specs
from eqsat.cache.store import Cache
from eqsat.driver import plan

pytestmark = pytest.mark.usefixtures("shared_search")


def test_tiles_that_only_more_shared_memory_has_room_for_keep_no_operation_from_a_try() -> None:
    """The longer tiles take too many registers, in any number of stages."""
    product = g.input("a", (512, 512), "bfloat16") @ g.input("b", (512, 512), "bfloat16")
    unit = specs.load("example_cuda")
    more = unit.replace_memory("shared", size_bytes=100 << 10, max_per_group_bytes=99 << 10)
    few, many = (plan(product, one, cache=Cache(None)).parts.launches for one in (unit, more))
    assert "substitute_matrix_multiply" in many[0].kernel.rules
    assert sum(one.seconds for one in many) <= sum(one.seconds for one in few)
