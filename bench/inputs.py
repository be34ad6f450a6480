"""Random inputs of a row, and how many sets of them keep the caches cold."""

import math
from typing import Any

import numpy as np

from eqsat.bench.case import Case, Input, Sizes
from eqsat.graph import as_dtype

MAX_SETS = 256


def sets_needed(bytes_of_a_set: int, cache_bytes: int) -> int:
    """Sets such that twice the cache passes before a set is used again, at most MAX_SETS."""
    return min(MAX_SETS, 1 + math.ceil(2 * cache_bytes / max(bytes_of_a_set, 1)))


def numbers(one: Input, sizes: Sizes, generator: Any) -> Any:
    """Normal numbers of an input, scaled and with its sign, in float32; by NumPy or CuPy."""
    values = generator.standard_normal(one.shape(sizes), np.float32)
    values *= np.float32(sizes[one.scale] ** -0.5 if one.scale else 1.0)
    return abs(values) * np.float32(one.sign) if one.sign else values


def host_set(case: Case, sizes: Sizes, seed: int) -> tuple[np.ndarray, ...]:
    """One set of inputs as NumPy arrays."""
    generator = np.random.default_rng(seed)
    arrays = []
    for one in case.inputs.values():
        dtype, shape = as_dtype(one.dtype).numpy, one.shape(sizes)
        if one.below:
            arrays.append(generator.integers(0, sizes[one.below], shape).astype(dtype))
        else:
            arrays.append(numbers(one, sizes, generator).astype(dtype))
    return tuple(arrays)
