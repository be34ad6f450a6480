"""Rules as data: named rewrites over term patterns, with guards.

A rule is a generator function under `@rule(group)`: its parameters are pattern variables, its name
is the rule's name everywhere, its docstring opens with the equation. The same data yields the
egglog text, the matcher of the independent trace checker, and the documentation table.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NoReturn, cast

from eqsat.errors import ArgumentError, RuleError
from eqsat.graph.dtypes import BY_NAME
from eqsat.named import distinct, nearest
from eqsat.settings import PRECISIONS

# The groups of rules by the search that they grow: that of a segment, that of a kernel.
ALGEBRA = ("algebra", "distribute")
SCHEDULING = ("fusion", "substitution", "tiling", "staging")
GROUPS = (*ALGEBRA, *SCHEDULING)
SORTS = ("Expr", "Indices", "Number", "Text", "Count", "Read", "Place", "Law")


@dataclass(frozen=True)
class Variable:
    """A pattern variable. `sort` is Expr, Indices (a mask), Number, Text, Count (an integer), Read
    (what a read refers to), Place (the index expression of a position) or Law (of a carry).
    """

    name: str
    sort: str = "Expr"

    def __add__(self, other: "Operand") -> "Node":
        return Node("add", (self, _lifted(other, self)))

    def __radd__(self, other: float) -> "Node":
        return Node("add", (_lifted(other, self), self))

    def __mul__(self, other: "Operand") -> "Node":
        return Node("mul", (self, _lifted(other, self)))

    def __rmul__(self, other: float) -> "Node":
        return Node("mul", (_lifted(other, self), self))

    def __sub__(self, other: "Operand") -> "Node":
        return Node("sub", (self, _lifted(other, self)))

    def __rsub__(self, other: float) -> "Node":
        return Node("sub", (_lifted(other, self), self))

    def __truediv__(self, other: "Operand") -> "Node":
        return Node("div", (self, _lifted(other, self)))

    def __rtruediv__(self, other: float) -> "Node":
        return Node("div", (_lifted(other, self), self))

    def __neg__(self) -> "Node":
        return Node("neg", (self,))

    def __pow__(self, other: object) -> NoReturn:
        raise RuleError(
            f"patterns have no `**`; got it between {self} and {other}. Write a * a, "
            f'apply("square", a) or apply("pow", a, b).'
        )

    __rpow__ = __pow__

    def __str__(self) -> str:
        return self.name

    def __or__(self, other: "Mask") -> "MaskOp":
        return MaskOp("|", self, other)

    def __and__(self, other: "Mask") -> "MaskOp":
        return MaskOp("&", self, other)

    def without(self, other: "Mask") -> "MaskOp":
        """The index set less another."""
        return MaskOp("-", self, other)


@dataclass(frozen=True)
class Node:
    """A pattern: an operation over patterns, masks and atoms."""

    op: str
    args: tuple["Pattern | Mask | DTypeOf | float | str", ...]

    __add__, __radd__ = Variable.__add__, Variable.__radd__
    __mul__, __rmul__ = Variable.__mul__, Variable.__rmul__
    __sub__, __rsub__ = Variable.__sub__, Variable.__rsub__
    __truediv__, __rtruediv__ = Variable.__truediv__, Variable.__rtruediv__
    __neg__ = Variable.__neg__
    __pow__, __rpow__ = Variable.__pow__, Variable.__rpow__

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.args))})"


@dataclass(frozen=True)
class Free:
    """free(a): the index set of a pattern."""

    of: "Variable | Node"

    __or__ = Variable.__or__
    __and__ = Variable.__and__
    without = Variable.without


@dataclass(frozen=True)
class MaskOp:
    """Union, intersection or difference of index sets."""

    op: str
    left: "Mask"
    right: "Mask"

    __or__ = Variable.__or__
    __and__ = Variable.__and__
    without = Variable.without


@dataclass(frozen=True)
class PointsIn:
    """The number of points that an index set spans, as a number."""

    mask: "Mask"


@dataclass(frozen=True)
class NumberOf:
    """The product (*) or the quotient (/) of two numbers, as a number."""

    op: str
    left: Variable | float
    right: Variable | PointsIn


@dataclass(frozen=True)
class DTypeOf:
    """The dtype name of a pattern variable."""

    of: Variable

    def __str__(self) -> str:
        return f"DTypeOf({self.of})"


Mask = Variable | Free | MaskOp
Pattern = Variable | Node
Operand = Pattern | int | float


def _lifted(value: Operand, beside: Pattern) -> Pattern:
    """A number as a literal of the dtype that the pattern beside it has."""
    if not isinstance(value, int | float):
        return value
    of = next((v for v in variables_of(beside) if v.sort == "Expr"), None)
    if of is None:
        raise RuleError(
            f"nothing tells the dtype of {value} in a pattern: no variable stands beside it. Write "
            f'apply("literal", {float(value)}, d) with a parameter d: "Text".'
        )
    return Node("literal", (float(value), DTypeOf(of)))


@dataclass(frozen=True)
class Condition:
    """A guard. `kind`: disjoint, overlap, differ, nonempty (index sets); dtype_in; fact; a fact of
    eqsat.terms.finite."""

    kind: str
    args: tuple[object, ...]


@dataclass(frozen=True)
class Rewrite:
    """left -> right, when every condition holds."""

    left: Node
    right: Pattern
    conditions: tuple[Condition, ...] = ()

    def when(self, *conditions: Condition) -> "Rewrite":
        """The same rewrite under further conditions. ArgumentError for what is none."""
        for one in conditions:
            if not isinstance(one, Condition):
                raise ArgumentError(
                    f"when() takes conditions, got a value of type {type(one).__name__}. Give "
                    f"those of eqsat.rule; finite and known give several: .when(*finite(a))."
                )
        return replace(self, conditions=self.conditions + conditions)

    @cached_property
    def needed(self) -> frozenset[str]:
        """The operations of the left side."""
        return _ops(self.left)

    @cached_property
    def made(self) -> frozenset[str]:
        """The operations of the right side."""
        return _ops(self.right)

    @cached_property
    def texts(self) -> frozenset[str]:
        """What the right side names: dtypes, operations of a spec."""
        return _texts(self.right)

    @cached_property
    def dtype_guards(self) -> tuple[frozenset[str], ...]:
        """The dtypes of which each of the guards asks for one."""
        asked = (one.args[1] for one in self.conditions if one.kind == "dtype_in")
        return tuple(frozenset(cast("Sequence[str]", names)) for names in asked)


@dataclass(frozen=True)
class Rule:
    """A named law: its rewrites, its group (the ruleset it runs in) and its equation.

    `precision`: the first of PRECISIONS under which the law may be used.
    """

    name: str
    group: str
    equation: str
    note: str
    rewrites: tuple[Rewrite, ...]
    precision: str = "exact"

    @cached_property
    def text(self) -> str:
        """All of it; equal rules have equal texts."""
        return repr(self)

    @cached_property
    def texts(self) -> frozenset[str]:
        """What the right sides name: dtypes, operations of a spec."""
        return frozenset[str]().union(*(one.texts for one in self.rewrites))

    def only(self, kept: Callable[[Rewrite], bool]) -> "Rule":
        """The rule with some of its rewrites."""
        rewrites = tuple(filter(kept, self.rewrites))
        return self if rewrites == self.rewrites else replace(self, rewrites=rewrites)


def allowed(rules: Iterable[Rule], precision: str) -> tuple[Rule, ...]:
    """The rules that a choice of precision allows."""
    most = PRECISIONS.index(precision)
    return tuple(rule for rule in rules if PRECISIONS.index(rule.precision) <= most)


# Dtypes of what operations compute from values of others: comparisons, positions, wide sums.
COMPUTED = frozenset({"bool", "int32", "int64", "float32"})
# Operations of kernels alone that a spec may lack; a rewrite to one names the dtypes it is for.
OPTIONAL = frozenset({"one_plus_erf"})


def priced(rules: Iterable[Rule], has_row: Callable[[str, str], bool]) -> tuple[Rule, ...]:
    """The rules less rewrites to an optional operation that lacks a row (operation, dtype)."""

    def kept(one: Rewrite) -> bool:
        op = one.right.op if isinstance(one.right, Node) else ""
        dtypes = [name for names in one.dtype_guards for name in names]
        return op not in OPTIONAL or all(has_row(op, name) for name in dtypes)

    less = (rule.only(kept) for rule in rules)
    return tuple(rule for rule in less if rule.rewrites)


def applicable(
    rules: Iterable[Rule], ops: Iterable[str], dtypes: Iterable[str] | None = None
) -> tuple[Rule, ...]:
    """The rules less rewrites of operations that neither occur nor come of other rewrites; where
    `dtypes` are given, nor those for dtypes of which that is true.
    """
    rules, known = tuple(rules), set(ops)
    kinds = None if dtypes is None else {*dtypes, *COMPUTED}
    waiting = [one for rule in rules for one in rule.rewrites]

    def is_ready(one: Rewrite) -> bool:
        if not one.needed <= known:
            return False
        return kinds is None or not any(map(kinds.isdisjoint, one.dtype_guards))

    while ready := [one for one in waiting if is_ready(one)]:
        waiting = [one for one in waiting if not is_ready(one)]
        known.update(*(one.made for one in ready))
        if kinds is not None:
            kinds.update(*(one.texts for one in ready))
    left_out = {id(one) for one in waiting}
    less = (rule.only(lambda one: id(one) not in left_out) for rule in rules)
    return tuple(rule for rule in less if rule.rewrites)


def _ops(pattern: object) -> frozenset[str]:
    """The operations of a pattern."""
    if not isinstance(pattern, Node):
        return frozenset()
    return frozenset({pattern.op}).union(*map(_ops, pattern.args))


def _texts(pattern: object) -> frozenset[str]:
    if isinstance(pattern, str):
        return frozenset({pattern})
    parts = pattern.args if isinstance(pattern, Node) else ()
    return frozenset[str]().union(*map(_texts, parts))


def disjoint(a: Mask, b: Mask) -> Condition:
    """a and b share no index."""
    return Condition("disjoint", (a, b))


def overlap(a: Mask, b: Mask) -> Condition:
    """a and b share an index."""
    return Condition("overlap", (a, b))


def differ(a: Mask, b: Mask) -> Condition:
    """a and b are different index sets."""
    return Condition("differ", (a, b))


def nonempty(a: Mask) -> Condition:
    """a holds an index."""
    return Condition("nonempty", (a,))


def dtype_in(a: Variable, *names: str) -> Condition:
    """The dtype of a is one of those named. RuleError for a name that is no dtype."""
    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        raise RuleError(f"dtype_in: no dtype is named {unknown[0]}. {nearest(unknown[0], BY_NAME)}")
    return Condition("dtype_in", (a, names))


def finite(*patterns: Pattern) -> tuple[Condition, ...]:
    """Every one is known to hold no infinity and no NaN."""
    return tuple(Condition("finite", (pattern,)) for pattern in patterns)


def known(fact: str, *patterns: Pattern) -> tuple[Condition, ...]:
    """Every one has that fact of eqsat.terms.finite, such as `nonneg`."""
    return tuple(Condition(fact, (pattern,)) for pattern in patterns)


def fact(name: str, *args: object) -> Condition:
    """A relation given to the search holds for the arguments."""
    return Condition("fact", (name, *args))


FLOATS = ("float16", "bfloat16", "float32", "float64")
WIDE_FLOATS = ("float32", "float64")


def rewrite(left: Pattern, right: Pattern) -> Rewrite:
    """left -> right; a number beside a pattern is a literal of that pattern's dtype."""
    if not isinstance(left, Node):
        raise RuleError(
            f"the left side of a rewrite must be an operation; got {left}. Write what the rule is "
            f'to find, as a * b or apply("exp", a).'
        )
    if not isinstance(right, Variable | Node):
        raise RuleError(
            f"the right side of a rewrite must be a pattern; got {right!r}. A number by itself is "
            f'apply("literal", 0.0, DTypeOf(a)), of the dtype that a has.'
        )
    bound = _with_own_dtypes(left)
    assert isinstance(bound, Node)
    return Rewrite(bound, right)


def _with_own_dtypes(pattern: object) -> object:
    """A left side that takes the dtypes of its literals as they are: operands agree in theirs."""
    match pattern:
        case DTypeOf(of=of):
            return Variable(f"dtype_of_{of.name}", "Text")
        case Node(op=op, args=args):
            return Node(op, tuple(_with_own_dtypes(arg) for arg in args))  # type: ignore[arg-type]
    return pattern


def apply(op: str, *args: "Pattern | Mask | DTypeOf | float | str") -> Node:
    """The pattern of an operation by name."""
    return Node(op, args)


def rule(
    group: str, precision: str = "exact"
) -> Callable[[Callable[..., Iterator[Rewrite]]], Rule]:
    """Make a Rule from a generator function; parameters annotated with a sort's name."""
    if not isinstance(group, str):
        raise RuleError(
            f'@rule needs a group: write @rule("algebra"), or another of {", ".join(GROUPS)}.'
        )
    if precision not in PRECISIONS:
        raise RuleError(f"no precision is named {precision}. {nearest(precision, PRECISIONS)}")

    def decorate(function: Callable[..., Iterator[Rewrite]]) -> Rule:
        variables = [
            Variable(name, parameter.annotation)
            for name, parameter in inspect.signature(function).parameters.items()
        ]
        equation, _, note = inspect.cleandoc(function.__doc__ or "").partition("\n")
        if not equation:
            raise RuleError(
                f"rule {function.__name__} needs a docstring that opens with its law, as "
                f'"""a * b  ->  b * a""".'
            )
        if group not in GROUPS:
            raise RuleError(
                f"rule {function.__name__} is of group {group!r}, which no search runs. Use one of "
                f"{', '.join(GROUPS)}."
            )
        for one in variables:
            if one.sort not in SORTS:
                raise RuleError(
                    f"parameter {one.name} of rule {function.__name__} needs the name of a sort as "
                    f'its annotation, such as {one.name}: "Expr". Use one of {", ".join(SORTS)}.'
                )
        rewrites = _yielded(function.__name__, function(*variables))
        for one in rewrites:
            _check_bound(function.__name__, one)
        return Rule(function.__name__, group, equation, note.strip(), rewrites, precision)

    return decorate


def _yielded(name: str, found: object) -> tuple[Rewrite, ...]:
    """The rewrites of a rule. RuleError where its function yields none, or what is none."""
    try:
        given = list(cast("Iterable[object]", found)) if isinstance(found, Iterator) else []
    except RuleError as error:
        raise RuleError(f"rule {name}: {error}") from error
    wrong = [one for one in given if not isinstance(one, Rewrite)]
    if wrong or not given:
        what = f"yields a value of type {type(wrong[0]).__name__}" if wrong else "yields nothing"
        if not isinstance(found, Iterator):
            what = f"returns a value of type {type(found).__name__}"
        raise RuleError(f"rule {name} {what}. Yield rewrite(left, right), once or more.")
    return tuple(cast("list[Rewrite]", given))


def variables_of(pattern: object) -> Iterator[Variable]:
    """Every variable in a pattern, mask or condition argument."""
    match pattern:
        case Variable():
            yield pattern
        case Node(args=args):
            for arg in args:
                yield from variables_of(arg)
        case Free(of=of):
            yield from variables_of(of)
        case DTypeOf(of=of):
            yield of
        case MaskOp(left=left, right=right):
            yield from variables_of(left)
            yield from variables_of(right)
        case PointsIn(mask=mask):
            yield from variables_of(mask)
        case NumberOf(left=left, right=right):
            yield from (v for one in (left, right) for v in variables_of(one))
        case _:
            return


def _check_bound(name: str, one: Rewrite) -> None:
    bound = {v.name for v in variables_of(one.left)}
    for condition in one.conditions:
        if condition.kind == "fact":
            bound |= {v.name for arg in condition.args for v in variables_of(arg)}
    unbound = {v.name for v in variables_of(one.right)} - bound
    if unbound:
        raise RuleError(
            f"rule {name}: {', '.join(sorted(unbound))} occurs on the right side only, so that no "
            f"program says what it is. Make the right side of parameters that the left one has."
        )


def collect(*namespaces: Mapping[str, object]) -> tuple[Rule, ...]:
    """The rules of some modules, in order; a second rule of one name is refused."""
    return distinct(v for names in namespaces for v in names.values() if isinstance(v, Rule))
