"""Checks across the parts of a spec: every name that one part uses is defined by another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .fields import SOURCED, did_you_mean

THREAD = "thread"
LEAST_THREADS = 128  # of a tile: four warps, or a warpgroup


@dataclass(frozen=True)
class Problem:
    """What is wrong at one key of one part; `section` is "" for the unit's own keys, `entry` the
    faulty key of a table.
    """

    section: str
    position: int
    key: str
    text: str
    label: str = ""
    entry: str = ""

    @property
    def where(self) -> str:
        """As "operations `mma`, extents"."""
        return f"{self.section} `{self.label}`, {self.key}" if self.section else self.key


def reference_problems(
    tile_group: str,
    groups: Sequence[Any],
    memories: Sequence[Any],
    operations: Sequence[Any],
) -> Iterator[Problem]:
    """Every unresolved, repeated or inconsistent name."""
    group_names = [group.name for group in groups]
    memory_names = [memory.name for memory in memories]
    for section, parts in (
        ("parallel_groups", groups),
        ("memory_domains", memories),
        ("operations", operations),
    ):
        if not parts and section != "operations":
            yield Problem("", 0, section, f"is empty. Add at least one [[{section}]] table.")
        yield from _repeated(section, parts)
    if groups and tile_group not in group_names:
        yield Problem("", 0, "tile_group", _unknown("group", tile_group, group_names))
    for position, group in enumerate(groups):
        if group.name == tile_group and not group.count:
            text = "is 0: tiles run on so many processors at once. Give their number."
            yield Problem("parallel_groups", position, "count", text, group.name)
    yield from _group_problems(groups, group_names)
    yield from _thread_problems(tile_group, groups)
    for position, memory in enumerate(memories):
        if memory.shared_across not in group_names:
            text = _unknown("group", memory.shared_across, group_names)
            yield Problem("memory_domains", position, "shared_across", text, memory.name)
        if memory.max_per_group_bytes > memory.size_bytes:
            yield Problem(
                "memory_domains",
                position,
                "max_per_group_bytes",
                f"is {memory.max_per_group_bytes}, above size_bytes = {memory.size_bytes}.\n"
                "Lower it, or leave it out.",
                memory.name,
            )
    for position, operation in enumerate(operations):
        for key, text in _operation_problems(operation, group_names, memory_names):
            yield Problem("operations", position, key, text, operation.name)


def _unknown(kind: str, name: str, known: Sequence[str]) -> str:
    return f"names the unknown {kind} `{name}`.\n{did_you_mean(name, known)}"


def _repeated(section: str, parts: Sequence[Any]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for position, part in enumerate(parts):
        if first.setdefault(part.name, position) != position:
            text = f"is used twice in {section}. Rename or delete one."
            yield Problem(section, position, "name", text, part.name)


def _thread_problems(tile_group: str, groups: Sequence[Any]) -> Iterator[Problem]:
    """Where a processor holds several tiles at once, threads share them: how many are at work, and
    how many a tile has.
    """
    known = {group.name: (position, group) for position, group in enumerate(groups)}
    place, tile = known.get(tile_group, (0, None))
    if tile is None or tile.max_resident < 2:
        return
    if THREAD not in known:
        text = f"has no `{THREAD}`, of which `{tile_group}` holds many. Add it, with its count."
        yield Problem("", 0, "parallel_groups", text)
        return
    position, thread = known[THREAD]
    if not thread.count:
        text = "is 0: so many run at once on the whole device. Give their number."
        yield Problem("parallel_groups", position, "count", text, THREAD)
    held, group = 1, tile
    while group is not None and group.name != THREAD:
        held, group = held * group.size, known.get(group.contains, (0, None))[1]
    if group is not None and held < LEAST_THREADS:
        text = (
            f"makes for {held} threads; tiles have {LEAST_THREADS} at least.\n"
            f"Raise it, or that of what `{tile_group}` contains."
        )
        yield Problem("parallel_groups", place, "size", text, tile_group)


def _group_problems(groups: Sequence[Any], known: Sequence[str]) -> Iterator[Problem]:
    seen: list[str] = []
    for position, group in enumerate(groups):
        inner = group.contains
        if inner and inner not in known:
            text = _unknown("group", inner, known)
            yield Problem("parallel_groups", position, "contains", text, group.name)
        elif inner and inner not in seen:
            text = f"is `{inner}`, which comes later. List the groups innermost first."
            yield Problem("parallel_groups", position, "contains", text, group.name)
        seen.append(group.name)


def _operation_problems(
    operation: Any, groups: Sequence[str], memories: Sequence[str]
) -> Iterator[tuple[str, str]]:
    for key in ("supported_by", "throughput_group"):
        used = getattr(operation, key)
        if used not in groups:
            yield key, _unknown("group", used, groups)
    for operand, memory in operation.operand_memory.items():
        if memory not in memories:
            yield "operand_memory", f"{operand} {_unknown('memory domain', memory, memories)}"
    for target in operation.native_implementation:
        if target not in SOURCED:
            text = f"is for target `{target}`, which reads none: {' and '.join(SOURCED)} do.\n"
            text += "Remove it, and name a row of that target's emitter by invocation_name."
            yield "native_implementation", text
    semantics = operation.semantics
    if semantics is None:
        if not operation.implements:
            text = "is missing, and so is `implements`.\nSay what it computes by one of the two."
            yield "semantics", text
        elif any("a" not in row for row in operation.supported_data_types):
            text = 'lacks operand `a`. Elementwise rows are found by its dtype: {a = "float32"}.'
            yield "supported_data_types", text
        return
    for index in semantics.index_names:
        if index not in operation.extents:
            text = f"lacks index `{index}` of `{semantics}`. \nAdd its extent, or 0 for any."
            yield "extents", text
    for index in operation.extents:
        if index not in semantics.index_names:
            yield "extents", _unknown("index", index, semantics.index_names)
    yield from _operand_problems(operation)


def _operand_problems(operation: Any) -> Iterator[tuple[str, str]]:
    semantics = operation.semantics
    assert semantics is not None
    operands = (semantics.output.operand, *semantics.operands)
    for operand in operation.operand_memory:
        if operand not in operands:
            yield "operand_memory", _unknown("operand", operand, operands)
    for row in operation.supported_data_types:
        for operand in row:
            if operand not in operands:
                yield "supported_data_types", _unknown("operand", operand, operands)
        missing = [operand for operand in operands if operand not in row]
        if missing:
            text = f"lacks operand `{missing[0]}` in one row. Give every operand a dtype."
            yield "supported_data_types", text
    walked = {read.operand: read for read in (semantics.output, *semantics.reads)}
    for operand, index in operation.contiguous.items():
        if operand not in operands:
            yield "contiguous", _unknown("operand", operand, operands)
        elif index not in (own := walked[operand].index_names):
            yield "contiguous", f"{operand} {_unknown('index', index, own)}"
