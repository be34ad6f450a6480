"""The least time in which a device can do a row's work, from its spec alone."""

from collections.abc import Mapping
from dataclasses import dataclass

from eqsat.errors import SpecError
from eqsat.specs import ParallelMemory, ParallelProcessingUnit


@dataclass(frozen=True)
class Floor:
    """Seconds, and what bounds them: "memory", or a unit with its dtype."""

    seconds: float
    bound: str


def floor(spec: ParallelProcessingUnit, bytes_moved: int, work: Mapping[str, float]) -> Floor:
    """max(bytes / bandwidth, work / rate) at the peak rates; units overlap, launches cost nothing.

    `work`: "contract DTYPE" or "FUNCTION DTYPE" -> multiply-adds or elements; " x3" behind it for
    three passes. A unit that the spec lacks bounds nothing.
    """
    memory = main_memory(spec)
    best = Floor(bytes_moved / (memory.bandwidth_gb_per_s * 1e9), "memory")
    for unit, amount in work.items():
        rate = _rate(spec, unit)
        if rate and amount / rate > best.seconds:
            best = Floor(amount / rate, unit)
    return best


def main_memory(spec: ParallelProcessingUnit) -> ParallelMemory:
    """The memory behind the caches."""
    return max(_cached(spec), key=lambda memory: memory.size_bytes)


def last_level_cache_bytes(spec: ParallelProcessingUnit) -> int:
    """The size of the cache before the main memory; 0 for a device without caches."""
    main = main_memory(spec)
    return max((m.size_bytes for m in _cached(spec) if m is not main), default=0)


def _cached(spec: ParallelProcessingUnit) -> list[ParallelMemory]:
    """The main memory and its caches: what hardware fills, not a program."""
    return [memory for memory in spec.memory_domains if memory.managed == "hardware"]


def _rate(spec: ParallelProcessingUnit, unit: str) -> float:
    """Peak multiply-adds or elements per second; 0 where the spec has no such unit."""
    function, dtype, *passes = unit.split()
    if function != "contract":
        return _elementwise(spec, function, dtype)
    rates = [spec.updates_per_s(op) / op.sustained_fraction for op in spec.contractions(dtype)]
    rate = max([*rates, _elementwise(spec, "fma", dtype)])
    return rate / float(passes[0].removeprefix("x")) if passes else rate


def _elementwise(spec: ParallelProcessingUnit, function: str, dtype: str) -> float:
    try:
        rows = spec.elementwise(function, dtype)
    except SpecError:
        return 0.0
    return min(spec.invocations_per_s(op) / op.sustained_fraction / slots for op, slots in rows)
