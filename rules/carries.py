"""Carry laws that ship with eqsat, and the rules that each law gives.

A law makes two rules: `carry_NAME` finds the reductions that one pass computes; `hold_NAME` leads
back to the definition, for a kernel that holds the whole row in its tile.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from eqsat.carry_law import CarryLaw, carry_law, held, placed
from eqsat.errors import RuleError
from eqsat.graph import equal, exp, logical_or, not_equal, pow, square
from eqsat.graph.dtypes import BY_NAME
from eqsat.graph.reductions import FAR, NOWHERE
from eqsat.named import distinct
from eqsat.rule import (
    WIDE_FLOATS,
    Condition,
    DTypeOf,
    Free,
    Node,
    Pattern,
    PointsIn,
    Rewrite,
    Rule,
    Variable,
    apply,
    disjoint,
    dtype_in,
    known,
    overlap,
    rewrite,
    rule,
)

FLOATS = (*WIDE_FLOATS, "bfloat16", "float16")

SOFTMAX = carry_law("softmax", lambda s, p: exp(s - p), lambda p, q: exp(p - q))
BASE_2 = carry_law("base_2", lambda s, p: pow(2.0, s - p), lambda p, q: pow(2.0, p - q))
# Chan, Golub, LeVeque (1979): means of parts shift the sum of squared distances.
VARIANCE = carry_law(
    "variance", lambda s, p: square(s - p), shift=lambda p, q: square(p - q), pivot="mean"
)
# NaN counts as the largest and as the smallest: once seen it stays the pivot.
FIRST_LARGEST, FIRST_SMALLEST = (
    carry_law(
        f"first_{name}",
        lambda s, p: logical_or(equal(s, p), not_equal(s, s)),
        lambda p, q: logical_or(equal(p, q), not_equal(p, p)),
        pivot=pivot,
        monoid="min",
        identity=None,
    )
    for name, pivot in (("largest", "max"), ("smallest", "min"))
)
LAWS = (SOFTMAX, BASE_2, VARIANCE, FIRST_LARGEST, FIRST_SMALLEST)

SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
A, B, S = Variable("s"), Variable("r"), Variable("S", "Indices")


def carry_rules(laws: Iterable[CarryLaw]) -> tuple[Rule, ...]:
    """The rules of some laws; RuleError for two laws of one name, and for what is no law."""
    given: list[object] = [*laws] if isinstance(laws, Iterable) else [laws]
    wrong = [one for one in given if not isinstance(one, CarryLaw)]
    if wrong or not isinstance(laws, Iterable):
        what = f"a value of type {type(wrong[0]).__name__}" if wrong else f"{laws} by itself"
        raise RuleError(
            f"carry_rules takes carry laws; got {what}. Give a list of what carry_law makes, as "
            f"carry_rules([law])."
        )
    return tuple(
        rule for law in distinct(laws, "carry laws") for rule in (carry_rule(law), hold_rule(law))
    )


def carry_rule(law: CarryLaw) -> Rule:
    """sum_S w(s, pivot_S s) * r  ->  weighted_sum_S(s, r)"""
    if law.monoid == "min":
        return _carry_first(law)
    ways: list[Rewrite] = []
    for weight, guards in _written(law):
        if not law.shift:
            product = apply("reduce_sum", S, weight * B)
            ways.append(rewrite(product, _weighted(law, B)).when(*guards))
        unit = apply("reduce_sum", S, weight)
        ways.append(rewrite(unit, _weighted(law, _one())).when(*guards))
    factor = "" if law.shift else " * r"
    return Rule(
        f"carry_{law.name}",
        "algebra",
        f"sum_S {shown(law.weight, law.pivot)}{factor}  ->  {_carried(law)}, carried with a "
        f"running {_running(law)}",
        "when: s depends on S (otherwise nothing is carried)"
        f"{f' and is {law.domain}' if law.domain else ''}. float: rounding changes as the pivot "
        "moves.",
        tuple(ways),
    )


def _carry_first(law: CarryLaw) -> Rule:
    """min_S where(w(s, pivot_S s), x, none)  ->  weighted_min_S(s, x - none) + none"""
    return Rule(
        f"carry_{law.name}",
        "algebra",
        f"min_S where({shown(law.weight, law.pivot)}, x, none)  ->  "
        f"weighted_min_S(s, x - none) + none, carried with a running {_running(law)}",
        "when: x is a position, or none, which is more than any (so that x - none is at most 0, "
        "what points leave that do not count); s depends on S.",
        tuple(
            rewrite(
                apply("reduce_min", S, apply("where", weight, place, none)),
                apply("weighted_min", S, A, place - none, law) + none,
            ).when(*guards)
            for weight, guards in _written(law, FLOATS)  # compared, not computed with
            for place, none in _places()
        ),
    )


def _hold_first(law: CarryLaw) -> Rule:
    """weighted_min_S(s, x - none) + none  ->  min_S where(w(s, pivot_S s), x, none)"""
    return Rule(
        f"hold_{law.name}",
        "fusion",
        f"weighted_min_S(s, x - none) + none  ->  min_S where({shown(law.weight, law.pivot)}, x, "
        "none),  for rows held in the tile",
        "",
        tuple(rewrite(one.right, one.left) for one in _carry_first(law).rewrites),
    )


def _places() -> Iterator[tuple[Node, Node]]:
    """Positions, and those alone for which a condition does not hold; what is beyond them."""
    place = apply("position", Variable("x", "Place"))
    for far in (NOWHERE, FAR):
        none = apply("literal", float(far), "int64")
        yield place, none
        yield apply("where", Variable("c"), none, place), none


def hold_rule(law: CarryLaw) -> Rule:
    """weighted_sum_S(s, r)  ->  sum_S w(s, pivot_S s) * r, 0 where no point counts

    The weights themselves are those, too, where one operation computes them.
    """
    if law.monoid == "min":
        return _hold_first(law)
    weights = held(law, A, _pivot(law), _literal, apply)
    ways = [rewrite(_weighted(law, _one()), apply("reduce_sum", S, weights))]
    if not law.shift:
        ways.insert(0, rewrite(_weighted(law, B), apply("reduce_sum", S, weights * B)))
    if law.operation:
        ways += [rewrite(weight, weights) for weight, _ in _written(law)]
    factor = "" if law.shift else " * r"
    return Rule(
        f"hold_{law.name}",
        "fusion",
        f"{_carried(law)}  ->  sum_S {shown(law.weight, law.pivot)}{factor},  for rows held in the "
        "tile",
        ""
        if law.identity is None
        else f"Weights are 0 where max_S s is {law.identity:g}.".replace("max", law.pivot),
        tuple(ways),
    )


def shown(node: Pattern, pivot: str) -> str:
    """A weight as people write it: `exp(s - max_S s)`."""
    if isinstance(node, Variable):
        return {"p": f"{pivot}_S s"}.get(node.name, node.name)
    if node.op == "literal":
        return f"{node.args[0]:g}"
    parts = [shown(arg, pivot) for arg in node.args]  # type: ignore[arg-type]
    if node.op in SIGNS:
        inner = [isinstance(arg, Node) and arg.op in SIGNS for arg in node.args]
        parts = [f"({p})" if whole else p for p, whole in zip(parts, inner, strict=True)]
        return f" {SIGNS[node.op]} ".join(parts)
    return f"{node.op}({', '.join(parts)})"


def _written(
    law: CarryLaw, dtypes: Sequence[str] = WIDE_FLOATS
) -> list[tuple[Node, tuple[Condition, ...]]]:
    """The weights as programs write them, their numbers rounded to the dtype; and the guards."""
    found: dict[Node, list[str]] = {}
    for dtype in dtypes:

        def rounded(value: float, dtype: str = dtype) -> Node:
            return _literal(float(BY_NAME[dtype].numpy.type(value)))

        found.setdefault(_over_pivot(law, law.weight, rounded), []).append(dtype)
    spans = disjoint(S, S.without(Free(A))) if law.pivot == "mean" else overlap(S, Free(A))
    asked = known(law.domain, A) if law.domain else ()
    return [(node, (spans, dtype_in(A, *names), *asked)) for node, names in found.items()]


def _running(law: CarryLaw) -> str:
    return {"max": "maximum", "min": "minimum"}.get(law.pivot, law.pivot)


def _carried(law: CarryLaw) -> str:
    return "weighted_sum_S(s)" if law.shift else "weighted_sum_S(s, r)"


def _weighted(law: CarryLaw, value: Pattern) -> Node:
    return apply("weighted_sum", S, A, value, law)


def _literal(value: float) -> Node:
    return apply("literal", value, DTypeOf(A))  # type: ignore[arg-type]


def _one() -> Node:
    return _literal(1.0)


def _pivot(law: CarryLaw) -> Node:
    if law.pivot == "mean":
        return apply("reduce_sum", S, A) / _count()  # type: ignore[arg-type]
    return apply(f"reduce_{law.pivot}", S, A)  # type: ignore[arg-type]


def _count() -> Node:
    return apply("literal", PointsIn(S), DTypeOf(A))  # type: ignore[arg-type]


def _over_pivot(law: CarryLaw, node: Node, literal: Callable[[float], Node]) -> Node:
    placing: dict[str, Pattern] = {"s": A, "p": _pivot(law)}
    found = placed(node, placing, literal, apply)
    assert isinstance(found, Node)
    return found


@rule("algebra")
def carry_guarded_softmax(s: "Expr", S: "Indices") -> Iterator[Rewrite]:
    """sum_S exp(s - where(isfinite(m), m, 0))  ->  where(isfinite(m), weighted_sum_S(s, 1), exp(m))
    for m = max_S s: where that is not finite, the sum is infinite, NaN, or 0 of no finite point.
    when: s depends on S (otherwise nothing is carried). float: rounding changes as the pivot moves.
    """
    top = _pivot(SOFTMAX)
    stands = apply("isfinite", top)
    guarded = apply("exp", s - apply("where", stands, top, _literal(0.0)))
    carried = apply("where", stands, _weighted(SOFTMAX, _one()), apply("exp", top))
    yield rewrite(apply("reduce_sum", S, guarded), carried).when(
        overlap(S, Free(s)), dtype_in(s, *WIDE_FLOATS)
    )


@rule("algebra")
def weight_is_finite(
    s: "Expr", S: "Indices", a: "Expr", b: "Expr", c: "Expr", d: "Text"
) -> Iterator[Rewrite]:
    """where(c and exp(s - max_S s) == inf, a, b)  ->  b
    since no s is above its maximum: what the gradient of exp asks for where it overflows.
    """
    weight = apply("exp", s - _pivot(SOFTMAX))
    lost = apply("equal", weight, apply("literal", math.inf, d))
    yield rewrite(apply("where", apply("logical_and", c, lost), a, b), b)


@rule("algebra", precision="default")
def weight_of_logsumexp(s: "Expr", S: "Indices", x: "Expr", y: "Expr") -> Iterator[Rewrite]:
    """e * r  ->  exp(s - (m + log t)),  e * (r * x + -(r * y))  ->  exp(s - (m + log t)) * (x - y)
    for m = max_S s, e = exp(s - m), t = sum_S e, r = 1 / t: one number of a row tells its weights.
    when: s is made of sums of products of 16-bit floats, whose rounding moves it far more than that
    of m + log t does. float: so.
    """
    top = _pivot(SOFTMAX)
    power = apply("exp", s - top)
    total = apply("reduce_sum", S, power)
    inverse, weight = apply("reciprocal", total), apply("exp", s - (top + apply("log", total)))
    guards = overlap(S, Free(s)), dtype_in(s, *WIDE_FLOATS), *known("summed", s)
    yield rewrite(power * inverse, weight).when(*guards)
    difference = inverse * x + apply("neg", inverse * y)
    yield rewrite(power * difference, weight * (x - y)).when(*guards)
