"""The transposes of index maps: of the library's movements, and of random quasi-affine ones."""

import numpy as np
import pytest
from finite_differences import check
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsat import graph as g
from eqsat.graph.build import view
from eqsat.graph.gradient_maps import invert
from eqsat.graph.gradient_views import scatter
from eqsat.graph.index import add, const, evaluate, floordiv, mod, scale, sub, var
from eqsat.graph.movement import canonical, output_extents

LINE, SQUARE = np.linspace(-1, 1, 12), np.linspace(-1, 1, 12).reshape(3, 4)


def x(*shape):
    return g.input("x", shape, "float64")


def window(reach, *shape):
    return view(x(9), shape, [reach])


ROW, TAP = var("i0"), var("i1")
# A view, the extents summed over in its transpose, and how many guards hold it in range.
MOVEMENTS = {
    "permute": (g.permute_dims(x(2, 3, 4), (2, 0, 1)), (), 0),
    "split": (g.reshape(x(24), (2, 3, 4)), (), 0),
    "join": (g.reshape(x(2, 3, 4), (6, 4)), (), 0),
    "reshape": (g.reshape(x(4, 6), (3, 8)), (), 0),
    "reshape of primes": (g.reshape(x(5, 7), (7, 5)), (), 0),
    "flip": (g.flip(x(3, 4)), (), 0),
    "slice": (x(9)[2:5], (), 0),
    "stride": (x(9)[1::3], (), 1),
    "negative stride": (x(9)[::-2], (), 1),
    "pad": (g.pad(x(3, 4), [(1, 2), (0, 1)]), (), 0),
    "roll": (g.roll(x(5, 4), 2, 1), (), 0),
    "tile": (g.tile(x(3, 2), (2, 3)), (2, 3), 0),
    "repeat": (g.repeat(x(3, 2), 4, 1), (4,), 0),
    "diagonal": (g.diagonal(x(3, 5), offset=1), (), 1),
    "broadcast": (g.broadcast_to(x(3, 1), (2, 3, 4)), (2, 4), 0),
    "windows": (window(add(ROW, TAP), 7, 3), (3,), 0),
    "dilated windows": (window(add(ROW, scale(TAP, 2)), 5, 3), (3,), 0),
    "windows apart": (window(add(scale(ROW, 3), TAP), 3, 3), (), 0),
    "strided windows": (window(add(scale(ROW, 2), TAP), 4, 3), (3,), 1),
    "backward windows": (window(add(ROW, sub(const(2), TAP)), 7, 3), (3,), 0),
}


def transpose_in_numpy(coordinates, shape, target):
    """Ones at the flat positions of the target that the points of the shape read."""
    grid = dict(zip(output_extents(shape), np.indices(shape), strict=True))
    at = [np.broadcast_to(evaluate(c, grid), shape).ravel() for c in coordinates]
    inside = np.ones(int(np.prod(shape)), bool)
    flat = np.zeros(inside.shape, np.int64)
    for position, n in zip(at, target, strict=True):
        inside &= (position >= 0) & (position < n)
        flat = flat * n + position
    points = np.arange(1.0, inside.size + 1)
    total = np.zeros(int(np.prod(target)))
    np.add.at(total, flat[inside], points[inside])
    return points.reshape(shape), total.reshape(target)


def check_map(coordinates, shape, target):
    coordinates = canonical(coordinates, shape)
    points, expected = transpose_in_numpy(coordinates, shape, target)
    tensor = scatter(g.input("g", shape, "float64"), coordinates, target)
    (found,) = g.evaluate([tensor], {"g": points})
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", MOVEMENTS)
def test_movements_have_views_as_transposes(name):
    moved, summed, guards = MOVEMENTS[name]
    coordinates, operand = moved.attributes["coordinates"], moved.operands[0]
    check_map(coordinates, moved.shape, operand.shape)
    inverse = invert(coordinates, moved.shape, operand.shape)
    assert inverse.summed == summed and len(inverse.guards) == guards


def test_what_cannot_be_solved_is_summed_under_a_guard():
    coordinate = floordiv(add(scale(ROW, 2), scale(TAP, 3)), 4, {"i0": 4, "i1": 3})
    check_map([coordinate], (4, 3), (4,))
    inverse = invert([coordinate], (4, 3), (4,))
    assert inverse.summed == (4, 3) and len(inverse.guards) == 1


@st.composite
def expressions(draw, extents, depth=0):
    """A quasi-affine expression of the names of `extents`."""
    total = const(draw(st.integers(-1, 2)))
    for name in extents:
        total = add(total, scale(var(name), draw(st.sampled_from([0, 0, 1, 1, 2, 3, 4, -1, -2]))))
    if depth < 2 and draw(st.booleans()):
        inner = draw(expressions(extents, depth + 1))
        divided = draw(st.sampled_from([floordiv, mod]))(inner, draw(st.integers(2, 4)), extents)
        total = add(total if draw(st.booleans()) else const(0), scale(divided, 1 + depth))
    return total


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_random_maps(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 6), max_size=3)))
    target = tuple(data.draw(st.lists(st.integers(1, 6), max_size=3)))
    extents = output_extents(shape)
    check_map([data.draw(expressions(extents)) for _ in target], shape, target)


COMPOSED = {
    "stencil": lambda a: g.compute(
        (12,), lambda i: g.sum_over(3, lambda k: a.at(i + k - 1, fill=0) * a[k])
    ),
    "blocks": lambda a: g.compute((3, 4), lambda i, j: a[4 * i + j] * a[j]),
    "quotients": lambda a: g.compute((24,), lambda i: a[i // 2] * a[i % 3]),
    "roll": lambda a: g.roll(a, 5) * a,
    "concat": lambda a: g.concat([a[:5], g.flip(a), a[::3]]),
    "stack": lambda a: g.stack([a, a * a], axis=1),
    "filled": lambda a: g.pad(a, [(2, 3)], value=5) * 2.0,
    "a view of views": lambda a: g.permute_dims(g.reshape(g.pad(a, [(2, 2)]), (4, 4)), (1, 0))[1:],
}  # fmt: skip


@pytest.mark.parametrize("name", COMPOSED)
def test_composed_movements(name):
    check(COMPOSED[name], a=LINE)


def test_movements_of_matrices():
    check(lambda a: g.roll(a, 3), a=SQUARE)
    check(lambda a: g.roll(a, (1, -1), (0, 1)) * a, a=SQUARE)
    check(lambda a: g.trace(a) * g.tril(a) + g.triu(a, 1), a=SQUARE[:, :3])
    check(lambda a, b: g.einsum("ij,ji->i", a, b), a=SQUARE, b=SQUARE.T)
    check(lambda a: g.einsum("ii->i", a[:, :3]), a=SQUARE)
    check(lambda a, b: g.tensordot(a, b, axes=1), a=SQUARE, b=SQUARE.T)
