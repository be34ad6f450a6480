"""Steps that lead from one term to another: what they are, and how they are applied."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from eqsat.terms.algebra import Term, post_order, with_children
from eqsat.terms.form import Stored

Position = tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One step: the term at a position of the whole term becomes another.

    kind: `rule` (a rewrite of a rule, right to left unless `forward`), `reindex` (a re-indexing is
    carried down to the reads), `cut` (a value is read from the buffer that holds it), or `again`
    (steps first..last, shown under another position, are done anew; undone unless `forward`).
    `whole` is the digest of the whole term after the step.
    """

    kind: str
    position: Position
    before: Term
    after: Term
    rule: str = ""
    variant: int = 1
    forward: bool = True
    again: tuple[int, int, Position] | None = None
    whole: str = ""


@dataclass(frozen=True)
class Trace:
    """Steps from source to target; `stored` are the values that cuts refer to.

    `note` is empty, or says why no steps were found.
    """

    name: str
    source: Term
    target: Term
    steps: tuple[Step, ...]
    stored: tuple[Stored, ...] = ()
    note: str = ""


def term_at(term: Term, position: Position) -> Term:
    """The subterm at a position; IndexError where there is none."""
    for place in position:
        if place < 0:
            raise IndexError(place)
        term = term.children[place]
    return term


def replace_at(term: Term, position: Position, new: Term) -> Term:
    """The term with another subterm at a position."""
    if not position:
        return new
    children = list(term.children)
    children[position[0]] = replace_at(children[position[0]], position[1:], new)
    return with_children(term, tuple(children))


def digests(roots: Iterable[Term]) -> dict[Term, str]:
    """A digest of each term below the roots, the same in every process."""
    found: dict[Term, str] = {}
    for term in post_order(roots):
        args = [found[a] if isinstance(a, Term) else f"{type(a).__name__} {a!r}" for a in term.args]
        text = "\n".join([term.op, *args])
        found[term] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return found


def states(trace: Trace) -> list[Term]:
    """The whole term before the first step and after each, the steps taken at their word."""
    found = [trace.source]
    for step in trace.steps:
        found.append(replace_at(found[-1], step.position, step.after))
    return found


def stamped(trace: Trace) -> Trace:
    """The trace with the digests of its whole terms."""
    whole = states(trace)
    known = digests(whole)
    steps = zip(trace.steps, whole[1:], strict=True)
    return replace(trace, steps=tuple(replace(s, whole=known[term]) for s, term in steps))
