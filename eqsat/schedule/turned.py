"""Results of many products, stored one after the other, which a second kernel puts in order.

Where memory has the points of a batch side by side, as `ikc,jkc->ijc` does, a tile is rows and
columns of one point, and each of its elements lies in a line of its own. With the batch outermost
in a temporary whole lines are stored; a copy then reads and writes whole lines too.
"""

from dataclasses import replace

from eqsat.graph.index import row_major
from eqsat.kernel.ir import Buffer
from eqsat.schedule.reduction_parts import Division
from eqsat.terms.algebra import SCATTERS, Facts, Read, Term
from eqsat.terms.form import Form, Stored


def turned_names(made: Form) -> tuple[str, ...]:
    """The name that every stored value has innermost and both factors of a product have too, if
    there is one.
    """
    names = {one.names[-1] for one in made.stored if len(one.names) > 1}
    if len(names) != 1 or any(map(_lies_elsewhere, made.stored)):
        return ()
    (name,) = names
    bit, free = made.facts.universe.mask([name]), made.facts.free
    pairs = [pair for term in made.terms if (pair := made.contraction(term))]
    shared = any(free(left) & free(right) & bit for left, right in pairs)
    return (name,) if shared and made.extents[name] > 1 else ()


def _lies_elsewhere(one: Stored) -> bool:
    return bool(one.at is not None or one.guards or one.pitch or one.term.op in SCATTERS)


def turn(made: Form, outermost: str, stem: str) -> Division | None:
    """The kernel with its values in temporaries, named after `stem`, that have a name outermost,
    and what copies them to where they belong; None where a value does not have the name.
    """
    first, rest, buffers = [], [], []
    extents, facts = made.extents, made.facts
    for number, one in enumerate(made.stored):
        if outermost not in one.names:
            return None
        names = (outermost, *(name for name in one.names if name != outermost))
        name = f"t{stem}turned_{number}"
        first.append(replace(one, buffer=name, names=names))
        copy = Term("read", Read(name, one.dtype, row_major(names, extents)))
        rest.append(replace(one, term=copy))
        shape = tuple(extents[n] for n in names)
        buffers.append(Buffer(name, shape, one.dtype, "temporary"))
    rest_facts = Facts(facts.universe)
    return Division(tuple(first), facts, tuple(rest), rest_facts, "", tuple(buffers))
