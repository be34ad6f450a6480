"""Random inputs of a row, and how many sets of them keep the caches cold."""

import math

import numpy as np

from eqsat.bench.case import Case, Input, Sizes
from eqsat.graph import as_dtype

MAX_SETS = 256


def sets_needed(bytes_of_a_set: int, cache_bytes: int) -> int:
    """Sets such that twice the cache passes before a set is used again, at most MAX_SETS."""
    return min(MAX_SETS, 1 + math.ceil(2 * cache_bytes / max(bytes_of_a_set, 1)))


def factor(one: Input, sizes: Sizes) -> float:
    """What the normal numbers of an input are multiplied by."""
    return sizes[one.scale] ** -0.5 if one.scale else 1.0


def host_set(case: Case, sizes: Sizes, seed: int) -> tuple[np.ndarray, ...]:
    """One set of inputs as NumPy arrays."""
    generator = np.random.default_rng(seed)
    arrays = []
    for one in case.inputs.values():
        dtype, shape = as_dtype(one.dtype).numpy, one.shape(sizes)
        if one.below:
            arrays.append(generator.integers(0, sizes[one.below], shape).astype(dtype))
        else:
            values = generator.standard_normal(shape, np.float32)
            arrays.append((values * np.float32(factor(one, sizes))).astype(dtype))
    return tuple(arrays)
