"""NumPy's functions given tensors, and names of other libraries: errors that say what to write."""

import math
import operator

import numpy as np
import pytest

import eqsat
import eqsat.graph as g
from eqsat.errors import ArgumentError, UnsupportedError
from eqsat.graph.elsewhere import ELSEWHERE

x = g.input("x", (3,))
n = g.input("n", (3,), "int32")
a = np.array([1.5, -2.0, 4.0], np.float32)
BINARY = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.matmul, operator.eq, operator.ne, operator.lt, operator.le, operator.gt,
    operator.ge,
]  # fmt: skip
OF_BITS = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]


@pytest.mark.parametrize("operation", BINARY, ids=lambda f: f.__name__)
def test_operators_of_an_array_and_a_tensor_are_the_tensors(operation) -> None:
    b = np.array([2.0, 3.0, 1.0], np.float32)
    for left, right in ((a, b), (a[0], b)):
        if operation is operator.matmul and left is not a:
            continue
        node = operation(left, x)
        assert isinstance(node, g.Tensor)
        (found,) = g.evaluate([node], {"x": b})
        expected = operation(left, right)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("operation", OF_BITS, ids=lambda f: f.__name__)
def test_operators_of_bits(operation) -> None:
    b = np.array([2, 3, 1], np.int32)
    for left in (np.array([5, 7, 9], np.int32), np.int32(6)):
        (found,) = g.evaluate([operation(left, n)], {"n": b})
        np.testing.assert_array_equal(found, operation(left, b))


@pytest.mark.parametrize("number", [np.float32(2), np.float64(2), np.int64(2), np.int8(2)])
def test_a_scalar_of_numpy_takes_the_dtype_of_the_tensor(number) -> None:
    for operation in (operator.add, operator.mul, operator.pow):
        assert operation(number, x).dtype == x.dtype
    assert (number < x).operands[1].dtype == x.dtype
    assert (number == x).op == "equal"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: np.exp(x), r"exp of NumPy takes arrays, and x .* Write eqsat\.exp\(x\) instead"),
        (lambda: np.sum(x), r"Write eqsat\.sum\(x\) instead, or compile"),
        (lambda: np.mean(x, axis=0), r"Write eqsat\.mean\(x\) instead"),
        (lambda: np.cumsum(x), r"Write eqsat\.cumulative_sum\(x\) instead"),
        (lambda: np.arctan2(a, x), r"Write eqsat\.atan2\(\.\.\.\) instead"),
        (lambda: np.concatenate([x, x]), r"Write eqsat\.concat\(\.\.\.\) instead"),
        (lambda: np.linalg.norm(x), r"Write eqsat\.sqrt\(eqsat\.sum\(x \* x\)\) instead"),
        (lambda: np.add(x, a), r"add of NumPy .* Write eqsat\.add\(\.\.\.\) instead"),
        (lambda: np.add(a, x, dtype="f8"), r"Write eqsat\.add\(\.\.\.\) instead"),
        (lambda: np.add.reduce(x), r"add\.reduce of NumPy .* Write eqsat\.sum\(x\) instead"),
        (lambda: np.add.at(a, 0, x), r"Write eqsat\.scatter_add\(\.\.\.\) instead"),
        (lambda: np.where(x > 0, x, a), r"Write eqsat\.where\(\.\.\.\) instead"),
        (lambda: np.frexp(x), "Use the functions of eqsat, or compile the graph and give NumPy"),
        (lambda: np.size(x, 0), "Use the functions of eqsat"),
        (lambda: divmod(a, x), "Use the functions of eqsat"),
        (lambda: operator.iadd(a.copy(), x), r"an array cannot hold x .* `array = array \+ x`"),
        (lambda: g.compute(3, lambda i: np.exp(i)), r"Write eqsat\.exp\(x\) instead"),
    ],
)
def test_functions_of_numpy_say_what_to_write(call, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        call()
    assert isinstance(caught.value, TypeError)


def test_what_needs_no_values_is_told() -> None:
    assert (np.shape(x), np.ndim(x), np.size(x)) == ((3,), 1, 3)


@pytest.mark.parametrize("build", [np.asarray, np.array, lambda t: np.array([t, t], object)])
def test_no_array_of_objects_is_built(build) -> None:
    with pytest.raises(UnsupportedError, match="a lazy tensor has no value yet"):
        build(x)
    with pytest.raises(UnsupportedError, match="it stands for every position at once"):
        g.compute(3, build)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_to_write_for_a_name_elsewhere_is_of_that_kind(name: str) -> None:
    here = ELSEWHERE[name]
    assert name not in g.__all__
    if here in g.__all__:
        return
    names = {"eqsat": eqsat, "math": math, "x": g.input("x", (4, 4)), "y": g.input("y", (4, 4))}
    if "x[j]" in here:
        names["x"] = g.input("x", (4,))
    found = eval(here, names)
    assert isinstance(found, g.Tensor | list | float | None)


def test_running_extremes_are_those_of_numpy() -> None:
    b = np.array([3.0, 1.0, 4.0, 1.0, 5.0], np.float32)
    for name, ufunc in (("cummax", np.maximum), ("cummin", np.minimum)):
        node = eval(ELSEWHERE[name], {"eqsat": eqsat, "x": g.input("x", (5,))})
        np.testing.assert_array_equal(g.evaluate([node], {"x": b})[0], ufunc.accumulate(b))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cumsum", r"'cumsum'\. Write eqsat\.cumulative_sum\(x\)"),
        ("relu6", r"'relu6'\. Write eqsat\.clip\(x, 0, 6\)"),
        ("view", r"'view'\. Write eqsat\.reshape\(x\)"),
        ("double", r"'double'$"),
        ("nothing", r"'nothing'$"),
    ],
)
def test_attributes_of_tensors_elsewhere(name: str, message: str) -> None:
    with pytest.raises(AttributeError, match=message):
        getattr(x, name)
