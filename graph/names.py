"""The one gate through which a user's names pass, since names reach generated source."""

import re
from keyword import iskeyword

from eqsat.errors import IdentifierError

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)


def check_identifier(name: object, what: str = "input name") -> None:
    """Raise IdentifierError unless the name may stand in generated source.

    It must be a `str` itself, not of a subclass, of 1 to 64 ASCII letters, digits and underscores,
    with no digit in front, and no Python keyword.
    """
    if type(name) is str and _IDENTIFIER.fullmatch(name) and not iskeyword(name):
        return
    shown = repr(name)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    raise IdentifierError(
        f"{what} {shown} is no plain identifier. Use 1 to 64 ASCII letters, digits and "
        f"underscores, not starting with a digit, and no Python keyword."
    )
