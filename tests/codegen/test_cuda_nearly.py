"""Instructions for values that are rounded to 16 bits in the end, and for no others."""

import math
import re

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.place.nearly import NEARLY
from eqsat.driver import compile, plan
from eqsat.graph.tensor import Tensor
from eqsat.specs import from_device, load

pytestmark = pytest.mark.usefixtures("shared_search")
SPEC = load("h200")
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3e38, -2e38, 1], np.float32)


def short(y: Tensor) -> set[str]:
    """The instructions of a program's only kernel that are exact enough for 16 bits."""
    (launch,) = plan([y], SPEC, cache=Cache(None)).parts.launches
    text = emit(launch.kernel, {one.name: one for one in SPEC.operations}).text
    return {name for name in NEARLY.values() if f" = {name}(" in text}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_is_rounded_takes_short_instructions(dtype: str) -> None:
    x = g.input("x", (4096, 4096), dtype)
    assert short(g.silu(x)) == {"exp_nearly", "divide_nearly"}
    assert short(g.sigmoid(x)) == {"exp_nearly", "reciprocal_nearly"}


def test_a_float32_keeps_its_last_bits() -> None:
    x = g.input("x", (4096, 4096), "float32")
    assert not short(g.silu(x))


def test_what_cancels_is_exact_before() -> None:
    """exp(x) - 1 of a small x has few bits of exp(x) left."""
    x = g.input("x", (4096, 4096), "float32")
    assert not short(g.astype(g.exp(x) - 1.0, "bfloat16"))
    assert short(g.astype(g.exp(x) + 1.0, "bfloat16")) == {"exp_nearly"}
    assert not short(g.astype(g.exp(x) + x, "bfloat16"))


def test_a_power_about_a_number_of_its_row_is_one_multiply_add() -> None:
    """Of what a product leaves, which its sum has rounded: not of what lies in memory."""
    q, k, v = (g.astype(g.input(n, (8, 1024, 64), "bfloat16"), "float32") for n in "qkv")
    top, x = g.input("m", (8, 1024, 1), "float32"), g.input("x", (8, 1024, 1024), "float32")

    def text(scores: Tensor) -> str:
        weights = g.astype(g.exp(scores - top), "bfloat16")
        result = g.astype(weights @ g.astype(v, "bfloat16"), "bfloat16")
        launches = plan([result], SPEC, cache=Cache(None)).parts.launches
        operations = {one.name: one for one in SPEC.operations}
        return "".join(emit(launch.kernel, operations).text for launch in launches)

    scores = q @ g.matrix_transpose(k) * 0.125
    assert re.search(r"exp_from\(v_v\w+\[.*0\.18033688011112042f", text(scores))
    place = g.arange(1024)
    masked = g.where(place[:, None] >= place, scores, -math.inf)
    assert re.search(r"exp_from\(\(.* \? v_v\w+\[.*0\.18033688011112042f", text(masked))
    assert "exp_from" not in text(x)


def test_a_value_of_which_a_float32_is_stored_too_is_exact() -> None:
    x = g.input("x", (4096, 4096), "float32")
    y = g.exp(x)
    planned = plan([y, g.astype(y, "bfloat16")], SPEC, cache=Cache(None))
    operations = {one.name: one for one in SPEC.operations}
    texts = [emit(launch.kernel, operations).text for launch in planned.parts.launches]
    assert not any("exp_nearly" in text for text in texts)


def test_the_error_is_small_beside_that_of_the_rounding() -> None:
    """The product with log2(e) is rounded to float32: up to 2^-17 of the result."""
    x = np.linspace(-88, 88, 200001).astype(np.float32)
    near = np.exp2((x * np.float32(1.4426950408889634)).astype(np.float64))
    off = np.abs(near / np.exp(x.astype(np.float64)) - 1)
    assert 2.0**-19 < off.max() < 2.0**-17


@pytest.mark.gpu
def test_reciprocals_are_off_by_a_unit_at_the_most() -> None:
    """Of any float32: what overflows, vanishes or is not finite too."""
    bits = np.random.default_rng(3).integers(0, 2**32, 1 << 20, dtype=np.uint32)
    values = np.concatenate([bits.view(np.float32), SPECIAL])
    x = g.input("x", values.shape)
    found = compile(g.reciprocal(x), from_device(), cache=Cache(None))(values)
    with np.errstate(all="ignore"):
        wanted = np.reciprocal(values)
    plain = np.isfinite(wanted)
    np.testing.assert_array_equal(found[~plain], wanted[~plain])
    units = found[plain].view(np.int32).astype(np.int64) - wanted[plain].view(np.int32)
    assert np.abs(units).max() <= 1 and np.mean(units != 0) < 1e-3


def test_what_divides_one_is_a_reciprocal() -> None:
    x = g.input("x", (4096, 4096))
    for y in (1.0 / x, g.reciprocal(x), g.sigmoid(x)):
        (launch,) = plan([y], SPEC, cache=Cache(None)).parts.launches
        text = emit(launch.kernel).text
        assert " / v" not in text and text.count("reciprocal(") > 1
