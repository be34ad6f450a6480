"""Kernels and their parts as JSON values, for the cache and for `eqsat-explain`."""

import math
from dataclasses import fields, is_dataclass
from typing import Any, cast

from eqsat import rule
from eqsat.carry_law import CarryLaw
from eqsat.graph.dtypes import DType, as_dtype
from eqsat.graph.index import Affine, FloorDiv, Mod
from eqsat.kernel import ir
from eqsat.kernel.joined import Joined, Piece
from eqsat.library import LibraryCall
from eqsat.terms.algebra import Read, Renaming

_IR = (
    *(ir.Buffer, ir.Axis, ir.Guard, ir.Coordinate, ir.Access, ir.Load, ir.Literal, ir.Position),
    *(ir.Map, ir.Reduce, ir.Scan, ir.Contract, ir.Update, ir.Carry, ir.Store, ir.Phase, ir.Kernel),
)
_BESIDE = (LibraryCall, Affine, FloorDiv, Mod, Joined, Piece, Read, Renaming, CarryLaw)
_CLASSES: dict[str, type] = {
    cls.__name__: cls for cls in (*_IR, *_BESIDE, rule.Node, rule.Variable, rule.DTypeOf)
}


def encode(value: Any) -> Any:
    """A JSON value; the inverse of `decode`."""
    if isinstance(value, DType):
        return {"type": "DType", "name": value.name}
    if is_dataclass(value):
        parts = {f.name: encode(getattr(value, f.name)) for f in fields(value)}
        return {"type": type(value).__name__, **parts}
    if isinstance(value, tuple):
        return [encode(item) for item in cast("tuple[Any, ...]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return {"type": "float", "value": repr(value)}
    return value


def decode(value: Any) -> Any:
    """The object that `encode` was given. Raises KeyError or TypeError for foreign values."""
    if isinstance(value, list):
        return tuple(decode(item) for item in cast("list[Any]", value))
    if not isinstance(value, dict):
        return value
    parts = cast("dict[str, Any]", value)
    kind = parts["type"]
    if kind == "DType":
        return as_dtype(parts["name"])
    if kind == "float":
        return float(parts["value"])
    return _CLASSES[kind](**{k: decode(v) for k, v in parts.items() if k != "type"})
