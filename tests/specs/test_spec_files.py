"""The shipped specs: they load, round-trip, and their derived rates match the datasheets."""

import pickle

import pytest

from eqsat.errors import SpecError
from eqsat.graph import dtypes
from eqsat.graph import ops as graph_ops
from eqsat.specs import available, dumps, load, loads
from eqsat.specs.fields import DATA_TYPES
from eqsat.specs.functions import ELEMENTWISE, FUNCTIONS

MATRIX_TFLOPS = [
    ("a100", "bfloat16", 312),
    ("a100", "float16", 312),
    ("a100", "tfloat32", 156),
    ("a100", "int8", 624),
    ("a100", "float64", 19.5),
    ("h200", "bfloat16", 989 * 1980 / 1830),
    ("h200", "float8_e4m3fn", 1979 * 1980 / 1830),
    ("h200", "tfloat32", 494.5 * 1980 / 1830),
    ("h200", "float64", 67),
]


def test_available() -> None:
    assert available() == ["a100", "cpu", "example_cuda", "h200"]


@pytest.mark.parametrize("name", available())
def test_round_trip(name: str) -> None:
    unit = load(name)
    assert loads(dumps(unit)) == unit
    assert dumps(loads(dumps(unit))) == dumps(unit)
    assert loads(dumps(unit)).fingerprint == unit.fingerprint
    assert pickle.loads(pickle.dumps(unit)) == unit
    assert hash(unit) == hash(load(name))


@pytest.mark.parametrize("name", available())
def test_every_number_has_a_source(name: str) -> None:
    unit = load(name)
    assert unit.sources
    if name == "example_cuda":
        return
    for part in (*unit.memory_domains, *unit.operations):
        assert part.source, f"{name}: {part.name} has no source"


@pytest.mark.parametrize(("name", "data_type", "tflops"), MATRIX_TFLOPS)
def test_matrix_peaks(name: str, data_type: str, tflops: float) -> None:
    unit = load(name)
    rates = [
        2e-12 * unit.updates_per_s(operation) / operation.sustained_fraction
        for operation in unit.contractions(data_type)
    ]
    assert max(rates) == pytest.approx(tflops, rel=0.01)


def test_a100_vector_peak() -> None:
    unit = load("a100")
    assert 2e-12 * unit.elementwise_elements_per_s("fma", "float32") == pytest.approx(19.5, 0.01)
    assert 2e-12 * unit.elementwise_elements_per_s("fma", "float64") == pytest.approx(9.7, 0.01)


@pytest.mark.parametrize("name", available())
def test_every_elementwise_op_of_the_graph_is_priced(name: str) -> None:
    unit = load(name)
    missing: list[str] = []
    for op in graph_ops.OPS.values():
        for dtype in dtypes.DTYPES:
            allowed = _allowed(op.name, dtype.kind)
            if op.elementwise and allowed and not _is_priced(unit, op.name, dtype.name):
                missing.append(f"{op.name} {dtype.name}")
    assert not missing


def test_only_what_is_asked_for_is_implemented() -> None:
    assert set(ELEMENTWISE) == graph_ops.ELEMENTWISE, "specs/functions.py names every such op"
    assert len(set(FUNCTIONS)) == len(FUNCTIONS)
    operations = (operation for name in available() for operation in load(name).operations)
    assert {name for one in operations for name in one.implements} == set(FUNCTIONS)
    assert {dtype.name for dtype in dtypes.DTYPES} | {"tfloat32"} == set(DATA_TYPES)


def _is_priced(unit, function: str, data_type: str) -> bool:
    try:
        return unit.elementwise_elements_per_s(function, data_type) > 0
    except SpecError:
        return False


_FLOAT_ONLY = {
    "exp", "expm1", "log", "log1p", "log2", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh", "cosh",
    "tanh", "asin", "acos", "atan", "erf", "floor", "ceil", "trunc", "round", "reciprocal", "isnan",
    "isfinite", "isinf", "div", "atan2",
}  # fmt: skip
_BITS_ONLY = {"bitwise_invert", "bitwise_and", "bitwise_or", "bitwise_xor"}
_INTEGER_ONLY = {"shift_left", "shift_right"}
_BOOL_TOO = {"maximum", "minimum", "equal", "not_equal", "where", "cast"}


def _allowed(function: str, kind: str) -> bool:
    if function.startswith("logical_"):
        return kind == "bool"
    if kind == "bool":
        return function in _BITS_ONLY | _BOOL_TOO
    if function in _FLOAT_ONLY:
        return kind == "float"
    return kind != "float" or function not in _BITS_ONLY | _INTEGER_ONLY


def test_gpu_hierarchies() -> None:
    assert load("h200").members("block", "thread") == 1024
    assert load("a100").members("block", "warp") == 32
    assert load("h200").memory("shared").limit_per_group_bytes == 227 * 1024
    assert load("a100").memory("shared").limit_per_group_bytes == 163 * 1024
    assert load("h200").processors == 132


@pytest.mark.parametrize("name", available())
def test_any_operation_can_go(name: str) -> None:
    unit = load(name)
    for operation in unit.operations:
        assert not unit.without_operation(operation.name).has_operation(operation.name)
