"""Float32 values of which 16-bit floats alone are made: their last bits do not matter.

Products and quotients pass a relative error on as it is, and so do sums of what is not negative.
Such an exp(c a - b) of a product's result a is one multiply-add and a device's own power of two.
"""

from eqsat.algebra import Term
from eqsat.form import Form, is_product
from eqsat.needs import SIXTEEN

PASSED_ON = frozenset({"mul", "div", "neg", "abs", "reciprocal", "square", "sqrt", "rsqrt"})
NOT_NEGATIVE = frozenset(
    {"exp", "abs", "square", "sqrt", "rsqrt", "exp_difference", "one_plus_erf"}
)
KEEPS_SIGN = frozenset({"add", "mul", "div", "reciprocal"})  # of operands that are not negative
OF_PRODUCTS = frozenset({"mul", "add", "sub", "where"})  # what is made of a product's result


def short_powers(made: Form) -> set[Term]:
    """The powers exp(c a - b) of a form that need not be exact."""
    powers = [term for term in made.computed if term.op == "exp" and _of_product(term, made)]
    return {term for term in powers if _is_rounded(term, made)} if powers else set()


def _of_product(power: Term, made: Form) -> bool:
    (difference,) = power.children
    waiting = [difference.children[0]] if difference.op == "sub" else []
    while waiting:
        term = waiting.pop()
        if is_product(term, made.facts) or made.contraction(term) is not None:
            return True
        waiting += term.children if term.op in OF_PRODUCTS else ()
    return False


def _is_rounded(term: Term, made: Form) -> bool:
    """Whether all that is made of a value is a 16-bit float in the end."""
    if made.facts.dtype(term).name in SIXTEEN:
        return True
    if any(one.term is term for one in made.stored):
        return False
    users = [user for user in made.computed if term in user.children]
    return bool(users) and all(_passes(user, term, made) for user in users)


def _passes(user: Term, term: Term, made: Form) -> bool:
    if user.op == "cast":
        return user.args[0] in SIXTEEN
    passed = user.op in PASSED_ON or (user.op == "where" and user.children[0] is not term)
    return passed and _is_rounded(user, made)
