"""Kernels of which one reads what another stores: as one, where that is exact and faster."""

from collections.abc import Sequence

from eqsat.cut.cuts import Candidate, joins_stored, least
from eqsat.cut.join import Group, as_joined, join, read_buffers
from eqsat.graph.dtypes import as_dtype
from eqsat.graph.index import Affine, add, const, row_major, var
from eqsat.terms.algebra import Facts, Read, Term, Universe
from eqsat.terms.form import Stored

OVER = Universe()
NAME, FACTS, FLOAT = OVER.add(64), Facts(OVER), as_dtype("float32")
WHOLE = row_major((NAME,), OVER.extents)


def read(buffer: str, address: Affine = WHOLE) -> Term:
    return Term("read", Read(buffer, FLOAT, address))


def stored(buffer: str, term: Term) -> Group:
    return (Stored(buffer, term, (NAME,), FLOAT),)


def price(kernel: Group) -> float:
    """A launch, and what is read and stored."""
    return 1 + 0.1 * len(read_buffers(kernel)) + 0.2 * len(kernel)


def joined(kernels: Sequence[Group], *wanted: str) -> list[dict[str, Term]]:
    return [{s.buffer: s.term for s in kernel} for kernel in join(kernels, FACTS, price, wanted)]


POWER, X = Term("exp", read("x")), stored("t1", Term("exp", read("x")))
Y = stored("y0", Term("add", read("t1"), read("z")))


def test_what_nothing_else_reads_is_not_stored() -> None:
    both = Term("add", POWER, read("z"))
    assert joined([X, Y], "y0") == [{"y0": both}]
    assert joined([X, Y], "y0", "t1") == [{"t1": POWER, "y0": both}]


def test_what_another_kernel_reads_stays_stored() -> None:
    """A scatter's place, say: it cannot come too."""
    elsewhere = stored("y1", Term("neg", read("t1", add(const(63), Affine(((NAME, -1),), 0)))))
    (first, second) = joined([X, Y, elsewhere], "y0", "y1")
    assert first == {"t1": POWER, "y0": Term("add", POWER, read("z"))}
    assert second == {"y1": elsewhere[0].term}


def test_a_kernel_between_two_keeps_them_apart() -> None:
    """They would need each other's results."""
    between = stored("t2", Term("neg", read("t1", add(const(1), var(NAME)))))
    last = stored("y0", Term("add", read("t1"), read("t2")))
    found = [{*kernel} for kernel in joined([X, between, last], "y0")]
    assert found in ([{"t1"}, {"t2", "y0"}], [{"t1"}, {"y0"}])


def test_a_trace_has_what_kernels_compute() -> None:
    kernels = join([X, Y], FACTS, price, ["y0"])
    (one,) = as_joined([X, Y], kernels, FACTS)
    assert (one.buffer, one.term) == ("y0", Term("add", POWER, read("z")))
    apart = as_joined([X, Y], [X, Y], FACTS)
    assert apart == (*X, *Y)


def test_of_candidates_alike_the_one_that_needs_least() -> None:
    one, other, slow = (Candidate(read(b), frozenset({*b}), 0.0) for b in ("ab", "c", "d"))  # type: ignore[arg-type]
    seconds = {id(one): 1.0, id(other): 1.00001, id(slow): 1.1}
    assert least([one, other, slow], lambda c: seconds[id(c)], lambda c: len(c.closure)) is other


def test_several_stored_values_are_one_read_if_they_are_joined() -> None:
    assert joins_stored([read("t1"), read("t2")])
    assert not joins_stored([read("t1"), read("in0"), POWER])
