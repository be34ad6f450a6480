"""Floats of 8 bits from graph to result: casts as in ml_dtypes, products summed in float32."""

import numpy as np
import pytest

import eqsat
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import choose
from eqsat.driver import compile, plan
from eqsat.graph.dtypes import as_dtype
from eqsat.kernel.ir import Load
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")

FLOAT8 = ["float8_e4m3fn", "float8_e5m2"]


def edges(name):
    """Every value of the format, the ties between them, their neighbours, and what is larger."""
    numpy = as_dtype(name).numpy
    own = np.arange(256, dtype=np.uint8).view(numpy).astype(np.float32)
    finite = np.sort(own[np.isfinite(own)]).astype(np.float64)
    largest = finite[-1] - finite[-2]
    ties = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    ties = np.append(ties, np.float32([finite[-1] + largest / 2, -finite[-1] - largest / 2]))
    near = [np.nextafter(ties, np.float32(sign * np.inf)) for sign in (1, -1)]
    rest = np.float32([np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-30, 0.0, -0.0])
    return np.concatenate([own, ties, *near, rest])


@pytest.mark.parametrize("name", FLOAT8)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_casts_are_those_of_ml_dtypes(device, name):
    values = edges(name)
    x = eqsat.input("x", values.shape, "float32")
    down = eqsat.astype(x, name)
    spec = "cpu" if device == "cpu" else eqsat.specs.from_device()
    program = compile([down, eqsat.astype(down, "float32")], spec, cache=Cache(None))
    narrow, wide = program(values)
    with np.errstate(all="ignore"):
        expected = values.astype(as_dtype(name).numpy)
    assert narrow.dtype == expected.dtype
    np.testing.assert_array_equal(narrow.astype(np.float32), expected.astype(np.float32))
    signed = np.full(values.shape, True) if device == "cpu" else ~np.isnan(wide)
    signs = [np.signbit(one.astype("f4"))[signed] for one in (narrow, expected)]
    np.testing.assert_array_equal(*signs)  # instructions of a GPU have one NaN
    np.testing.assert_array_equal(wide, expected.astype(np.float32))


@pytest.mark.parametrize("name", FLOAT8)
def test_scaled_products_sum_in_float32(name):
    """c = scale_a * scale_b * (a @ b): scales are ordinary factors."""
    random = np.random.default_rng(0)
    numpy = as_dtype(name).numpy
    x, w = (random.standard_normal(s).astype(numpy) for s in ((33, 700), (700, 17)))
    p, q = random.random(33, np.float32) + 1, random.random(17, np.float32) + 1
    a, b = eqsat.input("a", x.shape, name), eqsat.input("b", w.shape, name)
    s, t = eqsat.input("s", (33, 1), "float32"), eqsat.input("t", (17,), "float32")
    wide = eqsat.astype(a, "float32") @ eqsat.astype(b, "float32")
    program = compile(wide * s * t, "cpu", cache=Cache(None))
    found = program(a=x, b=w, s=p[:, None], t=q)
    exact = x.astype(np.float64) @ w.astype(np.float64) * p[:, None] * q
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)
    plain = compile(a @ b, "cpu", cache=Cache(None))(x, w)
    rounded = (x.astype(np.float64) @ w.astype(np.float64)).astype(np.float32).astype(numpy)
    off = np.abs(plain.astype(np.float32) - rounded.astype(np.float32))
    assert plain.dtype == rounded.dtype and np.mean(off > 0) < 0.01  # sums in another order


@pytest.mark.parametrize("name", FLOAT8)
def test_a_program_for_a_gpu_has_the_conversions(name):
    a, b = eqsat.input("a", (256, 128), name), eqsat.input("b", (128, 256), name)
    unit = load("h200")
    product = eqsat.astype(a, "float32") @ eqsat.astype(b, "float32")
    program = compile(eqsat.astype(product, name), unit, cache=Cache(None))
    text = program.source()
    assert f"from_{name}(" in text and f"pack_{name}(" in text
    assert plan(product, "a100", cache=Cache(None)).parts.launches


def test_int8_products_are_exact():
    random = np.random.default_rng(1)
    x, w = (random.integers(-128, 128, s, dtype=np.int8) for s in ((33, 500), (500, 17)))
    a, b = eqsat.input("a", x.shape, "int8"), eqsat.input("b", w.shape, "int8")
    wide = eqsat.astype(a, "int32") @ eqsat.astype(b, "int32")
    found = compile(wide, "cpu", cache=Cache(None))(x, w)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, x.astype(np.int32) @ w.astype(np.int32))
    larger = [eqsat.input(n, (1024, 1024), "int8") for n in "ab"]
    product = eqsat.astype(larger[0], "int32") @ eqsat.astype(larger[1], "int32")
    operations = [
        statement.operation
        for launch in plan(
            product, load("h200"), precision="exact", cache=Cache(None)
        ).parts.launches
        for statement in launch.kernel.statements()
        if hasattr(statement, "operation")
    ]
    assert operations and all("_i8" in operation for operation in operations)


@pytest.mark.parametrize("name", FLOAT8)
def test_attention_to_a_cache_of_8_bits_is_one_kernel(name):
    """After those that store keys and values as floats of 16 bits."""
    q, k, v = (
        eqsat.input(n, (4, 8, 2048, 128), d)
        for n, d in zip("qkv", ("bfloat16", name, name), strict=True)
    )
    result = eqsat.attention(q, eqsat.astype(k, "bfloat16"), eqsat.astype(v, "bfloat16"))
    *copies, last = plan(result, load("h200"), cache=Cache(None)).parts.launches
    assert len(copies) == 2
    rules = {rule.partition("_")[0] for rule in last.kernel.rules if "wgmma" in rule}
    assert rules == {"substitute"} and "prepare x2" in last.kernel.rules
    assert not any(buffer.dtype.itemsize == 1 for buffer in last.kernel.buffers)


@pytest.mark.parametrize(
    ("name", "queries", "keys"),
    [
        pytest.param(FLOAT8[0], (33, 8, 4, 128), (33, 8, 4096, 128), marks=pytest.mark.slow),
        ("int8", (64, 32, 1, 128), (64, 8, 8192, 128)),
    ],
)
def test_few_queries_read_a_cache_of_8_bits_as_it_lies(name, queries, keys):
    """Its elements are converted on their way to the products of one kernel, once for all heads."""
    q = eqsat.input("q", queries, "bfloat16")
    k, v = (eqsat.input(n, keys, name) for n in "kv")
    result = eqsat.attention(q, *(eqsat.astype(one, "bfloat16") for one in (k, v)))
    spec = load("h200")
    (launch,) = plan(result, spec, cache=Cache(None)).parts.launches
    placement, _ = choose(launch.kernel, {one.name: one for one in spec.operations})
    assert len(placement.converted) == len(placement.matrices) == 2
    loads = [s for s in launch.kernel.statements() if isinstance(s, Load)]
    assert sorted(s.dtype.name for s in loads) == sorted(["bfloat16", name, name])


def test_scaled_weights_are_no_copy():
    """Of as many rows as are multiplied while weights are read, in 8 bits."""
    x = eqsat.input("x", (512, 4096), "bfloat16")
    w, s = eqsat.input("w", (11008, 4096), FLOAT8[0]), eqsat.input("s", (11008, 1), "float32")
    weights = eqsat.astype(eqsat.astype(w, "float32") * s, "bfloat16")
    spec = load("h200")
    (launch,) = plan(x @ weights.mT, spec, cache=Cache(None)).parts.launches
    assert any("wgmma" in rule for rule in launch.kernel.rules)
    assert launch.seconds < 110e-6
