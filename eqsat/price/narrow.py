"""What products through narrower floats cost: how many make up one, and splitting the factors."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from eqsat.graph.dtypes import DType
from eqsat.layout.narrow import products
from eqsat.specs import ParallelOperation
from eqsat.terms.algebra import Term

Array = NDArray[np.float64]
SPLIT = 5.0  # instructions of a thread for a term of an element, its reads included, as measured


def products_of(
    operation: ParallelOperation, term: Term, factor: DType, float32_products: Mapping[str, int]
) -> float:
    """Products of the operation that make up one of a contraction; one for each point of it where
    the factors' terms lie in memory, along an index of their own.

    float32_products: how many for float32 factors, where the term does not say yet.
    """
    if term.op == "narrow_contract":
        terms = term.args[5]
        assert isinstance(terms, int)
        return len(products(terms)) / (terms if is_joined(term) else 1)
    return float32_products.get(operation.name, 1) if factor.name == "float32" else 1


def is_joined(term: Term) -> bool:
    """Whether a product of terms in memory, whose sums are waited for and joined in every chunk."""
    return term.op == "narrow_contract" and bool(term.args[6])


def narrowing(
    operation: ParallelOperation, term: Term, work: Array, points: Array, warps: Array, depth: Array
) -> Iterator[tuple[str, Array]]:
    """Elementwise operations on float32, with how many: each warp splits the fragments it reads.
    Where factors were split beforehand, the sums of each chunk are joined.

    work: multiply-adds; points: those of the result's tile; warps that share it; depth: points that
    a chunk sums over, those of terms included.
    """
    terms = term.args[5]
    assert isinstance(terms, int)
    if is_joined(term):
        yield "isfinite", work / depth
        yield "add", 2 * work / depth
        return
    fragments = work * terms * 2 / np.sqrt(points / warps)
    if terms == 1:
        yield "cast", fragments
    else:
        yield "sub", SPLIT * fragments
        *_, depth = operation.extents.values()
        yield "add", work / max(depth, 1)  # the products of a step are added to the result
