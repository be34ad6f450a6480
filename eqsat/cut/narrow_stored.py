"""Values that are stored to be factors of 16-bit ones alone: rounded as a kernel that multiplies
them rounds them anyway, they take half the memory.

The law is `drop_rounding`, from right to left.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from eqsat.cut.cuts import Cut
from eqsat.graph.dtypes import DType, bfloat16, float16, float32
from eqsat.terms.algebra import SCATTERS, Facts, Read, Term, post_order, rebuild, with_children
from eqsat.terms.form import Stored, beneath_cast, is_product

LAW = "drop_rounding"
KINDS = frozenset({bfloat16, float16})


def narrowed(cuts: Mapping[int, Cut], facts: Facts, kinds: Set[DType]) -> dict[int, Cut]:
    """The cuts; of those that store float32 which is read for products with floats of one of these
    kinds alone, each stores that, in a buffer of another name.
    """
    found: dict[str, set[DType | None]] = {}
    for cut in cuts.values():
        for buffer, dtype in _readings(cut.stored.term, facts):
            found.setdefault(buffer, set()).add(dtype)
    narrow: dict[str, DType] = {}
    for number, cut in cuts.items():
        own = cut.stored
        (dtype, *others) = found.get(own.buffer, {None})
        wide = number >= 0 and own.dtype == float32 and own.term.op not in SCATTERS
        if wide and dtype in kinds and not others:
            narrow[own.buffer] = dtype
    if not narrow:
        return dict(cuts)
    return {
        number: replace(cut, stored=_rounded(cut.stored, narrow, facts))
        for number, cut in cuts.items()
    }


def _readings(term: Term, facts: Facts) -> Iterator[tuple[str, DType | None]]:
    """The buffers that a term reads, and the dtype of factors with which each is multiplied; None
    where it is read otherwise.
    """
    users: dict[Term, list[Term]] = {term: []}
    for sub in post_order([term]):
        for child in sub.children:
            users.setdefault(child, []).append(sub)
    for sub, above in users.items():
        read = sub.args[0] if sub.op in {"read", "gather"} else None
        if isinstance(read, Read):
            plain = sub.op == "read" and not read.fill
            for user in above if plain and above else (None,):
                yield read.buffer, _other(user, sub, users, facts) if user else None


def _other(
    product: Term, factor: Term, users: Mapping[Term, Sequence[Term]], facts: Facts
) -> DType | None:
    """The dtype from which the other factor was widened of a product that is summed."""
    summed = [one.op == "reduce_sum" and is_product(one, facts) for one in users[product]]
    if product.op != "mul" or not summed or not all(summed):
        return None
    left, right = product.children
    return facts.dtype(beneath_cast(left if right is factor else right, facts))


def _rounded(one: Stored, narrow: Mapping[str, DType], facts: Facts) -> Stored:
    """A stored value, rounded if that is what its buffer holds, as is what it reads."""

    def change(sub: Term, children: tuple[Term, ...]) -> Term:
        read = sub.args[0] if sub.op == "read" else None
        if isinstance(read, Read) and read.buffer in narrow:
            kept = replace(read, buffer=_name(read.buffer), dtype=narrow[read.buffer])
            return Term("cast", float32.name, Term("read", kept))
        return with_children(sub, children)

    term = rebuild(one.term, change)
    if one.buffer not in narrow:
        return replace(one, term=term)
    dtype = narrow[one.buffer]
    value = beneath_cast(term, facts)  # what was widened is that again
    rounded = value if facts.dtype(value) == dtype else Term("cast", dtype.name, term)
    return replace(one, buffer=_name(one.buffer), term=rounded, dtype=dtype)


def _name(buffer: str) -> str:
    return f"{buffer}_narrow"
