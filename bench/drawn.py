"""How good the best predicted kernels are: raced against legal ones that were drawn at random.

Of each launch the K best predicted and so many drawn candidates are built, checked and timed, one
launch varied at a time. The measure is the best median of all over the best of the K best: 1 where
prediction has found the best, below where a random candidate beat it.
"""

from collections.abc import Callable, Iterator
from typing import Any

from eqsat.bench import variants
from eqsat.bench.check import Reference, measured_error
from eqsat.bench.contender import Contender, Device, Sets
from eqsat.bench.timing import interleave
from eqsat.kernel.ir import Kernel
from eqsat.program import Program

Record = dict[str, Any]

NEAR = 1.3  # times the best of the first look: what is slower is not raced
MOST_NEAR = 16  # drawn candidates that are raced


class DeviceLostError(Exception):
    """No further candidate can run; says after which one."""


def race_drawn(
    program: Program,
    best: int,
    rounds: int,
    sets: Sets,
    expected: Reference,
    device: Device,
    say: Callable[[str], None],
) -> Record:
    """The record of a race: `best` and `drawn` (name, median_ms, what), `ratio`, the entries.

    A first look times all of them one after another; those near its best then run interleaved.
    Every entry has its status, error and predicted_ms; `look_ms` of the first look, `median_ms` of
    the race where it took part.
    """
    planned = variants.Variant("the program", "", program, program.parts.launches)
    predicted = [planned, *variants.candidates(program, best)]
    others = list(variants.drawn(program))
    device.build(_kernels((*predicted, *others)))
    entries: list[Record] = []
    right: dict[str, tuple[float, Record]] = {}
    contenders: dict[str, Contender] = {}
    for variant in (*predicted, *others):
        say(f"look at {variant.name}")
        entry: Record = {
            "name": variant.name,
            "drawn": variant in others,
            "about": variant.about,
            "predicted_ms": variant.predicted * 1e3,
        }
        entries.append(entry)
        try:
            made = device.variant(variant.name, variant.program, variant.launches, sets)
            entry["error"] = measured_error(made, expected, device)
            look = min(made.block() for _ in range(2))
        except Exception as error:  # a candidate may not build, whatever a driver raises
            entry |= {"status": "failed", "message": f"{type(error).__name__}: {error}"[:500]}
            _still_there(device, variant, error)
            continue
        if not entry["error"] <= expected.whole.tolerance:  # also where it is NaN
            entry["status"] = "wrong"
            continue
        entry |= {"status": "ok", "look_ms": look * 1e3}
        right[variant.name] = look, entry
        least = min(seconds for seconds, _ in right.values())
        contenders[variant.name] = made
        for name in list(contenders):
            if right[name][1]["drawn"] and right[name][0] > NEAR * least:
                del contenders[name]  # and its memory
    near = sorted((right[n][0], n) for n in contenders if right[n][1]["drawn"])
    raced = [c for n, c in contenders.items() if not right[n][1]["drawn"]]
    raced += [contenders[name] for _, name in near[:MOST_NEAR]]
    say(f"race {len(raced)}")
    timings = interleave(raced, rounds, device.pause_seconds)
    for name, timing in timings.items():
        right[name][1].update(timing.record())
    return _summary(entries)


def _still_there(device: Device, variant: variants.Variant, error: Exception) -> None:
    """Raise DeviceLostError where a candidate has left the device unusable."""
    try:
        device.release()
    except Exception:  # the driver's own error, of any class
        raise DeviceLostError(
            f"{variant.name} ({variant.about}) lost the device: {error}"
        ) from error


def _kernels(found: tuple[variants.Variant, ...]) -> list[Kernel]:
    launched = (launch.kernel for variant in found for launch in variant.launches)
    return list(dict.fromkeys(one for one in launched if isinstance(one, Kernel)))


def _summary(entries: list[Record]) -> Record:
    """The best of either kind, and their ratio; null where one of them has no right candidate."""
    found: Record = {"entries": entries}
    for key, is_drawn in (("best", False), ("drawn", True)):
        own = [one for one in entries if one["status"] == "ok" and one["drawn"] == is_drawn]
        winner = min(own, key=_milliseconds, default=None)
        found[key] = winner and {
            "name": winner["name"],
            "median_ms": _milliseconds(winner),
            "predicted_ms": winner["predicted_ms"],
            "about": winner["about"],
            "count": len(own),
        }
    times = [found[key]["median_ms"] for key in ("best", "drawn") if found[key]]
    found["ratio"] = min(times) / times[0] if found["best"] else None
    return found


def _milliseconds(entry: Record) -> float:
    """The median of the race, or of what took no part the first look."""
    return entry.get("median_ms", entry["look_ms"])


def faulty(record: Record) -> Iterator[Record]:
    """Entries of a race that were wrong or failed."""
    yield from (one for one in record.get("entries", ()) if one["status"] != "ok")
