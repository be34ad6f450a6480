"""Names that become one: what is stored lies where it lay, in whatever order its names are."""

import numpy as np
import pytest
from numeric import Meaning
from terms import Terms, mul, universe

from eqsat.graph.dtypes import float32
from eqsat.graph.index import evaluate
from eqsat.layout.coalesce import as_digits, taken_whole, with_few_names
from eqsat.terms.algebra import Facts
from eqsat.terms.form import Stored, form

OVER = universe(2, 3, 4, 5)
T = Terms(OVER)
X = T.read("x", "ijk")
BUFFERS = {"x": np.random.default_rng(0).random(24).astype(np.float32)}


def written(stored: tuple[Stored, ...], facts: Facts) -> dict[str, np.ndarray]:
    """What each value leaves in a buffer of 24 elements."""
    extents = facts.universe.extents
    meaning = Meaning(facts.universe, BUFFERS)
    axes = np.meshgrid(*(np.arange(extents[n]) for n in facts.universe.names), indexing="ij")
    points = dict(zip(facts.universe.names, axes, strict=True))
    found = {}
    for one in stored:
        found[one.buffer] = np.zeros(24)
        place = np.broadcast_to(evaluate(one.address(extents), points), axes[0].shape)
        found[one.buffer][place] = np.broadcast_to(meaning.term(one.term), axes[0].shape)
    return found


@pytest.mark.parametrize("names", ["ijk", "ikj", "jki", "kij", "jik"])
def test_values_whose_names_lie_otherwise_are_stored_by_address(names):
    """The sum over j and k beside a value of them, which may be stored along k first."""
    total = Stored("y", T.sum("jk", X), ("i",), float32)
    whole = Stored("z", X, tuple(names), float32)
    values = ((total, whole), Facts(OVER))
    merged, facts = as_digits(*values, [("i",), ("j", "k"), ("t",)])
    assert (merged[1].at is None) == ("jk" in names) and merged[0].at is None
    assert len(facts.universe.names) == 3
    for buffer, array in written(*values).items():
        np.testing.assert_allclose(written(merged, facts)[buffer], array, rtol=1e-6)


def test_a_pitch_is_kept_where_the_last_name_is_merged():
    one = Stored("z", T.read("x", "ij"), ("j", "i"), float32, pitch=8)
    merged, facts = as_digits((one,), Facts(OVER), [("i", "j"), ("k",), ("t",)])
    found = written(merged, facts)["z"]
    np.testing.assert_allclose(found, written((one,), Facts(OVER))["z"], rtol=1e-6)
    assert found[8] and not found[2:8].any()


def test_who_takes_but_some_of_the_names_keeps_them_apart():
    total = T.sum("jk", X)
    rows = Stored("y", total, ("i",), float32)

    def whole(*others: Stored) -> bool:
        return taken_whole(form((rows, *others), Facts(OVER)), ("j", "k"))

    assert whole() and whole(Stored("z", X, tuple("ikj"), float32))
    assert not whole(Stored("z", T.sum("k", X), ("i", "j"), float32))  # summed, and stored
    assert not whole(Stored("z", T.read("x", "j"), ("j",), float32))


@pytest.mark.parametrize(("weights", "names"), [("jki", 3), ("ijk", 4)])
def test_a_price_has_a_sum_as_one_where_a_factor_is_long_beside_it(weights, names):
    """Of x[t, 2 j + k] w[i, 2 j + k] both are short along k, as windows that were copied are."""
    over = universe(64, 32, 2, 16)
    terms = Terms(over)
    total = terms.sum("jk", mul(terms.read("x", "tjk"), terms.read("w", weights)))
    stored, facts = with_few_names((Stored("y", total, ("t", "i"), float32),), Facts(over))
    assert len(facts.universe.names) == names and len(stored) == 1
