"""Rules drawn from the matrix operations of a spec: what a contraction may be computed by.

An operation takes factors of its own dtypes as they are. To meet it, factors may be rounded, or
split into terms; how much a program allows of that is its precision.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import product

from eqsat.graph.dtypes import BY_NAME, is_held
from eqsat.layout.narrow import TERMS, products
from eqsat.layout.needs import SIXTEEN, STORED_TERMS, WIDE
from eqsat.rule import (
    Condition,
    Free,
    Node,
    Rewrite,
    Rule,
    Variable,
    allowed,
    apply,
    dtype_in,
    fact,
    nonempty,
    overlap,
)
from eqsat.specs import ParallelOperation, ParallelProcessingUnit

A, B, S = Variable("a"), Variable("b"), Variable("S", "Indices")
Drawn = Iterator[tuple[str, Rewrite]]


@lru_cache(maxsize=16)
def substitutions(
    spec: ParallelProcessingUnit,
    operations: frozenset[str],
    splits: frozenset[str] = frozenset(),
    stored: frozenset[str] = frozenset(),
) -> tuple[Rule, ...]:
    """The rules of each sum-of-products operation of a spec that its target can emit.

    operations: the invocation names that the target emits; splits: those for which it can also
    round float32 factors, or split them into terms, on the way to the operation; stored: those for
    which it can multiply terms that lie in memory.
    """
    rules: list[Rule] = []
    for operation in spec.operations:
        emitted = operation.invocation_name in operations
        if emitted or spec.target in operation.native_implementation:
            inside = operation.invocation_name in splits
            kinds = (round_factors_inside, split_factors) if inside else (round_factors,)
            terms = operation.invocation_name in stored
            ahead = (split_ahead, split_one_ahead) if terms else ()
            sums = (substitute_where_rounded, substitute_few_bits)
            kinds = (
                substitute,
                *sums,
                widen,
                widen_ahead,
                round_weights,
                widen_weighted,
                widen_weighted_ahead,
                round_factor,
                *kinds,
                *ahead,
            )
            for kind in kinds:
                rules += _rules(kind, operation, spec.name)
    return tuple(rules)


def float32_products(
    spec: ParallelProcessingUnit,
    operations: frozenset[str],
    splits: frozenset[str],
    precision: str,
    stored: frozenset[str] = frozenset(),
) -> dict[str, int]:
    """How many products each operation computes for one of float32, where a precision allows it."""
    count: dict[str, int] = {}
    for rule in allowed(substitutions(spec, operations, splits, stored), precision):
        kind, _, name = rule.name.partition("_factors_")
        if kind == "round":
            count[name] = 1
        elif name or rule.name.startswith("split_ahead_"):
            _, _, _, operation, _, terms, _ = rule.rewrites[0].right.args  # type: ignore[union-attr]
            count.setdefault(str(operation), len(products(int(terms))))  # type: ignore[arg-type]
    return count


def _rules(
    kind: Callable[[ParallelOperation], Drawn], operation: ParallelOperation, spec: str
) -> Iterator[Rule]:
    """The rule of a kind for an operation; none where no dtypes of the operation are such."""
    found: dict[str, list[Rewrite]] = {}
    for precision, one in kind(operation):
        found.setdefault(precision, []).append(one)
    law = (kind.__doc__ or "").strip()
    equation, _, reason = law.partition("\n")
    stem = f"{kind.__name__.removesuffix('_inside')}_{operation.name}"
    for precision, rewrites in found.items():
        yield Rule(
            name=stem if len(found) == 1 else f"{stem}_{precision}",
            group="substitution",
            equation=equation.replace("OPERATION", operation.name),
            note=" ".join([*reason.split(), f"{operation.semantics}; from {spec}'s operations."]),
            rewrites=tuple(rewrites),
            precision=precision,
        )


def substitute(operation: ParallelOperation) -> Drawn:
    """contract_S(a, b)  ->  contract_S(a, b) by OPERATION
    when: the factors are of its dtypes; for a matrix, each has an index of its own.
    """
    if not operation.accumulator_bits:
        for one in _as_they_are(operation):
            yield "exact", one
    for narrow, out in _dtypes(operation):
        if out == narrow == WIDE and not operation.accumulator_bits:
            yield "exact", _weighted(operation, B, B, dtype_in(B, narrow))


def substitute_where_rounded(operation: ParallelOperation) -> Drawn:
    """contract_S(a, b)  ->  contract_S(a, b) by OPERATION,  whose sums have few bits
    when: as for substitute; what the kernel stores of its sums has no more than 11 bits (see
    eqsat.price.partial_sums). float: partial sums have fewer bits than float32, their total not.
    """
    if operation.accumulator_bits:
        for one in _as_they_are(operation):
            yield "default", one.when(fact("rounded", WIDE))


def substitute_few_bits(operation: ParallelOperation) -> Drawn:
    """contract_S(a, b)  ->  contract_S(a, b) by OPERATION,  whose sums have few bits
    when: as for substitute. float: partial sums have the bits of tf32.
    """
    if operation.accumulator_bits:
        for one in _as_they_are(operation):
            yield "tf32", one


def widen(operation: ParallelOperation) -> Drawn:
    """contract_S(a, b)  ->  contract_S(cast a, cast b) by OPERATION
    when: its dtype holds every number of the factors' narrower ones; those that are cast lie in
    registers on their way to the operation, or threads of their own make one in shared memory.
    """
    for wide, out in _dtypes(operation):
        if wide not in SIXTEEN or out != WIDE:
            continue
        for pair in _held_by(wide):
            cast = sum(kind != wide for kind in pair)
            if cast <= operation.factor_memories.count("registers") + operation.asynchronous:
                before = [_widened(x, out, kind) for x, kind in zip((A, B), pair, strict=True)]
                after = [
                    side if kind == wide else apply("cast", out, apply("cast", wide, x))
                    for x, side, kind in zip((A, B), before, pair, strict=True)
                ]
                own = [dtype_in(x, kind) for x, kind in zip((A, B), pair, strict=True)]
                guards = (*own, *_matrix(operation))
                yield "exact", _by(operation, tuple(before), tuple(after), guards)


def widen_ahead(operation: ParallelOperation) -> Drawn:
    """contract_S(a, b)  ->  contract_S(cast a, cast b) by OPERATION
    when: its dtype holds every number of the factors' narrower ones; those that are cast lie in
    memory, where a kernel of its own stores them so.
    """
    if "registers" in operation.factor_memories or not operation.asynchronous:
        return
    reads = Variable("r", "Read"), Variable("s", "Read")
    for wide, out in _dtypes(operation):
        for pair in _held_by(wide) if wide in SIXTEEN and out == WIDE else ():
            before, guards = [], list(_matrix(operation))
            for x, read, kind in zip((A, B), reads, pair, strict=True):
                source = x if kind == wide else apply("read", read)
                before.append(apply("cast", out, source))
                guards.append(dtype_in(x, wide))
                if kind != wide:
                    guards.append(fact("prepared", source, x, wide, 0))
            after = (apply("cast", out, A), apply("cast", out, B))
            left = apply("contract", S, *before, "")
            right = apply("contract", S, *after, operation.name)
            yield "exact", Rewrite(left, right, tuple(guards))


def round_weights(operation: ParallelOperation) -> Drawn:
    """weighted_sum_S(a, b)  ->  weighted_contract_S(a, b) by OPERATION
    when: b came from a 16-bit float. float: weights lie in [0, 1]; rounded to the dtype of b they
    lose what b lost.
    """
    for narrow, out in _dtypes(operation):
        if narrow in SIXTEEN and out == WIDE:
            b = _widened(B, out, narrow)
            yield "default", _weighted(operation, b, b, dtype_in(B, narrow))


def widen_weighted(operation: ParallelOperation) -> Drawn:
    """weighted_sum_S(a, b)  ->  weighted_contract_S(a, cast b) by OPERATION
    when: its dtype holds every number of b's narrower one; b lies in registers on its way to the
    operation, or threads of their own make it in shared memory. float: weights lie in [0, 1];
    rounded to its dtype they lose less than b lost.
    """
    held = "registers" in operation.factor_memories
    held &= operation.asynchronous or "shared" not in operation.factor_memories
    for wide, out in _dtypes(operation):
        if wide not in SIXTEEN or out != WIDE or not held:
            continue
        for kind in _narrower(wide):
            before = apply("cast", out, B)
            after = apply("cast", out, apply("cast", wide, B))
            yield "default", _weighted(operation, before, after, dtype_in(B, kind))


def widen_weighted_ahead(operation: ParallelOperation) -> Drawn:
    """weighted_sum_S(a, b)  ->  weighted_contract_S(a, cast b) by OPERATION
    when: its dtype holds every number of b's narrower one; b lies in memory, where a kernel of its
    own stores it so. float: weights lie in [0, 1]; rounded to its dtype they lose less than b lost.
    """
    if not operation.asynchronous:
        return
    source = apply("read", Variable("r", "Read"))
    for wide, out in _dtypes(operation):
        if wide in SIXTEEN and out == WIDE:
            before, after = apply("cast", out, source), apply("cast", out, B)
            guards = (dtype_in(B, wide), fact("prepared", source, B, wide, 0))
            yield "default", _weighted(operation, before, after, *guards)


def round_factor(operation: ParallelOperation) -> Drawn:
    """contract_S(a, b)  ->  contract_S(round(a), b) by OPERATION
    when: a is float32, and b came from bfloat16. float: a is rounded to bfloat16 too.
    """
    if ("bfloat16", WIDE) in _dtypes(operation):
        a, b = _widened(A, WIDE, "bfloat16"), _widened(B, WIDE, "bfloat16")
        for before, after, wide, narrow in (
            ((A, b), (_round(A), b), A, B),
            ((a, B), (a, _round(B)), B, A),
        ):
            guards = (dtype_in(wide, WIDE), dtype_in(narrow, "bfloat16"), *_matrix(operation))
            yield "default", _by(operation, before, after, guards)


def round_factors(operation: ParallelOperation) -> Drawn:
    """contract_S(a, b)  ->  contract_S(round(a), round(b)) by OPERATION
    when: both are float32; for bfloat16 the operation takes factors from registers, where they are
    rounded. float: both are rounded to its dtype; a tf32 operation rounds its operands itself.
    """
    if ("tfloat32", WIDE) in _dtypes(operation):
        yield "tf32", _by(operation, (A, B), (A, B), _wide(operation))
        yield "tf32", _weighted(operation, B, B, dtype_in(B, WIDE))
    elif ("bfloat16", WIDE) in _dtypes(operation) and {*operation.factor_memories} <= {"registers"}:
        yield "bf16", _by(operation, (A, B), (_round(A), _round(B)), _wide(operation))
        yield "bf16", _weighted(operation, B, _round(B), dtype_in(B, WIDE))


def round_factors_inside(operation: ParallelOperation) -> Drawn:
    """contract_S(a, b)  ->  contract_S(a_0, b_0) by OPERATION
    when: both are float32. float: both are rounded to the operation's dtype as it reads them.
    """
    for narrow, out in _dtypes(operation):
        if narrow in TERMS and out == WIDE:
            precision = {"tfloat32": "tf32", "bfloat16": "bf16"}[narrow]
            yield precision, _narrowed(operation, narrow, 1)
            after = B if narrow == "tfloat32" else _round(B)
            yield precision, _weighted(operation, B, after, dtype_in(B, WIDE))


def split_factors(operation: ParallelOperation) -> Drawn:
    """contract_S(a, b)  ->  sum_{i + j < terms} contract_S(a_i, b_j) by OPERATION
    when: both are float32; a = sum_i a_i, each in the operation's dtype: two of tf32, or three of
    bfloat16. float: what is left out is below float32's own rounding.
    """
    for narrow, out in _dtypes(operation):
        if narrow in TERMS and out == WIDE:
            yield "default", _narrowed(operation, narrow, TERMS[narrow])


def split_ahead(operation: ParallelOperation) -> Drawn:
    """contract_S(a, b)  ->  sum_{i + j < terms} contract_S(a_i, b_j) by OPERATION
    when: both are float32 and lie in memory, where a kernel of its own stores a = sum_i a_i, each
    in the operation's dtype. float: what is left out is below float32's own rounding.
    """
    if "registers" in operation.factor_memories:
        return
    r, s, T = Variable("r", "Read"), Variable("s", "Read"), Variable("T", "Indices")
    before = (apply("read", r), apply("read", s))
    for narrow, out in _dtypes(operation):
        if narrow in STORED_TERMS and out == WIDE:
            after = (apply("cast", WIDE, A), apply("cast", WIDE, B))
            how = (operation.name, narrow, TERMS[narrow], T)
            yield (
                "default",
                Rewrite(
                    apply("contract", S, *before, ""),
                    apply("narrow_contract", S | T, *after, *how),
                    (
                        fact("prepared", before[0], A, narrow, T),
                        fact("prepared", before[1], B, narrow, T),
                        *_matrix(operation),
                    ),
                ),
            )


def split_one_ahead(operation: ParallelOperation) -> Drawn:
    """contract_S(a, b)  ->  sum_{i + j < terms} contract_S(a_i, b_j) by OPERATION
    when: both are float32 and lie in memory, where a kernel of its own stores the b_j; a is split
    as it is read. float: what is left out is below float32's own rounding.
    """
    if operation.factor_memories.count("registers") != 1:
        return
    C, D, T = Variable("c"), Variable("d"), Variable("T", "Indices")
    for narrow, out in _dtypes(operation):
        if narrow in STORED_TERMS and out == WIDE:
            how = (operation.name, narrow, TERMS[narrow], T)
            guards = (
                fact("prepared", A, D, narrow, T),
                fact("prepared", C, B, narrow, T),
                *_matrix(operation),
            )
            stored = apply("cast", WIDE, B)
            for before, after in (((A, C), (A, stored)), ((C, A), (stored, A))):
                right = apply("narrow_contract", S | T, *after, *how)
                yield "default", Rewrite(apply("contract", S, *before, ""), right, guards)


def _dtypes(operation: ParallelOperation) -> list[tuple[str, str]]:
    """(dtype of both factors, dtype of the result) of each row of a sum of products."""
    pair = operation.semantics.contraction if operation.semantics else None
    if pair is None or operation.semantics is None:
        return []
    names = [*(read.operand for read in pair), operation.semantics.output.operand]
    rows: list[Mapping[str, str]] = list(operation.supported_data_types)
    found = [[row.get(name) for name in names] for row in rows]
    return [(a, out) for a, b, out in found if a == b and a is not None and out is not None]


def _combinations(operation: ParallelOperation) -> list[tuple[str, str, str]]:
    """(dtype of a, dtype of b, dtype of the result) of each row that holds dtypes of ours."""
    pair = operation.semantics.contraction if operation.semantics else None
    if pair is None or operation.semantics is None:
        return []
    names = [*(read.operand for read in pair), operation.semantics.output.operand]
    found = [tuple(row.get(name, "") for name in names) for row in operation.supported_data_types]
    return [(a, b, out) for a, b, out in found if {a, b, out} <= {*BY_NAME}]


def _as_they_are(operation: ParallelOperation) -> Iterator[Rewrite]:
    """By the operation, factors being of its dtypes."""
    for first, second, out in _combinations(operation):
        sides = (_widened(A, out, first), _widened(B, out, second))
        guards = (dtype_in(A, first), dtype_in(B, second), *_matrix(operation))
        yield _by(operation, sides, sides, guards)


def _held_by(wide: str) -> Iterator[tuple[str, ...]]:
    """Pairs of factors' dtypes, one or both narrower floats that a wide one holds."""
    kinds = [wide, *_narrower(wide)]
    return (pair for pair in product(kinds, kinds) if pair != (wide, wide))


def _narrower(wide: str) -> Iterator[str]:
    """The floats of fewer bytes of which a wide one holds every number."""
    return (name for name in BY_NAME if is_held(name, wide))


def _matrix(operation: ParallelOperation) -> tuple[Condition, ...]:
    """For an operation on matrices: each factor has an index of its own."""
    if not any(operation.extents.values()):
        return ()
    return nonempty(Free(A).without(Free(B))), nonempty(Free(B).without(Free(A)))


def _wide(operation: ParallelOperation) -> tuple[Condition, ...]:
    return (dtype_in(A, WIDE), dtype_in(B, WIDE), *_matrix(operation))


def _narrowed(operation: ParallelOperation, narrow: str, terms: int) -> Rewrite:
    right = apply("narrow_contract", S, A, B, operation.name, narrow, terms, 0)
    return Rewrite(apply("contract", S, A, B, ""), right, _wide(operation))


def _by(
    operation: ParallelOperation,
    before: tuple[Variable | Node, ...],
    after: tuple[Variable | Node, ...],
    guards: tuple[Condition, ...],
) -> Rewrite:
    left = apply("contract", S, *before, "")
    return Rewrite(left, apply("contract", S, *after, operation.name), guards)


def _weighted(
    operation: ParallelOperation,
    before: Variable | Node,
    after: Variable | Node,
    *own: Condition,
) -> Rewrite:
    law = Variable("law", "Law")
    left = apply("weighted_sum", S, A, before, law)
    right = apply("weighted_contract", S, A, after, operation.name, law)
    guards = (dtype_in(A, WIDE), overlap(S, Free(B)), *own, *_matrix(operation))
    return Rewrite(left, right, guards)


def _widened(factor: Variable, out: str, narrow: str) -> Variable | Node:
    return factor if narrow == out else apply("cast", out, factor)


def _round(factor: Variable) -> Node:
    """A float32 factor rounded to bfloat16."""
    return apply("cast", WIDE, apply("cast", "bfloat16", factor))
