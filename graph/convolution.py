"""Convolution and pooling: one windowed view of the input, then a product and a reduction.

The view reads position `stride*i + dilation*k - padding`, and a fill outside the input.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from eqsat.errors import DTypeError, ShapeError
from eqsat.graph.arguments import as_integer, as_integers, entries, is_several
from eqsat.graph.build import (
    TensorLike,
    as_tensor,
    build,
    cast,
    constant,
    expand,
    promote,
    view,
)
from eqsat.graph.dtypes import neutral
from eqsat.graph.elementwise import add, divide
from eqsat.graph.gradient_views import scatter
from eqsat.graph.index import Affine, const, floordiv, scale, var
from eqsat.graph.index import add as add_index
from eqsat.graph.manipulation import reshape
from eqsat.graph.movement import Shape
from eqsat.graph.reductions import reduce
from eqsat.graph.tensor import Tensor, composition

Sizes = int | Sequence[int]
Padding = int | Sequence[int | tuple[int, int]] | str


@dataclass(frozen=True)
class Windows:
    """Where the windows of each spatial axis lie."""

    kernel: Shape
    stride: Shape
    dilation: Shape
    padding: tuple[tuple[int, int], ...]
    outputs: Shape

    def coordinates(self, output_axis: int, kernel_axis: int) -> list[Affine]:
        """For each spatial axis the position read, from output names and window names."""
        return [
            add_index(
                scale(var(f"i{output_axis + d}"), self.stride[d]),
                scale(var(f"i{kernel_axis + d}"), self.dilation[d]),
                const(-self.padding[d][0]),
            )
            for d in range(len(self.kernel))
        ]


def place_windows(
    op: str,
    x: Tensor,
    spatial: Shape,
    kernel: Shape,
    stride: Sizes,
    padding: Padding,
    dilation: Sizes,
) -> Windows:
    """The windows over the spatial extents; ShapeError where none fits."""
    strides = _per_axis(op, "stride", stride, len(spatial), 1)
    dilations = _per_axis(op, "dilation", dilation, len(spatial), 1)
    spans = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True))
    pads = _paddings(op, padding, spatial, spans, strides)
    outputs: list[int] = []
    for axis, (n, (before, after), span) in enumerate(zip(spatial, pads, spans, strict=True)):
        padded = n + before + after
        if span > padded:
            raise ShapeError(
                f"{op}: the window of {span} positions on spatial axis {axis} exceeds the "
                f"{padded} that {x} has there with padding. Use a smaller window, or more padding."
            )
        outputs.append((padded - span) // strides[axis] + 1)
    return Windows(kernel, strides, dilations, pads, tuple(outputs))


def _per_axis(op: str, name: str, value: Sizes, count: int, least: int) -> Shape:
    sizes = as_integers(value, f"{op}: {name}")
    sizes = sizes if is_several(value) else sizes * count
    if len(sizes) != count or any(size < least for size in sizes):
        raise ShapeError(
            f"{op}: {name} {value} for {count} spatial axes. Give one integer of at least {least}, "
            f"or one per axis."
        )
    return sizes


def _paddings(
    op: str, padding: Padding, spatial: Shape, spans: Shape, strides: Shape
) -> tuple[tuple[int, int], ...]:
    if isinstance(padding, str) and padding == "valid":
        padding = 0
    if isinstance(padding, str) and padding == "same":
        # The output has ceil(n / stride) positions; an odd width goes behind.
        widths = [
            max((-(-n // s) - 1) * s + span - n, 0)
            for n, span, s in zip(spatial, spans, strides, strict=True)
        ]
        return tuple((width // 2, width - width // 2) for width in widths)
    if isinstance(padding, str):
        raise ShapeError(f'{op}: padding {padding!r} is unknown. Use "same", "valid" or numbers.')
    given = entries(padding) if is_several(padding) else (padding,) * len(spatial)
    widths = [as_integers(one, f"{op}: padding") * (1 if is_several(one) else 2) for one in given]
    pairs = tuple((pair[0], pair[1]) for pair in widths if len(pair) == 2)
    if not len(pairs) == len(widths) == len(spatial) or any(min(pair) < 0 for pair in pairs):
        raise ShapeError(
            f"{op}: padding {padding} for {len(spatial)} spatial axes. Give one number of at least "
            f"0, or one number or (before, after) pair per axis."
        )
    return pairs


def _channel_axis(op: str, x: Tensor, layout: str) -> int:
    if layout not in ("NCHW", "NHWC"):
        raise ShapeError(f'{op}: layout {layout!r} is unknown. Use "NCHW" or "NHWC".')
    if x.ndim < 3:
        raise ShapeError(
            f"{op}: {x} has {x.ndim} dimensions; batch, channel and at least one spatial axis are "
            f"needed. Use expand_dims first."
        )
    return 1 if layout == "NCHW" else x.ndim - 1


def conv(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    layout: str = "NCHW",
) -> Tensor:
    """The n-d convolution (cross-correlation) of x with `weight`, plus `bias` per channel.

    x: (batch, channels, *spatial), or (batch, *spatial, channels) for layout "NHWC", with any
    number of spatial axes. weight: (out channels, channels / groups, *window) in both layouts.
    padding: a number, one or a (before, after) pair per spatial axis, "same" or "valid". Sums of
    16-bit floats are formed in float32. ShapeError where the shapes do not fit.
    """
    x, weight, groups = as_tensor(x), as_tensor(weight), as_integer(groups, "conv: groups")
    channel_axis = _channel_axis("conv", x, layout)
    spatial = tuple(n for d, n in enumerate(x.shape) if d not in (0, channel_axis))
    _check_channels(x, weight, x.shape[channel_axis], len(spatial), groups)
    x, weight = promote("conv", x, weight)
    with composition("conv"):
        windows = place_windows("conv", x, spatial, weight.shape[2:], stride, padding, dilation)
        wide = x.dtype.compute
        total = _windowed_sum(cast(x, wide), cast(weight, wide), windows, groups, channel_axis)
        return cast(_biased("conv", total, bias, channel_axis), x.dtype)


def conv_transpose(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Sizes = 1,
    padding: int | Sequence[int | tuple[int, int]] = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    layout: str = "NCHW",
) -> Tensor:
    """The n-d transposed convolution: each position of x adds `weight` times itself to a window.

    x as for `conv`; weight: (channels, out channels / groups, *window) in both layouts. A spatial
    axis of n positions gives stride * (n - 1) + dilation * (window - 1) + 1 positions, without
    `padding` at its ends, and `output_padding` more behind: it is what `conv` of these sizes sends
    back to its input. Sums of 16-bit floats are formed in float32. Beside elements that are not
    finite, positions less than a stride beyond a window may be NaN: there they meet a weight of 0.
    ShapeError where the shapes do not fit.
    """
    op = "conv_transpose"
    x, weight, groups = as_tensor(x), as_tensor(weight), as_integer(groups, f"{op}: groups")
    if isinstance(padding, str):
        raise ShapeError(
            f"{op}: padding {padding!r} says no extent of the result. Give numbers, and "
            f"output_padding."
        )
    channel_axis = _channel_axis(op, x, layout)
    spatial = tuple(n for d, n in enumerate(x.shape) if d not in (0, channel_axis))
    _check_channels_back(x, weight, x.shape[channel_axis], len(spatial), groups)
    x, weight = promote(op, x, weight)
    with composition(op):
        rank, wide, kernel = len(spatial), x.dtype.compute, weight.shape[2:]
        strides = _per_axis(op, "stride", stride, rank, 1)
        dilations = _per_axis(op, "dilation", dilation, rank, 1)
        more = _per_axis(op, "output_padding", output_padding, rank, 0)
        spans = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True))
        pads = _paddings(op, padding, spatial, spans, strides)
        ends = (s * (n - 1) + span for s, n, span in zip(strides, spatial, spans, strict=True))
        outputs = tuple(n - sum(p) + m for n, p, m in zip(ends, pads, more, strict=True))
        if min(outputs) < 1:
            raise ShapeError(f"{op}: {x} gives spatial extents {outputs}. Use less padding.")
        windows = Windows(kernel, strides, dilations, pads, outputs)
        total = _sum_to_windows(cast(x, wide), cast(weight, wide), windows, groups, channel_axis)
        return cast(_biased(op, total, bias, channel_axis), x.dtype)


def _biased(op: str, total: Tensor, bias: TensorLike | None, channel_axis: int) -> Tensor:
    """With a bias per channel, if there is one."""
    if bias is None:
        return total
    bias = as_tensor(bias)
    out = total.shape[channel_axis]
    if bias.shape != (out,):
        raise ShapeError(f"{op}: bias {bias} for {out} output channels. Give one each.")
    ones = [1] * total.ndim
    ones[channel_axis] = out
    return add(total, cast(reshape(bias, ones), total.dtype))


def _check_channels(x: Tensor, weight: Tensor, channels: int, rank: int, groups: int) -> None:
    if weight.ndim != rank + 2 or 0 in weight.shape[2:]:
        raise ShapeError(
            f"conv: weight {weight} for {x}, which has {rank} spatial axes. "
            f"Use (out channels, channels / groups, *window), no window extent 0."
        )
    out = weight.shape[0]
    fits = groups >= 1 and channels == weight.shape[1] * groups and out % groups == 0
    if not fits:
        raise ShapeError(
            f"conv: {x} has {channels} channels, weight {weight} takes {weight.shape[1]} in each "
            f"of {groups} groups and gives {out}. Groups must divide both channel counts evenly."
        )


def _check_channels_back(x: Tensor, weight: Tensor, channels: int, rank: int, groups: int) -> None:
    if weight.ndim != rank + 2 or 0 in weight.shape[1:]:
        raise ShapeError(
            f"conv_transpose: weight {weight} for {x}, which has {rank} spatial axes. "
            f"Use (channels, out channels / groups, *window), no extent 0."
        )
    if groups < 1 or channels != weight.shape[0] or channels % groups:
        raise ShapeError(
            f"conv_transpose: {x} has {channels} channels, weight {weight} takes "
            f"{weight.shape[0]} in {groups} groups. Groups must divide the channels evenly."
        )


def _sum_to_windows(
    x: Tensor, weight: Tensor, windows: Windows, groups: int, channel_axis: int
) -> Tensor:
    """The sum of x times weight over the channels, and over what meets at a position: products over
    (batch, group, out channel of the group, spatial axes of x, window, channel of the group).
    """
    rank, out = len(windows.kernel), weight.shape[1]
    each = x.shape[channel_axis] // groups
    spatial = [n for d, n in enumerate(x.shape) if d not in (0, channel_axis)]
    joint = (x.shape[0], groups, out, *spatial, *windows.kernel, each)
    names = [var(f"i{axis}") for axis in range(len(joint))]
    batch, group, o, *places, c = names
    channel = add_index(scale(group, each), c)
    read = [batch, *places[:rank]]
    read.insert(channel_axis, channel)
    product = build(
        "mul", (view(x, joint, read), view(weight, joint, [channel, o, *places[rank:]]))
    )
    reached = [batch, *windows.coordinates(3, 3 + rank)]
    shape = [x.shape[0], *windows.outputs]
    reached.insert(channel_axis, add_index(scale(group, out), o))
    shape.insert(channel_axis, groups * out)
    return scatter(product, reached, tuple(shape))


def _windowed_sum(
    x: Tensor, weight: Tensor, windows: Windows, groups: int, channel_axis: int
) -> Tensor:
    """The sum over channels and window of x times weight: indices (output axes, c, window)."""
    rank = len(windows.kernel)
    out_channels, per_group = weight.shape[:2]
    result = [x.shape[0], *windows.outputs]
    result.insert(channel_axis, out_channels)
    shape = (*result, per_group, *windows.kernel)
    first_spatial = 2 if channel_axis == 1 else 1
    c, first_window = var(f"i{rank + 2}"), rank + 3
    # Output channel o belongs to group o // (out / groups), which reads its own channels of x.
    group = floordiv(var(f"i{channel_axis}"), max(out_channels // groups, 1))
    channel = c if groups == 1 else add_index(scale(group, per_group), c)
    read = [var("i0"), *windows.coordinates(first_spatial, first_window)]
    read.insert(channel_axis, channel)
    window_names = [var(f"i{first_window + d}") for d in range(rank)]
    taps = view(weight, shape, [var(f"i{channel_axis}"), c, *window_names])
    product = build("mul", (view(x, shape, read, fill=0), taps))
    return build("reduce_sum", (product,), {"axes": tuple(range(rank + 2, len(shape)))})


def _pool_windows(
    op: str,
    x: Tensor,
    window: Sizes,
    stride: Sizes | None,
    padding: Padding,
    dilation: Sizes,
    layout: str,
) -> tuple[Windows, int]:
    channel_axis = _channel_axis(op, x, layout)
    spatial = tuple(n for d, n in enumerate(x.shape) if d not in (0, channel_axis))
    kernel = _per_axis(op, "window", window, len(spatial), 1)
    step = kernel if stride is None else stride
    return place_windows(op, x, spatial, kernel, step, padding, dilation), channel_axis


def _windowed(x: Tensor, windows: Windows, channel_axis: int, fill: bool | int | float) -> Tensor:
    """x over (its output axes, window axes)."""
    result = [x.shape[0], *windows.outputs]
    result.insert(channel_axis, x.shape[channel_axis])
    read = [var("i0"), *windows.coordinates(2 if channel_axis == 1 else 1, x.ndim)]
    read.insert(channel_axis, var(f"i{channel_axis}"))
    return view(x, (*result, *windows.kernel), read, fill=fill)


def max_pool(
    x: TensorLike,
    window: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    layout: str = "NCHW",
) -> Tensor:
    """The largest element of each window; the stride is the window unless given.

    Padding never wins: it counts as the lowest value of the dtype.
    """
    x = as_tensor(x)
    windows, channel_axis = _pool_windows("max_pool", x, window, stride, padding, dilation, layout)
    if x.dtype.kind == "bool":
        raise DTypeError(f"max_pool: takes numeric dtypes, got {x}. Use astype first.")
    with composition("max_pool"):
        spread = _windowed(x, windows, channel_axis, neutral("max", x.dtype))
        return reduce("reduce_max", spread, tuple(range(x.ndim, spread.ndim)))


def avg_pool(
    x: TensorLike,
    window: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    layout: str = "NCHW",
    count_padding: bool = True,
) -> Tensor:
    """The mean of each window; padding counts as zeros, or not at all."""
    x = as_tensor(x)
    windows, channel_axis = _pool_windows("avg_pool", x, window, stride, padding, dilation, layout)
    if x.dtype.kind != "float":
        raise DTypeError(f"avg_pool: takes floating dtypes, got {x}. Use astype first.")
    with composition("avg_pool"):
        wide = cast(x, x.dtype.compute)
        spread = _windowed(wide, windows, channel_axis, 0)
        axes = tuple(range(x.ndim, spread.ndim))
        total = reduce("reduce_sum", spread, axes)
        if count_padding or not any(width for pair in windows.padding for width in pair):
            return cast(divide(total, float(prod(windows.kernel))), x.dtype)
        one = expand(constant(1, wide.dtype), x.shape)
        inside = _windowed(one, windows, channel_axis, 0)
        return cast(divide(total, reduce("reduce_sum", inside, axes)), x.dtype)
