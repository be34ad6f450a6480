"""Products with a vector as products with a matrix of one row, which operations on matrices take.

Of `y[n] = sum_k x[k] * w[k,n]` the factor x has no index of its own. Read under another name, of
one point, it is a matrix `x[u,k]`, and the result `y[u,n]` lies where y lies: what an operation
computes of further rows is padding, which the spec's prices count. A product with one row waits
for memory, and what such an operation takes from memory is copied well ahead of it.
"""

from dataclasses import replace
from itertools import permutations

from eqsat.graph.index import Affine, add, bounds, scale, var
from eqsat.price.rates import Contraction, Rates
from eqsat.price.tiling import LEAST_PART
from eqsat.terms.algebra import (
    SCANS,
    SCATTERS,
    WEIGHTED_SUMS,
    Facts,
    Read,
    Term,
    Universe,
    post_order,
    rebuild,
    with_children,
)
from eqsat.terms.form import Form, Stored, beneath_cast, form

ALIGNED = 128  # elements between rows of which there is one: a whole number of any lines


def with_single_rows(made: Form) -> Form | None:
    """A form with a name of one point in the factors that have no name of their own;
    None where no product lacks one, or where a factor cannot be told from the other.

    Names of the form keep their places among the names, of which the new one is the last.
    """
    if any(t.op in SCANS or t.op in SCATTERS or t.op == "reindex" for t in made.terms):
        return None
    if any(one.at is not None or one.guards for one in made.stored):
        return None
    old = made.facts.universe
    new = Universe([*old.names], {**old.extents})
    name, facts, stored = new.add(1), Facts(new), made.stored
    while reads := _lacking(stored, facts):
        if any(name in t.args[0].names for t in reads):  # type: ignore[union-attr]
            return None

        def change(term: Term, children: tuple[Term, ...], reads: set[Term] = reads) -> Term:
            return _widened(term, name, new) if term in reads else with_children(term, children)

        stored = tuple(replace(one, term=rebuild(one.term, change)) for one in stored)
    if stored == made.stored:
        return None
    own = new.mask([name])
    return form(
        tuple(
            replace(one, names=(name, *one.names)) if facts.free(one.term) & own else one
            for one in stored
        ),
        facts,
    )


def is_multiplied(made: Form, rates: Rates) -> bool:
    """Whether the spec has an operation on matrices for any product of the form, and one of them is
    a sum long enough to be worth copying ahead.

    Operations on parts of factors do not count: each element would be taken apart for one product.
    """
    free, longest, taken = made.facts.free, 0, False
    for term in made.terms:
        sides = _sides(term, made.facts) or (term, term)
        left, right = (beneath_cast(side, made.facts) for side in sides)
        own, other, over = free(left) & ~free(right), free(right) & ~free(left), term.args[0]
        if own and other and isinstance(over, int):
            found = Contraction(term, left, right, free(left) & free(right), own, other, over)
            every = rates.matrix_operations(made, found)
            operations = [one for one in every if one.name not in rates.float32_products]
            longest = max(longest, made.facts.universe.size(over))
            taken |= any(any(one.extents.values()) for one in operations)
    return taken and longest >= LEAST_PART


def _sides(term: Term, facts: Facts) -> tuple[Term, Term] | None:
    """The factors of a sum of products, matrices or not."""
    if term.op in WEIGHTED_SUMS and term.children[1].op != "literal":
        return term.children[0], term.children[1]
    if term.op == "reduce_sum" and term.children[0].op == "mul":
        left, right = term.children[0].children
        both, over = facts.free(left) & facts.free(right), term.args[0]
        assert isinstance(over, int)
        return None if over & ~both else (left, right)
    return None


def _lacking(stored: tuple[Stored, ...], facts: Facts) -> set[Term]:
    """The reads of the first factor that has no name of its own beside the other factor's, reads
    of the other one left out: those of a product beneath come first, it may do for those above.

    Factors of two dtypes are left as they are: an operation would round the wider one.
    """
    for term in post_order(one.term for one in stored):
        sides = _sides(term, facts) or ()
        kinds = {facts.dtype(beneath_cast(side, facts)) for side in sides}
        if term.op == "reduce_sum" and len(kinds) > 1:
            continue
        for own, other in permutations(sides, 2):
            if not facts.free(own) & ~facts.free(other) and facts.free(other) & ~facts.free(own):
                beside = {*post_order([other])}
                below = {t for t in post_order([own]) if t.op == "read" and t not in beside}
                if below:
                    return below
    return set()


def _widened(term: Term, name: str, universe: Universe) -> Term:
    """A read of one row."""
    read = term.args[0]
    assert isinstance(read, Read)
    last = bounds(read.address, universe.extents)[1] - read.address.constant
    pitch = (last // ALIGNED + 1) * ALIGNED
    address: Affine = add(read.address, scale(var(name), pitch))
    return Term("read", replace(read, address=address), *term.args[1:])
