"""Where each value of a kernel lives on the GPU, and the roles of indices in matrix operations."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from math import prod

from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import DType, bfloat16, float32
from eqsat.graph.index import free_names
from eqsat.kernel.ir import (
    Axis,
    Contract,
    Kernel,
    Literal,
    Load,
    Map,
    Position,
    Reduce,
    Statement,
    Store,
    operands,
    rename_values,
    store_operands,
)
from eqsat.layout.needs import SIXTEEN
from eqsat.price.conversion import CONVERTING, GROUPS
from eqsat.price.pipeline import STREAMED_BYTES
from eqsat.specs.model import ParallelOperation
from eqsat.terms.outer_reductions import Outer, find_outer, sums_rows

from ..prelude.math import NARROW
from .access import unit_stride
from .box import UNIT, WIDTHS
from .conversions import conversions
from .operations import OPERATIONS, MatrixOperation, find, find_shape
from .turned import Group, across, summed_index, turned
from .warpgroup_operations import WarpgroupOperation

REGISTERS, SHARED, FETCH, INLINE = "registers", "shared", "fetch", "inline"
COMPUTED, CHAIN = "computed", "chain"
STAGED_PART = 4  # values that a computed tile reads from registers are at most this part of it


@dataclass(frozen=True)
class Matrix:
    """A contraction by a matrix operation, its factors in the order of the instruction.

    `rows` are the tiled indices of the left factor and the result, outermost first; `columns`
    those of the right factor and the result; `k` runs inside the instruction, other summed
    indices are loops around it. `gathered`: the instruction wants k contiguous in shared memory,
    and the left factor has it otherwise: it goes through registers.
    After `partial` points of k sums leave the operation; 0: it keeps them. `split`: the left factor
    is split into the terms that the right one lies there as.
    """

    contract: Contract
    operation: MatrixOperation | WarpgroupOperation
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    k: str
    left: str
    right: str
    function: str
    gathered: bool = False
    partial: int = 0
    split: bool = False


@dataclass(frozen=True)
class Placement:
    """For each value its statement, dtype and indices, who reads it, and where it lives.

    `registers`: each thread holds its own coordinates. `shared`: a tile in shared memory.
    `fetch`: read from global memory at each use. `inline`: an expression. `computed`: a tile in
    shared memory whose elements the block computes, through the values of `chains`; of a right
    factor of a warpgroup's, threads that do nothing else. `serial` are
    the scalar contractions, and reductions of `outer` combinations, whose summed indices are plain
    loops; in others threads share them.
    """

    statements: Mapping[str, Statement]
    dtypes: Mapping[str, DType]
    indices: Mapping[str, tuple[str, ...]]
    where: Mapping[str, str]
    users: Mapping[str, tuple[str, ...]]
    serial: frozenset[str]
    chains: Mapping[str, tuple[Statement, ...]]
    matrices: Mapping[str, Matrix]
    outer: Mapping[str, Outer]

    def is_product(self, s: Statement) -> bool:
        """Whether results of a reduction share factors, which threads read for many of them."""
        return isinstance(s, Contract) or s.name in self.outer

    def is_whole(self, s: Statement) -> bool:
        """Whether threads share no results of a reduction, each having all points of its own."""
        return (isinstance(s, Contract) and bool(s.operation)) or s.name in self.serial

    def factors(self, s: Statement) -> tuple[str, ...]:
        """What a statement reads; of a reduction of an outer combination its sides."""
        outer = self.outer.get(s.name)
        return tuple(outer.sides.values()) if outer else operands(s)

    @property
    def converted(self) -> set[str]:
        """Right factors of a warpgroup's that are computed."""
        started = (m for m in self.matrices.values() if isinstance(m.operation, WarpgroupOperation))
        return {m.right for m in started if self.where[m.right] == COMPUTED}

    @property
    def converting(self) -> int:
        """Threads that make these and do nothing else."""
        return GROUPS * CONVERTING if self.converted else 0

    @property
    def matrix_steps(self) -> dict[str, int]:
        """For each index that runs inside an instruction, the multiple to which it is padded."""
        steps: dict[str, int] = {}
        for m in self.matrices.values():
            steps[m.k] = max(m.operation.k, steps.get(m.k, 1))
        return steps


def unique_names(kernel: Kernel) -> Kernel:
    """The same kernel, no value name defined in two phases."""
    seen: set[str] = set()
    phases = []
    for phase in kernel.phases:
        own = [s.name for s in phase.body]
        fresh = {}
        for name in own:
            if name in seen:
                number = next(n for n in count(1) if f"{name}_{n}" not in seen | set(own))
                fresh[name] = f"{name}_{number}"
        stores = tuple(
            replace(
                store,
                access=replace(
                    store.access,
                    coordinates=tuple(
                        replace(c, value=fresh.get(c.value, c.value))
                        for c in store.access.coordinates
                    ),
                ),
                value=fresh.get(store.value, store.value),
            )
            for store in phase.stores
        )
        body = tuple(rename_values(s, fresh) for s in phase.body)
        seen |= {fresh.get(name, name) for name in own} | {c.name for c in phase.carries}
        phases.append(replace(phase, body=body, stores=stores))
    return replace(kernel, phases=tuple(phases))


def place(kernel: Kernel, operations: Mapping[str, ParallelOperation]) -> Placement:
    """Decide for every value of the kernel."""
    statements = {s.name: s for s in kernel.statements()}
    carries = {carry.name: carry for phase in kernel.phases for carry in phase.carries}
    indices = {name: s.indices for name, s in (*statements.items(), *carries.items())}
    dtypes = {name: s.dtype for name, s in (*statements.items(), *carries.items())}
    users = _users(kernel)
    axes = kernel.axes()

    def is_serial(s: Statement) -> bool:
        return prod(min(axes[i].tile, axes[i].extent) for i in s.indices) >= kernel.threads

    found = find_outer(kernel, users, indices)
    outer = {name: one for name, one in found.items() if is_serial(one.reduce)}
    users = _without_between(users, outer)
    scalar = [s for s in statements.values() if isinstance(s, Contract) and not s.operation]
    shared = [s for s in scalar if not sums_rows(s, statements, axes)]
    serial = {*outer, *(s.name for s in shared if is_serial(s))}
    contracts = [s for s in statements.values() if isinstance(s, Contract) and s.operation]
    where = {name: REGISTERS for name in indices}
    for name, s in statements.items():
        if isinstance(s, Literal | Position):
            where[name] = INLINE
        elif isinstance(s, Load):
            where[name] = _place_load(s, users[name], statements, serial)
    converted = conversions(kernel, contracts, users)
    matrices = _matrices(kernel, contracts, indices, dtypes, operations, converted)
    started = [m for m in matrices.values() if isinstance(m.operation, WarpgroupOperation)]
    if started:
        where.update({name: SHARED for name in _streamed(kernel, where)})
    products = {*matrices, *serial} - {m.contract.name for m in started}
    for one in outer.values():
        where.update(dict.fromkeys(one.inside, CHAIN))
    chains = _chains(kernel, products, where, users, indices)  # a warpgroup's left one stays
    chains |= {m.right: converted[m.right] for m in started if m.right in converted}
    for name, chain in chains.items():
        where.update({s.name: CHAIN for s in chain})
        where[name] = COMPUTED
    fixed = frozenset(serial)
    return Placement(statements, dtypes, indices, where, users, fixed, chains, matrices, outer)


def reads_again(placement: Placement, s: Load) -> bool:
    """Whether a value of fewer indices than what uses it may be read there, over and over."""
    users = [placement.statements.get(name) for name in placement.users[s.name]]
    widened = {u.name for u in users if u and passes_on(placement, u, {s.name})}
    users = [u for u in users if u is None or u.name not in widened]
    users += [placement.statements.get(name) for one in widened for name in placement.users[one]]
    wider = (isinstance(u, Map) and {*s.indices} < {*u.indices} for u in users)
    return not s.access.coordinates and all(wider)


def passes_on(placement: Placement, s: Statement, again: Collection[str]) -> bool:
    """Whether a cast leaves what is read again as registers have it: it is that, and no value."""
    if not isinstance(s, Map) or s.op != "cast" or s.arguments[0] not in again:
        return False
    return placement.dtypes[s.arguments[0]].compute == s.dtype and bool(placement.users[s.name])


def _users(kernel: Kernel) -> dict[str, tuple[str, ...]]:
    """The readers of each value: statements by name, stores as `store of <buffer>`."""
    users: dict[str, list[str]] = {}
    for phase in kernel.phases:
        for carry in phase.carries:
            users.setdefault(carry.name, [])
        for s in phase.body:
            users.setdefault(s.name, [])
            for name in operands(s):
                users.setdefault(name, []).append(s.name)
        for store in phase.stores:
            for name in store_operands(store):
                users.setdefault(name, []).append(f"store of {store.access.buffer}")
    return {name: tuple(readers) for name, readers in users.items()}


def _without_between(
    users: Mapping[str, tuple[str, ...]], outer: Mapping[str, Outer]
) -> dict[str, tuple[str, ...]]:
    """The readers of each value, of outer combinations the reductions in place of what is inside.

    What is inside keeps its own readers.
    """
    ends = {name: one.reduce.name for one in outer.values() for name in one.inside}
    return {
        name: readers
        if name in ends
        else tuple(dict.fromkeys(ends.get(reader, reader) for reader in readers))
        for name, readers in users.items()
    }


def _place_load(
    load: Load, users: tuple[str, ...], statements: Mapping[str, Statement], serial: set[str]
) -> str:
    readers = [statements.get(user) for user in users]
    if load.memory == "shared" or any(isinstance(s, Contract) and s.operation for s in readers):
        return SHARED
    if users and all(user in serial for user in users):
        return FETCH
    return REGISTERS


def _streamed(kernel: Kernel, where: Mapping[str, str]) -> Iterator[str]:
    """Loads into registers of tiles that change from chunk to chunk: large ones, and lines."""
    axes = kernel.axes()
    for phase in kernel.phases:
        cut = {axis.name for axis in phase.stream if axis.count > 1}
        for s in phase.body:
            if not isinstance(s, Load) or where[s.name] != REGISTERS or not cut & set(s.indices):
                continue
            volume = prod(min(axes[i].tile, axes[i].extent) for i in s.indices)
            size = volume * kernel.buffer(s.access.buffer).dtype.itemsize
            if s.access.coordinates or s.fill:
                continue
            if size >= STREAMED_BYTES or _is_line(s, size // volume, axes):
                yield s.name


def _is_line(load: Load, itemsize: int, axes: Mapping[str, Axis]) -> bool:
    """Whether the tile is one row of whole units, which the tensor memory accelerator can copy."""
    along = [i for i in load.indices if min(axes[i].tile, axes[i].extent) > 1]
    if len(along) != 1 or load.access.guards or not unit_stride(load.access, along[0]):
        return False
    axis, address = axes[along[0]], load.access.address
    steps = [c for atom, c in address.terms if atom != along[0]] + [address.constant]
    size = axis.tile * itemsize
    whole = axis.extent % axis.tile == 0 and (size in WIDTHS or size % max(WIDTHS) == 0)
    plain = all(isinstance(atom, str) for atom, _ in address.terms)
    return whole and plain and all(step * itemsize % UNIT == 0 for step in steps)


def _chains(
    kernel: Kernel,
    products: set[str],
    where: Mapping[str, str],
    users: Mapping[str, tuple[str, ...]],
    indices: Mapping[str, tuple[str, ...]],
) -> dict[str, tuple[Statement, ...]]:
    """Factors of contractions that are elementwise in loads, each with what only it needs. A factor
    that is one number is no tile.

    Other values that such a factor reads must be much smaller, since they are staged.
    """
    axes = kernel.axes()

    def volume(name: str) -> int:
        return prod(min(axes[i].tile, axes[i].extent) for i in indices[name])

    chains: dict[str, tuple[Statement, ...]] = {}
    for phase in kernel.phases:
        for s in phase.body:
            if not isinstance(s, Map) or where[s.name] != REGISTERS:
                continue
            if not indices[s.name] or not users[s.name] or not set(users[s.name]) <= products:
                continue
            inside = {s.name}
            for other in reversed(phase.body[: phase.body.index(s)]):
                movable = isinstance(other, Map) and where[other.name] == REGISTERS
                if isinstance(other, Load) and not other.access.coordinates:
                    movable = where[other.name] == REGISTERS
                if movable and users[other.name] and set(users[other.name]) <= inside:
                    inside.add(other.name)
            chain = tuple(o for o in phase.body if o.name in inside)
            leaves = {name for o in chain for name in operands(o)} - inside
            held = [name for name in leaves if where[name] == REGISTERS]
            small = all(STAGED_PART * volume(name) <= volume(s.name) for name in held)
            if small:
                chains[s.name] = chain
    return chains


def _matrices(
    kernel: Kernel,
    contracts: list[Contract],
    indices: Mapping[str, tuple[str, ...]],
    dtypes: Mapping[str, DType],
    operations: Mapping[str, ParallelOperation],
    converted: Collection[str],
) -> dict[str, Matrix]:
    pairs = {
        c.name: (_free(kernel, c, indices, 0), _free(kernel, c, indices, 1)) for c in contracts
    }
    roles = _colour(list(pairs.values()), kernel.name)
    if turned(kernel, contracts, pairs, roles, operations, converted):
        roles = {group: "n" if role == "m" else "m" for group, role in roles.items()}
    result, axes = {}, kernel.axes()
    for c in contracts:
        first, second = pairs[c.name]
        swapped = roles[first] == "n"
        rows, columns = (second, first) if swapped else (first, second)
        left, right = (c.right, c.left) if swapped else (c.left, c.right)
        spec = operations.get(c.operation)
        native = spec is not None and "cuda" in spec.native_implementation
        if native and spec.invocation_name not in OPERATIONS:
            factors = (dtypes[left], dtypes[right])
            operation = find_shape(c.operation, spec.extents.values(), *factors, c.dtype)
        else:
            invocation = (spec.invocation_name or c.operation) if spec else c.operation
            factors = [dtypes[left], dtypes[right]]  # tf32 is float32
            if c.narrow == "bfloat16":
                factors = [bfloat16, bfloat16]
            operation = find(invocation, *factors, c.dtype)
        function = c.operation if native else operation.function
        k = summed_index(kernel, c)
        gathered = isinstance(operation, WarpgroupOperation) and not operation.transposable
        gathered = gathered and left in across(kernel, c)
        part = spec.part_of(prod(axes[i].extent for i in c.over)) if spec else 0
        split = bool(c.term_index) and c.term_index not in indices[left]
        result[c.name] = Matrix(
            c, operation, rows, columns, k, left, right, function, gathered, part, split
        )
    return result


def _free(kernel: Kernel, c: Contract, indices: Mapping[str, Group], side: int) -> Group:
    """The tiled indices that only this factor brings to the result; one of tile 1 if none is."""
    own, other = (c.left, c.right) if side == 0 else (c.right, c.left)
    axes = kernel.axes()
    free = [i for i in axes if i in c.indices and i in indices[own] and i not in indices[other]]
    if not free:
        raise UnsupportedError(
            f"contraction {c.name} of kernel {kernel.name} by {c.operation}: {own} brings no index "
            f"of its own to the result, so there is no matrix. Leave the operation empty."
        )
    return tuple(i for i in free if axes[i].tile > 1) or (free[-1],)


def _colour(pairs: list[tuple[Group, Group]], kernel: str) -> dict[Group, str]:
    """A role, m or n, for each group, so that each pair has both; the first pair is (m, n)."""
    roles: dict[Group, str] = {}
    other = {"m": "n", "n": "m"}
    waiting = list(pairs)
    while waiting:
        known = next((p for p in waiting if p[0] in roles or p[1] in roles), waiting[0])
        waiting.remove(known)
        first, second = known
        if first not in roles:
            roles[first] = other[roles[second]] if second in roles else "m"
        if roles.setdefault(second, other[roles[first]]) == roles[first]:
            raise UnsupportedError(_conflict(kernel, first, second))
    for a in roles:
        for b in roles:
            if a != b and set(a) & set(b):
                raise UnsupportedError(_conflict(kernel, a, b))
    return roles


def _conflict(kernel: str, a: Group, b: Group) -> str:
    return (
        f"kernel {kernel}: its matrix operations use {', '.join(a)} and {', '.join(b)} as rows and "
        f"columns in ways that no one layout serves. Split the kernel, or leave an operation empty."
    )


def register_sets(kernel: Kernel, placement: Placement) -> Iterator[frozenset[str]]:
    """Index sets that threads hold or sum together: their indices need different threads."""
    for phase in kernel.phases:
        for carry in phase.carries:
            yield frozenset(carry.indices)
        for s in phase.body:
            if placement.where[s.name] != REGISTERS:
                continue
            over: tuple[str, ...] = ()
            if isinstance(s, Reduce | Contract) and not placement.is_whole(s):
                over = s.over
            yield frozenset((*s.indices, *over))
        for store in phase.stores:
            yield store_indices(placement, store)


def store_indices(placement: Placement, store: Store) -> frozenset[str]:
    """Every index over which a store runs."""
    names = set(free_names(store.access.address))
    for guard in store.access.guards:
        names |= free_names(guard.expression)
    for value in store_operands(store):
        names |= set(placement.indices[value])
    return frozenset(names)


def is_rounded_later(placement: Placement, kernel: Kernel, s: Statement) -> bool:
    """Whether a cast of a float32 to a narrow float is read only where the value is rounded anyway:
    by stores to that dtype, or as a factor that is packed into fragments.
    """
    if not isinstance(s, Map) or s.op != "cast" or placement.where[s.name] != REGISTERS:
        return False
    if placement.dtypes[s.arguments[0]] != float32 or s.dtype.name not in NARROW:
        return False
    stores = {
        f"store of {store.access.buffer}": kernel.buffer(store.access.buffer).dtype
        for phase in kernel.phases
        for store in phase.stores
        if store.value == s.name
    }
    own = placement.matrices.items() if s.dtype.name in SIXTEEN else ()
    factor = {name for name, m in own if m.left == s.name and not m.contract.narrow}
    return all(u in factor or stores.get(u) == s.dtype for u in placement.users[s.name])
