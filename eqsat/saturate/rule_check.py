"""Whether the rules that a caller gives are rules, of operations that programs have.

A pattern of an operation that no term has never matches, which would go unnoticed.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from eqsat import graph
from eqsat.errors import ArgumentError, RuleError
from eqsat.graph.ops import ELEMENTWISE, OPS
from eqsat.rule import Node, Rule, distinct, nearest


def checked(given: object, shipped: Sequence[Rule]) -> tuple[Rule, ...]:
    """The rules, each once. ArgumentError for what is none, RuleError for a pattern of an operation
    that neither tensors nor the shipped rules have, or of another number of arguments.
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


def _known(shipped: Iterable[Rule]) -> dict[str, set[int]]:
    """The numbers of arguments that operations of terms have."""
    found = {op: {OPS[op].arity} for op in ELEMENTWISE}
    found |= {"cast": {2}, "literal": {2}, "read": {1}, "position": {1}}
    for rule in shipped:
        for node in _nodes(rule):
            found.setdefault(node.op, set()).add(len(node.args))
    return found


def _check(rule: Rule, known: dict[str, set[int]]) -> None:
    for node in _nodes(rule):
        counts = known.get(node.op)
        if counts is None and hasattr(graph, node.op):
            raise RuleError(
                f"rule {rule.name}: {node.op} is made of other operations, which programs have in "
                f"its place. Write the pattern of these; explain() shows them."
            )
        if counts is None:
            raise RuleError(
                f"rule {rule.name}: no operation is named {node.op}. {nearest(node.op, known)}"
            )
        if len(node.args) not in counts:
            wanted = " or ".join(map(str, sorted(counts)))
            raise RuleError(
                f"rule {rule.name}: {node.op} takes {wanted} arguments in a pattern; got "
                f"{len(node.args)}."
            )


def _nodes(rule: Rule) -> Iterator[Node]:
    todo: list[object] = [side for one in rule.rewrites for side in (one.left, one.right)]
    while todo:
        pattern = todo.pop()
        if isinstance(pattern, Node):
            yield pattern
            todo += pattern.args
