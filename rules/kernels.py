"""From unfused kernels to fused, tiled, staged and substituted ones, as rewrites of kernel terms.

`(kernel b s)` computes the tile expression b under the schedule s. `(value v)` is a value read from
memory; `body(v, t)` says how it is computed. A schedule is a chain that settles one axis after the
other; the sizes on offer are facts drawn from the spec.
"""

from collections.abc import Iterator

from eqsat.rule import (
    Condition,
    Free,
    Node,
    Rewrite,
    Rule,
    Variable,
    apply,
    disjoint,
    dtype_in,
    fact,
    nonempty,
    overlap,
    rewrite,
    rule,
)
from eqsat.specs import ParallelOperation, ParallelProcessingUnit


def kernel(body: object, schedule: object) -> Node:
    """A kernel term."""
    return apply("kernel", body, schedule)  # type: ignore[arg-type]


@rule("fusion")
def inline(v: "Count", t: "Expr") -> Iterator[Rewrite]:
    """load v  ->  t,  the computation of v
    when: v is a value of this kernel's region, so that it need not touch memory.
    """
    yield rewrite(apply("value", v), t).when(fact("body", v, t))


@rule("fusion")
def contract(a: "Expr", b: "Expr", S: "Indices") -> Iterator[Rewrite]:
    """sum_S a * b  ->  contract_S(a, b)
    when: both factors span all of S.
    """
    both = Free(a) & Free(b)
    yield rewrite(
        apply("reduce_sum", S, a * b),  # type: ignore[arg-type]
        apply("contract", S, a, b, ""),  # type: ignore[arg-type]
    ).when(disjoint(S, S.without(both)))


@rule("fusion")
def hold_weights(s: "Expr", S: "Indices") -> Iterator[Rewrite]:
    """exp(s - max_S s)  ->  exp_difference(s, max_S s),  which is 0 where both are -inf"""
    top = apply("reduce_max", S, s)  # type: ignore[arg-type]
    yield rewrite(apply("exp", s - top), apply("exp_difference", s, top))


@rule("fusion")
def hold_weighted_sum(s: "Expr", r: "Expr", S: "Indices", d: "Text") -> Iterator[Rewrite]:
    """weighted_sum_S(s, r)  ->  sum_S exp_difference(s, max_S s) * r,  for rows held in the tile"""
    weight = apply("exp_difference", s, apply("reduce_max", S, s))  # type: ignore[arg-type]
    carried = apply("weighted_sum", S, s, r)  # type: ignore[arg-type]
    yield rewrite(carried, apply("reduce_sum", S, weight * r))  # type: ignore[arg-type]
    one = apply("literal", 1.0, d)
    unit = apply("weighted_sum", S, s, one)  # type: ignore[arg-type]
    yield rewrite(unit, apply("reduce_sum", S, weight))  # type: ignore[arg-type]


@rule("tiling")
def tile(b: "Expr", s: "Expr", x: "Text", n: "Count") -> Iterator[Rewrite]:
    """kernel b under s  ->  kernel b under s, axis x cut into tiles of n
    when: x is the next grid axis that s leaves open, and the spec offers n.
    """
    conditions = (fact("next_axis", s, x), fact("tile_menu", x, n))
    yield rewrite(kernel(b, s), kernel(b, apply("tile", x, n, s))).when(*conditions)


@rule("tiling")
def stream(b: "Expr", s: "Expr", x: "Text", n: "Count") -> Iterator[Rewrite]:
    """kernel b under s  ->  kernel b under s, reduction over x streamed in chunks of n"""
    conditions = (fact("next_axis", s, x), fact("chunk_menu", x, n))
    yield rewrite(kernel(b, s), kernel(b, apply("stream", x, n, s))).when(*conditions)


@rule("tiling")
def keep(b: "Expr", s: "Expr", x: "Text") -> Iterator[Rewrite]:
    """kernel b under s  ->  kernel b under s, all of the reduction over x inside each tile"""
    conditions = (fact("next_axis", s, x), fact("keep_menu", x))
    yield rewrite(kernel(b, s), kernel(b, apply("keep", x, s))).when(*conditions)


@rule("tiling")
def launch(b: "Expr", s: "Expr", n: "Count") -> Iterator[Rewrite]:
    """kernel b under s  ->  kernel b under s, n threads to a tile
    when: every axis is settled, and the spec's block holds n threads.
    """
    conditions = (fact("next_axis", s, "threads"), fact("thread_menu", n))
    yield rewrite(kernel(b, s), kernel(b, apply("launch", n, s))).when(*conditions)


@rule("staging")
def stage(b: "Expr", s: "Expr", m: "Text", n: "Count") -> Iterator[Rewrite]:
    """kernel b under s  ->  kernel b under s, operands of contractions staged in memory m, n deep
    when: m is a memory of the spec that a program places data in and a whole tile sees.
    """
    conditions = (fact("next_axis", s, "stages"), fact("stage_menu", m, n))
    yield rewrite(kernel(b, s), kernel(b, apply("stage", m, n, s))).when(*conditions)


def substitutions(spec: ParallelProcessingUnit, operations: frozenset[str]) -> tuple[Rule, ...]:
    """A `substitute` rule for each sum-of-products operation of a spec that its target can emit."""
    rules = []
    for operation in spec.operations:
        emitted = operation.invocation_name in operations
        if emitted or spec.target in operation.native_implementation:
            rewrites = tuple(_substitute(operation))
            if rewrites:
                rules.append(
                    Rule(
                        name=f"substitute_{operation.name}",
                        group="substitution",
                        equation=f"contract_S(a, b)  ->  {operation.name}: {operation.semantics}",
                        note=f"drawn from {spec.name}'s operations",
                        rewrites=rewrites,
                    )
                )
    return tuple(rules)


def _substitute(operation: ParallelOperation) -> Iterator[Rewrite]:
    pair = operation.semantics.contraction if operation.semantics else None
    if pair is None or operation.semantics is None:
        return
    names = [read.operand for read in pair]
    result = operation.semantics.output.operand
    a, b, s = Variable("a"), Variable("b"), Variable("S", "Indices")
    for row in operation.supported_data_types:
        left, right, out = (row.get(name) for name in (*names, result))
        if left != right or left is None or out is None:
            continue
        conditions: tuple[Condition, ...] = (dtype_in(a, left), dtype_in(b, left))
        if any(operation.extents.values()):  # a matrix: each factor has an index of its own
            own = (Free(a).without(Free(b)), Free(b).without(Free(a)))
            conditions += (nonempty(own[0]), nonempty(own[1]))
        sides = (a, b)
        if out != left:
            sides = (apply("cast", out, a), apply("cast", out, b))
        yield Rewrite(
            apply("contract", s, *sides, ""),  # type: ignore[arg-type]
            apply("contract", s, *sides, operation.name),  # type: ignore[arg-type]
            conditions,
        )
        if left == "bfloat16":  # a float32 factor rounded to the dtype of the other one
            for rounded in ((_round(a, left), sides[1]), (sides[0], _round(b, left))):
                wide = tuple(
                    x if f is not g else f for x, f, g in zip((a, b), rounded, sides, strict=True)
                )
                dtypes = tuple(
                    dtype_in(x, left if f is g else out)
                    for x, f, g in zip((a, b), rounded, sides, strict=True)
                )
                yield Rewrite(
                    apply("contract", s, *wide, ""),  # type: ignore[arg-type]
                    apply("contract", s, *rounded, operation.name),  # type: ignore[arg-type]
                    (*dtypes, *conditions[2:]),
                )
        if out == "float32":  # weights lie in [0, 1]: rounded to b's dtype they lose what b lost
            yield Rewrite(
                apply("weighted_sum", s, a, sides[1]),  # type: ignore[arg-type]
                apply("weighted_contract", s, a, sides[1], operation.name),  # type: ignore[arg-type]
                (dtype_in(a, out), overlap(s, Free(b)), *conditions[1:]),
            )


def _round(factor: Variable, narrow: str) -> Node:
    """A float32 factor rounded to a narrow dtype."""
    return apply("cast", "float32", apply("cast", narrow, factor))
