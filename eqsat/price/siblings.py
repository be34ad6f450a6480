"""Asynchronous operations that differ in their columns alone: the tile decides which is used.

One of them, the widest, stands for all while bodies and schedules are chosen.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from eqsat.rule import Rule
from eqsat.specs import ParallelOperation, ParallelProcessingUnit
from eqsat.terms.algebra import Term, rebuild, with_children
from eqsat.terms.form import SUBSTITUTED, Form, form

Family = tuple[object, ...]


def family(operation: ParallelOperation) -> Family:
    """What siblings have in common; an operation that waits for its result has none but itself."""
    if not operation.asynchronous:
        return (operation.name,)
    rows, _, *depth = operation.extents.values()
    kinds = tuple(str(row) for row in operation.supported_data_types)
    memory = tuple(operation.operand_memory.items())
    contiguous = tuple(operation.contiguous.items())
    return (rows, *depth, kinds, memory, contiguous, str(operation.semantics))


def siblings(
    spec: ParallelProcessingUnit, operation: ParallelOperation, emitted: Collection[str]
) -> list[ParallelOperation]:
    """An operation and those that the target can emit in its place, the widest first."""
    if not operation.asynchronous:
        return [operation]
    own = family(operation)
    found = [o for o in spec.operations if o.asynchronous and o.semantics]
    found = [o for o in found if o.invocation_name in emitted and family(o) == own]
    return sorted(found, key=lambda o: -list(o.extents.values())[1])


def stand_ins(spec: ParallelProcessingUnit, names: Iterable[str]) -> dict[str, str]:
    """For each operation the one of these that stands for its family."""
    widest: dict[Family, str] = {}
    operations = [spec.operation(name) for name in names]
    for operation in sorted(operations, key=lambda o: -max(o.extents.values(), default=0)):
        widest.setdefault(family(operation), operation.name)
    return {operation.name: widest[family(operation)] for operation in operations}


def representative(rules: Iterable[Rule], spec: ParallelProcessingUnit) -> list[Rule]:
    """The rules less those of operations for which a sibling's rule of the same kind stands."""
    known = {operation.name for operation in spec.operations}
    named = [(rule, next(iter(rule.texts & known), "")) for rule in rules]
    kinds: dict[str, set[str]] = {}
    for rule, name in named:
        kinds.setdefault(_kind(rule, name), set()).add(name)
    standing = {
        kind: {*stand_ins(spec, names - {""}).values(), ""} for kind, names in kinds.items()
    }
    return [rule for rule, name in named if name in standing[_kind(rule, name)]]


def _kind(rule: Rule, operation: str) -> str:
    """What a rule is called besides its operation."""
    return rule.name.replace(operation, "", 1) if operation else rule.name


def settle_operations(made: Form, names: Mapping[Term, str]) -> Form:
    """The form with these operations for its contractions."""

    def change(term: Term, children: tuple[Term, ...]) -> Term:
        fresh = with_children(term, children)
        if term not in names:
            return fresh
        return Term(fresh.op, *fresh.args[:3], names[term], *fresh.args[4:])

    stored = (replace(one, term=rebuild(one.term, change)) for one in made.stored)
    return form(stored, made.facts)


def settled_alike(body: Form, made: Form, names: Mapping[Term, str]) -> Form:
    """The body that a form is a part of, with the same operations in the same order."""
    if body is made:
        return settle_operations(body, names)
    pairs = [[t for t in one.terms if t.op in SUBSTITUTED] for one in (body, made)]
    matched = dict(zip(*pairs, strict=False))
    return settle_operations(body, {t: names[m] for t, m in matched.items() if m in names})
