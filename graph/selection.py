"""The k largest or smallest elements along an axis: of short rows one after the other."""

from eqsat.errors import DTypeError, ShapeError
from eqsat.graph.arguments import as_integer
from eqsat.graph.build import TensorLike, as_tensor, cast, iota
from eqsat.graph.dtypes import neutral
from eqsat.graph.elementwise import equal, logical_or, where
from eqsat.graph.manipulation import concat, moveaxis, reshape
from eqsat.graph.movement import normalise_axis
from eqsat.graph.ordered import along_rows, ordered
from eqsat.graph.reductions import beyond, first_of, reduce
from eqsat.graph.tensor import Tensor, weak_composition

# Rounds, and elements that all of them may read of a row: a selection costs as much as two or
# three rounds, and more of short rows. Measured on two cores: 2 and 8 of 64 by rounds in 0.6 and
# 1.2 times its time, 2 of 2000 in 1.6, of 100,000 in 3. What reads the results has them in one
# kernel or another with each round, which a search tries.
ROUNDS = 4
READ = 1024


def top_k(x: TensorLike, k: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The k largest elements along an axis, or the k smallest, in order; and their positions.

    x: numbers of any real dtype. Both results have x's shape with k in place of the axis; the
    positions are int64. Equal elements come in the order of their positions, NaN before all others.
    One element, or a few of a short row, are found one after the other, in kernels that may be
    fused with what makes x; otherwise an operation of the spec orders the first k of whole rows.

    ShapeError for a k that is not between 1 and the axis' extent, DTypeError for bool.
    """
    x, k = as_tensor(x), as_integer(k, "top_k: k")
    if x.ndim == 0 or x.dtype.kind == "bool":
        kind = ShapeError if x.ndim == 0 else DTypeError
        raise kind(f"top_k: takes numbers along an axis, got {x}.")
    axis = normalise_axis(axis, x.ndim, "top_k", str(x))
    if not 1 <= k <= x.shape[axis]:
        n = x.shape[axis]
        hint = f"Take 1 to {n}." if n else "There is none to take."
        raise ShapeError(f"top_k: k is {k}; axis {axis} of {x} has {n} elements. {hint}")
    with weak_composition("top_k"):
        if k > 1 and (k > ROUNDS or k * x.shape[axis] > READ):
            return _from_order(x, k, axis, largest)
        return one_by_one(x, k, axis, largest)


def one_by_one(x: Tensor, k: int, axis: int, largest: bool) -> tuple[Tensor, Tensor]:
    """As `top_k`, in so many rounds, each of which reads all elements for the next one."""
    rest = cast(x, x.dtype.compute)
    last = neutral("max" if largest else "min", rest.dtype)  # after every other
    place = iota(x.shape, axis)
    kept = tuple(1 if d == axis else n for d, n in enumerate(x.shape))
    values: list[Tensor] = []
    places: list[Tensor] = []
    taken: Tensor | None = None
    for _ in range(k):
        value = reduce("reduce_max" if largest else "reduce_min", rest, axis, keepdims=True)
        left = place if taken is None else where(taken, beyond(x.shape[axis]), place)
        first = reshape(first_of(rest, value, left, axis), kept)
        values.append(value)
        places.append(first)
        own = equal(place, first)
        taken = own if taken is None else logical_or(taken, own)
        rest = where(own, last, rest)
    return cast(concat(values, axis), x.dtype), concat(places, axis)


def _from_order(x: Tensor, k: int, axis: int, largest: bool) -> tuple[Tensor, Tensor]:
    """The first k of the order of x, or of what is ordered the other way and keeps NaN in front."""
    rows = moveaxis(x, axis, -1)
    if largest or x.dtype.kind != "float":
        places = ordered(rows, largest, k)
    else:
        places = ordered(-rows, True, k)
    return moveaxis(along_rows(rows, places), -1, axis), moveaxis(places, -1, axis)
