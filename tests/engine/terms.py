"""Terms written briefly, over names of given extents."""

from collections.abc import Mapping, Sequence

from eqsat.carry_law import CarryLaw
from eqsat.graph.dtypes import as_dtype
from eqsat.graph.index import Affine, row_major
from eqsat.kernel.ir import Guard
from eqsat.rules.carries import SOFTMAX
from eqsat.terms.algebra import Read, Renaming, Term, Universe

NAMES = ("i", "j", "k", "t")


def universe(*extents: int) -> Universe:
    """Names i, j, k, t with those extents."""
    return Universe(list(NAMES), dict(zip(NAMES, extents or (2, 3, 4, 2), strict=True)))


class Terms:
    """Builds terms over one universe; index sets are strings of one-letter names."""

    def __init__(self, over: Universe, dtype: str = "float32") -> None:
        self.universe, self.dtype = over, dtype

    def read(self, buffer: str, names: str = "", dtype: str = "", fill: float = 0) -> Term:
        """A row-major buffer over the names."""
        address = row_major(tuple(names), self.universe.extents)
        return Term("read", Read(buffer, as_dtype(dtype or self.dtype), address, (), fill))

    def number(self, value: float, dtype: str = "") -> Term:
        return Term("literal", float(value), dtype or self.dtype)

    def mask(self, names: str) -> int:
        return self.universe.mask(names)

    def sum(self, names: str, body: Term) -> Term:
        return Term("reduce_sum", self.mask(names), body)

    def max(self, names: str, body: Term) -> Term:
        return Term("reduce_max", self.mask(names), body)

    def weighted(self, names: str, s: Term, r: Term, law: CarryLaw = SOFTMAX) -> Term:
        return Term("weighted_sum", self.mask(names), s, r, law)

    def contract(self, names: str, a: Term, b: Term, operation: str = "") -> Term:
        return Term("contract", self.mask(names), a, b, operation)

    def place(self, names: str) -> Term:
        """The position along names, outermost first."""
        return Term("position", row_major(tuple(names), self.universe.extents))

    def scatter(self, monoid: str, names: str, v: Term, place: Term, x: Term) -> Term:
        return Term(f"scatter_{monoid}", self.mask(names), v, place, x)

    def cast(self, dtype: str, body: Term) -> Term:
        return Term("cast", dtype, body)

    def renamed(
        self, body: Term, moved: Mapping[str, Affine], guards: Sequence[Guard] = ()
    ) -> Term:
        """The body read at other positions."""
        return Term("reindex", Renaming(tuple(moved), tuple(moved.values()), tuple(guards)), body)


def add(a: Term, b: Term, *more: Term) -> Term:
    return Term("add", a, add(b, *more)) if more else Term("add", a, b)


def mul(a: Term, b: Term) -> Term:
    return Term("mul", a, b)


def sub(a: Term, b: Term) -> Term:
    return Term("sub", a, b)


def div(a: Term, b: Term) -> Term:
    return Term("div", a, b)


def exp(a: Term) -> Term:
    return Term("exp", a)
