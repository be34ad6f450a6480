"""Every row of the op table against NumPy, through `evaluate`."""

import math

import numpy as np
import pytest

from eqsat import graph
from eqsat.errors import DTypeError, ShapeError
from eqsat.graph.build import build
from eqsat.graph.dtypes import DTYPES, bool_, float32
from eqsat.graph.evaluate import topological
from eqsat.graph.ops import ELEMENTWISE, OPS

INTEGERS = [d for d in DTYPES if d.kind in ("int", "uint")]
FLOATS = [d for d in DTYPES if d.kind == "float"]
erf = np.vectorize(math.erf, otypes=[np.float64])
inverse = {"asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2}
NUMPY = {
    "neg": np.negative, "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x,
    "erf": erf, "round": np.round, "bitwise_invert": np.invert, "sub": np.subtract,
    "mul": np.multiply, "div": np.divide, "shift_left": np.left_shift,
    "shift_right": np.right_shift, "pow": np.power, **inverse,
}  # fmt: skip
UNARY = sorted(name for name in ELEMENTWISE if OPS[name].arity == 1 and name != "cast")
BINARY = sorted(name for name in ELEMENTWISE if OPS[name].arity == 2)


def samples(dtype, op, operand):
    """Awkward values that the op is defined on."""
    if dtype.kind == "bool":
        return np.array([[False, True, True, False]] * 2)[operand::2]
    if dtype.kind == "float":
        values = [
            -2.5,
            -1.0,
            -0.5,
            -0.0,
            0.0,
            0.5,
            0.25,
            1.0,
            1.5,
            2.5,
            3.0,
            np.inf,
            -np.inf,
            np.nan,
        ]
        values = np.array(values if operand == 0 else values[3:] + values[:3])
        return values.astype(dtype.numpy)
    limits = np.iinfo(dtype.numpy)
    values = [limits.min, limits.max, 1, 2, 7, 0, 100, 3]
    if op in ("pow", "shift_left", "shift_right") and operand:
        values = [3, 2, 1, 7, 0, 5, 1, 2]
    elif operand:
        values = [3, 2, 0, 5, 1, 7, limits.max, 1]
    array = np.array(values).astype(dtype.numpy)
    return (
        -array if dtype.kind == "int" and op not in ("pow", "shift_left", "shift_right") else array
    )


def meaning(op, arrays):
    return (NUMPY.get(op) or getattr(np, op))(*arrays)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", UNARY + BINARY)
def test_elementwise(op, dtype):
    arrays = [samples(dtype, op, at) for at in range(OPS[op].arity)]
    names = ["x", "y"][: len(arrays)]
    operands = [graph.input(n, a.shape, dtype) for n, a in zip(names, arrays, strict=True)]
    try:
        node = build(op, operands)
    except DTypeError as error:
        assert f"{op}: takes " in str(error) and f"x {dtype}" in str(error)
        assert dtype not in FLOATS or OPS[op].arity == 2 or op in ("logical_not", "bitwise_invert")
        return
    (found,) = graph.evaluate([node], dict(zip(names, arrays, strict=True)))
    with np.errstate(all="ignore"):
        wide = [a.astype(dtype.compute.numpy) for a in arrays]
        expected = np.asarray(meaning(op, wide)).astype(node.dtype.numpy)
    assert found.dtype == expected.dtype
    if dtype.kind == "float":
        rtol = 1e-6 if dtype.compute == float32 else 1e-14
        np.testing.assert_allclose(found.astype("f8"), expected.astype("f8"), rtol=rtol)
    else:
        np.testing.assert_array_equal(found, expected)
    with np.errstate(all="ignore"):
        (reference,) = graph.evaluate([node], dict(zip(names, arrays, strict=True)), np.float64)
    assert reference.dtype == (np.float64 if node.dtype.kind == "float" else node.dtype.numpy)


def test_integer_division_and_power_follow_the_documented_rules():
    x = graph.constant([7, -7, 7, -7, 5], dtype="int32")
    y = graph.constant([2, 2, -2, -2, 0], dtype="int32")
    quotient, rest = graph.evaluate([x // y, x % y], {})
    assert quotient.tolist() == [3, -4, -4, 3, 0]
    assert rest.tolist() == [1, 1, -1, -1, 0]
    base = graph.constant([1, -1, -1, 2, 0], dtype="int64")
    (power,) = graph.evaluate([base ** graph.constant([-3, -3, -2, -1, -1])], {})
    assert power.tolist() == [1, -1, 1, 0, 0]


@pytest.mark.parametrize("exponent", [-1, np.int64(-1)])
def test_integers_take_no_negative_number_as_their_power(exponent):
    x = graph.input("x", (2,), "int32")
    message = r"pow: x int32\[2\] to the power -1 is no integer\. .* astype\(x, \"float32\"\)"
    with pytest.raises(DTypeError, match=message):
        x**exponent
    assert (graph.astype(x, "float32") ** exponent).dtype == float32 and (x**0).dtype == x.dtype


@pytest.mark.parametrize("source", DTYPES, ids=str)
@pytest.mark.parametrize("target", DTYPES, ids=str)
def test_cast_and_where(source, target):
    values = np.array([0, 1, 2, 100, 3]).astype(source.numpy)
    x = graph.input("x", (5,), source)
    y = graph.astype(x, target)
    assert (y is x) == (source == target)
    (found,) = graph.evaluate([y], {"x": values})
    np.testing.assert_array_equal(found, values.astype(target.numpy))
    chosen = graph.where(graph.constant([True, False, True, False, True]), y, graph.zeros_like(y))
    (found,) = graph.evaluate([chosen], {"x": values})
    np.testing.assert_array_equal(found, (values * [1, 0, 1, 0, 1]).astype(target.numpy))


REDUCTIONS = ["sum", "prod", "max", "min", "mean", "var", "std", "any", "all", "argmax", "argmin"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(name, dtype, axis, keepdims):
    if name in ("argmax", "argmin") and isinstance(axis, tuple):
        axis = 1
    rng = np.random.default_rng(1)
    values = rng.integers(0, 4, (2, 3, 4)).astype(dtype.numpy)
    x = graph.input("x", values.shape, dtype)
    if name in ("mean", "var", "std") and dtype.kind != "float":
        with pytest.raises(DTypeError, match=f"{name}: takes floating dtypes"):
            getattr(graph, name)(x, axis)
        return
    node = getattr(graph, name)(x, axis, keepdims=keepdims)
    (found,) = graph.evaluate([node], {"x": values})
    expected = getattr(np, name)(values.astype(np.float64), axis=axis, keepdims=keepdims)
    assert found.shape == node.shape == expected.shape
    wanted = {"sum": 1, "prod": 1}.get(name) and (dtype.name if dtype in FLOATS else "int64")
    wanted = wanted or {"any": "bool", "all": "bool", "argmax": "int64", "argmin": "int64"}.get(
        name, dtype.name
    )
    assert node.dtype.name == wanted
    rtol = {"bfloat16": 1e-2, "float8_e4m3fn": 2**-4, "float8_e5m2": 2**-3}.get(dtype.name, 1e-3)
    np.testing.assert_allclose(found.astype("f8"), expected.astype("f8"), rtol=rtol)


def test_16_bit_sums_accumulate_in_float32():
    for dtype in ("float16", "bfloat16"):
        node = graph.sum(graph.input("x", (4096,), dtype))
        assert [n.op for n in (node, node.operands[0], node.operands[0].operands[0])] == [
            "cast", "reduce_sum", "cast",
        ]  # fmt: skip
        values = np.full(4096, 0.1).astype(node.dtype.numpy)
        (found,) = graph.evaluate([node], {"x": values})
        assert abs(float(found) - 4096 * float(values[0])) < 4


def test_first_hit_of_ties_and_nan():
    values = np.array([[1, 3, 3], [np.nan, 9, np.nan], [2, np.nan, 5]], "f4")
    x = graph.input("x", values.shape)
    found = graph.evaluate([graph.argmax(x, axis=1), graph.argmin(x, axis=1)], {"x": values})
    assert [f.tolist() for f in found] == [[1, 0, 1], [0, 0, 1]]


def test_empty_and_0_d():
    empty, scalar = graph.input("x", (0, 3)), graph.input("s", ())
    inputs = {"x": np.zeros((0, 3), "f4"), "s": np.float32(2)}
    nodes = [
        graph.sum(empty), graph.sum(empty, axis=0), graph.max(empty, axis=1), graph.any(empty),
        graph.all(empty), graph.sum(scalar), graph.max(scalar), scalar + 1, empty * 2,
        graph.reshape(empty, (3, 0)), graph.matmul(empty.mT, empty), graph.cumulative_sum(empty, 0),
        graph.concat([empty, empty]), graph.prod(empty, axis=0),
    ]  # fmt: skip
    found = graph.evaluate(nodes, inputs)
    shapes = [(), (3,), (0,), (), (), (), (), (), (0, 3), (3, 0), (3, 3), (0, 3), (0, 3), (3,)]
    assert [f.shape for f in found] == shapes
    assert found[3].item() is False and found[4].item() is True
    extremes = (graph.max, graph.min, graph.argmax, graph.argmin)
    for op in (*extremes, graph.softmax, graph.log_softmax):
        name = op.__name__
        with pytest.raises(ShapeError, match=rf"^{name}: axis 0 of x float32\[0, 3\] is empty"):
            op(empty, axis=0)
    with pytest.raises(ShapeError, match=r"^argmax: axis 0 of x float32\[0, 3\] is empty"):
        graph.argmax(empty)
    with pytest.raises(ShapeError, match=r"^cross_entropy: axis 1 of x float32\[3, 0\] is empty"):
        graph.cross_entropy(graph.input("x", (3, 0)), [0, 0, 0])


@pytest.mark.parametrize(
    "name",
    [
        *("sum", "prod", "max", "min", "mean", "var", "std", "any", "all", "argmax", "softmax"),
        *("count_nonzero", "log_softmax", "layer_norm", "rms_norm", "logsumexp", "median"),
    ],
)
def test_a_wrong_axis_is_told_by_the_function_called(name):
    message = rf"^{name}: axis 7 is outside x float32\[2, 3\] of 2 dimensions"
    with pytest.raises(ShapeError, match=message):
        getattr(graph, name)(graph.input("x", (2, 3)), axis=7)


def test_a_reduction_of_one_element_is_the_element():
    x = graph.input("x", (3, 1, 4), "bfloat16")
    reduced = [graph.sum(x, axis=1), graph.max(x, axis=1), graph.mean(x, axis=1, keepdims=True)]
    assert not any("reduce" in node.op for node in topological(reduced))
    assert [y.shape for y in reduced] == [(3, 4), (3, 4), (3, 1, 4)]
    value = np.arange(12, dtype="f4").reshape(3, 1, 4).astype(graph.bfloat16.numpy)
    for node, found in zip(reduced, graph.evaluate(reduced, {"x": value}), strict=True):
        np.testing.assert_array_equal(found, value.reshape(node.shape))


def test_cumulative_sum():
    values = np.arange(12, dtype=np.int8).reshape(3, 4) * 10
    x = graph.input("x", values.shape, "int8")
    nodes = [graph.cumulative_sum(x, 0), graph.cumulative_sum(x, -1, include_initial=True)]
    found = graph.evaluate(nodes, {"x": values})
    np.testing.assert_array_equal(found[0], np.cumsum(values, 0, dtype=np.int64))
    np.testing.assert_array_equal(found[1][:, 1:], np.cumsum(values, 1, dtype=np.int64))
    assert found[1][:, 0].tolist() == [0, 0, 0] and found[1].dtype == np.int64


def test_composed_elementwise():
    values = np.array([-2e30, -3.0, -0.5, -1e-4, 0.0, 1e-4, 0.5, 3.0, 2e30])
    x = graph.input("x", values.shape, "float64")
    small = graph.input("y", (4,), "float64")
    y = np.array([-0.9, -1e-5, 0.3, 0.999])
    inf = np.array([np.inf, -np.inf, 0.0, 4.0])
    z = graph.constant(inf)
    pairs = [
        (graph.asinh(x), np.arcsinh(values)),
        (graph.acosh(graph.abs(x) + 1.0), np.arccosh(np.abs(values) + 1)),
        (graph.atanh(small), np.arctanh(y)),
        (graph.log10(graph.abs(small)), np.log10(np.abs(y))),
        (graph.logaddexp(small, z), np.logaddexp(y, inf)),
        (graph.logaddexp(z, z), np.logaddexp(inf, inf)),
        (graph.hypot(x, graph.flip(x)), np.hypot(values, values[::-1])),
        (graph.hypot(z, small), np.hypot(inf, y)),
        (graph.clip(x, -1, 0.25), np.clip(values, -1, 0.25)),
        (graph.isnan(graph.constant([1, 2])), [False, False]),
        (graph.isfinite(graph.constant([1, 2])), [True, True]),
    ]
    found = graph.evaluate([node for node, _ in pairs], {"x": values, "y": y})
    for (node, expected), value in zip(pairs, found, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-12, err_msg=str(node))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_inverse_hyperbolic_functions_up_to_the_largest_number(dtype):
    largest = graph.finfo(dtype).max
    values = np.array([1.0, 2.0, 63.0, 65.0, 1e4, largest])
    x = graph.constant(values, dtype)
    found = graph.evaluate([graph.asinh(x), graph.acosh(x), graph.asinh(-x)], {})
    exact = x.attributes["value"].astype("f8")
    wanted = [np.arcsinh(exact), np.arccosh(exact), -np.arcsinh(exact)]
    for value, expected in zip(found, wanted, strict=True):
        tolerance = 4 * graph.finfo(dtype).eps
        np.testing.assert_allclose(value.astype("f8"), expected, rtol=tolerance)


def test_inverse_hyperbolic_functions_keep_the_sign_of_zero():
    zeros = np.array([-0.0, 0.0])
    for function in (graph.asinh, graph.atanh):
        (found,) = graph.evaluate([function(zeros)], {})
        np.testing.assert_array_equal(np.signbit(found), [True, False])


def test_creation():
    pairs = [
        (graph.arange(5), np.arange(5)),
        (graph.arange(2, 11, 3), np.arange(2, 11, 3)),
        (graph.arange(5, 0, -2), np.arange(5, 0, -2)),
        (graph.arange(0.0, 1.0, 0.25), np.arange(0, 1, 0.25, dtype="f4")),
        (graph.arange(3, 1), np.arange(3, 1)),
        (graph.linspace(0.0, 1.0, 7), np.linspace(0, 1, 7, dtype="f4")),
        (graph.linspace(0.0, 1.0, 1), np.linspace(0, 1, 1, dtype="f4")),
        (graph.linspace(0.0, 1.0, 4, endpoint=False), np.linspace(0, 1, 4, False, dtype="f4")),
        (graph.eye(3, 4, k=1), np.eye(3, 4, 1, dtype="f4")),
        (graph.tril(graph.ones((2, 3, 4)), -1), np.tril(np.ones((2, 3, 4), "f4"), -1)),
        (graph.triu(graph.ones((3, 4), "int8"), 1), np.triu(np.ones((3, 4), "i1"), 1)),
        (graph.full((2,), 7), np.full(2, 7)),
        (graph.full(2, True), np.full(2, True)),
        (graph.zeros_like(graph.ones((2, 2), "bool")), np.zeros((2, 2), bool)),
    ]
    found = graph.evaluate([node for node, _ in pairs], {})
    for (node, expected), value in zip(pairs, found, strict=True):
        assert value.dtype == expected.dtype, node
        np.testing.assert_allclose(value, expected, rtol=1e-6, err_msg=str(node))


def test_every_op_has_one_name_and_a_meaning():
    assert all(name == op.name for name, op in OPS.items())
    assert bool_ == build("isnan", (graph.input("x", ()),)).dtype
