"""Contractions as calls of BLAS: which indices make up m, n and k, and what lies where."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from eqsat.kernel.ir import Contract

Strides = Mapping[str, int]
"""Index -> elements from one point to the next."""


@dataclass(frozen=True)
class Groups:
    """The indices of a contraction: kept by both factors, by the left, by the right, summed."""

    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]

    @property
    def output(self) -> tuple[str, ...]:
        """The layout of the product: batches, rows, columns."""
        return (*self.batch, *self.m, *self.n)

    def layout(self, side: str, contiguous: str) -> tuple[str, ...]:
        """A layout for a packed factor whose innermost index `contiguous` shall have stride 1."""
        rows = self.m if side == "left" else self.n
        if contiguous in rows:
            return (*self.batch, *self.k, *rows)
        return (*self.batch, *rows, *self.k)


@dataclass(frozen=True)
class Matrix:
    """One operand of the call: whether it lies transposed, and the stride of its rows."""

    transposed: bool
    row_stride: int


@dataclass(frozen=True)
class Call:
    """c[m,n] (+)= sum_k a[m,k] b[k,n] at each point of `loops`; each group is one dimension."""

    loops: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]


def groups(
    contract: Contract,
    left: Sequence[str],
    right: Sequence[str],
    order: tuple[Strides | None, Strides | None],
) -> Groups | None:
    """The groups over the indices that vary in a tile, or None where it is no matrix product.

    Each group is sorted as in the memory of the first operand of `order` that is known.
    """
    varying = [i for i in (*contract.indices, *contract.over) if i in left or i in right]
    summed = [i for i in varying if i in contract.over]
    if any(i not in left or i not in right for i in summed):
        return None
    kept = [i for i in varying if i not in summed]
    if not summed or all(i in left and i in right for i in kept):
        return None

    def ordered(names: list[str], strides: Strides | None) -> tuple[str, ...]:
        if strides is None:
            return tuple(names)
        return tuple(sorted(names, key=lambda i: -abs(strides.get(i, 0))))

    return Groups(
        tuple(i for i in kept if i in left and i in right),
        ordered([i for i in kept if i not in right], order[0]),
        ordered([i for i in kept if i not in left], order[1]),
        ordered(summed, order[0] or order[1]),
    )


def readable(
    group: Groups,
    side: str,
    strides: Strides,
    sizes: Mapping[str, int],
    whole: Mapping[str, bool],
) -> bool:
    """Whether BLAS may read a factor where it lies."""
    k, apart = _merged(group.k, (strides,), sizes, whole)
    rows = group.m if side == "left" else group.n
    return not apart and matrix(strides, rows[-1:], k, sizes) is not None


def call(
    group: Groups,
    strides: tuple[Strides, Strides, Strides],
    sizes: Mapping[str, int],
    whole: Mapping[str, bool],
) -> Call | None:
    """The call on operands of these strides (left, right, output), or None if BLAS takes them not.

    `sizes` are the tiles' sizes; an index is `whole` if every tile has that size.
    """
    left, right, output = strides
    m, loops_m = _merged(group.m, (left, output), sizes, whole)
    n, loops_n = _merged(group.n, (right, output), sizes, whole)
    k, loops_k = _merged(group.k, (left, right), sizes, whole)
    if loops_k:
        return None
    c = matrix(output, m, n, sizes)
    if matrix(left, m, k, sizes) is None or matrix(right, k, n, sizes) is None:
        return None
    if c is None or c.transposed:
        return None
    return Call((*group.batch, *loops_m, *loops_n), m, n, k)


def windowed_call(
    group: Groups,
    left: Strides,
    output: Strides,
    sizes: Mapping[str, int],
    whole: Mapping[str, bool],
) -> Call:
    """The call on windows that lie where the sum's terms say, with a left factor that BLAS may
    read; `output` are the strides of rows.
    """
    m, loops_m = _merged(group.m, (left, output), sizes, whole)
    return Call((*group.batch, *loops_m), m, group.n, group.k)


def _merged(
    names: Sequence[str],
    operands: Sequence[Strides],
    sizes: Mapping[str, int],
    whole: Mapping[str, bool],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The longest tail that is one index in each operand, and the names before it."""
    cut = max(len(names) - 1, 0)
    while (
        cut
        and whole[names[cut]]
        and all(
            strides[names[cut - 1]] == strides[names[cut]] * sizes[names[cut]]
            for strides in operands
        )
    ):
        cut -= 1
    return tuple(names[cut:]), tuple(names[:cut])


def matrix(
    strides: Strides, rows: Sequence[str], columns: Sequence[str], sizes: Mapping[str, int]
) -> Matrix | None:
    """How BLAS may read the operand: one of the two dimensions must have stride 1.

    A dimension without indices has one point, so its stride may be any.
    """
    row_size, row = _extent(rows, strides, sizes)
    column_size, column = _extent(columns, strides, sizes)
    if column in (1, None) and (row is None or row >= column_size):
        return Matrix(False, max(row or column_size, 1))
    if row in (1, None) and (column is None or column >= row_size):
        return Matrix(True, max(column or row_size, 1))
    return None


def _extent(
    names: Sequence[str], strides: Strides, sizes: Mapping[str, int]
) -> tuple[int, int | None]:
    """Size and stride of merged indices; (1, None) for none."""
    return prod(sizes[i] for i in names), strides[names[-1]] if names else None
