"""The first elements of rows on the host, compiled for the elements and read once.

Elements have signed integers as keys, in the same order. The smallest key of each block of a row is
found in vectors; the `count`th of those is a level which at least `count` keys reach. The blocks
that do are gone through once more, and a heap holds the first of their elements.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from eqsat.codegen.cpu import target
from eqsat.codegen.order_keys import signed_key
from eqsat.library import LibraryCall

INVOCATION = "numba_select"
BLOCKS = (8, 64)  # elements, as many as leave twice as many blocks as elements are asked for

_SOURCE = '''# {title}
import numpy as np
from numba.extending import register_jitable

from eqsat.codegen.cpu.runtime import select


@register_jitable
def key_of(bits):
{key}


@register_jitable
def later(key, place, other, its_place):
    return key > other or (key == other and place > its_place)


@register_jitable
def sink(keys, places, used, key, place):
    """Replace the top of a heap, which is the last of all."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= used:
            break
        beside = child + 1
        if beside < used and later(keys[beside], places[beside], keys[child], places[child]):
            child = beside
        if not later(keys[child], places[child], key, place):
            break
        keys[at] = keys[child]
        places[at] = places[child]
        at = child
    keys[at] = key
    places[at] = place


@register_jitable
def rise(keys, places, used, key, place):
    """Add to a heap."""
    at = used
    while at > 0:
        above = (at - 1) // 2
        if not later(key, place, keys[above], places[above]):
            break
        keys[at] = keys[above]
        places[at] = places[above]
        at = above
    keys[at] = key
    places[at] = place


@register_jitable
def offer(keys, places, used, key, place):
    """Keep the first {count} of what is offered in the order of places; how many are kept."""
    if used < {count}:
        rise(keys, places, used, key, place)
        return used + 1
    if key < keys[0]:
        sink(keys, places, used, key, place)
    return used


def kernel(start, stop, elements, made):
    keys = np.empty({count}, np.{word})
    places = np.empty({count}, np.int64)
    firsts = np.empty({blocks}, np.{word})
    for number in range(start, stop):
        row = elements[number * {length} : (number + 1) * {length}]
        used = 0
        for block in range({blocks}):
            first = np.{word}({last})
            for i in range(block * {block}, min((block + 1) * {block}, {length})):
                first = min(first, key_of(row[i]))
            firsts[block] = first
            used = offer(keys, places, used, first, block)
        level = keys[0] if used == {count} else np.{word}({last})
        used = 0
        for block in range({blocks}):
            if firsts[block] > level:
                continue
            for i in range(block * {block}, min((block + 1) * {block}, {length})):
                key = key_of(row[i])
                if key <= level:
                    used = offer(keys, places, used, key, i)
            if used == {count}:
                level = min(level, keys[0])
        for left in range({count} - 1, -1, -1):
            made[number * {count} + left] = places[0]
            sink(keys, places, left, keys[left], places[left])
'''


def select_source(call: LibraryCall) -> str:
    """Source of `kernel(start, stop, elements, made)`, which orders the rows [start, stop)."""
    dtype = call.buffers[0].dtype
    block = BLOCKS[1]
    while block > BLOCKS[0] and call.length < 2 * block * call.count:
        block //= 2
    return _SOURCE.format(
        title=f"the first {call.count} of {dtype.name}{list(call.buffers[0].shape)}",
        key=signed_key(dtype, call.descending),
        word=f"int{8 * dtype.itemsize}",
        last=(1 << (8 * dtype.itemsize - 1)) - 1,
        length=call.length,
        count=call.count,
        block=block,
        blocks=-(-call.length // block),
    )


def numba_select(call: LibraryCall, folder: Path | None) -> Callable[[Sequence[np.ndarray]], None]:
    """The call as a function of its buffers' arrays, in order."""
    word = np.dtype(f"int{8 * call.buffers[0].dtype.itemsize}")
    elements = (word, np.dtype(np.int64))
    over_rows = target.load_source(
        select_source(call), elements, call.rows, call.rows * call.length, folder
    )

    def run(arrays: Sequence[np.ndarray]) -> None:
        rows, made = (array.reshape(-1) for array in arrays)
        over_rows([rows.view(word), made])

    return run
