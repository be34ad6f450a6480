"""What masks leave of the chunks of a stream: as prices take it, and as kernels run."""

import math

import numpy as np
import pytest
from terms import Terms, add, mul, sub, universe

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.driver import plan
from eqsat.graph import index
from eqsat.graph.dtypes import as_dtype
from eqsat.graph.index import add as add_index
from eqsat.graph.index import row_major, scale
from eqsat.kernel.idle_chunks import live_bounds
from eqsat.kernel.ir import Guard
from eqsat.price.live_share import live_share
from eqsat.price.pricer import Pricer
from eqsat.schedule.menu import chunks
from eqsat.specs import load
from eqsat.terms.algebra import Facts, Read, Term
from eqsat.terms.form import Form, Stored, form

pytestmark = pytest.mark.usefixtures("shared_search")

H200 = load("h200")
ROWS, COLUMNS = 256, 512
T = Terms(universe(ROWS, COLUMNS, 64, 2))
FACTS = Facts(T.universe)


def at(name: str, shift: int = 0) -> Term:
    return add(T.place(name), T.number(shift, "int64"))


def attention(mask: Term, other: float = -np.inf) -> Term:
    """sum_j exp(s - max_j s) v, s = where(mask, score, other)"""
    s = Term("where", mask, T.read("s", "ij"), T.number(other))
    weights = Term("exp", sub(s, T.max("j", s)))
    return T.sum("j", mul(weights, T.read("v", "jk")))


def made(term: Term, names: str = "ik") -> Form:
    return form([Stored("y", term, tuple(names), as_dtype("float32"))], FACTS)


CAUSAL = Term("greater_equal", at("i", COLUMNS - ROWS), at("j"))
NEAR = Term("less", at("i", 192), at("j", 128))
MASKS = {
    "causal": CAUSAL,
    "window": Term("logical_and", CAUSAL, NEAR),
    "first": Term("less", at("j"), T.number(128, "int64")),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_leave_a_part_of_the_chunks(name):
    i, j = np.ogrid[:ROWS, :COLUMNS]
    wanted = {
        "causal": (i + 256 >= j).mean(),
        "window": ((i + 256 >= j) & (i + 192 < j + 128)).mean(),
        "first": 0.25,
    }[name]
    found = live_share(made(attention(MASKS[name])), T.mask("j"))
    assert found.stream == T.mask("j")
    assert found.share == pytest.approx(wanted, abs=0.02)


def test_what_a_mask_does_not_make_zero_is_whole():
    summed = mul(T.sum("j", T.read("s", "ij")), attention(CAUSAL))
    written = Term("exp", Term("where", CAUSAL, T.read("s", "ij"), T.number(-np.inf)))
    for term, names in (
        (attention(CAUSAL, 0.0), "ik"),
        (attention(Term("greater", T.read("m", "ij"), T.number(0))), "ik"),
        (summed, "ik"),
        (written, "ij"),
    ):
        assert live_share(made(term, names), T.mask("j")).share == 1.0


ZERO = T.number(0)
BELOW = Term("greater_equal", at("i"), Term("position", scale(index.var("k"), 4)))


def triangle(*conditions: Term, other: Term | None = None) -> Term:
    """where(all conditions, sum_k s v, other)"""
    product = T.sum("j", mul(T.read("s", "ij"), T.read("v", "jk")))
    mask = conditions[0]
    for one in conditions[1:]:
        mask = Term("logical_and", mask, one)
    return Term("where", mask, product, other or T.number(0.0))


def test_sums_of_which_a_mask_stores_none_are_left_out():
    """Whatever is stored in place of them, and however the mask is joined with others."""
    read = Term("greater", T.read("m", "ik"), ZERO)
    for one in (triangle(BELOW), triangle(read, BELOW), triangle(BELOW, other=T.read("m", "ik"))):
        found = live_share(made(one), T.mask("j"))
        assert found.stream == T.mask("j")
        assert found.share == found.stored == pytest.approx(0.5, abs=0.02)
    assert live_share(made(attention(CAUSAL)), T.mask("j")).stored == 1  # each has some chunks


def test_rounds_are_of_tiles_that_are_stored():
    """528 of 1024 tiles of 128 x 128 are four whole rounds of 132; of 272 of 512 the last has 8."""
    x = g.input("x", (4096, 4096), "bfloat16")
    (launch,) = plan(g.tril(x @ x.mT), H200, cache=Cache(None)).parts.launches
    assert [axis.tile for axis in launch.kernel.grid] == [128, 128]


def test_sums_that_are_stored_elsewhere_are_whole():
    product = triangle(BELOW).children[1]
    beside = add(triangle(BELOW), product)
    instead = Term("where", BELOW, T.number(0.0), product)
    either = triangle(Term("logical_or", BELOW, Term("greater", T.read("m", "ik"), ZERO)))
    for one in (beside, either, triangle(BELOW, other=product)):
        assert live_share(made(one), T.mask("j")).share == 1.0
    assert live_share(made(instead), T.mask("j")).share == 1.0
    other = Stored("z", product, ("i", "k"), as_dtype("float32"))
    both = form([*made(triangle(BELOW)).stored, other], FACTS)
    assert live_share(both, T.mask("j")).share == 1.0


def test_tiles_that_a_triangle_has_nothing_of_are_left_out():
    """Of a product with itself; where factors are triangles too, of chunks of the rest some."""
    x = g.input("x", (4096, 4096), "bfloat16")
    for product in (g.tril(x @ x.mT), g.triu(g.triu(x) @ g.triu(x))):
        *_, launch = plan(product, H200, cache=Cache(None)).parts.launches
        (stream,) = (phase for phase in launch.kernel.phases if phase.stream)
        moving = [{*index.free_names(one)} for one in live_bounds(launch.kernel, stream)]
        assert {axis.name for axis in launch.kernel.grid} in moving


def test_a_masked_stream_costs_what_is_left_of_it():
    pricer = Pricer(H200, frozenset(o.invocation_name for o in H200.operations))

    def seconds(mask: Term) -> float:
        wide = Terms(universe(1 << 14, 1 << 14, 64, 2))
        s = Term("where", mask, wide.read("s", "ij"), wide.number(-np.inf))
        weights = Term("exp", sub(s, wide.max("j", s)))
        one = form(
            [Stored("y", wide.sum("j", weights), ("i",), as_dtype("float32"))], Facts(wide.universe)
        )
        return float(pricer.price(one, chunks(one)).parts["special_f32"].min())

    place = Terms(universe(1 << 14, 1 << 14, 64, 2)).place
    causal = Term("greater_equal", place("i"), place("j"))
    every = Term("greater_equal", place("i"), T.number(0, "int64"))
    assert seconds(causal) == pytest.approx(seconds(every) / 2, rel=0.05)


def test_what_guards_keep_is_what_is_read():
    pricer = Pricer(H200, frozenset(o.invocation_name for o in H200.operations))
    wide = universe(1 << 14, 1 << 14, 2, 2)

    def bytes_read(*guards: Guard) -> float:
        read = Read("x", as_dtype("float32"), row_major(("i", "j"), wide.extents), guards)
        total = Term("reduce_sum", wide.mask("j"), Term("read", read))
        one = form([Stored("y", total, ("i",), as_dtype("float32"))], Facts(wide))
        return float(pricer.price(one, chunks(one)).parts["dram"].min())

    every, quarter = bytes_read(), Guard(add_index(index.var("j"), index.const(-4096)), 0, 4096)
    assert bytes_read(quarter) == pytest.approx(every / 4, rel=0.01)
    back = Guard(scale(index.var("j"), -2), -4094, 1 << 14)
    assert bytes_read(back) == pytest.approx(every / 8, rel=0.01)


LONG = 4096
ROW, COLUMN = g.expand_dims(g.arange(LONG), 1), g.arange(LONG)
WRITTEN = {
    "both": lambda s: g.where((COLUMN <= ROW) & (COLUMN > ROW - 128), s, -np.inf),
    "in-place-of-others": lambda s: g.where(COLUMN > ROW, -np.inf, s),
    "negated": lambda s: g.where(~(COLUMN <= ROW), -np.inf, s),
    "either": lambda s: g.where((COLUMN > ROW) | (COLUMN < ROW - 127), -np.inf, s),
    "added": lambda s: s + g.where(COLUMN <= ROW, 0.0, -np.inf),
    "distance": lambda s: g.where(g.abs(ROW - COLUMN) < 128, s, -np.inf),
    "lower-triangle": lambda s: g.where(g.tril(g.ones(s.shape, "bool")), s, -np.inf),
    "upper-triangle": lambda s: g.where(g.triu(g.ones(s.shape, "bool"), 1), -np.inf, s),
    "ones-and-zeros": lambda s: g.where(g.tril(g.ones(s.shape)) == 0, -np.inf, s),
    "rest-of-ones": lambda s: g.where(1 - g.tril(g.ones(s.shape)) > 0, -np.inf, s),
}


OFTEN = ("both", "added", "negated", "either", "lower-triangle")


@pytest.mark.parametrize(
    "name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in WRITTEN]
)
def test_chunks_are_left_out_however_a_mask_is_written(name):
    total = g.logsumexp(WRITTEN[name](g.input("s", (LONG, LONG))), axis=1)
    (launch,) = plan(total, H200, cache=Cache(None)).parts.launches
    (stream,) = (phase for phase in launch.kernel.phases if phase.stream)
    assert len(live_bounds(launch.kernel, stream)) == 1 + (name in ("both", "either", "distance"))


@pytest.mark.slow  # tests/engine/test_mask_fills.py plans one
@pytest.mark.parametrize("name", WRITTEN)
def test_attention_leaves_chunks_out(name):
    q, k, v = (g.input(name, (2, 2, LONG, 64), "bfloat16") for name in "qkv")
    scores = g.astype(q, "float32") @ g.astype(k.mT, "float32")
    weights = g.astype(g.softmax(WRITTEN[name](scores)), "bfloat16")
    (launch,) = plan(weights @ v, H200, cache=Cache(None)).parts.launches
    (stream,) = (phase for phase in launch.kernel.phases if phase.stream)
    assert len(live_bounds(launch.kernel, stream)) == 1 + (name in ("both", "either", "distance"))


@pytest.mark.parametrize("last", [True, False])
def test_tiles_with_more_chunks_come_first(last):
    """Those of the last rows, or, where a mask leaves the upper triangle, of the first."""
    q, k, v = (g.input(name, (16, 2048, 64), "bfloat16") for name in "qkv")
    lower = g.tril(g.ones((2048, 2048), "bool"))
    scores = g.where(lower if last else lower.T, g.astype(q @ k.mT, "float32"), -np.inf)
    (launch,) = plan(
        g.astype(g.exp(scores), "bfloat16") @ v, H200, cache=Cache(None)
    ).parts.launches
    assert launch.kernel.uneven and launch.kernel.backwards == last
    assert launch.kernel.band > 1


def test_heads_that_share_keys_leave_tiles_in_their_order():
    """Tiles of two heads and some rows: none of what a tile reads besides lies along the heads."""
    q = g.input("q", (4, 32, 2048, 128), "bfloat16")
    k, v = (g.input(name, (4, 8, 2048, 128), "bfloat16") for name in "kv")
    (launch,) = plan(g.attention(q, k, v, causal=True), H200, cache=Cache(None)).parts.launches
    kernel = launch.kernel
    assert kernel.uneven and kernel.backwards and len(kernel.cut) == 3
    (stream,) = (phase for phase in kernel.phases if phase.stream)
    assert [axis.tile for axis in stream.stream] == [128]  # shorter ones begin too often
    assert kernel.cut[-1].extent == 2048
    others, rows = math.prod(axis.count for axis in kernel.cut[:-1]), kernel.cut[-1]
    chunks = [
        math.ceil((last + 1) * rows.tile / 128)
        for first in range(0, others, kernel.band)
        for last in reversed(range(rows.count))
        for _ in range(min(kernel.band, others - first))
    ]
    taken = np.zeros(H200.processors)
    for number, count in enumerate(chunks):
        turn, place = divmod(number, H200.processors)
        taken[place if turn % 2 == 0 else -1 - place] += count
    assert taken.max() < 1.04 * taken.mean()  # of bands as wide as the cache 1.046


def test_masks_of_many_names_take_no_memory_for_all_their_places() -> None:
    """The mean of windows of three axes, padding left out: six names."""
    x = g.input("x", (4, 16, 33, 34, 35), "float16")
    y = g.avg_pool(x, (3, 5, 3), stride=2, padding=(1, 2, 1), count_padding=False)
    assert plan([y], H200, cache=Cache(None)).parts.launches
