"""A region's kernel before any rule: where the search for its schedule and its fusion starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eqsat.terms.algebra import LEAVES, Term, with_children
from eqsat.terms.form import Form


@dataclass(frozen=True)
class Unfused:
    """A region before any rule: its kernel term; for each numbered value, its term and its body."""

    kernel: Term
    meanings: dict[int, Term]
    bodies: dict[int, Term]


def unfused(made: Form) -> Unfused:
    """The kernel that reads every operand from memory, under an empty schedule."""
    inner = [t for t in made.terms if t.op not in LEAVES]
    number = {t: i for i, t in enumerate(inner)}
    bodies = {
        i: with_children(t, tuple(_value(c, number) for c in t.children))
        for i, t in enumerate(inner)
    }
    parts = [_value(one.term, number) for one in made.stored]
    if len(parts) == 1 and made.stored[0].term in number:
        parts = [bodies[number[made.stored[0].term]]]
    kernel = Term("kernel", together(parts), Term("untiled"))
    return Unfused(kernel, dict(enumerate(inner)), bodies)


def together(parts: Sequence[Term]) -> Term:
    """The values of one kernel as one term."""
    body = parts[0]
    for part in parts[1:]:
        body = Term("together", body, part)
    return body


def _value(term: Term, number: Mapping[Term, int]) -> Term:
    return term if term.op in LEAVES else Term("value", number[term])
