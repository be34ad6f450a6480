"""Arguments beside tensors: integers and numbers of Python and NumPy, and wrong ones."""

import numpy as np
import pytest

from eqsat import graph as g
from eqsat.errors import ArgumentError, DTypeError, EqsatError, ShapeError
from eqsat.graph.arguments import as_integer, as_integers, entries, is_integer, is_several

x = g.input("x", (3, 4))
v = g.input("v", (6,))
n = g.input("n", (), "int64")
ids = g.input("ids", (3,), "int64")
image = g.input("image", (1, 2, 8, 8))
weight = g.input("weight", (4, 2, 3, 3))
back = g.input("back", (2, 4, 3, 3))
two = np.int64(2)


def value(tensor):
    (found,) = g.evaluate([tensor], {})
    return found


def test_an_integer_is_of_python_or_numpy():
    assert [as_integer(one, "f: n") for one in (3, np.int8(3), np.array(3))] == [3, 3, 3]
    assert as_integers((1, two), "f: n") == (1, 2) == as_integers(np.array([1, 2]), "f: n")
    assert as_integers(two, "f: n") == (2,)
    assert entries("ab") == ("ab",) and entries(np.array(1)) == (np.array(1),)
    assert is_several([1]) and not is_several(two)
    for wrong in (True, 2.0, "2", None, np.array([1]), n):
        assert not is_integer(wrong)
        with pytest.raises(ShapeError, match=r"f: n .* of x is no integer\. Give an integer\."):
            as_integer(wrong, "f: n", " of x")


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        (lambda: g.reshape(x, np.int64(12)), (12,)),
        (lambda: g.reshape(x, np.array([4, 3])), (4, 3)),
        (lambda: g.expand_dims(x, np.int64(1)), (3, 1, 4)),
        (lambda: g.roll(x, two, np.int64(1)), (3, 4)),
        (lambda: g.roll(x, np.array([1, 2]), np.array([0, 1])), (3, 4)),
        (lambda: g.permute_dims(x, np.array([1, 0])), (4, 3)),
        (lambda: g.sum(x, np.array([0, 1])), ()),
        (lambda: g.conv(image, weight, stride=two, padding=np.int64(1)), (1, 4, 4, 4)),
        (lambda: g.conv(image, weight, padding=np.array([[1, 1], [2, 2]])), (1, 4, 8, 10)),
        (lambda: g.max_pool(image, two), (1, 2, 4, 4)),
        (lambda: g.tensordot(x, x, axes=two), ()),
        (lambda: g.arange(two), (2,)),
        (lambda: g.linspace(0, 1, two), (2,)),
        (lambda: g.repeat(x, two, 1), (3, 8)),
        (lambda: g.tile(x, two), (3, 8)),
        (lambda: g.top_k(x, two)[0], (3, 2)),
        (lambda: g.diff(x, n=two), (3, 2)),
        (lambda: g.diagonal(x, offset=two), (2,)),
        (lambda: g.segment_sum(x, ids, two), (2, 4)),
        (lambda: g.zeros((two, 3)), (2, 3)),
        (lambda: x[two:], (1, 4)),
    ],
)
def test_integers_of_numpy_are_integers(call, shape):
    assert call().shape == shape


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: g.reshape(x, (2.5, -1)), "reshape: the extent 2.5 of the shape"),
        (lambda: g.reshape(x, (3.0, 4.0)), "reshape: the extent 3.0 of the shape"),
        (lambda: g.diagonal(x, offset=1.5), "diagonal: offset 1.5 is no integer"),
        (lambda: g.trace(x, offset=1.5), "trace: offset 1.5 is no integer"),
        (lambda: g.conv(image, weight, padding=((1, 2, 3), 1)), r"padding \(\(1, 2, 3\), 1\) for"),
        (lambda: g.conv(image, weight, padding=((1, "a"), 1)), "padding 'a' is no integer"),
        (lambda: g.conv(image, weight, padding=None), "padding None is no integer"),
        (lambda: g.conv(image, weight, stride=1.5), "stride 1.5 is no integer"),
        (lambda: g.conv(image, weight, groups=1.5), "groups 1.5 is no integer"),
        (lambda: g.max_pool(image, 2.0), "window 2.0 is no integer"),
        (lambda: g.conv_transpose(image, back, padding="same"), "conv_transpose: padding 'same'"),
        (lambda: g.expand_dims(x, None), "expand_dims: axis None of x .* is no integer"),
        (lambda: g.permute_dims(x, None), "permute_dims: axis None of x .* is no integer"),
        (lambda: g.permute_dims(x, 1), r"axes \(1,\) name 1"),
        (lambda: g.tensordot(x, x, axes=None), "tensordot: axes None is no integer"),
        (lambda: g.tensordot(x, x, axes=(0,)), "Give a number, or two lists"),
        (lambda: g.top_k(x, 1.5), "top_k: k 1.5 is no integer"),
        (lambda: g.diff(x, n=1.5), "diff: n 1.5 is no integer"),
        (lambda: g.segment_sum(x, ids, None), "segment_sum: num_segments None is no integer"),
        (lambda: g.histogram(v, 3, "a", 1), "histogram: the edge 'a' is no number"),
        (lambda: g.var(x, correction="a"), "var: the correction 'a' is no number"),
        (lambda: g.arange("a"), "arange: the bound 'a' is no number"),
        (lambda: g.arange(float("nan")), "from 0 to nan by 1 there is no number of positions"),
        (lambda: g.arange(0, float("inf")), "Give finite numbers"),
        (lambda: g.linspace(0, 1, 3.0), "linspace: num 3.0 is no integer"),
        (lambda: g.pad(x, 1, "a"), "the fill 'a' is no number"),
        (lambda: g.einsum(3, x), "einsum: 3 is no str"),
        (lambda: g.grad(g.sum(x), None), "wrt is of type NoneType, not a tensor"),
        (lambda: g.compute(3, 3), "the body 3 cannot be called"),
        (lambda: g.compute(6, lambda i: v.at(i - 1, fill="a")), "the fill 'a' is no number"),
        (lambda: g.describe(3), "of type int, not a tensor"),
        (lambda: g.concat(x), "Give a list or tuple of tensors"),
        (lambda: g.zeros(-1), r"zeros: shape \(-1,\) has the extent -1"),
        (lambda: g.full(3, np.str_("a")), "is no real number"),
    ],
)
def test_a_wrong_argument_is_an_error_of_the_package(call, message):
    with pytest.raises(EqsatError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: g.sum(3.0), 3.0),
        (lambda: g.max([1.0, 2.0]), 2.0),
        (lambda: g.sort(np.array([3, 1, 2])), [1, 2, 3]),
        (lambda: g.flip(np.array([3, 1, 2])), [2, 1, 3]),
        (lambda: g.reshape(np.arange(4), (2, 2)), [[0, 1], [2, 3]]),
        (lambda: g.tril(np.ones((2, 2))), [[1, 0], [1, 1]]),
        (lambda: g.top_k(np.array([3, 5, 4]), 1)[0], [5]),
        (lambda: g.zeros_like(3), 0),
        (lambda: g.stop_gradient(2.0), 2.0),
        (lambda: g.softmax(np.zeros(2)), [0.5, 0.5]),
        (lambda: g.layer_norm(np.array([1.0, -1.0]), weight=2.0, epsilon=0.0), [2, -2]),
        (lambda: g.cross_entropy(np.zeros((2, 1)), [0, 0]), 0.0),
        (lambda: g.broadcast_arrays(np.zeros(2), 3.0)[1], [3, 3]),
        (lambda: g.searchsorted(np.array([1, 2]), 2), 1),
    ],
)
def test_numbers_and_arrays_are_taken_as_constants(call, expected):
    np.testing.assert_allclose(value(call()), expected, atol=1e-7)


@pytest.mark.parametrize(
    "call",
    [
        *(g.sum, g.max, g.softmax, g.sort, g.tril, g.mean, g.stop_gradient, g.relu, g.any),
        *(g.unstack, g.zeros_like, g.argmax, g.cumulative_sum, g.matrix_transpose, g.count_nonzero),
        lambda wrong: g.reshape(wrong, 3),
        lambda wrong: g.top_k(wrong, 1),
        lambda wrong: g.layer_norm(x, wrong),
        lambda wrong: g.broadcast_arrays(x, wrong),
        lambda wrong: g.conv(image, weight, bias=wrong),
        lambda wrong: g.take(x, wrong, 0),
    ],
)
def test_what_is_no_tensor_nor_number_is_refused(call):
    with pytest.raises(DTypeError, match="is no number, nor a list or array of numbers"):
        call("text")


def test_parameters_of_another_shape_are_refused():
    with pytest.raises(ShapeError, match=r"bias constant .* for 4 output channels"):
        g.conv(image, weight, bias=1.0)
    empty = g.zeros((2, 3, 0))
    with pytest.raises(ShapeError, match="the last axis of q and k is empty"):
        g.nn.attention(empty, empty, g.zeros((2, 3, 2)))
    assert g.nn.attention(x, x, x, mask=1.0).shape == x.shape


def test_class_targets_are_integers():
    with pytest.raises(DTypeError, match=r"targets: t float32\[3\] is not integer"):
        g.cross_entropy(x, g.input("t", (3,)))


def test_constants_fit_their_dtype():
    for call in (
        lambda: g.full(3, 300, "int8"),
        lambda: g.constant([300], "int8"),
        lambda: g.full(3, np.int64(300), "int8"),
    ):
        with pytest.raises(DTypeError, match="300 does not fit int8, which holds -128 to 127"):
            call()
    with pytest.raises(DTypeError, match="-1 does not fit uint8"):
        g.constant(-1, "uint8")
    for call in (lambda: g.constant([2**70]), lambda: g.full(3, 2**70), lambda: g.constant(2**63)):
        with pytest.raises(DTypeError, match=r"does not fit int64, .* Give a float dtype"):
            call()
    with pytest.raises(DTypeError, match=r"past 1\.8e308 does not fit float32"):
        g.constant(10**400, "float32")
    assert value(g.constant(2**70, "bfloat16")) == 2.0**70
    assert g.constant([], "int8").shape == (0,)
    assert value(g.constant([-(2**63)])) == -(2**63)


def test_a_masked_array_is_refused():
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    for call in (lambda: g.constant(masked), lambda: g.sum(masked), lambda: v[0] + masked):
        with pytest.raises(ArgumentError, match=r"would lose its mask\. Give \.filled"):
            call()


def test_slices_have_integers_as_bounds():
    for call in (
        lambda: x[1.5:],
        lambda: x[n:],
        lambda: x[slice("a", None)],
        lambda: g.compute(6, lambda i: v[i:]),
    ):
        with pytest.raises(DTypeError, match=r"Slices are fixed when a program is built.*compute"):
            call()


def test_an_empty_list_indexes_nothing():
    assert x[[]].shape == (0, 4)
    with pytest.raises(DTypeError, match="is not integer"):
        x[np.array([])]


def test_repeat_flattens_and_takes_a_count_for_each():
    a = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(value(g.repeat(a, 2)), np.repeat(a, 2))
    for counts in ([1, 0, 2], np.array([0, 0, 0]), [2]):
        np.testing.assert_array_equal(value(g.repeat(a, counts, 0)), np.repeat(a, counts, 0))
    (found,) = g.evaluate(
        [g.grad(g.sum(g.repeat(x, [1, 0, 2], 0)), x)], {"x": np.ones((3, 4), np.float32)}
    )
    np.testing.assert_array_equal(found[:, 0], [1, 0, 2])
    with pytest.raises(ShapeError, match=r"2 repeats for axis 0 of .* each of its 3 positions"):
        g.repeat(a, [1, 2], 0)
    with pytest.raises(ShapeError, match=r"the repeats ids .* are values"):
        g.repeat(x, ids, 0)
    with pytest.raises(ShapeError, match="-1 repeats"):
        g.repeat(x, -1, 0)


def test_log_of_the_sum_of_nothing():
    np.testing.assert_array_equal(value(g.logsumexp(np.zeros((2, 0)), 1)), [-np.inf, -np.inf])
    assert value(g.logsumexp(np.zeros((2, 0)), keepdims=True)).shape == (1, 1)
