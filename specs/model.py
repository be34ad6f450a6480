"""The classes of a hardware spec. Every quantity has its unit in its name.

A *processor* is what runs one tile of a kernel's grid: an SM of a GPU, a core of a CPU.
`processing_unit.tile_group` names the group that runs there, its `count` is how many there are.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from eqsat.errors import SpecError

from .fields import MANAGED, TARGETS, did_you_mean, settle_fields, spec_field, table_field
from .frozen_table import FrozenTable
from .functions import FUNCTIONS
from .references import reference_problems
from .semantics import OperationSemantics
from .toml_text import write_unit

NARROW_BITS = 11
"""Of the significands of float16 and tfloat32: what sums of few bits must be good for."""

_EMPTY: FrozenTable[Any] = FrozenTable()


@dataclass(frozen=True)
class ParallelGroup:
    """A level of parallelism: thread < warp < block < grid, lane < core < socket."""

    name: str = spec_field("name")
    contains: str = spec_field("name", "", optional=True)
    """The group next inside, "" for the innermost."""
    size: int = spec_field("count", 1, positive=True)
    """At most so many of the inner group in one."""
    count: int = spec_field("count", 0)
    """So many execute at once on the whole device; 0 where hardware sets no number."""
    max_resident: int = spec_field("count", 0)
    """At most so many are resident on one processor; 0 for no limit."""
    barrier_latency_cycles: float = spec_field("number", 0.0)
    """A barrier among the members of one group."""
    start_interval_cycles: float = spec_field("number", 0.0)
    """From one start to the next on the whole device, of groups of `size`, whose members must find
    room at once; by the square of the members for smaller ones. 0 where starts do not count."""
    source: str = spec_field("text", "")

    def __post_init__(self) -> None:
        settle_fields(self)


@dataclass(frozen=True)
class ParallelMemory:
    """A memory domain. Sizes are of one instance, bandwidths of the whole device."""

    name: str = spec_field("name")
    size_bytes: int = spec_field("count", positive=True)
    latency_cycles: float = spec_field("number")
    bandwidth_gb_per_s: float = spec_field("number", positive=True)
    """Peak, in 1e9 bytes per second."""
    shared_across: str = spec_field("name")
    """The group whose members all see the same bytes."""
    managed: str = spec_field("choice", "hardware", of=MANAGED)
    """"software": a program places data there; "hardware": a cache, or the memory behind it."""
    access_granularity_bytes: int = spec_field("count", 1, positive=True)
    """What one access moves at least: a sector or a cache line."""
    max_per_group_bytes: int = spec_field("count", 0)
    """At most this much for one `shared_across` group; 0 for size_bytes."""
    reserved_per_group_bytes: int = spec_field("count", 0)
    """Taken from size_bytes by the system for each resident group."""
    banks: int = spec_field("count", 0)
    """Parts that serve one access each at a time; 0 for one."""
    bandwidth_per_processor_gb_per_s: float = spec_field("number", 0.0)
    """The most that one processor alone draws; 0 for bandwidth / processors."""
    write_fraction: float = spec_field("number", 1.0, positive=True, most=1)
    """The part of the peak at which it is written to."""
    sustained_fraction: float = spec_field("number", 1.0, positive=True, most=1)
    """The part of the peak that a tuned kernel reaches."""
    merged_readers: int = spec_field("count", 1, positive=True)
    """Processors side by side whose reads of one line at about the same time are one read of it."""
    source: str = spec_field("text", "")

    def __post_init__(self) -> None:
        settle_fields(self)

    @property
    def limit_per_group_bytes(self) -> int:
        """What one `shared_across` group may take."""
        return self.max_per_group_bytes or self.size_bytes

    @property
    def sustained_gb_per_s(self) -> float:
        """Reachable bandwidth of the whole device, in 1e9 bytes per second."""
        return self.bandwidth_gb_per_s * self.sustained_fraction

    @property
    def write_gb_per_s(self) -> float:
        """Peak of what all processors write to it, in 1e9 bytes per second."""
        return self.bandwidth_gb_per_s * self.write_fraction


@dataclass(frozen=True)
class ParallelOperation:
    """An operation of the hardware; one *invocation* is one execution by one `supported_by` group.

    A copy row counts bytes: its operands are uint8.
    """

    name: str = spec_field("name")
    supported_by: str = spec_field("name")
    """The group that executes one invocation together."""
    supported_data_types: tuple[FrozenTable[str], ...] = spec_field("data_types")
    """Allowed combinations, operand name -> dtype. Elementwise rows name operand a alone."""
    latency_cycles: float = spec_field("number")
    """From issue to a usable result; for a library call its overhead."""
    throughput_per_cycle: float = spec_field("number", positive=True)
    """Invocations per cycle of one `throughput_group` (peak)."""
    throughput_group: str = spec_field("name")
    sustained_fraction: float = spec_field("number", 1.0, positive=True, most=1)
    """The part of the peak that a tuned kernel reaches (power, clocks, issue slots)."""
    product_fraction: float = spec_field("number", 1.0, positive=True, most=1)
    """The part of the throughput that multiply-adds of sums of products reach, factors beside."""
    repeat_cycles: float = spec_field("number", 0.0)
    """From one invocation to the next at the same place in memory; 0 where they do not wait."""
    invocation_name: str = spec_field("text", "", one_line=True)
    """The row of the emitter's table that writes it; trusted source."""
    semantics: OperationSemantics | None = None
    """What it computes; None for elementwise rows, which `implements` describes."""
    extents: FrozenTable[int] = field(default=_EMPTY, metadata=table_field("extents", "{m = 16}"))
    """Index name -> extent of one invocation; 0 for any extent."""
    operand_memory: FrozenTable[str] = field(
        default=_EMPTY, metadata=table_field("names", '{a = "shared"}')
    )
    """Operand -> the memory domain it lies in."""
    alignment_bytes: int = spec_field("count", 1, positive=True)
    """What memory operands must be aligned to."""
    contiguous: FrozenTable[str] = field(default=_EMPTY, metadata=table_field("names", '{b = "k"}'))
    """Operand -> the index along which its elements must lie side by side; others: any index."""
    accumulator_bits: int = spec_field("count", 0)
    """Significand bits that sums keep while they are in the operation's hands; 0 for all of d's."""
    asynchronous: bool = spec_field("flag", False)
    """Completes in the background: other work goes on between issue and wait."""
    implements: FrozenTable[float] = field(
        default=_EMPTY, metadata=table_field("slots", "{exp = 2, add = 1}", keys=FUNCTIONS)
    )
    """A function of FUNCTIONS -> invocations of this operation for one element."""
    native_implementation: FrozenTable[str] = field(
        default=_EMPTY, metadata=table_field("sources", '{oracle = "..."}', keys=TARGETS)
    )
    """Target -> source for an operation without an emitter row; trusted source."""
    description: str = spec_field("text", "")
    source: str = spec_field("text", "")

    def __post_init__(self) -> None:
        settle_fields(self)

    @property
    def updates_per_invocation(self) -> int:
        """The product of the extents (an extent of 0 counts as 1): multiply-adds of an mma."""
        return math.prod(extent for extent in self.extents.values() if extent)

    @cached_property
    def partial_sum(self) -> int:
        """Points of a sum after which it leaves an accumulator of few bits, 0 where it may stay:
        an invocation loses up to a unit of the accumulator, all of them half one of NARROW_BITS.
        """
        if not self.accumulator_bits or self.semantics is None:
            return 0
        depth = math.prod(self.extents[name] for name in self.semantics.reduced_index_names)
        return depth << max(self.accumulator_bits - NARROW_BITS - 1, 0)

    def part_of(self, points: int) -> int:
        """After how many points a sum of so many leaves the accumulator; 0 where it may stay, as
        one no longer than a partial sum may.
        """
        return self.partial_sum if points > self.partial_sum else 0

    @cached_property
    def factor_memories(self) -> tuple[str, ...]:
        """Where the two factors of a contraction lie, the left one first; empty for what is none.
        An operand of no named memory lies in registers.
        """
        pair = self.semantics.contraction if self.semantics else None
        return tuple(self.operand_memory.get(read.operand, "registers") for read in pair or ())

    def supports(self, data_types: Mapping[str, str]) -> bool:
        """Whether one allowed combination has these dtypes at these operands."""
        return any(data_types.items() <= row.items() for row in self.supported_data_types)


Part = TypeVar("Part", ParallelGroup, ParallelMemory, ParallelOperation)


@dataclass(frozen=True)
class ParallelProcessingUnit:
    """A device: its groups (innermost first), memory domains and operations."""

    name: str = spec_field("name")
    target: str = spec_field("choice", of=TARGETS)
    """Which emitter and runner serve it."""
    architecture: str = spec_field("word")
    """As the target's compiler calls it: sm_90a, x86_64."""
    clock_mhz: float = spec_field("number", positive=True)
    launch_latency_us: float = spec_field("number")
    """One kernel launched alone."""
    tile_group: str = spec_field("name")
    """The group that runs one tile of a grid."""
    parallel_groups: tuple[ParallelGroup, ...] = spec_field("parts")
    memory_domains: tuple[ParallelMemory, ...] = spec_field("parts")
    operations: tuple[ParallelOperation, ...] = spec_field("parts")
    graph_launch_latency_us: float = spec_field("number", 0.0)
    """One more kernel within a recorded program (a CUDA graph); 0 for launch_latency_us."""
    description: str = spec_field("text", "")
    sources: tuple[str, ...] = spec_field("texts", ())

    def __post_init__(self) -> None:
        settle_fields(self)
        for problem in reference_problems(
            self.tile_group, self.parallel_groups, self.memory_domains, self.operations
        ):
            raise SpecError(f"spec {self.name}: {problem.where} {problem.text}")

    def group(self, name: str) -> ParallelGroup:
        """The group of that name; SpecError lists the known ones."""
        return self._find("parallel group", name, self.parallel_groups)

    def memory(self, name: str) -> ParallelMemory:
        """The memory domain of that name; SpecError lists the known ones."""
        return self._find("memory domain", name, self.memory_domains)

    def operation(self, name: str) -> ParallelOperation:
        """The operation of that name; SpecError lists the known ones."""
        return self._find("operation", name, self.operations)

    def has_operation(self, name: str) -> bool:
        """Whether an operation has that name."""
        return any(operation.name == name for operation in self.operations)

    def _find(self, kind: str, name: str, parts: tuple[Part, ...]) -> Part:
        for part in parts:
            if part.name == name:
                return part
        known = did_you_mean(name, [part.name for part in parts])
        raise SpecError(f"spec {self.name} has no {kind} `{name}`.\n{known}")

    @cached_property
    def processors(self) -> int:
        """How many processors (SMs, cores) run tiles."""
        return self.group(self.tile_group).count or 1

    @cached_property
    def overlaps(self) -> bool:
        """Whether a processor holds several tiles at once, one of which runs while others wait."""
        return self.group(self.tile_group).max_resident > 1

    def members(self, outer: str, inner: str) -> int:
        """At most so many `inner` groups in one `outer`: members("block", "thread") is 1024."""
        total, group = 1, self.group(outer)
        while group.name != inner:
            if not group.contains:
                self.group(inner)  # an unknown name gets its own message
                raise SpecError(f"spec {self.name}: {outer} does not contain {inner}.")
            total, group = total * group.size, self.group(group.contains)
        return total

    @cached_property
    def main_memory(self) -> ParallelMemory:
        """The memory behind the caches: of what hardware fills, not a program, the largest."""
        return max(self._filled_by_hardware, key=lambda memory: memory.size_bytes)

    @cached_property
    def last_level_cache_bytes(self) -> int:
        """The size of the cache before the main memory; 0 for a device without caches."""
        caches = (m for m in self._filled_by_hardware if m is not self.main_memory)
        return max((memory.size_bytes for memory in caches), default=0)

    @property
    def _filled_by_hardware(self) -> list[ParallelMemory]:
        return [memory for memory in self.memory_domains if memory.managed == "hardware"]

    @cached_property
    def cycles_per_s(self) -> float:
        return self.clock_mhz * 1e6

    def invocations_per_s(self, operation: ParallelOperation) -> float:
        """Sustained invocations per second of the whole device."""
        instances = self.group(operation.throughput_group).count or 1
        per_cycle = operation.throughput_per_cycle * operation.sustained_fraction
        return per_cycle * instances * self.cycles_per_s

    def updates_per_s(self, operation: ParallelOperation) -> float:
        """Sustained updates per second: multiply-adds of a matrix operation, bytes of a copy."""
        return self.invocations_per_s(operation) * operation.updates_per_invocation

    def contractions(
        self, data_type: str, output_data_type: str | None = None, other: str | None = None
    ) -> tuple[ParallelOperation, ...]:
        """The sum-of-products operations whose first factor has `data_type` and whose second has
        that or an `other`, fastest first.
        """
        found: list[ParallelOperation] = []
        for operation in self.operations:
            pair = operation.semantics.contraction if operation.semantics else None
            if pair is None or operation.semantics is None:
                continue
            wanted = {pair[0].operand: data_type, pair[1].operand: other or data_type}
            if output_data_type:
                wanted[operation.semantics.output.operand] = output_data_type
            if operation.supports(wanted):
                found.append(operation)
        return tuple(sorted(found, key=self.updates_per_s, reverse=True))

    def elementwise(
        self, function: str, data_type: str
    ) -> tuple[tuple[ParallelOperation, float], ...]:
        """The rows that serve an elementwise function of a dtype, with invocations per element.

        Several rows add up to one function (exp: one MUFU and two FMA) on pipes that overlap.
        Raises SpecError where the spec has no row.
        """
        rows = self._elementwise_rows.get((function, data_type))
        if rows:
            return rows
        known = dict.fromkeys(name for name, _ in self._elementwise_rows)
        types = [dtype for name, dtype in self._elementwise_rows if name == function]
        if types:
            raise SpecError(
                f"spec {self.name} implements `{function}` for {', '.join(types)}, "
                f"not for {data_type}.\nAdd a row for {data_type}, or cast first."
            )
        raise SpecError(
            f"spec {self.name} has no operation that implements `{function}`.\n"
            f"Add it to an operation's `implements`. {did_you_mean(function, known)}"
        )

    def has_elementwise(self, function: str, data_type: str) -> bool:
        """Whether some row serves an elementwise function of a dtype."""
        return (function, data_type) in self._elementwise_rows

    def elementwise_elements_per_s(self, function: str, data_type: str) -> float:
        """Elements per second of the whole device, bound by the slowest pipe of the function."""
        rows = self.elementwise(function, data_type)
        return min(self.invocations_per_s(operation) / slots for operation, slots in rows)

    @cached_property
    def _elementwise_rows(
        self,
    ) -> dict[tuple[str, str], tuple[tuple[ParallelOperation, float], ...]]:
        table: dict[tuple[str, str], tuple[tuple[ParallelOperation, float], ...]] = {}
        for operation in self.operations:
            for data_type in dict.fromkeys(row.get("a") for row in operation.supported_data_types):
                for function, slots in operation.implements.items():
                    key = (function, str(data_type))
                    table[key] = (*table.get(key, ()), (operation, slots))
        return table

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the spec's TOML text; equal specs have equal fingerprints."""
        return hashlib.sha256(write_unit(self).encode()).hexdigest()

    def without_operation(self, name: str) -> "ParallelProcessingUnit":
        """This device without one operation; SpecError if it has none of that name."""
        gone = self.operation(name)
        return replace(self, operations=tuple(op for op in self.operations if op is not gone))

    def with_operation(self, operation: ParallelOperation) -> "ParallelProcessingUnit":
        """This device with an operation added, or replaced where the name exists."""
        kept = tuple(op for op in self.operations if op.name != operation.name)
        return replace(self, operations=(*kept, operation))

    def replace_operation(self, name: str, **changes: Any) -> "ParallelProcessingUnit":
        """This device with fields of one operation changed."""
        return replace(self, operations=_changed(self.operations, self.operation(name), changes))

    def replace_memory(self, name: str, **changes: Any) -> "ParallelProcessingUnit":
        """This device with fields of one memory domain changed: size_bytes=65536."""
        changed = _changed(self.memory_domains, self.memory(name), changes)
        return replace(self, memory_domains=changed)

    def replace_group(self, name: str, **changes: Any) -> "ParallelProcessingUnit":
        """This device with fields of one group changed: count=64."""
        changed = _changed(self.parallel_groups, self.group(name), changes)
        return replace(self, parallel_groups=changed)


def _changed(parts: tuple[Part, ...], part: Part, changes: Mapping[str, Any]) -> tuple[Part, ...]:
    known = type(part).__dataclass_fields__
    for key in changes:
        if key not in known:
            kind = type(part).__name__
            raise SpecError(f"{kind} has no field `{key}`.\n{did_you_mean(key, known)}")
    return tuple(replace(old, **changes) if old is part else old for old in parts)
