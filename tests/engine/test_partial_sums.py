"""Sums that an operation keeps in few bits: how accurate their parts are, where they serve."""

import json

import numpy as np
import pytest
from terms import Terms, add, exp, mul, universe
from test_narrow import normal, positive

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.driver import plan
from eqsat.explain.explanation import from_json, to_json
from eqsat.explain.replay import check
from eqsat.graph.dtypes import BY_NAME, is_held
from eqsat.kernel.ir import Contract
from eqsat.price.partial_sums import rounded
from eqsat.specs import load
from eqsat.terms.algebra import Facts, Term
from eqsat.terms.form import Stored, form

pytestmark = pytest.mark.usefixtures("shared_search")

H200 = load("h200")
OPERATION = H200.operation("wgmma_m64n128k32_f8_ss")
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"


# what the unit does, as measured (see specs/h200.toml)


def cut_to(x: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Rounded toward zero to multiples of a power of two."""
    return np.trunc(x / unit) * unit


def in_few_bits(a: np.ndarray, b: np.ndarray, length: int, bits: int = 14) -> np.ndarray:
    """a b, each product and what was summed before cut to so many bits of the largest, in parts of
    so many points that float32 adds up.
    """
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    step = OPERATION.extents["k"]
    for start in range(0, a.shape[1], length):
        part = np.zeros(total.shape)
        for first in range(start, min(start + length, a.shape[1]), step):
            at = slice(first, first + step)
            terms = a[:, at, None] * b[None, at, :]
            terms = np.concatenate([terms, part[:, None]], axis=1)
            largest = np.abs(terms).max(axis=1, keepdims=True)
            unit = 2.0 ** (np.floor(np.log2(np.maximum(largest, 1e-30))) - (bits - 1))
            part = cut_to(cut_to(terms, unit).sum(axis=1), unit[:, 0])
        total += part.astype(np.float32)
    return total


def error(data, length: int) -> float:
    """Of sums of 2048 products, relative to the root mean square of the sums."""
    a, b = (
        x.astype(BY_NAME[E4M3].numpy).astype(float) for x in data(np.random.default_rng(3), 2048)
    )
    exact = a @ b
    differs = in_few_bits(a, b, length) - exact
    return float(np.sqrt(np.mean(differs**2) / np.mean(exact**2)))


@pytest.mark.parametrize("data", [normal, positive], ids=lambda d: d.__name__)
def test_parts_of_a_sum_lose_less_than_rounding_to_bfloat16(data):
    assert OPERATION.partial_sum == 128
    rounding = 2.0**-9 / 3**0.5  # of bfloat16, root mean square at the worst
    assert error(data, OPERATION.partial_sum) < rounding
    assert error(data, 2048) > 4 * error(data, OPERATION.partial_sum)
    if data is positive:
        assert error(data, 2048) > 5 * rounding


def test_more_bits_make_longer_parts():
    lengths = {bits: more(bits).partial_sum for bits in (0, 12, 14, 16, 10)}
    assert lengths == {0: 0, 12: 32, 14: 128, 16: 512, 10: 32}


def more(bits: int):
    return H200.replace_operation(OPERATION.name, accumulator_bits=bits).operation(OPERATION.name)


# where they serve


def wide(x: g.Tensor) -> g.Tensor:
    return g.astype(x, "float32")


def factors(m=1024, n=1024, k=2048, kinds=(E4M3, E4M3)) -> tuple[g.Tensor, g.Tensor]:
    return g.input("a", (m, k), kinds[0]), g.input("b", (n, k), kinds[1])


def operations(out, **options) -> set[str]:
    """Names of the operations of a program's products."""
    planned = plan(out, options.pop("spec", H200), cache=Cache(None), **options)
    kernels = [launch.kernel for launch in planned.parts.launches]
    found = [s.operation for k in kernels for s in k.statements() if isinstance(s, Contract)]
    return {name.rpartition("_m")[2].partition("k")[2] for name in found}


EIGHT, SIXTEEN = {"32_f8_ss"}, {"16_bf16_ss"}
T = Terms(universe())
SUMS = T.sum(
    "j", mul(*(T.cast("float32", T.read(x, n, E4M3)) for x, n in (("a", "ij"), ("b", "jk"))))
)
BIASED = add(SUMS, T.read("c", "k"))
GELU = mul(SUMS, add(Term("erf", SUMS), T.number(1.0)))
FEW_BITS = {
    "scaled": [("bfloat16", mul(SUMS, T.read("s")))],
    "scaled rows and columns": [(E4M3, mul(SUMS, mul(T.read("r", "i"), T.read("c", "k"))))],
    "half": [("float16", SUMS)],
    "bias, gelu": [("bfloat16", GELU), ("bfloat16", BIASED)],
    "relu": [("bfloat16", Term("maximum", SUMS, T.number(0.0)))],
    "rounded before": [("float32", T.cast("float32", T.cast("bfloat16", SUMS)))],
    "of other factors": [("float32", T.sum("j", mul(T.read("x", "ij"), T.read("y", "jk"))))],
}
MANY = {
    "as they are": [("float32", SUMS)],
    "scaled": [("float32", mul(SUMS, T.read("s")))],
    "one of two": [("bfloat16", SUMS), ("float32", BIASED)],
    "exponential": [("bfloat16", exp(SUMS))],
    "below a product": [("float32", mul(BIASED, T.cast("float32", T.cast("bfloat16", SUMS))))],
    "compared": [("bfloat16", T.cast("float32", Term("greater", SUMS, T.number(0.0))))],
}


def is_rounded(stored: list[tuple[str, Term]]) -> bool:
    ones = [Stored(f"y{n}", t, ("i", "k"), BY_NAME[d]) for n, (d, t) in enumerate(stored)]
    return rounded(form(ones, Facts(T.universe)))


@pytest.mark.parametrize("name", FEW_BITS)
def test_what_is_stored_of_sums_has_few_bits(name):
    assert is_rounded(FEW_BITS[name])


@pytest.mark.parametrize("name", MANY)
def test_what_is_stored_of_sums_has_many_bits_or_shows_errors_large(name):
    assert not is_rounded(MANY[name])


@pytest.mark.slow
def test_plans_follow_what_is_stored():
    """Where it has many bits factors become bfloat16, which holds their every number: stored so, or
    on their way to the operation.
    """
    a, b = factors()
    product = wide(a) @ wide(b).T * g.input("r", (1024, 1), "float32")
    assert operations(g.astype(g.gelu(product), "bfloat16")) == EIGHT
    assert operations(product) <= {*SIXTEEN, "16_bf16_rs"}


@pytest.mark.slow
def test_products_stored_in_eight_bits_are_of_eight_bits():
    a, b = factors()
    product = wide(a) @ wide(b).T * g.input("r", (1024, 1), "float32")
    assert operations(g.astype(product, E5M2)) == EIGHT


@pytest.mark.slow
def test_precision_decides_what_else_may():
    a, b = factors()
    product = wide(a) @ wide(b).T
    assert operations(product, precision="tf32") == EIGHT
    rounded = g.astype(product, "bfloat16")
    assert operations(rounded, precision="exact") == SIXTEEN
    without = H200
    for one in H200.operations:
        if "_f8_" in one.name:
            without = without.without_operation(one.name)
    assert operations(rounded, spec=without) == SIXTEEN


@pytest.mark.slow
def test_both_formats_multiply_one_another():
    a, b = factors(kinds=(E5M2, E4M3))
    assert operations(g.astype(wide(a) @ wide(b).T, "bfloat16")) == EIGHT


@pytest.mark.slow
def test_a_factor_that_lies_across_the_sum_is_turned_first():
    a, b = g.input("a", (1024, 2048), E4M3), g.input("b", (2048, 1024), E4M3)
    out = g.astype(wide(a) @ wide(b), "bfloat16")
    assert operations(out) == EIGHT
    assert len(plan(out, H200, cache=Cache(None)).parts.launches) == 2


def test_wider_operations_serve_where_a_spec_has_none():
    """Also one factor of 8 bits beside one of 16."""
    a, b = factors()
    ampere = operations(g.astype(wide(a) @ wide(b).T, "bfloat16"), spec=load("a100"))
    assert len(ampere) == 1 and ampere <= {"16_bf16", "16_f16"}
    h = g.input("h", (1024, 2048), "bfloat16")
    assert operations(g.astype(wide(h) @ wide(b).T, "bfloat16")) <= {"16_bf16_ss", "16_bf16_rs"}
    assert operations(g.astype(wide(h) @ wide(b).T, "bfloat16"), spec=load("a100")) == {"16_bf16"}


@pytest.mark.slow
def test_an_explanation_holds():
    a, b = factors()
    for out in (g.astype(wide(a) @ wide(b).T, "bfloat16"), wide(a) @ wide(b).T):
        planned = plan(out, H200, cache=Cache(None))
        explanation = planned.explain()
        assert not explanation.notes
        rules = {
            step.rule
            for segment in explanation.segments
            for kernel in segment.kernels
            for step in kernel.trace.steps
        }
        rounded = out.dtype.name == "bfloat16"
        kind = "substitute_where_rounded" if rounded else "widen_ahead"
        assert any(rule.startswith(kind) for rule in rules)
        again = from_json(json.loads(json.dumps(to_json(explanation))))
        check(again, planned.segments, planned.search.rules, H200)


def test_what_a_float_holds():
    pairs = {(a, b) for a in BY_NAME for b in BY_NAME if is_held(a, b)}
    assert {b for a, b in pairs if a == E4M3} == {"float16", "bfloat16", "float32", "float64"}
    assert {b for a, b in pairs if a == "float16"} == {"float32", "float64"}
    assert not {(E4M3, E5M2), ("bfloat16", "float16"), ("int8", "float16")} & pairs
    for narrow, held in pairs:
        if narrow in (E4M3, E5M2):
            every = np.arange(256, dtype=np.uint8).view(BY_NAME[narrow].numpy)
            there = every.astype(BY_NAME[held].numpy)
            np.testing.assert_array_equal(there.astype(np.float64), every.astype(np.float64))


def test_scores_of_eight_bits_where_precision_allows():
    """They are no longer than a part, so that they are summed as any others in one pass over keys;
    an exponential shows their few bits, so by default they have more.
    """
    q, k, v = (g.input(name, (8, 2048, 128), E4M3) for name in "qkv")
    weights = g.softmax(wide(q) @ g.matrix_transpose(wide(k)) * 0.09)
    out = g.astype(weights @ wide(v), "bfloat16")
    assert operations(out, precision="tf32") == {*EIGHT, "16_bf16_rs"}
    assert operations(out) == {*SIXTEEN, "16_bf16_rs"}
