"""Terms of float32 factors: what they hold, how accurate products are, and what is not finite.

The rule of `split_factors` is legal by default because of the measurement here.
"""

import numpy as np
import pytest

from eqsat.layout.narrow import TERMS, cut, multiply, nearest, products, split

BITS = {"tfloat32": 13, "bfloat16": 16}
STEP = {"tfloat32": 8, "bfloat16": 16}  # k of the matrix operation


def normal(random, k):
    return random.standard_normal((24, k)), random.standard_normal((k, 24))


def wide(random, k):
    """Magnitudes over six decades."""
    a, b = normal(random, k)
    return a * 10.0 ** random.uniform(-3, 3, a.shape), b * 10.0 ** random.uniform(-3, 3, b.shape)


def positive(random, k):
    return random.random((24, k)), random.random((k, 24))


def scaled(random, k):
    """Rows and columns each of a magnitude of their own."""
    a, b = normal(random, k)
    return a * 10.0 ** random.uniform(-6, 6, (24, 1)), b * 10.0 ** random.uniform(-6, 6, (1, 24))


def plain(a, b):
    """A chain of float32 multiply-adds."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for left, right in zip(a.T.astype(np.float64), b.astype(np.float64), strict=True):
        total = (total + np.outer(left, right)).astype(np.float32)
    return total


def toward_zero(x):
    """Cut to float32."""
    nearby = x.astype(np.float32)
    over = np.abs(nearby.astype(np.float64)) > np.abs(x)
    return np.where(over, np.nextafter(nearby, np.float32(0)), nearby).astype(np.float64)


def by_chunks(a, b, chunk):
    """Terms that lie in memory, each rounded to bfloat16: over a chunk the products of first terms
    and those of others each have an accumulator, whose sums are cut; then they are added.
    """

    def terms(x):
        found = [nearest(x, "bfloat16")]
        for _ in range(2):
            x = x - found[-1]
            found.append(nearest(x, "bfloat16"))
        return found

    left, right = terms(a), terms(b)
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for start in range(0, a.shape[1], chunk):
        sums = {True: np.zeros(total.shape), False: np.zeros(total.shape)}
        for i, j in products(3):
            for step in range(start, start + chunk, STEP["bfloat16"]):
                at = slice(step, step + STEP["bfloat16"])
                exact = left[i][:, at].astype(np.float64) @ right[j][at].astype(np.float64)
                sums[i + j == 0] = toward_zero(sums[i + j == 0] + exact)
        total += sums[True].astype(np.float32) + sums[False].astype(np.float32)
    return total


def by_steps(a, b, narrow, terms):
    """Steps of the operation, whose sums are cut to float32, added in float32."""
    left, right = split(a, narrow, terms), split(b, narrow, terms)
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for start in range(0, a.shape[1], STEP[narrow]):
        part = np.zeros(total.shape)
        at = slice(start, start + STEP[narrow])
        for i, j in products(terms):
            exact = left[i][:, at].astype(np.float64) @ right[j][at].astype(np.float64)
            part = toward_zero(part + exact)
        total += part.astype(np.float32)
    return total


def error(found, a, b):
    """Root mean square and largest error, relative to the sum of magnitudes."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    relative = np.abs(found - a @ b) / (np.abs(a) @ np.abs(b))
    return np.array([np.sqrt(np.mean(relative**2)), relative.max()])


def against_plain(data, k, narrow, terms):
    a, b = (x.astype(np.float32) for x in data(np.random.default_rng(k), k))
    return error(by_steps(a, b, narrow, terms), a, b) / error(plain(a, b), a, b)


@pytest.mark.parametrize("k", [64, 256, 4096])
@pytest.mark.parametrize("data", [normal, wide, positive, scaled], ids=lambda d: d.__name__)
@pytest.mark.parametrize("narrow", TERMS)
def test_products_of_terms_are_as_good_as_float32(narrow, data, k):
    assert (against_plain(data, k, narrow, TERMS[narrow]) < 2).all()


@pytest.mark.parametrize("data", [normal, wide, positive, scaled], ids=lambda d: d.__name__)
def test_sums_of_a_chunk_may_stay_in_the_matrix_unit_and_no_longer(data):
    """Of 4096 products; one accumulator for all of them is up to 7 times worse than float32."""
    a, b = (x.astype(np.float32) for x in data(np.random.default_rng(1), 4096))
    base = error(plain(a, b), a, b)
    assert (error(by_chunks(a, b, 128), a, b) < base / 2).all()
    assert error(by_chunks(a, b, 4096), a, b)[0] > 2 * base[0]


@pytest.mark.parametrize("data", [normal, wide, scaled], ids=lambda d: d.__name__)
@pytest.mark.parametrize("narrow", TERMS)
def test_one_term_less_is_not(narrow, data):
    """Two of bfloat16 (three products) are 30 times worse at k = 64."""
    assert (against_plain(data, 64, narrow, TERMS[narrow] - 1) > 8).all()


@pytest.mark.parametrize("narrow", TERMS)
def test_terms_have_few_bits_and_add_up(narrow):
    random = np.random.default_rng(0)
    x = (random.standard_normal(5000) * 10.0 ** random.uniform(-30, 30, 5000)).astype(np.float32)
    x = np.append(x, [0.0, np.finfo(np.float32).max, -np.finfo(np.float32).max]).astype(np.float32)
    terms = split(x, narrow, TERMS[narrow])
    for term in terms:
        assert term.dtype == np.float32 and np.isfinite(term).all()
        np.testing.assert_array_equal(term.view(np.uint32) % 2 ** BITS[narrow], 0)
    left = np.abs(x.astype(np.float64) - sum(term.astype(np.float64) for term in terms))
    assert (left <= np.abs(x) * (0 if narrow == "bfloat16" else 2.0**-22)).all()


def test_nearest_is_that_of_the_formats():
    import ml_dtypes

    random = np.random.default_rng(1)
    x = random.integers(0, 2**32, 20000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = x[np.isfinite(x)]
    with np.errstate(over="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(nearest(x, "bfloat16"), expected)
    half = np.float32(1 + 2.0**-11)  # a tie between 1 and 1 + 2^-10
    assert nearest(np.array([half, -half]), "tfloat32").tolist() == [1 + 2.0**-10, -1 - 2.0**-10]
    assert np.isnan(cut(np.array([0x7F800001], np.uint32).view(np.float32), "tfloat32")).all()


@pytest.mark.parametrize("narrow", TERMS)
def test_what_is_not_finite_stays_as_it_is(narrow):
    """An infinite factor times one, whose later terms are 0, is infinite and not NaN."""
    largest = np.finfo(np.float32).max
    a = np.array([[np.inf, 1], [-np.inf, 1], [np.nan, 1], [largest, 1], [np.inf, 1]], np.float32)
    b = np.array([[1.0, 0.3, 0.0], [2, 2, 2]], np.float32)
    with np.errstate(invalid="ignore"):
        expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
        found = multiply(a, b, narrow, TERMS[narrow], np.matmul)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
