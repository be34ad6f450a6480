"""The Numba target's source: one nopython function that runs a range of a kernel's grid tiles.

Buffers are flat arrays, 16-bit floats as uint16. The loops come from `numba_plan`; each value is
written as far out as its indices allow.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from eqsat.codegen import numba_gemm, numba_scalars as scalars
from eqsat.codegen.numba_plan import (
    Commit,
    Hold,
    Loop,
    PhasePlan,
    Plan,
    Rescale,
    Sink,
    Stored,
    sinks,
)
from eqsat.codegen.numba_scope import Names, Scope, affine, hoist, place, product, total
from eqsat.codegen.oracle import identity
from eqsat.graph.dtypes import DType
from eqsat.kernel import (
    Access,
    Axis,
    Carry,
    Contract,
    Kernel,
    Literal,
    Load,
    Map,
    Position,
    Reduce,
    Scan,
    Store,
    Update,
    operands,
    show,
)

# Rows of the right factor that one pass over a row of the product adds.
UNROLL = 4


def emit(kernel: Kernel, invocations: Mapping[str, str] | None = None) -> str:
    """Source of `kernel(start, stop, *buffers)`, which runs the tiles [start, stop).

    `invocations` gives the `invocation_name` of the spec's operations by name; a contraction whose
    operation is invoked as `cblas_gemm` calls BLAS where its operands allow.
    Raises UnsupportedError for an op without a row in numba_scalars.
    """
    return _Emitter(kernel, invocations or {}).source()


class _Emitter:
    def __init__(self, kernel: Kernel, invocations: Mapping[str, str]) -> None:
        self.kernel = kernel
        self.plan = Plan(kernel, invocations)
        self.names = Names()
        self.constants: dict[str, str] = {}
        self.function = Scope()
        self.buffers = {b.name: self.names.fresh(b.name) for b in kernel.buffers}
        self.scratch: dict[Stored, str] = {}
        self.states: dict[str, Stored] = {}
        self.variables: dict[Sink, str] = {}
        self.home: dict[Stored, Scope] = {}
        self.phase = self.function

    # --- the function ---

    def source(self) -> str:
        tile = Scope(self.function)
        for axis in self.kernel.inner:
            self.function.origins[axis.name] = "0"
            if axis.extent == 1:
                self.function.offsets[axis.name] = "0"
        self.open_tile(self.kernel.grid, tile, "tile")
        for plan in self.plan.phases:
            self.emit_phase(plan, tile)
        self.function.close("for tile in range(start, stop):", tile)
        body = Scope()
        parameters = ", ".join(("start", "stop", *self.buffers.values()))
        body.close(f"def kernel({parameters}):", self.function)
        text = "\n".join(body.lines)
        comment = [f"# {line}".rstrip() for line in _comment(self.kernel).splitlines()]
        constants = [f"{name} = {value}" for value, name in self.constants.items()]
        return "\n".join([*comment, *_imports(text), "", *constants, "", "", text, ""])

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
            if axis.name not in self.plan.varying([axis.name]):
                scope.offsets[axis.name] = "0"

    def length(self, index: str, scope: Scope) -> str:
        """How many points of an index lie in the tile."""
        axis = self.plan.axes[index]
        if self.plan.whole(index):
            return str(self.plan.size(index))
        where = scope.origin(index)
        text = f"min({axis.tile}, {axis.extent} - {where.origins[index]})"
        return hoist(where, text, self.names, "length")

    def emit_phase(self, plan: PhasePlan, tile: Scope) -> None:
        self.phase = tile
        for carry in plan.carries:
            self.initialise(self.plan.stored[carry.name], carry, tile)
        if not plan.phase.stream:
            self.emit_body(plan.body, tile)
            return
        chunks = product(*(axis.count for axis in plan.phase.stream))
        chunk = Scope(tile)
        number = self.names.fresh("chunk")
        self.open_tile(plan.phase.stream, chunk, number)
        self.phase = chunk
        for carry in plan.carries:
            self.home[self.plan.stored[carry.name]] = chunk
        self.emit_body(plan.body, chunk)
        tile.close(f"for {number} in range({chunks}):", chunk)
        for carry in plan.carries:
            self.home[self.plan.stored[carry.name]] = tile

    def emit_body(self, body: Iterable[Loop | Sink], scope: Scope) -> None:
        for node in body:
            if isinstance(node, Sink):
                self.emit_sink(node, scope)
            else:
                self.emit_loop(node, scope)

    def emit_loop(self, loop: Loop, scope: Scope) -> None:
        partial = [s for s in sinks(loop.body) if _opens(s, loop)]
        for sink in partial:
            self.begin(sink, scope)
        inside = self.inside(loop.index, scope)
        self.emit_body(loop.body, inside)
        self.end(loop.index, inside, scope)
        for sink in partial:
            self.finish(sink, scope)

    def inside(self, index: str, scope: Scope) -> Scope:
        """A scope within a loop over the points of an index."""
        inner = Scope(scope)
        inner.offsets[index] = self.names.fresh(index)
        return inner

    def end(self, index: str, inner: Scope, scope: Scope) -> None:
        header = f"for {inner.offsets[index]} in range({self.length(index, scope)}):"
        scope.close(header, inner)

    # --- storage ---

    def array(self, kept: Stored) -> str:
        """The scratch array of a stored value, allocated once per call."""
        if kept not in self.scratch:
            name = self.names.fresh(kept.name)
            size = product(*(self.plan.size(i) for i in kept.dims))
            kind = "bool_" if kept.dtype.kind == "bool" else kept.dtype.name
            self.function.lines.append(f"{name} = np.empty({size}, np.{kind})")
            self.scratch[kept] = name
        return self.scratch[kept]

    def position(self, kept: Stored, scope: Scope) -> str:
        """Where the value of the current point lies in its scratch array."""
        strides = self.plan.dense_strides(kept.dims)
        parts = [(scope.offset(i), product(strides[i], scope.offset(i).offsets[i])) for i in kept.dims]
        text = "0"
        for where in sorted({where for where, _ in parts}, key=lambda where: where.depth):
            text = total([text, *(part for at, part in parts if at is where)])
            if where is not scope:
                text = hoist(where, text, self.names)
        return text

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

    def put(self, kept: Stored, value: str, scope: Scope) -> None:
        scope.lines.append(f"poke({self.array(kept)}, {self.position(kept, scope)}, {value})")

    def get(self, kept: Stored, scope: Scope) -> str:
        return f"peek({self.array(kept)}, {self.position(kept, scope)})"

    def scalar(self, kept: Stored) -> str:
        """The variable that holds a value without indices from chunk to chunk."""
        if kept not in self.scratch:
            self.scratch[kept] = self.names.fresh(kept.name)
        return self.scratch[kept]

    def variable(self, name: str, text: str, scope: Scope) -> str:
        if text.isidentifier():
            return text
        variable = self.names.fresh(name)
        scope.lines.append(f"{variable} = {text}")
        return variable

    def constant(self, value: bool | int | float, dtype: DType) -> str:
        """A module constant; constants of the same value share a name."""
        text = scalars.constant(value, dtype)
        if text not in self.constants:
            self.constants[text] = f"C{len(self.constants)}"
        return self.constants[text]

    def initialise(self, kept: Stored, carry: Carry, scope: Scope) -> None:
        start = self.constant(identity(carry.monoid, carry.dtype), carry.dtype)
        if kept.dims:
            self.fill(kept, kept.dims, start, scope)
        else:
            scope.lines.append(f"{self.scalar(kept)} = {start}")

    def fill(self, kept: Stored, indices: Sequence[str], value: str, scope: Scope) -> None:
        """Set a stored value at every point of some indices."""
        if not indices:
            self.put(kept, value, scope)
            return
        inner = self.inside(indices[0], scope)
        self.fill(kept, indices[1:], value, inner)
        self.end(indices[0], inner, scope)

    # --- values ---

    def value(self, name: str, scope: Scope, dtype: DType | None = None) -> str:
        """The source of a value at the current point, converted to the compute dtype of `dtype`."""
        definition = self.plan.defined[name]
        text = self.evaluate(name, scope)
        return text if dtype is None else scalars.convert(text, definition.dtype, dtype)

    def evaluate(self, name: str, scope: Scope) -> str:
        known = scope.find(name)
        if known is not None:
            return known
        if not self.plan.pointwise(name):
            return self.read(name, scope)
        where = self.where(name, scope)
        return self.compute(name, where)

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
        if not self.plan.pointwise(name):
            kept = self.plan.stored[name]
            return scope.deepest([*map(scope.offset, kept.dims), scope.common(self.home[kept])])
        return self.where_computed(name, scope)

    def where_computed(self, name: str, scope: Scope) -> Scope:
        definition = self.plan.defined[name]
        scopes = [self.where(operand, scope) for operand in operands(definition)]
        scopes += map(scope.offset, self.plan.varying(definition.indices))
        if isinstance(definition, Load):
            access = definition.access
            scopes.append(place(access.address, scope))
            scopes += [place(guard.expression, scope) for guard in access.guards]
            if access.buffer in self.plan.written:
                scopes.append(self.phase)
        elif isinstance(definition, Position):
            scopes.append(place(definition.expression, scope))
        return scope.deepest(scopes)

    def compute(self, name: str, scope: Scope) -> str:
        """Evaluate a pointwise value in this very scope."""
        definition = self.plan.defined[name]
        if isinstance(definition, Literal):
            return self.constant(definition.value, definition.dtype)
        if isinstance(definition, Load):
            text = self.load(definition, scope)
        elif isinstance(definition, Position):
            position = affine(definition.expression, scope, self.plan.extents, self.names)
            text = f"np.{definition.dtype.compute.name}({position})"
        else:
            assert isinstance(definition, Map)
            text = self.map(definition, scope)
        variable = self.variable(name, text, scope)
        scope.known[name] = variable
        return variable

    def load(self, load: Load, scope: Scope) -> str:
        address, conditions = self.locate(load.access, scope)
        source = self.kernel.buffer(load.access.buffer).dtype
        read = scalars.load(f"peek({self.buffers[load.access.buffer]}, {address})", source)
        read = scalars.convert(read, source, load.dtype)
        if not conditions:
            return read
        variable = self.names.fresh(load.name)
        scope.lines.append(f"{variable} = {self.constant(load.fill, load.dtype)}")
        guarded = Scope(scope)
        guarded.lines.append(f"{variable} = {read}")
        scope.close(f"if {' & '.join(conditions)}:", guarded)
        return variable

    def locate(self, access: Access, scope: Scope) -> tuple[str, list[str]]:
        """The source of an address, and the conditions under which the element exists."""
        terms = [affine(access.address, scope, self.plan.extents, self.names)]
        conditions = []
        for guard in self.plan.guards(access):
            text = affine(guard.expression, scope, self.plan.extents, self.names)
            conditions.append(f"({guard.lower} <= {text}) & ({text} < {guard.upper})")
        for coordinate in access.coordinates:
            value = f"np.int64({self.value(coordinate.value, scope)})"
            value = hoist(scope, value, self.names, "at")
            conditions.append(f"({value} >= 0) & ({value} < {coordinate.extent})")
            terms.append(product(coordinate.stride, value))
        return total(terms), conditions

    def map(self, statement: Map, scope: Scope) -> str:
        arguments = [self.value(name, scope) for name in statement.arguments]
        kinds = [self.plan.defined[name].dtype for name in statement.arguments]
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

    # --- sinks ---

    def emit_sink(self, sink: Sink, scope: Scope) -> None:
        match sink.action:
            case Hold(value=name):
                self.write(name, self.compute(name, scope), scope)
            case Store():
                self.store(sink.action, scope)
            case Commit(carry=carry, value=value):
                self.write(carry, self.value(value, scope), scope)
                del scope.known[carry]
            case Rescale(carry=carry, scale=scale):
                kept = self.plan.stored[carry]
                definition = self.plan.defined[carry]
                factor = self.value(scale, scope, definition.dtype)
                old = self.get(kept, scope) if kept.dims else self.scalar(kept)
                self.change(kept, self.multiply(old, factor, definition.dtype), scope)
            case Update():
                self.update(sink.action, scope)
            case Scan(argument=argument, dtype=dtype, name=name):
                state = self.accumulate(sink, self.value(argument, scope, dtype), scope)
                self.write(name, state, scope)
            case Reduce(argument=argument, dtype=dtype):
                self.accumulate(sink, self.value(argument, scope, dtype), scope)
            case Contract():
                self.contract(sink, sink.action, scope)

    def multiply(self, a: str, b: str, dtype: DType) -> str:
        return scalars.expression("mul", dtype, dtype, (a, b))

    def change(self, kept: Stored, value: str, scope: Scope) -> None:
        if kept.dims:
            self.put(kept, value, scope)
        else:
            scope.lines.append(f"{self.scalar(kept)} = {value}")

    def update(self, update: Update, scope: Scope) -> None:
        old = self.value(update.carry, scope)
        if update.scale:
            old = self.multiply(old, self.value(update.scale, scope, update.dtype), update.dtype)
        chunk = self.value(update.chunk, scope, update.dtype)
        self.write(
            update.name, scalars.combine(update.monoid, update.dtype, old, chunk, False), scope
        )

    def store(self, store: Store, scope: Scope) -> None:
        source = self.plan.defined[store.value].dtype
        target = self.kernel.buffer(store.access.buffer)
        value = scalars.store(self.value(store.value, scope), source, target.dtype)
        address, conditions = self.locate(store.access, scope)
        line = f"poke({self.buffers[target.name]}, {address}, {value})"
        if conditions:
            guarded = Scope(scope)
            guarded.lines.append(line)
            scope.close(f"if {' & '.join(conditions)}:", guarded)
        else:
            scope.lines.append(line)

    # --- partial results ---

    def monoid(self, sink: Sink) -> str:
        return getattr(sink.action, "monoid", "sum")

    def state(self, sink: Sink) -> tuple[Stored | None, tuple[str, ...]]:
        """Where a partial result lies: the array and its indices, or (None, ()) for a variable."""
        within = sink.loops[sink.partial :]
        action = sink.action
        over = (action.over,) if isinstance(action, Scan) else action.over
        lanes = tuple(i for i in within if i not in over)
        if not lanes:
            return None, ()
        if not isinstance(action, Scan):
            return self.plan.stored[sink.produces], lanes
        if action.name not in self.states:
            self.states[action.name] = Stored(action.name, action.dtype.compute, lanes, lanes)
        return self.states[action.name], lanes

    def begin(self, sink: Sink, scope: Scope) -> None:
        """Set a partial result to the identity before its outermost summed loop."""
        kept, lanes = self.state(sink)
        action = sink.action
        start = self.constant(identity(self.monoid(sink), action.dtype), action.dtype)
        if kept is None:
            self.variables[sink] = self.names.fresh(action.name)
            scope.lines.append(f"{self.variables[sink]} = {start}")
        elif not sink.into:
            self.fill(kept, lanes, start, scope)

    def accumulate(self, sink: Sink, value: str, scope: Scope) -> str:
        """Add one point to a partial result; returns the source of the result so far."""
        action = sink.action
        if sink.partial == len(sink.loops):
            self.finish_single(sink, value, scope)
            return value
        kept, _ = self.state(sink)
        free = kept is None and not isinstance(action, Scan)
        old = self.variables[sink] if kept is None else self.get(kept, scope)
        text = scalars.combine(self.monoid(sink), action.dtype, old, value, free)
        if kept is None:
            scope.lines.append(f"{self.variables[sink]} = {text}")
            return self.variables[sink]
        value = self.variable(action.name, text, scope)
        self.put(kept, value, scope)
        return value

    def finish_single(self, sink: Sink, value: str, scope: Scope) -> None:
        """A reduction over one point only."""
        if sink.into:
            self.add_to(self.plan.stored[sink.into], value, sink.action.dtype, scope)
        elif not isinstance(sink.action, Scan):
            self.write(sink.action.name, value, scope)
        self.home[self.plan.stored[sink.action.name]] = scope

    def add_to(self, kept: Stored, value: str, dtype: DType, scope: Scope) -> None:
        old = self.get(kept, scope) if kept.dims else self.scalar(kept)
        self.change(kept, scalars.combine("sum", dtype, old, value, False), scope)

    def finish(self, sink: Sink, scope: Scope) -> None:
        """Store a result after its outermost summed loop."""
        name = sink.action.name
        if isinstance(sink.action, Scan):
            return
        kept, _ = self.state(sink)
        if kept is None and sink.into:
            self.add_to(self.plan.stored[sink.into], self.variables[sink], sink.action.dtype, scope)
        elif kept is None:
            self.write(name, self.variables[sink], scope)
        self.home[self.plan.stored[name]] = scope

    # --- contractions ---

    def contract(self, sink: Sink, contract: Contract, scope: Scope) -> None:
        if sink.call is not None:
            self.library_call(sink, contract, sink.call, scope)
        elif sink.leaf:
            self.rows(sink, contract, scope)
        else:
            self.accumulate(sink, self.term(contract, scope), scope)

    def term(self, contract: Contract, scope: Scope) -> str:
        left, right = (self.value(x, scope, contract.dtype) for x in (contract.left, contract.right))
        return self.multiply(left, right, contract.dtype)

    def rows(self, sink: Sink, contract: Contract, scope: Scope) -> None:
        """Add left * row of right to a row of the product, a few rows of right at a time."""
        *summed, column = sink.leaf
        kept = self.plan.stored[contract.name]
        if not sink.into:
            zero = self.constant(0, contract.dtype)
            self.fill(kept, [column] if column in kept.dims else [], zero, scope)
        opened = [scope]
        for index in summed[:-1]:
            opened.append(self.inside(index, opened[-1]))
        if summed:
            self.unrolled(contract, kept, summed[-1], column, opened[-1])
        else:
            self.row(contract, kept, column, scope, [scope])
        for index in reversed(summed[:-1]):
            inner = opened.pop()
            self.end(index, inner, opened[-1])
        self.home[self.plan.stored[contract.name]] = scope

    def unrolled(
        self, contract: Contract, kept: Stored, index: str, column: str, scope: Scope
    ) -> None:
        length = self.length(index, scope)
        main = hoist(scope, f"{length} - {length} % {UNROLL}", self.names, "main")
        for step, header in ((UNROLL, f"range(0, {main}, {UNROLL})"), (1, f"range({main}, {length})")):
            if step == 1 and length.isdigit() and int(length) % UNROLL == 0:
                continue
            body = Scope(scope)
            first = self.names.fresh(index)
            copies = []
            for ahead in range(step):
                copy = Scope(body, body.lines)
                copy.offsets[index] = hoist(copy, total([first, str(ahead)]), self.names, index)
                copies.append(copy)
            self.row(contract, kept, column, body, copies)
            scope.close(f"for {first} in {header}:", body)

    def row(
        self,
        contract: Contract,
        kept: Stored,
        column: str,
        scope: Scope,
        copies: Sequence[Scope],
    ) -> None:
        """product[column] += the terms of every copy of the scope, in one loop over the column."""
        inner = self.inside(column, scope)
        text = self.get(kept, inner)
        for copy in copies:
            point = Scope(copy, inner.lines)
            point.offsets.update(inner.offsets)
            term = self.term(contract, point)
            text = scalars.combine("sum", contract.dtype, text, term, False)
        self.put(kept, text, inner)
        self.end(column, inner, scope)

    def library_call(
        self, sink: Sink, contract: Contract, call: numba_gemm.Call, scope: Scope
    ) -> None:
        """One BLAS call on whole tiles; its operands are read from the first point of each index."""
        sizes = {i: self.plan.size(i) for i in self.plan.axes}
        corner = Scope(scope, scope.lines)
        corner.offsets.update({i: "0" for i in (*call.m, *call.n, *call.k)})
        parts = []
        for name, rows, columns in (
            (contract.left, call.m, call.k),
            (contract.right, call.k, call.n),
            (contract.name, call.m, call.n),
        ):
            array, position, strides = self.operand(name, corner)
            matrix = numba_gemm.matrix(strides, rows, columns, sizes)
            assert matrix is not None, f"{name} is no matrix"
            parts.append((matrix, array, hoist(scope, position, self.names)))
        (a, *left), (b, *right), (c, *output) = parts
        m, n, k = (product(*(self.length(i, scope) for i in g)) for g in (call.m, call.n, call.k))
        beta = self.constant(1 if sink.into else 0, contract.dtype)
        arguments = [
            a.transposed, b.transposed, m, n, k, *left, a.row_stride, *right, b.row_stride,
            beta, *output, c.row_stride,
        ]  # fmt: skip
        scope.lines.append(f"gemm({', '.join(map(str, arguments))})")
        self.home[self.plan.stored[contract.name]] = scope

    def operand(self, name: str, scope: Scope) -> tuple[str, str, dict[str, int]]:
        """Array, position and strides of a matrix in memory."""
        if not self.plan.pointwise(name):
            kept = self.plan.stored[name]
            return self.array(kept), self.position(kept, scope), self.plan.dense_strides(kept.dims)
        load = self.plan.defined[name]
        assert isinstance(load, Load)
        strides = self.plan.strides(load.access.address, load.indices)
        address = affine(load.access.address, scope, self.plan.extents, self.names)
        known = {i: stride or 0 for i, stride in strides.items()}
        return self.buffers[load.access.buffer], address, known


def _opens(sink: Sink, loop: Loop) -> bool:
    """Whether partial results of the sink exist within this loop but not around it."""
    return sink.partial < len(sink.loops) and sink.path[sink.partial] is loop


def _comment(kernel: Kernel) -> str:
    rules = f"rules: {', '.join(kernel.rules)}\n" if kernel.rules else ""
    return f"{rules}{show(kernel)}"


def _imports(text: str) -> list[str]:
    """Import lines for whatever the text uses of the modules that generated source may call."""
    used = set(re.findall(r"\w+", text))
    lines = ["import numpy as np"]
    for module, names in _CALLABLE.items():
        found = sorted(used & names)
        if found:
            lines.append(f"from eqsat.codegen.{module} import {', '.join(found)}")
    return lines


_CALLABLE: dict[str, frozenset[str]] = {
    "cpu_bits": frozenset({"f16_to_f32", "f32_to_f16", "bf16_to_f32", "f32_to_bf16"}),
    "cpu_math": frozenset(f"{op}_{t}" for op in scalars.FLOAT_FUNCTIONS for t in ("f32", "f64")),
    "numba_blas": frozenset({"gemm"}),
    "numba_runtime": frozenset(scalars.RUNTIME),
}
