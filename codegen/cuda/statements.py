"""The statements and stores of one phase body, as loops over each thread's registers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext

from eqsat.graph.dtypes import DType, float64
from eqsat.kernel.ir import (
    Access,
    Contract,
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
    store_operands,
)

from .copy.computed import compute_tile
from .copy.tile_copy import copy_chunk
from .copy.tiles import fetch, own_reader, tile_for
from .place.access import vector_along
from .place.block import Block
from .place.distribution import WARP
from .place.nearly import NEARLY, rounded_values
from .place.placement import (
    CHAIN,
    COMPUTED,
    FETCH,
    REGISTERS,
    SHARED,
    is_rounded_later,
    passes_on,
    store_indices,
)
from .place.roles import walked
from .place.tile import Point, constant
from .place.warpgroup_operations import WarpgroupOperation
from .prelude.math import cast, combine, identity, literal, register_type
from .products.contract import Accumulator, contract, monoid_of, reduce_outer
from .products.warpgroup import rest_of
from .values import masks
from .values.angles import Angles
from .values.anywhere import anywhere
from .values.box_store import box_store
from .values.collective import reduce_threads, scan
from .values.exponents import exp_of_difference
from .values.loads import fields, load_fields, load_vector, points_of_late
from .values.packs import store_points
from .values.patch import Patch, find_exchanges
from .values.scatter import combine_stored
from .values.stencils import find_stencils, load_stencil
from .values.windows import load_windows, shared_windows

Elementwise = Map | Update | Reduce

MOST_HELD = 64  # values that a thread has loaded before it uses the first


class Statements:
    """Writes one run of a phase's body; neighbouring elementwise statements share a loop."""

    def __init__(
        self,
        block: Block,
        phase: Phase,
        ring: set[str] | None = None,
        partial: Mapping[str, str] | None = None,
        lagging: bool = False,
    ) -> None:
        self.block = block
        self.out = block.out
        self.phase = phase
        self.ring = ring or set()
        self.copies_alone = not block.has_producer  # whoever waits for copies waits for these
        self.partial = partial or {}
        self.lagging = lagging  # products of this run may still be under way after it
        self.issued = False
        self.let_go: Callable[[], None] = lambda: None  # of slots, once products are waited for
        self.pending: list[Elementwise] = []
        self.deferred: dict[str, Contract | Reduce] = {}
        self.in_place = {s.name for s in phase.body if isinstance(s, Update) and self.fits(s)}
        self.unrounded = {
            s.name for s in phase.body if is_rounded_later(block.placement, block.kernel, s)
        }
        many = rounded_values(block.placement)  # of one value, a row's say, time does not matter
        self.rounded = {n for n in many if block.register_count(block.placement.indices[n]) > 1}
        self.masks = masks.find_masks(block, phase)
        self.conditions = masks.find_conditions(block, phase, self.masks)
        self.exchanges = find_exchanges(block, phase)
        self.patches: int | None = None  # where in shared memory patches lie
        self.patched = WARP  # threads that have read there together
        self.late: dict[str, Load] = {}
        self.taken: set[str] = set()  # loads that are done, beside others of the same records
        self.stencils = find_stencils(block.kernel, self.plain_loads())

    def emit(self) -> None:
        for s in self.phase.body:
            shared = self.block.placement.where[s.name] == SHARED
            if isinstance(s, Load) and shared and not s.access.coordinates:
                self.load_tile(s)
        for s in self.order():
            self.statement(s)
        self.flush()
        self.settle()
        for store in self.phase.stores:
            self.store(store)

    def order(self) -> Sequence[Statement]:
        """The body's statements, each after what it reads."""
        return self.phase.body

    def copied_carries(self) -> list[tuple[str, str]]:
        """(carry, update) of those whose next value has registers of its own."""
        updates = (s for s in self.phase.body if isinstance(s, Update))
        return [(s.carry, s.name) for s in updates if s.name not in self.in_place]

    def fits(self, update: Update) -> bool:
        """Whether nothing reads the carry once it is updated."""
        after = self.phase.body[self.phase.body.index(update) + 1 :]
        read = {name for s in after for name in operands(s)}
        read |= {name for store in self.phase.stores for name in store_operands(store)}
        chunk = self.block.placement.statements.get(update.chunk)
        if chunk is not None and self.block.placement.is_product(chunk):
            read |= set(self.block.placement.factors(chunk))
        return update.carry not in read and update.scale != update.carry

    # one statement

    def statement(self, s: Statement) -> None:
        block = self.block
        if block.placement.where[s.name] == CHAIN or (isinstance(s, Map) and s.name in self.ring):
            return  # other threads make what is in the ring
        match s:
            case Map() if block.placement.where[s.name] == COMPUTED:
                self.flush()
                compute_tile(block, s, self.expression)
            case Literal(dtype=dtype, value=value):
                block.readers[s.name] = constant(literal(dtype, value))
            case Position():
                block.readers[s.name] = lambda point: block.position(s, point)
            case Load() if block.placement.where[s.name] == FETCH:
                block.readers[s.name] = lambda point: fetch(block, s, point)
            case Load() if block.placement.where[s.name] == SHARED:
                if s.access.coordinates:
                    self.flush()
                    self.load_tile(s)
            case Load():
                if {c.value for c in s.access.coordinates} & {p.name for p in self.pending}:
                    self.flush()
                self.load(s)
            case Map() if s.name in self.masks:
                self.mask(s)
            case Map() if s.name in self.conditions:
                margins = self.conditions[s.name]
                block.readers[s.name] = lambda point: f"({masks.holds(block, margins, point)})"
            case Map() if passes_on(block.placement, s, self.late):
                one = s.arguments[0]
                self.late[s.name], block.readers[s.name] = self.late[one], block.readers[one]
            case Map() | Reduce() if s.name not in block.placement.outer:
                self.add(s)
            case Scan():
                self.flush()
                block.before_reading([s.argument])
                self.declare(s.name)
                scan(block, s)
            case Contract() | Reduce():
                self.product(s)
            case Update():
                self.update(s)

    def declare(self, name: str, initial: str = "") -> None:
        """The registers of a value, and how to read them."""
        block = self.block
        kind, array = register_type(block.placement.dtypes[name]), block.value(name)
        count = block.register_count(block.placement.indices[name])
        self.out.line(f"{kind} {array}[{count}];")
        if initial:
            self.out.line("#pragma unroll")
            self.out.line(f"for (int e = 0; e < {count}; ++e) {array}[e] = {initial};")
        block.readers[name] = lambda point: block.element(name, point)

    # memory

    def load_tile(self, s: Load) -> None:
        block = self.block
        if s.name not in block.tiles:
            block.tiles[s.name] = tile_for(block, s)
        tile = block.tiles[s.name]
        if s.name not in self.ring:
            if block.tiles_read:
                block.barrier()
            block.before_reading(operands(s))
            copy_chunk(block, s, tile, self.copies_alone and not self.ring)
        block.readers[s.name] = own_reader(block, s, tile)

    def vector(self, access: Access, indices: list[str]) -> tuple[str, int]:
        """The index along which a thread's registers are contiguous in memory, and how many."""
        block = self.block
        buffer, held = block.kernel.buffer(access.buffer), block.distribution.vector
        return vector_along(access, indices, buffer, block.axes, block.placement.indices, held)

    def patch(self, access: Access, indices: list[str]) -> Patch | None:
        """The patches of an access that has any: all those of the phase lie in the same place."""
        block = self.block
        exchange = self.exchanges.get((access, tuple(indices)))
        if exchange is None:
            return None
        size = max(exchange.bytes for exchange in self.exchanges.values())
        used = self.patches is None and (block.tiles_read or block.tiles_written)
        if not block.has_producer and (used or exchange.members < self.patched):
            block.barrier()  # what lay there before
        if self.patches is None:
            self.patches = block.allocate(size * block.turns * block.kernel.threads // WARP)
        self.patched = exchange.members
        block.tiles_read |= not block.has_producer
        return Patch(block, exchange, access, indices, self.patches, size)

    def plain_loads(self) -> Iterator[Load]:
        """Those that read each element into registers of their own."""
        for s in self.phase.body:
            if isinstance(s, Load) and self.block.placement.where[s.name] == REGISTERS:
                late = self.block.is_read_late(self.phase, s)
                if not late and s.name not in self.taken and not shared_windows(self.block, s):
                    yield s

    def load(self, s: Load) -> None:
        block, out = self.block, self.out
        block.before_reading(operands(s))
        if block.is_read_late(self.phase, s):
            self.late[s.name] = s
            block.readers[s.name] = lambda at: block.loaded(s, at, block.present(s, at))
            return
        if found := shared_windows(self.block, s):
            block.readers[s.name] = load_windows(block, s, found)
            return
        if s.name in self.stencils and s.name not in self.taken:
            self.taken |= {*self.stencils[s.name].starts}
            block.readers |= load_stencil(block, self.stencils[s.name])
        if s.name in self.taken:
            return
        found, width = fields(block.kernel, self.plain_loads(), s)
        if len(found) > 1:
            self.taken |= {one.name for one in found.values()}
            for one in found.values():
                self.declare(one.name)
            load_fields(block, found, width)
            return
        self.declare(s.name)
        if not s.fill and (patch := self.patch(s.access, block.ordered(s.indices))):
            patch.load(s)
            return
        if moved := anywhere(block, s):
            moved.load(s)
            return
        found = {self.vector(access, block.ordered(s.indices)) for access in s.accesses}
        index, width = found.pop() if len(found) == 1 else ("", 1)
        steps = {index: width}
        with block.place_chosen(s, steps), block.points(s.indices, steps=steps) as point:
            condition = block.present(s, point)
            if width == 1:
                out.line(f"{block.element(s.name, point)} = {block.loaded(s, point, condition)};")
            else:
                with out.block():
                    load_vector(
                        block, s, point, condition, width,
                        lambda e: block.element(s.name, block.shifted(point, index, e)),
                    )  # fmt: skip
        few = block.register_count(s.indices) <= MOST_HELD
        if condition and few and not self.phase.stream:  # else each waits where it is used
            out.line(f"hold({block.value(s.name)});")

    def store(self, store: Store) -> None:
        block = self.block
        block.before_reading(store_operands(store))
        indices = block.ordered(store_indices(block.placement, store))
        buffer = block.kernel.buffer(store.access.buffer)
        if store.monoid:
            vector = self.vector(store.access, indices)
            combine_stored(block, store, lambda at: self.stored(store, buffer.dtype, at), vector)
            return
        if patch := box_store(block, store, indices) or self.patch(store.access, indices):
            patch.store(store, lambda point: self.stored(store, buffer.dtype, point))
            return
        if moved := anywhere(block, store):
            moved.store(store, lambda point: self.stored(store, buffer.dtype, point))
            return
        vector = self.vector(store.access, indices)
        store_points(block, store, vector, lambda at: self.stored(store, buffer.dtype, at))

    def stored(self, store: Store, dtype: DType, point: Point) -> str:
        """The register value that is rounded as it is stored, where that takes one rounding."""
        source = self.block.placement.dtypes[store.value]
        text = self.block.read(store.value, point)
        direct = source == float64 and dtype.name == "float16"
        return text if direct else cast(source, dtype.compute, text)

    def mask(self, s: Map) -> None:
        """Overwrite the product in the chunks that the mask cuts."""
        self.flush()
        self.block.aliases[s.name] = s.arguments[1]
        self.block.readers[s.name] = self.block.element_reader(s.name)
        masks.apply_mask(self.block, s, self.masks[s.name])

    # elementwise statements and local reductions

    def add(self, s: Elementwise) -> None:
        if self.goes_before(s):
            group, self.pending = self.pending, [s]
            self.flush()
            self.pending = group
            return
        reduced = {p.name for p in self.pending if isinstance(p, Reduce)}
        if self.pending and (
            self.span(s) != self.span(self.pending[0]) or reduced & {*operands(s)}
        ):
            self.flush()
        self.pending.append(s)

    def goes_before(self, s: Elementwise) -> bool:
        """Whether a value of fewer points needs nothing that waits, and need not part its loop."""
        waiting = {p.name for p in self.pending}
        fewer = any(self.span(s) < self.span(p) for p in self.pending[:1])
        return fewer and isinstance(s, Map) and not waiting & {*operands(s)}

    def span(self, s: Elementwise) -> frozenset[str]:
        """The indices of which a thread has several points."""
        return frozenset(i for i in walked(s) if self.block.distribution.registers(i) > 1)

    def flush(self) -> None:
        """Write the waiting statements as one loop, then what they leave to other threads."""
        group, self.pending = self.pending, []
        if not group:
            return
        block, names = self.block, {s.name for s in group}
        block.before_reading([name for s in group for name in operands(s)])
        local = {
            s.name
            for s in group
            if isinstance(s, Map) and set(block.placement.users[s.name]) <= names
        }
        for s in group:
            if isinstance(s, Reduce):
                self.declare(s.name, identity(s.monoid, s.dtype))
            elif isinstance(s, Update) and s.name in self.in_place:
                block.aliases[s.name] = s.carry
                block.readers[s.name] = block.element_reader(s.name)
            elif s.name not in local:
                self.declare(s.name)
        reading = {name for s in group for name in operands(s)}
        late, read = reading & self.late.keys(), self.conditions.keys() & reading
        if read:  # most chunks hold throughout what is asked of each of their points
            margins = [margin for name in sorted(read) for margin in self.conditions[name]]
            asked = {name: block.readers[name] for name in read}
            block.readers |= dict.fromkeys(read, constant("true"))
            throughout = masks.holds_throughout(block, margins)
            with self.out.block(f"if ({throughout})"):
                self.loop(group, local, late)
            block.readers |= asked
        with self.out.block("else") if read else nullcontext():
            self.loop(group, local, late)
        for s in group:
            if isinstance(s, Reduce):
                self.finish(s)

    def loop(self, group: Sequence[Elementwise], local: set[str], late: set[str]) -> None:
        """The statements of a group at each point."""
        block, loads = self.block, {name: self.late[name] for name in sorted(late)}
        every = {i for s in group for i in walked(s)}
        with points_of_late(block, every, loads, self.vector) as point:
            angles = Angles(block, group)
            names = {s.name for s in group}
            for s in group:
                text = angles.value(s, point)
                if s.name in self.rounded:
                    text = text or exp_of_difference(block, s, point, names)
                text = text or self.expression(s, point)
                if s.name in local:
                    variable = block.value(s.name)
                    self.out.line(f"const {register_type(s.dtype)} {variable} = {text};")
                    block.readers[s.name] = constant(variable)
                else:
                    self.out.line(f"{block.element(s.name, point)} = {text};")

    def expression(self, s: Elementwise, point: Point) -> str:
        block = self.block
        if isinstance(s, Map):
            if s.name in self.unrounded:
                return block.read(s.arguments[0], point)
            return block.mapped(s, point, NEARLY.get(s.op, "") if s.name in self.rounded else "")
        if isinstance(s, Reduce):
            value = block.converted(s.argument, s.dtype, point)
            valid = " && ".join(block.valid(s.over, point, by_vector=True))
            if valid:
                value = f"({valid} ? {value} : {identity(s.monoid, s.dtype)})"
            return combine(s.monoid, block.element(s.name, point), value)
        old = block.converted(s.carry, s.dtype, point)
        if s.scale:
            old = f"wrapping_multiply({old}, {block.converted(s.scale, s.dtype, point)})"
        return combine(s.monoid, old, block.converted(s.chunk, s.dtype, point))

    def finish(self, s: Reduce | Contract) -> None:
        """Combine over the threads that share the reduced indices, unless that can wait."""
        if self.block.placement.is_whole(s) or s.name in self.partial.values():
            return
        reduce_threads(self.block, s.name, s.indices, s.over, monoid_of(s), s.dtype)

    # contractions and carries

    def product(self, s: Contract | Reduce) -> None:
        """What results share factors of: straight into a carry, or into registers of its own."""
        if self.accumulates(s):
            self.deferred[s.name] = s
            return
        self.flush()
        if isinstance(s, Contract) and s.term_index:
            self.multiply_terms(s)
        else:
            self.declare(s.name, identity(monoid_of(s), s.dtype))
            self.contract(s, s)
            self.settle(wait=True)
        self.finish(s)

    def accumulates(self, c: Contract | Reduce) -> bool:
        """Whether it goes straight into a carry: an update by the same monoid alone reads it."""
        updates = [s for s in self.phase.body if isinstance(s, Update) and s.chunk == c.name]
        if not updates or self.block.placement.users[c.name] != (updates[0].name,):
            return False
        update = updates[0]
        return (
            not (isinstance(c, Contract) and c.term_index)
            and (self.block.placement.is_whole(c) or c.name in self.partial.values())
            and update.monoid == monoid_of(c)
            and (update.monoid == "sum" or not update.scale)
            and set(update.indices) == set(c.indices)
            and update.dtype.compute == c.dtype.compute
        )

    def update(self, s: Update) -> None:
        c = self.deferred.get(s.chunk)
        if c is None:
            self.add(s)
            return
        self.flush()
        block = self.block
        if s.name in self.in_place:
            block.aliases[s.name] = s.carry
            block.readers[s.name] = block.element_reader(s.name)
        else:
            self.declare(s.name)
        if s.scale or s.name not in self.in_place:
            block.before_reading([s.scale])
            with block.points(s.indices) as point:
                old = block.read(s.carry, point)
                if s.scale:
                    old = f"wrapping_multiply({old}, {block.converted(s.scale, s.dtype, point)})"
                self.out.line(f"{block.element(s.name, point)} = {old};")
        self.contract(c, s)
        if block.placement.users[s.name]:
            self.settle(wait=True)

    def contract(self, c: Contract | Reduce, target: Contract | Reduce | Update) -> None:
        if isinstance(c, Reduce):
            reduce_outer(self.block, self.block.placement.outer[c.name], self.accumulator(target))
            return
        matrix = self.block.placement.matrices.get(c.name)
        contract(self.block, c, self.accumulator(target))
        if matrix is not None and isinstance(matrix.operation, WarpgroupOperation):
            self.issued |= not matrix.partial  # partial sums are waited for

    def multiply_terms(self, c: Contract) -> None:
        """The products of first terms and those of others, apart until the chunk's are done: where
        the former are not finite they are the whole.
        """
        self.declare(c.name)
        out, result = self.out, self.block.value(c.name)
        count, rest = self.block.register_count(c.indices), rest_of(result)
        out.line(f"float {rest}[{count}];")
        self.contract(c, c)
        self.settle(wait=True)
        out.line("#pragma unroll")
        with out.block(f"for (int e = 0; e < {count}; ++e)"):
            out.line(f"if (is_finite({result}[e])) {result}[e] += {rest}[e];")

    def settle(self, wait: bool = False) -> None:
        """Close the group of the asynchronous products issued so far, and wait for them."""
        if self.issued:
            self.out.line("products_commit();")
            if wait or not self.lagging:
                self.out.line("products_wait<0>();")
                self.let_go()
        self.issued = False

    def accumulator(self, s: Contract | Reduce | Update) -> Accumulator:
        return Accumulator(self.block.value(self.block.aliases.get(s.name, s.name)), s.indices)
