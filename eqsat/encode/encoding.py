"""From a tensor graph to terms over named indices: the names first, then the terms."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from eqsat.encode.decided import Decisions
from eqsat.encode.mask_fills import with_infinite_fills
from eqsat.encode.naming import Dims, Naming
from eqsat.encode.roundings import held_wide, unasked
from eqsat.graph.dtypes import as_dtype, iinfo
from eqsat.graph.index import (
    Affine,
    add,
    bounds,
    const,
    floordiv,
    mod,
    scale,
    simplify,
    substitute,
    var,
)
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Buffer, Guard
from eqsat.terms.algebra import SCANS, Facts, Read, Renaming, Term, Universe, post_order
from eqsat.terms.reindex import push

AxisOrders = Mapping[Tensor, tuple[int, ...]]
"""The axes of tensors that do not lie in memory row by row, outermost first."""


@dataclass(frozen=True)
class Output:
    """A value to be stored: its term, the names of each dimension, outermost first, and in which
    order its axes lie in memory.
    """

    tensor: Tensor
    term: Term
    dims: tuple[tuple[str, ...], ...]
    axes: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names as they lie in memory, outermost first."""
        return tuple(name for axis in self.axes for name in self.dims[axis])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in memory."""
        return tuple(self.tensor.shape[axis] for axis in self.axes)


@dataclass
class Encoding:
    """A segment as terms. `order` gives the memory order of names for terms of graph values;
    `buffers` are those of the leaves.
    """

    universe: Universe
    outputs: tuple[Output, ...]
    order: dict[Term, tuple[str, ...]]
    buffers: dict[str, Buffer]


class TermBuilder:
    """Second pass: terms over the final names."""

    def __init__(
        self,
        naming: Naming,
        orders: AxisOrders,
        unasked: Collection[Tensor] = (),
        wide: Collection[Tensor] = (),
    ) -> None:
        self.naming, self.orders = naming, orders
        self.unasked, self.wide = unasked, wide
        self.universe = Universe()
        self.facts = Facts(self.universe)
        self.decisions = Decisions()
        self._name: dict[int, str] = {}
        self.terms: dict[Tensor, Term] = {}
        self.shared: set[Term] = set()
        self.order: dict[Term, tuple[str, ...]] = {}

    def names(self, dim: list[int] | None) -> list[str]:
        """The names of a dimension's atoms, outermost first."""
        out = []
        for atom in self.naming.atoms.expand(dim or []):
            if atom not in self._name:
                self._name[atom] = self.universe.add(self.naming.atoms.extent(atom))
            out.append(self._name[atom])
        return out

    def coordinate(self, dim: list[int] | None) -> Affine:
        """The position along a dimension, from its names."""
        total, radix = const(0), 1
        for name in reversed(self.names(dim)):
            total = add(total, scale(var(name), radix))
            radix *= self.universe.extents[name]
        return total

    def leaf(self, tensor: Tensor, at: list[Affine]) -> Term:
        """The term of a leaf at the given coordinates."""
        guards: list[Guard] = []
        fill: bool | int | float = 0
        naming = self.naming
        while tensor not in naming.leaves and tensor.op == "view":
            operand = tensor.operands[0]
            place = {f"i{axis}": expression for axis, expression in enumerate(at)}
            at = [
                substitute(c, place, self.universe.extents)
                for c in tensor.attributes["coordinates"]
            ]
            if tensor.attributes["fill"] is not None:
                fill = tensor.attributes["fill"]
                guards = [Guard(c, 0, extent) for c, extent in zip(at, operand.shape, strict=True)]
            tensor = operand
        if tensor.op == "constant" and tensor not in naming.leaves:
            value = float(tensor.attributes["value"].item())
            if value == 0 and math.copysign(1, value) < 0:  # the e-graph has one zero
                return Term("neg", Term("literal", 0.0, tensor.dtype.name))
            return Term("literal", value, tensor.dtype.name)
        if tensor.op == "iota":
            return Term("position", simplify(at[tensor.attributes["axis"]], self.universe.extents))
        address, stride = const(0), 1
        for axis in reversed(self.axes(tensor)):
            address = add(address, scale(at[axis], stride))
            stride *= tensor.shape[axis]
        kept = tuple(g for g in guards if not self._always(g))
        return Term("read", Read(naming.leaves[tensor], tensor.dtype, address, kept, fill))

    def axes(self, tensor: Tensor) -> tuple[int, ...]:
        """The axes as they lie in memory, outermost first."""
        return self.orders.get(tensor, tuple(range(tensor.ndim)))

    def _always(self, guard: Guard) -> bool:
        return guard.contains(bounds(guard.expression, self.universe.extents))

    def operand(self, tensor: Tensor, place: int, dims: Dims) -> Term:
        """The term of an operand, under the dims of its use."""
        operand = tensor.operands[place]
        used = self.naming.edges.get((tensor, place), dims)
        if self.naming.is_leaf(operand):
            return self.leaf(operand, [self.coordinate(dim) for dim in used])
        term = self.term(operand)
        renaming = self.renaming(self.naming.nodes[operand].dims, used)
        if renaming is None:
            return term
        if self.naming.uses[operand] == 1:
            pushed = push(renaming, term, self.facts, self.shared)
            self._order_pushed(renaming, term, pushed)
            return pushed
        return Term("reindex", renaming, term)

    def _order_pushed(self, renaming: Renaming, term: Term, pushed: Term) -> None:
        """Give the parts of a renamed term the memory order of the parts they came from."""
        new = {
            name: str(target.terms[0][0])
            for name, target in zip(renaming.source, renaming.target, strict=True)
            if target == var(str(target.terms[0][0] if target.terms else ""))
        }
        before, after = list(post_order([term])), list(post_order([pushed]))
        if [t.op for t in before] == [t.op for t in after]:
            for old, other in zip(before, after, strict=True):
                if old in self.order:
                    names = tuple(new.get(name, name) for name in self.order[old])
                    self.order.setdefault(other, names)

    def renaming(self, own: Dims, used: Dims) -> Renaming | None:
        """From the names of a value's dims to those of its use, where they differ."""
        source: list[str] = []
        target: list[Affine] = []
        for mine, theirs in zip(own, used, strict=True):
            if mine is None or self.names(mine) == self.names(theirs):
                continue
            whole = self.coordinate(theirs)
            stride = 1
            for name in reversed(self.names(mine)):
                extent = self.universe.extents[name]
                digit = floordiv(whole, stride, self.universe.extents)
                source.append(name)
                target.append(mod(digit, extent, self.universe.extents))
                stride *= extent
        return Renaming(tuple(source), tuple(target)) if source else None

    def term(self, tensor: Tensor) -> Term:
        """The term of a computed tensor."""
        stack = [tensor]
        while stack:
            current = stack[-1]
            missing = [
                o for o in current.operands if not self.naming.is_leaf(o) and o not in self.terms
            ]
            if current in self.terms:
                stack.pop()
            elif missing:
                stack += missing
            else:
                term = self.terms[current] = self._build(current)
                if current.op != "view":  # a view of a value is not how it would be stored
                    dims = self.naming.nodes[current].dims
                    names = tuple(name for dim in dims for name in self.names(dim))
                    self.order.setdefault(term, names)
                if self.naming.uses[current] > 1:
                    self.shared.add(self.terms[current])
                stack.pop()
        return self.terms[tensor]

    def _build(self, tensor: Tensor) -> Term:
        dims = self.naming.nodes[tensor].dims
        if self.naming.is_leaf(tensor):
            return self.leaf(tensor, [self.coordinate(dim) for dim in dims])
        if tensor.op == "view":
            return self._build_view(tensor)
        if tensor.op == "gather":
            return self._build_gather(tensor, dims)
        if tensor.op.startswith("reduce_"):
            inner = self.naming.edges[tensor, 0]
            body = self._held(tensor, self.operand(tensor, 0, inner))
            names = [n for axis in tensor.attributes["axes"] for n in self.names(inner[axis])]
            return Term(tensor.op, self.universe.mask(names), body) if names else body
        operands = [
            self._held(tensor, self.operand(tensor, i, dims)) for i in range(len(tensor.operands))
        ]
        if tensor.op in SCANS:
            return self._build_scan(tensor, dims, operands)
        if tensor.op == "cast":
            if self.facts.dtype(operands[0]) == tensor.dtype:  # held so
                return operands[0]
            op = "rounded" if tensor in self.unasked else "cast"
            return Term(op, tensor.dtype.name, *operands)
        if tensor.op == "equal" and any(map(self._narrowed, operands)):
            wide = [o.children[0] if self._narrowed(o) else None for o in operands]
            operands = [w or Term("cast", "int64", o) for o, w in zip(operands, wide, strict=True)]
        return Term(tensor.op, *operands)

    def _held(self, tensor: Tensor, operand: Term) -> Term:
        """An operand of a tensor, as float32 where that is how the tensor is held."""
        dtype = self.facts.dtype(operand)
        if tensor not in self.wide or dtype.kind != "float" or dtype.compute == dtype:
            return operand
        if operand.op == "literal":
            return Term("literal", operand.args[0], dtype.compute.name)
        return Term("cast", dtype.compute.name, operand)

    def _narrowed(self, term: Term) -> bool:
        """Whether a term is a position in a narrower dtype that holds all of its values."""
        if term.op != "cast" or term.children[0].op != "position":
            return False
        dtype, place = as_dtype(str(term.args[0])), term.children[0].args[0]
        if dtype.kind not in {"int", "uint"}:
            return False
        assert isinstance(place, Affine)
        low, high = bounds(place, self.universe.extents)
        return iinfo(dtype).min <= low and high <= iinfo(dtype).max

    def _build_scan(self, tensor: Tensor, dims: Dims, operands: list[Term]) -> Term:
        """A scan along one name; along several, that of a name which stands for all of them."""
        names = self.names(dims[tensor.attributes["axis"]])
        if len(names) < 2:
            along = self.universe.mask(names)
            return Term(tensor.op, along, *operands) if along else operands[-1]
        whole = self.universe.add(tensor.shape[tensor.attributes["axis"]])
        facts, extents = self.facts, self.universe.extents
        digits: list[Affine] = []
        stride = 1
        for name in reversed(names):
            digits.append(mod(floordiv(var(whole), stride, extents), extents[name], extents))
            stride *= extents[name]
        apart = Renaming(tuple(reversed(names)), tuple(digits))
        moved = [push(apart, operand, facts, self.shared) for operand in operands]
        scan = Term(tensor.op, self.universe.mask([whole]), *moved)
        place = self.coordinate(dims[tensor.attributes["axis"]])
        return Term("reindex", Renaming((whole,), (place,)), scan)

    def _build_view(self, tensor: Tensor) -> Term:
        operand = tensor.operands[0]
        term = self.term(operand)
        if (tensor, 0) in self.naming.edges:
            return term
        dims = self.naming.nodes[tensor].dims
        place = {f"i{axis}": self.coordinate(dim) for axis, dim in enumerate(dims)}
        coordinates = [
            substitute(c, place, self.universe.extents) for c in tensor.attributes["coordinates"]
        ]
        source: list[str] = []
        target: list[Affine] = []
        for dim, coordinate in zip(self.naming.nodes[operand].dims, coordinates, strict=True):
            stride = 1
            names = self.names(dim)
            for position, name in enumerate(reversed(names)):
                extent = self.universe.extents[name]
                digit = floordiv(coordinate, stride, self.universe.extents)
                if position < len(names) - 1:
                    digit = mod(digit, extent, self.universe.extents)
                source.append(name)
                target.append(digit)
                stride *= extent
        fill, guards = tensor.attributes["fill"], []
        if fill is not None:
            guards = [Guard(c, 0, n) for c, n in zip(coordinates, operand.shape, strict=True)]
        kept = tuple(g for g in guards if not self._always(g))
        renaming = Renaming(tuple(source), tuple(target), kept, fill or 0)
        return Term("reindex", renaming, term) if source or kept else term

    def _build_gather(self, tensor: Tensor, dims: Dims) -> Term:
        table, _ = tensor.operands
        axis = tensor.attributes["axis"]
        place = {f"i{a}": self.coordinate(dim) for a, dim in enumerate(dims)}
        address, stride, along = const(0), 1, 1
        coordinates = tensor.attributes["coordinates"]
        for dimension in reversed(range(table.ndim)):
            if dimension == axis:
                along = stride
            else:
                at = substitute(coordinates[dimension], place, self.universe.extents)
                address = add(address, scale(at, stride))
            stride *= table.shape[dimension]
        read = Read(
            self.naming.leaves[table], table.dtype, address, (), 0, along, table.shape[axis]
        )
        return Term("gather", read, self._nearest(self.operand(tensor, 1, dims), tensor))

    def _nearest(self, index: Term, gather: Tensor) -> Term:
        """The index, past the ends the nearest position."""
        table, at = gather.operands
        last, limits = table.shape[gather.attributes["axis"]] - 1, iinfo(at.dtype)
        low, high = self.decisions.bounds(at) or (limits.min, limits.max)
        if high > last:
            index = Term("minimum", index, Term("literal", float(last), at.dtype.name))
        if low < 0:
            index = Term("maximum", index, Term("literal", 0.0, at.dtype.name))
        return index


def encode(
    tensors: Sequence[Tensor],
    outputs: Sequence[Tensor],
    leaves: dict[Tensor, str],
    orders: AxisOrders | None = None,
) -> Encoding:
    """Terms of a segment.

    `tensors`: its nodes in topological order; `outputs`: those to be stored; `leaves`: the buffer
    name of each tensor that is read from memory; `orders` of those that do not lie row by row.
    """
    naming = Naming(leaves)
    for tensor in tensors:
        for operand in tensor.operands:
            naming.uses[operand] = naming.uses.get(operand, 0) + 1
    for output in outputs:
        naming.uses[output] = naming.uses.get(output, 0) + 1
    for tensor in tensors:
        naming.visit(tensor)
    rounded = unasked(tensors)
    builder = TermBuilder(naming, orders or {}, rounded, held_wide(tensors, outputs, rounded))
    stored: list[Output] = []
    for output in outputs:
        if naming.is_leaf(output):
            term = builder.leaf(output, [builder.coordinate(d) for d in naming.nodes[output].dims])
        else:
            term = builder.term(output)
        dims = [
            ([naming.atoms.fresh(n)] if n != 1 else []) if dim is None else dim
            for dim, n in zip(naming.nodes[output].dims, output.shape, strict=True)
        ]
        names = tuple(tuple(builder.names(dim)) for dim in dims)
        stored.append(Output(output, term, names, builder.axes(output)))
        if output in builder.orders:
            builder.order[term] = stored[-1].names
    buffers: dict[str, Buffer] = {}
    for tensor, name in leaves.items():
        shape = tuple(tensor.shape[axis] for axis in builder.axes(tensor))
        buffers[name] = Buffer(name, shape, tensor.dtype, "input")
    filled = with_infinite_fills([one.term for one in stored], builder.facts)
    order = {filled.get(term, term): names for term, names in builder.order.items()}
    stored = [replace(one, term=filled[one.term]) for one in stored]
    return Encoding(builder.universe, tuple(stored), order, buffers)
