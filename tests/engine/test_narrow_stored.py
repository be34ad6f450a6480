"""What is stored for products with 16-bit floats alone takes 16 bits itself."""

import pytest
from terms import Terms, add, mul, universe

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.cut.cuts import Cut
from eqsat.cut.narrow_stored import KINDS, LAW, narrowed
from eqsat.driver import default_rules, plan
from eqsat.graph.dtypes import DType, bfloat16, float16, float32, float64
from eqsat.rule import PRECISIONS, allowed
from eqsat.terms.algebra import Facts, Term
from eqsat.terms.form import Stored

pytestmark = pytest.mark.usefixtures("shared_search")

T = Terms(universe(6, 5, 7, 4))
FACTS = Facts(T.universe)


def cuts(*readers: Term, dtype: DType = float32) -> dict[int, Cut]:
    """A value t3 over i and j, and what reads it over i and k."""
    value = Stored("t3", Term("exp", T.read("x", "ij")), ("i", "j"), dtype)
    others = [Stored(f"y{n}", one, ("i", "k"), float32) for n, one in enumerate(readers, 1)]
    return {
        3: Cut(3, value, frozenset()),
        **{-n: Cut(9, s, frozenset({3})) for n, s in enumerate(others, 1)},
    }


def factor(dtype: str) -> Term:
    return T.cast("float32", T.read("w", "jk", dtype))


VALUE = T.read("t3", "ij")
PRODUCT = T.sum("j", mul(VALUE, factor("bfloat16")))


def test_a_factor_of_narrow_ones_alone_is_stored_as_these_are() -> None:
    found = narrowed(cuts(PRODUCT, T.sum("j", mul(factor("bfloat16"), VALUE))), FACTS, KINDS)
    stored = found[3].stored
    assert stored.dtype == bfloat16 and stored.buffer != "t3"
    assert stored.term is T.cast("bfloat16", Term("exp", T.read("x", "ij")))
    read = T.cast("float32", T.read(stored.buffer, "ij", "bfloat16"))
    assert found[-1].stored.term is T.sum("j", mul(read, factor("bfloat16")))
    assert found[-2].stored.term is T.sum("j", mul(factor("bfloat16"), read))


def test_what_was_widened_is_stored_as_it_was() -> None:
    given, x = cuts(PRODUCT), T.read("x", "ij", "bfloat16")
    given[3] = Cut(3, Stored("t3", T.cast("float32", x), ("i", "j"), float32), frozenset())
    assert narrowed(given, FACTS, KINDS)[3].stored.term is x


@pytest.mark.parametrize(
    "other",
    [
        add(VALUE, VALUE),
        VALUE,
        T.sum("j", VALUE),
        T.sum("j", mul(VALUE, factor("float16"))),  # two dtypes
        T.sum("j", mul(VALUE, T.read("w", "jk"))),  # a wide factor
        T.sum("j", mul(add(VALUE, VALUE), factor("bfloat16"))),
        T.sum("j", add(mul(VALUE, factor("bfloat16")), T.read("z", "ijk"))),
        add(PRODUCT, Term("reduce_max", T.mask("j"), mul(VALUE, factor("bfloat16")))),
        T.sum("j", mul(T.read("t3", "ij", fill=-1.0), factor("bfloat16"))),
    ],
)
def test_what_is_read_otherwise_stays_wide(other: Term) -> None:
    given = cuts(PRODUCT, other)
    assert narrowed(given, FACTS, KINDS) == given


def test_outputs_and_narrow_values_stay_as_they_are() -> None:
    given = cuts(PRODUCT)
    assert narrowed({-3: given[3], -1: given[-1]}, FACTS, KINDS) == {-3: given[3], -1: given[-1]}
    double = T.read("t3", "ij", "float64")
    given = cuts(T.sum("j", mul(double, factor("bfloat16"))), dtype=float64)
    assert narrowed(given, FACTS, KINDS) == given
    assert narrowed(cuts(PRODUCT), FACTS, {float16}) == cuts(PRODUCT)
    halves = cuts(T.sum("j", mul(VALUE, factor("float16"))))
    assert narrowed(halves, FACTS, KINDS)[3].stored.dtype == float16


@pytest.mark.slow
def test_weights_that_products_read_are_stored_in_their_bits() -> None:
    x, w = g.input("x", (512, 256), "bfloat16"), g.input("w", (256, 512), "bfloat16")
    a, c = (g.input(name, (512, 128), "bfloat16") for name in "ac")
    wide = [g.astype(one, g.float32) for one in (x, w, a, c)]
    weights = g.softmax(wide[0] @ wide[1], axis=-1)
    outputs = [weights @ wide[2], weights.T @ wide[3]]
    parts = plan(outputs, "h200", cache=Cache(None)).parts
    assert bfloat16 in [b.dtype for b in parts.buffers.values() if b.role == "temporary"]


def test_only_a_precision_that_rounds_allows_it() -> None:
    names = {p: {rule.name for rule in allowed(default_rules(), p)} for p in PRECISIONS}
    assert [p for p, own in names.items() if LAW not in own] == ["exact"]
