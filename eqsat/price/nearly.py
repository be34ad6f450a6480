"""Float32 values of which 16-bit floats alone are made: their last bits do not matter.

Products and quotients pass a relative error on as it is, and so do sums of what is not negative.
Such an exp(c a - b) of a product's result a is one multiply-add and a device's own power of two.
"""

import math
from collections.abc import Collection, Mapping, Sequence

from eqsat.layout.needs import SIXTEEN
from eqsat.terms.algebra import Term
from eqsat.terms.form import Form, is_product

PASSED_ON = frozenset({"mul", "div", "neg", "abs", "reciprocal", "square", "sqrt", "rsqrt"})
NOT_NEGATIVE = frozenset(
    {"exp", "abs", "square", "sqrt", "rsqrt", "exp_difference", "one_plus_erf"}
)
KEEPS_SIGN = frozenset({"add", "mul", "div", "reciprocal"})  # of operands that are not negative
OF_PRODUCTS = frozenset({"mul", "add", "sub", "where"})  # what is made of a product's result


def short_powers(made: Form) -> set[Term]:
    """The powers exp(c a - b) of a form that need not be exact."""
    powers = [term for term in made.computed if term.op == "exp" and _of_product(term, made)]
    if not powers:
        return set()
    users: dict[Term, list[Term]] = {}
    for user in made.computed:
        for child in user.children:
            users.setdefault(child, []).append(user)
    kept = {one.term for one in made.stored}
    return {power for power in powers if _is_rounded(power, made, users, kept)}


def _of_product(power: Term, made: Form) -> bool:
    (difference,) = power.children
    return difference.op == "sub" and _is_summed(difference.children[0], made)


def _is_summed(term: Term, made: Form) -> bool:
    """Whether a value is a sum of products, or all that is added in it is; of masks -inf alone."""
    if term.op not in OF_PRODUCTS:
        never = term.op == "literal" and term.args[0] == -math.inf
        return never or is_product(term, made.facts) or made.contraction(term) is not None
    if term.op == "mul":
        return any(_is_summed(child, made) for child in term.children)
    values = term.children[1:] if term.op == "where" else term.children
    return all(_is_summed(child, made) for child in values)


def _is_rounded(
    term: Term, made: Form, users: Mapping[Term, Sequence[Term]], kept: Collection[Term]
) -> bool:
    """Whether all that is made of a value is a 16-bit float in the end."""
    if made.facts.dtype(term).name in SIXTEEN:
        return True
    if term in kept or term not in users:
        return False
    for user in users[term]:
        if user.op == "cast":
            passed = user.args[0] in SIXTEEN
        else:
            chosen = user.op == "where" and user.children[0] is not term
            passed = (user.op in PASSED_ON or chosen) and _is_rounded(user, made, users, kept)
        if not passed:
            return False
    return True
