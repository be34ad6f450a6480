"""Scopes of generated source: where an index is known, where a value was computed, lines so far."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from eqsat.graph.index import Affine, FloorDiv, Mod, bounds, free_names
from eqsat.kernel.ir import Guard

INDENT = "    "


class Scope:
    """A block of source under construction.

    A loop is added to its parent's lines only when its body is finished, so what the body hoists to
    an outer scope lands before the loop.
    """

    def __init__(self, parent: "Scope | None" = None, lines: list[str] | None = None) -> None:
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent else 0
        self.lines: list[str] = [] if lines is None else lines
        self.known: dict[str, str] = {}
        self.origins: dict[str, str] = {}
        self.offsets: dict[str, str] = {}
        self.met: frozenset[Guard] = frozenset()  # that hold at all points of its loop

    def chain(self) -> Iterator["Scope"]:
        """This scope and those around it, from the inside."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def find(self, key: str) -> str | None:
        """The source of something already computed."""
        return next((scope.known[key] for scope in self.chain() if key in scope.known), None)

    def holds(self, guard: Guard) -> bool:
        """Whether a guard is known to hold here."""
        return any(guard in scope.met for scope in self.chain())

    def origin(self, index: str) -> "Scope":
        """The scope that knows the first point of an index in the tile."""
        return next(scope for scope in self.chain() if index in scope.origins)

    def offset(self, index: str) -> "Scope":
        """The scope that knows the point of an index, counted from its origin."""
        return next(scope for scope in self.chain() if index in scope.offsets)

    def common(self, other: "Scope") -> "Scope":
        """The innermost scope around both."""
        around = set(map(id, other.chain()))
        return next(scope for scope in self.chain() if id(scope) in around)

    def deepest(self, scopes: Iterable["Scope"]) -> "Scope":
        """The innermost of some scopes around this one; the outermost of all if there are none."""
        found = max(scopes, key=lambda scope: scope.depth, default=None)
        return found or list(self.chain())[-1]

    def close(self, header: str, body: "Scope") -> None:
        """Append a finished block under its header."""
        self.lines.append(header)
        self.lines += [INDENT + line for line in body.lines] or [f"{INDENT}pass"]


class Names:
    """Distinct identifiers of generated source; whatever a name holds, an identifier comes out."""

    def __init__(self) -> None:
        self.count = 0

    def fresh(self, stem: str) -> str:
        """A new identifier that begins like `stem`."""
        self.count += 1
        plain = re.sub(r"[^A-Za-z0-9_]", "_", stem)[:24]
        return f"{plain if plain[:1].isalpha() else f'v{plain}'}_{self.count}"


def product(*factors: str | int) -> str:
    """The source of a product of integers; factors that are 1 are left out."""
    kept = [str(factor) for factor in factors if str(factor) != "1"]
    return "0" if "0" in kept else " * ".join(kept) or "1"


def total(terms: Iterable[str]) -> str:
    """The source of a sum of integers."""
    return " + ".join(term for term in terms if term != "0") or "0"


def hoist(scope: Scope, text: str, names: Names, stem: str = "a") -> str:
    """The text as a variable of the scope, computed there once; a short text stays as it is."""
    if re.fullmatch(r"-?\w+", text):
        return text
    known = scope.find(f"={text}")
    if known is None:
        known = names.fresh(stem)
        scope.lines.append(f"{known} = {text}")
        scope.known[f"={text}"] = known
    return known


def affine(expression: Affine, scope: Scope, extents: Mapping[str, int], names: Names) -> str:
    """The source of an index expression in a scope."""
    parts: list[tuple[Scope, str]] = []
    for atom, coefficient in expression.terms:
        if isinstance(atom, str):
            at, along = scope.origin(atom), scope.offset(atom)
            parts.append((at, product(coefficient, at.origins[atom])))
            parts.append((along, product(coefficient, along.offsets[atom])))
        else:
            where = place(atom.numerator, scope)
            text = _division(atom, where, extents, names)
            parts.append((where, product(coefficient, text)))
    return summed(expression.constant, parts, scope, names)


def summed(constant: int, parts: Sequence[tuple[Scope, str]], scope: Scope, names: Names) -> str:
    """The source of a sum in a scope, each partial sum computed where its terms are known."""
    text = str(constant)
    for where in sorted({where for where, _ in parts}, key=lambda where: where.depth):
        text = total([text, *(part for at, part in parts if at is where)])
        if where is not scope:
            text = hoist(where, text, names)
    return text


def place(expression: Affine, scope: Scope) -> Scope:
    """The outermost scope where every index of the expression is known."""
    used = free_names(expression)
    return scope.deepest([*map(scope.origin, used), *map(scope.offset, used)])


def _division(atom: FloorDiv | Mod, scope: Scope, extents: Mapping[str, int], names: Names) -> str:
    numerator = affine(atom.numerator, scope, extents, names)
    quotient = isinstance(atom, FloorDiv)
    if bounds(atom.numerator, extents)[0] >= 0:
        return f"{'quotient' if quotient else 'modulo'}({numerator}, {atom.divisor})"
    return f"(({numerator}) {'//' if quotient else '%'} {atom.divisor})"
