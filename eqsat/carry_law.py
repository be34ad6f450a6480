"""Laws of carries as data: how a reduction of weighted values follows a pivot that moves.

A stream knows the pivot p (a maximum, a minimum, a mean) of the points seen so far. What it carries
is total_s w(s, p) * v; when the next chunk moves the pivot to q, that follows without the points:

    total_s w(s, q) * v  =  (total_s w(s, p) * v) * r(p, q) + n * t(p, q)      n points so far
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, TypeVar

import numpy as np

from eqsat.errors import RuleError
from eqsat.graph import input as graph_input
from eqsat.graph.names import check_identifier
from eqsat.graph.ops import ELEMENTWISE, OPS
from eqsat.graph.tensor import Tensor
from eqsat.rule import DTypeOf, Node, Pattern, Variable, apply

POINT, PIVOT, NEXT = Variable("s"), Variable("p"), Variable("q")
DOMAINS = ("", "nonneg", "positive")
PIVOTS: dict[str, Callable[[np.ndarray], Any]] = {"max": np.max, "min": np.min, "mean": np.mean}
Function = Callable[[Tensor, Tensor], Tensor]
T = TypeVar("T")


def _exp_difference(a: np.ndarray, b: np.ndarray, rate: float) -> np.ndarray:
    return np.where((a == -np.inf) & (b == -np.inf), 0.0, np.exp(rate * a - rate * b))


# Kernel operations f(a, b, c) that are w(c a, c b) and r(c a, c b) of some laws, 0 at the identity.
OPERATIONS = {"exp_difference": _exp_difference}


@dataclass(frozen=True)
class CarryLaw:
    """How one kind of weighted reduction is carried. Make one with `carry_law`.

    weight: w(s, p) of the variables s and p. rescale: r(p, q), None for one. shift: t(p, q), None
    for zero. pivot: a key of PIVOTS. monoid: `sum` or `min` of the products w * v; of a `min` each
    v is at most 0, and w and r are conditions. identity: the pivot of no point, where weights count
    as 0; None where they need no such care. domain: a fact that the law asks of s, of
    DOMAINS. operation, rate: a kernel operation that computes w and r at once.
    """

    name: str
    weight: Node
    rescale: Node | None = None
    shift: Node | None = None
    pivot: str = "max"
    monoid: str = "sum"
    identity: float | None = -math.inf
    domain: str = ""
    operation: str = ""
    rate: float = 1.0

    @property
    def guarded_weight(self) -> Node:
        """The weight, 0 where the pivot is that of no point."""
        return self._guarded(self.weight)

    @property
    def guarded_rescale(self) -> Node | None:
        """The rescale, 0 where the pivot before is that of no point."""
        return self.rescale and self._guarded(self.rescale)

    def _guarded(self, node: Node) -> Node:
        if self.identity is None:
            return node
        none_yet = "greater_equal" if self.pivot == "min" else "less_equal"
        at = apply(none_yet, PIVOT, _literal(self.identity))
        return apply("where", at, _literal(0.0), node)

    @property
    def operations(self) -> tuple[tuple[str, bool], ...]:
        """What a kernel applies to each point, the pivot's own operation included; and whether to
        conditions.
        """
        own = ((self.operation, False),) if self.operation else _ops(self.guarded_weight)
        return (*own, ({"max": "maximum", "min": "minimum", "mean": "add"}[self.pivot], False))

    @property
    def bounded(self) -> bool:
        """Whether weights lie in [0, 1], so that sums of finite numbers are finite."""
        return self.shift is None

    @property
    def divides(self) -> bool:
        """Whether totals of parts join by the law itself: r(p, q) = w(p, q)."""
        moved = {"p": POINT, "q": PIVOT}
        return self.shift is None and self.weight == (
            self.rescale and placed(self.rescale, moved, _literal, apply)
        )

    @property
    def neutral(self) -> bool:
        """Whether points at the neutral element of the pivot's monoid count for nothing, where
        their values are 0.
        """
        if self.monoid == "min":
            return True
        lowest = math.inf if self.pivot == "min" else -math.inf
        return self.identity == lowest and not evaluated(self.weight, s=lowest, p=0.0)

    def __str__(self) -> str:
        return self.name


def carry_law(
    name: str,
    weight: Function,
    rescale: Function | None = None,
    *,
    shift: Function | None = None,
    pivot: str = "max",
    monoid: str = "sum",
    identity: float | None = -math.inf,
    domain: str = "",
) -> CarryLaw:
    """A law of elementwise functions of tensors: weight(s, p), rescale(p, q), shift(p, q).

        carry_law("base_3", lambda s, p: eqsat.pow(3.0, s - p), lambda p, q: eqsat.pow(3.0, p - q))

    The other arguments are the fields of CarryLaw. Raises RuleError where the law does not hold,
    with points that show it.
    """
    check_identifier(name, "the name of a carry law")
    if pivot not in PIVOTS:
        raise RuleError(f"carry law {name}: pivot {pivot!r} is none of {', '.join(PIVOTS)}.")
    if domain not in DOMAINS:
        known = ", ".join(DOMAINS[1:])
        raise RuleError(f"carry law {name}: domain {domain!r} is none of {known}; or leave it out.")
    law = CarryLaw(
        name=name,
        weight=_traced(name, "weight", weight, (POINT, PIVOT)),
        rescale=None if rescale is None else _traced(name, "rescale", rescale, (PIVOT, NEXT)),
        shift=None if shift is None else _traced(name, "shift", shift, (PIVOT, NEXT)),
        pivot=pivot,
        monoid=monoid,
        identity=None if pivot == "mean" else identity,
        domain=domain,
    )
    _check_monoid(law)
    if (law.pivot == "mean") != (law.shift is not None):
        raise RuleError(f"carry law {name}: a shift goes with pivot='mean', and with it alone.")
    check(law)
    return _with_operation(law)


def _check_monoid(law: CarryLaw) -> None:
    """The weights of a minimum are conditions, those of a sum numbers."""
    if law.monoid not in ("sum", "min"):
        raise RuleError(f"carry law {law.name}: monoid {law.monoid!r} is none of sum, min.")
    found = evaluated(law.weight, s=0.5, p=1.0).dtype == np.bool_
    if found != (law.monoid == "min"):
        has, wants = ("conditions", "numbers") if found else ("numbers", "conditions")
        raise RuleError(
            f"carry law {law.name}: its weights are {has}; a {law.monoid} takes {wants}."
        )


def _with_operation(law: CarryLaw) -> CarryLaw:
    """The law with a kernel operation that computes its weights, if one does."""
    with np.errstate(all="ignore"):
        rate = -float(np.log(evaluated(law.weight, s=0.0, p=1.0)))
    for operation in OPERATIONS if math.isfinite(rate) and law.divides else ():
        found = replace(law, operation=operation, rate=rate)
        if all(_computes(found, s, q) for s, q in _trials(law)):
            return found
    return law


def _computes(law: CarryLaw, s: np.ndarray, q: np.ndarray) -> bool:
    """Whether the law's operation gives its weights of these points."""
    with np.errstate(all="ignore"):
        found = OPERATIONS[law.operation](s, q, law.rate)
    wanted = evaluated(law.guarded_weight, s=s, p=q)
    return np.allclose(found, wanted, rtol=TOLERANCE, atol=TINY)


def _literal(value: float) -> Node:
    return apply("literal", value, DTypeOf(POINT))  # type: ignore[arg-type]


def _called(name: str, part: str, function: object, arguments: Iterable[Tensor]) -> Tensor:
    """What a function of a law makes of tensors. RuleError unless it takes them and gives one."""
    given = [*arguments]
    names = ", ".join(one.attributes["name"] for one in given)
    difference = names.replace(", ", " - ")
    wanted = f"Give a function of tensors that returns one, as lambda {names}: exp({difference})."
    if not callable(function):
        kind = type(function).__name__
        raise RuleError(f"carry law {name}: its {part} is of type {kind}, no function. {wanted}")
    try:
        signature(function).bind(*given)
    except TypeError as error:
        raise RuleError(f"carry law {name}: its {part}: {error}. {wanted}") from None
    found = function(*given)
    if not isinstance(found, Tensor):
        kind = type(found).__name__
        raise RuleError(f"carry law {name}: its {part} gives a value of type {kind}. {wanted}")
    return found


def _traced(name: str, part: str, function: object, variables: tuple[Variable, ...]) -> Node:
    """The function of scalar tensors as a pattern."""
    inputs = {graph_input(v.name, (), "float64"): v for v in variables}

    def pattern(tensor: Tensor) -> Pattern:
        if tensor in inputs:
            return inputs[tensor]
        if tensor.op == "constant":
            return _literal(float(tensor.attributes["value"].item()))
        if tensor.op not in ELEMENTWISE or tensor.op == "cast":
            raise RuleError(
                f"carry law {name} applies {tensor.op}; use elementwise functions of its arguments."
            )
        return apply(tensor.op, *map(pattern, tensor.operands))

    found = pattern(_called(name, part, function, inputs))
    if not isinstance(found, Node):
        raise RuleError(f"carry law {name}: its {part} computes nothing; leave it out.")
    return found


def _ops(node: Pattern) -> Iterator[tuple[str, bool]]:
    """The elementwise operations of a pattern that each point takes, and whether of conditions."""
    if isinstance(node, Node) and node.op != "literal":
        for arg in node.args:
            yield from _ops(arg)  # type: ignore[arg-type]
        if any(v == POINT for v in _variables(node)):
            yield node.op, evaluated(node.args[0], s=0.5, p=1.0).dtype == np.bool_  # type: ignore[arg-type]


def _variables(node: object) -> Iterator[Variable]:
    if isinstance(node, Variable):
        yield node
    elif isinstance(node, Node) and node.op != "literal":
        for arg in node.args:
            yield from _variables(arg)


def placed(
    node: Pattern, at: Mapping[str, T], literal: Callable[[float], T], make: Callable[..., T]
) -> T:
    """The pattern over values of its variables, made bottom-up."""
    if isinstance(node, Variable):
        return at[node.name]
    if node.op == "literal":
        return literal(node.args[0])  # type: ignore[arg-type]
    return make(node.op, *(placed(arg, at, literal, make) for arg in node.args))  # type: ignore[arg-type]


def held(law: CarryLaw, s: T, pivot: T, literal: Callable[[float], T], make: Callable[..., T]) -> T:
    """The weights as a kernel computes them for points and a pivot that it holds."""
    if not law.operation:
        return placed(law.guarded_weight, {"s": s, "p": pivot}, literal, make)
    if law.rate != 1.0:
        s, pivot = (make("mul", x, literal(law.rate)) for x in (s, pivot))
    return make(law.operation, s, pivot)


def evaluated(node: Pattern, **at: Any) -> np.ndarray:
    """The pattern's value for arrays, in float64."""

    def apply_to(op: str, *arrays: Any) -> Any:
        return OPS[op].meaning([np.asarray(a) for a in arrays], {}, (), np.dtype(np.float64))

    with np.errstate(all="ignore"):
        return np.asarray(placed(node, at, lambda value: np.asarray(value), apply_to))


# --- the check ----------------------------------------------------------------------------------

SCALES = (0.1, 1.0, 30.0, 1e4)
TRIALS = 12
TOLERANCE, TINY = 1e-9, 1e-290


def _trials(law: CarryLaw) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Points seen so far, and the pivot of these and others: few and many, near and far."""
    random = np.random.default_rng(0)
    for trial in range(TRIALS * len(SCALES)):
        points = random.standard_normal(random.integers(2, 9)) * SCALES[trial % len(SCALES)]
        points = np.abs(points) if law.domain else points
        points = np.round(points) if trial % 5 == 0 and not law.domain else points
        first = int(random.integers(1, len(points)))
        if law.identity is not None and trial % 3 == 0:
            points[: random.integers(1, len(points))] = law.identity
        if law.monoid == "min" and trial % 7 == 0:
            points[random.integers(len(points))] = math.nan
        yield points[:first], np.asarray(PIVOTS[law.pivot](points))


def check(law: CarryLaw) -> None:
    """Raise RuleError unless the law holds for random points and values."""
    random = np.random.default_rng(1)
    for seen, q in _trials(law):
        values = np.ones(len(seen)) if law.shift else random.standard_normal(len(seen))
        values = -np.abs(values) if law.monoid == "min" else values
        _check_points(law, seen, values, q)


def _check_points(law: CarryLaw, seen: np.ndarray, values: np.ndarray, q: np.ndarray) -> None:
    """The points seen so far, carried to a later pivot."""
    first, p = len(seen), PIVOTS[law.pivot](seen)
    weights = evaluated(law.guarded_weight, s=seen, p=q)
    if law.bounded:
        _check_bounds(law, weights, seen, q)
    wanted = _total(law, weights, values)
    total = _total(law, evaluated(law.guarded_weight, s=seen, p=p), values)
    carried = total * (evaluated(law.guarded_rescale, p=p, q=q) if law.guarded_rescale else 1.0)
    carried += first * evaluated(law.shift, p=p, q=q) if law.shift else 0.0
    bound = TOLERANCE * float(np.sum(np.abs(weights * values))) + TINY
    if not (carried == wanted or abs(carried - wanted) <= bound):
        raise RuleError(
            f"carry law {law.name} does not hold: of the points {_listed(seen)} the total is "
            f"{total:.6g} at the pivot {p:.6g}; carried to the pivot {q:.6g} it is {carried:.6g}, "
            f"computed there {wanted:.6g}. Check its weight, rescale and shift."
        )


def _check_bounds(law: CarryLaw, weights: np.ndarray, seen: np.ndarray, q: np.ndarray) -> None:
    """Weights lie in [0, 1], and are 0 for the pivot's sake only where they are no numbers."""
    if not np.all((weights >= 0) & (weights <= 1)):
        at = int(np.argmax(~((weights >= 0) & (weights <= 1))))
        raise RuleError(
            f"carry law {law.name}: the weight of {seen[at]:.6g} at the pivot {q:.6g} is "
            f"{weights[at]:.6g}; weights must lie in [0, 1], so that no total overflows."
        )
    if law.identity is not None:
        _check_identity(law, seen, q)
        _check_identity(law, np.atleast_1d(law.identity), np.asarray(law.identity))


def _check_identity(law: CarryLaw, points: np.ndarray, pivot: np.ndarray) -> None:
    """Weights that count as 0 for the pivot's sake are no numbers."""
    own = np.broadcast_to(evaluated(law.weight, s=points, p=pivot), points.shape)
    wrong = np.isfinite(own) & (own != evaluated(law.guarded_weight, s=points, p=pivot))
    if np.any(wrong):
        at = int(np.argmax(wrong))
        raise RuleError(
            f"carry law {law.name}: weights count as 0 at the pivot {pivot:.6g}, as its "
            f"identity is {law.identity:g}; that of {points[at]:.6g} there is {own[at]:.6g}. Give "
            f"another identity, a domain, or None."
        )


def _total(law: CarryLaw, weights: np.ndarray, values: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        products = weights * values
        return float(np.sum(products) if law.monoid == "sum" else np.min(products))


def _listed(values: np.ndarray) -> str:
    return ", ".join(f"{value:.6g}" for value in np.ravel(values))
