"""Which elements a thread may move together: alignment proved from coefficients and tiles."""

from collections.abc import Callable, Iterable, Mapping
from math import gcd, prod

from eqsat.graph.index import Affine, Atom, FloorDiv, divided_names, free_names
from eqsat.kernel.ir import Access, Axis, Buffer, Kernel, Load
from eqsat.layout.needs import VECTOR_BYTES
from eqsat.layout.relayout import WalkedAxis, walked_axes
from eqsat.price.window import neighbours_at_once
from eqsat.terms.algebra import Read

WORD_BYTES = 4  # of the registers in which vectors are shifted


def guarded_read(kernel: Kernel, buffer: str) -> str:
    """The device function that reads an element which may be missing."""
    written = {store.access.buffer for phase in kernel.phases for store in phase.stores}
    return "element_or_zero" if buffer in written else "given_or_zero"


def unit_stride(access: Access, index: str) -> bool:
    """Whether the address moves by one element with the index, but for steps at whole runs."""
    return (index, 1) in access.address.terms and _run(access.address, index) != 1


def run_along(access: Access, index: str, extent: int) -> int:
    """How many neighbouring points of an index lie together in memory: all of them, or as many as
    a quotient or a remainder leaves on.
    """
    if (index, 1) not in access.address.terms:
        return 1
    parts = [
        atom.divisor // max(abs(c) for name, c in atom.numerator.terms if name == index)
        for atom, _ in access.address.terms
        if not isinstance(atom, str) and any(name == index for name, _ in atom.numerator.terms)
    ]
    return min([extent, *parts])


def vector_width(
    access: Access,
    index: str,
    buffer: Buffer,
    axes: Mapping[str, Axis],
    indices_of: Mapping[str, tuple[str, ...]],
) -> int:
    """Elements along `index` that are contiguous, aligned and exist together; at most 16 bytes.

    Holds at coordinates of `index` that are multiples of the width.
    """
    if not unit_stride(access, index):
        return 1
    if any(index in indices_of[c.value] for c in access.coordinates):
        return 1
    axis = axes[index]
    width = VECTOR_BYTES // buffer.dtype.itemsize
    run = _run(access.address, index)
    while width > 1 and not (
        run % width == 0
        and _multiple(access.address, index, width)
        and all(c.stride % width == 0 for c in access.coordinates)
        and axis.extent % width == 0
        and (axis.tile % width == 0 or axis.count == 1)
        and all(_uniform(g.expression, g.lower, g.upper, index, width) for g in access.guards)
    ):
        width //= 2
    return width


def width_anywhere(
    access: Access, index: str, buffer: Buffer, indices_of: Mapping[str, tuple[str, ...]]
) -> int:
    """Elements along `index` that are contiguous and fill the widest access, wherever they begin;
    1 where they need not exist together up to an end of the index, or where accesses of single
    elements are as wide as memory is asked by a warp.
    """
    width = VECTOR_BYTES // buffer.dtype.itemsize
    moved = {name for c in access.coordinates for name in indices_of[c.value]}
    moved |= {name for guard in access.guards for name in free_names(guard.expression)}
    apart = index in moved or index in divided_names(access.address)
    whole = unit_stride(access, index) and not apart and buffer.size >= 2 * width
    return width if whole and buffer.dtype.itemsize <= WORD_BYTES else 1


def vector_along(
    access: Access,
    indices: Iterable[str],
    buffer: Buffer,
    axes: Mapping[str, Axis],
    indices_of: Mapping[str, tuple[str, ...]],
    held: Callable[[str], int],
) -> tuple[str, int]:
    """The index along which a thread's registers are contiguous in memory, and how many.

    `held`: consecutive points of an index in one thread's registers.
    """
    for i in indices:
        count = held(i)
        if count > 1 and unit_stride(access, i):
            width = min(vector_width(access, i, buffer, axes, indices_of), count)
            if width > 1 and count % width == 0:
                return i, width
    return "", 1


def continued(
    access: Access,
    vector: tuple[str, int],
    indices: Iterable[str],
    buffer: Buffer,
    axes: Mapping[str, Axis],
    held: Callable[[str], int],
) -> tuple[str, int]:
    """The index along which a vector that has every point of its own index goes on in memory, and
    how many of its points the widest access takes.
    """
    inner, width = vector
    most = VECTOR_BYTES // buffer.dtype.itemsize // width
    if not inner or axes[inner].extent != width or access.coordinates:
        return "", 1
    for i in indices:
        count = 1 << (min(most, held(i)).bit_length() - 1)  # vectors have a power of two
        while count > 1 and not _continues(access, vector, axes[i], count):
            count //= 2
        if count > 1 and held(i) % count == 0:
            return i, count
    return "", 1


def _continues(access: Access, vector: tuple[str, int], axis: Axis, count: int) -> bool:
    """Whether vectors in a row along an axis lie side by side, aligned, and exist together."""
    (inner, width), address = vector, access.address
    others = [step for atom, step in address.terms if atom not in (inner, axis.name)]
    return (
        (axis.name, width) in address.terms
        and axis.name not in divided_names(address)
        and all(step % (width * count) == 0 for step in (*others, address.constant))
        and axis.extent % count == 0
        and (axis.tile % count == 0 or axis.count == 1)
        and all(_uniform(g.expression, g.lower, g.upper, axis.name, count) for g in access.guards)
        and all(inner not in free_names(g.expression) for g in access.guards)
    )


def sliding_axes(kernel: Kernel, load: Load) -> tuple[WalkedAxis, ...]:
    """The axes of memory along which windows of a load overlap, one of its indices element by
    element.
    """
    if load.access.coordinates or load.rest:
        return ()
    found = walked_axes(_read_of(load), extents_of(kernel)) or ()
    steps = [[step for _, step in axis.place.terms] for axis in found]
    return tuple(a for a, own in zip(found, steps, strict=True) if a.slides and min(own) == 1)


def places_in_vectors(kernel: Kernel, load: Load, axis: WalkedAxis, index: str) -> int:
    """`neighbours_at_once` of a load, where tiles of all indices of the axis are aligned, too, and
    each thread has results enough.
    """
    size = kernel.buffer(load.access.buffer).dtype.itemsize
    width = neighbours_at_once(_read_of(load), axis, index, extents_of(kernel), size)
    own = [kernel.axes()[name] for name in axis.names]
    results = prod(min(a.tile, a.extent) for a in kernel.grid if a.name in load.indices)
    even = all(a.count == 1 or a.tile % width == 0 for a in own) if width else False
    return width if even and results >= width * kernel.tile_threads else 0


def _read_of(load: Load) -> Read:
    return Read(load.access.buffer, load.dtype, load.access.address, load.access.guards)


def extents_of(kernel: Kernel) -> dict[str, int]:
    """How many points lie along each index."""
    return {name: axis.extent for name, axis in kernel.axes().items()}


def _run(expression: Affine, index: str) -> int:
    """How many points of an index, from multiples of that on, have the same quotients: 0 for all of
    them; 1 where a remainder has the index, or a quotient has it otherwise than by itself.
    """
    run = 0
    for atom, _ in expression.terms:
        if isinstance(atom, str) or index not in free_names(atom.numerator):
            continue
        alone = atom.numerator.terms == ((index, 1),) and not atom.numerator.constant
        run = gcd(run, atom.divisor) if isinstance(atom, FloorDiv) and alone else 1
    return run


def _multiple(expression: Affine, index: str, width: int) -> bool:
    """Whether the expression is a multiple of `width` wherever `index` is."""
    others = (coefficient for atom, coefficient in expression.terms if atom != index)
    return expression.constant % width == 0 and all(c % width == 0 for c in others)


def _uniform(expression: Affine, lower: int, upper: int, index: str, width: int) -> bool:
    """Whether lower <= expression < upper has one answer along each vector of `index`."""
    if all(_is_constant(atom, index, width) for atom, _ in expression.terms):
        return True
    if index in divided_names(expression) or (index, 1) not in expression.terms:
        return False
    return _multiple(expression, index, width) and lower % width == 0 and upper % width == 0


def _is_constant(atom: Atom, index: str, width: int) -> bool:
    """Whether an atom has one value along each vector of `index`: quotients that change between
    vectors alone, and whatever is made of these.
    """
    if isinstance(atom, str):
        return atom != index
    terms = atom.numerator.terms
    varying = [one for one in terms if not _is_constant(one[0], index, width)]
    steps = varying == [(index, 1)] and _multiple(atom.numerator, index, width)
    return not varying or (isinstance(atom, FloorDiv) and steps and atom.divisor % width == 0)
