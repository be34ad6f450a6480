"""Sines and cosines of the same angles, whose remainder by a quarter turn is found once."""

from collections.abc import Iterable
from typing import TypeGuard

from eqsat.graph.dtypes import float32, float64
from eqsat.kernel.ir import Map, Statement

from ..place.block import Block
from ..place.tile import Point
from ..prelude.math import register_type

SINES = ("sin", "cos")


class Angles:
    """Those of which some statements, written at one point, take both."""

    def __init__(self, block: Block, statements: Iterable[Statement]) -> None:
        self.block = block
        found: dict[str, set[str]] = {}
        for s in statements:
            if _is_sine(s):
                found.setdefault(s.arguments[0], set()).add(s.op)
        self.both = {angle for angle, ops in found.items() if len(ops) == len(SINES)}
        self.known: set[str] = set()

    def value(self, s: Statement, point: Point) -> str:
        """What a statement gives, if it is the sine or cosine of one; the first writes both."""
        if not _is_sine(s) or s.arguments[0] not in self.both:
            return ""
        (angle,), block = s.arguments, self.block
        names = {op: f"{op}_{block.value(angle)}" for op in SINES}
        if angle not in self.known:
            self.known.add(angle)
            function = "sincosf" if s.dtype == float32 else "sincos"
            block.out.line(f"{register_type(s.dtype)} {', '.join(names.values())};")
            places = ", ".join(f"&{name}" for name in names.values())
            block.out.line(f"{function}({block.read(angle, point)}, {places});")
        return names[s.op]


def _is_sine(s: Statement) -> TypeGuard[Map]:
    return isinstance(s, Map) and s.op in SINES and s.dtype in (float32, float64)
