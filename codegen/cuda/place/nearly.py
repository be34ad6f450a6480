"""Values in registers that are 16-bit floats, or of which nothing else is made: their last bits do
not matter.

What is rounded to 8 or 11 bits of mantissa may be off by some units in the last place of a float32
before. Products and quotients pass a relative error on as it is, and so do sums of what is not
negative; the instructions named here are exact to 2^-17 or better, also for subnormal numbers.
"""

from eqsat.graph.dtypes import float32
from eqsat.kernel.ir import Literal, Map, Statement, operands
from eqsat.layout.needs import SIXTEEN
from eqsat.price.nearly import KEEPS_SIGN, NOT_NEGATIVE, PASSED_ON

from .placement import Placement

NEARLY = {
    "div": "divide_nearly",
    "reciprocal": "reciprocal_nearly",
    "rsqrt": "inverse_root_nearly",
    "exp": "exp_nearly",
}
"""Operations, and the device function for such values."""


def rounded_values(placement: Placement) -> frozenset[str]:
    """The names of such values."""
    found: dict[str, bool] = {}
    for name in reversed(placement.statements):  # what reads a value mostly before it
        _is_rounded(placement, name, found)
    return frozenset(name for name, is_rounded in found.items() if is_rounded)


def _is_rounded(placement: Placement, name: str, found: dict[str, bool]) -> bool:
    if name not in found:
        found[name] = False  # also for what leads back to itself
        users = [placement.statements.get(user) for user in placement.users[name]]
        all_round = bool(users) and all(_rounds(placement, u, name, found) for u in users)
        dtype = placement.dtypes[name]
        found[name] = dtype.name in SIXTEEN or (dtype == float32 and all_round)
    return found[name]


def _rounds(
    placement: Placement, user: Statement | None, name: str, found: dict[str, bool]
) -> bool:
    """Whether what is made of a value is a 16-bit float in the end."""
    if not isinstance(user, Map):
        return False
    if user.op == "cast":
        return user.dtype.name in SIXTEEN
    passed = user.op in PASSED_ON or (user.op == "where" and name != user.arguments[0])
    if user.op == "add":
        passed = all(_is_positive(placement, one) for one in user.arguments)
    return passed and _is_rounded(placement, user.name, found)


def _is_positive(placement: Placement, name: str) -> bool:
    """Whether a value is known not to be negative."""
    seen, todo = set[str](), [name]
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        match placement.statements.get(one):
            case Literal(value=value) if value >= 0:
                pass
            case Map(op=op) as made if op in KEEPS_SIGN:
                todo += operands(made)
            case Map(op=op) if op in NOT_NEGATIVE:
                pass
            case _:
                return False
    return True
