"""Match a rule's left side against a term, evaluate its guards, build its right side.

Plain Python over terms, with no e-graph: it shares with the search the rules as data and nothing
else, so that what the search found can be checked here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from eqsat.carry_law import CarryLaw
from eqsat.errors import RuleError
from eqsat.graph.index import Affine
from eqsat.rule import (
    Condition,
    DTypeOf,
    Free,
    MaskOp,
    Node,
    NumberOf,
    PointsIn,
    Rewrite,
    Variable,
    variables_of,
)
from eqsat.terms import finite
from eqsat.terms.algebra import Facts, Read, Renaming, Term, Universe, post_order

Value = Term | int | float | str | Read | Affine | CarryLaw
Binding = Mapping[str, Value]
# Rows of a relation that agree with the known arguments; None stands for an unknown one.
Relation = Callable[[tuple[Value | None, ...]], Iterable[tuple[Value, ...]]]
SORTS: dict[str, type] = {
    "Expr": Term, "Indices": int, "Count": int, "Number": float, "Text": str, "Read": Read,
    "Place": Affine, "Law": CarryLaw,
}  # fmt: skip


class RegionFacts(Facts):
    """Facts of terms in which `(value n)` stands for a given term."""

    def __init__(self, universe: Universe, values: Mapping[int, Term]) -> None:
        super().__init__(universe)
        self.values = values
        self.meanings = Facts(universe)

    def _free_of(self, term: Term) -> int:
        if term.op == "value":
            return self.meanings.free(self.values[term.args[0]])  # type: ignore[index]
        return super()._free_of(term)

    def _dtype_of(self, term: Term):  # type: ignore[no-untyped-def]
        if term.op == "value":
            return self.meanings.dtype(self.values[term.args[0]])  # type: ignore[index]
        return super()._dtype_of(term)


@dataclass
class Setting:
    """What guards are evaluated in: facts, buffers that hold finite numbers, relations."""

    facts: Facts
    finite: frozenset[str] = frozenset()
    relations: Mapping[str, Relation] = field(default_factory=dict)
    _known: dict[Term, frozenset[str]] = field(default_factory=dict, repr=False)

    def knows(self, fact: str, term: Term) -> bool:
        """Whether a term has a fact, inputs being finite; as eqsat.terms.finite has it."""
        for sub in post_order([term]) if term not in self._known else ():
            if sub not in self._known:
                self._known[sub] = finite.closed(self._own_facts(sub))
        return fact in self._known[term]

    def _own_facts(self, term: Term) -> set[str]:
        first = term.args[0] if term.args else None
        if term.op == "literal":
            return finite.of_number(float(first))  # type: ignore[arg-type]
        held = isinstance(first, Renaming) or (
            isinstance(first, Read) and first.buffer in self.finite
        )
        dtype = self.facts.dtype(term).name
        found: set[str] = {"finite"} if dtype in finite.INTEGRAL else set()
        found |= {"short"} if dtype in finite.SHORT else set()
        found |= {"given"} if term.op == "read" else set()
        if isinstance(first, Read | Renaming) and not (held and abs(first.fill) < finite.LARGEST):
            return found | ({"below"} if held and first.fill < finite.LARGEST else set())
        if term.op == "read":
            return found | {"finite"}
        children = term.children
        if _from_largest(term) is not None:
            found.add("below")
        if term.op == "weighted_sum" and term.args[3].bounded:  # type: ignore[union-attr]
            found |= {"finite"} & self._known[children[1]]
        if term.op == "reduce_sum" and children[0].op == "exp":
            found |= {"positive"} if _from_largest(children[0].children[0]) == first else set()
        floats = not children or self.facts.dtype(children[-1]).name in finite.FLOATING
        for fact, needs in finite.required(term.op, len(children)):
            pairs = zip(needs, children, strict=True)
            if (fact != "nonneg" or floats) and all(self._known[c].issuperset(n) for n, c in pairs):
                found.add(fact)
        return found


def _from_largest(term: Term) -> int | None:
    """S where the term is a - max_S a."""
    if term.op != "sub" or term.children[1].op != "reduce_max":
        return None
    a, largest = term.children
    mask = largest.args[0]
    return mask if largest.children == (a,) and isinstance(mask, int) else None


def match(pattern: object, value: object, binding: dict[str, Value]) -> bool:
    """Extend a binding so that the pattern is the value; False where it cannot be.

    Computed arguments (an index set, a dtype) are compared by `settled`, once all is bound.
    """
    match pattern:
        case Variable(name=name, sort=sort):
            if type(value) is not SORTS[sort]:
                return False
            return binding.setdefault(name, value) == value
        case Node(op=op, args=args):
            if not isinstance(value, Term) or value.op != op or len(value.args) != len(args):
                return False
            return all(match(p, v, binding) for p, v in zip(args, value.args, strict=True))
        case Free() | MaskOp() | DTypeOf() | PointsIn() | NumberOf():
            return True
        case _:
            return type(pattern) is type(value) and pattern == value


def settled(pattern: object, value: object, binding: Binding, setting: Setting) -> bool:
    """Whether the computed arguments of a matched pattern are those of the value."""
    if isinstance(pattern, Node):
        assert isinstance(value, Term)
        return all(
            settled(p, v, binding, setting) for p, v in zip(pattern.args, value.args, strict=True)
        )
    if isinstance(pattern, Free | MaskOp | DTypeOf | PointsIn | NumberOf):
        return build(pattern, binding, setting) == value
    return True


def build(pattern: object, binding: Binding, setting: Setting) -> Value:
    """A pattern with its variables replaced."""
    match pattern:
        case Variable(name=name):
            return binding[name]
        case Node(op=op, args=args):
            return Term(op, *(build(a, binding, setting) for a in args))
        case Free(of=of):
            return setting.facts.free(_term(build(of, binding, setting)))
        case DTypeOf(of=of):
            return setting.facts.dtype(_term(binding[of.name])).name
        case PointsIn(mask=mask):
            return float(setting.facts.universe.size(_mask(mask, binding, setting)))
        case NumberOf(op=op, left=left, right=right):
            a, b = (build(one, binding, setting) for one in (left, right))
            assert isinstance(a, float) and isinstance(b, float)
            return a * b if op == "*" else a / b
        case MaskOp(op=op, left=left, right=right):
            a, b = _mask(left, binding, setting), _mask(right, binding, setting)
            return {"|": a | b, "&": a & b, "-": a & ~b}[op]
        case str() | int() | float() | CarryLaw():
            return pattern
    raise RuleError(f"{pattern!r} cannot stand in a rule")


def _term(value: Value) -> Term:
    assert isinstance(value, Term)
    return value


def _mask(pattern: object, binding: Binding, setting: Setting) -> int:
    value = build(pattern, binding, setting)
    assert isinstance(value, int)
    return value


def holds(condition: Condition, binding: Binding, setting: Setting) -> bool:
    """Whether a guard other than a relation holds."""
    args = condition.args
    if condition.kind in finite.FACTS:
        return setting.knows(condition.kind, _term(build(args[0], binding, setting)))
    if condition.kind == "dtype_in":
        names = args[1]
        assert isinstance(names, tuple)
        return setting.facts.dtype(_term(build(args[0], binding, setting))).name in names
    masks = [_mask(arg, binding, setting) for arg in args]
    match condition.kind:
        case "disjoint":
            return not masks[0] & masks[1]
        case "overlap":
            return bool(masks[0] & masks[1])
        case "differ":
            return masks[0] != masks[1]
        case "nonempty":
            return bool(masks[0])
    raise RuleError(f"unknown condition {condition.kind}")


def bindings(one: Rewrite, term: Term, setting: Setting) -> Iterator[dict[str, Value]]:
    """Each way in which the left side is the term, relations looked up, other guards not asked."""
    found: dict[str, Value] = {}
    if not match(one.left, term, found) or not settled(one.left, term, found, setting):
        return
    ways = [found]
    for condition in one.conditions:
        if condition.kind == "fact":
            ways = [more for way in ways for more in _related(condition, way, setting)]
    yield from ways


def _related(
    condition: Condition, binding: dict[str, Value], setting: Setting
) -> Iterator[dict[str, Value]]:
    name, *patterns = condition.args
    known = tuple(
        None if any(v.name not in binding for v in variables_of(p)) else build(p, binding, setting)
        for p in patterns
    )
    for row in setting.relations[str(name)](known):
        more = dict(binding)
        if all(match(p, value, more) for p, value in zip(patterns, row, strict=True)):
            yield more


def failed(one: Rewrite, binding: Binding, setting: Setting) -> Condition | None:
    """The first guard that does not hold, or None."""
    for condition in one.conditions:
        if condition.kind != "fact" and not holds(condition, binding, setting):
            return condition
    return None


def results(one: Rewrite, term: Term, setting: Setting) -> Iterator[Term]:
    """What the rewrite makes of a term: nothing where it does not match or a guard fails."""
    for binding in bindings(one, term, setting):
        if failed(one, binding, setting) is None:
            yield _term(build(one.right, binding, setting))


def show_condition(condition: Condition) -> str:
    """A guard as a person reads it: `disjoint(S, free(a))`."""
    return f"{condition.kind}({', '.join(map(_show, condition.args))})"


def _show(part: object) -> str:
    match part:
        case Variable(name=name):
            return name
        case Free(of=of):
            return f"free({_show(of)})"
        case MaskOp(op=op, left=left, right=right):
            return f"({_show(left)} {op} {_show(right)})"
        case Node(op=op, args=args):
            return f"{op}({', '.join(map(_show, args))})"
        case tuple():
            return " or ".join(map(str, part))
        case _:
            return str(part)
