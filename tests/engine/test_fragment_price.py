"""Products by operations of a warp read fragments as matrices; single elements have their price."""

import pytest
from fast_products import H200

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.driver import plan
from eqsat.graph.index import unit_names
from eqsat.kernel.ir import Contract, Load

pytestmark = pytest.mark.usefixtures("shared_search")


def test_no_warp_reads_the_taps_of_a_strided_window_one_by_one():
    """Memory has the two taps side by side, and channels and places far apart."""
    x, w = g.input("x", (10, 64, 3396), "float16"), g.input("w", (64, 64, 2), "float16")
    y = g.mean(g.square(g.conv(x, w, stride=2, padding=1)), axis=2)
    for launch in plan(y, H200, cache=Cache(None)).parts.launches:
        loads = {s.name: s for s in launch.kernel.statements() if isinstance(s, Load)}
        extents = {name: axis.extent for name, axis in launch.kernel.axes().items()}
        for c in launch.kernel.statements():
            if isinstance(c, Contract) and c.operation.startswith("mma"):
                longest = max(c.over, key=extents.__getitem__)
                for name in {c.left, c.right} & loads.keys():
                    unit = unit_names(loads[name].access.address)
                    assert unit & {longest, *c.indices}
