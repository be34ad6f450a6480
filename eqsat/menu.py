"""The tile choices that are considered for a form's grid, as arrays over one menu."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eqsat.form import Form


def sizes(extent: int, least: int = 1, most: int = 1 << 14) -> list[int]:
    """Powers of two below the extent, and the extent itself."""
    out = [1 << p for p in range(15) if least <= 1 << p < min(extent, most + 1)]
    return [*out, extent] if extent <= most else out


def chunks(form: Form, most_points: int = 1 << 20) -> dict[str, NDArray[np.float64]]:
    """Tiles that are blocks of the grid cut at one or two names.

    Names outside the first cut have tile 1, those inside the last cut their whole extent.
    """
    names = form.grid
    extents = [form.extents[name] for name in names]
    rows: list[list[int]] = [[1] * len(names)]
    for first in range(len(names)):
        inside = extents[first + 1 :]
        rows += [[1] * first + [size, *inside] for size in sizes(extents[first])]
        for second in range(first + 1, len(names)):
            between, tail = extents[first + 1 : second], extents[second + 1 :]
            for size in sizes(extents[first], 16)[-6:]:
                for other in sizes(extents[second], 16)[:-1]:
                    rows.append([1] * first + [size, *between, other, *tail])
    kept = [row for row in rows if np.prod(row) <= most_points] or [[1] * len(names)]
    unique = np.unique(np.array(kept, dtype=np.float64), axis=0) if names else np.ones((1, 0))
    return {name: unique[:, i] for i, name in enumerate(names)}


def pick(tiles: dict[str, NDArray[np.float64]], choice: int, names: Sequence[str]) -> dict[str, int]:
    """One row of a menu."""
    return {name: int(tiles[name][choice]) for name in names}
