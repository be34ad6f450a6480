"""What comparisons with positions select: gathers, and scatters of what depends on no position."""

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.driver import plan
from eqsat.graph import Tensor
from eqsat.graph.evaluate import topological
from eqsat.kernel.ir import Kernel
from eqsat.segment.fold import settle
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")
RNG = np.random.default_rng(8)
ROWS, SEGMENTS = 50, 12
IDS = g.input("i", (ROWS,), "int32")
POSITIONS = g.arange(SEGMENTS, dtype="int32")
HIT = g.equal(IDS[:, None], POSITIONS)
ARRAYS = {
    "i": RNG.integers(-2, SEGMENTS + 2, ROWS).astype(np.int32),
    "x": RNG.normal(size=ROWS),
    "rows": RNG.normal(size=(ROWS, 3)),
    "d": RNG.normal(size=SEGMENTS),
    "table": RNG.normal(size=(SEGMENTS, 3)),
    "scores": RNG.normal(size=(ROWS, SEGMENTS)),
}


def given(name: str) -> Tensor:
    return g.input(name, ARRAYS[name].shape, str(ARRAYS[name].dtype))


def settled(*outputs: Tensor) -> list[Tensor]:
    """As the search takes them; with the values that they had."""
    found = settle(outputs)
    pairs = zip(*(g.evaluate(o, ARRAYS, np.float64) for o in (outputs, found)), strict=True)
    for before, after in pairs:
        np.testing.assert_allclose(after, before, rtol=1e-12, atol=1e-12)
    return found


def ops(outputs: list[Tensor]) -> list[str]:
    return [tensor.op for tensor in topological(outputs)]


def largest(outputs: list[Tensor]) -> int:
    """Elements of the largest value that depends on data and is no view of a smaller one."""
    return max(t.size for t in topological(outputs) if t.op not in ("view", "iota", "constant"))


@pytest.mark.parametrize("name", ["segment_sum", "segment_max", "segment_min"])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_gradients_of_segments_keep_their_values(name: str, shape: tuple[int, ...]) -> None:
    x = given("rows" if shape else "x")
    settled(*g.grad(g.sum(g.square(getattr(g, name)(x * x, IDS, SEGMENTS))), [x]))


def test_the_gradient_of_a_sum_of_segments_is_a_gather() -> None:
    x = given("x")
    found = settled(*g.grad(g.segment_sum(x, IDS, SEGMENTS), [x], cotangent=given("d")))
    assert "gather" in ops(found) and largest(found) == ROWS


def test_a_one_hot_sum_over_a_table_is_a_gather() -> None:
    chosen = g.where(HIT[:, :, None], given("table")[None], 0.0)
    found = settled(g.sum(chosen, axis=1))
    assert "gather" in ops(found) and largest(found) == ROWS * 3


ONE_HOT = g.astype(HIT, "float64")


@pytest.mark.parametrize("written", ["where", "times", "product"])
def test_what_lies_in_memory_for_each_row_and_position_is_gathered(written: str) -> None:
    """A score of each row, or what is computed of it and of its row."""
    scores = given("scores")
    scores = scores - g.max(scores, axis=1, keepdims=True)
    chosen = {
        "where": g.sum(g.where(HIT, scores, 0.0), axis=1),
        "times": g.sum(scores * ONE_HOT, axis=1),
        "product": g.vecdot(ONE_HOT, scores),
    }[written]
    assert "gather" in ops(settled(chosen))


def test_a_one_hot_product_is_a_gather() -> None:
    found = settled(ONE_HOT @ given("table"))
    assert "gather" in ops(found) and largest(found) == ROWS * 3


def test_a_one_hot_product_with_rows_of_a_table_is_a_gather_of_these() -> None:
    found = settled(ONE_HOT @ g.take(given("rows"), g.clip(IDS[:SEGMENTS], 0, ROWS - 1), axis=0))
    assert ops(found).count("gather") == 2 and largest(found) == ROWS * 3


def test_what_may_be_infinite_is_multiplied_by_zeros() -> None:
    """Infinity times zero is no number, in sums of the other rows too."""
    assert "gather" not in ops(settle([g.sum(ONE_HOT * g.log(given("scores")), axis=1)]))


def test_what_is_computed_for_each_row_and_position_is_left_to_the_search() -> None:
    """It is summed as it is computed."""
    scores = given("rows") @ given("table").T
    assert "gather" not in ops(settled(g.sum(g.where(HIT, scores, 0.0), axis=1)))


def test_as_many_positions_as_an_index_can_tell_are_looked_up() -> None:
    """128 is no number of int8."""
    ids = g.input("i", (ROWS,), "int8")
    hit = ids[:, None] == g.arange(128, dtype="int8")
    (found,) = settle([g.sum(g.where(hit, g.input("t", (128,))[None], 0.0), axis=1)])
    index = np.resize(np.array([0, 127, -1, 5], np.int8), ROWS)
    table = np.arange(128, dtype=np.float32)
    (got,) = g.evaluate([found], {"i": index, "t": table})
    np.testing.assert_array_equal(got, np.where(index >= 0, table[index], 0))


def test_few_positions_are_compared() -> None:
    hit = g.equal(IDS[:, None], g.arange(4, dtype="int32"))
    found = settled(g.sum(g.where(hit, given("d")[:4], 0.0), axis=1))
    assert "gather" not in ops(found)


def test_gradients_of_many_segments_ask_for_no_memory_of_each_pair() -> None:
    """Of 500 000 elements in 50 000 segments: scatters and gathers, not 25e9 comparisons."""
    x, ids = g.input("x", (500_009,)), g.input("s", (500_009,), "int32")
    y = g.segment_max(x, ids, 50_021)
    gradient = g.grad(y, [x], cotangent=g.input("d", y.shape))
    found = plan(list(gradient), load("h200"), cache=Cache(None))
    kernels = [one.kernel for one in found.parts.launches if isinstance(one.kernel, Kernel)]
    assert max(buffer.bytes for kernel in kernels for buffer in kernel.buffers) < 8 * 500_009
    assert sum(one.seconds for one in found.parts.launches) < 1e-4
