"""The values of a kernel: their definitions, what evaluating them costs, which ones are kept.

Values that are computed point by point (Load, Literal, Position, Map) have no loops: they are
evaluated where they are used, unless that would repeat expensive arithmetic.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from eqsat.codegen.cpu import gemm
from eqsat.graph.dtypes import DType
from eqsat.graph.index import Affine, bounds, evaluate, free_names
from eqsat.kernel.ir import (
    Access,
    Carry,
    Contract,
    Guard,
    Kernel,
    Load,
    Map,
    Phase,
    Reduce,
    Scan,
    Statement,
    Store,
    Update,
    operands,
    rename_values,
    store_operands,
)
from eqsat.price.call import LIBRARY
from eqsat.price.slid import WINDOWED

from .windows import Windows, windows

ROUTINES = frozenset({LIBRARY, WINDOWED})  # that multiply matrices

# Arithmetic in units of an addition; what costs KEEP or more is kept if it is used again.
_COST = {"div": 5, "sqrt": 5, "floor_divide": 30, "remainder": 30, "pow": 40, "rsqrt": 8}
_FUNCTIONS = frozenset({
    "exp", "expm1", "log", "log1p", "log2", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin",
    "acos", "atan", "erf", "atan2", "exp_difference", "one_plus_erf",
})  # fmt: skip
_FUNCTION_COST = 15
_GATHER_COST = 4
KEEP = 8
# A loop of fewer points fills no vector: it is not chosen as the innermost.
SHORT = 8
MOST_ACROSS = 4096  # elements of a value that is kept for lying apart in memory
APART = 8  # times the cost of an element beside the one before; one that all share costs nothing


_COMBINED = (Reduce, Scan, Contract, Update, Carry)
Strides = Mapping[str, int | None]
"""Index -> elements from one point to the next, None if that varies."""

User = tuple[int, str | int]
"""Phase number, and the statement's name or the store's place."""


def existing_point(guards: Sequence[Guard], extents: Mapping[str, int]) -> dict[str, int] | None:
    """The least point along the names of some guards at which these hold; None where none is found,
    one name after the other.
    """
    point: dict[str, int] = {}
    for guard in guards:
        value, last = guard.expression.constant, guard.upper - 1
        for name, step in guard.expression.terms:
            if not isinstance(name, str):
                return None
            if name not in point:
                lacking = guard.lower - value if step > 0 else value - last
                point[name] = min(max(-(-lacking // abs(step)), 0), extents[name] - 1)
            value += step * point[name]
    holds = (g.lower <= evaluate(g.expression, point) < g.upper for g in guards)
    return point if all(holds) else None


class Values:
    """The values of a kernel by name, each name for one value only.

    `held` are the pointwise values that are kept; `layouts` the order in memory of kept values, as
    far as it is decided; `windows` what contractions have in place of a factor's.
    """

    def __init__(self, kernel: Kernel, invocations: Mapping[str, str]) -> None:
        self.kernel = kernel
        self.invocations = invocations
        self.axes = kernel.axes()
        self.extents = {name: axis.extent for name, axis in self.axes.items()}
        self.rank = {name: rank for rank, name in enumerate(self.axes)}
        self.phases = _distinctly_named(kernel)
        self.written = {s.access.buffer for phase in self.phases for s in phase.stores}
        self.defined: dict[str, Statement | Carry] = {}
        self.phase_of: dict[str, int] = {}
        self.groups: dict[str, gemm.Groups] = {}
        self.layouts: dict[str, tuple[str, ...]] = {}
        self.windows: dict[str, Windows] = {}
        for number, phase in enumerate(self.phases):
            for value in (*phase.carries, *phase.body):
                self.defined[value.name] = value
                self.phase_of[value.name] = number
        self.held = self._values_to_hold()

    def varying(self, indices: Iterable[str]) -> tuple[str, ...]:
        """Those indices that have more than one point, or none, in a tile."""
        return tuple(i for i in indices if self.axes[i].tile != 1 and self.axes[i].extent != 1)

    def begin_with(self, index: str) -> list[str]:
        """Indices of places whose tile begins as that of an index does; of "", at the first."""
        found = []
        for one in self.windows.values():
            found += [axis.name for axis in one.axes if one.origins.get(axis.name, "") == index]
        return found

    def size(self, name: str) -> int:
        """The most points of an index in a tile."""
        return min(self.axes[name].tile, self.axes[name].extent)

    def whole(self, name: str) -> bool:
        """Whether every tile of the index has the same number of points."""
        axis = self.axes[name]
        return axis.tile >= axis.extent or axis.extent % axis.tile == 0

    def sizes(self) -> tuple[dict[str, int], dict[str, bool]]:
        return {i: self.size(i) for i in self.axes}, {i: self.whole(i) for i in self.axes}

    def guards(self, access: Access) -> list[Guard]:
        """The guards of an access that may fail."""
        kept = []
        for guard in access.guards:
            low, high = bounds(guard.expression, self.extents)
            if low < guard.lower or high >= guard.upper:
                kept.append(guard)
        return kept

    def by_library(self, contract: Contract) -> bool:
        """Whether a routine for matrices is asked for and can do it at all."""
        return contract.name in self.groups

    def routine(self, contract: Contract) -> str:
        """The name by which the operation of a contraction is invoked."""
        return self.invocations.get(contract.operation, contract.operation)

    def pointwise(self, name: str) -> bool:
        """Whether a value is evaluated wherever it is used."""
        return name not in self.held and not isinstance(self.defined[name], _COMBINED)

    def indices(self, name: str) -> tuple[str, ...]:
        return self.defined[name].indices

    def dense_strides(self, layout: Sequence[str]) -> dict[str, int]:
        strides, step = {}, 1
        for name in reversed(layout):
            strides[name] = step
            step *= self.size(name)
        return strides

    def strides(self, address: Affine, indices: Sequence[str]) -> dict[str, int | None]:
        """Stride of each varying index; None for one inside a quotient or remainder."""
        result: dict[str, int | None] = {name: 0 for name in self.varying(indices)}
        for atom, coefficient in address.terms:
            if isinstance(atom, str):
                if result.get(atom) is not None:
                    result[atom] = coefficient
                continue
            for name in free_names(atom.numerator):
                if name in result:
                    result[name] = None
        return result

    def _strides_read(self, load: Load) -> dict[str, int | None]:
        """Stride of each varying index of a load; None too where a coordinate depends on it."""
        places = [self.indices(c.value) for c in load.access.coordinates]
        apart = {i: None for own in places for i in self.varying(own)}
        return self.strides(load.access.address, load.indices) | apart

    def in_place(self, name: str, dtype: DType) -> dict[str, int] | None:
        """The strides of a load that a routine may read where it lies, else None."""
        load = self.defined[name]
        if not isinstance(load, Load) or load.access.buffer in self.written:
            return None
        exact = load.dtype == dtype == self.kernel.buffer(load.access.buffer).dtype
        if not exact or load.access.coordinates or self.guards(load.access):
            return None
        strides = self.strides(load.access.address, load.indices)
        return None if None in strides.values() else {i: s or 0 for i, s in strides.items()}

    def _values_to_hold(self) -> set[str]:
        self.held: set[str] = set()
        for value in self.defined.values():
            if isinstance(value, Contract):
                self._group(value)
            if isinstance(value, Load) and value.access.buffer in self.written:
                self.held.add(value.name)
        users: dict[str, set[User]] = {name: set() for name in self.defined}
        for number, phase in enumerate(self.phases):
            for place, store in enumerate(phase.stores):
                for name in store_operands(store):
                    users[name].add((number, place))
        for number, phase in reversed(list(enumerate(self.phases))):
            for statement in reversed(phase.body):
                if self.pointwise(statement.name) and self._worth_keeping(
                    statement, number, users[statement.name]
                ):
                    self.held.add(statement.name)
                passed = self.pointwise(statement.name)
                for name in operands(statement):
                    mine = users[statement.name] if passed else {(number, statement.name)}
                    users[name] |= mine
        return self.held

    def _group(self, contract: Contract) -> None:
        """Record the groups of a routine's call; hold the factors that it cannot read in place."""
        sides = (contract.left, contract.right)
        asked = self.routine(contract) in ROUTINES
        if not asked or contract.dtype.name not in ("float32", "float64"):
            return
        strides = tuple(self.in_place(name, contract.dtype) for name in sides)
        own = [self.varying(self.indices(name)) for name in sides]
        grouped = gemm.groups(contract, own[0], own[1], strides)
        if grouped is None:
            return
        self.groups[contract.name] = grouped
        sizes, whole = self.sizes()
        for side, name, place in zip(("left", "right"), sides, strides, strict=True):
            if place is not None and not gemm.readable(grouped, side, place, sizes, whole):
                place = None
            if place is None and side == "right" and self._slide(contract, grouped):
                continue
            if place is None and not isinstance(self.defined[name], _COMBINED):
                inner = self.order(self.varying(self.indices(name)), (), self.accesses([name]))
                self.held.add(name)
                self.layouts.setdefault(name, grouped.layout(side, inner[-1] if inner else ""))

    def _slide(self, contract: Contract, group: gemm.Groups) -> bool:
        """Have windows in place of a factor's, where a routine multiplies them and nothing else
        reads them.
        """
        load, left = self.defined[contract.right], self.defined[contract.left]
        exact = load.dtype == contract.dtype == left.dtype.compute
        if self.routine(contract) != WINDOWED or not exact or not group.m:
            return False
        if isinstance(left, _COMBINED) or not isinstance(load, Load):
            return False
        if self._readers(load.name) != [contract]:
            return False
        added = any(isinstance(one, Update) for one in self._readers(contract.name))
        if added or load.access.buffer in self.written:
            return False
        found = windows(load, group, self.axes)
        if found is None:
            return False
        self.windows[contract.name] = found
        for axis in found.axes:
            self.axes[axis.name], self.extents[axis.name] = axis, axis.extent
            self.rank[axis.name] = len(self.rank)
        number = self.phase_of[load.name]
        body = tuple(found.load if one is load else one for one in self.phases[number].body)
        self.phases[number] = replace(self.phases[number], body=body)
        self.defined[load.name] = found.load
        self.held.add(load.name)
        self.layouts[load.name] = tuple(found.sizes)
        return True

    def _readers(self, name: str) -> list[Statement | Store]:
        """What reads a value."""
        found: list[Statement | Store] = []
        for phase in self.phases:
            found += (one for one in phase.body if name in operands(one))
            found += (one for one in phase.stores if name in store_operands(one))
        return found

    def _worth_keeping(self, statement: Statement, number: int, users: set[User]) -> bool:
        if self._cost(statement.name) < KEEP:
            return self._lies_across(statement, users)
        in_stream = any(user != number and self.phases[user].stream for user, _ in users)
        return len(users) > 1 or in_stream or any(self._repeated(statement, users))

    def _lies_across(self, statement: Statement, users: set[User]) -> bool:
        """Whether a user's innermost loop reads again and again, for another index, elements that
        lie apart: few, so that they are near when they lie beside each other.
        """
        if not isinstance(statement, Load) or statement.access.coordinates:
            return False
        if prod(map(self.size, self.varying(statement.indices))) > MOST_ACROSS:
            return False
        strides = self.strides(statement.access.address, statement.indices)
        return any(strides[index] not in (0, 1, -1) for index in self._repeated(statement, users))

    def _repeated(self, statement: Statement, users: set[User]) -> Iterator[str]:
        """Indices of the value along which a user's innermost loop would evaluate it again for
        another index.
        """
        own = set(self.varying(statement.indices))
        for number, user in users:
            if isinstance(user, int):
                store = self.phases[number].stores[user]
                loops = set(self.store_loops(store))
                accesses = self.accesses(store_operands(store), store.access)
            else:
                value = self.defined[user]
                if user in self.groups:
                    continue
                over = getattr(value, "over", ())
                over = (over,) if isinstance(over, str) else over
                loops = set(self.varying((*value.indices, *over)))
                accesses = self.accesses(operands(value))
                if isinstance(value, Contract):
                    accesses.append(dense(self.varying(value.indices)))
            order = self.order(loops, (), accesses)
            if own < loops and order[-1] in own:
                yield order[-1]

    def _cost(self, name: str) -> int:
        """Additions that one point of a value costs in the innermost loop, operands included, each
        once.
        """
        own = set(self.varying(self.indices(name)))
        total, seen, stack = 0, set[str](), [name]
        while stack:
            one = stack.pop()
            if one in seen:
                continue
            seen.add(one)
            inside = one == name or set(self.varying(self.indices(one))) == own
            if not inside or not self.pointwise(one):
                total += 1  # read, or computed in an outer loop
                continue
            statement, inputs = self.defined[one], operands(self.defined[one])
            stack += inputs
            if isinstance(statement, Map):
                op = statement.op
                total += _FUNCTION_COST if op in _FUNCTIONS else _COST.get(op, 1)
            else:
                total += _GATHER_COST if isinstance(statement, Load) and inputs else 1
        return total

    def leaves(self, names: Iterable[str], opened: str = "") -> Iterator[str]:
        """The loads and stored values that evaluating some values reads, each once.

        `opened` is evaluated itself rather than read, even if it is kept.
        """
        seen: set[str] = set()
        stack = list(names)
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            value = self.defined[name]
            if not self.pointwise(name) and name != opened:
                yield name
                continue
            if isinstance(value, Load):
                yield name
            stack += operands(value)

    def loaded(self, names: Iterable[str], opened: str = "") -> Iterator[Access]:
        """What evaluating some values reads of buffers."""
        for name in self.leaves(names, opened):
            value = self.defined[name]
            if isinstance(value, Load) and (self.pointwise(name) or name == opened):
                yield value.access

    def accesses(
        self, names: Iterable[str], store: Access | None = None, opened: str = ""
    ) -> list[dict]:
        """Stride tables of everything that a loop nest touches; a store counts twice."""
        tables = []
        for name in self.leaves(names, opened):
            value = self.defined[name]
            if isinstance(value, Load) and (self.pointwise(name) or name == opened):
                tables.append(self._strides_read(value))
            elif name in self.layouts:
                tables.append(dense(self.layouts[name]))
        if store is not None:
            tables += 2 * [self.strides(store.address, tuple(free_names(store.address)))]
        return tables

    def order(
        self, indices: Iterable[str], over: Sequence[str], accesses: Sequence[Mapping]
    ) -> tuple[str, ...]:
        """Loops from the outermost; innermost the long one along which a point costs least."""
        base = sorted(set(indices), key=self.rank.__getitem__)
        if not base:
            return ()

        def score(name: str) -> tuple[bool, int, bool, int]:
            strides = [table.get(name, 0) for table in accesses]  # None: of a quotient
            cost = sum(APART if s is None else abs(s) if abs(s) < 2 else APART for s in strides)
            return self.size(name) >= SHORT, -cost, name in over, self.rank[name]

        inner = max(base, key=score)
        rest = [name for name in base if name != inner]
        if inner in over:
            rest.sort(key=lambda name: name in over)
        return (*rest, inner)

    def store_loops(self, store: Store) -> tuple[str, ...]:
        names = set(self.indices(store.value)) | free_names(store.access.address)
        for coordinate in store.access.coordinates:
            names |= set(self.indices(coordinate.value))
        return self.varying(sorted(names, key=self.rank.__getitem__))


def _distinctly_named(kernel: Kernel) -> list[Phase]:
    """The phases with every value named apart: a name local to a stream may come again.

    A reduction of single points is another name of what it reduces.
    """
    taken: set[str] = set()
    axes = kernel.axes()
    visible: dict[str, str] = {}
    phases = []
    for phase in kernel.phases:
        names = dict(visible)
        for value in (*phase.carries, *phase.body):
            name, number = value.name, 0
            while name in taken:
                number += 1
                name = f"{value.name}_{number}"
            taken.add(name)
            names[value.name] = name
        carries = tuple(
            replace(c, name=names[c.name], pivot=names.get(c.pivot, c.pivot)) for c in phase.carries
        )
        dtypes = {value.name: value.dtype for value in (*phase.carries, *phase.body)}
        statements = []
        for s in phase.body:
            one = isinstance(s, Reduce) and all(axes[i].tile == 1 for i in s.over)
            if isinstance(s, Reduce) and one and dtypes.get(s.argument) == s.dtype:
                names[s.name] = names[s.argument]
            else:
                statements.append(rename_values(s, names))
        body = tuple(statements)
        stores = tuple(_renamed_store(store, names) for store in phase.stores)
        phases.append(replace(phase, carries=carries, body=body, stores=stores))
        kept = [c.name for c in phase.carries] if phase.stream else [s.name for s in phase.body]
        visible.update({name: names[name] for name in kept})
    return phases


def _renamed_store(store: Store, names: Mapping[str, str]) -> Store:
    coordinates = tuple(replace(c, value=names[c.value]) for c in store.access.coordinates)
    access = replace(store.access, coordinates=coordinates)
    return replace(store, access=access, value=names[store.value])


def dense(layout: Sequence[str]) -> dict[str, int]:
    """A stride table of a dense value, as far as the order of loops cares."""
    return {name: 1 if place == len(layout) - 1 else 2 for place, name in enumerate(layout)}
