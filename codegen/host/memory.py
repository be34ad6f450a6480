"""Memory for large results on the host: kept when the last array in it is gone, for the next one.

A system gives memory of tens of megabytes page by page as it is first written to, which takes
longer than many kernels do; it takes it back when an array is freed.
"""

import ctypes
import weakref
from collections import defaultdict
from collections.abc import Sequence
from math import prod
from threading import Lock
from typing import Any

import numpy as np

LEAST_BYTES = 1 << 22  # of a result that is worth it
SHORT_BYTES = 1 << 14  # of one that is written before it could be aligned
MOST_BYTES = 1 << 29  # that wait for a next one
ALIGNED = 64  # bytes of a cache line, at which a result begins

_HEAD = object.__basicsize__  # of an array's object; where its elements lie follows
_word_at = ctypes.c_size_t.from_address


def address_of(array: np.ndarray) -> int:
    """Where its elements lie: what follows the head of the object, in a tenth of the time that
    `array.ctypes.data` takes.
    """
    return _word_at(id(array) + _HEAD).value


class HostMemory:
    """Arrays in memory that earlier ones have left."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[np.ndarray]] = defaultdict(list)
        self._bytes = 0
        self._lock = Lock()

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """An uninitialised array. Views of it keep its memory as well as the array does."""
        size = prod(shape) * dtype.itemsize
        if size < LEAST_BYTES:
            return _aligned(shape, size, dtype) if size > SHORT_BYTES else np.empty(shape, dtype)
        with self._lock:
            waiting = self._waiting[size]
            block = waiting.pop() if waiting else None
            self._bytes -= size if block is not None else 0
        if block is None:
            block = np.empty(size + ALIGNED, np.uint8)
        owner = _Owner(block, size)
        weakref.finalize(owner, self._leave, size, block).atexit = False
        return np.asarray(owner).view(dtype).reshape(shape)

    def _leave(self, size: int, block: np.ndarray) -> None:
        """Keep a block whose last array is gone, unless much waits already."""
        with self._lock:
            if self._bytes + size <= MOST_BYTES:
                self._waiting[size].append(block)
                self._bytes += size


def _aligned(shape: Sequence[int], size: int, dtype: np.dtype) -> np.ndarray:
    """An uninitialised array that begins a cache line."""
    block = np.empty(size + ALIGNED, np.uint8)
    first = -address_of(block) % ALIGNED
    return block[first : first + size].view(dtype).reshape(shape)


class _Owner:
    """What an array and all its views refer to as long as one of them lives."""

    def __init__(self, block: np.ndarray, size: int) -> None:
        address = block.ctypes.data
        self.__array_interface__: dict[str, Any] = {
            "data": (address + -address % ALIGNED, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }
