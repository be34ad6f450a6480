"""What a `where` asks need not be asked again of what it chooses."""

from eqsat.graph.index import Affine
from eqsat.terms.algebra import Renaming, Term, Universe, names_of, with_children
from eqsat.terms.reindex import all_of


def asked_once(term: Term, universe: Universe) -> Term:
    """The term without conditions on places that a `where` around them asks already.

    Guards of reads stay: what they ask keeps a kernel within its buffers.
    """
    return _Asked(universe).of(term)


class _Asked:
    """Terms without what the `where`s around them ask already."""

    def __init__(self, universe: Universe) -> None:
        self.universe = universe
        self._done: dict[tuple[Term, frozenset[Term]], Term] = {}

    def of(self, term: Term, known: frozenset[Term] = frozenset()) -> Term:
        """The term where the comparisons in `known` hold."""
        key = (term, known)
        if key not in self._done:
            self._done[key] = self._of(term, known)
        return self._done[key]

    def _of(self, term: Term, known: frozenset[Term]) -> Term:
        if term.op == "where":
            condition, chosen, other = term.children
            parts = [part for part in _parts(condition) if part not in known]
            chosen = self.of(chosen, known.union(filter(_bounds_a_place, parts)))
            return Term("where", all_of(parts), chosen, self.of(other, known)) if parts else chosen
        if own := self._own(term):
            known = frozenset(one for one in known if own.isdisjoint(_names_compared(one)))
        return with_children(term, tuple(self.of(child, known) for child in term.children))

    def _own(self, term: Term) -> set[str]:
        """Names that mean other points below a term: it goes over them, or moves them."""
        match term.args:
            case (int(mask), *_) if term.children:
                return set(self.universe.members(mask))
            case (Renaming() as renaming, *_):
                return set(renaming.source)
            case _:
                return set()


def _parts(condition: Term) -> list[Term]:
    """What a condition asks, one by one."""
    if condition.op != "logical_and":
        return [condition]
    return [part for child in condition.children for part in _parts(child)]


def _bounds_a_place(part: Term) -> bool:
    """Whether it compares a place with a number."""
    return [child.op for child in part.children] == ["position", "literal"]


def _names_compared(part: Term) -> frozenset[str]:
    expression = part.children[0].args[0]
    assert isinstance(expression, Affine)
    return names_of(expression)
