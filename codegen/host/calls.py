"""What a library call does on the host: NumPy's own sorts."""

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
        else:
            result[...] = order(rows, call.descending, call.count)

    return run


def _sorted(rows: np.ndarray, descending: bool) -> np.ndarray:
    """Where elements alone are asked for, ties cannot be told apart, and any sort will do."""
    found = np.sort(rows, axis=-1)
    return found[..., ::-1] if descending else found
