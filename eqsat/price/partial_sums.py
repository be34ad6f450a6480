"""Sums that an operation keeps in few bits: where they may serve, and what it takes to add them up.

An operation with `accumulator_bits` keeps sums in a significand of so many bits. It may compute
only parts of a sum (`ParallelOperation.partial_sum`), which are added in the result's own dtype; a
sum that is no longer than a part it computes as any other.
A part is good for a float of 11 bits; so by default the operation serves where a kernel stores of
its sums nothing of more bits, and otherwise where the program may round factors to tf32.
"""

from collections.abc import Iterator

from eqsat.graph.dtypes import DType, finfo
from eqsat.specs import ParallelProcessingUnit
from eqsat.specs.model import NARROW_BITS
from eqsat.terms.algebra import Term
from eqsat.terms.form import SUBSTITUTED, Form

FAITHFUL = frozenset(
    {"neg", "abs", "square", "sqrt", "rsqrt", "reciprocal", "tanh", "erf", "one_plus_erf", "where"}
    | {"add", "sub", "mul", "div", "maximum", "minimum", "reduce_sum", "reduce_max", "reduce_min"}
    | {"contract", "narrow_contract", "cast", "reindex"}
)
"""Operations whose result is off by no more than a few times what an argument is."""


def has_few_bits(dtype: DType) -> bool:
    """Whether a float's significand has no more bits than a partial sum is good for."""
    return dtype.kind == "float" and finfo(dtype).eps >= 2.0 ** (1 - NARROW_BITS)


def rounded(made: Form) -> bool:
    """Whether of every sum of products of 8-bit floats only floats of few bits are stored."""
    exposed = {one.term for one in made.stored if not has_few_bits(one.dtype)}
    for term in reversed(made.terms):
        if term in exposed and _sums_eight_bits(made, term):
            return False
        if term.op == "cast" and has_few_bits(made.facts.dtype(term)):
            continue
        if term in exposed or term.op not in FAITHFUL:
            exposed.update(term.children)
    return True


def rounded_rows(made: Form) -> list[tuple[str]]:
    """The relation `rounded`: the dtypes of sums that a kernel stores rounded alone."""
    return [("float32",)] if rounded(made) else []


def rounded_facts(made: Form) -> list[str]:
    """The same as egglog facts."""
    return [f'(rounded "{dtype}")' for (dtype,) in rounded_rows(made)]


def partial_points(spec: ParallelProcessingUnit, made: Form, term: Term) -> int:
    """Points after which a product's sums leave its operation, are waited for and added up; 0 where
    they may stay.
    """
    if term.op not in SUBSTITUTED or not term.args[3]:
        return 0
    mask = term.args[0]
    assert isinstance(mask, int)
    return spec.operation(str(term.args[3])).part_of(made.facts.universe.size(mask))


def count_parts(spec: ParallelProcessingUnit, made: Form) -> float:
    """Parts of the sums of a point of the results, which wait for one another."""
    parts = ((term, partial_points(spec, made, term)) for term in made.terms)
    return sum(made.facts.universe.size(int(t.args[0])) / part for t, part in parts if part)  # type: ignore[arg-type]


def _sums_eight_bits(made: Form, term: Term) -> bool:
    return any(d.kind == "float" and d.itemsize == 1 for d in _factors(made, term))


def _factors(made: Form, term: Term) -> Iterator[DType]:
    for factor in made.contraction(term) or ():
        yield made.facts.dtype(factor)
