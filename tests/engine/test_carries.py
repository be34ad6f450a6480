"""Carry laws end to end: softmax in other bases, variances, a law of a user's; laws that fail."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.carry_law import carry_law
from eqsat.codegen.cuda.run.backend import CudaBackend
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.codegen.targets import OracleBackend
from eqsat.driver import compile, default_rules, plan
from eqsat.errors import RuleError
from eqsat.graph.evaluate import evaluate
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Contract, Kernel, Load
from eqsat.planned import Planned
from eqsat.program import Program
from eqsat.rule import Rule
from eqsat.rules.carries import SOFTMAX, carry_rules
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")

BASE_3 = carry_law("base_3", lambda s, p: g.pow(3.0, s - p), lambda p, q: g.pow(3.0, p - q))
LOWEST = carry_law(
    "lowest",
    lambda s, p: g.exp(p - s),
    lambda p, q: g.exp(q - p),
    pivot="min",
    identity=math.inf,
)
TILTED = carry_law(
    "tilted", lambda s, p: g.exp((s - p) * 0.7), lambda p, q: g.exp((p - q) * 0.7)
)  # 0.7 is another number in float32
DRIFT = carry_law("drift", lambda s, p: s - p, shift=lambda p, q: p - q, pivot="mean")
RNG = np.random.default_rng(4)


def streaming(*laws: str) -> tuple[Rule, ...]:
    """Every rule, but none that holds the rows of these laws in a tile."""
    every = (*default_rules(), *carry_rules((BASE_3, LOWEST, TILTED, DRIFT)))
    return tuple(rule for rule in every if rule.name.removeprefix("hold_") not in laws)


def weights(x: Tensor, base: float) -> Tensor:
    return g.pow(base, x - g.max(x, axis=-1, keepdims=True))


def average(x: Tensor, v: Tensor, base: float) -> Tensor:
    """Of the rows of v, by softmax weights in some base."""
    found = weights(x, base)
    return (found @ v) / g.sum(found, axis=-1, keepdims=True)


def passes(kernel: Kernel, buffer: str) -> int:
    """How often a kernel reads an input."""
    return sum(isinstance(s, Load) and s.access.buffer == buffer for s in kernel.statements())


def carried(kernel: Kernel) -> set[str]:
    return {carry.law for phase in kernel.phases for carry in phase.carries} - {""}


def cuda(outputs: Tensor, rules: Sequence[Rule] | None = None) -> Planned:
    """A program for a GPU, of which every kernel compiles."""
    found = plan(outputs, "h200", rules=rules, cache=Cache(None))
    backend = CudaBackend(load("h200"), None)
    for launch in found.parts.launches:
        cubin = compile_cubin(backend.source(launch.kernel), "sm_90a", launch.kernel.rules)
        assert not cubin.spills
    return found


def interpreted(planned: Planned, outputs: Tensor) -> Program:
    """The program, run by the tile interpreter."""
    backend = OracleBackend(load("h200"), None)
    return Program(planned.parts, backend, outputs, planned.report, planned.explain)


def on_cpu(outputs: Tensor, rules: Sequence[Rule] | None = None) -> Program:
    return compile(outputs, "cpu", rules=rules, cache=Cache(None))


def on_oracle(outputs: Tensor, rules: Sequence[Rule] | None = None) -> Program:
    return compile(outputs, replace(load("cpu"), target="oracle"), rules=rules, cache=Cache(None))


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("base", "law"), [pytest.param(2.0, "base_2", marks=SLOW), (3.0, "base_3")]
)
def test_softmax_in_another_base_is_one_streamed_kernel(base: float, law: str) -> None:
    """On the CPU, in the tile interpreter, and compiled for a GPU, where parts are joined by it."""
    x, v = g.input("x", (5, 3001)), g.input("v", (3001, 4))
    outputs, rules = average(x, v, base), streaming(law)
    arrays = RNG.normal(size=x.shape).astype("f"), RNG.normal(size=v.shape).astype("f")
    arrays[0][1] *= 80  # far apart
    arrays[0][2, :2000] = -np.inf  # nothing in the first chunks
    arrays[0][3] = -np.inf
    arrays[0][4, 7] = np.nan
    expected = evaluate([outputs], dict(zip(("x", "v"), arrays, strict=True)))[0]
    assert np.isnan(expected).all(1).tolist() == [False, False, False, True, True]
    planned = cuda(outputs, rules)
    programs = [on_cpu(outputs, rules), on_oracle(outputs, rules), interpreted(planned, outputs)]
    for program in programs:
        kernel = program.kernels[0]
        assert carried(kernel) == {law}
        assert passes(kernel, kernel.buffers[0].name) == 1
        np.testing.assert_allclose(program(*arrays), expected, rtol=2e-4, atol=1e-5)
    assert len(programs[0].kernels) == 1


def test_attention_in_another_base_streams_over_keys_by_matrix_operations() -> None:
    q, k, v = (g.input(name, (2, 8, 1024, 64), "bfloat16") for name in "qkv")
    scores = g.astype(q @ k.mT, "float32") * 0.125
    w = weights(scores, 3.0)
    total = g.sum(w, axis=-1, keepdims=True)
    outputs = g.astype(w @ g.astype(v, "float32") / total, "bfloat16")
    (launch,) = cuda(outputs, streaming()).parts.launches
    streamed = [phase for phase in launch.kernel.phases if phase.stream]
    assert len(streamed) == 1 and carried(launch.kernel) == {"base_3"}
    products = [s for s in streamed[0].body if isinstance(s, Contract)]
    assert len(products) == 2 and all("mma" in s.operation for s in products)


@pytest.mark.parametrize("shape", [(6, 4099), pytest.param((6, 4096), marks=SLOW)])
def test_a_long_variance_reads_its_rows_once(shape: tuple[int, int]) -> None:
    x = g.input("x", shape)
    outputs, rules = g.var(x, axis=1), streaming("variance")
    array = (RNG.normal(size=shape) * [[1], [1], [1e-3], [1], [1], [1]]).astype("f")
    array[1] += 1000
    array[3, 5], array[4, 9] = np.inf, np.nan
    with np.errstate(invalid="ignore"):
        expected = array.astype("d").var(1)
    for program in (on_cpu(outputs, rules), on_oracle(outputs, rules),
                    interpreted(cuda(outputs, rules), outputs)):  # fmt: skip
        kernel = program.kernels[0]
        assert carried(kernel) == {"variance"} and passes(kernel, kernel.buffers[0].name) == 1
        np.testing.assert_allclose(program(array), expected, rtol=3e-4)


@pytest.mark.parametrize(
    ("find", "laws"), [(g.var, ["variance", ""]), (g.argmax, ["first_largest", "first_largest"])]
)
def test_long_rows_are_read_once_in_parts(find, laws: list[str]) -> None:
    kernels = [one.kernel for one in cuda(find(g.input("x", (64, 100000)), axis=1)).parts.launches]
    assert ["".join(carried(kernel)) for kernel in kernels] == laws
    assert [rule.split(" ")[0] for rule in kernels[0].rules][-1] == "split"


@pytest.mark.parametrize(
    ("find", "law"),
    [("argmax", "first_largest"), pytest.param("argmin", "first_smallest", marks=SLOW)],
)
def test_the_place_of_an_extreme_is_found_in_one_pass(find: str, law: str) -> None:
    """The first of equals; of NaN; in rows of one value, though it be infinite."""
    x = g.input("x", (8, 3001))
    array = np.round(RNG.normal(size=x.shape), 1).astype("f")
    array[1, [2000, 2500]] = np.nan
    array[2], array[3], array[4, :2900] = -np.inf, np.inf, -np.inf
    array[5, 1500:], array[6] = np.inf, 0
    outputs, rules = getattr(g, find)(x, axis=1), streaming(law)
    expected = getattr(np, find)(array, axis=1)
    assert expected[1] == 2000
    programs = [on_cpu(outputs, rules), on_oracle(outputs, rules)]
    for program in (*programs, interpreted(cuda(outputs, rules), outputs)):
        kernel = program.kernels[0]
        assert carried(kernel) == {law} and passes(kernel, kernel.buffers[0].name) == 1
        np.testing.assert_array_equal(program(array), expected)


def test_other_pivots_and_totals_of_a_users_laws() -> None:
    x, v = g.input("x", (4, 3000)), g.input("v", (3000, 2))
    array, values = RNG.normal(size=x.shape).astype("f"), RNG.normal(size=v.shape).astype("f")
    lowest = g.exp(g.min(x, axis=1, keepdims=True) - x) @ v
    drift = g.sum(x - g.mean(x, axis=1, keepdims=True), axis=1)
    for outputs, law, inputs in (
        (lowest, "lowest", (array, values)),
        (drift, "drift", (array,)),
    ):
        known = "sum_of_deviations"  # without a carry
        rules = tuple(rule for rule in streaming(law) if rule.name != known)
        expected = evaluate([outputs], dict(zip("xv", inputs, strict=False)))[0]
        for program in (on_cpu(outputs, rules), on_oracle(outputs, rules)):
            assert carried(program.kernels[0]) == {law}
            np.testing.assert_allclose(program(*inputs), expected, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_numbers_of_a_law_are_those_of_the_dtype(dtype: str) -> None:
    x = g.input("x", (3, 900), dtype)
    array = RNG.normal(size=x.shape).astype(dtype)
    outputs = g.sum(g.exp((x - g.max(x, axis=1, keepdims=True)) * 0.7), axis=1)
    program = on_oracle(outputs, streaming("tilted"))
    assert carried(program.kernels[0]) == {"tilted"}
    expected = np.exp(0.7 * (array - array.max(1, keepdims=True))).sum(1)
    np.testing.assert_allclose(program(array), expected, rtol=1e-5)


# --- laws that do not hold ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "more", "message"),
    [
        (
            (lambda s, p: g.exp(s - p), lambda p, q: g.exp(q - p)),
            {},
            "law wrong does not hold: of the points NUMBERS the total is NUMBER at the pivot "
            "NUMBER; carried to the pivot NUMBER it is NUMBER, computed there NUMBER. Check",
        ),
        (
            (lambda s, p: g.square(s - p),),
            {"pivot": "mean", "shift": lambda p, q: g.abs(p - q)},
            "does not hold",
        ),
        ((lambda s, p: g.exp(p - s), lambda p, q: g.exp(q - p)), {}, r"must lie in \[0, 1\]"),
        ((lambda s, p: g.exp(s - p),), {"monoid": "prod"}, "monoid 'prod' is none of sum, min"),
        ((lambda s, p: g.exp(s - p),), {"monoid": "min"}, "numbers; a min takes conditions"),
        ((lambda s, p: g.equal(s, p),), {}, "conditions; a sum takes numbers"),
        (
            (lambda s, p: s - p,),
            {"shift": lambda p, q: p - q},
            "a shift goes with pivot='mean', and with it alone",
        ),
        (
            (lambda s, p: g.exp(s - p), lambda p, q: g.exp(p - q)),
            {"identity": 0.0},
            "count as 0 at the pivot NUMBER, as its identity is 0; that of NUMBER there is NUMBER.",
        ),
        ((lambda s, p: g.exp(s - p),), {"pivot": "median"}, "'median' is none of max, min, mean"),
        ((lambda s, p: s, lambda p, q: q), {}, "its weight computes nothing; leave it out"),
        (
            (lambda s, p: g.sum(g.broadcast_to(s, (2,))) - p,),
            {},
            "applies reduce_sum; use elementwise functions",
        ),
        (
            (lambda s, p: g.exp(s - p), lambda p, q: g.exp(p - q)),
            {"domain": "prime"},
            "domain 'prime' is none of",
        ),
    ],
)
def test_a_law_that_does_not_hold_is_refused_with_numbers(arguments, more, message) -> None:
    message = message.replace("NUMBERS", r"[-+.,\w ]+").replace("NUMBER", r"[-+.\w]+")
    with pytest.raises(RuleError, match=message):
        carry_law("wrong", *arguments, **more)


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ((lambda s, p: 1.0,), r"its weight gives a value of type float\. .* lambda s, p: exp\("),
        ((g.exp,), r"its weight: too many positional arguments\. Give a function of tensors"),
        ((3,), r"its weight is of type int, no function\. Give"),
        ((lambda s, p: g.exp(s - p), lambda p, q: None), "its rescale gives a value of type None"),
        ((lambda s, p: g.exp(s - p), lambda p: p), r"its rescale: too many .* lambda p, q: exp\("),
    ],
)
def test_what_is_no_function_of_tensors_is_refused(functions, message) -> None:
    with pytest.raises(RuleError, match=f"carry law wrong: {message}"):
        carry_law("wrong", *functions)


@pytest.mark.parametrize(
    ("laws", "message"),
    [
        ([3], "got a value of type int. Give a list of what carry_law makes"),
        (BASE_3, r"got base_3 by itself\. Give a list"),
        (carry_rules([BASE_3]), "got a value of type Rule"),
        (3, "got a value of type int"),
    ],
)
def test_what_is_no_list_of_laws_is_refused(laws, message) -> None:
    with pytest.raises(RuleError, match=f"carry_rules takes carry laws; {message}"):
        carry_rules(laws)


def test_two_laws_of_one_name_are_refused() -> None:
    with pytest.raises(RuleError, match="two carry laws are named softmax; rename one of them"):
        carry_rules((SOFTMAX, replace(BASE_3, name="softmax")))
    assert len(carry_rules((SOFTMAX, SOFTMAX))) == 2
