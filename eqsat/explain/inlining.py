"""Stored values put back in place of the reads of them: a program without its temporaries."""

from collections.abc import Iterable
from dataclasses import dataclass

from eqsat.graph.index import row_major
from eqsat.terms.algebra import Read, Renaming, Term, Universe, with_children
from eqsat.terms.form import Stored
from eqsat.terms.renaming import read_renaming

Expanded = dict[Term, Term]


@dataclass(frozen=True)
class Inlining:
    """Stored values with what they read from one another put back in place."""

    stored: tuple[Stored, ...]
    universe: Universe

    def whole(self, one: Stored) -> Term:
        """The read of a stored value as it lies in memory."""
        address = row_major(one.names, self.universe.extents)
        return Term("read", Read(one.buffer, one.dtype, address))

    def origin(self, term: Term) -> tuple[Renaming, Stored] | None:
        """For a read of a stored value: under which re-indexing, which value."""
        read = term.args[0] if term.op == "read" else None
        for one in self.stored:
            if isinstance(read, Read) and read.buffer == one.buffer:
                return read_renaming(read, one.names, self.universe), one
        return None

    def expand(self, roots: Iterable[Term], done: dict[Term, Term] | None = None) -> Expanded:
        """Each term below the roots as it is without temporaries."""
        done = {} if done is None else done

        def visit(term: Term) -> Term:
            if term not in done:
                found = self.origin(term)
                if found is None:
                    done[term] = with_children(term, tuple(map(visit, term.children)))
                else:
                    renaming, one = found
                    body = visit(one.term)
                    moved = renaming.source or renaming.guards
                    done[term] = Term("reindex", renaming, body) if moved else body
            return done[term]

        for root in roots:
            visit(root)
        return done
