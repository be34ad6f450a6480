"""Whether the rules that a caller gives are rules, of operations that programs have.

A pattern of an operation that no term has never matches, which would go unnoticed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

from eqsat import graph
from eqsat.carry_law import CarryLaw
from eqsat.errors import ArgumentError, RuleError
from eqsat.graph.ops import ELEMENTWISE, OPS
from eqsat.named import distinct, nearest
from eqsat.rule import DTypeOf, Free, MaskOp, Node, NumberOf, PointsIn, Rule, Variable, apply
from eqsat.saturate.egglog_text import sorts_of


def checked(given: object, shipped: Sequence[Rule]) -> tuple[Rule, ...]:
    """The rules, each once. ArgumentError for what is none, RuleError for a pattern of an operation
    that neither tensors nor the shipped rules have, or of other arguments.
    """
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise ArgumentError(
            f"rules= takes a sequence of rules; got a value of type {type(given).__name__}. Pass "
            f"[*default_rules(), my_rule]."
        )
    rules: list[Rule] = []
    for one in cast("Iterable[object]", given):
        if not isinstance(one, Rule):
            raise ArgumentError(
                f"rules= takes rules; got a value of type {type(one).__name__}. Put @rule(group) "
                f"of eqsat.rule over the function that yields its rewrites."
            )
        rules.append(one)
    own = set(shipped)
    new = [one for one in rules if one not in own]
    if new:
        known = _known(shipped)
        for one in new:
            _check(one, known)
    return distinct(rules)


@contextmanager
def told(given: Iterable[Rule], shipped: Iterable[Rule]) -> Iterator[None]:
    """Within it errors of rules name those that a caller added to the shipped ones."""
    try:
        yield
    except RuleError as error:
        own = set(shipped)
        names = [one.name for one in given if one not in own]
        if not names:
            raise
        raise RuleError(f"{error} Added to the shipped rules: {', '.join(names)}.") from error


def _known(shipped: Iterable[Rule]) -> dict[str, dict[tuple[str, ...], str]]:
    """The arguments that operations of terms have: as egglog's sorts, and in words."""
    own = [Node(op, (Variable("a"),) * OPS[op].arity) for op in ELEMENTWISE if op != "cast"]
    own += [apply("cast", "float32", Variable("a")), apply("literal", 1.0, "float32")]
    own += [apply("read", Variable("r", "Read")), apply("position", Variable("p", "Place"))]
    found: dict[str, dict[tuple[str, ...], str]] = {}
    for node in (*own, *(node for rule in shipped for node in _nodes(rule))):
        found.setdefault(node.op, {}).setdefault(sorts_of(node.args), _kinds(node))
    return found


def _kinds(node: Node) -> str:
    """The sorts of a pattern's arguments, by the names that parameters are annotated with."""
    return ", ".join(map(_kind, node.args))


def _kind(arg: object) -> str:
    match arg:
        case Variable(sort=sort):
            return sort
        case Node():
            return "Expr"
        case str() | DTypeOf():
            return "Text"
        case CarryLaw():
            return "Law"
        case float() | PointsIn() | NumberOf():
            return "Number"
        case Free() | MaskOp():
            return "Indices"
    return "Count"


def _check(rule: Rule, known: Mapping[str, Mapping[tuple[str, ...], str]]) -> None:
    for node in _nodes(rule):
        sorts = known.get(node.op)
        if sorts is None and hasattr(graph, node.op):
            raise RuleError(
                f"rule {rule.name}: {node.op} is made of other operations, which programs have in "
                f"its place. Write the pattern of these; explain() shows them."
            )
        if sorts is None:
            raise RuleError(
                f"rule {rule.name}: no operation is named {node.op}. {nearest(node.op, known)}"
            )
        counts = {len(one) for one in sorts}
        if len(node.args) not in counts:
            wanted = " or ".join(map(str, sorted(counts)))
            raise RuleError(
                f"rule {rule.name}: {node.op} takes {wanted} arguments in a pattern; got "
                f"{len(node.args)}."
            )
        if _sorts(node, rule.name) not in sorts:
            wanted = " or ".join(f"({kinds})" for kinds in sorts.values())
            raise RuleError(
                f"rule {rule.name}: {node.op} takes {wanted} in a pattern, in this order; got "
                f"({_kinds(node)}) in {node}. See CONTRIBUTING.md, Add a rule."
            )


def _sorts(node: Node, name: str) -> tuple[str, ...]:
    try:
        return sorts_of(node.args)
    except RuleError as error:
        raise RuleError(f"rule {name}: {error}") from None


def _nodes(rule: Rule) -> Iterator[Node]:
    todo: list[object] = [side for one in rule.rewrites for side in (one.left, one.right)]
    while todo:
        pattern = todo.pop()
        if isinstance(pattern, Node):
            yield pattern
            todo += pattern.args
