"""What terms and e-graphs mean in NumPy, by the definitions alone: no lowering, no kernels.

A value has one axis for each name of the universe, in its order, of length 1 where it does not
depend on the name. Floats of 32 and 64 bits are computed in float64; 16-bit floats are rounded
after each operation; integers wrap.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.carry_law import PIVOTS, CarryLaw, evaluated
from eqsat.graph.dtypes import DType, as_dtype, neutral
from eqsat.graph.index import Affine, evaluate, free_names
from eqsat.graph.meanings import affine_scan, erf
from eqsat.graph.ops import OPS
from eqsat.kernel.ir import Guard
from eqsat.saturate.egglog_text import SCHEDULE
from eqsat.saturate.saturation import Class, ENode, FrozenEGraph
from eqsat.terms.algebra import (
    REDUCTIONS,
    SCATTERS,
    Atom,
    Facts,
    Read,
    Renaming,
    Term,
    Universe,
    post_order,
)

Buffers = Mapping[str, np.ndarray]
MONOIDS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
SCHEDULED = SCHEDULE | {"value", "together"}
TOLERANCE = {"float64": 1e-9, "float32": 1e-9, "float16": 2e-2, "bfloat16": 1e-1}
TOLERANCE |= {"float8_e4m3fn": 5e-1, "float8_e5m2": 1.0}
AWKWARD = np.array([0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -3.0, np.inf, -np.inf])


class Meaning:
    """The values of operations over one universe, reads taken from flat buffers."""

    def __init__(self, universe: Universe, buffers: Buffers) -> None:
        self.universe, self.buffers = universe, buffers
        self.facts = Facts(universe)
        self.rank = len(universe.names)
        self._values: dict[Term, np.ndarray] = {}
        assert self.rank <= 32, "NumPy arrays have at most 32 axes"

    def term(self, term: Term) -> np.ndarray:
        """The value of a term."""
        for sub in post_order([term]):
            if sub not in self._values:
                args = [self._values[a] if isinstance(a, Term) else a for a in sub.args]
                self._values[sub] = self.apply(sub.op, args, self.facts.dtype(sub))
        return self._values[term]

    def apply(self, op: str, args: Sequence["np.ndarray | Atom"], dtype: DType) -> np.ndarray:
        """The value of one operation over values and atoms."""
        with np.errstate(all="ignore"):
            value = np.asarray(self._apply(op, args, dtype))
        value = value.reshape((1,) * (self.rank - value.ndim) + value.shape)
        return stored(value, dtype)

    def _apply(self, op: str, args: Sequence["np.ndarray | Atom"], dtype: DType) -> np.ndarray:
        match op, args:
            case (("read" | "gather"), (Read() as read, *at)):
                return self._read(read, at[0] if at else None)
            case "literal", (value, _):
                return np.asarray(value).astype(held(dtype))
            case "position", (Affine() as expression,):
                return self.affine(expression)
            case "reindex", (Renaming() as renaming, np.ndarray() as body):
                return self._reindex(renaming, body, dtype)
            case (("cast" | "rounded"), (_, np.ndarray() as body)):
                return body.astype(held(dtype))
            case "exp_difference", (np.ndarray() as a, np.ndarray() as b):
                return exp_difference(a, b)
            case "one_plus_erf", (np.ndarray() as a,):
                return 1 + erf(a)
            case "scan_sum", (int(mask), np.ndarray() as body):
                axes = self._axes(mask)
                assert len(axes) == 1
                return np.cumsum(self._over(mask, body), axes[0], held(dtype))
            case "scan_affine", (int(mask), np.ndarray() as a, np.ndarray() as b):
                (axis,) = self._axes(mask)
                a, b = np.broadcast_arrays(self._over(mask, a), self._over(mask, b))
                return affine_scan(a.astype(held(dtype)), b.astype(held(dtype)), axis)
            case (
                ("contract" | "narrow_contract"),
                (int(mask), np.ndarray() as a, np.ndarray() as b, *_),
            ):
                return self._reduce("sum", mask, a * b, dtype)
            case (
                ("weighted_sum" | "weighted_contract" | "weighted_min"),
                (int(mask), np.ndarray() as s, np.ndarray() as r, *_, CarryLaw() as law),
            ):
                s = self._over(mask, s)
                pivot = PIVOTS[law.pivot](s, axis=self._axes(mask), keepdims=True)
                weights = evaluated(law.guarded_weight, s=s, p=pivot)
                return self._reduce(law.monoid, mask, weights * r, dtype)
            case _, (int(mask), *parts) if op in SCATTERS:
                at, place, body = (p for p in parts if isinstance(p, np.ndarray))
                empty = neutral(SCATTERS[op], as_dtype(held(dtype).name))
                chosen = np.where(at == place, body, np.asarray(empty).astype(held(dtype)))
                return self._reduce(SCATTERS[op], mask, chosen, dtype)
            case _, (int(mask), np.ndarray() as body) if op in REDUCTIONS:
                return self._reduce(REDUCTIONS[op], mask, body, dtype)
        assert OPS[op].elementwise, f"{op} has no meaning here"
        arrays = [a for a in args if isinstance(a, np.ndarray)]
        return OPS[op].meaning(arrays, {}, (), held(dtype))

    def affine(self, expression: Affine) -> np.ndarray:
        """An index expression at every point."""
        grid = {name: self._points(name) for name in free_names(expression)}
        return np.asarray(evaluate(expression, grid), np.int64)

    def inside(self, guards: Iterable[Guard]) -> np.ndarray:
        """Where every guard holds."""
        exists = np.ones((), bool)
        for guard in guards:
            at = self.affine(guard.expression)
            exists = exists & (guard.lower <= at) & (at < guard.upper)
        return exists

    def _points(self, name: str) -> np.ndarray:
        shape = [1] * self.rank
        shape[self.universe.names.index(name)] = -1
        return np.arange(self.universe.extents[name]).reshape(shape)

    def _axes(self, mask: int) -> tuple[int, ...]:
        return tuple(axis for axis in range(self.rank) if mask >> axis & 1)

    def _over(self, mask: int, body: np.ndarray) -> np.ndarray:
        """The value repeated along the names of the mask that it lacks."""
        shape = list(body.shape)
        for axis in self._axes(mask):
            shape[axis] = self.universe.extents[self.universe.names[axis]]
        return np.broadcast_to(body, shape)

    def _reduce(self, monoid: str, mask: int, body: np.ndarray, dtype: DType) -> np.ndarray:
        whole = self._over(mask, body)
        return MONOIDS[monoid].reduce(whole, self._axes(mask), held(dtype), keepdims=True)

    def _read(self, read: Read, at: "np.ndarray | Atom | None") -> np.ndarray:
        address, exists = self.affine(read.address), self.inside(read.guards)
        if read.extent:
            assert isinstance(at, np.ndarray)
            exists = exists & (at >= 0) & (at < read.extent)
            address = address + np.where(exists, at, 0) * read.stride
        data = self.buffers[read.buffer]
        address, exists = np.broadcast_arrays(address, exists)
        wild = exists & ((address < 0) | (address >= data.size))
        assert not wild.any(), f"{read} leaves its buffer of {data.size} elements"
        return np.where(exists, data[np.where(exists, address, 0)], read.fill)

    def _reindex(self, renaming: Renaming, body: np.ndarray, dtype: DType) -> np.ndarray:
        moved = dict(zip(renaming.source, renaming.target, strict=True))
        at = []
        for name, length in zip(self.universe.names, body.shape, strict=True):
            if name in moved:
                at.append(np.clip(self.affine(moved[name]), 0, length - 1))
            else:
                at.append(self._points(name) if length > 1 else np.zeros((), np.int64))
        value = body[tuple(at)]
        fill = np.asarray(renaming.fill).astype(held(dtype))
        return np.where(self.inside(renaming.guards), value, fill)


def exp_difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """exp(a - b), which is 0 where both are -inf."""
    return np.where((a == -np.inf) & (b == -np.inf), 0, np.exp(a - b))


def held(dtype: DType) -> np.dtype:
    """The NumPy dtype in which values of a dtype are held."""
    return np.dtype(np.float64) if dtype.kind == "float" else dtype.numpy


def stored(value: np.ndarray, dtype: DType) -> np.ndarray:
    """A value as its dtype holds it: 16-bit floats are rounded."""
    if dtype.kind == "float" and dtype.itemsize < 4:
        with np.errstate(all="ignore"):
            value = value.astype(dtype.numpy)
    return value.astype(held(dtype))


def random_buffers(
    terms: Iterable[Term], universe: Universe, seed: int = 0, awkward: Iterable[str] = ()
) -> dict[str, np.ndarray]:
    """Flat data for every buffer that the terms read, just large enough.

    Integers of 32 bits or fewer span their whole range, so that they wrap. The floats of `awkward`
    buffers hold zeros and infinities.
    """
    meaning = Meaning(universe, {})
    sizes: dict[str, tuple[int, DType]] = {}
    for term in post_order(terms):
        if term.op in {"read", "gather"}:
            read = term.args[0]
            assert isinstance(read, Read)
            address, exists = np.broadcast_arrays(
                meaning.affine(read.address), meaning.inside(read.guards)
            )
            last = int(address.max(initial=0, where=exists))
            last += max(read.extent - 1, 0) * read.stride
            size = max(last + 1, sizes.get(read.buffer, (0, read.dtype))[0])
            sizes[read.buffer] = size, read.dtype
    rng = np.random.default_rng(seed)
    return {
        name: random_data(rng, size, dtype, name in set(awkward))
        for name, (size, dtype) in sorted(sizes.items())
    }


def random_data(
    rng: np.random.Generator, size: int, dtype: DType, awkward: bool = False
) -> np.ndarray:
    """Random elements of a dtype."""
    if dtype.kind == "bool":
        return rng.random(size) < 0.5
    if dtype.kind == "float":
        data = rng.choice(AWKWARD, size) if awkward else rng.standard_normal(size)
        return stored(data, dtype)
    if dtype.itemsize == 8:  # these are gathered at
        return rng.integers(-1, 4, size)
    limits = np.iinfo(dtype.numpy)
    return rng.integers(limits.min, limits.max, size, dtype.numpy, endpoint=True)


def differ(expected: np.ndarray, value: np.ndarray, dtype: DType) -> float:
    """How far a value is from the expected one, in tolerances; 0 or less than 1 passes.

    Where NaN is expected anything passes: a law may define what the source leaves undefined.
    """
    expected, value = np.broadcast_arrays(expected, value)
    if dtype.kind != "float":
        return float(np.count_nonzero(expected != value))
    known = ~np.isnan(expected)
    expected, value = expected[known], value[known]
    exact = ~np.isfinite(expected) | ~np.isfinite(value)
    if not np.array_equal(expected[exact], value[exact]):
        return np.inf
    expected, value = expected[~exact], value[~exact]
    if not expected.size:
        return 0.0
    scale = 1.0 + float(np.abs(expected).max())
    return float(np.abs(expected - value).max()) / scale / TOLERANCE[dtype.name]


@dataclass(frozen=True)
class Bad:
    """An e-node whose value is not its class's, or a class whose facts are wrong."""

    number: int
    what: str
    distance: float


class _Check:
    def __init__(self, graph: FrozenEGraph, buffers: Buffers) -> None:
        self.graph, self.meaning = graph, Meaning(graph.universe, buffers)
        self.values: dict[int, np.ndarray] = {}
        self.known = set(graph.class_of.values())
        names = set(graph.dtype.values()) & TOLERANCE.keys()
        self.coarsest = max(names, key=TOLERANCE.__getitem__, default="")
        self.undefined: dict[int, np.ndarray] = {}
        self.bad: list[Bad] = []
        self.count = 0

    def source(self) -> None:
        """The value of each class that holds a source term."""
        facts = self.meaning.facts
        for term, number in self.graph.class_of.items():
            if facts.dtype(term).name != self.graph.dtype[number]:
                self.bad.append(Bad(number, f"{term.op} is {facts.dtype(term)}", np.inf))
            self.meet(number, f"source {term}", self.meaning.term(term), source=True)

    def rest(self) -> None:
        """The value of each e-node from those of its children's classes."""
        waiting = [
            (number, node)
            for number, nodes in self.graph.nodes.items()
            for node in nodes
            if node.op not in SCHEDULED
        ]
        while waiting:
            ready = [(c, n) for c, n in waiting if all(x in self.values for x in n.children)]
            assert ready, "some e-nodes rest on no source term"
            for number, node in ready:
                args = [self.values[a.number] if isinstance(a, Class) else a for a in node.args]
                dtype = as_dtype(self.graph.dtype[number])
                self.meet(number, str(node), self.meaning.apply(node.op, args, dtype))
            done = set(map(id, (node for _, node in ready)))
            waiting = [(c, n) for c, n in waiting if id(n) not in done]

    def meet(self, number: int, what: str, value: np.ndarray, source: bool = False) -> None:
        """A value of a class: its first, or one to be compared with its first.

        A class without a source term is undefined wherever one of its nodes is.
        """
        self.count += 1
        dtype = as_dtype(self.graph.dtype[number])
        expected = self.values.setdefault(number, self._kept(value, self.graph.free[number]))
        if dtype.kind == "float":
            if source or number not in self.known:
                self.undefined[number] = self.undefined.get(number, False) | np.isnan(value)
            expected = np.where(self.undefined[number], np.nan, expected)
            dtype = as_dtype(self.coarsest)  # laws may leave out a rounding to fewer digits
        distance = differ(expected, value, dtype)
        if distance >= 1:
            self.bad.append(Bad(number, what, distance))

    @staticmethod
    def _kept(value: np.ndarray, free: int) -> np.ndarray:
        """One value, NaN only if all are, along the axes that a class does not depend on."""
        lacking = tuple(axis for axis in range(value.ndim) if not free >> axis & 1)
        if value.dtype.kind == "f":
            return np.fmax.reduce(value, lacking, keepdims=True)
        return _first(value, lacking)


def _first(value: np.ndarray, axes: Iterable[int]) -> np.ndarray:
    """The value at position 0 of some axes."""
    for axis in axes:
        value = value.take([0], axis)
    return value


def check(graph: FrozenEGraph, buffers: Buffers) -> list[Bad]:
    """Every e-node that differs from its class's value; the value is that of the source term.

    A value must also not vary along an index that its class is said not to depend on.
    """
    found = _Check(graph, buffers)
    found.source()
    found.rest()
    return found.bad


def check_terms(graph: FrozenEGraph, seed: int = 0, awkward: Iterable[str] = ()) -> list[Bad]:
    """`check` with random data for the buffers of the source terms."""
    return check(graph, random_buffers(graph.class_of, graph.universe, seed, awkward))


def nodes_of(graph: FrozenEGraph, op: str) -> list[tuple[int, ENode]]:
    """Every e-node of an operation, with its class."""
    return [(c, n) for c, nodes in graph.nodes.items() for n in nodes if n.op == op]
