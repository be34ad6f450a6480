"""Which factor of a contraction by a warpgroup's operation is the left one."""

from collections.abc import Collection, Mapping
from math import prod

from eqsat.errors import UnsupportedError
from eqsat.kernel.ir import Contract, Kernel, Load
from eqsat.price.contraction import TURNED
from eqsat.price.fragment import STEP_BYTES
from eqsat.specs.model import ParallelOperation

from .access import unit_stride
from .warpgroup_operations import WARPGROUP, WARPGROUP_ROWS

Group = tuple[str, ...]


def turned(
    kernel: Kernel,
    contracts: list[Contract],
    pairs: Mapping[str, tuple[Group, Group]],
    roles: Mapping[Group, str],
    operations: Mapping[str, ParallelOperation],
    converted: Collection[str],
) -> bool:
    """Whether rows and columns are better exchanged, for the operations of a warpgroup.

    Its left factor may be computed, or lie across the sum where the instruction does not allow it;
    its right one may not, unless it is converted: for an operation that has no factor in registers,
    or another one there. And it has 64 rows, fewer columns.
    """
    axes = kernel.axes()
    loads = {s.name for s in kernel.statements() if isinstance(s, Load)}
    whole = {s.name: {*s.indices} for s in kernel.statements() if isinstance(s, Load)}
    cost = {False: 0.0, True: 0.0}
    for c in contracts:
        spec = operations.get(c.operation)
        extents = [n for n in spec.extents.values() if n] if spec else []
        if not extents or extents[0] != WARPGROUP_ROWS:
            return False
        groups = dict(zip(pairs[c.name], (c.left, c.right), strict=True))
        copied = loads - (across(kernel, c) if spec and spec.contiguous else set())
        copied -= {n for n in (c.left, c.right) if c.term_index and c.term_index not in whole[n]}
        held = {name for name in (c.left, c.right) if name not in copied}
        in_registers = spec.factor_memories.count("registers") if spec else 0
        if len(held) > in_registers:
            copied |= {n for n in held if n in converted}
        size = {g: prod(min(axes[i].tile, axes[i].extent) for i in g) for g in groups}
        for way in cost:
            counts = {}
            for group, factor in groups.items():
                row = (roles[group] == "m") != way
                unit = WARPGROUP_ROWS if row else extents[1]
                counts[row] = -(-size[group] // unit)
                fits = factor in copied
                if row:
                    fits = bool(in_registers) or factor not in converted
                cost[way] += 0 if fits else 1e6
            teams = max(kernel.threads // WARPGROUP, 1)
            cost[way] += _busiest(counts[True], counts[False], teams)
    return TURNED * cost[True] < cost[False]


def across(kernel: Kernel, c: Contract) -> set[str]:
    """The factors of a contraction that memory holds with their summed index not contiguous."""
    k = summed_index(kernel, c)
    loads = {s.name: s for s in kernel.statements() if isinstance(s, Load)}
    sides = {name for name in (c.left, c.right) if name in loads}
    return {name for name in sides if not unit_stride(loads[name].access, k)}


def summed_index(kernel: Kernel, c: Contract) -> str:
    """The index of a contraction that runs inside the instruction: of what it sums the longest, of
    those along which most factors lie together in memory, as much as an instruction takes.
    """
    axes = kernel.axes()
    if not c.over:
        raise UnsupportedError(
            f"contraction {c.name} of kernel {kernel.name} by {c.operation} sums over nothing. "
            f"Leave the operation empty."
        )
    over = [i for i in c.over if i != c.term_index]
    loads = [s for s in kernel.statements() if s.name in (c.left, c.right) and isinstance(s, Load)]
    sizes = [kernel.buffer(load.access.buffer).dtype.itemsize for load in loads]

    def key(index: str) -> tuple[int, int]:
        points = min(axes[index].tile, axes[index].extent)
        sides = zip(loads, sizes, strict=True)
        enough = (points * n >= STEP_BYTES and unit_stride(s.access, index) for s, n in sides)
        return sum(enough), points

    return max(over, key=key)


def _busiest(rows: int, columns: int, teams: int) -> int:
    """Operations of the warpgroup that has most of so many rows and columns of them."""
    splits = [(n, teams // n) for n in range(1, teams + 1) if teams % n == 0]
    return min(-(-rows // n) * -(-columns // m) for n, m in splits)
