"""An explanation as text, JSON or HTML."""

from eqsat.explanation import Explanation


def render(explanation: Explanation, format: str = "text") -> str:
    """The explanation in one of the formats."""
    return repr(explanation)
