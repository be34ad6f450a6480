"""Reads machine code for what comes too early: accumulators touched while a warpgroup operation
still writes them, global memory before earlier launches are done.

The assembler may move instructions that read registers alone across a wait. A group of operations
ends at `gsb0`; `DEPBAR.LE gsb0, N` returns when all but the N newest groups have finished.
"""

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

# Registers of what is under way, the newest group last: an accumulator by its number, one that
# holds a left factor by FACTOR and its number, since that one may be read.
Groups = tuple[frozenset[int], ...]
FACTOR = 1000

_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_LABEL = re.compile(r"^\s*\.?(\.L_[\w.]+|\.text\.\w+):")
_PRODUCT = re.compile(r"[A-Z]GMMA\.(?:SP\.)?64x(\d+)x\w+\S* (?:R(\d+)), (.*)")
_TARGET = re.compile(r"`\((\.L_\w+)\)")
_GLOBAL = re.compile(r"\b(LDG|STG|LDGSTS|ATOMG|RED|REDG|LD|ST|ATOM|UTMALDG|UTMASTG|UBLKCP)\b")
_OPEN = (frozenset[int](),)  # a group that nothing has been put into


def touched_early(text: str) -> list[str]:
    """The instructions that touch accumulators of groups under way, with their addresses."""
    blocks = _blocks(text)
    names = list(blocks)
    reached: dict[str, Groups] = {names[0]: _OPEN}
    todo, found = [names[0]], dict[str, str]()
    while todo:
        name = todo.pop()
        state, onward = reached[name], True
        targets: list[str] = []
        for address, text in blocks[name]:
            state = _after(state, address, text, found)
            if "BRA" in text and (target := _TARGET.search(text)):
                targets.append(target[1])
                onward = text.startswith("@") or ".ANY" in text
                if targets[-1] in blocks:
                    _reach(targets[-1], state, reached, todo)
            elif re.match(r"(EXIT|RET)\b", text):
                onward = False
        position = names.index(name) + 1
        if onward and position < len(names):
            _reach(names[position], state, reached, todo)
    return [f"{address}: {text}" for address, text in sorted(found.items())]


def before_launches(text: str) -> list[str]:
    """Accesses to global memory in code before the wait for earlier launches (ACQBULK)."""
    lines = [line for block in _blocks(text).values() for _, line in block]
    wait = next(n for n, line in enumerate(lines) if "ACQBULK" in line)
    return [line for line in lines[:wait] if _GLOBAL.search(line)]


def _after(state: Groups, address: str, text: str, found: dict[str, str]) -> Groups:
    if product := _PRODUCT.search(text):
        first, count = int(product[2]), int(product[1]) // 2
        held = set(range(first, first + count))
        if left := re.match(r"R(\d+)", product[3]):
            held |= {FACTOR + int(left[1]) + n for n in range(4)}
        state = (*state[:-1], state[-1] | held)
        return (*state, frozenset()) if "gsb0" in product[3] else state
    if "gsb0" in text:
        kept = int(re.search(r"gsb0, 0x(\d+)", text)[1])  # type: ignore[index]
        done = state[:-1]
        return (*(done[-kept:] if kept else ()), state[-1])
    registers = {int(r) for r in re.findall(r"\bR(\d+)\b", text)}
    if written := re.match(r"(?:@!?U?P\w+ )?([\w.]+) R(\d+)\b", text):
        wide = 4 if ".128" in written[1] else 2 if ".64" in written[1] else 1
        registers |= {FACTOR + int(written[2]) + n for n in range(wide)}
    if any(registers & group for group in state):
        found[address] = text
    return state


def _reach(name: str, state: Groups, reached: dict[str, Groups], todo: list[str]) -> None:
    """Enter a block with a state too: what may be under way there, the newest groups aligned."""
    old = reached.get(name, _OPEN)
    length = max(len(old), len(state))
    padded = [(frozenset[int](),) * (length - len(s)) + s for s in (old, state)]
    joined = tuple(a | b for a, b in zip(*padded, strict=True))[-8:]
    if name not in reached or joined != old:
        reached[name] = joined
        todo.append(name)


def _blocks(text: str) -> dict[str, list[tuple[str, str]]]:
    blocks: dict[str, list[tuple[str, str]]] = {"start": []}
    name = "start"
    for line in text.splitlines():
        if label := _LABEL.match(line):
            name = label[1]
            blocks[name] = []
        elif instruction := _INSTRUCTION.search(line):
            blocks[name].append((instruction[1], instruction[2]))
    return blocks


def disassembled(cubin: bytes) -> str:
    """Machine code as text."""
    spec = find_spec("nvidia")
    places = spec.submodule_search_locations if spec else None
    tools = [tool for place in places or () for tool in Path(place).glob("*/bin/nvdisasm")]
    if not tools:
        pytest.skip("machine code is read with nvdisasm; pip install nvidia-cuda-nvdisasm")
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        call = [str(tools[0]), "-c", file.name]
        return subprocess.run(call, check=True, capture_output=True, text=True).stdout
