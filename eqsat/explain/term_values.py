"""What a term is worth at a few points, its inputs being made-up numbers: no lowering, no kernels.

Names that are free in the whole term take few values, summed ones all of theirs. Floats are
computed in float64, integers in their own dtype, where they wrap.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from eqsat.carry_law import CarryLaw, evaluated
from eqsat.graph.dtypes import neutral
from eqsat.graph.index import Affine, evaluate, free_names
from eqsat.graph.meanings import affine_scan, erf
from eqsat.graph.ops import OPS
from eqsat.kernel.ir import Guard
from eqsat.terms.algebra import REDUCTIONS, SCATTERS, Facts, Read, Term, Universe
from eqsat.terms.carry_terms import definition, pivot_of

MOST_POINTS, MOST_AXES = 1 << 22, 30
MONOIDS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


class TooLarge(Exception):
    """More points than a check should cost."""


def agree(left: Sequence[Term], right: Sequence[Term], universe: Universe) -> bool | None:
    """Whether two lists of terms are worth the same at a few points; None where that costs much."""
    values = TermValues(universe)
    if len(universe.names) > MOST_AXES:
        return None
    try:
        return all(_close(values.term(a), values.term(b)) for a, b in zip(left, right, strict=True))
    except TooLarge:
        return None


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    known = np.abs(np.where(np.isfinite(a), a, 0.0))
    scale = float(known.max()) if known.size else 0.0
    return bool(np.allclose(a, b, rtol=1e-7, atol=1e-9 * scale + 1e-12, equal_nan=True))


class TermValues:
    """Values of terms over one universe: an axis for each name, of length 1 where it has no say."""

    def __init__(self, universe: Universe) -> None:
        self.universe = universe
        self.facts = Facts(universe)
        self.names = universe.names
        self._done: dict[tuple[Term, int], np.ndarray] = {}
        few = {name: 2 if place < 4 else 1 for place, name in enumerate(self.names)}
        random = np.random.default_rng(0)
        self.few = {
            name: np.sort(random.choice(extent, min(few[name], extent), replace=False))
            for name, extent in universe.extents.items()
        }

    def term(self, term: Term, whole: int = 0) -> np.ndarray:
        """The value; names in the mask `whole` take all of their values."""
        key = (term, whole & self.facts.free(term))
        if key not in self._done:
            with np.errstate(all="ignore"):
                self._done[key] = self._value(term, key[1])
        return self._done[key]

    def _points(self, name: str, whole: int) -> np.ndarray:
        bit = 1 << self.names.index(name)
        return np.arange(self.universe.extents[name]) if whole & bit else self.few[name]

    def _value(self, term: Term, whole: int) -> np.ndarray:
        names = self.universe.members(self.facts.free(term))
        if prod(len(self._points(name, whole)) for name in names) > MOST_POINTS:
            raise TooLarge
        dtype = self.facts.dtype(term)
        kind = np.dtype(np.float64) if dtype.kind == "float" else dtype.numpy
        first = term.args[0] if term.args else None
        match term.op, term.args:
            case (("read" | "gather"), (Read() as read, *_)):
                index = self.term(term.children[0], whole) if term.children else None
                value = self._read(read, index, whole)
            case "literal", (value, _):
                value = np.asarray(value).reshape((1,) * len(self.names))
            case "position", (Affine() as expression,):
                value = self._affine(expression, whole)
            case "weighted_sum", (int() as mask, Term(), Term() as r, CarryLaw() as law):
                weights = evaluated(
                    law.guarded_weight,
                    s=self._over(mask, term.children[0], whole),
                    p=self.term(pivot_of(term, self.facts), whole),
                )
                value = self._reduce("sum", mask, weights * self._over(mask, r, whole))
            case "weighted_min", _:
                value = self.term(definition(term, self.facts), whole)
            case "scan_sum", (int() as mask, Term() as body):
                value = self._scan(mask, body, whole)
            case "scan_affine", (int() as mask, Term() as factor, Term() as offset):
                value = self._states(mask, factor, offset, whole)
            case op, (int() as mask, Term() as at, Term() as place, Term() as body) if (
                op in SCATTERS
            ):
                value = self._scattered(SCATTERS[op], mask, (at, place, body), whole)
            case op, (int() as mask, Term() as body) if op in REDUCTIONS:
                value = self._reduce(REDUCTIONS[op], mask, self._over(mask, body, whole))
            case (("cast" | "rounded"), (str(), Term() as body)):
                value = self.term(body, whole)
            case "one_plus_erf", (Term() as body,):
                value = 1 + erf(self.term(body, whole))
            case _:
                assert not isinstance(first, int), f"{term.op} has no value here"
                arrays = [self.term(child, whole) for child in term.children]
                value = OPS[term.op].meaning(arrays, {}, (), kind)
        return np.asarray(value).astype(kind)

    def _over(self, mask: int, body: Term, whole: int) -> np.ndarray:
        """The body at all points of the names in the mask."""
        value = self.term(body, whole | mask)
        shape = list(value.shape)
        for axis, name in enumerate(self.names):
            if mask >> axis & 1:
                shape[axis] = self.universe.extents[name]
        if prod(shape) > MOST_POINTS:
            raise TooLarge
        return np.broadcast_to(value, shape)

    def _reduce(self, monoid: str, mask: int, value: np.ndarray) -> np.ndarray:
        axes = tuple(axis for axis in range(len(self.names)) if mask >> axis & 1)
        return MONOIDS[monoid].reduce(value, axis=axes, keepdims=True)

    def _scattered(self, monoid: str, mask: int, parts: Sequence[Term], whole: int) -> np.ndarray:
        at, place, body = (self.term(part, whole | mask) for part in parts)
        empty = neutral(monoid, self.facts.dtype(parts[2]))
        chosen = np.where(at == place, body, empty)
        return self._reduce(monoid, mask, chosen)

    def _scan(self, mask: int, body: Term, whole: int) -> np.ndarray:
        value = self._over(mask, body, whole)
        for axis, name in enumerate(self.names):
            if mask >> axis & 1:
                value = np.cumsum(value, axis=axis)
                value = np.take(value, self._points(name, whole), axis=axis)
        return value

    def _states(self, mask: int, factor: Term, offset: Term, whole: int) -> np.ndarray:
        a, b = np.broadcast_arrays(*(self._over(mask, part, whole) for part in (factor, offset)))
        axis = mask.bit_length() - 1
        value = affine_scan(a, b, axis)
        return np.take(value, self._points(self.names[axis], whole), axis=axis)

    def _affine(self, expression: Affine, whole: int) -> np.ndarray:
        points: dict[str, np.ndarray] = {}
        for name in free_names(expression):
            shape = [1] * len(self.names)
            shape[self.names.index(name)] = -1
            points[name] = self._points(name, whole).reshape(shape)
        value = np.asarray(evaluate(expression, points))
        return value if value.ndim else value.reshape((1,) * len(self.names))

    def _exists(self, guards: Sequence[Guard], whole: int) -> np.ndarray:
        inside = np.ones((1,) * len(self.names), bool)
        for guard in guards:
            value = self._affine(guard.expression, whole)
            inside = inside & (guard.lower <= value) & (value < guard.upper)
        return inside

    def _read(self, read: Read, index: np.ndarray | None, whole: int) -> np.ndarray:
        if read.joined:
            value = np.asarray(read.fill)
            for access in read.joined.accesses(read.address):
                exists = self._exists((*access.guards, *read.guards), whole)
                address = self._affine(access.address, whole)
                found = made_up(access.buffer, address, read.dtype.kind)
                value = np.where(exists, found, value)
            return value
        address, exists = self._affine(read.address, whole), self._exists(read.guards, whole)
        if index is not None:
            address = address + index.astype(np.int64) * read.stride
            exists = exists & (index >= 0) & (index < read.extent)
        return np.where(exists, made_up(read.buffer, address, read.dtype.kind), read.fill)


def made_up(buffer: str, address: np.ndarray, kind: str) -> np.ndarray:
    """The made-up element of a buffer at each address, the same whenever it is asked for."""
    salt = sum(ord(c) * 257**i for i, c in enumerate(buffer)) % (1 << 32)
    mixed = (address.astype(np.uint64) + np.uint64(salt)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    unit = ((mixed ^ (mixed >> np.uint64(32))) % np.uint64(1 << 20)).astype(np.float64) / (1 << 20)
    if kind == "float":
        return unit * 2 - 1
    return unit > 0.5 if kind == "bool" else np.floor(unit * 7).astype(np.int64)
