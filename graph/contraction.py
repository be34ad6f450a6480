"""Contractions: views that broadcast the operands to one joint index space, mul, reduce_sum.

Products of 16-bit floats are formed and summed in float32, by explicit casts, and rounded once.
"""

import re
from collections.abc import Sequence
from functools import reduce as fold
from typing import NoReturn

from eqsat.errors import DTypeError, ShapeError
from eqsat.graph.arguments import as_integer, entries, is_several
from eqsat.graph.build import TensorLike, as_tensor, broadcast, build, cast, promote, view
from eqsat.graph.elementwise import multiply, subtract
from eqsat.graph.index import add, const, var
from eqsat.graph.manipulation import reshape, roll
from eqsat.graph.movement import normalise_axes, normalise_axis
from eqsat.graph.reductions import accumulation_dtype
from eqsat.graph.tensor import Tensor, weak_composition

Labels = tuple[str, ...]


def contract(
    op: str, operands: Sequence[TensorLike], labels: Sequence[Labels], output: Labels
) -> Tensor:
    """The sum, over every label not in `output`, of the product of the operands.

    `labels` names the dimensions of each operand; a label repeated in one operand reads its
    diagonal. A label meets one extent only, save that labels that begin with "..." broadcast.
    """
    tensors = promote(op, *operands)
    dtype = tensors[0].dtype
    if dtype.kind == "bool":
        raise DTypeError(f"{op}: takes numeric dtypes, got {tensors[0]}. Use astype first.")
    extents = _label_extents(op, tensors, labels)
    space = (*output, *(label for label in extents if label not in output))
    shape = tuple(extents[label] for label in space)
    factors: list[Tensor] = []
    for x, names in zip(tensors, labels, strict=True):
        coordinates = [
            const(0) if n == 1 else var(f"i{space.index(name)}")
            for n, name in zip(x.shape, names, strict=True)
        ]
        factors.append(view(cast(x, dtype.compute), shape, coordinates))
    product = fold(lambda a, b: build("mul", (a, b)), factors)
    if len(space) > len(output):
        product = build("reduce_sum", (product,), {"axes": tuple(range(len(output), len(space)))})
    return cast(product, dtype)


def _label_extents(op: str, operands: Sequence[Tensor], labels: Sequence[Labels]) -> dict[str, int]:
    extents: dict[str, int] = {}
    for x, names in zip(operands, labels, strict=True):
        for label, n in zip(names, x.shape, strict=True):
            known = extents.setdefault(label, n)
            if known == n:
                continue
            if not label.startswith("...") or 1 not in (known, n):
                _misfit(op, operands, label, known, n)
            extents[label] = n if known == 1 else known
    return extents


def _misfit(op: str, operands: Sequence[Tensor], label: str, known: int, n: int) -> NoReturn:
    kind = f"batch axis {label[3:]} from the right" if label.startswith("...") else f"index {label}"
    raise ShapeError(
        f"{op}: {' and '.join(map(str, operands))} do not fit: {kind} has {known} positions in one "
        f"place and {n} in another. Use reshape, slicing or permute_dims to line them up."
    )


def _batch(ndim: int) -> Labels:
    """Labels of `ndim` broadcasting axes, numbered from the right."""
    return tuple(f"...{at}" for at in range(ndim, 0, -1))


def matmul(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The matrix product of the last two axes, the others broadcast; a 1-d operand is a vector."""
    a, b = as_tensor(x1), as_tensor(x2)
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(f"matmul: {a} and {b}: 0-d operands have no axis to sum. Use multiply.")
    rows: Labels = ("m",) if a.ndim > 1 else ()
    columns: Labels = ("n",) if b.ndim > 1 else ()
    first, second = _batch(a.ndim - 2), _batch(b.ndim - 2)
    batch = max(first, second, key=len)
    with weak_composition("matmul"):
        return contract(
            "matmul",
            (a, b),
            ((*first, *rows, "k"), (*second, "k", *columns)),
            (*batch, *rows, *columns),
        )


def vecdot(x1: TensorLike, x2: TensorLike, /, *, axis: int = -1) -> Tensor:
    """The sum of products along an axis, counted from the right, the others broadcast."""
    a, b = as_tensor(x1), as_tensor(x2)
    axis = as_integer(axis, "vecdot: axis")
    if axis >= 0:
        raise ShapeError(
            f"vecdot: axis {axis} of {a} and {b}. Count it from the right: -1, -2, ..."
        )
    for x in (a, b):
        normalise_axis(axis, x.ndim, "vecdot", str(x))
    labels: list[Labels] = []
    for x in (a, b):
        names = list(_batch(x.ndim))
        names[axis] = "k"
        labels.append(tuple(names))
    output = tuple(name for name in max(labels, key=len) if name != "k")
    with weak_composition("vecdot"):
        return contract("vecdot", (a, b), labels, output)


def tensordot(
    x1: TensorLike, x2: TensorLike, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Tensor:
    """The sum over pairs of axes: the last n of x1 with the first n of x2, or two lists."""
    a, b = as_tensor(x1), as_tensor(x2)
    if is_several(axes):
        pair = entries(axes)
    else:
        count = as_integer(axes, "tensordot: axes", advice="Give a number, or two lists of axes.")
        if not 0 <= count <= min(a.ndim, b.ndim):
            raise ShapeError(
                f"tensordot: axes {count} of {a} and {b}. Use 0 to {min(a.ndim, b.ndim)}."
            )
        pair = (range(a.ndim - count, a.ndim), range(count))
    if len(pair) != 2:
        raise ShapeError(f"tensordot: axes {axes} are {len(pair)}. Give a number, or two lists.")
    left = normalise_axes(pair[0], a.ndim, "tensordot", str(a))
    right = normalise_axes(pair[1], b.ndim, "tensordot", str(b))
    if len(left) != len(right):
        raise ShapeError(f"tensordot: {len(left)} axes of {a}, {len(right)} of {b}. Pair them up.")
    first = tuple(f"k{left.index(d)}" if d in left else f"a{d}" for d in range(a.ndim))
    second = tuple(f"k{right.index(d)}" if d in right else f"b{d}" for d in range(b.ndim))
    output = tuple(name for name in (*first, *second) if not name.startswith("k"))
    with weak_composition("tensordot"):
        return contract("tensordot", (a, b), (first, second), output)


def outer(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The products of every element of one vector with every element of the other."""
    a, b = as_tensor(x1), as_tensor(x2)
    if a.ndim != 1 or b.ndim != 1:
        raise ShapeError(f"outer: {a} and {b}: two vectors are needed. Use reshape first.")
    with weak_composition("outer"):
        return contract("outer", (a, b), (("i",), ("j",)), ("i", "j"))


def kron(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The Kronecker product: x1 with each element in place of which stands x2 times it.

    Along each axis, counted from the right, the result has the product of both extents. DTypeError
    for bool.
    """
    a, b = promote("kron", x1, x2)
    ndim = max(a.ndim, b.ndim)
    wide = [(1,) * (ndim - x.ndim) + x.shape for x in (a, b)]
    first, second = (tuple(f"{name}{d}" for d in range(ndim)) for name in "ab")
    output = tuple(name for pair in zip(first, second, strict=True) for name in pair)
    with weak_composition("kron"):
        factors = [reshape(x, shape) for x, shape in zip((a, b), wide, strict=True)]
        found = contract("kron", factors, (first, second), output)
        return reshape(found, tuple(n * m for n, m in zip(*wide, strict=True)))


def cross(x1: TensorLike, x2: TensorLike, /, *, axis: int = -1) -> Tensor:
    """The cross product of vectors of 3 elements along an axis, counted from the right.

    The other axes are broadcast. ShapeError where the axis has another extent, DTypeError for bool.
    """
    axis = as_integer(axis, "cross: axis")
    a, b = promote("cross", x1, x2)
    if axis >= 0:
        raise ShapeError(f"cross: axis {axis} of {a} and {b}. Count it from the right: -1, -2, ...")
    for x in (a, b):
        if x.shape[normalise_axis(axis, x.ndim, "cross", str(x))] != 3:
            raise ShapeError(
                f"cross: axis {axis} of {x} has {x.shape[axis]} positions, not 3. Reshape it, or "
                f"pad vectors of 2 elements by a 0."
            )
    if a.dtype.kind == "bool":
        raise DTypeError(f"cross: takes numeric dtypes, got {a} and {b}. Use astype first.")
    with weak_composition("cross"):
        u, v = (cast(x, a.dtype.compute) for x in broadcast("cross", a, b))
        # component i: u[i + 1] v[i + 2] - u[i + 2] v[i + 1], counted modulo 3
        next_u, next_v, last_u, last_v = (roll(x, n, axis) for n in (-1, -2) for x in (u, v))
        return cast(subtract(multiply(next_u, last_v), multiply(last_u, next_v)), a.dtype)


def diagonal(x: TensorLike, /, *, offset: int = 0) -> Tensor:
    """The elements x[..., i, i + offset]."""
    x, offset = as_tensor(x), as_integer(offset, "diagonal: offset")
    if x.ndim < 2:
        raise ShapeError(f"diagonal: {x} has {x.ndim} dimensions; 2 are needed.")
    rows, columns = x.shape[-2:]
    down, right = max(-offset, 0), max(offset, 0)
    length = max(min(rows - down, columns - right), 0)
    axes = [var(f"i{d}") for d in range(x.ndim - 1)]
    moved = [add(axes[-1], const(down)), add(axes[-1], const(right))]
    return view(x, (*x.shape[:-2], length), [*axes[:-1], *moved])


def trace(x: TensorLike, /, *, offset: int = 0) -> Tensor:
    """The sum of the diagonal of the last two axes; dtypes as for `sum`."""
    x, offset = as_tensor(x), as_integer(offset, "trace: offset")
    if x.dtype.kind == "bool":
        raise DTypeError(f"trace: takes numeric dtypes, got {x}. Use astype first.")
    result = accumulation_dtype(x.dtype, None)
    with weak_composition("trace"):
        entries = cast(cast(diagonal(x, offset=offset), result), result.compute)
        return cast(build("reduce_sum", (entries,), {"axes": (entries.ndim - 1,)}), result)


def einsum(subscripts: str, /, *operands: TensorLike) -> Tensor:
    """The sum of products that the subscripts say, as NumPy's einsum: "bij,bjk->bik".

    A label that is repeated in one operand reads its diagonal; one left out of the output is
    summed; "..." stands for axes that broadcast. Without "->" the output is every label that
    occurs once, sorted. ShapeError for subscripts that do not fit the operands.
    """
    tensors = [as_tensor(x) for x in operands]
    if not isinstance(subscripts, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        _bad_subscripts(subscripts, "is no str")
    text = subscripts.replace(" ", "")
    if not re.fullmatch(r"[A-Za-z.]*(,[A-Za-z.]*)*(->[A-Za-z.]*)?", text, re.ASCII):
        _bad_subscripts(subscripts, "holds something other than letters, ',', '...' and '->'")
    inputs, arrow, result = text.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(tensors) or not tensors:
        _bad_subscripts(subscripts, f"has {len(terms)} terms for {len(tensors)} operands")
    labels = [_term_labels(t, x.ndim, subscripts) for t, x in zip(terms, tensors, strict=True)]
    widest = max((tuple(n for n in names if n.startswith("...")) for names in labels), key=len)
    if not arrow:
        letters = "".join(terms).replace(".", "")
        result = ("..." if widest else "") + "".join(
            sorted(c for c in set(letters) if letters.count(c) == 1)
        )
    output = _output_labels(result, widest, subscripts)
    unknown = [name for name in output if not any(name in names for names in labels)]
    if unknown or len(set(output)) != len(output):
        _bad_subscripts(subscripts, "has an output label that is repeated or in no operand")
    with weak_composition("einsum"):
        return contract("einsum", tensors, labels, output)


def _term_labels(term: str, ndim: int, subscripts: str) -> Labels:
    before, dots, after = term.partition("...")
    if "." in before or "." in after:
        _bad_subscripts(subscripts, "has dots that are no '...'")
    rest = ndim - len(before) - len(after)
    if rest < 0 or (rest and not dots):
        _bad_subscripts(subscripts, f"names {len(before) + len(after)} axes of {ndim} in {term!r}")
    return (*before, *_batch(rest), *after)


def _output_labels(result: str, ellipsis: Labels, subscripts: str) -> Labels:
    before, dots, after = result.partition("...")
    if "." in before or "." in after:
        _bad_subscripts(subscripts, "has dots that are no '...'")
    if ellipsis and not dots:
        _bad_subscripts(subscripts, "leaves the '...' out of the output")
    return (*before, *(ellipsis if dots else ()), *after)


def _bad_subscripts(subscripts: str, problem: str) -> NoReturn:
    raise ShapeError(
        f"einsum: {subscripts!r} {problem}. Write one letter per axis of each operand, as in "
        f"'bij,bjk->bik'."
    )


__all__ = [
    "contract",
    "cross",
    "diagonal",
    "einsum",
    "kron",
    "matmul",
    "outer",
    "tensordot",
    "trace",
    "vecdot",
]
