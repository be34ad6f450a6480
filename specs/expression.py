"""The tree of an index expression: reads at affine indices, numbers, functions of them."""

from collections.abc import Iterator
from dataclasses import dataclass

FUNCTION_ARITY = {
    "add": 2, "sub": 2, "mul": 2, "div": 2, "neg": 1, "abs": 1,
    "maximum": 2, "minimum": 2, "fma": 3, "where": 3, "less": 2, "equal": 2,
    "exp": 1, "exp2": 1, "log": 1, "log2": 1, "sqrt": 1, "rsqrt": 1, "reciprocal": 1,
    "sin": 1, "cos": 1, "tanh": 1, "erf": 1, "floor": 1, "square": 1, "sign": 1,
}  # fmt: skip
"""The functions that semantics may use, by the names of the graph's op table."""

OPERATORS = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
_SYMBOLS = {function: symbol for symbol, function in OPERATORS.items()}
_PRECEDENCE = {"add": 1, "sub": 1, "mul": 2, "div": 2, "neg": 3}


@dataclass(frozen=True)
class AffineIndex:
    """An index `2*i + j + 1`: terms are (index name, coefficient) pairs, sorted by first use."""

    terms: tuple[tuple[str, int], ...]
    offset: int = 0

    @property
    def name(self) -> str:
        """The index's name if it is a plain one, else ""."""
        plain = len(self.terms) == 1 and self.terms[0][1] == 1 and self.offset == 0
        return self.terms[0][0] if plain else ""

    def __str__(self) -> str:
        text = ""
        for name, scale in (*self.terms, ("", self.offset)):
            if scale or not (text or name):
                size = abs(scale)
                term = name if name and size == 1 else f"{size}*{name}" if name else str(size)
                sign = "-" if scale < 0 else "+"
                text += f" {sign} {term}" if text else term if scale >= 0 else f"-{term}"
        return text


@dataclass(frozen=True)
class Read:
    """An operand at some indices: `a[m,k]`; `alpha[]` is a scalar."""

    operand: str
    indices: tuple[AffineIndex, ...]

    @property
    def index_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for index in self.indices for name, _ in index.terms))

    @property
    def is_plain(self) -> bool:
        """Every index is one name, and no name appears twice."""
        names = [index.name for index in self.indices]
        return all(names) and len(set(names)) == len(names)

    def __str__(self) -> str:
        return f"{self.operand}[{','.join(str(index) for index in self.indices)}]"


@dataclass(frozen=True)
class Number:
    """A literal."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:g}" if float(f"{self.value:g}") == self.value else repr(self.value)


@dataclass(frozen=True)
class Apply:
    """A function of FUNCTION_ARITY applied to expressions."""

    function: str
    arguments: "tuple[Expression, ...]"

    def __str__(self) -> str:
        if self.function == "neg":
            return f"-{_wrapped(self.arguments[0], 3)}"
        if self.function in _SYMBOLS:
            level = _PRECEDENCE[self.function]
            left, right = self.arguments
            symbol = _SYMBOLS[self.function]
            return f"{_wrapped(left, level)} {symbol} {_wrapped(right, level + 1)}"
        return f"{self.function}({', '.join(str(argument) for argument in self.arguments)})"


Expression = Read | Number | Apply


def _wrapped(node: Expression, level: int) -> str:
    inner = _PRECEDENCE.get(node.function, 9) if isinstance(node, Apply) else 9
    return f"({node})" if inner < level else str(node)


def walk(node: Expression) -> Iterator[Expression]:
    """The node and all below it, each before its arguments."""
    yield node
    if isinstance(node, Apply):
        for argument in node.arguments:
            yield from walk(argument)
