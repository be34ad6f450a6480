"""What indices are to the statements of a kernel, as far as it decides who has their points."""

from collections.abc import Collection, Iterable, Sequence
from math import prod

from eqsat.kernel.ir import (
    Access,
    Contract,
    Kernel,
    Literal,
    Load,
    Map,
    Position,
    Reduce,
    Scan,
    Statement,
    operands,
)
from eqsat.kernel.stencils import Walk, held_names, walk
from eqsat.layout.needs import VECTOR_BYTES

from .access import WORD_BYTES, extents_of, unit_stride, vector_width, width_anywhere
from .placement import COMPUTED, SHARED, Placement, register_sets
from .threads import WARP

FEW, PIECES = 4, 16  # points, of which a thread may have all; where nothing is reduced
COORDINATES = 7  # points that a thread reduces by itself: less than the bytes of a sector
MOST_COVERED = 1.2  # times a tile's points that threads hold, for the sake of wide accesses
AGAIN = 1.5  # times the work from where threads do too much of it again


def walked(s: Statement) -> tuple[str, ...]:
    """The indices of the points at which a statement computes."""
    return (*s.indices, *s.over) if isinstance(s, Reduce) else s.indices


def comes_together(kernel: Kernel, placement: Placement) -> bool:
    """Whether all threads of a block take each statement of a kernel together, and may wait for
    each other there: nothing is streamed, and no other block has a part of the tile.
    """
    streams = any(phase.stream for phase in kernel.phases)
    return not streams and kernel.cluster == 1 and not placement.matrices


def widths_anywhere(
    kernel: Kernel,
    placement: Placement,
    index: str,
    accesses: Sequence[tuple[Access, tuple[str, ...]]],
) -> dict[Access, int]:
    """Elements along an index that accesses move at once wherever rows begin; none where not all
    of them may, threads would hold many points that do not exist, aligned accesses of a warp fill
    lines, or chunks are streamed along other indices: few loads are under way then.
    """
    if placement.matrices or placement.serial:
        return {}
    own = {access: indices for access, indices in accesses if index in indices}
    along = {a: kernel.buffer(a.buffer) for a in own if unit_stride(a, index)}
    widths = {a: width_anywhere(a, index, b, placement.indices) for a, b in along.items()}
    if not widths or min(widths.values()) == 1:
        return {}
    streamed = [axis.name for phase in kernel.phases for axis in phase.stream]
    added = {s.access for phase in kernel.phases for s in phase.stores if s.monoid}
    scanned = any(isinstance(s, Scan) and s.over == index for s in kernel.statements())
    aligned = {
        a: vector_width(a, index, b, kernel.axes(), placement.indices) for a, b in along.items()
    }
    narrow = any(aligned[a] * b.dtype.itemsize < WORD_BYTES for a, b in along.items())
    if (streamed and index not in streamed) or added & {*widths} or not (narrow or scanned):
        return {}
    points, width = _points(kernel), max(widths.values())
    volume = max(prod(points[i] for i in indices) for indices in own.values())
    threads = max(kernel.tile_threads * points[index] // volume, WARP)
    covered = min(threads, -(-points[index] // width)) * width
    wasted = -(-points[index] // covered) * covered > MOST_COVERED * points[index]
    return {} if wasted else widths


def _points(kernel: Kernel) -> dict[str, int]:
    """Of each index the points in a tile."""
    return {name: max(min(axis.tile, axis.extent), 1) for name, axis in kernel.axes().items()}


def summed_in_steps(kernel: Kernel) -> set[str]:
    """The indices that each step of a stream of single steps sums over."""
    steps = [phase for phase in kernel.phases if [axis.tile for axis in phase.stream] == [1]]
    sums = [s.over for phase in steps for s in phase.body if isinstance(s, Reduce)]
    return {i for over in sums for i in over} - {axis.name for p in steps for axis in p.stream}


def rows_of_chunks(kernel: Kernel) -> list[str]:
    """The indices of a stream's chunks of which each point has a row that is reduced by itself: as
    far as there are warps each has one, so that few threads wait for each other's sums.
    """
    found: dict[str, None] = {}
    for phase in kernel.phases:
        names = {axis.name for axis in phase.stream if axis.tile > 1}
        inside = [s for s in phase.body if isinstance(s, Reduce) and not {*s.over} & names]
        found |= dict.fromkeys(i for s in inside for i in s.indices if i in names)
    return [*found]


def summed_in_factors(kernel: Kernel, placement: Placement) -> set[str]:
    """The indices over which factors of products alone are summed, as windows are: each thread has
    all of their points, where other indices keep threads at work.
    """
    factors: set[str] = set()
    summed: set[str] = set()
    for s in reversed([*kernel.statements()]):  # users before what they read
        if isinstance(s, Reduce) and s.name in factors:
            summed |= {*s.over}
        if s.name in factors or (isinstance(s, Reduce | Contract) and placement.is_product(s)):
            factors |= {*operands(s)}
    return summed - {i for over in _summed(kernel, placement) for i in over}


def products_only(kernel: Kernel, placement: Placement) -> set[str]:
    """The indices of what scalar products leave, whether that is reduced or not, but for those that
    other products sum over: threads along them share factors.
    """
    left = (placement.indices[name] for name in placement.serial)
    return set().union(*left) - set().union(*_summed(kernel, placement))


def _summed(kernel: Kernel, placement: Placement) -> list[tuple[str, ...]]:
    """The indices that each product sums over, or another reduction whose results share factors."""
    reductions = (s for s in kernel.statements() if isinstance(s, Reduce | Contract))
    return [s.over for s in reductions if placement.is_product(s)]


def rows_of_factors(kernel: Kernel, placement: Placement) -> dict[str, int]:
    """The indices along which factors in shared memory lie together, where multiply-adds read them,
    and how many elements the widest access takes.
    """
    found: dict[str, int] = {}
    for s in kernel.statements():
        if isinstance(s, Load) and placement.where[s.name] == SHARED:
            read = {*placement.users[s.name]} & placement.serial
            unit = _unit(s) if read else []
            found |= dict.fromkeys(unit, VECTOR_BYTES // s.dtype.itemsize)
    return found


def _unit(load: Load) -> list[str]:
    """The indices along which memory holds what is loaded."""
    return [i for i in load.indices if unit_stride(load.access, i)]


def kept_apart(kernel: Kernel, placement: Placement) -> set[str]:
    """The indices along which shared memory holds what threads use element by element: what is
    combined there; and the rows of factors that lie along what multiply-adds sum over, of which
    each thread takes several elements at once.
    """
    stores = (store for phase in kernel.phases for store in phase.stores if store.memory)
    found = {i for store in stores for i in kernel.axes() if unit_stride(store.access, i)}
    for s in kernel.statements():
        if placement.where[s.name] in (SHARED, COMPUTED):
            read = {*placement.users[s.name]} & placement.serial
            over = {i for name in read for i in placement.statements[name].over}
            made_of = placement.chains.get(s.name, (s,))
            along = {i for one in made_of if isinstance(one, Load) for i in _unit(one)}
            along = along or {max(s.indices, key=[*kernel.axes()].index)}  # as it is laid out
            found |= {*s.indices} - over if over & along else set()
    return found


def is_done_again(kernel: Kernel, placement: Placement, index: str) -> bool:
    """Whether threads along an index of few points would all do again most of what there is to do,
    as it lacks the index: the distances of points, say, and what follows from them.
    """
    extents = _points(kernel)
    points, along, beside, most = extents[index], 0, 0, 0
    statements = list(kernel.statements())
    plain = all(isinstance(s, Map | Load | Position | Literal) for s in statements)
    for s in statements:
        if placement.is_product(s):
            return False
        if isinstance(s, Map | Reduce):
            names = {*walked(s)}
            count = prod(extents[name] for name in names)
            along += count if index in names else 0
            beside += 0 if index in names else count
            most = max(most, 0 if index in names else count)
    threads = 1 << (points - 1).bit_length()  # along the index, or none
    turns = [max(most * along_index / kernel.tile_threads, 1.0) for along_index in (threads, 1)]
    again = (along / points + beside) * turns[0] > AGAIN * (along + beside) * turns[1]
    return points <= (PIECES if plain else FEW) and most > 0 and again


def is_summed_alone(kernel: Kernel, placement: Placement, index: str) -> bool:
    """Whether each thread reduces all of an index's few points by itself, such as the coordinates
    of one place, as others keep all threads at work.
    """
    points, extent = _points(kernel), kernel.axes()[index].extent
    sets = (held - {index} for held in register_sets(kernel, placement))
    most = max(prod(points[i] for i in others) for others in sets)
    whole = points[index] == extent <= COORDINATES
    return not placement.matrices and whole and most >= kernel.tile_threads


def is_plain(load: Load) -> bool:
    """Whether a load reads one array, whatever it reads there."""
    return not (load.rest or load.access.coordinates)


def walk_of(kernel: Kernel, load: Load) -> Walk:
    """Where a load reads."""
    access = load.access
    return walk(access.buffer, access.address, access.guards, extents_of(kernel))


def neighbours(kernel: Kernel) -> set[str]:
    """The indices along which each thread has all points of a tile, where nothing is reduced: what
    it reads of their neighbours is the same for several of them.
    """
    statements = [*kernel.statements()]
    if not all(isinstance(s, Map | Load | Position | Literal) for s in statements):
        return set()
    walks = [walk_of(kernel, s) for s in statements if isinstance(s, Load) and is_plain(s)]
    found = held_names(walks, extents_of(kernel), _points(kernel), kernel.tile_threads)
    return {name for name, holds in found.items() if holds}


def interleaved(
    kernel: Kernel, accesses: Iterable[Access], indices: Collection[str]
) -> dict[str, str]:
    """Of some indices those inside which one of few points lies for an access, with that one, such
    as the number of a value that is stacked: a thread has all of its points.
    """
    axes, found = kernel.axes(), dict[str, str]()
    for access in accesses:
        at = {step: str(atom) for atom, step in access.address.terms}
        inside, size = at.get(1, ""), kernel.buffer(access.buffer).dtype.itemsize
        points = min(axes[inside].tile, axes[inside].extent) if inside in axes else 1
        both = {inside, at.get(points, "")}
        if 1 < points <= VECTOR_BYTES // size and both <= {*indices}:
            found[at[points]] = inside
    return found
