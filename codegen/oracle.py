"""The NumPy tile interpreter: runs a kernel exactly as the kernel IR documents it.

Tile by tile, chunk by chunk, each value a NumPy array over its own indices. It is the reference for
the other targets: clarity over speed.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod

import numpy as np

from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import neutral
from eqsat.graph.index import Affine, evaluate, free_names
from eqsat.graph.meanings import affine_scan, erf
from eqsat.graph.ops import OPS
from eqsat.kernel.ir import (
    Access,
    Axis,
    Carry,
    Contract,
    Kernel,
    Literal,
    Load,
    Map,
    Phase,
    Position,
    Reduce,
    Scan,
    Statement,
    Store,
    Update,
    operands,
)
from eqsat.layout.narrow import multiply, multiply_terms, split
from eqsat.specs.model import ParallelOperation

Points = dict[str, np.ndarray]
"""Index name -> its points in the current tile or chunk."""

MONOIDS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def run(
    kernel: Kernel,
    arrays: Mapping[str, np.ndarray],
    operations: Mapping[str, ParallelOperation] | None = None,
) -> None:
    """Run the kernel on contiguous `arrays` by buffer name; stores are written in place.

    A contraction whose operation is in `operations` is computed through that operation's semantics,
    invocation by invocation, operands padded with zeros.
    """
    memory = {}
    for buffer in kernel.buffers:
        array = arrays[buffer.name]
        if not array.flags.c_contiguous:
            raise ValueError(f"buffer {buffer.name} is not C-contiguous; copy it first")
        flat = array.reshape(buffer.size)
        memory[buffer.name] = flat
    inner = {axis.name: np.arange(axis.extent) for axis in kernel.inner}
    with np.errstate(all="ignore"):
        for points in _tiles(kernel.grid):
            _Tile(memory, {**inner, **points}, operations or {}).run(kernel)


def _tiles(axes: Sequence[Axis]) -> Iterator[Points]:
    """The tiles, or chunks, of some axes in order, the last axis fastest; clipped at the extent."""
    for tiles in product(*(range(axis.count) for axis in axes)):
        yield {
            axis.name: np.arange(tile * axis.tile, min((tile + 1) * axis.tile, axis.extent))
            for axis, tile in zip(axes, tiles, strict=True)
        }


class _Tile:
    """One grid tile: its points, and the values that are visible so far."""

    def __init__(
        self,
        memory: Mapping[str, np.ndarray],
        points: Points,
        operations: Mapping[str, ParallelOperation],
    ) -> None:
        self.memory = memory
        self.points = points
        self.operations = operations
        self.values: dict[str, np.ndarray] = {}
        self.indices: dict[str, tuple[str, ...]] = {}

    def run(self, kernel: Kernel) -> None:
        for phase in kernel.phases:
            if phase.stream:
                self.run_stream(phase)
            else:
                self.run_body(phase)

    def run_stream(self, phase: Phase) -> None:
        before = dict(self.values)
        carries = {carry.name: self.initial(carry) for carry in phase.carries}
        updates = {s.carry: s.name for s in phase.body if isinstance(s, Update)}
        fixed = self.points
        for chunk in _tiles(phase.stream):
            self.points = {**fixed, **chunk}
            self.values = {**before, **carries}
            self.run_body(phase)
            carries = {name: self.values[updates[name]] for name in carries}
        self.points = fixed
        self.values = {**before, **carries}

    def initial(self, carry: Carry) -> np.ndarray:
        self.indices[carry.name] = carry.indices
        value = neutral(carry.monoid, carry.dtype)
        return np.full(self.shape(carry.indices), value, carry.dtype.compute.numpy)

    def run_body(self, phase: Phase) -> None:
        for statement in phase.body:
            self.indices[statement.name] = statement.indices
            value = np.asarray(self.evaluate(statement), statement.dtype.compute.numpy)
            self.values[statement.name] = np.broadcast_to(value, self.shape(statement.indices))
        for store in phase.stores:
            self.store(store)

    def shape(self, indices: Sequence[str]) -> tuple[int, ...]:
        return tuple(len(self.points[name]) for name in indices)

    def aligned(self, name: str, indices: Sequence[str]) -> np.ndarray:
        """A value with its axes in the order of `indices`, of length 1 where it lacks one."""
        own = self.indices[name]
        value = self.values[name].transpose([own.index(i) for i in indices if i in own])
        return value.reshape([len(self.points[i]) if i in own else 1 for i in indices])

    def affine(self, expression: Affine, indices: Sequence[str]) -> np.ndarray:
        """An index expression at every point of `indices`."""
        points = {}
        for axis, name in enumerate(indices):
            shape = [1] * len(indices)
            shape[axis] = -1
            points[name] = self.points[name].reshape(shape)
        return np.broadcast_to(evaluate(expression, points), self.shape(indices))

    def locate(self, access: Access, indices: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The address of every point, and whether the element exists."""
        address = self.affine(access.address, indices).copy()
        exists = np.ones(address.shape, bool)
        for guard in access.guards:
            value = self.affine(guard.expression, indices)
            exists &= (guard.lower <= value) & (value < guard.upper)
        for coordinate in access.coordinates:
            value = self.aligned(coordinate.value, indices).astype(np.int64)
            exists &= (value >= 0) & (value < coordinate.extent)
            address += value * coordinate.stride
        return address, exists

    def evaluate(self, statement: Statement) -> np.ndarray:
        match statement:
            case Load():
                return self.load(statement)
            case Literal(value=value):
                return np.asarray(value).astype(statement.dtype.numpy)
            case Position(expression=expression, indices=indices):
                return self.affine(expression, indices)
            case Map():
                return self.map(statement)
            case Reduce(monoid=monoid, argument=argument, over=over, indices=indices):
                value = self.aligned(argument, (*indices, *over))
                value = value.astype(statement.dtype.compute.numpy)
                shape = (*value.shape[: len(indices)], *self.shape(over))
                axes = tuple(range(len(indices), len(shape)))
                return MONOIDS[monoid].reduce(
                    np.broadcast_to(value, shape),
                    axis=axes,
                    dtype=value.dtype,
                    initial=neutral(monoid, statement.dtype),
                )
            case Scan(monoid=monoid, over=over, indices=indices):
                value, *factors = (
                    np.broadcast_to(
                        self.aligned(name, indices).astype(statement.dtype.compute.numpy),
                        self.shape(indices),
                    )
                    for name in operands(statement)
                )
                axis = indices.index(over)
                if factors:
                    return affine_scan(*factors, value, axis)
                return MONOIDS[monoid].accumulate(value, axis, value.dtype)
            case Contract():
                return self.contract(statement)
            case Update(carry=carry, scale=scale, monoid=monoid, chunk=chunk, indices=indices):
                old = self.aligned(carry, indices)
                if scale:
                    old = old * self.aligned(scale, indices)
                return MONOIDS[monoid](old, self.aligned(chunk, indices))

    def load(self, load: Load) -> np.ndarray:
        value = np.full(self.shape(load.indices), load.fill, load.dtype.compute.numpy)
        missing = np.ones(value.shape, bool)
        for access in load.accesses:
            address, exists = self.locate(access, load.indices)
            exists = exists & missing
            value[exists] = self.memory[access.buffer][address[exists]]
            missing &= ~exists
        return value

    def map(self, statement: Map) -> np.ndarray:
        arguments = [self.aligned(name, statement.indices) for name in statement.arguments]
        if statement.op == "exp_difference":
            a, b, *rate = arguments
            none = (a == -np.inf) & (b == -np.inf)
            return np.where(none, 0, np.exp((a - b) * rate[0] if rate else a - b))
        if statement.op == "one_plus_erf":
            return 1 + erf(arguments[0])
        if statement.op == "cast":
            return arguments[0].astype(statement.dtype.numpy)
        shape, dtype = self.shape(statement.indices), statement.dtype.compute.numpy
        return OPS[statement.op].meaning(arguments, {}, shape, dtype)

    def contract(self, statement: Contract) -> np.ndarray:
        indices, over = statement.indices, statement.over
        dtype = statement.dtype.compute.numpy
        factors, names = [], []
        for name in (statement.left, statement.right):
            own = tuple(i for i in (*indices, *over) if i in self.indices[name])
            factors.append(self.aligned(name, own).astype(dtype))
            names.append(own)
        missing = [i for i in over if i not in names[0] and i not in names[1]]
        factors[0] = factors[0] * dtype.type(prod(self.shape(missing)))
        operation = self.operations.get(statement.operation)

        def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
            if operation is not None:
                return _invoke(operation, (left, right), names, indices)
            return _einsum((left, right), names, indices)

        if statement.term_index:
            terms = []
            for side, factor in enumerate(factors):
                if statement.term_index not in names[side]:
                    terms.append(split(factor, statement.narrow, statement.terms))
                    continue
                place = names[side].index(statement.term_index)
                names[side] = tuple(i for i in names[side] if i != statement.term_index)
                terms.append(list(np.moveaxis(factor, place, 0)))
            result = multiply_terms(*terms, product)
        elif statement.narrow:
            result = multiply(*factors, statement.narrow, statement.terms, product)
        else:
            result = product(*factors)
        kept = tuple(i for i in indices if i in names[0] or i in names[1])
        own = [len(self.points[i]) if i in kept else 1 for i in indices]
        return result.reshape(own)

    def store(self, store: Store) -> None:
        used = set(free_names(store.access.address))
        for coordinate in store.access.coordinates:
            used |= set(self.indices[coordinate.value])
        value = self.indices[store.value]
        indices = (*value, *sorted(used - set(value)))
        address, exists = self.locate(store.access, indices)
        target = self.memory[store.access.buffer]
        values = np.broadcast_to(self.aligned(store.value, indices), address.shape)
        new = values[exists].astype(target.dtype)
        if store.monoid:
            MONOIDS[store.monoid].at(target, address[exists], new)
        else:
            target[address[exists]] = new


def _einsum(
    factors: Sequence[np.ndarray], names: Sequence[Sequence[str]], indices: Sequence[str]
) -> np.ndarray:
    """Sum of products over the indices that are not among `indices`; integers wrap."""
    number = {name: i for i, name in enumerate(dict.fromkeys((*names[0], *names[1])))}
    left, right = ([number[i] for i in own] for own in names)
    kept = [number[i] for i in indices if i in number]
    return np.einsum(factors[0], left, factors[1], right, kept)


def _invoke(
    operation: ParallelOperation,
    factors: Sequence[np.ndarray],
    names: Sequence[Sequence[str]],
    indices: Sequence[str],
) -> np.ndarray:
    """The contraction as invocations of `operation`, each over a tile padded with zeros.

    The indices of the operation stand for groups: those of the left factor alone, of the right
    alone, and those summed over. Indices that both factors keep number products side by side.
    """
    left, right = (set(own) for own in names)
    batch = [i for i in indices if i in left and i in right]
    groups = (
        [i for i in indices if i in left - right],
        [i for i in indices if i in right - left],
        [i for i in dict.fromkeys((*names[0], *names[1])) if i not in indices],
    )
    size = dict(zip(names[0], factors[0].shape, strict=True))
    size.update(zip(names[1], factors[1].shape, strict=True))
    m, n, k = (prod(size[i] for i in group) for group in groups)
    a = _grouped(factors[0], names[0], (batch, groups[0], groups[2]), size).reshape(-1, m, k)
    b = _grouped(factors[1], names[1], (batch, groups[1], groups[2]), size).reshape(-1, n, k)
    result = _tiled(operation, a, b)
    order = [*batch, *groups[0], *groups[1]]
    result = result.reshape([size[i] for i in order])
    return result.transpose([order.index(i) for i in indices if i in order])


def _grouped(
    factor: np.ndarray,
    own: Sequence[str],
    groups: Sequence[Sequence[str]],
    size: Mapping[str, int],
) -> np.ndarray:
    """The factor over the groups' indices in order, repeated along those that it lacks.

    Along a summed index that only the other factor has, it is repeated as well.
    """
    order = [i for group in groups for i in group]
    present = factor.transpose([own.index(i) for i in order if i in own])
    shape = [size[i] if i in own else 1 for i in order]
    return np.broadcast_to(present.reshape(shape), [size[i] for i in order])


def _extents(operation: ParallelOperation) -> tuple[int, int, int]:
    """Rows, columns and depth of the operation; 0 for any."""
    semantics = operation.semantics
    pair = semantics.contraction if semantics else None
    if semantics is None or pair is None:
        raise UnsupportedError(
            f"operation {operation.name} (`{semantics}`) is no product of two matrices. Name one "
            "whose semantics is like `d[m,n] += a[m,k] * b[k,n]`."
        )
    left, right = (set(read.index_names) for read in pair)
    (m,), (n,), (k,) = left - right, right - left, left & right
    rows, columns, depth = (operation.extents.get(name, 0) for name in (m, n, k))
    return rows, columns, depth


def _tiled(operation: ParallelOperation, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """d[i,m,n] = sum_k a[i,m,k] b[i,n,k] by invocations of the operation on tiles padded with
    zeros: all tiles of one step along k at a time.
    """
    rows, columns, depth = _extents(operation)
    (_, m, k), n = a.shape, b.shape[1]
    step = max(depth or k, 1)
    a, b = _padded(a, rows, step), _padded(b, columns, step)
    d = np.zeros((len(a), a.shape[1], b.shape[1]), a.dtype)
    for start in range(0, k, step):
        at = slice(start, start + step)
        d += a[:, :, at] @ b[:, :, at].swapaxes(1, 2)
    return d[:, :m, :n]


def _padded(factor: np.ndarray, rows: int, step: int) -> np.ndarray:
    """The factor with zeros up to whole tiles."""
    ends = [
        -extent % (size or 1) for extent, size in zip(factor.shape[1:], (rows, step), strict=True)
    ]
    return np.pad(factor, [(0, 0), *((0, end) for end in ends)])
