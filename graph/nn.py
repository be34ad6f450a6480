"""Functions of neural networks, written as compositions of the array functions.

Statistics of 16-bit floats are computed in float32 and rounded once. Every node carries the label
of the function in which it was written.
"""

from math import inf, pi
from math import sqrt as square_root

from eqsat.errors import DTypeError, ShapeError
from eqsat.graph.build import TensorLike, as_tensor, cast, gather, iota
from eqsat.graph.contraction import matmul
from eqsat.graph.convolution import avg_pool, conv, conv_transpose, max_pool
from eqsat.graph.elementwise import (
    add,
    divide,
    erf,
    exp,
    greater_equal,
    isfinite,
    log,
    maximum,
    multiply,
    negative,
    not_equal,
    reciprocal,
    rsqrt,
    square,
    subtract,
    tanh,
    where,
)
from eqsat.graph.gradient import stop_gradient
from eqsat.graph.index import var
from eqsat.graph.manipulation import repeat, squeeze
from eqsat.graph.movement import broadcast_shapes, normalise_axes, normalise_axis
from eqsat.graph.positions import Indices, as_index, count_from_end, take
from eqsat.graph.reductions import Axis, count_nonzero, max, mean, reduce, sum
from eqsat.graph.tensor import Tensor, composition

__all__ = [
    "attention", "avg_pool", "conv", "conv_transpose", "cross_entropy", "embedding", "gelu",
    "layer_norm", "log_softmax", "logsumexp", "max_pool", "relu", "rms_norm", "sigmoid", "silu",
    "softmax",
]  # fmt: skip


def _floats(op: str, value: TensorLike) -> Tensor:
    """The value as a tensor; DTypeError unless it is of a floating dtype."""
    x = as_tensor(value)
    if x.dtype.kind != "float":
        raise DTypeError(f"{op}: takes floating dtypes, got {x}. Convert with astype first.")
    return x


def relu(x: TensorLike) -> Tensor:
    """max(x, 0)."""
    with composition("relu"):
        return maximum(x, 0)


def sigmoid(x: TensorLike) -> Tensor:
    """1 / (1 + exp(-x))."""
    with composition("sigmoid"):
        x = _floats("sigmoid", x)
        return reciprocal(add(exp(negative(x)), 1.0))


def silu(x: TensorLike) -> Tensor:
    """x * sigmoid(x), in float32 for 16-bit floats."""
    with composition("silu"):
        x = _floats("silu", x)
        wide = cast(x, x.dtype.compute)
        return cast(divide(wide, add(exp(negative(wide)), 1.0)), x.dtype)


def gelu(x: TensorLike, approximate: str = "none") -> Tensor:
    """x * Phi(x), Phi the normal distribution function: by erf, or by tanh ("tanh").

    Hendrycks and Gimpel, arXiv:1606.08415.
    """
    if approximate not in ("none", "tanh"):
        raise DTypeError(f'gelu: approximate={approximate!r} is unknown. Use "none" or "tanh".')
    with composition("gelu"):
        x = _floats("gelu", x)
        wide = cast(x, x.dtype.compute)
        if approximate == "none":
            curve = erf(multiply(wide, square_root(0.5)))
        else:
            cubic = multiply(multiply(square(wide), wide), 0.044715)
            curve = tanh(multiply(add(wide, cubic), square_root(2 / pi)))
        return cast(multiply(multiply(wide, 0.5), add(curve, 1.0)), x.dtype)


def softmax(x: TensorLike, axis: int = -1) -> Tensor:
    """exp(x - max x) / sum(exp(x - max x)) along the axis; NaN where every element is -inf."""
    with composition("softmax"):
        x = _floats("softmax", x)
        wide = cast(x, x.dtype.compute)
        largest = stop_gradient(reduce("reduce_max", wide, axis, True, "softmax"))
        weights = exp(subtract(wide, largest))
        return cast(divide(weights, sum(weights, axis, keepdims=True)), x.dtype)


def log_softmax(x: TensorLike, axis: int = -1) -> Tensor:
    """log(softmax(x)) without loss of small probabilities."""
    with composition("log_softmax"):
        x = _floats("log_softmax", x)
        wide = cast(x, x.dtype.compute)
        largest = stop_gradient(reduce("reduce_max", wide, axis, True, "log_softmax"))
        shifted = subtract(wide, largest)
        found = subtract(shifted, log(sum(exp(shifted), axis, keepdims=True)))
        return cast(found, x.dtype)


def logsumexp(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over the axes without overflow; -inf of none, or where every element is."""
    with composition("logsumexp"):
        x = _floats("logsumexp", x)
        wide = cast(x, x.dtype.compute)
        axes = normalise_axes(axis, x.ndim, "logsumexp", str(x))
        if any(x.shape[d] == 0 for d in axes):
            return cast(log(sum(wide, axes, keepdims=keepdims)), x.dtype)  # log(0)
        largest = stop_gradient(max(wide, axis, keepdims=True))
        # An infinite maximum must not be subtracted: inf - inf is NaN.
        largest = where(isfinite(largest), largest, 0.0)
        total = sum(exp(subtract(wide, largest)), axis, keepdims=True)
        result = add(log(total), largest)
        return cast(result if keepdims else squeeze(result, axes), x.dtype)


def layer_norm(
    x: TensorLike,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    axis: Axis = -1,
    epsilon: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + epsilon) over the axes, times weight, plus bias."""
    with composition("layer_norm"):
        x = _floats("layer_norm", x)
        wide, axes = cast(x, x.dtype.compute), normalise_axes(axis, x.ndim, "layer_norm", str(x))
        centred = subtract(wide, mean(wide, axes, keepdims=True))
        spread = mean(square(centred), axes, keepdims=True)
        return _scale_and_shift(multiply(centred, rsqrt(add(spread, epsilon))), x, weight, bias)


def rms_norm(
    x: TensorLike, weight: TensorLike | None = None, axis: Axis = -1, epsilon: float = 1e-6
) -> Tensor:
    """x / sqrt(mean(x²) + epsilon) over the axes, times weight."""
    with composition("rms_norm"):
        x = _floats("rms_norm", x)
        wide, axes = cast(x, x.dtype.compute), normalise_axes(axis, x.ndim, "rms_norm", str(x))
        power = mean(square(wide), axes, keepdims=True)
        return _scale_and_shift(multiply(wide, rsqrt(add(power, epsilon))), x, weight, None)


def _scale_and_shift(
    wide: Tensor, x: Tensor, weight: TensorLike | None, bias: TensorLike | None
) -> Tensor:
    """wide * weight + bias, in the dtype of x."""
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is None:
            continue
        parameter = as_tensor(parameter)
        wide = (multiply if name == "weight" else add)(wide, cast(parameter, wide.dtype))
        if wide.shape != x.shape:
            raise ShapeError(
                f"normalisation: {name} {parameter} widens {x} to {wide.shape}. Use a {name} that "
                f"broadcasts to the shape of x."
            )
    return cast(wide, x.dtype)


def embedding(table: TensorLike, indices: Indices) -> Tensor:
    """Row `indices` of the table: take along axis 0."""
    with composition("embedding"):
        return take(table, indices, 0)


def attention(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    causal: bool = False,
    scale: float | None = None,
    mask: TensorLike | None = None,
) -> Tensor:
    """softmax(q k' * scale + mask) v over the last two axes.

    q: (..., heads, queries, size), k: (..., kv heads, keys, size), v: (..., kv heads, keys, any).
    Where kv heads divide heads, each serves the same number of consecutive heads (grouped query).
    causal: the last query sees all keys, each earlier one a key fewer. scale: 1 / sqrt(size).
    mask: added to the scores, broadcast; of bools, which keys a query sees. A query that sees no
    key gives NaN. For 16-bit floats
    scores and softmax are float32; the weights are rounded to the dtype of q before they meet v.
    """
    with composition("attention"):
        q, k, v = (_floats("attention", x) for x in (q, k, v))
        _check_attention(q, k, v)
        k, v = _serve_heads(k, q), _serve_heads(v, q)
        wide = q.dtype.compute
        scores = matmul(cast(q, wide), cast(k, wide).mT)
        scores = multiply(scores, q.shape[-1] ** -0.5 if scale is None else scale)
        if mask is not None:
            scores = _add_mask(scores, mask)
        if causal:
            shape, last = scores.shape, scores.ndim - 1
            reach = add(iota(shape, last - 1), k.shape[-2] - q.shape[-2])
            scores = where(greater_equal(reach, iota(shape, last)), scores, -inf)
        return matmul(cast(softmax(scores), q.dtype), v)


def _check_attention(q: Tensor, k: Tensor, v: Tensor) -> None:
    listed = f"q {q}, k {k}, v {v}"
    if min(q.ndim, k.ndim, v.ndim) < 2:
        raise ShapeError(f"attention: {listed}: queries, keys and values need 2 axes or more.")
    if q.dtype != k.dtype or q.dtype != v.dtype:
        raise DTypeError(f"attention: {listed} differ in dtype. Convert with astype first.")
    if q.shape[-1] != k.shape[-1]:
        raise ShapeError(f"attention: {listed}: q and k must agree in the last axis.")
    if q.shape[-1] == 0:
        raise ShapeError(f"attention: {listed}: the last axis of q and k is empty. Use 1 or more.")
    if k.shape[-2] != v.shape[-2]:
        raise ShapeError(f"attention: {listed}: k and v must have as many keys (axis -2).")
    if k.shape[-2] == 0:
        raise ShapeError(f"attention: {listed}: there are no keys. Give at least one.")


def _serve_heads(x: Tensor, q: Tensor) -> Tensor:
    """x with each of its heads repeated for the heads of q that it serves."""
    if q.ndim < 3 or x.ndim < 3 or x.shape[-3] in (1, q.shape[-3]):
        return x
    heads, served = x.shape[-3], q.shape[-3]
    if heads == 0 or served % heads:
        raise ShapeError(
            f"attention: {heads} kv heads of {x} do not divide the {served} heads of q {q}. "
            f"Use a divisor of {served} (axis -3)."
        )
    return repeat(x, served // heads, x.ndim - 3)


def _add_mask(scores: Tensor, mask: TensorLike) -> Tensor:
    mask = as_tensor(mask)
    seen = mask.dtype.kind == "bool"
    mask = mask if seen else _floats("attention mask", mask)
    if broadcast_shapes([scores.shape, mask.shape]) != scores.shape:
        raise ShapeError(
            f"attention: mask {mask} does not broadcast to the scores {scores.shape}. "
            f"Use (..., queries, keys) with axes of 1 to repeat."
        )
    return where(mask, scores, -inf) if seen else add(scores, cast(mask, scores.dtype))


def cross_entropy(
    logits: TensorLike,
    targets: Indices,
    axis: int = -1,
    reduction: str = "mean",
    ignore_index: int | None = None,
) -> Tensor:
    """-log_softmax(logits)[target] along the class axis: per element, summed or averaged.

    targets: integer classes, with the shape of logits less the class axis. Those equal to
    `ignore_index` give 0 and do not count in the mean. For 16-bit floats all is float32 until the
    result is rounded.
    """
    logits, targets = as_tensor(logits), as_index(targets, "cross_entropy: targets")
    axis = normalise_axis(axis, logits.ndim, "cross_entropy", str(logits))
    if reduction not in ("mean", "sum", "none"):
        raise ShapeError(
            f'cross_entropy: reduction {reduction!r} is unknown. Use "mean", "sum" or "none".'
        )
    if targets.shape != logits.shape[:axis] + logits.shape[axis + 1 :]:
        raise ShapeError(
            f"cross_entropy: targets {targets} for {logits} with classes on axis {axis}. "
            f"Use the shape of the logits less that axis."
        )
    with composition("cross_entropy"):
        _floats("cross_entropy", logits)
        loss = _target_loss(cast(logits, logits.dtype.compute), targets, axis)
        counted: Tensor | float = float(targets.size)
        if ignore_index is not None:
            kept = not_equal(targets, ignore_index)
            loss = where(kept, loss, 0.0)
            counted = cast(count_nonzero(kept), loss.dtype)
        if reduction != "none":
            loss = sum(loss)
        return cast(divide(loss, counted) if reduction == "mean" else loss, logits.dtype)


def _target_loss(x: Tensor, targets: Tensor, axis: int) -> Tensor:
    """log(sum(exp(x - max))) - (x[target] - max)."""
    largest = stop_gradient(reduce("reduce_max", x, axis, True, "cross_entropy"))
    total = log(sum(exp(subtract(x, largest)), axis))
    names = iter(range(targets.ndim))
    coordinates = [None if d == axis else var(f"i{next(names)}") for d in range(x.ndim)]
    hit = gather(x, count_from_end(targets, x.shape[axis]), axis, coordinates)
    return subtract(total, subtract(hit, squeeze(largest, axis)))
