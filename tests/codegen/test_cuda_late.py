"""What is read beside the results of products is read where it is used: registers hold results."""

import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.driver import plan
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")
SPEC = load("h200")


@pytest.mark.parametrize("wide", [False, True])
def test_a_bias_is_read_for_each_column_cast_or_not(wide: bool) -> None:
    x, w = g.input("x", (1024, 8192), "bfloat16"), g.input("w", (8192, 8192), "bfloat16")
    bias = g.input("b", (8192,), "float32" if wide else "bfloat16")
    sums = g.sum(g.sigmoid(g.astype(x @ w.T, "float32") + bias), axis=1)
    first = plan([sums], SPEC, cache=Cache(None)).parts.launches[0].kernel
    source = emit(first, {one.name: one for one in SPEC.operations})
    lines = source.text.splitlines()
    (read,) = [line for line in lines if "p_x2 + " in line]
    (used,) = [line for line in lines if "late_" in line and "wrapping_add" in line]
    assert f"Pack<{'float' if wide else 'unsigned short'}, 2>" in read, "neighbours at once"
    assert "v_acc" in used and not compile_cubin(source.text, "sm_90a").spills
