"""Plans that cost about the same are compared by what their scheduled kernels need."""

from dataclasses import replace

import pytest

import eqsat.graph as eg
from eqsat.cut.cuts import UNFIT, Plan
from eqsat.cut.variants import best_planned, best_scheduled
from eqsat.driver import plan
from eqsat.errors import SpecError
from eqsat.graph import nn
from eqsat.graph.dtypes import bfloat16
from eqsat.kernel.ir import Kernel
from eqsat.schedule.scheduling import Predicted
from eqsat.specs import load
from eqsat.terms.algebra import Facts, Term, Universe
from eqsat.terms.form import Stored

pytestmark = pytest.mark.usefixtures("shared_search")

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

    best = best_scheduled([(p, {}) for p in PLANS], schedule, {})
    assert best.plan == PLANS[2] and best.seconds == 2.5
    assert asked == ["a", "b", "c", "d"]
    assert [k.kernel.name for k in best.kernels] == ["k0_x", "k1_x"]


def test_a_plan_that_does_not_fit_is_passed_over_unless_it_is_the_first():
    def schedule(name, stored, buffers):
        if stored[0].buffer == "c":
            raise SpecError("no schedule fits")
        return [predicted(name, 2.0)]

    assert best_scheduled([(p, {}) for p in PLANS[:2]], schedule, {}).plan == PLANS[0]
    with pytest.raises(SpecError, match="no schedule fits"):
        best_scheduled([(p, {}) for p in PLANS[1:2]], schedule, {})


def test_alternatives_are_named_with_their_kernel():
    other = replace(predicted("k1_a", 2.0), followers=0)
    calls = iter([predicted("k0", 1.0), replace(predicted("k1", 1.0), alternatives=((other,),))])
    best = best_scheduled([(PLANS[0], {})], lambda name, stored, buffers: [next(calls)], {})
    assert best.kernels[1].alternatives[0][0].kernel.name == "k1_a"


class Told:
    """An extractor that takes every kernel for little work, and keeps what it is told."""

    best = ({}, {})
    facts = Facts(Universe())

    def __init__(self, computing: str = "") -> None:
        self.least: dict[str, float] = {}
        self.computing = computing

    def computes_factors(self, stored: tuple[Stored, ...]) -> bool:
        return stored[0].buffer == self.computing

    def price_kernel(self, stored: tuple[Stored, ...]) -> float:
        return 0.01

    def learn(self, stored: tuple[Stored, ...], seconds: float) -> bool:
        new = self.least.get(stored[0].buffer) != seconds
        self.least[stored[0].buffer] = seconds
        return new


def planned(seconds: dict[str, float], told: Told, cuts: list[Plan]):
    """The best plan of some cuts, one after the other; a kernel without seconds fits nothing."""

    def schedule(name, stored, buffers):
        if stored[0].buffer not in seconds:
            raise SpecError(f"{stored[0].buffer} fits nothing")
        return [predicted(f"{name}_x", seconds[stored[0].buffer])]

    return best_planned(cuts.pop, told, lambda plan: {}, schedule)  # type: ignore[arg-type]


def test_a_kernel_that_needs_far_longer_is_told_to_another_cut():
    told, cuts = Told(), [PLANS[0], PLANS[1], PLANS[2]]
    best = planned({"a": 0.01, "b": 2.5, "c": 0.015, "d": 9.0}, told, cuts)
    assert told.least == {"d": 9.0} and best.plan == PLANS[1] and cuts == [PLANS[0]]


def test_a_kernel_that_computes_a_factor_is_told_soon():
    """The factor could be stored; of others a price may be further off."""
    first, second = (replace(one, seconds=0.02) for one in (PLANS[2], PLANS[1]))
    for computing, best in (("d", second), ("", first)):
        told = Told(computing)
        found = planned({"a": 0.01, "c": 0.01, "d": 0.0107}, told, [second, first])
        assert found.plan == best and told.least == ({"d": 0.0107} if computing else {})


@pytest.mark.parametrize("kernels", ["ad", "abcd"])
def test_a_plan_of_few_kernels_is_cut_again_sooner(kernels):
    """What takes half as long again as its price is told; of many, what takes twice as long."""
    first = Plan(tuple(one(name) for name in kernels), 0.01 * len(kernels))
    told, few = Told(), len(kernels) == 2
    seconds = {name: 0.015 for name in "abd"} | {"c": 0.01}
    found = planned(seconds, told, [replace(PLANS[1], seconds=0.01), first])
    assert (found.plan == first) != few and bool(told.least) == few


def test_a_kernel_that_fits_nothing_is_told_too():
    told, cuts = Told(), [PLANS[1], PLANS[2]]
    assert planned({"a": 0.01, "c": 0.01}, told, cuts).plan == PLANS[1]
    assert told.least == {"d": UNFIT}
    with pytest.raises(SpecError, match="d fits nothing"):
        planned({"a": 0.01}, Told(), [PLANS[2], PLANS[2]])


@pytest.mark.slow
def test_a_small_layer_is_no_slow_kernel_of_all_its_products():
    """Projections within attention, for each of its tiles again, took 40 times their price."""
    x = eg.input("x", (2, 32, 48), "float32")
    q, k, v = (eg.input(n, (48, 48), "float32") for n in ("wq", "wk", "wv"))
    heads = [eg.permute_dims(eg.reshape(x @ w, (2, 32, 4, 12)), (0, 2, 1, 3)) for w in (q, k, v)]
    launches = plan([nn.attention(*heads)], load("h200")).parts.launches
    assert sum(one.seconds for one in launches) < 20e-6
