"""Values that a kernel moves, stored by the kernel that computes them."""

import itertools

import numpy as np
import pytest
from terms import Terms, universe

import eqsat.graph as g
from eqsat import specs
from eqsat.cache.store import Cache
from eqsat.codegen.targets import TARGETS
from eqsat.cut.moved import invert
from eqsat.driver import plan
from eqsat.graph.dtypes import as_dtype
from eqsat.graph.index import Affine, add, const, evaluate, row_major, scale, var
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Guard, Kernel
from eqsat.program import Program
from eqsat.schedule.reduction_parts import divide
from eqsat.terms.algebra import Facts, Term
from eqsat.terms.form import Stored, form

pytestmark = pytest.mark.usefixtures("shared_search")
RNG = np.random.default_rng(29)


def read_at(strides: dict[str, int], constant: int = 0) -> Affine:
    return add(*(scale(var(name), n) for name, n in strides.items()), const(constant))


@pytest.mark.parametrize(
    ("strides", "constant", "extents"),
    [
        ({"y": 10, "x": 1}, 11, {"y": 4, "x": 8}),  # a crop of both
        ({"x": 1, "y": 10}, 0, {"y": 6, "x": 10}),  # all, turned
        ({"z": 20, "y": 10, "x": 1}, 3, {"z": 3, "y": 2, "x": 7}),  # a name divided
        ({"y": 10, "x": 1}, 50, {"y": 1, "x": 10}),
    ],
)
def test_each_point_of_a_view_comes_from_one_of_what_it_shows(
    strides: dict[str, int], constant: int, extents: dict[str, int]
) -> None:
    extents = {**extents, "a": 3, "b": 2, "c": 5, "d": 2}
    digits = ("a", "b", "c", "d")
    address, whole = read_at(strides, constant), row_major(digits, extents)
    found = invert(address, tuple(strides), digits, extents)
    assert found is not None
    shown = set()
    for point in itertools.product(*(range(extents[name]) for name in digits)):
        at = dict(zip(digits, point, strict=True))
        names = zip(found.source, found.target, strict=True)
        own = {name: int(evaluate(target, at)) for name, target in names}
        if all(0 <= evaluate(guard.expression, at) < guard.upper for guard in found.guards):
            assert all(0 <= own[name] < extents[name] for name in strides)
            assert evaluate(address, own) == evaluate(whole, at)
            shown.add(tuple(own.values()))
    assert len(shown) == np.prod([extents[name] for name in strides])


@pytest.mark.parametrize(
    ("strides", "constant"),
    [
        ({"y": 10, "x": 2}, 0),  # every second one
        ({"y": 1, "x": 1}, 0),  # windows
        ({"y": 10, "x": 1}, 4),  # a row runs into the next one
        ({"y": 12, "x": 1}, 0),  # rows of another length
        ({"y": -10, "x": 1}, 50),  # reversed
        ({"y": 10}, 0),  # x is no name of what is read
    ],
)
def test_other_views_stay_kernels(strides: dict[str, int], constant: int) -> None:
    extents = {"y": 5, "x": 7 if "x" in strides else 1, "a": 3, "b": 2, "c": 5, "d": 2}
    assert invert(read_at(strides, constant), ("y", "x"), ("a", "b", "c", "d"), extents) is None


def kernels(outputs: list[Tensor], spec: str) -> tuple[Kernel, ...]:
    """The kernels of a plan, whose answer is checked where the spec is small enough to run so."""
    planned = plan(outputs, specs.load(spec), cache=Cache(None))
    program = Program(
        planned.parts,
        TARGETS["oracle"].backend(specs.load(spec), None),
        outputs,
        planned.report,
        planned.explain,
    )
    arrays = {a.name: RNG.random(a.shape).astype(np.float32) for a in program.arguments}
    exact = g.evaluate(outputs, arrays, np.float64)
    for found, expected in zip(program(**arrays), exact, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    return program.kernels


def rows() -> Tensor:
    """Matrices of a batch, each as one row: parts of these are no matrices."""
    return g.reshape(g.input("a", (6, 40, 24)) @ g.input("b", (6, 24, 36)), (6, 1440))


def test_a_part_of_a_product_is_stored_by_its_kernel() -> None:
    (only,) = kernels([g.tanh(rows()[1:5, 3:1400]) + g.input("r", (4, 1397))], "example_cuda")
    assert [store.access.guards != () for store in only.phases[-1].stores] == [True]


@pytest.mark.parametrize("padding", [0, 1])
def test_transposed_convolutions_are_one_kernel(padding: int) -> None:
    x, w = g.input("x", (2, 8, 9, 7)), g.input("w", (8, 6, 4, 4))
    bias = g.input("bias", (6,))
    outputs = [g.relu(g.conv_transpose(x, w, bias, stride=2, padding=padding))]
    assert len(kernels(outputs, "example_cuda")) == 1


def test_what_others_read_is_stored_too() -> None:
    """Both the product and a part of it are outputs."""
    whole = rows()
    (only,) = kernels([whole, whole[:, 3:1400] * 2.0], "example_cuda")
    assert [store.access.guards != () for store in only.phases[-1].stores] == [False, True]


def test_a_part_that_is_reduced_is_not_moved() -> None:
    product, _ = kernels([g.max(rows()[:, 3:1400], axis=1)], "example_cuda")
    (store,) = product.phases[-1].stores
    assert not store.access.guards, "the whole product is stored, as its rows lie apart"


@pytest.mark.parametrize("extent", [12, 13])
def test_a_value_along_the_axis_keeps_its_places_and_guards(extent: int) -> None:
    """y[j - 1] = e^a[i,j] where j - 1 is in y, beside s[i] = sum_j a[i,j]: the parts store y."""
    t = Terms(universe(2, extent, 3, 2))
    a, dtype = t.read("a", "ij"), as_dtype("float32")
    place = add(var("j"), const(-1))
    row = add(scale(var("i"), extent - 2), place)
    moved = Stored(
        "y", Term("exp", a), ("i", "j"), dtype, at=row, guards=(Guard(place, 0, extent - 2),)
    )
    total = Stored("s", t.sum("j", a), ("i",), dtype)
    division = divide(form([moved, total], Facts(t.universe)), "j", 3, "k")
    assert division is not None and [one.buffer for one in division.rest] == ["s"]
    *_, stored = division.first
    assert stored.buffer == "y" and stored.at is not None
    shape = [range(division.first_facts.universe.extents[name]) for name in stored.names]
    found = {}
    for point in itertools.product(*shape):
        at = dict(zip(stored.names, point, strict=True))
        values = [(guard, evaluate(guard.expression, at)) for guard in stored.guards]
        if all(guard.lower <= value < guard.upper for guard, value in values):
            found[int(evaluate(stored.at, at))] = at["i"]
    assert sorted(found) == [*range(2 * (extent - 2))]
    assert all(i == address // (extent - 2) for address, i in found.items())
