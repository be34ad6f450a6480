"""Reductions that a law carries, as statements: the pivot, the weights, the rescale of a total."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from eqsat.carry_law import CarryLaw
from eqsat.graph.dtypes import DType, bool_, int64
from eqsat.graph.index import const
from eqsat.kernel.ir import Axis, Carry, Contract, Literal, Map, Position, Reduce, Statement, Update
from eqsat.rule import Node, Pattern
from eqsat.terms.algebra import CONDITIONS, Facts, Term
from eqsat.terms.carry_terms import is_one, is_pivot, law_of, without_factor
from eqsat.terms.form import WEIGHTED, Form

Value = tuple[str, tuple[str, ...]]  # a statement's name and its indices


@dataclass(frozen=True)
class Pivot:
    """A law's pivot in a stream: its carry, the weights of a chunk; what becomes of a total when
    the pivot moves: it is multiplied by `scale`, and `shift` is added; where not empty.
    """

    carry: str
    weight: str
    indices: tuple[str, ...]  # of the pivot and the scale
    scale: str = ""
    shift: Value = ("", ())


class CarryLowering:
    """The part of a kernel's lowering that deals with weighted reductions."""

    form: Form
    facts: Facts
    values: dict[Term, str]
    operations: Mapping[Term, str]

    def __init__(self) -> None:
        self.pivots: dict[tuple[CarryLaw, Term, tuple[str, ...]], Pivot] = {}
        self.running: dict[tuple[str, str, tuple[str, ...]], tuple[str, str]] = {}

    def fresh(self, stem: str) -> str:
        raise NotImplementedError

    def axis(self, name: str) -> Axis:
        raise NotImplementedError

    def indices(self, term: Term) -> tuple[str, ...]:
        raise NotImplementedError

    def start_stream(self) -> None:
        """Forget the pivots of the stream before."""
        self.pivots, self.running = {}, {}

    def weighted_inputs(self, term: Term) -> tuple[Term, ...]:
        """What must have a value before a weighted reduction is carried."""
        s, r = term.children
        right = self.form.beneath_cast(r) if term.op == "weighted_contract" else r
        return self._score(law_of(term), s)[0], right

    def is_pivot(self, term: Term) -> bool:
        """Whether the reduction is the pivot that a weighted one of the kernel carries."""
        return any(is_pivot(term, t) for t in self.form.terms if t.op in WEIGHTED)

    def carried_pivot(self, term: Term) -> str:
        """The carry that is the reduction because it is a law's pivot; or an empty name."""
        own = self.values.get(term.children[0], "")
        over = self.facts.universe.members(term.args[0])  # type: ignore[arg-type]
        return self.running.get((term.op.removeprefix("reduce_"), own, over), ("", ""))[0]

    # -- scores ----------------------------------------------------------------------------------

    def _score(self, law: CarryLaw, s: Term) -> tuple[Term, float]:
        """A score without its positive factor, and that factor; all of it where its pivot is
        wanted besides the weights, and where the law has no operation that takes a factor.
        """
        wanted = any(t.op == "reduce_max" and t.children[0] is s for t in self.form.terms)
        return (s, 1.0) if wanted or not law.operation else without_factor(s)

    def _scored(self, law: CarryLaw, s: Term, body: list[Statement]) -> tuple[Value, list[str]]:
        """The value of a score without its factor; the factor's, with the law's, if not one."""
        score, rate = self._score(law, s)
        factor: list[str] = []
        if law.operation and rate * law.rate != 1.0:
            factor = [self._number(rate * law.rate, self.facts.dtype(s), body)]
        return (self.values[score], self.indices(s)), factor

    # -- streams ---------------------------------------------------------------------------------

    def weighted_carry(self, term: Term, body: list[Statement], carries: list[Carry]) -> str:
        """Reduce the chunk and update the carried total; the carry's name."""
        law, (s, _) = law_of(term), term.children
        over = self.facts.universe.members(term.args[0])  # type: ignore[arg-type]
        if (law, s, over) not in self.pivots:
            self.pivots[law, s, over] = self._pivot(law, s, over, body, carries)
        pivot = self.pivots[law, s, over]
        dtype, indices = self.facts.dtype(term), self.indices(term)
        chunk, carry = self._products(term, pivot.weight, body), self.fresh("acc")
        if pivot.shift[0]:
            chunk, _ = self._map("add", dtype, [(chunk, indices), pivot.shift], body)
        scale, monoid = pivot.scale, law.monoid
        if monoid == "min":  # a condition as the number 0 or 1
            scale, _ = self._map("cast", dtype, [(scale, pivot.indices)], body)
        carries.append(Carry(carry, dtype, indices, monoid, pivot.carry, law.name))
        body.append(Update(self.fresh("v"), dtype, indices, carry, monoid, chunk, scale))
        return carry

    def _pivot(
        self,
        law: CarryLaw,
        s: Term,
        over: tuple[str, ...],
        body: list[Statement],
        carries: list[Carry],
    ) -> Pivot:
        """The running pivot of s, and the weights of the chunk against it.

        A factor of s is left to the law's operation: max c s = c max s, for c > 0.
        """
        dtype = self.facts.dtype(s)
        value, factor = self._scored(law, s, body)
        kept = tuple(n for n in value[1] if n not in over)
        if law.pivot == "mean":
            return self._about_mean(law, dtype, value, (over, kept), body, carries)
        carry, after = self._running(law.pivot, dtype, value, (over, kept), body, carries)
        old, new = (carry, kept), (after, kept)
        if law.operation:
            scale, weight = self.fresh("v"), self.fresh("v")
            body.append(Map(scale, dtype, kept, law.operation, (carry, after, *factor)))
            body.append(Map(weight, dtype, value[1], law.operation, (value[0], after, *factor)))
            return Pivot(carry, weight, kept, scale)
        scale = ""
        if law.guarded_rescale:
            at = {"s": value, "p": old, "q": new}
            scale, _ = self._expression(law.guarded_rescale, at, dtype, body)
        weight, _ = self._expression(law.guarded_weight, {"s": value, "p": new}, dtype, body)
        return Pivot(carry, weight, kept, scale)

    def _running(
        self,
        monoid: str,
        dtype: DType,
        value: Value,
        axes: tuple[tuple[str, ...], tuple[str, ...]],
        body: list[Statement],
        carries: list[Carry],
    ) -> tuple[str, str]:
        """A carried reduction of a value over axes[0], with indices axes[1]; and its next value."""
        over, kept = axes
        if (monoid, value[0], over) not in self.running:
            chunk, after = self.fresh("v"), self.fresh("v")
            carry = self.fresh("acc" if monoid == "sum" else "m")
            carries.append(Carry(carry, dtype, kept, monoid))
            body.append(Reduce(chunk, dtype, kept, monoid, over, value[0]))
            body.append(Update(after, dtype, kept, carry, monoid, chunk))
            self.running[monoid, value[0], over] = carry, after
        return self.running[monoid, value[0], over]

    def _about_mean(
        self,
        law: CarryLaw,
        dtype: DType,
        value: Value,
        axes: tuple[tuple[str, ...], tuple[str, ...]],
        body: list[Statement],
        carries: list[Carry],
    ) -> Pivot:
        """The mean of the points so far is their carried sum over their carried number."""
        over, kept = axes
        carry, after = self._running("sum", dtype, value, axes, body, carries)
        points = self._chunk_points(dtype, over, body)
        count, counted = self.fresh("n"), self.fresh("v")
        carries.append(Carry(count, dtype, (), "sum"))
        body.append(Update(counted, dtype, (), count, "sum", points))
        least = self._map("maximum", dtype, [(count, ()), self._one(dtype, body)], body)
        old = self._map("div", dtype, [(carry, kept), least], body)
        new = self._map("div", dtype, [(after, kept), (counted, ())], body)
        at = {"s": value, "p": new}
        weight, _ = self._expression(law.weight, at, dtype, body)
        assert law.shift is not None
        moved = self._expression(law.shift, {"s": value, "p": old, "q": new}, dtype, body)
        return Pivot(carry, weight, kept, "", self._map("mul", dtype, [moved, (count, ())], body))

    def _chunk_points(self, dtype: DType, over: tuple[str, ...], body: list[Statement]) -> str:
        """How many points of these axes a chunk has: fewer at the end of an axis."""
        axes = [self.axis(name) for name in over]
        if all(axis.extent % axis.tile == 0 for axis in axes):
            return self._number(float(prod(axis.tile for axis in axes)), dtype, body)
        ones, points, wide = self.fresh("v"), self.fresh("v"), self.fresh("v")
        body.append(Position(ones, int64, over, const(1)))
        body.append(Map(wide, dtype, over, "cast", (ones,)))
        body.append(Reduce(points, dtype, (), "sum", over, wide))
        return points

    # -- rows that lie in the tile ---------------------------------------------------------------

    def weighted(self, term: Term, body: list[Statement]) -> str:
        """A weighted reduction over resident names: their pivot, the weights, the products."""
        mask, s, law = term.args[0], term.children[0], law_of(term)
        weights = Term("weights", mask, s, law)
        if weights not in self.values:
            over = self.facts.universe.members(mask)  # type: ignore[arg-type]
            dtype = self.facts.dtype(s)
            value, factor = self._scored(law, s, body)
            kept = tuple(n for n in value[1] if n not in over)
            found, monoid = self.fresh("v"), "sum" if law.pivot == "mean" else law.pivot
            body.append(Reduce(found, dtype, kept, monoid, over, value[0]))
            if law.pivot == "mean":
                points = prod(self.form.extents[name] for name in over)
                count = (self._number(float(points), dtype, body), ())
                found, _ = self._map("div", dtype, [(found, kept), count], body)
            if law.operation:
                weight, operands = self.fresh("v"), (value[0], found, *factor)
                body.append(Map(weight, dtype, value[1], law.operation, operands))
            else:
                at = {"s": value, "p": (found, kept)}
                weight, _ = self._expression(law.guarded_weight, at, dtype, body)
            self.values[weights] = weight
        return self._products(term, self.values[weights], body)

    def _products(self, term: Term, weight: str, body: list[Statement]) -> str:
        """The reduction of weights times values over what lies in the tile."""
        over = self.facts.universe.members(term.args[0])  # type: ignore[arg-type]
        s, r = term.children
        dtype, indices = self.facts.dtype(term), self.indices(term)
        chunk = self.fresh("v")
        if term.op == "weighted_min":
            none = self._number(0.0, self.facts.dtype(r), body), ()
            parts = [(weight, self.indices(s)), (self.values[r], self.indices(r)), none]
            product, _ = self._map("where", self.facts.dtype(r), parts, body)
            body.append(Reduce(chunk, dtype, indices, "min", over, product))
        elif is_one(r):
            body.append(Reduce(chunk, dtype, indices, "sum", over, weight))
        elif term.op == "weighted_sum":
            body.append(Contract(chunk, dtype, indices, over, weight, self.values[r]))
        else:
            right = self.form.beneath_cast(r)
            narrow = self.facts.dtype(right)
            if narrow != self.facts.dtype(s):
                rounded = self.fresh("v")
                body.append(Map(rounded, narrow, self.indices(s), "cast", (weight,)))
                weight = rounded
            factors = (weight, self.values[right])
            operation = self.operations[term]
            body.append(Contract(chunk, dtype, indices, over, *factors, operation))
        return chunk

    # -- elementwise expressions -----------------------------------------------------------------

    def _expression(
        self, node: Pattern, at: Mapping[str, Value], dtype: DType, body: list[Statement]
    ) -> Value:
        """The statements of a law's expression over known values."""
        if not isinstance(node, Node):
            return at[node.name]
        if node.op == "literal":
            return self._number(node.args[0], dtype, body), ()
        own = bool_ if node.op in CONDITIONS else dtype
        below = [self._expression(arg, at, dtype, body) for arg in node.args]  # type: ignore[arg-type]
        return self._map(node.op, own, below, body)

    def _map(
        self, op: str, dtype: DType, operands: Iterable[Value], body: list[Statement]
    ) -> Value:
        operands = list(operands)
        names = self.facts.universe.mask(n for _, own in operands for n in own)
        indices = self.facts.universe.members(names)
        body.append(Map(self.fresh("v"), dtype, indices, op, tuple(v for v, _ in operands)))
        return body[-1].name, indices

    def _number(self, value: object, dtype: DType, body: list[Statement]) -> str:
        assert isinstance(value, float)
        term = Term("literal", value, dtype.name)
        if term not in self.values:
            self.values[term] = self.fresh("c")
            exact = value if dtype.kind == "float" else int(value)
            body.append(Literal(self.values[term], dtype, exact))
        return self.values[term]

    def _one(self, dtype: DType, body: list[Statement]) -> Value:
        return self._number(1.0, dtype, body), ()
