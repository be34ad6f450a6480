"""Timing of the encoder beside its peers, kernel by kernel if asked, and the tables of both."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from eqsat import Cache, Program
from eqsat.codegen.targets import TARGETS
from eqsat.kernel.ir import Contract, Kernel, Load, Map, Reduce, Scan
from eqsat.specs import ParallelProcessingUnit

PAUSE_SECONDS = 0.2  # idle OpenBLAS threads of the contender before spin for about 0.1 s


@dataclass(frozen=True)
class Contender:
    """A way to compute the answer: `run` returns when it is there, `host` copies it to NumPy."""

    name: str
    run: Callable[[], Any]
    host: Callable[[Any], np.ndarray] = np.asarray

    def error(self, reference: np.ndarray) -> float:
        """The largest absolute difference from the reference; NaN where the answer has one."""
        return float(np.abs(self.host(self.run()).astype(np.float64) - reference).max())


@dataclass(frozen=True)
class Timing:
    """Seconds of each round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle round."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The slowest round over the fastest."""
        return max(self.seconds) / min(self.seconds)


def interleave(
    contenders: Sequence[Contender], rounds: int, after_round: Callable[[], None]
) -> dict[str, Timing]:
    """Run every contender once a round, after one that does not count.

    Each round starts with the next contender, so that none always follows the same one.
    """
    seconds: dict[str, list[float]] = {one.name: [] for one in contenders}
    for one in contenders:
        one.run()
    for turn in range(rounds):
        first = turn % len(contenders)
        for one in (*contenders[first:], *contenders[:first]):
            time.sleep(PAUSE_SECONDS)
            started = time.perf_counter()
            one.run()
            seconds[one.name].append(time.perf_counter() - started)
        after_round()
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def speed_table(timings: Mapping[str, Timing], errors: Mapping[str, float], base: str) -> Table:
    """Times and errors, and how many times the speed of `base` each has."""
    table = Table("", "median", "fastest", "slowest", f"speed ({base} = 1)", "max error")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, timing in timings.items():
        table.add_row(
            name,
            _time(timing.median),
            _time(min(timing.seconds)),
            _time(max(timing.seconds)),
            f"{timings[base].median / timing.median:.2f}",
            f"{errors[name]:.1e}",
        )
    return table


def similarity_table(sentences: Sequence[str], vectors: np.ndarray) -> Table:
    """Cosines between sentence vectors of unit length."""
    cosines = vectors @ vectors.T
    table = Table("", "sentence", *(str(i + 1) for i in range(len(sentences))))
    for i, sentence in enumerate(sentences):
        short = sentence if len(sentence) <= 48 else f"{sentence[:47]}…"
        table.add_row(str(i + 1), short, *(f"{value:.2f}" for value in cosines[i]))
    return table


# --- kernel by kernel ---


@dataclass(frozen=True)
class KernelTiming:
    """A distinct kernel: how often a run launches it, and the seconds of all those launches."""

    kernel: Kernel
    launches: int
    predicted: float
    measured: float
    bottleneck: str


def profile(
    program: Program,
    spec: ParallelProcessingUnit,
    inputs: Mapping[str, np.ndarray],
    wait: Callable[[], None],
    rounds: int,
) -> list[KernelTiming]:
    """Each launch timed by itself, in the order of the program: the median of the rounds."""
    parts = program.parts
    backend = TARGETS[spec.target].backend(spec, Cache.open().code_dir)
    arrays = {name: backend.constant(value) for name, value in parts.constants.items()}
    for argument in parts.arguments:
        arrays[argument.buffer] = backend.receive(inputs[argument.name], argument)
    for name, buffer in parts.buffers.items():
        if name not in arrays:
            arrays[name] = backend.empty(buffer.shape, buffer.dtype)
    runs = [backend.prepare([launch]) for launch in parts.launches]
    seconds: list[list[float]] = [[] for _ in runs]
    for turn in range(rounds + 1):  # the first one warms up
        for run, times in zip(runs, seconds, strict=True):
            started = time.perf_counter()
            run(arrays)
            wait()
            if turn:
                times.append(time.perf_counter() - started)
    rows: dict[str, KernelTiming] = {}
    for launch, times in zip(parts.launches, seconds, strict=True):
        key = launch.kernel.fingerprint
        known = rows.get(key, KernelTiming(launch.kernel, 0, 0.0, 0.0, launch.bottleneck))
        rows[key] = KernelTiming(
            known.kernel,
            known.launches + 1,
            known.predicted + launch.seconds,
            known.measured + statistics.median(times),
            known.bottleneck,
        )
    return list(rows.values())


def profile_table(rows: Sequence[KernelTiming]) -> Table:
    """One row for each distinct kernel, in the order of first launch; times of all its launches."""
    table = Table(show_footer=True, title="Kernels, with the times of all runs of each")
    predicted, measured = sum(r.predicted for r in rows), sum(r.measured for r in rows)
    table.add_column("kernel", no_wrap=True)
    table.add_column("runs", f"{sum(r.launches for r in rows)}", justify="right")
    table.add_column("tile/extent of grid; of streams")
    table.add_column("computes")
    table.add_column("predicted", _time(predicted), justify="right", no_wrap=True)
    table.add_column("measured", _time(measured), justify="right", no_wrap=True)
    table.add_column("share", "100%", justify="right")
    table.add_column("ratio", f"{measured / predicted:.2f}x", justify="right")
    table.add_column("limit")
    for i, row in enumerate(rows):
        table.add_row(
            f"{i} {row.kernel.name}",
            str(row.launches),
            _loops(row.kernel),
            _computes(row.kernel),
            _time(row.predicted),
            _time(row.measured),
            f"{row.measured / measured:.0%}",
            f"{row.measured / row.predicted:.2f}x",
            row.bottleneck,
        )
    return table


def _loops(kernel: Kernel) -> str:
    loops = [(axis.name, axis.tile, axis.extent) for axis in kernel.grid]
    text = " ".join(f"{name}:{tile}/{extent}" for name, tile, extent in loops) or "one tile"
    for phase in kernel.phases:
        text += "".join(f"; {axis.name}:{axis.tile}/{axis.extent}" for axis in phase.stream)
    return text


def _computes(kernel: Kernel) -> str:
    """What a kernel consists of: contractions and reductions, then maps by number."""
    found: Counter[str] = Counter()
    maps = 0
    for statement in kernel.statements():
        match statement:
            case Contract(operation=operation):
                found[operation or "contract"] += 1
            case Reduce(monoid=monoid) | Scan(monoid=monoid):
                found[monoid] += 1
            case Map(op="exp" | "erf" | "one_plus_erf" | "tanh" | "log" as op):
                found[op] += 1
            case Map():
                maps += 1
            case Load(access=access) if access.coordinates:
                found["gather"] += 1
            case _:
                continue
    named = [f"{count} {name}" if count > 1 else name for name, count in found.items()]
    return ", ".join([*named, *([f"{maps} maps"] if maps else [])]) or "copy"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"
