"""Terms as people read them: infix, index letters, tensor names, shared values by name."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import count
from typing import Any

from eqsat.graph.index import Affine, floordiv, mod, substitute, var
from eqsat.kernel.ir import Access, Axis, Buffer, Kernel
from eqsat.terms.algebra import REDUCTIONS, Read, Renaming, Term, post_order

INFIX = {"add": ("+", 1), "sub": ("-", 1), "mul": ("*", 2), "div": ("/", 2)}
LETTERS = "ijklmnpqrstuvwxyzabcdefgh"
LONG = 44
Shape = tuple[int, ...]


def letters(names: Sequence[str], taken: Iterable[str]) -> dict[str, str]:
    """A letter for each index name, none of them the name of a tensor; then the names as they are.

    Where letters run out the index keeps its own name.
    """
    used = set(taken)
    free = iter(letter for letter in LETTERS if letter not in used)
    return {name: next(free, name) for name in names}


@dataclass
class Notation:
    """Prints the terms of one universe. Definitions of the values that got names are in `lines`.

    extents: of the index names; shown: letter of each index; buffers: what each is called, and its
    shape.
    """

    extents: Mapping[str, int]
    shown: Mapping[str, str]
    buffers: Mapping[str, tuple[str, Shape]]
    names: dict[Term, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def definitions(self, roots: Mapping[str, Term]) -> list[str]:
        """The roots as named values, what they share and what is long on lines of its own."""
        uses: dict[Term, int] = {}
        for term in post_order(roots.values()):
            for child in term.children:
                uses[child] = uses.get(child, 0) + 1
        for term in post_order(roots.values()):
            if uses.get(term, 0) > 1 and term.children and term not in self.names:
                self._name(term)
        found = [f"{name} = {self.show(root)}" for name, root in roots.items()]
        return [*self.taken_lines(), *found]

    def taken_lines(self) -> list[str]:
        """The definitions made since they were last asked for."""
        lines, self.lines = self.lines, []
        return lines

    def _name(self, term: Term) -> str:
        if term not in self.names:
            text = self.show(term)
            taken = {*self.names.values(), *(name for name, _ in self.buffers.values())}
            self.names[term] = next(n for i in count(1) if (n := f"v{i}") not in taken)
            self.lines.append(f"{self.names[term]} = {text}")
        return self.names[term]

    def show(self, term: Term) -> str:
        """A term, its parts by name where they are long or have one."""
        return self._expression(term)[0]

    def _part(self, term: Term, strength: int = 0) -> str:
        if term in self.names:
            return self.names[term]
        text, own = self._expression(term)
        if len(text) > LONG and term.children:
            return self._name(term)
        return f"({text})" if own < strength else text

    def _expression(self, term: Term) -> tuple[str, int]:
        """The text, and how strongly it binds."""
        op, children = term.op, term.children
        first = term.args[0] if term.args else None
        if op in INFIX:
            sign, strength = INFIX[op]
            left, right = children
            return (
                f"{self._part(left, strength)} {sign} {self._part(right, strength + 1)}",
                strength,
            )
        if op in REDUCTIONS and isinstance(first, int):
            return f"{REDUCTIONS[op]}[{self._mask(first)}] {self._part(children[0], 2)}", 1
        match op, term.args:
            case "read", (Read() as read,):
                return self._read(read), 9
            case "gather", (Read() as read, Term() as index):
                return f"gather({self._read(read)}, {self._part(index)})", 9
            case "literal", (float() as value, *_):
                return number_text(value), 9
            case "position", (Affine() as expression,):
                return f"position({self._affine(expression)})", 9
            case "reindex", (Renaming() as renaming, Term() as body):
                return f"{self._part(body, 2)} at {self._renaming(renaming)}", 0
            case (("cast" | "rounded"), (str() as dtype, Term() as body)):
                return f"{dtype}({self._part(body)})", 9
            case "value", (int() as number,):
                return f"%{number}", 9
            case "contract", (int() as mask, Term() as a, Term() as b, str() as how):
                by = f" by {how}" if how else ""
                both = f"{self._part(a)}, {self._part(b)}"
                return f"contract[{self._mask(mask)}]({both}){by}", 0 if by else 9
            case "narrow_contract", (int() as mask, Term() as a, Term() as b, *rest):
                how, narrow, terms, _ = rest
                each = narrow if terms == 1 else f"{terms} terms of {narrow}"
                both = f"{self._part(a)}, {self._part(b)}"
                return f"contract[{self._mask(mask)}]({both}) in {each} by {how}", 0
            case ("kernel", (Term() as body, Term() as schedule)):
                return f"kernel {self._part(body)} under {self._schedule(schedule)}", 0
        inside = [self._part(c) for c in children]
        mask = f"[{self._mask(first)}]" if isinstance(first, int) else ""
        return f"{op}{mask}({', '.join(inside)})", 9

    def _mask(self, mask: int) -> str:
        names = list(self.extents)
        return ",".join(self.shown.get(n, n) for bit, n in enumerate(names) if mask >> bit & 1)

    def _affine(self, expression: Affine) -> str:
        place = {name: var(letter) for name, letter in self.shown.items()}
        extents = {letter: self.extents[n] for n, letter in self.shown.items() if n in self.extents}
        return str(substitute(expression, place, extents))

    def _read(self, read: Read) -> str:
        name, shape = self.buffers.get(read.buffer, (read.buffer, ()))
        at = [self._affine(read.address)]
        if shape and not read.extent:
            at, stride = [], 1
            for place, extent in enumerate(reversed(shape)):
                digit = floordiv(read.address, stride, self.extents)
                if place < len(shape) - 1:
                    digit = mod(digit, extent, self.extents)
                at.insert(0, self._affine(digit))
                stride *= extent
        return f"{name}[{', '.join(at)}{self._guards(read)}]"

    def _guards(self, of: Read | Renaming) -> str:
        """Where an element exists, and what stands in its place elsewhere."""
        parts = [f"{g.lower} <= {self._affine(g.expression)} < {g.upper}" for g in of.guards]
        return f" if {' and '.join(parts)} else {of.fill:g}" if parts else ""

    def _renaming(self, renaming: Renaming) -> str:
        pairs = zip(renaming.source, renaming.target, strict=True)
        moved = ", ".join(f"{self.shown.get(n, n)} = {self._affine(t)}" for n, t in pairs)
        return f"[{moved}{self._guards(renaming)}]"

    def _schedule(self, schedule: Term) -> str:
        entries = []
        while schedule.children:
            own = [str(a) for a in schedule.args if not isinstance(a, Term)]
            entries.insert(0, " ".join([schedule.op, *(self.shown.get(a, a) for a in own)]))
            schedule = schedule.children[0]
        return "; ".join(entries) or "no schedule"


def number_text(value: float) -> str:
    """A number in few digits; whole ones without a point."""
    whole = math.isfinite(value) and abs(value) < 1e15 and value == int(value)
    return str(int(value)) if whole else f"{value:.6g}"


def renamed(kernel: Kernel, shown: Mapping[str, str], buffers: Mapping[str, str]) -> Kernel:
    """The kernel with other names for its indices and buffers."""
    extents = {shown.get(n, n): axis.extent for n, axis in kernel.axes().items()}
    place = {name: var(letter) for name, letter in shown.items()}

    def change(value: Any, name: str = "") -> Any:
        if isinstance(value, Affine):
            return substitute(value, place, extents)
        if isinstance(value, Axis):
            return replace(value, name=shown.get(value.name, value.name))
        if isinstance(value, Buffer):
            return replace(value, name=buffers.get(value.name, value.name))
        if isinstance(value, tuple):
            return tuple(change(item, name) for item in value)
        if is_dataclass(value) and not isinstance(value, type):
            parts = {f.name: change(getattr(value, f.name), f.name) for f in fields(value)}
            if isinstance(value, Access):
                parts["buffer"] = buffers.get(value.buffer, value.buffer)
            return type(value)(**parts)
        if isinstance(value, str) and name in {"indices", "over"}:
            return shown.get(value, value)
        return value

    return change(kernel)
