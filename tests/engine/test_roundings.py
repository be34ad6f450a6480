"""Roundings between operations of 16-bit floats: dropped where nobody asked for them."""

import numpy as np
import pytest

import eqsat
from eqsat import compile
from eqsat import graph as g
from eqsat.cache.store import Cache
from eqsat.driver import plan
from eqsat.encode.encoding import encode
from eqsat.graph.evaluate import evaluate, topological
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Map
from eqsat.segment.segments import partition
from eqsat.solve import leaf_names
from eqsat.specs import load
from eqsat.terms.algebra import post_order

pytestmark = pytest.mark.usefixtures("shared_search")

Sizes = dict[str, tuple[int, ...]]
NARROW = ("bfloat16", "float16")
H200 = load("h200")
SIZES = {"q": (2, 48, 16), "k": (2, 40, 16), "v": (2, 40, 16)}
WIDE = {"q": (64, 512, 64), "k": (64, 256, 64), "v": (64, 256, 64)}


def factors(dtype: str, sizes: Sizes = SIZES) -> list[Tensor]:
    return [eqsat.input(name, shape, dtype) for name, shape in sizes.items()]


def plain(dtype: str, sizes: Sizes = SIZES) -> Tensor:
    q, k, v = factors(dtype, sizes)
    return g.softmax((q @ k.mT) * 0.25) @ v


def in_primitives(dtype: str, sizes: Sizes = SIZES) -> Tensor:
    q, k, v = factors(dtype, sizes)
    scores = (q @ k.mT) * 0.25
    weights = g.exp(scores - g.max(scores, -1, keepdims=True))
    return (weights / g.sum(weights, -1, keepdims=True)) @ v


def capped(dtype: str, sizes: Sizes = SIZES) -> Tensor:
    q, k, v = factors(dtype, sizes)
    return g.softmax(g.tanh((q @ k.mT) / 5.0) * 5.0) @ v


def sloped(dtype: str, sizes: Sizes = SIZES) -> Tensor:
    q, k, v = factors(dtype, sizes)
    far = g.astype(g.arange(k.shape[1]), dtype) * -0.125
    return g.softmax((q @ k.mT) * 0.25 + far) @ v


def masked(dtype: str, sizes: Sizes = SIZES) -> Tensor:
    q, k, v = factors(dtype, sizes)
    reach = g.expand_dims(g.arange(q.shape[1]), 1) >= g.arange(k.shape[1])
    return g.softmax(g.where(reach, (q @ k.mT) * 0.25, -np.inf)) @ v


def summed(dtype: str) -> Tensor:
    q, k, _ = factors(dtype)
    logits = q @ k.mT
    return g.log(g.sum(g.exp(logits - g.max(logits, -1, keepdims=True)), -1))


def normed(dtype: str) -> Tensor:
    q, k, _ = factors(dtype)
    y = q @ k.mT
    centred = y - g.mean(y, -1, keepdims=True)
    return centred * g.rsqrt(g.mean(centred * centred, -1, keepdims=True) + 1e-2)


PROGRAMS = (plain, in_primitives, capped, sloped, masked, summed, normed)


def roundings(output: Tensor) -> int:
    """Roundings of the program's terms that a kernel need not do."""
    found = 0
    for segment in partition([output]):
        outputs = encode(segment.tensors, segment.stored, leaf_names(segment)).outputs
        terms = post_order(one.term for one in outputs)
        found += sum(term.op == "rounded" for term in terms)
    return found


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {name: rng.standard_normal(shape) for name, shape in SIZES.items()}


def named(output: Tensor) -> set[str]:
    return {t.attributes["name"] for t in topological([output]) if t.op == "input"}


SLOW = pytest.mark.slow


SELDOM = (in_primitives, capped)  # what becomes of them is what becomes of `plain` and `sloped`


@pytest.mark.parametrize(  # by default each other program in one dtype, by turns
    ("program", "dtype"),
    [
        pytest.param(program, dtype, marks=SLOW if (n + at) % 2 or program in SELDOM else ())
        for n, program in enumerate(PROGRAMS)
        for at, dtype in enumerate(NARROW)
    ],
)
def test_results_are_no_worse_than_with_every_rounding(program, dtype):
    output = program(dtype)
    assert roundings(output)
    used, narrow = named(output), eqsat.as_dtype(dtype).numpy
    given = {name: x.astype(narrow) for name, x in arrays().items() if name in used}
    (exact,) = evaluate([output], given, float_dtype=np.float64)
    (written,) = evaluate([output], given)
    found = compile(output, "cpu", cache=Cache(None))(**given)
    errors = [np.abs(x.astype(np.float64) - exact).max() for x in (found, written)]
    unit = np.abs(exact).max() * g.finfo(dtype).eps
    assert errors[0] <= errors[1] + unit / 2


@pytest.mark.parametrize(
    ("program", "dtype"),
    [
        (plain, "float16"),
        *(pytest.param(f, "bfloat16", marks=SLOW) for f in (in_primitives, capped, sloped, masked)),
    ],
)
def test_attention_as_written_rounds_no_scores(program, dtype):
    kernels = [
        one.kernel for one in plan(program(dtype, WIDE), H200, cache=Cache(None)).parts.launches
    ]
    assert len(kernels) == 1
    casts = [s for s in kernels[0].statements() if isinstance(s, Map) and s.op == "cast"]
    narrowed = [s for s in casts if s.dtype.name == dtype and len(s.indices) > 2]
    assert len(narrowed) == 2  # the weights, factors of a product, and what is stored


def logits() -> Tensor:
    q, k, _ = factors("bfloat16")
    return q @ k.mT


def test_roundings_that_were_asked_for_stay():
    y = logits()
    wide = g.astype(y, "float32")
    assert roundings(g.sum(wide, -1)) == 1
    x = eqsat.input("x", (8, 40), "float32")
    written = g.astype(g.astype(x, "bfloat16"), "float32")
    assert not roundings(g.sum(x - written, -1))
    assert not roundings(g.argmax(wide, -1))
    assert not roundings(g.sum(g.floor(wide), -1))
    assert not roundings(g.sum(g.astype(wide, "int32"), -1))
    assert not roundings(g.sum(g.where(g.isfinite(wide), wide, 0.0), -1))
    assert not roundings(g.gelu(y))  # nothing is reduced
    assert not roundings(
        g.exp(x - g.astype(g.mean(g.astype(x, "bfloat16"), -1, keepdims=True), "float32"))
    )


def test_what_rounding_loses_is_what_was_asked_for():
    x = eqsat.input("x", (8, 40), "float32")
    lost = g.sum(g.abs(x - g.astype(g.astype(x, "bfloat16"), "float32")), -1)
    given = np.random.default_rng(0).standard_normal((8, 40)).astype("f")
    expected = np.abs(given - given.astype(eqsat.bfloat16.numpy).astype("f")).sum(-1)
    np.testing.assert_allclose(compile(lost, "cpu", cache=Cache(None))(given), expected, rtol=1e-5)


def test_exact_rounds_as_written():
    output = plain("bfloat16")
    given = {name: x.astype(eqsat.bfloat16.numpy) for name, x in arrays().items()}
    (written,) = evaluate([output], given)
    found = compile(output, "cpu", cache=Cache(None), precision="exact")(**given)
    differ = np.abs(found.astype("d") - written.astype("d")).max()
    assert differ <= np.abs(written.astype("d")).max() * 2**-8
