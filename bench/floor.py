"""The least time in which a device can do a row's work, from its spec alone."""

from collections.abc import Mapping
from dataclasses import dataclass

from eqsat.errors import SpecError
from eqsat.specs import ParallelProcessingUnit


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
    best = Floor(bytes_moved / (spec.main_memory.bandwidth_gb_per_s * 1e9), "memory")
    for unit, amount in work.items():
        rate = _rate(spec, unit)
        if rate and amount / rate > best.seconds:
            best = Floor(amount / rate, unit)
    return best


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
