"""The derivatives of the two primitives that read at other positions: view and gather."""

from collections.abc import Mapping, Sequence
from math import prod

from eqsat.graph.build import build, cast, expand, iota, is_number, varying_axes, view
from eqsat.graph.dtypes import int64
from eqsat.graph.elementwise import clip, equal, where
from eqsat.graph.gradient_maps import Inverse, invert
from eqsat.graph.index import (
    Affine,
    add,
    const,
    floordiv,
    free_names,
    mod,
    substitute,
    var,
    within,
)
from eqsat.graph.movement import Shape, output_extents, output_names
from eqsat.graph.tensor import Tensor

MOST_AGAIN = 3  # times as many products as points of a product that one sum may take


def scatter(g: Tensor, coordinates: Sequence[Affine], shape: Shape) -> Tensor:
    """The sum of g over the points that `coordinates` send to each position of `shape`.

    The transpose of a view: a broadcast gives a sum, a window the sum of shifted views, any other
    movement a view; points sent outside the shape are dropped.
    """
    read = frozenset[str]().union(*map(free_names, coordinates))
    names = output_names(g.ndim)
    dropped = tuple(axis for axis, name in enumerate(names) if name not in read)
    kept = [axis for axis in range(g.ndim) if axis not in dropped]
    rename = {f"i{axis}": var(f"i{at}") for at, axis in enumerate(kept)}
    if g.size == 0 or 0 in shape:
        return expand(build("reduce_sum", (g,), {"axes": tuple(range(g.ndim))}), shape)
    if any(phases := [_phases(c, output_extents(g.shape)) for c in coordinates]):
        return _by_phases(g, coordinates, shape, phases)
    coordinates = [substitute(c, rename) for c in coordinates]
    product, g = g, sum_axes(g, dropped)
    inverse = invert(coordinates, g.shape, shape)
    if product.op == "mul" and product.size:
        found = _summed_at_once(product, kept, dropped, inverse, shape)
        if found is not None:
            return found
    outer = (*shape, *inverse.summed)
    found = _selected_at(g, outer, inverse)
    if found is None:
        found = _guarded(g, outer, inverse.point, inverse.guards)
    return sum_axes(found, tuple(range(len(shape), found.ndim)))


def _selected_at(g: Tensor, outer: Shape, inverse: Inverse) -> Tensor | None:
    """where(a == b, x, 0) at the points of an inverse as where(a' == b', x', 0) of what is read at
    these: of the elements of windows that are their largest, an element and the largest of the
    windows around it. None where windows do not overlap, of anything else, or where neither side
    is as given: computed twice it may round otherwise.
    """
    if not inverse.summed or g.op != "where" or g.operands[0].op != "equal":
        return None
    hit, value, none = g.operands
    if not is_number(none, 0) or not any(_base(side).op == "input" for side in hit.operands):
        return None
    place = {f"i{axis}": point for axis, point in enumerate(inverse.point)}
    sides = [_read_at(side, outer, place) for side in hit.operands]
    return where(equal(*sides), _guarded(value, outer, inverse.point, inverse.guards), 0.0)


def _guarded(
    x: Tensor, outer: Shape, point: Sequence[Affine], guards: Sequence[tuple[Affine, int]]
) -> Tensor:
    """x at a point; 0 where a coordinate, or a guard (expression, extent), leaves its range."""
    ranges = (*x.shape, *(n for _, n in guards))
    x = view(x, ranges, [var(f"i{axis}") for axis in range(x.ndim)])
    return view(x, outer, [*point, *(expression for expression, _ in guards)], fill=0)


def _base(x: Tensor) -> Tensor:
    while x.op == "view":
        (x,) = x.operands
    return x


def _read_at(x: Tensor, outer: Shape, place: Mapping[str, Affine]) -> Tensor:
    """x where each of its positions is an expression of others; 0 where there is none."""
    at, fill = [var(name) for name in output_names(x.ndim)], None
    if x.op == "view":
        at, fill = x.attributes["coordinates"], x.attributes["fill"]
        (x,) = x.operands
    point = [substitute(c, place, output_extents(outer)) for c in at]
    return view(x, outer, point, fill=0 if fill is None else fill)


def _phases(coordinate: Affine, extents: Mapping[str, int]) -> tuple[int, int] | None:
    """The stride of windows that overlap, so that positions are reached by some places of a window
    or by others, as their remainders are; and what to add to a position for as few windows to reach
    it as can be, 0 where that does. None of what has no such windows.
    """
    steps = {atom: step for atom, step in coordinate.terms if isinstance(atom, str)}
    if len(steps) != len(coordinate.terms) or len(steps) < 2 or min(steps.values()) < 1:
        return None
    moving = max(steps, key=lambda name: extents[name])
    stride = steps.pop(moving)
    span = 1 + sum(step * (extents[name] - 1) for name, step in steps.items())
    if span <= stride or all(step % stride == 0 for step in steps.values()):
        return None
    unaligned = span + coordinate.constant % stride
    aligned = -(-unaligned // stride) == -(-span // stride)
    return stride, 0 if aligned else -coordinate.constant % stride


def _by_phases(
    g: Tensor,
    coordinates: Sequence[Affine],
    shape: Shape,
    phases: Sequence[tuple[int, int] | None],
) -> Tensor:
    """`scatter` where windows move by strides: to positions as quotients and remainders, so that
    what meets at a position is a sum over fewer windows, all of them there.
    """
    extents = output_extents(g.shape)
    split: list[Affine] = []
    sizes: list[int] = []
    back: list[Affine] = []
    for axis, (place, n, phase) in enumerate(zip(coordinates, shape, phases, strict=True)):
        if phase is None:
            split, sizes, back = [*split, place], [*sizes, n], [*back, var(f"i{axis}")]
            continue
        stride, shift = phase
        position, shifted = add(var(f"i{axis}"), const(shift)), add(place, const(shift))
        known = {f"i{axis}": n}
        split += [floordiv(shifted, stride, extents), mod(shifted, stride, extents)]
        sizes += [(n - 1 + shift) // stride + 1, stride]
        back += [floordiv(position, stride, known), mod(position, stride, known)]
    return view(scatter(g, split, tuple(sizes)), shape, back)


def _summed_at_once(
    g: Tensor, kept: Sequence[int], dropped: Sequence[int], inverse: Inverse, shape: Shape
) -> Tensor | None:
    """The same where g is a product summed over `dropped`, the axes that no coordinate has: one
    sum over those and the windows, so that the gradient of a convolution is one. 0 is in the place
    of one factor, not of the product, outside; None where a factor cannot be read so, or where
    there are more products than a sum for each point of g takes.
    """
    outer = (*shape, *inverse.summed)
    if not inverse.summed or prod(outer) > MOST_AGAIN * prod(g.shape[d] for d in kept):
        return None
    joint = (*outer, *(g.shape[axis] for axis in dropped))
    place = {f"i{axis}": point for axis, point in zip(kept, inverse.point, strict=True)}
    place |= {f"i{axis}": var(f"i{len(outer) + at}") for at, axis in enumerate(dropped)}
    extents = output_extents(joint)
    open_axes = {
        f"i{axis}" for axis in kept if not within(place[f"i{axis}"], extents, g.shape[axis])
    }
    factors: list[Tensor] = []
    guards, beyond = inverse.guards, set(open_axes)
    for factor in g.operands:
        whole = factor.op != "view" or factor.attributes["fill"] is not None
        read = factor if whole else factor.operands[0]
        at = [var(n) for n in output_names(g.ndim)] if whole else factor.attributes["coordinates"]
        point = [substitute(c, place, extents) for c in at]
        crossing = open_axes & frozenset[str]().union(*map(free_names, at))
        if not crossing and not guards:
            factors.append(view(read, joint, point))
            continue
        ends = {str(c): n for c, n in zip(at, read.shape, strict=True)}
        if any(ends.get(name) != g.shape[int(name[1:])] for name in crossing):
            return None
        factors.append(_guarded(read, joint, point, guards))
        guards, beyond = (), beyond - crossing
    if guards or beyond:
        return None
    return sum_axes(build("mul", factors), tuple(range(len(shape), len(joint))))


def sum_axes(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The sum over the axes; a view where each is of one position."""
    if not axes:
        return x
    if any(x.shape[axis] != 1 for axis in axes):
        return build("reduce_sum", (x,), {"axes": axes})
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    place = {axis: var(f"i{at}") for at, axis in enumerate(rest)}
    at = [place.get(axis, const(0)) for axis in range(x.ndim)]
    return view(x, tuple(x.shape[axis] for axis in rest), at)


def spread(x: Tensor, axes: Sequence[int], shape: Shape) -> Tensor:
    """x, over the axes of `shape` other than `axes`, repeated along those."""
    kept = [var(f"i{axis}") for axis in range(len(shape)) if axis not in axes]
    return view(x, shape, kept)


def gathered(g: Tensor, node: Tensor) -> Tensor:
    """The table's part: g times a one-hot matrix of the index, summed over the positions read.

    The index is clipped to the table as the reading is.
    """
    table, index = node.operands
    axis: int = node.attributes["axis"]
    n = table.shape[axis]
    if 0 in node.shape:
        return expand(build("reduce_sum", (g,), {"axes": tuple(range(g.ndim))}), table.shape)
    varying = varying_axes(index)
    size = tuple(index.shape[d] for d in varying)
    place = {d: var(f"i{at}") for at, d in enumerate(varying)}
    index = view(index, size, [place.get(d, const(0)) for d in range(index.ndim)])
    nearest = clip(cast(index, int64), 0, n - 1)
    space = (*size, n)
    row = view(nearest, space, [var(f"i{at}") for at in range(len(size))])
    hit = cast(equal(row, iota(space, len(size))), g.dtype)
    joint = (*node.shape, n)
    last = var(f"i{node.ndim}")
    chosen = view(hit, joint, [*(var(f"i{d}") for d in varying), last])
    positions = [var(f"i{d}") for d in range(node.ndim)]
    product = build("mul", (chosen, view(g, joint, positions)))
    coordinates = [last if c is None else c for c in node.attributes["coordinates"]]
    assert coordinates[axis] == last
    return scatter(product, coordinates, table.shape)
