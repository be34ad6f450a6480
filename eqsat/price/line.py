"""What it costs to look values up in a table, where the part that a tile needs lies near."""

import numpy as np

from eqsat.price.rates import Array
from eqsat.price.tiling import LANES, LINE, Tiling
from eqsat.terms.algebra import Read

NEAR = 16 << 10  # bytes of a table that stay in a processor's first cache, beside staged operands


def looked_up(tiling: Tiling, read: Read, names: int, drawn: Array) -> tuple[Array, Array]:
    """Bytes that a gather over `names` draws from the cache, `drawn` where the table is far, and
    seconds of loads: a near table is drawn once for a tile, and lanes wait for the lines they hit.
    """
    none = 0 * tiling.shape
    if not tiling.pricer.overlap or tiling.blocking is None:
        return drawn, none
    table = tiling.tile_points(tiling.form.facts.universe.mask(read.names))
    table = table * read.extent * read.dtype.itemsize
    lines = np.minimum(np.ceil(table / LINE), LANES)
    beside = any(stride == 1 for _, stride in read.address.terms)  # rows, not single values
    each = read.dtype.itemsize if beside else lines * LINE / LANES
    rate = tiling.pricer.spec.memory("shared").bandwidth_gb_per_s * 1e9
    loads = tiling.points(names) * tiling.times(names) * each / rate
    near = (table <= NEAR) & (table * tiling.tiles_in_all() < drawn)
    return np.where(near, table * tiling.tiles_in_all(), drawn), np.where(near, loads, none)
