"""Finite numbers with which masks fill scores of a softmax, where -inf does as well."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from fast_products import H200

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.driver import plan
from eqsat.encode.encoding import encode
from eqsat.graph.tensor import Tensor
from eqsat.segment.fold import settle
from eqsat.segment.segments import partition
from eqsat.solve import leaf_names
from eqsat.terms.algebra import Term, post_order

pytestmark = pytest.mark.usefixtures("shared_search")
N = 24
FILL = -1e9


def fills(result: Tensor) -> set[float]:
    """The numbers below all scores among the terms of a result."""
    terms: list[Term] = []
    for segment in partition(settle([result])):
        encoding = encode(segment.tensors, segment.stored, leaf_names(segment))
        terms += post_order(output.term for output in encoding.outputs)
    numbers = [float(t.args[0]) for t in terms if t.op == "literal"]  # type: ignore[arg-type]
    return {number for number in numbers if number < -1000}


def scores(dtype: str = "float32") -> Tensor:
    return g.input("x", (3, N, 8), dtype) @ g.input("w", (8, N), dtype)


def places() -> tuple[Tensor, Tensor]:
    i = g.arange(N)
    return i[:, None], i[None, :]


def documents() -> Tensor:
    d = g.input("d", (3, N), "int32")
    return d[:, :, None] == d[:, None, :]


i, j = places()
KEPT: dict[str, Callable[[], Tensor]] = {
    "causal": lambda: i >= j,
    "turned": lambda: j <= i,
    "not above": lambda: g.logical_not(j > i),
    "window": lambda: g.logical_and(i - j >= 0, i - j < 5),
    "band": lambda: g.abs(i - j) < 3,
    "shifted": lambda: j <= i + 4,
    "prefix": lambda: g.logical_or(i >= j, j < 7),
    "documents": lambda: g.logical_and(documents(), i >= j),
    "not outside": lambda: g.logical_not(g.logical_or(j > i, j <= i - 5)),
    "first": lambda: j * 1 <= 0 * i,
    "numbers": lambda: g.tril(g.ones((N, N))) != 0,
}
EMPTY: dict[str, Callable[[], Tensor]] = {  # some row keeps nothing, or may
    "strictly": lambda: i > j,
    "strictly above": lambda: i < j,
    "lengths": lambda: j < g.input("n", (3, 1, 1), "int32"),
    "other documents": lambda: g.logical_and(documents(), i > j),
    "before": lambda: j <= i - 2,
    "wrapping": lambda: g.astype(i, "int32") + (2**31 - 8) > g.astype(j, "int32") - 5,
    "values": lambda: g.input("m", (N, N), "bool"),
}
WAYS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "where": lambda s, c: g.softmax(g.where(c, s, FILL)),
    "turned": lambda s, c: g.softmax(g.where(g.logical_not(c), FILL, s)),
    "added": lambda s, c: g.softmax(s + g.where(c, 0.0, FILL)),
    "scaled": lambda s, c: g.softmax((1.0 - g.astype(c, "float32")) * FILL + s),
    "divided": lambda s, c: g.softmax(s - (1 - g.where(c, 1.0, 0.0)) / 1e-9),
    "by hand": lambda s, c: by_hand(g.where(c, s, FILL)),
}


def by_hand(x: Tensor) -> Tensor:
    e = g.exp(x - g.max(x, axis=-1, keepdims=True))
    return e / g.sum(e, axis=-1, keepdims=True)


@pytest.mark.parametrize("name", KEPT)
def test_where_each_row_keeps_one_the_fill_is_infinite(name):
    assert fills(g.softmax(g.where(KEPT[name](), scores(), FILL))) == {-math.inf}


@pytest.mark.parametrize("name", EMPTY)
def test_where_a_row_may_keep_none_the_fill_stays(name):
    assert fills(g.softmax(g.where(EMPTY[name](), scores(), FILL))) == {np.float32(FILL)}


@pytest.mark.parametrize("way", WAYS)
def test_however_it_is_written(way):
    result = WAYS[way](scores(), KEPT["causal"]())
    assert -math.inf in fills(result)
    random = np.random.default_rng(3)
    x, w = (random.standard_normal(shape).astype(np.float32) for shape in ((3, N, 8), (8, N)))
    (with_number,) = g.evaluate([result], {"x": x, "w": w})
    masked = np.where(np.arange(N)[:, None] >= np.arange(N), x @ w, -np.inf)
    e = np.exp(masked - masked.max(-1, keepdims=True))
    np.testing.assert_allclose(with_number, e / e.sum(-1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_of_16_bits_too(dtype):
    assert fills(g.softmax(g.where(i >= j, scores(dtype), -6e4))) == {-math.inf}


@pytest.mark.parametrize(
    "other",
    [
        lambda w: g.log_softmax(w),  # what is stored says how far below a score lies
        lambda w: g.softmax(w) + w,
        lambda w: g.exp(w - g.max(w, axis=0, keepdims=True)) * g.max(w, axis=1, keepdims=True),
        lambda w: g.sum(w, axis=-1),
    ],
)
def test_what_is_read_otherwise_keeps_its_number(other):
    assert -math.inf not in fills(other(g.where(i >= j, scores(), FILL)))


@pytest.mark.parametrize(
    "score",
    [
        lambda: g.input("s", (3, N, N)),
        lambda: scores() + g.input("padding", (3, 1, N)),  # -inf where there is nothing
        lambda: scores() - g.input("row", (3, N, 1)),
        lambda: g.input("s", (3, N, N)) * 0.5,
    ],
)
def test_scores_that_may_lie_as_low_keep_the_number(score):
    assert fills(g.softmax(g.where(i >= j, score(), FILL))) == {np.float32(FILL)}


@pytest.mark.parametrize(
    "score",
    [
        lambda: 30 * g.tanh(scores() / 30),
        lambda: scores() - 0.5 * g.astype(g.abs(i - j), "float32"),
        lambda: scores() * g.input("temperature", ()),
    ],
)
def test_scores_made_of_products_do_not(score):
    assert fills(g.softmax(g.where(i >= j, score(), FILL))) == {-math.inf}


def test_numbers_that_scores_may_reach_stay():
    assert fills(g.softmax(g.where(i >= j, scores(), -1e4))) == {-1e4}


def test_chunks_that_such_a_mask_leaves_out_are_not_computed():
    q, k, v = (g.input(name, (2, 16, 4096, 64), "bfloat16") for name in "qkv")
    at = g.arange(4096)
    apart = at[:, None] - at[None, :]
    kept = g.logical_and(apart >= 0, apart < 256)
    s = q @ g.matrix_transpose(k) * 0.125
    store = Cache(None)  # of equal programs one is planned
    costs = [
        sum(launch.seconds for launch in plan(masked @ v, H200, cache=store).parts.launches)
        for masked in (
            g.softmax(g.where(kept, s, FILL)),
            g.softmax(g.where(kept, s, -math.inf)),
            g.softmax(s),
        )
    ]
    assert costs[0] == costs[1] < costs[2] / 4
