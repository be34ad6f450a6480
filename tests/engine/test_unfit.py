"""What is known of kernels that fit no schedule."""

import pytest

import eqsat.graph as g
from eqsat import solve
from eqsat.cache.store import Cache
from eqsat.cut.cuts import UNFIT
from eqsat.cut.extraction import Extractor
from eqsat.driver import plan
from eqsat.graph.dtypes import float32
from eqsat.specs import load
from eqsat.terms.form import Stored

pytestmark = pytest.mark.usefixtures("shared_search")


@pytest.fixture
def extractor(monkeypatch: pytest.MonkeyPatch) -> Extractor:
    """Of sums of rows, of which exponentials are stored."""
    made: list[Extractor] = []

    def kept(*arguments: object) -> Extractor:
        made.append(Extractor(*arguments))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(solve, "Extractor", kept)
    plan([g.exp(g.sum(g.input("x", (64, 96)), axis=1))], load("h200"), cache=Cache(None))
    return made[0]


def stored(extractor: Extractor, op: str) -> tuple[Stored, ...]:
    """A kernel of the class that an operation computes."""
    numbers = [n for n, nodes in extractor.nodes.items() if any(x.op == op for x in nodes)]
    best = extractor.candidates[numbers[0]][0]
    return (Stored("y", best.term, extractor.names(numbers[0]), float32),)


def test_the_first_kernel_that_fits_nothing_is_no_word_on_others(extractor):
    both, alone = stored(extractor, "exp"), stored(extractor, "reduce_sum")
    assert extractor.learn(both, UNFIT)
    assert extractor.price_kernel(both) >= UNFIT > extractor.price_kernel(alone)


def test_the_second_one_is(extractor):
    both, alone = stored(extractor, "exp"), stored(extractor, "reduce_sum")
    assert extractor.learn(both, UNFIT) and extractor.learn(both, UNFIT)
    assert extractor.price_kernel(both) >= UNFIT and extractor.price_kernel(alone) >= UNFIT
    assert not extractor.learn(both, UNFIT)


def test_a_time_that_was_measured_counts_for_all_at_once(extractor):
    both, alone = stored(extractor, "exp"), stored(extractor, "reduce_sum")
    assert extractor.learn(both, 0.5)
    assert extractor.price_kernel(alone) >= 0.5


@pytest.mark.slow
def test_parts_that_are_joined_in_as_many_parts_come_to_an_end() -> None:
    """Sums of a matrix of statistics with its diagonal, of which each row needs what all give."""
    x = g.input("x", (4093, 61))
    x = x - g.mean(x, axis=0)
    c = x.T @ x / 4092
    d = g.diagonal(c)
    loss = g.mean(g.relu(1 - g.sqrt(d + 1e-4))) + (g.sum(c * c) - g.sum(d * d)) / 61
    assert plan([loss], load("h200"), cache=Cache(None)).parts.launches


def test_sums_of_different_names_beside_each_other_are_added_up_at_once() -> None:
    """Means of seven parts of rows, each of its own length, wait for the longest."""
    x = g.input("x", (64, 512, 1000))
    ends = [(i * 1000 // 7, -(-(i + 1) * 1000 // 7)) for i in range(7)]
    y = g.concat([g.mean(x[..., a:b], axis=-1, keepdims=True) for a, b in ends], axis=-1)
    found = plan([y], load("h200"), cache=Cache(None))
    assert sum(one.seconds for one in found.parts.launches) < 1e-3
