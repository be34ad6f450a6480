"""How a value that lies in memory is read: at which of its own points."""

import pytest

from eqsat.graph.dtypes import float32
from eqsat.graph.index import add, const, row_major, scale, sub, var
from eqsat.kernel.ir import Guard
from eqsat.terms.algebra import Read, Renaming, Term, Universe
from eqsat.terms.renaming import read_renaming, same_when_pushed

OVER = Universe()
N, C, H, W, DOWN, ALONG, K, L = (OVER.add(size) for size in (2, 4, 7, 7, 7, 7, 3, 3))
ROWS, COLUMNS = (add(var(own), var(step), const(-1)) for own, step in ((DOWN, K), (ALONG, L)))
PLACE = add(scale(var(N), 196), scale(var(C), 49), scale(ROWS, 7), COLUMNS)


def test_windows_beyond_the_edges_are_read_where_the_guards_have_it():
    guards = (Guard(ROWS, 0, 7), Guard(COLUMNS, 0, 7))
    found = read_renaming(Read("t", float32, PLACE, guards), (N, C, H, W), OVER)
    assert found.source == (H, W) and found.target == (ROWS, COLUMNS)


@pytest.mark.parametrize("upper", [8, None])
def test_without_a_guard_that_keeps_it_below_the_extent_a_digit_is_a_remainder(upper):
    guards = (Guard(COLUMNS, 0, upper),) if upper else ()
    found = read_renaming(Read("t", float32, PLACE, guards), (N, C, H, W), OVER)
    assert COLUMNS not in found.target


def test_names_come_outermost_first():
    place = row_major((N, C, DOWN, ALONG), OVER.extents)
    found = read_renaming(Read("t", float32, place), (N, C, H, W), OVER)
    assert found.source == (H, W) and found.target == (var(DOWN), var(ALONG))


@pytest.mark.parametrize("sign, shift, lower, upper", [(1, 2, -2, 5), (-1, 6, 0, 7)])
def test_a_guard_may_keep_a_digit_shifted_or_mirrored(sign, shift, lower, upper):
    """A window over a slice, and one over a reversed axis."""
    columns = add(scale(COLUMNS, sign), const(shift))
    place = add(scale(var(N), 196), scale(var(C), 49), scale(ROWS, 7), columns)
    guards = (Guard(ROWS, 0, 7), Guard(COLUMNS, lower, upper))
    found = read_renaming(Read("t", float32, place, guards), (N, C, H, W), OVER)
    assert found.source == (H, W) and found.target == (ROWS, columns)


def test_what_a_where_asks_need_not_be_asked_again_inside_it():
    def inside(upper, term):
        at = Term("position", COLUMNS)
        asked = [
            Term(op, at, Term("literal", float(n), "int64"))
            for op, n in (("greater_equal", 0), ("less", upper))
        ]
        return Term("where", Term("logical_and", *asked), term, Term("literal", 0.0, "float32"))

    def read(*guards):
        return Term("read", Read("t", float32, PLACE, guards))

    own, wider = Guard(COLUMNS, 0, 7), Guard(COLUMNS, 0, 9)
    assert same_when_pushed(inside(7, inside(7, read())), inside(7, read()), OVER)
    assert not same_when_pushed(inside(9, inside(7, read())), inside(9, read()), OVER)
    assert not same_when_pushed(inside(7, read(own)), inside(7, read()), OVER)  # it may run so
    assert not same_when_pushed(inside(7, read(wider)), inside(9, read(wider)), OVER)


@pytest.mark.parametrize(
    "over",
    [
        lambda term: Term("reduce_sum", OVER.mask((K,)), term),
        lambda term: Term("scan_sum", OVER.mask((K,)), term),
        lambda term: Term("reindex", Renaming((K,), (sub(const(2), var(K)),)), term),
    ],
    ids=["sum", "scan", "moved"],
)
def test_what_a_where_asks_of_a_name_is_not_known_where_it_means_other_points(over):
    at, zero = Term("position", var(K)), Term("literal", 0.0, "float32")
    last = Term("greater_equal", at, Term("literal", 2.0, "int64"))
    read = Term("read", Read("t", float32, var(K)))
    part, whole = over(Term("where", last, read, zero)), over(read)
    assert not same_when_pushed(*(Term("where", last, one, zero) for one in (part, whole)), OVER)
