"""The Numba target's source: one nopython function that runs a range of a kernel's grid tiles.

Buffers are flat arrays, narrow floats as unsigned integers. The loops come from `plan.py`; each
value is written as far out as its indices allow.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod

from eqsat.codegen.cpu import scalars
from eqsat.graph.dtypes import DType, neutral
from eqsat.kernel.ir import (
    Access,
    Carry,
    Contract,
    Kernel,
    Phase,
    Reduce,
    Scan,
    Store,
    Update,
    operands,
    store_operands,
)
from eqsat.kernel.text import show

from .chunks import live_chunks
from .plan import Commit, Hold, Loop, PhasePlan, Rescale, Sink, Stored, sinks
from .rows import Rows
from .scope import Scope

# Points of the outer and the inner loop of a block where one is read along, and the other stored.
# Measured: 4096 x 4096 floats across on one core in 9 ms, for 68 without; with 8 x 8 in 14 to 50.
BLOCK = (8, 16)
PART = 1 << 13  # points of a sum of float32, from where on it is one of parts
LEAST_PART = 256  # points of the innermost loop of which sums are parts'


def emit(kernel: Kernel, invocations: Mapping[str, str] | None = None) -> str:
    """Source of `kernel(start, stop, *buffers)`, which runs the tiles [start, stop).

    `invocations` gives the `invocation_name` of the spec's operations by name; a contraction whose
    operation is invoked as `cblas_gemm` or `vector_gemm` calls BLAS, or the routine of
    `products.py`, where its operands allow.
    Raises UnsupportedError for an op without a row in `scalars.py`.
    """
    return _Emitter(kernel, invocations or {}).source()


class _Emitter(Rows):
    """The loops of every phase, and what happens at their innermost points."""

    def __init__(self, kernel: Kernel, invocations: Mapping[str, str]) -> None:
        super().__init__(kernel, invocations)
        self.states: dict[str, Stored] = {}
        self.variables: dict[Sink, str] = {}
        self.long: set[Sink] = set()  # sums whose variable is a float64

    # --- the function ---

    def source(self) -> str:
        tile = Scope(self.function)
        for axis in self.kernel.inner:
            self.function.origins[axis.name] = "0"
            if axis.extent == 1:
                self.function.offsets[axis.name] = "0"
        for index in ("", *(axis.name for axis in self.kernel.inner)):
            self.function.origins.update(dict.fromkeys(self.values.begin_with(index), "0"))
        self.open_tile(self.kernel.grid, tile, "tile")
        for phase, plan in zip(self.kernel.phases, self.plan.phases, strict=True):
            self.emit_phase(phase, plan, tile)
        self.function.close("for tile in range(start, stop):", tile)
        body = Scope()
        parameters = ", ".join(("start", "stop", *self.buffers.values()))
        body.close(f"def kernel({parameters}):", self.function)
        text = "\n".join(body.lines)
        comment = [f"# {line}".rstrip() for line in _comment(self.kernel).splitlines()]
        constants = [f"{name} = {value}" for value, name in self.constants.items()]
        imports = _imports("\n".join([*constants, text]))
        return "\n".join([*comment, *imports, "", *constants, "", "", text, ""])

    def emit_phase(self, phase: Phase, plan: PhasePlan, tile: Scope) -> None:
        self.phase = tile
        for carry in plan.carries:
            self.initialise(self.plan.stored[carry.name], carry, tile)
        if not plan.phase.stream:
            self.emit_body(plan.body, tile)
            return
        chunks = ", ".join(live_chunks(self.kernel, phase, tile, self.names))
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
        if (below := self.crossed(loop)) is not None:
            self.emit_blocks(loop, below, scope)
            return
        partial = [s for s in sinks(loop.body) if _opens(s, loop)]
        for sink in partial:
            self.begin(sink, scope)
        guarded = self.guarded(loop, scope)
        apart = [s for s in loop.body if isinstance(s, Sink) and s in self.long]
        long = bool(apart) and self.values.size(loop.index) >= LEAST_PART
        if long and not any(self.guards(access, at) for access, at in guarded):
            self.emit_parts(loop, apart, scope)
        else:
            for inside in self.ranges(loop.index, scope, guarded):
                self.emit_body(loop.body, inside)
        for sink in partial:
            self.finish(sink, scope)

    def emit_parts(self, loop: Loop, apart: Sequence[Sink], scope: Scope) -> None:
        """A loop in parts, of each of which sums are added to that of all."""
        around = Scope(scope)
        wholes = {sink: self.variables[sink] for sink in apart}
        for sink in apart:
            self.variables[sink] = part = self.names.fresh(sink.action.name)
            around.lines.append(f"{part} = {self.constant(0, sink.action.dtype.compute)}")
        inner = Scope(around)
        first, step, point = (self.names.fresh(loop.index) for _ in range(3))
        inner.offsets[loop.index] = point
        inner.lines.append(f"{point} = {first} + {step}")
        self.emit_body(loop.body, inner)
        length = self.length(loop.index, scope)
        around.close(f"for {step} in range(min({PART}, {length} - {first})):", inner)
        for sink, whole in wholes.items():
            around.lines.append(f"{whole} += {self.variables[sink]}")
        scope.close(f"for {first} in range(0, {length}, {PART}):", around)
        self.variables |= wholes

    def guarded(self, loop: Loop, scope: Scope) -> list[tuple[Access, Scope]]:
        """What the sinks of an innermost loop read and write, where their order is free."""
        found: list[tuple[Access, Scope]] = []
        for sink in loop.body:
            if not isinstance(sink, Sink) or isinstance(sink.action, Scan):
                return []
            if sink.leaf or sink.call:
                return []
            found += [(access, scope) for access in self.accessed(sink.action)]
        return found

    def crossed(self, loop: Loop) -> Loop | None:
        """The loop in this one where all that they do is to store, along the inner one's points,
        what lies along the outer one's; in whole blocks.
        """
        if len(loop.body) != 1 or not isinstance(below := loop.body[0], Loop):
            return None
        pairs = zip((loop.index, below.index), BLOCK, strict=True)
        whole = all(self.values.whole(i) and self.values.size(i) % n == 0 for i, n in pairs)
        stores = [s.action for s in below.body if isinstance(s, Sink)]
        if not whole or len(stores) < len(below.body):
            return None
        crosses = False
        for store in stores:
            if not isinstance(store, Store):
                return None
            for table in self.values.accesses(store_operands(store), store.access):
                along, across = (abs(table.get(i) or 0) for i in (loop.index, below.index))
                crosses |= along == 1 and across >= max(BLOCK)
        return below if crosses else None

    def emit_blocks(self, loop: Loop, below: Loop, scope: Scope) -> None:
        """Two loops in blocks, in which the lines that are read and written stay near."""
        across = Scope(scope)
        down = Scope(across)
        rows = Scope(down)
        columns = Scope(rows)
        headers: list[str] = []
        parts = ((loop.index, across, rows), (below.index, down, columns))
        for (index, around, inside), size in zip(parts, BLOCK, strict=True):
            first, step, point = (self.names.fresh(index) for _ in range(3))
            inside.offsets[index] = point
            inside.lines.append(f"{point} = {first} + {step}")
            headers += [
                f"for {first} in range(0, {self.length(index, around)}, {size}):",
                f"for {step} in range({size}):",
            ]
        self.emit_body(below.body, columns)
        rows.close(headers[3], columns)
        down.close(headers[1], rows)
        across.close(headers[2], down)
        scope.close(headers[0], across)

    def initialise(self, kept: Stored, carry: Carry, scope: Scope) -> None:
        start = self.constant(neutral(carry.monoid, carry.dtype), carry.dtype.compute)
        if kept.dims:
            self.fill(kept, kept.dims, start, scope)
        else:
            scope.lines.append(f"{self.scalar(kept)} = {start}")

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
                definition = self.values.defined[carry]
                factor = self.value(scale, scope, definition.dtype)
                old = self.get(kept, scope) if kept.dims else self.scalar(kept)
                self.change(kept, self.multiply(old, factor, definition.dtype), scope)
            case Update():
                self.update(sink.action, scope)
            case Scan(dtype=dtype, name=name):
                value, *factor = (self.value(o, scope, dtype) for o in operands(sink.action))
                state = self.accumulate(sink, value, scope, *factor)
                self.write(name, state, scope)
            case Reduce(argument=argument, dtype=dtype):
                self.accumulate(sink, self.value(argument, scope, dtype), scope)
            case Contract():
                self.contract(sink, sink.action, scope)

    def update(self, update: Update, scope: Scope) -> None:
        old = self.value(update.carry, scope)
        if update.scale:
            old = self.multiply(old, self.value(update.scale, scope, update.dtype), update.dtype)
        chunk = self.value(update.chunk, scope, update.dtype)
        self.write(
            update.name, scalars.combine(update.monoid, update.dtype, old, chunk, False), scope
        )

    def store(self, store: Store, scope: Scope) -> None:
        source = self.values.defined[store.value].dtype
        target = self.kernel.buffer(store.access.buffer)
        value = scalars.store(self.value(store.value, scope), source, target.dtype)
        address, conditions = self.locate(store.access, scope)
        buffer = self.buffers[target.name]
        if store.monoid:
            old = f"peek({buffer}, {address})"
            value = scalars.combine(store.monoid, target.dtype, old, value, False)
        line = f"poke({buffer}, {address}, {value})"
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
        start = self.constant(neutral(self.monoid(sink), action.dtype), action.dtype.compute)
        if kept is None:
            self.variables[sink] = self.names.fresh(action.name)
            if self.is_long(sink):
                self.long.add(sink)
                start = "0.0"
            scope.lines.append(f"{self.variables[sink]} = {start}")
        elif not sink.into:
            self.fill(kept, lanes, start, scope)

    def is_long(self, sink: Sink) -> bool:
        """Whether a sum of float32 in a variable has so many points that each would be rounded to
        what the sum is by then: like NumPy's, it is one of parts.
        """
        action = sink.action
        if isinstance(action, Scan) or self.monoid(sink) != "sum" or sink.leaf or sink.call:
            return False
        count = prod(self.values.size(index) for index in sink.loops[sink.partial :])
        return action.dtype.compute.name == "float32" and count > PART

    def accumulate(self, sink: Sink, value: str, scope: Scope, factor: str = "") -> str:
        """Add one point to a partial result, which a factor scales before; the result so far."""
        action = sink.action
        if sink.partial == len(sink.loops):
            self.finish_single(sink, value, scope)
            return value
        kept, _ = self.state(sink)
        free = kept is None and not isinstance(action, Scan)
        old = self.variables[sink] if kept is None else self.get(kept, scope)
        old = self.multiply(old, factor, action.dtype) if factor else old
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
        found = self.variables.get(sink, "")
        found = f"np.float32({found})" if sink in self.long else found
        if kept is None and sink.into:
            self.add_to(self.plan.stored[sink.into], found, sink.action.dtype, scope)
        elif kept is None:
            self.write(name, found, scope)
        self.home[self.plan.stored[name]] = scope

    # --- contractions ---

    def contract(self, sink: Sink, contract: Contract, scope: Scope) -> None:
        if sink.call is not None:
            self.library_call(sink, contract, sink.call, scope)
        elif sink.leaf:
            self.rows(sink, contract, scope)
        else:
            self.accumulate(sink, self.term(contract, scope), scope)


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
            lines.append(f"from eqsat.codegen.cpu.{module} import {', '.join(found)}")
    return lines


_CALLABLE: dict[str, frozenset[str]] = {
    "bits": scalars.CONVERSIONS,
    "math": frozenset(f"{op}_{t}" for op in scalars.FLOAT_FUNCTIONS for t in ("f32", "f64")),
    "blas": frozenset({"gemm"}),
    "products": frozenset({"beginnings", "pack_left", "product_routine", "windowed_routine"}),
    "runtime": frozenset(scalars.RUNTIME),
}
