"""What a library call does on the host: NumPy's own sorts and partitions."""

from collections.abc import Callable, Sequence

import numpy as np

from eqsat.errors import UnsupportedError
from eqsat.graph.meanings import order
from eqsat.library import LibraryCall

INVOCATION = "numpy_sort"


def host_call(call: LibraryCall) -> Callable[[Sequence[np.ndarray]], None]:
    """The call as a function of its buffers' arrays, in order; narrow floats sort as float32."""
    source, made = call.buffers[:2]
    wide = source.dtype.compute.numpy
    if call.function not in ("sort", "argsort"):
        raise UnsupportedError(f"no library of the host does {call.function!r}.")

    def run(arrays: Sequence[np.ndarray]) -> None:
        rows = arrays[0].reshape(source.shape).astype(wide, copy=False)
        result = arrays[1].reshape(made.shape)
        if call.function == "sort":
            result[...] = _sorted(rows, call.descending)
        elif call.method == "select":
            for row in np.ndindex(source.shape[:-1]):
                result[row] = first_places(rows[row], call.descending, call.count)
        else:
            result[...] = order(rows, call.descending, call.count)

    return run


def _sorted(rows: np.ndarray, descending: bool) -> np.ndarray:
    """Where elements alone are asked for, ties cannot be told apart, and any sort will do."""
    found = np.sort(rows, axis=-1)
    return found[..., ::-1] if descending else found


def first_places(row: np.ndarray, descending: bool, count: int) -> np.ndarray:
    """As `order` of one row: what lies before the last element asked for is found by a partition,
    and of those that are equal to it the first.
    """
    if descending:
        at = row.size - count
        last = np.partition(row, at)[at]
        if last != last:  # NaN comes first
            before, level = np.zeros(row.shape, bool), np.isnan(row)
        else:
            before, level = ~(row <= last), row == last
    else:
        last = np.partition(row, count - 1)[count - 1]
        if last != last:  # NaN comes last
            level = np.isnan(row)
            before = ~level
        else:
            before, level = row < last, row == last
    ahead = np.flatnonzero(before)
    chosen = np.sort(np.concatenate([ahead, np.flatnonzero(level)[: count - ahead.size]]))
    return chosen[order(row[chosen], descending, count)]
