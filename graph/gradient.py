"""Reverse-mode differentiation, from graph to graph."""

from collections.abc import Sequence
from dataclasses import replace
from typing import overload

from eqsat.errors import DTypeError, ShapeError
from eqsat.graph.arguments import entries
from eqsat.graph.build import TensorLike, as_tensor, build, cast, constant
from eqsat.graph.creation import zeros
from eqsat.graph.evaluate import topological
from eqsat.graph.gradient_rows import ROWS, Step
from eqsat.graph.tensor import Tensor, composition


@overload
def grad(loss: Tensor, wrt: Tensor, *, cotangent: TensorLike | None = None) -> Tensor: ...


@overload
def grad(
    loss: Tensor, wrt: Sequence[Tensor], *, cotangent: TensorLike | None = None
) -> tuple[Tensor, ...]: ...


def grad(
    loss: Tensor, wrt: Tensor | Sequence[Tensor], *, cotangent: TensorLike | None = None
) -> Tensor | tuple[Tensor, ...]:
    """The derivatives of `loss` with respect to `wrt`, as tensors of the same graph.

    loss: a floating scalar, or a floating tensor of any shape with `cotangent`, the weights of its
    elements. wrt: a tensor (inputs or intermediate values), or a sequence, which gives a tuple;
    each result has the shape and dtype of its tensor, and is 0 where the loss does not depend on
    it. The values of the forward pass are read, not computed again; results can be differentiated.

    Where a derivative jumps: `max` and `min` share it equally among the elements that hold the
    extremum, `maximum`, `minimum` (hence `clip`, `relu`) half and half between equal operands;
    `abs` has 0 at 0. Rounding, comparisons and integers have none: 0. An infinite derivative, such
    as that of sqrt at 0, is infinite; where(x > 0, sqrt(x), 0) then gives NaN at 0, so mask before
    the square root. Derivatives of floats below 32 bits are float32 until rounded at the end, but
    for those of a product's result: these are rounded as the result is, unless they are far larger
    than its factors.

    ShapeError for a loss that is no scalar, DTypeError for one, or for a wrt, that is no float.
    """
    single = isinstance(wrt, Tensor)
    wanted = (wrt,) if single else entries(wrt)
    _check(loss, wanted)
    with composition("grad"):
        found = _sweep(loss, wanted, _seed(loss, cotangent))
        results = tuple(
            cast(found[x], x.dtype) if x in found else zeros(x.shape, x.dtype) for x in wanted
        )
    return results[0] if single else results


def stop_gradient(x: TensorLike) -> Tensor:
    """The value of x, taken as a constant by `grad`.

    For values that cannot change the result, such as the maximum that softmax subtracts: the
    derivative through them is 0 however it is computed.
    """
    x = as_tensor(x)
    if x.op in ("constant", "iota"):
        return x
    if x.op == "view":
        return replace(x, operands=(stop_gradient(x.operands[0]),))
    if x.op == "input":
        return build("cast", (x,), {"dtype": x.dtype, "stopped": True})
    return replace(x, attributes={**x.attributes, "stopped": True})


def _check(loss: Tensor, wanted: Sequence[Tensor]) -> None:
    for role, x in [("loss", loss), *(("wrt", x) for x in wanted)]:
        if not isinstance(x, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DTypeError(
                f"grad: {role} is of type {type(x).__name__}, not a tensor. Give tensors of the "
                f"graph."
            )
        if x.dtype.kind != "float":
            raise DTypeError(
                f"grad: {role} {x} is of no floating dtype, so it has no derivative. "
                f"Convert with astype(., float32) before it is used."
            )


def _seed(loss: Tensor, cotangent: TensorLike | None) -> Tensor:
    """The derivative of what is differentiated by the elements of the loss."""
    if cotangent is None:
        if loss.ndim:
            raise ShapeError(
                f"grad: loss {loss} is no scalar. Reduce it with sum or mean, or give a cotangent "
                f"of its shape."
            )
        return constant(1.0, loss.dtype.compute)
    given = as_tensor(cotangent, loss.dtype)
    if given.shape != loss.shape:
        raise ShapeError(
            f"grad: cotangent {given} for loss {loss}. Give one of the shape {loss.shape}."
        )
    if given.dtype.kind != "float":
        raise DTypeError(f"grad: cotangent {given} is of no floating dtype. Use astype first.")
    return cast(given, loss.dtype.compute)


def _sweep(loss: Tensor, wanted: Sequence[Tensor], seed: Tensor) -> dict[Tensor, Tensor]:
    """The cotangent of each wanted tensor that the loss depends on."""
    order = topological([loss])
    moving = _dependent(order, wanted)
    wide: dict[Tensor, Tensor] = {}
    parts: dict[Tensor, list[Tensor]] = {loss: [seed]} if loss in moving else {}
    found: dict[Tensor, Tensor] = {}
    for node in reversed(order):
        if node not in parts:
            continue
        first, *rest = parts.pop(node)
        cotangent = first
        for part in rest:
            cotangent = cotangent + part
        found[node] = cotangent
        values = [_widened(x, wide) for x in (node, *node.operands)]
        step = Step(node, cotangent, values[0], tuple(values[1:]))
        for operand, product in zip(node.operands, ROWS[node.op], strict=True):
            if operand in moving and product is not None:
                part = product(step)
                assert (part.shape, part.dtype) == (operand.shape, operand.dtype.compute), node
                parts.setdefault(operand, []).append(part)
    return found


def _dependent(order: Sequence[Tensor], wanted: Sequence[Tensor]) -> set[Tensor]:
    """The nodes through which a derivative can reach a wanted tensor."""
    moving = set(wanted)
    for node in order:
        if "stopped" in node.attributes or node.dtype.kind != "float":
            continue
        rows = zip(node.operands, ROWS[node.op], strict=True)
        if any(x in moving and p is not None for x, p in rows):
            moving.add(node)
    return moving


def _widened(x: Tensor, known: dict[Tensor, Tensor]) -> Tensor:
    """The value in the dtype in which it is computed, converted once."""
    if x not in known:
        known[x] = cast(x, x.dtype.compute)
    return known[x]
