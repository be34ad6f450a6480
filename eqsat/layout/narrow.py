"""float32 factors of products in narrower floats: rounded to them, or split into several terms.

a = a_0 + a_1 + .. up to a rounding of a itself, and a * b = sum of a_i * b_j over i + j < terms:
what is left out is below float32's own rounding. Sources: Ootomo and Yokota, arXiv 2203.03341 (and
why sums leave the matrix unit early); Henry, Tang and Heinecke, arXiv 1904.06376.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

DROPPED_BITS: Mapping[str, int] = {"tfloat32": 13, "bfloat16": 16}
"""Low bits of a float32 that the narrow float of the same exponents lacks."""

TERMS: Mapping[str, int] = {"tfloat32": 2, "bfloat16": 3}
"""Terms of a narrow float that are as good as a float32."""


def products(terms: int) -> tuple[tuple[int, int], ...]:
    """Which terms of the factors are multiplied, the smallest product first and (0, 0) last."""
    return tuple((i, n - i) for n in range(terms - 1, -1, -1) for i in range(n + 1))


def cut(x: np.ndarray, narrow: str) -> np.ndarray:
    """float32 values rounded toward zero to the narrow float; NaN stays NaN."""
    mask = np.uint32(2**32 - 2 ** DROPPED_BITS[narrow])
    return np.where(np.isnan(x), x, (_bits(x) & mask).view(np.float32))


def nearest(x: np.ndarray, narrow: str) -> np.ndarray:
    """float32 values rounded to nearest: ties away from zero for tf32, else to even."""
    shift = np.uint32(DROPPED_BITS[narrow])
    odd = np.uint32(1) if narrow == "tfloat32" else _bits(x) >> shift & np.uint32(1)
    half = np.uint32((1 << int(shift) - 1) - 1)
    rounded = (_bits(x) + half + odd) >> shift << shift
    return np.where(np.isfinite(x), rounded.view(np.float32), x)


def split(x: np.ndarray, narrow: str, terms: int) -> list[np.ndarray]:
    """The terms of float32 values, the largest first.

    One term is the value rounded. Of more, all are finite where the value is; where it is not, all
    but the first are of no use. Of two the first is to nearest, for the sign of the second holds a
    bit; three hold all bits, cut one after the other.
    """
    if terms == 1:
        return [nearest(x, narrow)]
    found = []
    for number in range(terms):
        term = cut(x, narrow)
        if terms == 2 and number == 0:
            rounded = nearest(x, narrow)
            term = np.where(np.isinf(rounded), term, rounded)
        found.append(term)
        with np.errstate(invalid="ignore"):
            x = x - term
    return found


def multiply(
    left: np.ndarray,
    right: np.ndarray,
    narrow: str,
    terms: int,
    product: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """The product of float32 factors through their terms; `product` sums products of two arrays."""
    a, b = (split(x, narrow, terms) for x in (left, right))
    return multiply_terms(a, b, product)


def multiply_terms(
    a: Sequence[np.ndarray],
    b: Sequence[np.ndarray],
    product: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """The product of factors given as terms, the largest first.

    Where the product of the first terms is not finite it is the whole.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        *small, leading = (product(a[i], b[j]) for i, j in products(len(a)))
        if not small:
            return leading
        rest = small[0]
        for one in small[1:]:
            rest = rest + one
        return np.where(np.isfinite(leading), leading + rest, leading)


def _bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, np.float32).view(np.uint32)
