"""Movement: random chains of views against NumPy, composition, indexing, joining, gathering."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsat import graph
from eqsat.errors import DTypeError, ShapeError


def value(node, **inputs):
    return graph.evaluate([node], inputs)[0]


def factorise(draw, size):
    """A random shape of the given size."""
    shape = []
    for factor in (2, 3, 5, 7):
        while size % factor == 0 and size:
            size //= factor
            shape.append(factor)
    cuts = sorted(draw(st.lists(st.integers(0, len(shape)), max_size=3)))
    edges = [0, *cuts, len(shape)]
    return tuple(int(np.prod(shape[a:b])) for a, b in pairwise(edges))


def step(draw, x, a):
    """One random movement of the tensor and of its array."""
    kind = draw(st.sampled_from(["reshape", "permute", "slice", "flip", "pad", "roll", "repeat"]))
    if kind == "reshape" and a.size:
        shape = factorise(draw, a.size)
        if np.prod(shape) == a.size:
            return graph.reshape(x, shape), a.reshape(shape)
    if kind == "permute":
        axes = draw(st.permutations(range(a.ndim)))
        return graph.permute_dims(x, axes), a.transpose(axes)
    if kind == "slice" and a.ndim:
        key = tuple(
            slice(draw(st.integers(0, 1)), None, draw(st.sampled_from([1, 1, 2, -1])))
            for _ in range(a.ndim)
        )
        return x[key], a[key]
    if kind == "flip":
        return graph.flip(x), np.flip(a)
    if kind == "pad" and a.size < 500:
        widths = [draw(st.tuples(st.integers(0, 2), st.integers(0, 1))) for _ in range(a.ndim)]
        padded = np.pad(a, widths, constant_values=7) if a.ndim else a
        return graph.pad(x, widths, 7), padded
    if kind == "roll" and a.ndim:
        return graph.roll(x, 3, -1), np.roll(a, 3, -1)
    if kind == "repeat" and a.ndim and a.size < 500:
        return graph.repeat(x, 2, 0), np.repeat(a, 2, 0)
    return x, a


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_random_chains_of_views(data):
    shape = data.draw(st.sampled_from([(2, 3, 4), (12,), (6, 1, 5), (), (4, 4), (0, 3)]))
    a = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    x = start = graph.input("x", shape, "int32")
    array = a
    for _ in range(data.draw(st.integers(1, 5))):
        x, array = step(data.draw, x, array)
    assert x.shape == array.shape
    np.testing.assert_array_equal(value(x, x=a), array)
    assert x is start or x.op == "view"


def coordinates(node):
    return [str(c) for c in node.attributes["coordinates"]]


def test_views_compose_into_one():
    x = graph.input("x", (2, 12))
    heads = graph.permute_dims(graph.reshape(x, (2, 3, 4)), (1, 0, 2))
    assert heads.operands == (x,) and coordinates(heads) == ["i1", "4*i0 + i2"]
    back = graph.reshape(graph.permute_dims(heads, (1, 0, 2)), (2, 12))
    assert back is x
    window = graph.pad(x, [(0, 0), (1, 1)])[:, ::2]
    assert window.operands == (x,) and coordinates(window) == ["i0", "2*i1 - 1"]
    assert window.attributes["fill"] == 0
    assert graph.pad(x, [(0, 0), (1, 1)])[:, 1:13] is x
    moved = graph.pad(x.T, [(1, 0), (0, 0)])
    assert moved.operands == (x,) and coordinates(moved) == ["i1", "i0 - 1"]


def test_a_fill_around_a_crop_is_kept_apart():
    x = graph.input("x", (6,))
    node = graph.pad(x[1:5], [(1, 1)])
    assert node.operands[0].op == "view"
    a = np.arange(6, dtype="f4")
    np.testing.assert_array_equal(value(node, x=a), np.pad(a[1:5], 1))


def test_no_node_for_nothing():
    x = graph.input("x", (2, 3))
    for same in (
        x[...], x[:, :], graph.reshape(x, (2, 3)), graph.broadcast_to(x, (2, 3)), x.T.T,
        graph.flip(graph.flip(x)), graph.pad(x, [(0, 0), (0, 0)]), graph.astype(x, "float32"),
        graph.sum(x, axis=()), graph.squeeze(graph.expand_dims(x, 1), 1), graph.roll(x, 3, 1),
        graph.concat([x]), +x, graph.moveaxis(x, 0, 0), graph.tile(x, (1, 1)),
    ):  # fmt: skip
        assert same is x


KEYS = [
    np.s_[1], np.s_[-1, 2], np.s_[..., 1], np.s_[:, None, 1:], np.s_[::-1, ::-2, 3::-2],
    np.s_[1:1], np.s_[None, ..., None], np.s_[-2:, :-1, 5:1:-1], np.s_[0, 0, 0], np.s_[()],
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_basic_indexing(key):
    a = np.arange(2 * 3 * 6).reshape(2, 3, 6)
    np.testing.assert_array_equal(value(graph.input("x", a.shape, "int64")[key], x=a), a[key])


def test_indexing_by_a_tensor():
    a = np.arange(24.0, dtype="f4").reshape(2, 3, 4)
    x = graph.input("x", a.shape)
    at = np.array([[0, -1], [2, -3]])
    for node, expected in [
        (x[:, graph.constant(at)], a[:, at]),
        (x[0:1, :, graph.input("at", at.shape, "int64")], a[0:1][:, :, at]),
        (x[at[0] % 2], a[at[0] % 2]),
        (x[..., [0, -1]], a[..., [0, -1]]),
        (graph.take(x, graph.constant([0, 2, 255 - 255], dtype="uint8"), axis=1), a[:, [0, 2, 0]]),
        (graph.take(x, graph.constant(-1), axis=0), a[-1]),
        (graph.take(x, graph.zeros((0,), "int64"), axis=0), a[:0]),
    ]:
        np.testing.assert_array_equal(value(node, x=a, at=at), expected)


@pytest.mark.parametrize("axis", [0, 1, -1, None])
@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("int8", "uint8"), ("bool", "bool")])
def test_concat_and_stack(axis, dtypes):
    a = np.arange(6).reshape(2, 3).astype(dtypes[0])
    b = (np.arange(6).reshape(2, 3) % 2).astype(dtypes[1])
    x, y = graph.input("x", a.shape, dtypes[0]), graph.input("y", b.shape, dtypes[1])
    joined = value(graph.concat([x, y, x], axis), x=a, y=b)
    np.testing.assert_array_equal(joined, np.concatenate([a, b, a], axis))
    assert joined.dtype == np.concatenate([a, b]).dtype
    if axis is not None:
        stacked = value(graph.stack([x, y, x], axis), x=a, y=b)
        np.testing.assert_array_equal(stacked, np.stack([a, b, a], axis))


def test_other_movements():
    a = np.arange(24).reshape(2, 3, 4)
    x = graph.input("x", a.shape, "int64")
    for node, expected in [
        (graph.moveaxis(x, (0, 2), (2, 1)), np.moveaxis(a, (0, 2), (2, 1))),
        (graph.roll(x, (1, -2), (0, 2)), np.roll(a, (1, -2), (0, 2))),
        (graph.roll(x, 5), np.roll(a, 5)),
        (graph.tile(x, (2, 1, 3)), np.tile(a, (2, 1, 3))),
        (graph.tile(x, (2, 1, 1, 1)), np.tile(a, (2, 1, 1, 1))),
        (graph.repeat(x, 3, -1), np.repeat(a, 3, -1)),
        (graph.repeat(x, 0, 1), np.repeat(a, 0, 1)),
        (graph.unstack(x, 1)[2], a[:, 2]),
        (graph.diagonal(x, offset=1), np.diagonal(a, 1, 1, 2)),
        (graph.diagonal(x, offset=-2), np.diagonal(a, -2, 1, 2)),
        (graph.reshape(x, (4, -1)), a.reshape(4, -1)),
        (graph.expand_dims(x, (0, -1)), a[None, ..., None]),
        (graph.broadcast_to(x[:, :1], (5, 2, 3, 4)), np.broadcast_to(a[:, :1], (5, 2, 3, 4))),
    ]:
        np.testing.assert_array_equal(value(node, x=a), expected)


def test_errors_name_op_operands_limit_and_next_step():
    x, y = graph.input("x", (2, 3)), graph.input("y", (4,))
    for call, message in [
        (lambda: x + y, r"add: x float32\[2, 3\] and y float32\[4\] do not broadcast.*Use reshape"),
        (
            lambda: graph.reshape(x, (4, 2)),
            r"reshape: x float32\[2, 3\] has 6 elements.*has 8.*is 6",
        ),
        (lambda: graph.reshape(x, (4, -1)), r"\(4, -1\) cannot hold them"),
        (
            lambda: x[2],
            r"index: 2 is outside axis 0 of x float32\[2, 3\], which has 2 pos.*-2 to 1",
        ),
        (
            lambda: x[np.array([0, -2, 2])],
            r"index: 2 is past the ends of axis 0 of x .*2 elements\. Use .* -2 to 1",
        ),
        (lambda: graph.take(x, [[-4]], axis=1), r"index: -4 is past the ends of axis 1"),
        (lambda: x[::0], "the step of a slice is 0"),
        (lambda: graph.sum(x, axis=1.0), r"sum: axis 1\.0 of x .* is no integer"),
        (lambda: graph.input("z", None), "extent None"),
        (lambda: graph.roll(x, "a"), "roll: the shift 'a' of x .* is no integer"),
        (lambda: x + None, "^None is no number"),
        (lambda: graph.compute((3, 3), lambda i: y[i]), r"<lambda>\(i\) cannot take 2 indices"),
        (lambda: graph.compute(3, lambda i: None), "the body returned None"),
        (lambda: x[0, 0, 0], r"3 indices for x float32\[2, 3\] of 2 dimensions"),
        (lambda: x[..., ...], "more than one"),
        (lambda: graph.sum(x, axis=2), r"axis 2 is outside x float32\[2, 3\].*Use -2 to 1"),
        (lambda: graph.sum(x, axis=(0, -2)), "repeats an axis"),
        (lambda: graph.permute_dims(x, (0,)), "axes \\(0,\\) name 1"),
        (lambda: graph.squeeze(x, 0), "axis 0 of x .* has 2 positions, not 1"),
        (lambda: graph.concat([x, y]), "differ in more than axis 0"),
        (lambda: graph.stack([x, y]), "differ in shape"),
        (lambda: graph.broadcast_to(x, (3, 3)), "does not broadcast to"),
        (lambda: graph.pad(x, [(1, 1)] * 3), "one .before, after. pair"),
        (lambda: graph.input("z", (2, -1)), "extent -1"),
        (lambda: graph.constant([[1, 2], [3]]), "ragged"),
        (lambda: y.T, "T: y float32\\[4\\] has 1 dimensions, not 2"),
        (lambda: x.at(slice(None), y), "index"),
    ]:
        with pytest.raises((ShapeError, DTypeError), match=message):
            call()
    with pytest.raises(DTypeError, match="mask gives a shape that depends on values"):
        x[x[:, 0] > 0]
    with pytest.raises(DTypeError, match=r"index: y float32\[4\] is not integer"):
        x[y]
    with pytest.raises(DTypeError, match="is no index"):
        x["a"]
    with pytest.raises(AttributeError, match=r"'sum'\. Write eqsat\.sum\(x\)"):
        x.sum()
    with pytest.raises(TypeError, match="Use shape"):
        len(x)
    assert not hasattr(x, "detach") and graph.evaluate([x + 2**70], {"x": np.zeros((2, 3), "f")})


@pytest.mark.parametrize("widths", [1, (2, 1), [(0, 3)], ((1, 2), (0, 3))])
def test_widths_of_all_axes_are_given_as_to_numpy(widths):
    (found,) = graph.evaluate(
        [graph.pad(graph.input("x", (2, 3)), widths)], {"x": np.ones((2, 3), np.float32)}
    )
    np.testing.assert_array_equal(found, np.pad(np.ones((2, 3), np.float32), widths))


@pytest.mark.parametrize("widths", [-1, 1.5, (1, 2, 3), [(1, 2)] * 3, [[1], [2, 3]]])
def test_other_widths_are_refused(widths):
    with pytest.raises(ShapeError, match="one pair or width for all"):
        graph.pad(graph.input("x", (2, 3)), widths)


def test_a_bool_is_padded_with_false():
    x = graph.input("x", (3,), "bool")
    (found,) = graph.evaluate([graph.pad(x, [(1, 2)])], {"x": np.ones(3, bool)})
    np.testing.assert_array_equal(found, [0, 1, 1, 1, 0, 0])
