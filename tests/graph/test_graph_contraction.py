"""Contractions against NumPy, and the streamed evaluation against the direct meaning."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsat import graph
from eqsat.errors import ArgumentError, DTypeError, ShapeError

rng = np.random.default_rng(0)


def tensors(*shapes, dtype="float64"):
    arrays = [rng.integers(-4, 5, shape).astype(dtype) for shape in shapes]
    names = "abcd"[: len(shapes)]
    nodes = [graph.input(n, x.shape, dtype) for n, x in zip(names, arrays, strict=True)]
    return nodes, arrays, dict(zip(names, arrays, strict=True))


@pytest.mark.parametrize(
    "first, second",
    [
        ((3, 4), (4, 5)), ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)), ((7, 1, 3, 4), (2, 4, 5)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5)),
        ((0, 4), (4, 5)), ((3, 0), (0, 5)), ((1, 1), (1, 1)), ((3, 1), (1, 5)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_matmul(first, second, dtype):
    (a, b), (x, y), inputs = tensors(first, second, dtype=dtype)
    node = a @ b
    (found,) = graph.evaluate([node], inputs)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, np.matmul(x, y))


EINSUMS = [
    ("ij,jk->ik", (3, 4), (4, 5)), ("ij,jk", (3, 4), (4, 5)),
    ("bij,bkj->bik", (2, 3, 4), (2, 5, 4)),
    ("ii->i", (4, 4)), ("ii", (4, 4)), ("iij->j", (3, 3, 2)), ("ij->", (3, 4)), ("ij->ji", (3, 4)),
    ("i,j->ij", (3,), (4,)), ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)), ("ij,ij->", (3, 4), (3, 4)),
    ("...ij,...jk->...ik", (2, 3, 4), (4, 5)), ("i...->...", (3, 4, 2)), ("...", (3,)),
    ("b...i,i", (2, 3, 4), (4,)), ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
    (",i->i", (), (3,)),
    ("ij,k->i", (3, 4), (5,)), ("iij,ji->i", (3, 3, 2), (2, 3)), (" i j , j -> i ", (3, 4), (4,)),
]  # fmt: skip


@pytest.mark.parametrize("case", EINSUMS, ids=lambda case: case[0])
def test_einsum(case):
    subscripts, *shapes = case
    nodes, arrays, inputs = tensors(*shapes)
    (found,) = graph.evaluate([graph.einsum(subscripts, *nodes)], inputs)
    np.testing.assert_array_equal(found, np.einsum(subscripts, *arrays))


@pytest.mark.parametrize("case", EINSUMS, ids=lambda case: case[0])
def test_streaming_equals_the_direct_meaning(case):
    """The product as an output too cannot be streamed, so it shows the row's own meaning."""
    subscripts, *shapes = case
    nodes, _, inputs = tensors(*shapes)
    node = graph.einsum(subscripts, *nodes)
    if node.op != "reduce_sum":
        return
    streamed, direct = (
        graph.evaluate([node], inputs),
        graph.evaluate([node, node.operands[0]], inputs),
    )
    np.testing.assert_array_equal(streamed[0], direct[0])
    np.testing.assert_array_equal(
        direct[0], direct[1].sum(axis=node.attributes["axes"], dtype=direct[1].dtype)
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_streams(data):
    """Factors over any of four joint axes, two or three of them, any axes summed."""
    extents = {"i": 2, "j": 3, "k": 4, "l": 2}
    terms = data.draw(st.lists(st.text("ijkl", min_size=0, max_size=3), min_size=1, max_size=3))
    used = sorted(set("".join(terms)))
    output = "".join(data.draw(st.permutations(used)))[: data.draw(st.integers(0, len(used)))]
    subscripts = f"{','.join(terms)}->{output}"
    nodes, arrays, inputs = tensors(*(tuple(extents[c] for c in term) for term in terms))
    (found,) = graph.evaluate([graph.einsum(subscripts, *nodes)], inputs)
    np.testing.assert_array_equal(found, np.einsum(subscripts, *arrays))


def test_a_huge_joint_space_is_never_formed():
    (a, b), (x, y), inputs = tensors((600, 700), (700, 800), dtype="float32")
    node = graph.sum(a @ b, axis=1)
    np.testing.assert_array_equal(graph.evaluate([node], inputs)[0], (x @ y).sum(1))


def test_a_long_product_streams():
    a = graph.input("a", (3,), "float64")
    node = a
    for _ in range(3000):
        node = node * a
    (found,) = graph.evaluate([graph.sum(node)], {"a": np.array([1.0, -1.0, 0.5])})
    assert found == 0


def test_16_bit_products_accumulate_in_float32():
    for dtype in ("float16", "bfloat16"):
        a, b = graph.input("a", (2, 300), dtype), graph.input("b", (300, 2), dtype)
        node = a @ b
        assert (node.op, node.dtype.name) == ("cast", dtype)
        assert node.operands[0].op == "reduce_sum"
        assert node.operands[0].dtype.name == "float32"


def test_the_other_contractions():
    (a, b), (x, y), inputs = tensors((2, 3, 4), (4, 3, 5))
    (u, v), (p, q), more = tensors((3,), (4,))
    (square,), (s,), third = tensors((4, 4), dtype="int8")
    for node, expected, given_inputs in [
        (graph.tensordot(a, b, axes=1), np.tensordot(x, y, 1), inputs),
        (
            graph.tensordot(a, b, axes=((2, 1), (0, 1))),
            np.tensordot(x, y, ((2, 1), (0, 1))),
            inputs,
        ),
        (graph.tensordot(a, b, axes=0), np.tensordot(x, y, 0), inputs),
        (graph.vecdot(a, a), (x * x).sum(-1), inputs),
        (graph.vecdot(a, a[0], axis=-2), (x * x[0]).sum(-2), inputs),
        (graph.outer(u, v), np.outer(p, q), more),
        (graph.trace(square), np.trace(s, dtype=np.int64), third),
        (graph.trace(a, offset=1), np.trace(x, 1, 1, 2), inputs),
    ]:
        np.testing.assert_array_equal(graph.evaluate([node], given_inputs)[0], expected)


def test_errors():
    a, b = graph.input("a", (3, 4)), graph.input("b", (5, 6))
    one = graph.input("one", (1, 6))
    for call, message in [
        (
            lambda: a @ b,
            r"matmul: a float32\[3, 4\] and b float32\[5, 6\] do not fit: index k has 4",
        ),
        (lambda: a @ one, "index k has 4 positions in one place and 1 in another"),
        (lambda: a @ graph.sum(b), "0-d operands have no axis to sum. Use multiply"),
        (lambda: graph.einsum("ij,jk", a), "has 2 terms for 1 operands"),
        (lambda: graph.einsum("ij->ik", a), "output label that is repeated or in no operand"),
        (lambda: graph.einsum("ijk", a), "names 3 axes of 2"),
        (lambda: graph.einsum("i;j", a), "holds something other"),
        (lambda: graph.einsum("i.j", a), "dots that are no"),
        (lambda: graph.einsum("i...->i", a), "leaves the '...' out"),
        (lambda: graph.tensordot(a, b, axes=3), "Use 0 to 2"),
        (lambda: graph.vecdot(a, a, axis=0), "Count it from the right"),
        (
            lambda: graph.input("c", (2, 3, 3)) @ graph.input("d", (4, 3, 3)),
            "batch axis 1 from the",
        ),
    ]:
        with pytest.raises(ShapeError, match=message):
            call()
    flags = graph.input("f", (3, 3), "bool")
    with pytest.raises(DTypeError, match="matmul: takes numeric dtypes"):
        flags @ flags
    with pytest.raises(DTypeError, match="no common dtype for float32 and int64"):
        a @ graph.ones((4, 2), "int64")


def test_evaluate_checks_its_inputs():
    a = graph.input("a", (3,))
    for inputs, message in [
        ({}, r"input 'a' is missing; given are \[\]"),
        ({"a": np.zeros(4, "f4")}, r"is float32\[4\], the graph wants a float32\[3\]"),
        ({"a": np.zeros(3)}, r"is float64\[3\], the graph wants a float32\[3\]"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            graph.evaluate([a + 1], inputs)
