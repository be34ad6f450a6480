"""Kernels of values that differ from others in buffers alone, and in where these are read: found
once. An unrolled loop has the same ones in each step, of other slices of its inputs.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from eqsat.cut.variants import Buffers, Schedule
from eqsat.graph.index import add, const
from eqsat.kernel.ir import Access, Buffer, Kernel, with_accesses
from eqsat.layout.coalesce import coalesce
from eqsat.schedule.scheduling import Predicted
from eqsat.terms.algebra import Facts, Read, Term, post_order
from eqsat.terms.form import Stored

PERIOD = 256  # bytes: reads that begin at multiples of so many are alike


@dataclass(frozen=True)
class _Normal:
    """Values but for their buffers: these in order, and where each is first read; equal keys are of
    values that equal kernels compute.
    """

    key: str
    buffers: tuple[str, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True)
class _Found:
    """The kernels that were found for some values, the name of theirs, and their temporaries."""

    name: str
    stored: tuple[str, ...]
    normal: _Normal
    kernels: tuple[Predicted, ...]
    made: tuple[Buffer, ...]


class Twins:
    """A schedule of values that takes kernels from those of others which are alike."""

    def __init__(self, facts: Facts, schedule: Schedule, constants: Set[str] = frozenset()) -> None:
        self.facts, self.schedule, self.constants = facts, schedule, constants
        self._found: dict[str, _Found] = {}

    def __call__(self, name: str, stored: tuple[Stored, ...], buffers: Buffers) -> list[Predicted]:
        """The kernels, whose temporaries are added to the buffers. Of those that are taken from
        others it is not known where they came from (`Predicted.chosen`).
        """
        normal = _normal(stored, self.facts, buffers, self.constants)
        found = self._found.get(normal.key)
        moved = _moved(found, name, stored, normal, buffers) if found else None
        if moved is not None:
            return moved
        before = {*buffers}
        kernels = self.schedule(name, stored, buffers)
        made = tuple(buffer for n, buffer in buffers.items() if n not in before)
        names = tuple(one.buffer for one in stored)
        self._found[normal.key] = _Found(name, names, normal, tuple(kernels), made)
        return kernels


def _normal(
    stored: tuple[Stored, ...],
    facts: Facts,
    buffers: Mapping[str, Buffer],
    constants: Set[str],
) -> _Normal:
    merged, fewer = coalesce(stored, facts)
    written = {one.buffer for one in stored}
    starts: dict[str, int] = {}
    terms = list(post_order(one.term for one in merged))
    for term in terms:
        for read in term.args:
            if isinstance(read, Read):
                each = PERIOD // read.dtype.itemsize
                start = 0 if read.buffer in written else read.address.constant // each * each
                starts[read.buffer] = min(starts.get(read.buffer, start), start)
    for one in merged:
        starts.setdefault(one.buffer, 0)
    numbers = {buffer: f"b{n}" for n, buffer in enumerate(starts)}
    places: dict[Term, str] = {}

    def text(part: object) -> str:
        if isinstance(part, Term):
            return places[part]
        if isinstance(part, Read):
            address = add(part.address, const(-starts[part.buffer]))
            return repr(replace(part, buffer=numbers[part.buffer], address=address))
        return repr(part)

    lines: list[object] = []
    for term in terms:
        lines.append((term.op, *map(text, term.args)))
        places[term] = f"#{len(places)}"
    for one in merged:
        nowhere = replace(one, buffer=numbers[one.buffer], term=Term("literal", 0, "int64"))
        lines.append((places[one.term], repr(nowhere)))
    known = [buffers.get(buffer) for buffer in starts]
    lines.append([one and (one.shape, one.dtype.name, one.role) for one in known])
    lines.append([buffer in constants for buffer in starts])
    lines.append(sorted(fewer.universe.extents.items()))
    return _Normal(repr(lines), tuple(starts), tuple(starts.values()))


def _moved(
    found: _Found,
    name: str,
    stored: tuple[Stored, ...],
    normal: _Normal,
    buffers: Buffers,
) -> list[Predicted] | None:
    """The kernels of values that are alike, of these buffers; None where a temporary is unknown, or
    has no name that tells whose it is.
    """
    names = dict(zip(found.normal.buffers, normal.buffers, strict=True))
    far = zip(normal.starts, found.normal.starts, strict=True)
    steps = {n: own - other for n, (own, other) in zip(found.normal.buffers, far, strict=True)}
    stems = {f"t{found.name}": f"t{name}"}
    stems |= {f"t{a}": f"t{b.buffer}" for a, b in zip(found.stored, stored, strict=True)}
    made: Buffers = {}
    for buffer in found.made:
        fits = [stem for stem in stems if buffer.name.startswith(stem)]
        if not fits:
            return None
        stem = max(fits, key=len)
        names[buffer.name] = stems[stem] + buffer.name.removeprefix(stem)
        made[names[buffer.name]] = replace(buffer, name=names[buffer.name])
    used = {buffer.name for kernel in _every(found.kernels) for buffer in kernel.buffers}
    if not used <= names.keys() or len({*names.values()}) < len(names) or {*made} & {*buffers}:
        return None
    buffers |= made

    def access(one: Access) -> Access:
        address = add(one.address, const(steps.get(one.buffer, 0)))
        return replace(one, buffer=names[one.buffer], address=address)

    def kernel(one: Kernel) -> Kernel:
        own = tuple(buffers[names[buffer.name]] for buffer in one.buffers)
        own_name = name + one.name.removeprefix(found.name)
        return replace(with_accesses(one, access), name=own_name, buffers=own)

    def change(one: Predicted) -> Predicted:
        return replace(one, kernel=kernel(one.kernel), chosen=None)

    return [one.each(change) for one in found.kernels]


def _every(kernels: Iterable[Predicted]) -> Iterator[Kernel]:
    """The kernels and their alternatives."""
    for one in kernels:
        yield one.kernel
        for other in one.alternatives:
            yield from _every(other)
