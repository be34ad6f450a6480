"""Plans that cost about the same are compared by what their scheduled kernels need."""

from dataclasses import replace

import pytest

import eqsat.graph as eg
from eqsat.algebra import Term
from eqsat.driver import plan
from eqsat.errors import SpecError
from eqsat.extract import Plan
from eqsat.form import Stored
from eqsat.graph import nn
from eqsat.graph.dtypes import bfloat16
from eqsat.kernel import Kernel
from eqsat.schedule import Predicted
from eqsat.specs import load
from eqsat.variants import best_scheduled

M, N, K = 2048, 2048, 2048


def rules(y: eg.Tensor) -> list[str]:
    """The substitutions of each kernel, those without one as nothing."""
    return [
        next((r for r in launch.kernel.rules if r.startswith("substitute")), "")
        for launch in plan([y], load("h200")).parts.launches
    ]


def x_g_w() -> tuple[eg.Tensor, eg.Tensor, eg.Tensor]:
    names = (("x", (M, K)), ("g", (K,)), ("w", (K, N)))
    x, g, w = (eg.input(name, shape, bfloat16) for name, shape in names)
    return x, g, w


def test_a_scaled_factor_is_computed_on_its_way_to_the_product():
    x, g, w = x_g_w()
    (rule,) = rules((x * g) @ w)
    assert rule.endswith("_rs")


def test_rms_norm_goes_into_the_product_that_reads_it():
    """Its sums of squares beside the products, its division after them."""
    x, g, w = x_g_w()
    (rule,) = rules(nn.rms_norm(x, g) @ w)
    assert rule.endswith("_rs")


def test_what_costs_much_is_computed_once():
    """An exponential for each element and each tile of columns would cost more than a kernel."""
    x, _, w = x_g_w()
    first, second = rules(nn.gelu(x) @ w)
    assert first == "" and second.endswith("_ss")


def predicted(name: str, seconds: float) -> Predicted:
    return Predicted(Kernel(name, (), (), (), ()), seconds, "dram")


def one(buffer: str) -> tuple[Stored, ...]:
    return (Stored(buffer, Term("literal", 1.0, "bfloat16"), (), bfloat16),)


PLANS = (Plan((one("a"), one("b")), 3.0), Plan((one("c"),), 3.1), Plan((one("a"), one("d")), 3.2))


def test_each_kernel_is_scheduled_once_and_the_fastest_plan_taken():
    seconds, asked = {"a": 1.0, "b": 2.5, "c": 3.0, "d": 1.5}, []

    def schedule(name, stored, buffers):
        asked.append(stored[0].buffer)
        return [predicted(f"{name}_x", seconds[stored[0].buffer])]

    best = best_scheduled([(p, {}) for p in PLANS], schedule)
    assert best.plan == PLANS[2] and best.seconds == 2.5
    assert asked == ["a", "b", "c", "d"]
    assert [k.kernel.name for k in best.kernels] == ["k0_x", "k1_x"]


def test_a_plan_that_does_not_fit_is_passed_over_unless_it_is_the_first():
    def schedule(name, stored, buffers):
        if stored[0].buffer == "c":
            raise SpecError("no schedule fits")
        return [predicted(name, 2.0)]

    assert best_scheduled([(p, {}) for p in PLANS[:2]], schedule).plan == PLANS[0]
    with pytest.raises(SpecError, match="no schedule fits"):
        best_scheduled([(p, {}) for p in PLANS[1:2]], schedule)


def test_alternatives_are_named_with_their_kernel():
    other = replace(predicted("k1_a", 2.0), followers=0)
    calls = iter([predicted("k0", 1.0), replace(predicted("k1", 1.0), alternatives=((other,),))])
    best = best_scheduled([(PLANS[0], {})], lambda name, stored, buffers: [next(calls)])
    assert best.kernels[1].alternatives[0][0].kernel.name == "k1_a"
