"""Nodes: identity, immutability, names, operators, and the graph as text, networkx and SVG."""

import copy
import pickle
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from eqsat import graph
from eqsat.errors import (
    ArgumentError,
    DTypeError,
    EqsatError,
    IdentifierError,
    ShapeError,
    UnsupportedError,
)
from eqsat.graph import describe, to_networkx, to_svg
from eqsat.graph.dtypes import as_dtype
from eqsat.graph.tensor import Tensor


class Sneaky(str):
    """A string that claims to be an identifier."""

    def isidentifier(self):
        return True


@pytest.mark.parametrize(
    "name",
    ["", "1a", "a b", "a-b", "a;b", "a\n", "a\nb", "a\x00", "x); system(\"rm\"); //", "lambda",
     "None", "ä", "\uff58", "a" * 65, "a.b", "*/", "${x}", "x[0]", 7, None, b"x", Sneaky("x;y"),
     Sneaky("x")],
    ids=repr,
)  # fmt: skip
def test_names_that_could_reach_source_are_refused(name):
    with pytest.raises(IdentifierError, match=r"is no plain identifier. Use 1 to 64 ASCII letters"):
        graph.input(name, (2,))


def test_a_composition_label_passes_the_same_gate():
    refused = pytest.raises(IdentifierError, match=r"composition name '\*/ x' is no plain")
    with refused, graph.composition("*/ x"):
        pass
    with graph.composition("block"):
        assert graph.softmax(graph.input("x", (2,))).label == "block/softmax"


def test_good_names():
    for name in ("x", "_x1", "a" * 64, "match", "Weight_0"):
        assert graph.input(name, (2,)).attributes["name"] == name


def test_two_inputs_of_one_name_are_refused():
    with pytest.raises(IdentifierError, match="two inputs of the graph have the name 'x'"):
        graph.evaluate([graph.input("x", (2,)) + graph.input("x", (2,))], {"x": np.zeros(2, "f4")})


def test_nodes_are_immutable_and_compared_by_identity():
    x, y = graph.input("x", (2,)), graph.input("x", (2,))
    assert len({x, y, x}) == 2
    assert (x == y).dtype.name == "bool" and (x != y).op == "not_equal"
    with pytest.raises(AttributeError):
        x.op = "add"
    with pytest.raises(TypeError):
        x.attributes["name"] = "y"
    values = np.zeros(3)
    node = graph.constant(values)
    values[0] = 1
    assert node.attributes["value"][0] == 0
    with pytest.raises(ValueError, match="read-only"):
        node.attributes["value"][0] = 1


def test_lazy_values_have_no_truth_value():
    x = graph.input("x", (2,))
    for attempt in (bool, float, int, list, np.asarray, lambda t: 1 in t):
        with pytest.raises(UnsupportedError, match=r"of x float32.2.: a lazy tensor has no value"):
            attempt(x)


def test_operators():
    a, b = np.array([5, -7, 3], "i4"), np.array([2, 3, 1], "i4")
    x, y = graph.input("x", (3,), "int32"), graph.input("y", (3,), "int32")
    f = a.astype("f4")
    z = graph.input("z", (3,))
    cases = [
        (x + y, a + b), (x - 1, a - 1), (1 - x, 1 - a), (x * y, a * b), (2 * x, 2 * a),
        (x // y, a // b), (7 // y, 7 // b), (x % y, a % b), (7 % y, 7 % b), (x**2, a**2),
        (2**y, 2**b), (x & y, a & b), (x | 8, a | 8), (x ^ y, a ^ b), (8 ^ x, 8 ^ a), (~x, ~a),
        (x << y, a << b), (x >> y, a >> b), (1 << y, 1 << b), (64 >> y, 64 >> b), (-x, -a),
        (abs(x), abs(a)), (+x, a), (x < y, a < b), (x <= 3, a <= 3), (x > y, a > b),
        (x >= 3, a >= 3),
        (x == y, a == b), (x != 3, a != 3), (z / 2, f / 2), (2 / z, 2 / f), (x @ y, a @ b),
        (b + x, a + b), (b @ x, a @ b), (x < 3, a < 3), (1 & x, 1 & a), (1 | x, 1 | a),
    ]  # fmt: skip
    found = graph.evaluate([node for node, _ in cases], {"x": a, "y": b, "z": f})
    for (node, expected), value in zip(cases, found, strict=True):
        np.testing.assert_array_equal(value, expected, err_msg=str(node))
        assert value.dtype == expected.dtype
    assert (z.ndim, z.size, z.__array_namespace__()) == (1, 3, graph)


def test_dtype_errors_say_what_was_got_and_the_next_step():
    x, y = graph.input("x", (2,), "int32"), graph.input("y", (2,))
    for call, message in [
        (
            lambda: x + y,
            r"add\(x int32\[2\], y float32\[2\]\): no common dtype .* with astype first",
        ),
        (lambda: x * 0.5, r"mul\(x int32\[2\], 0.5\): the Python float 0.5"),
        (lambda: x / x, r"div: takes floating dtypes, got x int32\[2\] and x int32\[2\]"),
        (lambda: ~y, r"bitwise_invert: takes integer and bool dtypes, got y"),
        (lambda: y << 1, "shift_left: takes integer dtypes"),
        (lambda: graph.where(x, y, y), r"where: the condition x int32\[2\] is not bool"),
        (
            lambda: graph.exp(x),
            r"exp: takes floating dtypes, got x int32\[2\]. Convert with astype",
        ),
        (lambda: (x > 0) + (x > 0), "add: takes numeric dtypes"),
        (lambda: graph.constant("text"), "is no number"),
        (lambda: graph.constant(x), "is a tensor already"),
        (lambda: graph.sum(y, dtype="bool"), "bool holds no sum"),
        (lambda: graph.pad(x, [(1, 1)], 0.5), "with fill 0.5"),
        (lambda: graph.sum(None), "None is no number"),
        (lambda: y + object(), "is no number"),
    ]:
        with pytest.raises(DTypeError, match=message):
            call()
    with pytest.raises(ShapeError, match="step 0 never reaches"):
        graph.arange(1, 2, 0)


def sample():
    x = graph.input("x", (2, 3))
    return [graph.softmax(x) * 2.0, graph.argmax(x, axis=1), x]


def test_describe_lists_the_graph_in_order():
    text = describe([graph.sum(graph.input("x", (2, 3)) * 2.0, axis=1)])
    assert (
        text
        == """\
%x = input() : float32[2, 3]
%0 = constant() 2.0 : float32[]
%1 = view(%0) [] : float32[2, 3]
%2 = mul(%x, %1) : float32[2, 3]
%3 = reduce_sum(%2) axes=(1,) : float32[2]
return %3"""
    )
    assert "# softmax" in describe(sample())
    assert "fill=7.0" in describe([graph.pad(graph.input("x", (2,)), [(1, 1)], 7)])
    assert "dtype=float16" in describe([graph.astype(graph.input("x", (2,)), "float16")])
    assert "index" in describe([graph.take(graph.input("x", (2,)), graph.constant([1]))])
    assert "constant() values" in describe([graph.constant(np.zeros(5))])


def test_a_tensor_of_more_bytes_than_int64_counts_is_refused():
    message = r"input: float32\[1000000000000, 1000000000000\] is of 4\.0e\+24 bytes; .* - 1\. Use"
    with pytest.raises(ShapeError, match=message):
        graph.input("q", (10**12, 10**12))
    with pytest.raises(ShapeError, match=r"int64\[10000000000, 10000000000\] is of 8\.0e\+20 "):
        graph.compute((10**10, 10**10), lambda i, j: i + j)
    with pytest.raises(ShapeError, match=r"uint8\[9223372036854775808\] is of"):
        graph.input("q", 2**63, "uint8")
    assert graph.input("q", 2**63 - 1, "uint8").size == 2**63 - 1


def test_a_tensor_does_not_change_in_place():
    x = graph.input("x", (2,))
    with pytest.raises(TypeError, match=r"x float32\[2\] does not change in .* where\(") as caught:
        x[0] = 1.0
    assert isinstance(caught.value, EqsatError)


def test_one_tensor_is_exported_as_a_list_of_it():
    x = graph.input("x", (2,)) * 2.0
    assert describe(x) == describe([x])
    assert to_svg(x) == to_svg([x])
    assert to_networkx(x).nodes == to_networkx([x]).nodes


def test_networkx_keeps_operand_positions():
    x, y = graph.input("x", (2,)), graph.input("y", (2,))
    exported = to_networkx([(x - y) * (x - x)])
    assert exported.number_of_nodes() == 5 and exported.number_of_edges() == 6
    assert {d["position"] for _, v, d in exported.in_edges(data=True) if v == "%1"} == {0, 1}
    assert exported.nodes["%x"]["shape"] == (2,)
    assert [name for name, data in exported.nodes(data=True) if data["output"]] == ["%2"]


def test_svg_is_well_formed():
    root = ElementTree.fromstring(to_svg(sample()))
    boxes = root.findall("{http://www.w3.org/2000/svg}g")
    assert len(boxes) == to_networkx(sample()).number_of_nodes()
    hostile = Tensor("exp", (), {}, (), as_dtype("float32"), '<script>&"')
    assert "<script>" not in to_svg([hostile])
    assert ElementTree.fromstring(to_svg([hostile])) is not None
    assert ElementTree.fromstring(to_svg([])) is not None


def test_import_is_light():
    code = (
        "import sys, eqsat.graph; "
        "print([m for m in ('scipy', 'networkx', 'egglog', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_copy_of_a_tensor_is_the_tensor() -> None:
    """Nothing of it changes; another process has no use for it."""
    x = graph.input("x", (2, 3))
    assert copy.copy(x) is x and copy.deepcopy([x])[0] is x
    with pytest.raises(ArgumentError, match=r"is not pickled\. Pickle its values"):
        pickle.dumps(x)
