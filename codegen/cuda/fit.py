"""Whether a kernel's tile values fit the registers of its threads, before any code is compiled."""

import math
from collections.abc import Mapping

from eqsat.errors import UnsupportedError
from eqsat.kernel.ir import (
    Contract,
    Kernel,
    Literal,
    Load,
    Map,
    Position,
    Reduce,
    Update,
    operands,
    store_operands,
)
from eqsat.schedule.scheduling import UNSAID
from eqsat.specs import ParallelOperation, ParallelProcessingUnit

from .copy.window_tile import number_of_places
from .emit import choose, emit
from .pipeline import needs_producer
from .place.access import sliding_axes
from .place.distribution import Distribution
from .place.placement import (
    CHAIN,
    COMPUTED,
    REGISTERS,
    SHARED,
    Placement,
    passes_on,
    reads_again,
    unique_names,
)
from .place.registers import AROUND, registers_of
from .products.narrow import term_bytes
from .steps import loads_ahead

SPARE = 40  # registers of a thread that addresses, masks and temporaries take
MOST_UNROLLED = 6000  # statements of straight-line code that a compiler takes in seconds


def misfit(kernel: Kernel, spec: ParallelProcessingUnit) -> str:
    """What the kernel takes too much of, or an empty string."""
    operations = {operation.name: operation for operation in spec.operations}
    try:
        placement, distribution = choose(kernel, operations)
    except UnsupportedError:
        return UNSAID
    registers = spec.memory("registers")
    limit = min(registers.limit_per_group_bytes, registers.size_bytes // kernel.threads)
    if needs_producer(placement.matrices.values()):
        launch, computing = registers_of(kernel.threads, 1, converting=placement.converting)
        limit = 4 * computing
        widest = max(m.operation.n for m in placement.matrices.values()) // 2
        if widest + AROUND > launch:  # one instruction must do with what a launch gives
            return "registers"
    held = live_bytes(kernel, placement, distribution) + term_bytes(placement, distribution)
    held += _ahead_bytes(kernel, placement, distribution)
    if held > limit - 4 * SPARE * max(1, _side_by_side(kernel, placement)):
        return "registers"
    if unrolled(kernel, placement, distribution) > MOST_UNROLLED:
        return "unrolled code"
    try:
        return _shared_misfit(kernel, spec, operations)
    except UnsupportedError:
        return UNSAID


def _side_by_side(kernel: Kernel, placement: Placement) -> int:
    """Matrix products of one run of straight-line code: the compiler starts one within another."""
    bodies = [phase.body for phase in kernel.phases if not phase.stream]
    return max((sum(s.name in placement.matrices for s in body) for body in bodies), default=0)


def _shared_misfit(
    kernel: Kernel, spec: ParallelProcessingUnit, operations: Mapping[str, ParallelOperation]
) -> str:
    shared = [m for m in spec.memory_domains if m.name == "shared"]
    limit = shared[0].limit_per_group_bytes if shared else 0
    return "shared memory" if emit(kernel, operations).shared_bytes > limit else ""


def live_bytes(kernel: Kernel, placement: Placement, distribution: Distribution) -> int:
    """The most bytes of tile values that a thread holds at once."""
    kernel = unique_names(kernel)
    fluid = _fluid(kernel, placement) | _read_again(kernel, placement)
    in_place = _in_place(placement) | fluid
    sizes = {
        name: _registers(placement.indices[name], distribution) * _held_bytes(placement, name)
        for name in placement.dtypes
        if placement.where.get(name, REGISTERS) == REGISTERS and name not in in_place
    }
    steps: list[tuple[str, tuple[str, ...]]] = []
    made_of: dict[str, tuple[str, ...]] = {}  # what lives until a fluid value is used

    def below(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n for name in names for n in made_of.get(name, (name,))))

    for phase in kernel.phases:
        first = len(steps)
        steps += [(carry.name, ()) for carry in phase.carries]
        for statement in phase.body:
            if statement.name in fluid:
                made_of[statement.name] = below(placement.factors(statement))
            else:
                steps.append((statement.name, below(placement.factors(statement))))
        steps += [("", below(store_operands(store))) for store in phase.stores]
        if phase.stream:  # what a stream reads lives through all of its chunks
            read = {name for _, names in steps[first:] for name in names}
            steps.append(("", tuple(read - {s.name for s in phase.body})))
    last = {name: i for i, (_, names) in enumerate(steps) for name in names}
    live: set[str] = set()
    peak = 0
    for i, (made, used) in enumerate(steps):
        live |= {made} & sizes.keys()
        peak = max(peak, sum(sizes[name] for name in live) - _reused(made, used, i, last, sizes))
        live = {name for name in live if last.get(name, -1) > i}
    return peak


def _ahead_bytes(kernel: Kernel, placement: Placement, distribution: Distribution) -> int:
    """The most bytes that a thread holds for steps to come."""
    kernel = unique_names(kernel)
    found = [loads_ahead(kernel, placement, distribution, phase) for phase in kernel.phases]
    return max((ahead.bytes for ahead in found if ahead), default=0)


def _held_bytes(placement: Placement, name: str) -> int:
    """Of one element in a register: what is loaded may stay in the dtype that it has in memory."""
    dtype = placement.dtypes[name]
    loaded = isinstance(placement.statements.get(name), Load)
    return dtype.itemsize if loaded else dtype.compute.itemsize


def _reused(
    made: str, used: tuple[str, ...], step: int, last: Mapping[str, int], sizes: Mapping[str, int]
) -> int:
    """Bytes of an operand, read for the last time, that its elements' successors take over."""
    ends = [sizes[name] for name in used if name in sizes and last[name] == step]
    return max((size for size in ends if size <= sizes.get(made, 0)), default=0)


def _in_place(placement: Placement) -> set[str]:
    """Values that live in the registers of a carry: its update, and a sum added straight to it."""
    found: set[str] = set()
    for name, statement in placement.statements.items():
        if isinstance(statement, Update):
            chunk = placement.statements.get(statement.chunk)
            alone = placement.users[statement.chunk] == (name,)
            terms = isinstance(chunk, Contract) and bool(chunk.term_index)
            if chunk is not None and placement.is_product(chunk) and alone and not terms:
                found.add(statement.chunk)
            found.add(name)
    return found


def _fluid(kernel: Kernel, placement: Placement) -> set[str]:
    """Values that compilers make element by element, and never hold as a whole.

    They are pointwise (loads too, unless they meet fragments: those go through shared memory), only
    pointwise values and stores read them, or, of what is computed, a reduction that runs in the
    same loop; and no other reduction runs between the first and the last use. Of several values of
    fragments that are stored each is made before the first store.
    """
    pointwise = (Map, Load, Literal, Position)
    matrices = bool(placement.matrices)
    sections: dict[str, int] = {}
    used: dict[str, int] = {}
    whole: set[str] = set()
    section = 0
    for phase in kernel.phases:
        section += 1
        for statement in phase.body:
            begun = section
            section += not isinstance(statement, pointwise)
            sections[statement.name] = section
            read = begun if isinstance(statement, Reduce) else section
            used.update(dict.fromkeys(operands(statement), read))
        stored = {name for store in phase.stores for name in store_operands(store)}
        used.update(dict.fromkeys(stored, section))
        whole |= stored if matrices and len(stored) > 1 else set()
    return {
        name
        for name, statement in placement.statements.items()
        if isinstance(statement, Map if matrices else Map | Load)
        and name not in whole
        and used.get(name, -1) == sections[name]
        and all(
            isinstance(placement.statements.get(u, statement), (Map, Load))
            or (isinstance(placement.statements[u], Reduce) and isinstance(statement, Map))
            for u in placement.users[name]
        )
    }


def _read_again(kernel: Kernel, placement: Placement) -> set[str]:
    """Loads beside the results of a warpgroup's products that each use reads anew, and casts that
    are the same in registers.
    """
    if not needs_producer(placement.matrices.values()):
        return set()
    bodies = [phase.body for phase in kernel.phases if not phase.stream]
    loads = [s for body in bodies for s in body if isinstance(s, Load)]
    again = {s.name for s in loads if reads_again(placement, s)}
    return again | {s.name for body in bodies for s in body if passes_on(placement, s, again)}


def unrolled(kernel: Kernel, placement: Placement, distribution: Distribution) -> int:
    """Statements of code, loops over registers unrolled."""
    total = 0
    boxes = needs_producer(placement.matrices.values())
    made_inside = {name for outer in placement.outer.values() for name in outer.inside}
    for name, statement in placement.statements.items():
        if name in made_inside or (boxes and placement.where[name] in (SHARED, COMPUTED, CHAIN)):
            continue  # counted where it ends, or one thread copies it whole
        if isinstance(statement, Load) and placement.where[name] == SHARED:
            total += _copied(kernel, statement)
            continue
        over = ()
        if isinstance(statement, Contract) and name not in placement.matrices:
            over = () if name in placement.serial else statement.over
        total += _registers((*placement.indices[name], *over), distribution)
    return total


def _copied(kernel: Kernel, load: Load) -> int:
    """Elements that a thread copies of a tile, places that several windows read once."""
    axes = kernel.axes()
    points = {name: min(axes[name].tile, axes[name].extent) for name in load.indices}
    walked = {min(axis.names): axis for axis in sliding_axes(kernel, load)}
    places = number_of_places(walked, points)
    beside = {name for axis in walked.values() for name in axis.names}
    alone = (points[name] for name in points if name not in beside)
    return math.ceil(math.prod([*places.values(), *alone]) / kernel.tile_threads)


def _registers(indices: tuple[str, ...], distribution: Distribution) -> int:
    return math.prod(
        distribution.registers(index) for index in indices if index in distribution.factors
    )
