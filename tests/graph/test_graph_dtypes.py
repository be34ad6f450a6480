"""Promotion and limits of dtypes."""

import ml_dtypes
import numpy as np
import pytest

from eqsat import graph
from eqsat.errors import DTypeError
from eqsat.graph.dtypes import DTYPES, as_dtype, finfo, iinfo, is_exact, result_type

# The standard's tables, upper triangle; formats of one size that do not hold each other: float32.
PROMOTED = {
    "int8": "int8 int8, int16 int16, int32 int32, int64 int64, uint8 int16",
    "int16": "int16 int16, int32 int32, int64 int64, uint8 int16",
    "int32": "int32 int32, int64 int64, uint8 int32",
    "int64": "int64 int64, uint8 int64",
    "uint8": "uint8 uint8",
    "bool": "bool bool",
    "float8_e4m3fn": "float8_e4m3fn float8_e4m3fn, float8_e5m2 float32, float16 float16, "
    "bfloat16 bfloat16, float32 float32, float64 float64",
    "float8_e5m2": "float8_e5m2 float8_e5m2, float16 float16, bfloat16 bfloat16, "
    "float32 float32, float64 float64",
    "float16": "float16 float16, bfloat16 float32, float32 float32, float64 float64",
    "bfloat16": "bfloat16 bfloat16, float32 float32, float64 float64",
    "float32": "float32 float32, float64 float64",
    "float64": "float64 float64",
}
TABLE = {
    (first, second): result
    for first, row in PROMOTED.items()
    for second, result in (pair.split() for pair in row.split(", "))
}


@pytest.mark.parametrize("a", DTYPES, ids=str)
@pytest.mark.parametrize("b", DTYPES, ids=str)
def test_every_pair_promotes_as_the_table_says(a, b):
    expected = TABLE.get((a.name, b.name)) or TABLE.get((b.name, a.name))
    if expected is None:
        with pytest.raises(DTypeError, match=r"no common dtype for .* mixed kinds undefined"):
            result_type(a, b)
    else:
        assert result_type(a, b).name == expected
        x, y = graph.input("x", (2,), a), graph.input("y", (2,), b)
        if a.kind != "bool":
            assert (x + y).dtype.name == expected


@pytest.mark.parametrize(
    "dtype, scalar, fits",
    [
        ("float16", 1.5, True), ("float32", 1, True), ("bfloat16", 2, True), ("int8", 100, True),
        ("uint8", 255, True), ("bool", True, True), ("int32", 1.5, False), ("bool", 1, False),
        ("float32", True, False), ("int8", True, False), ("int8", 128, False), ("uint8", -1, False),
    ],
)  # fmt: skip
def test_scalars_are_weak(dtype, scalar, fits):
    if fits:
        assert result_type(dtype, scalar).name == dtype
        assert graph.maximum(graph.input("x", (), dtype), scalar).dtype.name == dtype
    else:
        with pytest.raises(DTypeError, match="astype"):
            result_type(dtype, scalar)


def test_scalars_alone_take_the_defaults():
    assert result_type(True).name == "bool"
    assert result_type(1, True).name == "int64"
    assert result_type(1, 2.0).name == "float32"
    with pytest.raises(DTypeError, match="no operands"):
        result_type()


def test_numpy_scalars_are_weak_too():
    x = graph.input("x", (2,), "bfloat16")
    for scalar in (np.float64(0.5), np.float32(0.5), ml_dtypes.bfloat16(0.5), np.int64(3)):
        assert (x * scalar).dtype.name == "bfloat16"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numpy_dtype_round_trips(dtype):
    assert as_dtype(dtype.numpy) is as_dtype(dtype.name) is dtype
    assert as_dtype(dtype.numpy.type) is dtype
    assert dtype.numpy.itemsize == dtype.itemsize
    narrow = dtype.kind == "float" and dtype.itemsize < 4
    assert dtype.compute.name == ("float32" if narrow else dtype.name)


def test_unknown_dtypes_are_refused():
    for bad in ("float", "complex64", "uint16", np.dtype("uint32"), object, 3):
        with pytest.raises(DTypeError, match=r"is not supported. Use one of float16, bfloat16"):
            as_dtype(bad)
    assert as_dtype(float).name == "float32"
    assert as_dtype(int).name == "int64"
    assert as_dtype(bool).name == "bool"


@pytest.mark.parametrize("target", [d for d in DTYPES if d.kind == "float"], ids=str)
@pytest.mark.parametrize("source", [d for d in DTYPES if d.itemsize <= 2], ids=str)
def test_casts_are_exact_where_every_number_comes_back(source, target):
    count = 2 if source.kind == "bool" else 1 << 8 * source.itemsize
    bits = np.arange(count).astype(f"uint{8 * source.itemsize}").view(source.numpy)
    with np.errstate(all="ignore"):
        wide = bits.astype(np.float64)
        back = bits.astype(target.numpy).astype(np.float64)
    assert is_exact(source, target) == np.array_equal(wide, back, equal_nan=True)


def test_limits():
    assert finfo("bfloat16").eps == 2**-7
    assert (finfo("float8_e4m3fn").max, finfo("float8_e4m3fn").eps) == (448, 2**-3)
    assert (finfo("float8_e5m2").max, finfo("float8_e5m2").smallest_normal) == (57344, 2**-14)
    assert finfo("float16").max == 65504
    assert finfo("float64").smallest_normal == np.finfo(np.float64).smallest_normal
    assert (iinfo("uint8").min, iinfo("uint8").max, iinfo("int64").bits) == (0, 255, 64)
    with pytest.raises(DTypeError, match="finfo: int8 is no floating dtype"):
        finfo("int8")
    with pytest.raises(DTypeError, match="iinfo: bool is no integer dtype"):
        iinfo("bool")


def test_none_is_the_default_float_where_there_is_one():
    made = [graph.zeros(3, None), graph.ones(3, None), graph.full(3, 1.5, None)]
    made += [graph.eye(3, dtype=None), graph.linspace(0, 1, 3, None), graph.input("x", 3, None)]
    assert {x.dtype.name for x in made} == {"float32"}
    assert graph.arange(3, dtype=None).dtype.name == "int64"
    for call in (lambda: as_dtype(None), lambda: graph.astype(made[0], None)):
        with pytest.raises(DTypeError, match=r"dtype None is not supported\. Use one of"):
            call()


def test_tensors_and_arrays_stand_for_their_dtypes():
    x, n = graph.zeros(3, "float16"), graph.zeros(3, "int8")
    assert finfo(x) == finfo("float16") and iinfo(n) == iinfo("int8")
    assert finfo(np.ones(3)) == finfo("float64")
    assert result_type(x, "float32").name == "float32" and result_type(n, 1, n).name == "int8"
    assert result_type(np.ones(3), x).name == "float64"
    with pytest.raises(DTypeError, match="is not supported"):
        as_dtype(x)
