"""Random terms over few names, which are shared, shadowed and captured where a law slips."""

from collections.abc import Callable

from hypothesis import strategies as st
from terms import NAMES, Terms, add, div, exp, mul, sub

from eqsat.graph.index import add as plus
from eqsat.graph.index import const, floordiv, mod, scale, var
from eqsat.kernel.ir import Guard
from eqsat.terms.algebra import Term

Draw = Callable[[st.SearchStrategy], object]
# Buffers by name: those of `w` are not known to be finite.
BUFFERS = ("a", "b", "c", "w")


class _Builder:
    def __init__(self, draw: Draw, terms: Terms) -> None:
        self.draw, self.terms = draw, terms

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))  # type: ignore[return-value]

    def names(self, least: int = 0) -> str:
        mask = self.number(least, (1 << len(NAMES)) - 1)
        return "".join(name for bit, name in enumerate(NAMES) if mask >> bit & 1)

    def leaf(self) -> Term:
        if self.number(0, 6) == 0:
            return self.terms.number(self.number(-1, 2))
        names = self.names()
        buffer = BUFFERS[self.number(0, len(BUFFERS) - 1)]
        return self.terms.read(f"{buffer}{names}", names)

    def term(self, depth: int) -> Term:
        if depth == 0:
            return self.leaf()
        t, which = self.terms, self.number(0, 11)
        a = self.term(depth - 1)
        match which:
            case 0 | 1 | 2:
                return t.sum(self.names(1), a)
            case 3 | 4:
                return mul(a, self.term(depth - 1))
            case 5:
                return add(a, self.term(depth - 1))
            case 6:
                return t.max(self.names(1), a)
            case 7:
                over = self.names(1)
                return t.sum(over, mul(a, self.term(depth - 1)))
            case 8:
                over = self.names(1)
                weight = exp(sub(a, t.max(over, a)))
                return t.sum(over, mul(weight, self.leaf()) if self.number(0, 1) else weight)
            case 9:
                b, c = self.leaf(), self.leaf()
                return sub(add(a, b), add(a, c))
            case 10:
                return div(a, self.leaf())
            case _:
                b, c = self.term(depth - 1), self.leaf()
                return add(mul(c, a), mul(c, b))


@st.composite
def random_terms(draw: Draw, over, depth: int = 3) -> Term:
    """A term of up to that depth over the universe."""
    return _Builder(draw, Terms(over)).term(draw(st.integers(1, depth)))  # type: ignore[arg-type]


@st.composite
def renamings(draw: Draw, over, term: Term) -> Term:
    """The term under a random re-indexing, with guards or without; it stays inside the extents."""
    builder = _Builder(draw, Terms(over))
    moved = {}
    for name in builder.names(1):
        extent = over.extents[name]
        other = NAMES[builder.number(0, len(NAMES) - 1)]
        shifted = plus(scale(var(other), builder.number(1, 2)), const(builder.number(0, 2)))
        moved[name] = mod(shifted, extent, over.extents)
    guards = []
    if builder.number(0, 1):
        at = var(NAMES[builder.number(0, len(NAMES) - 1)])
        at = floordiv(plus(at, const(builder.number(0, 2))), builder.number(1, 2), over.extents)
        guards.append(Guard(at, builder.number(0, 1), builder.number(1, 3)))
    return builder.terms.renamed(term, moved, guards)
