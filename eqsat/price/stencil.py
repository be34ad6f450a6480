"""What reads of neighbours cost: they draw from the cache what lies beyond a tile, and a thread's
neighbouring points share what it loads.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from eqsat.kernel.stencils import Walk, held_names, steps_from, walk
from eqsat.price.rates import Array
from eqsat.price.tiling import LINE, Tiling
from eqsat.terms.algebra import Read, Term

THREADS = 128  # of a tile, before they are chosen
AROUND = 2  # times as long takes a load with what tells its address (a stencil of 27 points)


def beyond_neighbours(tiling: Tiling, read: Read, names: int, drawn: Array) -> tuple[Array, Array]:
    """What tiles draw from the cache for a read over `names`, `drawn` by itself, beyond what others
    read of a point's neighbours; and seconds of loads where it is near since others did.
    """
    found = _part(tiling, read)
    if found is None:
        return drawn, 0 * tiling.shape
    part, loaded = found
    lines = 2 if read.address.constant * read.dtype.itemsize % LINE else 1  # of 32 lanes
    touched = tiling.points(names) * read.dtype.itemsize * lines * AROUND
    rate = tiling.spec.memory("shared").bandwidth_gb_per_s * 1e9
    return drawn * part, loaded * touched / rate


def loaded_part(tiling: Tiling, term: Term) -> Array:
    """The part of a read that a thread loads beside what it reads of neighbours."""
    read = term.args[0]
    assert isinstance(read, Read)
    found = _part(tiling, read)
    return found[1] if found else tiling.shape


def _part(tiling: Tiling, read: Read) -> tuple[Array, Array] | None:
    """`_parts` of a read, if it is one of neighbours."""
    parts = _parts(tiling)
    return parts.get(_walk(tiling, read)) if parts else None


def _walk(tiling: Tiling, read: Read) -> Walk:
    return walk(read.buffer, read.address, read.guards, tiling.form.extents)


def _parts(tiling: Tiling) -> Mapping[Walk, tuple[Array, Array]]:
    """Of reads of neighbours of a point, but for the first, the part that a tile draws from the
    cache, and that a thread loads, where threads share tiles and nothing is reduced.
    """
    if tiling.neighbours is None:
        reads = [term.args[0] for term in tiling.form.terms if term.op == "read"]
        walks = [_walk(tiling, one) for one in reads if isinstance(one, Read)]
        counts = tiling.pricer.overlap and not tiling.form.reduced
        tiling.neighbours = dict(_found(tiling, tuple(dict.fromkeys(walks)))) if counts else {}
    return tiling.neighbours


def _found(tiling: Tiling, walks: tuple[Walk, ...]) -> Iterator[tuple[Walk, tuple[Array, Array]]]:
    one = tiling.shape
    threads = THREADS * one if tiling.blocking is None else tiling.blocking.threads
    extents = tiling.form.extents
    held = held_names(walks, extents, tiling.tiles, threads)
    between = steps_from(walks, tuple(extents.items()))
    for own, found in zip(walks, between, strict=True):
        part = loaded = one
        for steps in found:
            inside = {name: 1 - abs(by) / tiling.tiles[name] for name, by in steps.items()}
            kept = {name: np.maximum(share, 0.0) for name, share in inside.items()}
            part = np.minimum(part, 1 - np.prod([one, *kept.values()], axis=0))
            shared = [share * held.get(name, False) for name, share in kept.items()]
            loaded = np.minimum(loaded, 1 - np.prod([one, *shared], axis=0))
        if found:
            yield own, (part, loaded)
