"""Writes the values of a kernel as Numba source: scratch memory, addresses, expressions."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from eqsat.codegen.cpu import scalars
from eqsat.graph.dtypes import DType
from eqsat.graph.index import Affine, bounds, divided_names, evaluate, free_names, sub
from eqsat.kernel.ir import (
    Access,
    Axis,
    Guard,
    Kernel,
    Literal,
    Load,
    Map,
    Number,
    Position,
    operands,
)

from .plan import Plan, Stored
from .scope import Names, Scope, affine, hoist, place, product, summed, total
from .values import existing_point

LONG = 16  # points of a loop that is done in parts: those near the ends, and those between


class Homes(dict[Stored, Scope]):
    """The scopes in which kept values are complete; `places`: what follows of these for values and
    the scopes that ask for them, forgotten when one changes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[tuple[str, Scope], Scope] = {}

    def __setitem__(self, kept: Stored, scope: Scope) -> None:
        super().__setitem__(kept, scope)
        self.places.clear()


class Writer:
    """Source under construction, each value written as far out as its indices allow.

    `home` is the scope in which a kept value is complete, `phase` the scope of one run of the
    current phase's body.
    """

    def __init__(self, kernel: Kernel, invocations: Mapping[str, str]) -> None:
        self.kernel = kernel
        self.plan = Plan(kernel, invocations)
        self.values = self.plan.values
        self.names = Names()
        self.constants: dict[str, str] = {}
        self.function = Scope()
        self.buffers = {b.name: self.names.fresh(b.name) for b in kernel.buffers}
        self.scratch: dict[Stored, str] = {}
        self.home = Homes()
        self.phase = self.function

    def open_tile(self, axes: Sequence[Axis], scope: Scope, number: str) -> None:
        """Origins of the tile (or chunk) with that flat number, the last axis fastest."""
        rest = number
        for place_, axis in reversed(list(enumerate(axes))):
            if axis.count <= 1:
                scope.origins[axis.name] = "0"
            else:
                at = rest
                if any(other.count > 1 for other in axes[:place_]):
                    at = f"modulo({rest}, {axis.count})"
                    rest = hoist(scope, f"quotient({rest}, {axis.count})", self.names, "rest")
                origin = product(axis.tile, at)
                scope.origins[axis.name] = hoist(scope, origin, self.names, axis.name)
            if axis.name not in self.values.varying([axis.name]):
                scope.offsets[axis.name] = "0"
            for name in self.values.begin_with(axis.name):
                scope.origins[name] = scope.origins[axis.name]

    def length(self, index: str, scope: Scope) -> str:
        """How many points of an index lie in the tile."""
        axis = self.values.axes[index]
        if self.values.whole(index):
            return str(self.values.size(index))
        where = scope.origin(index)
        text = f"min({axis.tile}, {axis.extent} - {where.origins[index]})"
        return hoist(where, text, self.names, "length")

    def inside(self, index: str, scope: Scope) -> Scope:
        """A scope within a loop over the points of an index."""
        inner = Scope(scope)
        inner.offsets[index] = self.names.fresh(index)
        return inner

    def end(self, index: str, inner: Scope, scope: Scope) -> None:
        header = f"for {inner.offsets[index]} in range({self.length(index, scope)}):"
        scope.close(header, inner)

    def ranges(
        self, index: str, scope: Scope, reads: Iterable[tuple[Access, Scope]]
    ) -> Iterator[Scope]:
        """Scopes for what a loop over the points of an index does, in any order: once, or for the
        points near the ends and for those between, at all of which every guard of `reads` holds
        that moves with the index. There the loop is done in vectors.
        """
        moving = [
            (guard, at)
            for access, at in reads
            for guard in self.guards(access, at)
            if _moves(guard.expression, index)
        ]
        if not moving or self.values.size(index) < LONG:
            inner = self.inside(index, scope)
            yield inner
            self.end(index, inner, scope)
            return
        length = self.length(index, scope)
        low, high = self._between(index, length, scope, moving)
        ends, side = Scope(scope), self.names.fresh("side")
        inner = self.inside(index, ends)
        yield inner
        points = f"range({high} if {side} else 0, {length} if {side} else {low})"
        ends.close(f"for {inner.offsets[index]} in {points}:", inner)
        scope.close(f"for {side} in range(2):", ends)
        inner = self.inside(index, scope)
        inner.met = frozenset(guard for guard, _ in moving)
        yield inner
        scope.close(f"for {inner.offsets[index]} in range({low}, {high}):", inner)

    def _between(
        self, index: str, length: str, scope: Scope, moving: Sequence[tuple[Guard, Scope]]
    ) -> tuple[str, str]:
        """The first of the points at which some guards hold, and the one after the last."""
        lows, highs = dict.fromkeys(["0"]), dict.fromkeys([length])
        for guard, at in moving:
            start = Scope(at, at.lines)
            start.offsets[index] = "0"
            first = affine(guard.expression, start, self.values.extents, self.names)
            step = dict(guard.expression.terms)[index]
            edges = [f"{edge} - ({first})" for edge in (guard.lower, guard.upper)]
            if step < 0:
                edges = [f"({first}) - {edge - 1}" for edge in (guard.upper, guard.lower)]
            if abs(step) != 1:
                edges = [f"-(-({edge}) // {abs(step)})" for edge in edges]
            lows[edges[0]], highs[edges[1]] = None, None
        low = hoist(scope, f"min(max({', '.join(lows)}), {length})", self.names, "low")
        return low, hoist(scope, f"max(min({', '.join(highs)}), {low})", self.names, "high")

    def array(self, kept: Stored) -> str:
        """The scratch array of a stored value, allocated once per call."""
        if kept not in self.scratch:
            name = self.names.fresh(kept.name)
            size = kept.room or product(*(self.values.size(i) for i in kept.dims))
            kind = "bool_" if kept.dtype.kind == "bool" else kept.dtype.name
            self.function.lines.append(f"{name} = room({size}, np.{kind})")
            if kept.margin:  # what is multiplied there is not looked at, but takes its time
                self.function.lines.append(f"{name}[{kept.room - kept.margin} :] = 0")
            self.scratch[kept] = name
        return self.scratch[kept]

    def position(self, kept: Stored, scope: Scope) -> str:
        """Where the value of the current point lies in its scratch array."""
        strides = self.steps(kept)
        parts = [
            (where, product(strides[i], where.offsets[i]))
            for i in kept.dims
            for where in [scope.offset(i)]
        ]
        return summed(0, parts, scope, self.names)

    def steps(self, kept: Stored) -> Mapping[str, int]:
        """Elements from one point of an index to the next in a scratch array."""
        return kept.steps or self.values.dense_strides(kept.dims)

    def put(self, kept: Stored, value: str, scope: Scope) -> None:
        scope.lines.append(f"poke({self.array(kept)}, {self.position(kept, scope)}, {value})")

    def get(self, kept: Stored, scope: Scope) -> str:
        return f"peek({self.array(kept)}, {self.position(kept, scope)})"

    def scalar(self, kept: Stored) -> str:
        """The variable that holds a value without indices from chunk to chunk."""
        if kept not in self.scratch:
            self.scratch[kept] = self.names.fresh(kept.name)
        return self.scratch[kept]

    def change(self, kept: Stored, value: str, scope: Scope) -> None:
        if kept.dims:
            self.put(kept, value, scope)
        else:
            scope.lines.append(f"{self.scalar(kept)} = {value}")

    def write(self, name: str, value: str, scope: Scope) -> None:
        """Store the current point of a value, and remember it for what follows in this scope."""
        kept = self.plan.stored[name]
        if kept.dims:
            value = self.variable(name, value, scope)
            self.put(kept, value, scope)
        elif kept.carried:
            variable = self.scalar(kept)
            scope.lines.append(f"{variable} = {value}")
            value = variable
        else:
            value = self.variable(name, value, scope)
        scope.known[name] = value
        self.home[kept] = scope

    def variable(self, name: str, text: str, scope: Scope) -> str:
        if text.isidentifier():
            return text
        variable = self.names.fresh(name)
        scope.lines.append(f"{variable} = {text}")
        return variable

    def constant(self, value: Number, dtype: DType) -> str:
        """A module constant; constants of the same value share a name. Infinities are variables,
        lest the compiler take extremes of what is masked by them apart.
        """
        text = scalars.constant(value, dtype)
        if text not in self.constants:
            self.constants[text] = f"C{len(self.constants)}"
        name = self.constants[text]
        if dtype.compute.kind != "float" or not math.isinf(value):
            return name
        return hoist(self.function, f"unknown({name})", self.names, "infinite")

    def fill(self, kept: Stored, indices: Sequence[str], value: str, scope: Scope) -> None:
        """Set a stored value at every point of some indices."""
        if not indices:
            self.put(kept, value, scope)
            return
        inner = self.inside(indices[0], scope)
        self.fill(kept, indices[1:], value, inner)
        self.end(indices[0], inner, scope)

    def value(self, name: str, scope: Scope, dtype: DType | None = None) -> str:
        """The source of a value at the current point, converted to the compute dtype of `dtype`."""
        definition = self.values.defined[name]
        text = self.evaluate(name, scope)
        return text if dtype is None else scalars.convert(text, definition.dtype, dtype)

    def evaluate(self, name: str, scope: Scope) -> str:
        """The source of a value, what it is made of before it."""
        todo = [(name, False)]
        while todo:
            one, ready = todo.pop()
            if scope.find(one) is not None:
                continue
            if not self.values.pointwise(one):
                self.read(one, scope)
            elif ready:
                self.compute(one, self.where(one, scope))
            else:
                todo.append((one, True))
                todo += [(x, False) for x in reversed(operands(self.values.defined[one]))]
        known = scope.find(name)
        if known is None:  # a literal, or the variable of a carry
            literal = self.values.pointwise(name)
            known = self.compute(name, scope) if literal else self.read(name, scope)
        return known

    def read(self, name: str, scope: Scope) -> str:
        kept = self.plan.stored[name]
        if not kept.dims:
            return self.scalar(kept)
        where = self.where(name, scope)
        known = where.find(name)
        if known is None:
            known = self.variable(name, self.get(kept, where), where)
            where.known[name] = known
        return known

    def where(self, name: str, scope: Scope) -> Scope:
        """The outermost scope around this one in which a value can be computed or read."""
        if (name, scope) not in self.home.places:
            if self.values.pointwise(name):
                found = self.where_computed(name, scope)
            else:
                kept = self.plan.stored[name]
                home = scope.common(self.home[kept])
                found = scope.deepest([*map(scope.offset, kept.dims), home])
            self.home.places[name, scope] = found
        return self.home.places[name, scope]

    def where_computed(self, name: str, scope: Scope) -> Scope:
        definition = self.values.defined[name]
        scopes = [self.where(operand, scope) for operand in operands(definition)]
        scopes += map(scope.offset, self.values.varying(definition.indices))
        if isinstance(definition, Load):
            access = definition.access
            scopes.append(place(access.address, scope))
            scopes += [place(guard.expression, scope) for guard in access.guards]
            if access.buffer in self.values.written:
                scopes.append(self.phase)
        elif isinstance(definition, Position):
            scopes.append(place(definition.expression, scope))
        return scope.deepest(scopes)

    def compute(self, name: str, scope: Scope) -> str:
        """Evaluate a pointwise value in this very scope."""
        definition = self.values.defined[name]
        if isinstance(definition, Literal):
            return self.constant(definition.value, definition.dtype)
        if isinstance(definition, Load):
            text = self.load(definition, scope)
        elif isinstance(definition, Position):
            position = affine(definition.expression, scope, self.values.extents, self.names)
            text = f"np.{definition.dtype.compute.name}({position})"
        else:
            assert isinstance(definition, Map)
            text = self.map(definition, scope)
        variable = self.variable(name, text, scope)
        scope.known[name] = variable
        return variable

    def load(self, load: Load, scope: Scope) -> str:
        selected = self.selected(load, scope)
        if selected is not None:
            return selected
        address, conditions = self.locate(load.access, scope)
        read = self.element(load, address)
        if not conditions:
            return read
        variable = self.names.fresh(load.name)
        scope.lines.append(f"{variable} = {self.constant(load.fill, load.dtype)}")
        guarded = Scope(scope)
        guarded.lines.append(f"{variable} = {read}")
        scope.close(f"if {' & '.join(conditions)}:", guarded)
        return variable

    def element(self, load: Load, address: str) -> str:
        """The source of what a load reads at an address."""
        buffer = load.access.buffer
        source = self.kernel.buffer(buffer).dtype
        read = scalars.load(f"peek({self.buffers[buffer]}, {address})", source)
        return scalars.convert(read, source, load.dtype)

    def selected(self, load: Load, scope: Scope) -> str | None:
        """A load whose guards hold or fail for all of the innermost loop: where they fail another
        element is read, and the fill selected, so that the loop is done in vectors. Else None.
        """
        access, extents = load.access, self.values.extents
        guards = self.guards(access, scope)
        if not guards or access.coordinates:
            return None
        where = scope.deepest(place(guard.expression, scope) for guard in guards)
        point = existing_point(guards, extents)
        if where.depth == scope.depth or point is None:
            return None
        terms = access.address.terms
        within = [t for t in terms if place(Affine((t,), 0), scope).depth > where.depth]
        moving = Affine(tuple(within), 0)
        fixed = sub(access.address, moving)
        conditions = self.conditions(guards, where)
        inside = hoist(where, " & ".join(conditions), self.names, "inside")
        at = affine(fixed, where, extents, self.names)
        elsewhere = evaluate(fixed, dict.fromkeys(free_names(fixed), 0) | point)
        at = hoist(where, f"{at} if {inside} else {elsewhere}", self.names, "at")
        address = total([at, affine(moving, scope, extents, self.names)])
        read = self.variable(load.name, self.element(load, address), scope)
        return f"({read} if {inside} else {self.constant(load.fill, load.dtype)})"

    def guards(self, access: Access, scope: Scope) -> list[Guard]:
        """The guards of an access that may fail here."""
        return [guard for guard in self.values.guards(access) if not scope.holds(guard)]

    def conditions(self, guards: Iterable[Guard], scope: Scope) -> list[str]:
        """What some guards ask for."""
        conditions = []
        for guard in guards:
            text = affine(guard.expression, scope, self.values.extents, self.names)
            low, high = bounds(guard.expression, self.values.extents)
            conditions += [f"({text} >= {guard.lower})"] if low < guard.lower else []
            conditions += [f"({text} < {guard.upper})"] if high >= guard.upper else []
        return conditions

    def locate(self, access: Access, scope: Scope) -> tuple[str, list[str]]:
        """The source of an address, and the conditions under which the element exists."""
        terms = [affine(access.address, scope, self.values.extents, self.names)]
        conditions = self.conditions(self.guards(access, scope), scope)
        for coordinate in access.coordinates:
            value = f"np.int64({self.value(coordinate.value, scope)})"
            value = hoist(scope, value, self.names, "at")
            conditions.append(f"({value} >= 0) & ({value} < {coordinate.extent})")
            terms.append(product(coordinate.stride, value))
        return total(terms), conditions

    def map(self, statement: Map, scope: Scope) -> str:
        arguments = [self.value(name, scope) for name in statement.arguments]
        kinds = [self.values.defined[name].dtype for name in statement.arguments]
        if statement.op == "cast":
            return scalars.cast(arguments[0], kinds[0], statement.dtype)
        same = kinds[0] if statement.dtype.kind == "bool" else statement.dtype
        first = 1 if statement.op == "where" else 0
        converted = [
            scalars.convert(argument, kind, same)
            for argument, kind in zip(arguments[first:], kinds[first:], strict=True)
        ]
        arguments[first:] = converted
        return scalars.expression(statement.op, statement.dtype, same, arguments)


def _moves(expression: Affine, index: str) -> bool:
    """Whether an expression goes up or down by the same at each step of an index."""
    return index in dict(expression.terms) and index not in divided_names(expression)
