"""Kernel IR: grid axes, phases that are straight-line or stream over serial axes, tile values.

Every value of a kernel is a *tile* over named indices. An index is a grid axis (parallel, cut into
tiles), a stream axis (serial, cut into chunks) or an inner axis (wholly inside each tile). A tile
is defined on valid points only: at the edge of an extent it is smaller, and no value exists beyond.

Semantics, for every grid tile: the phases in order; a phase without stream runs its body once, and
its values stay visible in later phases; a phase with a stream sets its carries to their initial
value, runs the body once per chunk in order, and then the carries are visible in later phases under
their own names. Inside the body a carry's name is its value before the chunk, the name of its
`Update` the value after it. Stores of a phase run after each run of its body.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from math import prod

from eqsat.graph.dtypes import DType
from eqsat.graph.index import Affine

Number = bool | int | float

IDENTITY: dict[str, str] = {"sum": "zero", "prod": "one", "max": "lowest", "min": "highest"}


@dataclass(frozen=True)
class Buffer:
    """A row-major contiguous array in device memory. `role` is input, output or temporary; zeroed
    is a temporary that is zero before every launch, which leaves it so.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    role: str

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.size * self.dtype.itemsize


@dataclass(frozen=True)
class Axis:
    """A loop index: `extent` points, `tile` of them at a time."""

    name: str
    extent: int
    tile: int

    @property
    def count(self) -> int:
        """Number of tiles."""
        return -(-self.extent // self.tile)


@dataclass(frozen=True)
class Guard:
    """lower <= expression < upper"""

    expression: Affine
    lower: int
    upper: int

    def __str__(self) -> str:
        return f"{self.lower} <= {self.expression} < {self.upper}"

    def contains(self, span: tuple[int, int]) -> bool:
        """Whether it holds for all values from the first to the last, as of `index.bounds`."""
        return self.lower <= span[0] and span[1] < self.upper


@dataclass(frozen=True)
class Coordinate:
    """A data-dependent part of an address: value * stride, valid while 0 <= value < extent."""

    value: str
    stride: int
    extent: int


@dataclass(frozen=True)
class Access:
    """Elements of a buffer: flat element address, and when the element exists.

    `address` is affine in the indices (with floor-division and modulo atoms for reshapes); the
    coefficient of an index is its stride in elements. Where a guard or a coordinate's range fails,
    a load yields its fill and a store is skipped; such an address is never dereferenced.
    """

    buffer: str
    address: Affine
    guards: tuple[Guard, ...] = ()
    coordinates: tuple[Coordinate, ...] = ()


@dataclass(frozen=True)
class Load:
    """Read a tile. `memory` names the memory domain that holds it: registers, or shared. What lies
    in pieces is read by the first of several accesses that has the element: `access`, then `rest`;
    the first guard of each tells where its piece is.
    """

    name: str
    dtype: DType
    indices: tuple[str, ...]
    access: Access
    fill: Number = 0
    memory: str = "registers"
    rest: tuple[Access, ...] = ()

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Those of all pieces."""
        return self.access, *self.rest


@dataclass(frozen=True)
class Literal:
    """A number."""

    name: str
    dtype: DType
    value: Number
    indices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Position:
    """The value of an index expression at each point (iota)."""

    name: str
    dtype: DType
    indices: tuple[str, ...]
    expression: Affine


@dataclass(frozen=True)
class Map:
    """An elementwise operation of the graph's op table; operands broadcast by index name.

    16-bit floats are computed in float32 and rounded only by a `cast` or a store. `cast` converts
    to `dtype`. Arguments are names of values. Two operations exist in kernels only:
    `exp_difference(a, b)` = exp(a - b), which is 0 where both are -inf; with a third argument, a
    positive number c, exp(c a - c b). `one_plus_erf(a)` = 1 + erf(a).
    """

    name: str
    dtype: DType
    indices: tuple[str, ...]
    op: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Reduce:
    """Reduce one tile over the indices `over`, all of their points that lie in the tile."""

    name: str
    dtype: DType
    indices: tuple[str, ...]
    monoid: str
    over: tuple[str, ...]
    argument: str


@dataclass(frozen=True)
class Contract:
    """sum over `over` of left * right, both converted to `dtype` first.

    `operation` names the spec's operation that computes it; empty: scalar multiply and add. Where
    `narrow` names a float, float32 factors are split in `terms` of it, as `eqsat.layout.narrow`
    says. With a `term_index`, one of `over`, those that have it are split already: it numbers the
    terms of both.
    """

    name: str
    dtype: DType
    indices: tuple[str, ...]
    over: tuple[str, ...]
    left: str
    right: str
    operation: str = ""
    narrow: str = ""
    terms: int = 1
    term_index: str = ""


@dataclass(frozen=True)
class Scan:
    """Inclusive prefix reduction of a tile along `over`, or h = factor * h + argument from 0."""

    name: str
    dtype: DType
    indices: tuple[str, ...]
    monoid: str
    over: str
    argument: str
    factor: str = ""


@dataclass(frozen=True)
class Update:
    """The next value of a carry: monoid(carry * scale, chunk); `scale` may be empty (one)."""

    name: str
    dtype: DType
    indices: tuple[str, ...]
    carry: str
    monoid: str
    chunk: str
    scale: str = ""


Statement = Load | Literal | Position | Map | Reduce | Scan | Contract | Update


@dataclass(frozen=True)
class Carry:
    """A value carried from chunk to chunk of a stream.

    Starts at the identity of `monoid`. Two partial states of the stream combine as
    monoid(a, b); with a `pivot` (another carry, a running maximum m) as
    a * r(m_a, m) + b * r(m_b, m) by the rescale r of the carry `law` of that name, 0 for the pivot
    of no point; that of a mean shifts a total instead (see eqsat.carry_law).
    """

    name: str
    dtype: DType
    indices: tuple[str, ...]
    monoid: str
    pivot: str = ""
    law: str = ""


@dataclass(frozen=True)
class Store:
    """Write a value to memory, converted to the buffer's dtype.

    With a `monoid` it is combined with what lies there, in any order where several points, of this
    tile or of others, have one address. `memory` other than device memory holds what the tiles of a
    group that stays combine, until its last one (`Kernel.resident`).
    """

    access: Access
    value: str
    monoid: str = ""
    memory: str = ""


@dataclass(frozen=True)
class Phase:
    """Straight-line when `stream` is empty, otherwise a loop over chunks of the stream's axes.

    `stages` chunks of the loads kept in shared memory are in flight at a time.
    """

    stream: tuple[Axis, ...]
    body: tuple[Statement, ...]
    carries: tuple[Carry, ...] = ()
    stores: tuple[Store, ...] = ()
    stages: int = 1


@dataclass(frozen=True)
class Kernel:
    """One launch. `inner` are the indices that lie wholly inside every tile (tile == extent).

    `buffers` are the parameters in order. `threads` is the size of a block on a GPU, 1 elsewhere;
    so many blocks of a `cluster` compute a tile together. `beside`: so many blocks that a processor
    is to hold at once, if registers are shared out so; 0: as many as there is room for.
    So many blocks of a cluster copy for each other what their tiles share: `multicast`; where the
    tiles along an axis are no whole runs of as many, the last of them is computed again: `repeats`
    names the axis. The tiles that are no whole wave of so many `blocks` are in so many parts of
    their chunks: `stream_k`. `band`: how many tiles of the last but one axis that is cut come
    before the next of the last, or, `across`, of the last before the next of the one before it;
    `backwards`: the last begins with its last tile; `uneven`: tiles get shorter in this order, in
    which a band is of tiles of all axes but the last. So many groups a processor stay and take one
    tile after the other: `resident`; 0: each takes one. It `joins` what another left in parts.
    """

    name: str
    buffers: tuple[Buffer, ...]
    grid: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    phases: tuple[Phase, ...]
    threads: int = 1
    spec: str = ""
    rules: tuple[str, ...] = ()
    band: int = 1
    across: bool = False
    backwards: bool = False
    uneven: bool = False
    resident: int = 0
    cluster: int = 1
    beside: int = 0
    multicast: int = 1
    repeats: str = ""
    stream_k: int = 0
    blocks: int = 0
    joins: bool = False

    @property
    def workspace(self) -> tuple[Buffer, ...]:
        """The last parameters of a kernel whose blocks have parts of tiles: the sums that they
        leave for each other, and what says that they are there.
        """
        return self.buffers[-2:] if self.stream_k else ()

    @property
    def tile_threads(self) -> int:
        """Threads that compute a tile: of all blocks of a cluster."""
        return self.threads * self.cluster

    @property
    def tiles(self) -> int:
        """Number of grid tiles."""
        return prod(axis.count for axis in self.grid)

    @property
    def cut(self) -> list[Axis]:
        """The axes of the grid that have several tiles; that along which bands lie is the last but
        one.
        """
        found = [axis for axis in self.grid if axis.count > 1]
        return [*found[:-2], *reversed(found[-2:])] if self.across else found

    def turns(self, axis: Axis) -> int:
        """Number of tiles that are computed along an axis of the grid, repeated ones too."""
        run = self.multicast if axis.name == self.repeats else 1
        return -(-axis.count // run) * run

    @property
    def all_turns(self) -> int:
        """Number of tiles that are computed, repeated ones too."""
        return prod(self.turns(axis) for axis in self.grid)

    def axes(self) -> dict[str, Axis]:
        """Every index of the kernel by name."""
        streams = [axis for phase in self.phases for axis in phase.stream]
        return {axis.name: axis for axis in (*self.grid, *self.inner, *streams)}

    @property
    def read(self) -> frozenset[str]:
        """The buffers that it reads."""
        loads = (s for s in self.statements() if isinstance(s, Load))
        return frozenset(access.buffer for load in loads for access in load.accesses)

    @property
    def written(self) -> frozenset[str]:
        """The buffers that it stores to."""
        return frozenset(s.access.buffer for phase in self.phases for s in phase.stores)

    def statements(self) -> Iterator[Statement]:
        """Every statement, in order."""
        for phase in self.phases:
            yield from phase.body

    def buffer(self, name: str) -> Buffer:
        """The parameter of that name."""
        return next(buffer for buffer in self.buffers if buffer.name == name)

    @property
    def fingerprint(self) -> str:
        """sha256 over everything that the emitted code depends on."""
        return hashlib.sha256(repr(self).encode()).hexdigest()


def operands(statement: Statement) -> tuple[str, ...]:
    """Names of the values that a statement reads."""
    match statement:
        case Load(access=access):
            return tuple(coordinate.value for coordinate in access.coordinates)
        case Map(arguments=arguments):
            return arguments
        case Reduce(argument=argument):
            return (argument,)
        case Scan(argument=argument, factor=factor):
            return (argument, factor) if factor else (argument,)
        case Contract(left=left, right=right):
            return (left, right)
        case Update(carry=carry, chunk=chunk, scale=scale):
            return (carry, chunk, scale) if scale else (carry, chunk)
        case _:
            return ()


def store_operands(store: Store) -> tuple[str, ...]:
    """Names of the values that a store reads."""
    return (store.value, *(coordinate.value for coordinate in store.access.coordinates))


def check(kernel: Kernel) -> None:
    """Raise AssertionError unless the kernel is well formed (a bug of ours otherwise)."""
    axes = kernel.axes()
    known = {buffer.name for buffer in kernel.buffers}
    visible: dict[str, tuple[str, ...]] = {}
    for phase in kernel.phases:
        local = dict(visible)
        local.update({carry.name: carry.indices for carry in phase.carries})
        updated: set[str] = set()
        for statement in phase.body:
            assert statement.name not in local, f"{statement.name} is defined twice"
            for name in operands(statement):
                assert name in local, f"{statement.name} reads {name} before its definition"
                over = statement.over if isinstance(statement, Reduce | Contract) else ()
                free = set(local[name]) - set(over)
                assert free <= set(statement.indices), f"{statement.name} loses indices of {name}"
            assert set(statement.indices) <= set(axes), f"{statement.name} has unknown indices"
            if isinstance(statement, Load):
                assert all(access.buffer in known for access in statement.accesses)
            if isinstance(statement, Update):
                updated.add(statement.carry)
            local[statement.name] = statement.indices
        assert updated == {carry.name for carry in phase.carries}, "each carry is updated once"
        assert bool(phase.stream) or not phase.carries
        for store in phase.stores:
            assert store.access.buffer in known
            assert all(name in local for name in store_operands(store))
        if phase.stream:
            visible.update({carry.name: carry.indices for carry in phase.carries})
        else:
            visible = local


def rename_values(statement: Statement, names: dict[str, str]) -> Statement:
    """The same statement over renamed values (the defined name included)."""
    changes: dict[str, object] = {}
    for field in fields(statement):
        value = getattr(statement, field.name)
        if field.name in {"name", "argument", "factor", "left", "right", "carry", "chunk", "scale"}:
            changes[field.name] = names.get(value, value)
        elif field.name == "arguments":
            changes[field.name] = tuple(names.get(name, name) for name in value)
        elif field.name == "access":
            coordinates = tuple(
                Coordinate(names.get(c.value, c.value), c.stride, c.extent)
                for c in value.coordinates
            )
            changes[field.name] = Access(value.buffer, value.address, value.guards, coordinates)
        else:
            changes[field.name] = value
    return type(statement)(**changes)  # type: ignore[arg-type]


def with_accesses(kernel: Kernel, change: Callable[[Access], Access]) -> Kernel:
    """The kernel with each access of its loads and stores changed."""

    def changed(statement: Statement) -> Statement:
        if not isinstance(statement, Load):
            return statement
        rest = tuple(map(change, statement.rest))
        return replace(statement, access=change(statement.access), rest=rest)

    def stores(phase: Phase) -> tuple[Store, ...]:
        return tuple(replace(store, access=change(store.access)) for store in phase.stores)

    phases = (
        replace(phase, body=tuple(map(changed, phase.body)), stores=stores(phase))
        for phase in kernel.phases
    )
    return replace(kernel, phases=tuple(phases))
