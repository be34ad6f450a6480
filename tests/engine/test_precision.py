"""What a program may round is the user's choice: the kernels, their answers, the cache, errors."""

from dataclasses import replace

import numpy as np
import pytest

import eqsat
from eqsat.cache.store import Cache
from eqsat.codegen.targets import OracleBackend
from eqsat.driver import compile, plan
from eqsat.errors import ArgumentError, SettingsError
from eqsat.executor import ExecutionConfig, KernelExecutor
from eqsat.explain.render import render
from eqsat.kernel.ir import Contract, Map
from eqsat.rule import PRECISIONS
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")

H200 = load("h200")
FAST = tuple(
    replace(one, sustained_fraction=0.6) if one.name.startswith("mma_") else one
    for one in H200.operations
    if not one.name.startswith("wgmma")  # which round what they read, and the interpreter does not
)
H200 = replace(H200, operations=FAST)  # so that three products are faster than float32 arithmetic
for one in FAST:
    if "fma" in one.implements:
        H200 = H200.replace_operation(one.name, implements={**one.implements, "fma": 4.0})


def product(m=512, k=128, n=512, dtype="float32"):
    return eqsat.input("a", (m, k), dtype) @ eqsat.input("b", (k, n), dtype)


def contracts(planned):
    return [s for launch in planned.parts.launches for s in launch.kernel.statements()
            if isinstance(s, Contract)]  # fmt: skip


CACHE = Cache(None)


@pytest.fixture(scope="module")
def plans():
    """The product of float32 matrices for each precision, from one cache."""
    return {p: plan(product(), H200, precision=p, cache=CACHE) for p in PRECISIONS}


def test_each_precision_has_its_operations(plans):
    found = {p: {(c.operation, c.narrow, c.terms) for c in contracts(plans[p])} for p in plans}
    assert found["exact"] == {("", "", 1)}
    assert found["default"] <= {
        ("mma_m16n8k8_tf32", "tfloat32", 2), ("mma_m16n8k16_bf16", "bfloat16", 3)
    }  # fmt: skip
    for precision, narrow in (("tf32", "tfloat32"), ("bf16", "bfloat16")):
        ((operation, used, terms),) = found[precision]
        assert operation and used in {"", narrow} and terms == 1
    seconds = [sum(one.seconds for one in plans[p].parts.launches) for p in PRECISIONS]
    assert seconds[0] > seconds[1] > seconds[2] >= seconds[3]


def test_the_answers_are_as_accurate_as_was_asked_for(plans):
    random = np.random.default_rng(0)
    a = random.standard_normal((512, 128)).astype(np.float32)
    b = random.standard_normal((128, 512)).astype(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    errors = {}
    for precision, planned in plans.items():
        arrays = {"in0": a, "in1": b}
        for name, buffer in planned.parts.buffers.items():
            arrays.setdefault(name, np.empty(buffer.shape, buffer.dtype.numpy))
        OracleBackend(replace(H200, operations=()), None).prepare(planned.parts.launches)(arrays)
        found = arrays[planned.parts.outputs[0][0]]
        errors[precision] = np.abs(found - exact).max()
    assert errors["default"] < 2 * errors["exact"] < 1e-3
    assert 3e-3 < errors["tf32"] < 5e-2
    assert errors["tf32"] < errors["bf16"] < 5e-1


def test_exact_keeps_a_rounding_that_was_written():
    a, b = eqsat.input("a", (24, 40), "float32"), eqsat.input("b", (40, 8), "float32")
    rounded = eqsat.astype(eqsat.astype(a, "bfloat16"), "float32") @ b
    casts = {}
    for precision in ("exact", "default"):
        planned = plan(rounded, "cpu", precision=precision, cache=Cache(None))
        statements = [s for one in planned.parts.launches for s in one.kernel.statements()]
        casts[precision] = [s for s in statements if isinstance(s, Map) and s.op == "cast"]
    assert casts["exact"] and not casts["default"]
    x, w = (np.random.default_rng(1).standard_normal(t.shape).astype(np.float32) for t in (a, b))
    once = compile(rounded, "cpu", precision="exact", cache=Cache(None))(x, w)
    expected = x.astype(eqsat.bfloat16.numpy).astype(np.float64) @ w.astype(np.float64)
    np.testing.assert_allclose(once, expected, rtol=1e-5, atol=1e-5)


def test_exact_rounds_no_factor_to_meet_a_narrow_one():
    a = eqsat.astype(eqsat.input("a", (512, 128), "float32"), "float32")
    b = eqsat.astype(eqsat.input("b", (128, 512), "bfloat16"), "float32")
    used = {}
    for precision in ("exact", "default"):
        planned = plan(eqsat.exp(a) @ b, H200, precision=precision, cache=Cache(None))
        used[precision] = {c.operation for c in contracts(planned)}
    assert used["exact"] == {""} and all(used["default"])


def test_the_choice_belongs_to_the_cache_key():
    cache, small = Cache(None), product(8, 8, 8)
    for precision in PRECISIONS:
        assert not plan(small, "cpu", precision=precision, cache=cache).report.from_cache
        assert plan(small, "cpu", precision=precision, cache=cache).report.from_cache


def test_the_environment_sets_the_default(monkeypatch):
    monkeypatch.setenv("EQSAT_PRECISION", "exact")
    assert {c.operation for c in contracts(plan(product(), H200, cache=CACHE))} == {""}
    assert plan(product(), H200, precision="tf32", cache=CACHE).search.precision == "tf32"


def test_an_executor_passes_it_on():
    config = ExecutionConfig(load("cpu"), precision="half")
    with pytest.raises(ArgumentError, match="precision='half'"):
        KernelExecutor(config).run(lambda x: x + 1.0, np.ones(3, np.float32))


def test_a_bad_choice_lists_the_good_ones(monkeypatch):
    with pytest.raises(ArgumentError) as caught:
        plan(product(8, 8, 8), "cpu", precision="fast")
    assert str(caught.value) == ("precision='fast' is none. Use one of exact, default, tf32, bf16.")
    monkeypatch.setenv("EQSAT_PRECISION", "fast")
    with pytest.raises(SettingsError, match=r"EQSAT_PRECISION is 'fast'\. Use one of"):
        plan(product(8, 8, 8), "cpu")


def test_a_split_is_explained_and_replayed(plans):
    explanation = plans["default"].explain("product")
    steps = [s.rule for one in explanation.segments for k in one.kernels for s in k.trace.steps]
    (rule,) = (explanation.rule(s) for s in steps if s.startswith("split_factors_"))
    assert rule is not None and rule.precision == "default" and not explanation.notes
    page = " ".join(render(explanation, "text").split())
    assert "from h200's operations. precision: default." in page
    assert "terms of" in page and "contract_S(a_i, b_j)" in page
