"""Which values hold no infinity: what laws that multiply out, or cancel, ask for.

Inputs are taken to be finite and arithmetic not to overflow. NaN does not count: where the source
has NaN, whatever a law gives is as good. Facts: `finite`; `below`, never +inf; `nonzero`;
`nonneg`, at least 0; `positive`, above 0; `given`, made of what is read, point by point: no
deviation from a mean; `short`, of 16-bit floats; `summed`, a sum of their products, which the
rounding of these moves far more than that of a sum or of what is added to it does, or -inf, as
masks are: a large finite number beside it would be exact; `coarse`, either: what is left of a
difference has as many digits as it had. The same tables serve the search and the
checker.
"""

import math
import sys
from collections.abc import Collection, Mapping, Sequence

from eqsat.terms.algebra import CONDITIONS

LARGEST = 1.7e308
INTEGRAL = ("bool", "int8", "int16", "int32", "int64", "uint8")
SHORT = ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16")
FLOATING = (*SHORT, "float32", "float64")

IMPLIES = (
    ("finite", "below"), ("positive", "nonneg"), ("positive", "nonzero"), ("short", "coarse"),
    ("summed", "coarse"),
)  # fmt: skip
# What has a fact whatever its arguments are.
ALWAYS = {
    "finite": CONDITIONS
    | {"position", "tanh", "erf", "one_plus_erf", "sin", "cos", "atan", "sign"},
    "nonneg": frozenset({"square", "abs", "exp", "sqrt", "one_plus_erf"}),
    "given": frozenset({"read", "position"}),
}
# What has a fact where all of its arguments do.
MONOTONE = frozenset(
    {"add", "maximum", "cast", "rounded", "reduce_sum", "reduce_max", "reduce_min"}
)
MOVED = frozenset({"cast", "rounded", "neg", "mul", "reindex", "gather"})
KEPT = {
    "finite": MONOTONE
    | {"sub", "mul", "neg", "abs", "square", "minimum", "floor", "ceil", "trunc", "round", "sqrt"}
    | {"expm1", "sinh", "cosh", "asin", "acos", "reduce_prod", "contract"}
    | {"scan_sum", "scan_affine", "narrow_contract", "scatter_sum"}
    | {"gather", "reindex"},
    "below": MONOTONE | {"minimum"},
    "nonneg": MONOTONE | {"mul", "div", "minimum", "rsqrt", "reciprocal"},
    "given": MOVED | {"add", "sub", "div"},
    "short": MOVED,
    "summed": frozenset({"cast", "rounded", "reindex", "add", "sub"}),
}
CHOSEN = ("finite", "below", "nonneg", "positive")  # of both branches, so of either
Needs = tuple[tuple[str, ...], ...]  # for each argument the facts that it must have
SPECIAL: tuple[tuple[str, str, Needs], ...] = (
    ("finite", "exp", (("below",),)),
    ("finite", "div", (("finite",), ("nonzero",))),
    ("finite", "reciprocal", (("nonzero",),)),
    ("finite", "rsqrt", (("positive",),)),
    *(("finite", op, (("finite", "positive"),)) for op in ("log", "log2")),
    ("finite", "log1p", (("finite", "nonneg"),)),
    ("finite", "weighted_sum", (("finite",), ("finite",))),
    ("below", "sub", (("below",), ("finite",))),
    ("positive", "add", (("nonneg",), ("positive",))),
    ("positive", "add", (("positive",), ("nonneg",))),
    *((fact, "where", ((), (fact,), (fact,))) for fact in CHOSEN),
    ("given", "mul", (("nonneg",), ("given",))),
    ("given", "mul", (("given",), ("nonneg",))),
    ("summed", "reduce_sum", (("short",),)),
    ("summed", "contract", (("short",), ("short",))),
    ("summed", "mul", (("summed",), ())),
    ("summed", "mul", ((), ("summed",))),
    ("summed", "where", ((), ("summed",), ("summed",))),
)
FACTS = (
    *("finite", "below", "nonzero", "nonneg", "positive", "given", "short", "summed", "coarse"),
)


def required(op: str, count: int) -> list[tuple[str, Needs]]:
    """(fact, what each of the `count` arguments must be) for an operation of terms."""
    found: list[tuple[str, Needs]]
    found = [(fact, ((),) * count) for fact, ops in ALWAYS.items() if op in ops]
    found += [(fact, ((fact,),) * count) for fact, ops in KEPT.items() if op in ops]
    return [*found, *((fact, needs) for fact, own, needs in SPECIAL if own == op)]


def of_number(value: float) -> set[str]:
    """The facts of a literal."""
    known = {"given", "short"} | ({"nonzero"} if value != 0 else set())
    known |= {"below"} if value < LARGEST else set()
    known |= {"finite"} if abs(value) < LARGEST else set()
    known |= {"nonneg"} if value >= 0 else set()
    known |= {"summed"} if value == -math.inf else set()
    return known | ({"positive"} if value > 0 else set())


def closed(known: Collection[str]) -> frozenset[str]:
    """Facts with those that they imply."""
    return frozenset(known) | {weak for strong, weak in IMPLIES if strong in known}


def declarations(constructors: Mapping[str, str]) -> list[str]:
    """The relations in egglog, and the rules of no single operation.

    a - max a is at most 0, and 0 somewhere, so that a sum of exp(a - max a) is at least 1.
    """
    lines = [f"(relation {fact} (E))" for fact in FACTS]
    lines += ["(relation integral (String))", "(relation bounded (String))"]
    if {"sub", "reduce_max"} <= constructors.keys():
        below = f"(= d ({constructors['sub']} a ({constructors['reduce_max']} S a)))"
        lines.append(f"(rule ({below}) ((below d)) :ruleset facts)")
        if {"exp", "reduce_sum"} <= constructors.keys():
            total = f"(= e ({constructors['reduce_sum']} S ({constructors['exp']} d)))"
            lines.append(f"(rule ({below} {total}) ((positive e)) :ruleset facts)")
    lines += [f"(rule (({a} e)) (({b} e)) :ruleset facts)" for a, b in IMPLIES]
    lines.append("(rule ((= d (dtype e)) (integral d)) ((finite e)) :ruleset facts)")
    lines.append('(rule ((= d (dtype e)) (dtype_is d "short")) ((short e)) :ruleset facts)')
    lines += [f'(dtype_is "{name}" "short")' for name in SHORT]
    return [*lines, *(f'(integral "{name}")' for name in INTEGRAL)]


def rules(op: str, head: str, exprs: Sequence[str]) -> list[str]:
    """The egglog rules that give facts to an operation; `head` binds it to e."""
    when: list[tuple[str, str]] = []
    for fact, needs in required(op, len(exprs)):
        parts = [f"({need} {a})" for own, a in zip(needs, exprs, strict=True) for need in own]
        if op in {"gather", "reindex"}:
            parts.append("(atom_finite x0)")
        if fact == "nonneg":  # integers wrap
            parts += [f'(= d_{a} (dtype {a})) (dtype_is d_{a} "floating")' for a in exprs[-1:]]
        when.append((fact, " ".join(parts)))
    if op == "literal":
        when += [("given", ""), ("short", "")]
        when.append(("finite", f"(< x0 {LARGEST!r}) (> x0 -{LARGEST!r})"))
        when += [("below", f"(< x0 {LARGEST!r})"), ("nonzero", "(!= x0 0.0)")]
        when += [("nonneg", "(>= x0 0.0)"), ("positive", "(> x0 0.0)")]
        when.append(("summed", f"(< x0 -{sys.float_info.max!r})"))
    if op == "weighted_sum":  # weights of a bounded law, whatever the points
        when.append(("finite", "(bounded x3) (finite x2)"))
    if op == "read":
        when += [("finite", "(atom_finite x0)"), ("below", "(atom_below x0)")]
    return [f"(rule ({head} {what}) (({fact} e)) :ruleset facts)" for fact, what in when]
