"""Every primitive's derivative against finite differences in float64; the corners; the errors."""

import numpy as np
import pytest
from finite_differences import check, differences, inputs_of, weighted

import eqsat
from eqsat import graph as g
from eqsat.errors import DTypeError, ShapeError
from eqsat.graph.build import build
from eqsat.graph.gradient_rows import ROWS
from eqsat.graph.ops import OPS

RNG = np.random.default_rng(0)
ANY = RNG.uniform(-2, 2, (2, 3))
OTHER = RNG.uniform(-2, 2, (2, 3))
POSITIVE = RNG.uniform(0.2, 3, (2, 3))
INSIDE = RNG.uniform(-0.9, 0.9, (2, 3))
AT = np.array([[2, 0, 2], [1, -1, 9]])


def unary(op, x):
    return lambda: check(lambda t: build(op, (t,)), x=x)


def binary(op, x, y):
    return lambda: check(lambda a, b: build(op, (a, b)), x=x, y=y)


def reduction(op, x):
    return lambda: [check(lambda t, a=a: build(op, (t,), {"axes": a}), x=x) for a in ((0,), (0, 1))]


CASES = {
    **{op: unary(op, ANY) for op in (
        "neg", "abs", "square", "exp", "expm1", "sin", "cos", "tan", "sinh", "cosh", "tanh",
        "atan", "erf",
    )},
    **{op: unary(op, POSITIVE) for op in (
        "log", "log1p", "log2", "sqrt", "rsqrt", "reciprocal",
    )},
    **{op: unary(op, INSIDE) for op in ("asin", "acos")},
    **{op: binary(op, ANY, OTHER) for op in (
        "add", "sub", "mul", "div", "maximum", "minimum", "atan2",
    )},
    "pow": binary("pow", POSITIVE, OTHER),
    "remainder": binary("remainder", ANY, POSITIVE),
    "where": lambda: check(g.where, c=ANY > 0, x=ANY, y=OTHER),
    "cast": lambda: check(lambda t: g.astype(g.astype(t, "float32"), "float64"), 2e-2, x=ANY),
    "reduce_sum": reduction("reduce_sum", ANY),
    "reduce_prod": reduction("reduce_prod", ANY),
    "reduce_max": reduction("reduce_max", ANY),
    "reduce_min": reduction("reduce_min", ANY),
    "view": lambda: check(lambda t: g.reshape(t, (3, 2)), x=ANY),
    "gather": lambda: [
        check(lambda t, at: g.take(t, at, 1), x=ANY, at=AT),
        *(check(lambda t, at, d=d: g.take_along_axis(t, at, d), x=ANY, at=AT) for d in (0, 1)),
    ],
    "scan_sum": lambda: [check(lambda t, d=d: g.cumulative_sum(t, d), x=ANY) for d in (0, 1)],
    "sort": lambda: [
        check(lambda t, d=d, b=b: g.sort(t, d, descending=b), x=ANY) for d in (0, 1) for b in (0, 1)
    ],
    "scan_affine": lambda: [
        *(check(lambda a, b, d=d: g.affine_scan(a, b, d), a=ANY, b=OTHER) for d in (0, 1)),
        *(check(lambda a, d=d: g.cumulative_prod(a, d), a=ANY) for d in (0, 1)),
    ],
}  # fmt: skip
FLAT = ["sign", "floor", "ceil", "trunc", "round", "floor_divide"]


def test_every_primitive_has_one_row():
    assert ROWS.keys() == OPS.keys()
    assert all(len(ROWS[name]) == op.arity for name, op in OPS.items())


def test_every_derivative_is_tested():
    assert set(CASES) == {name for name, row in ROWS.items() if any(row)}


@pytest.mark.parametrize("op", CASES)
def test_derivative(op):
    CASES[op]()


@pytest.mark.parametrize("op", FLAT)
def test_what_is_constant_between_jumps_has_none(op):
    check(lambda *x: build(op, x), **dict(zip("xy", (ANY, OTHER)[: OPS[op].arity], strict=False)))


@pytest.mark.parametrize("op", sorted(OPS.keys() - CASES.keys() - set(FLAT)))
def test_what_is_no_real_function_has_no_row(op):
    assert not any(ROWS[op])
    x = [g.input(name, (2,), "float64") for name in "xyz"[: OPS[op].arity]]
    if x:
        try:
            assert build(op, x, {"count": 1}).dtype.kind != "float"
        except DTypeError as refused:
            assert "takes" in str(refused)


# --- corners ----------------------------------------------------------------------------------


def gradients(function, **arrays):
    """The derivatives of the sum of the function's elements."""
    tensors = inputs_of({name: np.asarray(a, np.float64) for name, a in arrays.items()})
    loss = g.sum(function(*tensors.values()))
    found = g.evaluate(g.grad(loss, list(tensors.values())), arrays_of(arrays))
    return [array.tolist() for array in found]


def arrays_of(arrays):
    return {name: np.asarray(a, np.float64) for name, a in arrays.items()}


def test_ties_share():
    assert gradients(lambda x: g.max(x, 1), x=[[1, 3, 3], [2, 2, 2]]) == [
        [[0, 0.5, 0.5], [1 / 3, 1 / 3, 1 / 3]]
    ]
    assert gradients(g.min, x=[4, 0, 0]) == [[0, 0.5, 0.5]]
    assert gradients(g.maximum, x=[1, 2, 3], y=[2, 2, 2]) == [[0, 0.5, 1], [1, 0.5, 0]]
    assert gradients(g.minimum, x=[1, 2, 3], y=[2, 2, 2]) == [[1, 0.5, 0], [0, 0.5, 1]]
    assert gradients(lambda x: g.clip(x, 0, 1), x=[-1, 0, 0.5, 1, 2]) == [[0, 0.5, 1, 0.5, 0]]
    assert gradients(g.abs, x=[-2, 0, 2]) == [[-1, 0, 1]]
    assert gradients(g.relu, x=[-2, 0, 2]) == [[0, 0.5, 1]]


@pytest.mark.parametrize("zeros", [0, 1, 2])
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_products_with_zeros(n, zeros):
    x = RNG.uniform(0.5, 2, n)
    x[:zeros] = 0
    expected = [np.prod(np.delete(x, i)) for i in range(n)]
    np.testing.assert_allclose(gradients(g.prod, x=x)[0], expected, rtol=1e-12)


def test_products_over_some_axes():
    x = RNG.uniform(-1, 1, (2, 3, 2))
    x[0, 1, 1] = 0
    for axes in ((0,), (1,), (0, 2), (1, 2)):
        check(lambda t, axes=axes: g.prod(t, axes), x=x)
    big = np.array([1e200, 1e200, 0.0])  # the product of the others is finite for none but one
    assert gradients(g.prod, x=big)[0] == [0, 0, np.inf]


def test_powers_of_and_to_zero():
    base, exponent = [0, 0, 0, 2, -2], [0, 1, 2, 0, 3]
    by_base, _ = gradients(g.pow, x=base, y=exponent)
    assert by_base == [0, 1, 0, 0, 12]
    _, by_exponent = gradients(g.pow, x=[0, 0, 1], y=[2, 0.5, 5])
    assert by_exponent == [0, 0, 0]


def test_infinite_slopes_are_infinite():
    assert gradients(g.sqrt, x=[0, 4]) == [[np.inf, 0.25]]
    assert gradients(g.log, x=[0, 2]) == [[np.inf, 0.5]]
    assert gradients(g.exp, x=[1000, -np.inf]) == [[np.inf, 0]]


def test_saturated_functions_are_flat():
    far = [-1000, 0, 1000]
    assert gradients(g.sigmoid, x=far) == [[0, 0.25, 0]]
    assert gradients(g.silu, x=far) == [[0, 0.5, 1]]
    assert gradients(g.tanh, x=far) == [[0, 1, 0]]
    assert gradients(g.gelu, x=far) == [[0, 0.5, 1]]


def test_rows_read_twice_or_from_the_end_or_past_it():
    table = np.arange(8.0).reshape(4, 2)
    for at in ([0, 0, 0], [-1, 3, -4], [9, -9, 1]):
        x, w = g.input("x", (4, 2), "float64"), RNG.uniform(1, 2, (3, 2))
        rows = g.input("rows", (3,), "int64")
        loss = g.sum(g.take(x, rows, 0) * g.constant(w))
        (found,) = g.evaluate([g.grad(loss, x)], {"x": table, "rows": np.array(at)})
        expected = np.zeros((4, 2))
        rows = [min(max(i + 4 if i < 0 else i, 0), 3) for i in at]
        np.add.at(expected, rows, w)
        np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_an_index_of_any_dtype(dtype):
    check(lambda x, at: g.take(x, at, 0), x=RNG.uniform(-1, 1, (200, 1)),
          at=np.array([[3, 0], [120, 3]], dtype))  # fmt: skip


def test_empty_tensors():
    check(lambda x: g.sum(x) + 1.0, x=np.zeros((0, 3)))
    check(lambda x, y: g.concat([x, y]), x=np.zeros((0, 2)), y=np.ones((3, 2)))
    check(lambda x: g.take(x, g.constant(np.zeros(0, np.int64)), 0), x=np.ones((3, 2)))
    check(lambda x: g.prod(g.concat([x, x])), x=np.zeros(0))


# --- orders, intermediates, dtypes -----------------------------------------------------------


def test_second_derivatives():
    x = g.input("x", (3,), "float64")
    a, at = g.input("a", (3, 3), "float64"), g.input("at", (4,), "int64")
    arrays = {"x": np.array([0.3, -0.7, 0.0]), "a": RNG.uniform(-1, 1, (3, 3))}
    arrays["at"] = np.array([0, 2, 0, 1])
    y = g.tanh(a @ g.exp(x))
    losses = [
        g.sum(g.softmax(y) * y) + g.logsumexp(y * y),
        g.prod(x + 0.0) * g.sum(y),
        g.sum(g.square(g.cumulative_sum(g.take(x, at, 0)))) * g.var(y),
        g.sum(g.square(g.exp(x) - 1.0)) + g.sum(x**3.0),
    ]
    for loss in losses:
        first = g.grad(loss, x)
        rows = [g.grad(first[i], x) for i in range(3)]
        found = g.evaluate(rows, arrays)
        for i in range(3):
            (expected,) = differences(first[i], ["x"], arrays)
            np.testing.assert_allclose(found[i], expected, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(found, np.transpose(found), atol=1e-12)


def test_intermediate_values_and_what_is_not_reached():
    x, y = g.input("x", (3,), "float64"), g.input("y", (2,), "float32")
    h = g.exp(x)
    loss = g.sum(h * h)
    by_h, by_x, by_y, by_loss = g.grad(loss, [h, x, y, loss])
    values = np.array([0.0, 1.0, -1.0])
    found = g.evaluate([by_h, by_x, by_y, by_loss], {"x": values})
    np.testing.assert_allclose(found[0], 2 * np.exp(values))
    np.testing.assert_allclose(found[1], 2 * np.exp(2 * values))
    assert found[2].tolist() == [0, 0] and found[2].dtype == np.float32
    assert found[3] == 1 and by_y.shape == (2,)


def test_a_cotangent_weighs_the_elements():
    x = g.input("x", (3,), "float64")
    weights = np.array([1.0, 0.0, -2.0])
    for cotangent in (weights, g.constant(weights), [1.0, 0.0, -2.0]):
        found = g.evaluate([g.grad(g.square(x), x, cotangent=cotangent)], {"x": np.ones(3)})
        assert found[0].tolist() == [2, 0, -4]


def test_stopped_values_are_constants():
    x = g.input("x", (3,), "float64")
    values = {"x": np.array([1.0, 2.0, 3.0])}
    for stopped in (x, x * 1.0, g.reshape(x, (3, 1))[:, 0], g.flip(x * 1.0)):
        constant = g.stop_gradient(stopped)
        found, value, kept = g.evaluate([g.grad(g.sum(x * constant), x), constant, stopped], values)
        np.testing.assert_array_equal(found, kept)
        np.testing.assert_array_equal(value, kept)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_floats_accumulate_in_float32(dtype):
    x = g.input("x", (3,), dtype)
    loss = g.sum(g.broadcast_to(x, (5000, 3)) * 0.125)
    gradient = g.grad(loss, x)
    assert gradient.dtype.name == dtype and gradient.op == "cast"
    (found,) = g.evaluate([gradient], {"x": np.ones(3, x.dtype.numpy)})
    assert found.astype(float).tolist() == [625 if dtype == "float16" else 624] * 3
    total = x
    for _ in range(2000):
        total = total + x  # 2000 parts, each 1 * 1: bfloat16 alone would stop at 256
    (found,) = g.evaluate([g.grad(g.sum(total), x)], {"x": np.ones(3, x.dtype.numpy)})
    assert abs(found.astype(float) - 2001).max() <= 8


def test_values_of_the_forward_pass_are_read():
    x = g.input("x", (3, 3))
    y = g.tanh(g.exp(x) @ x)
    gradient = g.grad(g.sum(y), x)
    text = g.describe([gradient])
    assert text.count("= tanh(") == text.count("= exp(") == 1
    assert eqsat.grad is g.grad


# --- errors -------------------------------------------------------------------------------------


def test_errors():
    x, n = g.input("x", (3,)), g.input("n", (), "int64")
    with pytest.raises(ShapeError, match=r"loss x float32\[3\] is no scalar. Reduce it with sum"):
        g.grad(x, x)
    with pytest.raises(DTypeError, match=r"loss n int64\[\] is of no floating dtype.*astype"):
        g.grad(n, x)
    with pytest.raises(DTypeError, match=r"wrt n int64\[\] is of no floating dtype.*astype"):
        g.grad(g.sum(x), [x, n])
    with pytest.raises(DTypeError, match="wrt is of type str, not a tensor"):
        g.grad(g.sum(x), ["x"])
    with pytest.raises(ShapeError, match=r"cotangent .* for loss .* Give one of the shape \(3,\)"):
        g.grad(x, x, cotangent=np.ones(2))
    with pytest.raises(DTypeError, match=r"cotangent .* is of no floating dtype"):
        g.grad(x, x, cotangent=np.ones(3, np.int64))


def test_weighted_losses_differ_in_each_element():
    """The weights of the tests themselves: a transposed gradient must not pass."""
    x = g.input("x", (2, 2), "float64")
    (found,) = g.evaluate([g.grad(weighted(x), x)], {"x": np.zeros((2, 2))})
    assert len(np.unique(found)) == 4
