"""What an operation of a spec computes, as an index expression: `d[m,n] += a[m,k] * b[k,n]`.

The text is parsed into a small tree that rules match and the oracle runs; it is never evaluated.
"""

import math
import re
from dataclasses import dataclass
from functools import cached_property

from eqsat.errors import SpecError

from .expression import (
    FUNCTION_ARITY,
    OPERATORS,
    AffineIndex,
    Apply,
    Expression,
    Number,
    Read,
    walk,
)
from .fields import did_you_mean

UPDATES = ("=", "+=", "*=", "max=", "min=")
"""`=` stores; the others fold into the output with the monoid of that name."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"
    r"|(?P<update>\+=|\*=|max\s*=|min\s*=|=)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<symbol>[-+*/(),\[\]]))"
)
_MAX_DEPTH = 32
_MAX_LENGTH = 500


@dataclass(frozen=True)
class OperationSemantics:
    """`output update expression`, as `d[m,n] += a[m,k] * b[k,n]`; str() gives the text again."""

    output: Read
    update: str
    expression: Expression

    @classmethod
    def parse(cls, text: str) -> "OperationSemantics":
        """Parse an index expression; SpecError says the column and what was expected."""
        return _Parser(text).statement()

    @property
    def reads(self) -> tuple[Read, ...]:
        """Every read of the expression, from left to right."""
        return tuple(node for node in walk(self.expression) if isinstance(node, Read))

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the inputs, by first use."""
        return tuple(dict.fromkeys(read.operand for read in self.reads))

    @property
    def index_names(self) -> tuple[str, ...]:
        """All indices: the output's first, then the reduced ones by first use."""
        return self.output.index_names + self.reduced_index_names

    @cached_property
    def reduced_index_names(self) -> tuple[str, ...]:
        """The indices that the update folds away: read, but not in the output."""
        read = dict.fromkeys(name for node in self.reads for name in node.index_names)
        return tuple(name for name in read if name not in self.output.index_names)

    @cached_property
    def contraction(self) -> tuple[Read, Read] | None:
        """The two factors if this is a product of two matrices, else None: sums over one index
        that both have, of products of two plain reads with one more index each.
        """
        node = self.expression
        if self.update != "+=" or not isinstance(node, Apply) or node.function != "mul":
            return None
        left, right = node.arguments
        if not isinstance(left, Read) or not isinstance(right, Read):
            return None
        if left.operand == right.operand or not (left.is_plain and right.is_plain):
            return None
        rows, columns = set(left.index_names), set(right.index_names)
        summed = set(self.reduced_index_names)
        whole = rows & columns == summed and rows ^ columns == set(self.output.index_names)
        sizes = (len(rows), len(columns), len(summed))
        return (left, right) if whole and sizes == (2, 2, 1) else None

    def __str__(self) -> str:
        return f"{self.output} {self.update} {self.expression}"


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    column: int


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            column = position + len(text[position:]) - len(text[position:].lstrip())
            raise _error(text, column, f"unexpected {text[column]!r}", "Use names, numbers, + - * /"
                         " ( ) [ ] and an update such as +=.")  # fmt: skip
        kind = str(match.lastgroup)
        found.append(_Token(kind, re.sub(r"\s", "", match[kind]), match.start(kind)))
        position = match.end()
    found.append(_Token("end", "end of text", len(text)))
    return found


def _error(text: str, column: int, problem: str, advice: str) -> SpecError:
    return SpecError(f"semantics `{text}`, column {column + 1}: {problem}.\n{advice}")


class _Parser:
    """Recursive descent over the tokens; each method consumes what it names."""

    def __init__(self, text: str) -> None:
        if len(text) > _MAX_LENGTH:
            raise SpecError(
                f"semantics of {len(text)} characters; at most {_MAX_LENGTH} are read.\n"
                "Split the operation in two."
            )
        self.text = text
        self.tokens = _tokens(text)
        self.position = 0
        self.depth = 0

    @property
    def next(self) -> _Token:
        return self.tokens[self.position]

    def at(self, text: str) -> bool:
        return self.next.text == text

    def take(self) -> _Token:
        token = self.next
        self.position = min(self.position + 1, len(self.tokens) - 1)
        return token

    def fail(self, token: _Token, problem: str, advice: str) -> SpecError:
        return _error(self.text, token.column, problem, advice)

    def expect(self, text: str) -> None:
        token = self.take()
        if token.text != text:
            raise self.fail(token, f"got `{token.text}` where `{text}` belongs", f"Add `{text}`.")

    def statement(self) -> OperationSemantics:
        output_token = self.next
        output = self.access(self.name())
        update = self.take()
        if update.kind != "update":
            raise self.fail(
                update,
                f"got `{update.text}` where an update belongs",
                f"Use one of {' '.join(UPDATES)}, as in `d[m,n] += a[m,k] * b[k,n]`.",
            )
        expression = self.sum()
        if self.next.kind != "end":
            raise self.fail(self.next, f"surplus `{self.next.text}`", "Remove it.")
        semantics = OperationSemantics(output, update.text, expression)
        self.check(semantics, output_token)
        return semantics

    def check(self, semantics: OperationSemantics, token: _Token) -> None:
        output, reduced = semantics.output, semantics.reduced_index_names
        if not output.is_plain:
            raise self.fail(
                token,
                f"output `{output}` has a composite or repeated index",
                "Give the output plain, distinct indices, as `d[m,n]`.",
            )
        if output.operand in semantics.operands:
            raise self.fail(
                token,
                f"output `{output.operand}` is read on the right",
                f"Use += and leave `{output.operand}` out, or give the input its own name.",
            )
        if semantics.update == "=" and reduced:
            raise self.fail(
                token,
                f"index `{reduced[0]}` is read but `=` does not fold it away",
                f"Add `{reduced[0]}` to the output, or use += or max=.",
            )
        self.check_ranks(semantics, token)

    def check_ranks(self, semantics: OperationSemantics, token: _Token) -> None:
        rank: dict[str, int] = {}
        for read in semantics.reads:
            first = rank.setdefault(read.operand, len(read.indices))
            if first != len(read.indices):
                raise self.fail(
                    token,
                    f"`{read.operand}` is read with {first} and with {len(read.indices)} indices",
                    "Read an operand with one number of indices.",
                )

    def name(self) -> str:
        token = self.take()
        if token.kind != "name":
            raise self.fail(
                token,
                f"got `{token.text}` where an operand belongs",
                "Write an operand with its indices, as `a[m,k]`.",
            )
        return token.text

    def access(self, operand: str) -> Read:
        if self.next.text != "[":
            raise self.fail(
                self.next,
                f"operand `{operand}` has no indices",
                f"Write `{operand}[i]`, or `{operand}[]` for a scalar.",
            )
        self.expect("[")
        indices: list[AffineIndex] = []
        while not self.at("]"):
            indices.append(self.index())
            if not self.at("]"):
                self.expect(",")
        self.expect("]")
        return Read(operand, tuple(indices))

    def index(self) -> AffineIndex:
        terms: dict[str, int] = {}
        negative = self.next.text == "-" and bool(self.take())
        offset = self.index_term(terms, -1 if negative else 1)
        while self.next.text in ("+", "-"):
            sign = 1 if self.take().text == "+" else -1
            offset += self.index_term(terms, sign)
        return AffineIndex(tuple((name, scale) for name, scale in terms.items() if scale), offset)

    def index_term(self, terms: dict[str, int], sign: int) -> int:
        """One of `i`, `2*i`, `i*2`, `3`; adds to `terms`, returns the constant part."""
        factors = [self.take()]
        while self.next.text == "*":
            self.take()
            factors.append(self.take())
        scale, names = sign, list[str]()
        for token in factors:
            if token.kind == "name":
                names.append(token.text)
            elif token.kind == "number" and token.text.isdigit():
                scale *= int(token.text)
            else:
                raise self.fail(
                    token, f"got `{token.text}` in an index", "Write an index as `i` or `2*i + j`."
                )
        if len(names) > 1:
            raise self.fail(factors[0], "an index is a product of two indices",
                            "Only integer multiples of indices may be added.")  # fmt: skip
        if names:
            terms[names[0]] = terms.get(names[0], 0) + scale
            return 0
        return scale

    def sum(self) -> Expression:
        node = self.product()
        while self.next.text in ("+", "-"):
            function = OPERATORS[self.take().text]
            node = Apply(function, (node, self.product()))
        return node

    def product(self) -> Expression:
        node = self.unary()
        while self.next.text in ("*", "/"):
            function = OPERATORS[self.take().text]
            node = Apply(function, (node, self.unary()))
        return node

    def unary(self) -> Expression:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.fail(
                self.next,
                f"nested deeper than {_MAX_DEPTH}",
                "Remove parentheses, or split the operation in two.",
            )
        try:
            if self.next.text == "-":
                self.take()
                return Apply("neg", (self.unary(),))
            return self.atom()
        finally:
            self.depth -= 1

    def atom(self) -> Expression:
        token = self.take()
        if token.kind == "number":
            if not math.isfinite(float(token.text)):
                raise self.fail(token, f"`{token.text}` is no finite float64", "Write it smaller.")
            return Number(float(token.text))
        if token.text == "(":
            node = self.sum()
            self.expect(")")
            return node
        if token.kind != "name":
            raise self.fail(
                token,
                f"got `{token.text}` where a value belongs",
                "Write a read such as `a[m,k]`, a number or a function call.",
            )
        return self.call(token) if self.next.text == "(" else self.access(token.text)

    def call(self, token: _Token) -> Apply:
        arity = FUNCTION_ARITY.get(token.text)
        if arity is None:
            problem = f"unknown function `{token.text}`"
            raise self.fail(token, problem, did_you_mean(token.text, FUNCTION_ARITY))
        self.expect("(")
        arguments = [self.sum()]
        while self.next.text == ",":
            self.take()
            arguments.append(self.sum())
        self.expect(")")
        if len(arguments) != arity:
            raise self.fail(token, f"`{token.text}` got {len(arguments)} arguments",
                            f"It takes {arity}.")  # fmt: skip
        return Apply(token.text, tuple(arguments))
