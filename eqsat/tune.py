"""Measure the best few kernels of each region on the device, and keep the fastest.

A candidate is one kernel, or several that follow one another; one that finishes what others begin
is measured after them. A candidate whose results differ from those of the best predicted is
refused: prediction may err, answers may not.

What a program is given lies in memory as a rule, not in a cache: kernels are measured over several
sets of arrays in turn, save for what a kernel before them has just written.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eqsat.cache.store import Cache, content_key
from eqsat.graph.dtypes import DType, iinfo
from eqsat.kernel.ir import Access, Buffer, Kernel, Load, Map, Statement
from eqsat.program import Backend, Launch, read_and_written
from eqsat.version import code_digest

ROUNDS = 7
FASTER = 0.99  # times the seconds of the best predicted, from where on another is faster,
MOSTLY = 6  # and in how many rounds it has to be
MOST_SETS = 64  # of arrays
SAMPLED = 1 << 20  # random numbers drawn, and results compared, of an array

Candidate = tuple[Launch, ...]


class TuneWarning(UserWarning):
    """A candidate that was refused: its results differ, or it did not run."""


def fastest(launches: Sequence[Launch], backend: Backend, store: Cache) -> tuple[Launch, ...]:
    """The launches with the fastest of each one's candidates; what was measured is remembered."""
    known: dict[tuple[str, ...], tuple[int, float | None]] = {}
    result: list[Launch] = []
    waiting = list(launches)
    made: set[str] = set()
    before: Candidate = ()  # launches that the next ones finish
    while waiting:
        first = waiting[0]
        own, after = waiting[: 1 + first.followers], waiting[1 + first.followers :]
        candidates = [(*before, *other) for other in (own, *first.alternatives)]
        prints = tuple(map(_fingerprint, candidates))
        if prints not in known:
            whole = candidates[0]
            warm = {name for one in whole for name, program in _names(one) if program in made}
            known[prints] = _fastest(candidates, prints, warm, backend, store)
        place, seconds = known[prints]
        head, *tail = candidates[place][len(before) :]
        result.append(replace(head, measured=seconds))
        made |= read_and_written(head)[1]
        before = (*before, head) if tail else ()
        waiting = [*tail, *after]
    return tuple(result)


def _fingerprint(candidate: Candidate) -> str:
    return " ".join(launch.kernel.fingerprint for launch in candidate)


def _names(launch: Launch) -> Iterator[tuple[str, str]]:
    """The names of each of its buffers, as the kernel's parameter and in the program."""
    for parameter, name in zip(launch.kernel.buffers, launch.buffers, strict=True):
        yield parameter.name, name


def _fastest(
    candidates: Sequence[Candidate],
    prints: Sequence[str],
    warm: set[str],
    backend: Backend,
    store: Cache,
) -> tuple[int, float | None]:
    """The place of the fastest candidate, and its seconds if any was measured. `warm`: what lies in
    the cache when they run.
    """
    if len(candidates) == 1:
        return 0, None
    key = content_key("tuned", backend.device, code_digest(), *sorted(warm), *prints)
    record = store.get("tuned", key)
    if record is not None and record.get("winner") in prints:
        place = prints.index(record["winner"])
        return place, record["seconds"][place]
    backend.build(list({launch.kernel: None for one in candidates for launch in one}))
    arrays = _sample(candidates, backend)
    expected = _run(candidates[0], arrays, backend)
    sound = [_is_sound(candidate, arrays, expected, backend) for candidate in candidates]
    seconds = _measured(candidates, sound, _sets(arrays, candidates, warm, backend), backend)
    place = _least(seconds)
    found = [float(s) if np.isfinite(s) else None for s in np.median(seconds, axis=0)]
    store.put("tuned", key, {"winner": prints[place], "seconds": found})
    return place, found[place]


def _least(seconds: np.ndarray) -> int:
    """The place of the least in most rounds; the first, where none is so by more than runs differ.

    Compared are times of the same round: the clock of a device goes up and down with its power.
    """
    parts = seconds / seconds[:, :1]
    usual = np.median(parts, axis=0)
    usual[(parts < 1).sum(axis=0) < MOSTLY] = np.inf
    place = int(np.argmin(usual))
    return place if usual[place] <= FASTER else 0


def _loaded(kernel: Kernel) -> set[str]:
    loads = (s for s in kernel.statements() if isinstance(s, Load))
    loaded = {access.buffer for load in loads for access in load.accesses}
    return loaded | {buffer.name for buffer in kernel.workspace}


def _stored(kernel: Kernel) -> set[str]:
    stored = {store.access.buffer for phase in kernel.phases for store in phase.stores}
    return stored | {buffer.name for buffer in kernel.workspace if buffer.role != "zeroed"}


def _buffers(candidate: Candidate) -> dict[str, Buffer]:
    """The parameters of its kernels, which know one another's by name."""
    return {buffer.name: buffer for launch in candidate for buffer in launch.kernel.buffers}


def _sample(candidates: Sequence[Candidate], backend: Backend) -> dict[str, Any]:
    """Device arrays for what candidates read: normal floats, places where integers are places, else
    small non-negative integers.
    """
    generator = np.random.default_rng(0)
    counts = _places(candidates)
    arrays = {}
    for candidate in candidates:
        made: set[str] = set().union(*(_stored(launch.kernel) for launch in candidate))
        for name, buffer in _buffers(candidate).items():
            if name in made or name in arrays:
                continue
            if buffer.role == "zeroed":
                arrays[name] = backend.constant(np.zeros(buffer.shape, buffer.dtype.numpy))
                continue
            few = min(buffer.size, SAMPLED)
            if buffer.dtype.kind == "float":
                values = generator.standard_normal(few, np.float32).astype(buffer.dtype.numpy)
            else:
                below = _below(buffer.dtype, counts.get(name, 2))
                values = generator.integers(0, below, few).astype(buffer.dtype.numpy)
            arrays[name] = backend.constant(np.resize(values, buffer.shape))
    return arrays


def _below(dtype: DType, count: int) -> int:
    """So many places, or as many as the dtype can number."""
    return min(count, 2 if dtype.kind == "bool" else int(iinfo(dtype).max) + 1)


def _places(candidates: Sequence[Candidate]) -> dict[str, int]:
    """Of each buffer whose integers are places in memory: how many of them every kernel has."""
    counts: dict[str, int] = {}
    for kernel in (launch.kernel for candidate in candidates for launch in candidate):
        made = {s.name: s for s in kernel.statements()}
        for access in _accesses(kernel):
            for at in access.coordinates:
                for buffer in _sources(at.value, made):
                    counts[buffer] = min(counts.get(buffer, at.extent), at.extent)
    return counts


def _accesses(kernel: Kernel) -> Iterator[Access]:
    yield from (a for s in kernel.statements() if isinstance(s, Load) for a in s.accesses)
    for phase in kernel.phases:
        yield from (store.access for store in phase.stores)


def _sources(name: str, made: Mapping[str, Statement]) -> Iterator[str]:
    """The buffers from which a value is read, be it converted, clipped or one of several."""
    match made.get(name):
        case Load(access=access):
            yield access.buffer
        case Map(op="cast", arguments=(one,)):
            yield from _sources(one, made)
        case (
            Map(op="where", arguments=(_, first, second))
            | Map(op="minimum" | "maximum", arguments=(first, second))
        ):
            yield from _sources(first, made)
            yield from _sources(second, made)


def _named(candidate: Candidate) -> list[Launch]:
    """Its launches over buffers named as the kernels' own parameters."""
    return [
        replace(launch, buffers=tuple(buffer.name for buffer in launch.kernel.buffers))
        for launch in candidate
    ]


def _empty(candidate: Candidate, arrays: dict[str, Any], backend: Backend) -> dict[str, Any]:
    """Device arrays for what it writes."""
    return {
        name: backend.empty(buffer.shape, buffer.dtype)
        for name, buffer in _buffers(candidate).items()
        if name not in arrays
    }


def _run(candidate: Candidate, arrays: dict[str, Any], backend: Backend) -> dict[str, np.ndarray]:
    """What it leaves in the buffers that none of its kernels reads."""
    written = _empty(candidate, arrays, backend)
    backend.prepare(_named(candidate))({**arrays, **written})
    between: set[str] = set().union(*(_loaded(launch.kernel) for launch in candidate))
    buffers = _buffers(candidate)
    return {
        name: _host(array, backend, buffers[name].dtype)
        for name, array in written.items()
        if name not in between
    }


def _host(array: Any, backend: Backend, dtype: DType) -> np.ndarray:
    given = np.asarray(backend.host(array, dtype)).reshape(-1)
    given = given[:: max(1, given.size // SAMPLED)]
    return given.astype(np.float64) if dtype.kind == "float" else given


def _sets(
    arrays: dict[str, Any], candidates: Sequence[Candidate], warm: set[str], backend: Backend
) -> list[dict[str, Any]]:
    """The arrays, and as many copies of those that are cold as drive them out of the caches."""
    sizes = [
        {name: buffer.size * buffer.dtype.itemsize for name, buffer in _buffers(one).items()}
        for one in candidates
    ]
    kept = {name for one in sizes for name in one if one[name] <= backend.cold_bytes / 4} & warm
    moved = max(sum(size for name, size in one.items() if name not in kept) for one in sizes)
    count = min(backend.cold_bytes // max(moved, 1), MOST_SETS - 1)
    cold = arrays.keys() - kept
    copies = ({name: backend.copy(arrays[name]) for name in cold} for _ in range(count))
    return [arrays, *({**arrays, **own} for own in copies)]


def _measured(
    candidates: Sequence[Candidate],
    sound: Sequence[bool],
    sets: Sequence[dict[str, Any]],
    backend: Backend,
) -> np.ndarray:
    """Seconds of a run (round, candidate), infinite for candidates that are not sound. They take
    turns, there and back, and the first does not count: a device that gets warm slows down, and
    would favour those that come first.
    """
    kept: dict[tuple[Any, ...], Any] = {}
    timers = {}
    for place, candidate in enumerate(candidates):
        if sound[place]:
            own = [dict(arrays) for arrays in sets]
            for name, buffer in _buffers(candidate).items():
                for number in range(len(sets)) if name not in sets[0] else ():
                    key = (name, buffer.shape, buffer.dtype, number)
                    if key not in kept:
                        kept[key] = backend.empty(buffer.shape, buffer.dtype)
                    own[number][name] = kept[key]
            timers[place] = backend.timer(backend.prepare(_named(candidate)), own)
    seconds = np.full((1 + ROUNDS, len(candidates)), np.inf)
    for turn, row in enumerate(seconds):
        for place in sorted(timers, reverse=turn % 2 == 1):
            row[place] = timers[place]()
    return seconds[1:]


def _is_sound(
    candidate: Candidate, arrays: dict[str, Any], expected: dict[str, np.ndarray], backend: Backend
) -> bool:
    """Whether a candidate runs, and gives what is expected."""
    try:
        found = _run(candidate, arrays, backend)
    except Exception as error:  # whatever a compiler or driver raises
        _refuse(candidate, f"it does not run: {error}")
        return False
    for name, values in found.items():
        if not _is_near(values, expected[name]):
            _refuse(candidate, f"its {name} differs from that of the best predicted kernel")
            return False
    return True


def _is_near(values: np.ndarray, expected: np.ndarray) -> bool:
    """Whether values are as expected, and infinite where that is: what is drawn at random may grow
    beyond all numbers, in a recurrence say. NaN is what NaN is expected for alone.
    """
    finite = np.isfinite(expected)
    scale = np.abs(expected[finite]).max(initial=1.0)
    near = np.isclose(values[finite], expected[finite], rtol=2e-2, atol=2e-2 * scale)
    beyond = np.isnan(values[~finite]) == np.isnan(expected[~finite])
    return bool(near.all() and beyond.all() and not np.isfinite(values[~finite]).any())


def _refuse(candidate: Candidate, why: str) -> None:
    kernel = candidate[0].kernel
    rules = ", ".join(kernel.rules)
    warnings.warn(f"a candidate of {kernel.name} ({rules}) is refused: {why}", TuneWarning, 3)
