"""Launches that compute what another one before them has: what products of several regions have
laid out for them of one array is laid out once.
"""

from collections import Counter
from dataclasses import replace

from eqsat.kernel.ir import Kernel, with_accesses
from eqsat.program import Launch, Parts, read_and_written


def without_repeats(parts: Parts) -> Parts:
    """The parts with each such launch once, what it writes read by all. All of them where one has
    alternatives: these need not write it.
    """
    if any(launch.alternatives for launch in parts.launches):
        return parts
    writers = Counter(n for launch in parts.launches for n in read_and_written(launch)[1])
    outputs = {name for name, _, _ in parts.outputs}
    known: dict[object, Launch] = {}
    place: dict[str, str] = {}
    found: list[Launch] = []
    for launch in parts.launches:
        own = tuple(place.get(name, name) for name in launch.buffers)
        launch = replace(launch, buffers=own)
        read, written = read_and_written(launch)
        plain = all(parts.buffers[n].role == "temporary" and n not in outputs for n in written)
        settled = all(writers[n] <= 1 for n in read | written) and not read & written
        if isinstance(launch.kernel, Kernel) and plain and settled:
            given = tuple(name for name in own if name in read)
            first = known.setdefault((_unnamed(launch.kernel), given), launch)
            if first is not launch:
                place |= dict(zip(own, first.buffers, strict=True))
                continue
        found.append(launch)
    used = {name for launch in found for name in launch.buffers}
    given = {argument.buffer for argument in parts.arguments}
    kept = {n: b for n, b in parts.buffers.items() if n in used or n in outputs or n in given}
    return replace(parts, buffers=kept, launches=tuple(found))


def _unnamed(kernel: Kernel) -> Kernel:
    """The kernel with numbers for names of its own and of its buffers, and no word of how it came
    about.
    """
    names = {buffer.name: str(place) for place, buffer in enumerate(kernel.buffers)}
    buffers = tuple(replace(one, name=names[one.name]) for one in kernel.buffers)
    plain = with_accesses(kernel, lambda access: replace(access, buffer=names[access.buffer]))
    return replace(plain, name="", buffers=buffers, rules=())
