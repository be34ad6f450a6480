"""Programs with library calls: planned, priced, run on the host, explained, remembered."""

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.driver import compile, plan
from eqsat.errors import TraceError, UnsupportedError
from eqsat.explain.explanation import from_json, to_json
from eqsat.explain.render import render
from eqsat.explain.replay import check
from eqsat.library import LibraryCall
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")
RNG = np.random.default_rng(1)


def run(outputs, array: np.ndarray, spec="cpu"):
    program = compile(outputs, spec, cache=Cache(None))
    found = program(array)
    expected = g.evaluate(list(outputs), {"x": array})
    for one, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            np.asarray(one, "d"), np.asarray(wanted, "d"), rtol=1e-5, atol=1e-6
        )
    return program


@pytest.mark.parametrize("spec", ["cpu", "oracle"])
def test_calls_run_between_kernels(spec: str) -> None:
    """Of inputs, computed values and views; with what follows them, and as outputs."""
    x = g.input("x", (6, 50))
    made = g.exp(x) + 1.0
    outputs = (
        g.sort(x),
        g.argsort(made, 0, descending=True),
        g.sum(g.sort(g.flip(made, 1), descending=True)[:, :9], axis=1),
        *g.top_k(made, 20, largest=False),
        made,
    )
    array = RNG.normal(size=(6, 50)).astype("f")
    array[2, 7], array[3, 8] = np.nan, -0.0
    if spec == "oracle":
        unit = load("cpu")
        spec = type(unit)(
            **{f: getattr(unit, f) for f in unit.__dataclass_fields__} | {"target": "oracle"}
        )
    program = run(outputs, array, spec)
    assert {call.function for call in program.calls} == {"sort", "argsort"}
    assert "numpy_sort_32" in program.describe() and "call k0" in program.source()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "bool", "float64"])
def test_other_dtypes_run(dtype: str) -> None:
    x = g.input("x", (3, 70), dtype)
    array = RNG.integers(-2, 3, (3, 70)).astype(g.as_dtype(dtype).numpy)
    run((g.sort(x, descending=True), g.argsort(x)), array)


def test_equal_rows_are_one_search_and_known_again(tmp_path) -> None:
    x = g.input("x", (64, 32))
    outputs = (g.argsort(x), g.argsort(g.exp(x)))
    store = Cache(tmp_path)
    first = plan(outputs, "cpu", cache=store)
    again = plan(outputs, "cpu", cache=store)
    assert again.report.from_cache and again.parts == first.parts


def test_a_gpu_sorts_keys_that_are_accounted_for() -> None:
    x = g.input("x", (64, 1000), "bfloat16")
    parts = plan(g.argsort(x), "h200", cache=Cache(None)).parts
    (launch,) = parts.launches
    assert isinstance(launch.kernel, LibraryCall) and launch.kernel.operation == "cupy_radix_sort"
    keys = parts.buffers[launch.buffers[2]]
    assert (keys.role, keys.dtype.name, keys.shape) == ("temporary", "int32", (64, 1000))


def test_a_gpu_selects_from_parts_of_long_rows() -> None:
    """Few elements by a selection, its parts' keys accounted for; more than that by a sort."""
    x = g.input("x", (64, 100_000), "bfloat16")
    for k, method, keys in ((50, "select_parts", (64, 4 * 50)), (300, "radix_sort", x.shape)):
        parts = plan(g.top_k(x, k)[1], "h200", cache=Cache(None)).parts
        (launch,) = parts.launches
        assert isinstance(launch.kernel, LibraryCall)
        assert method in load("h200").operation(launch.kernel.operation).implements
        temporary = parts.buffers[launch.buffers[2]]
        assert (temporary.role, temporary.shape) == ("temporary", keys)


def test_few_elements_of_short_rows_are_found_in_kernels() -> None:
    x = g.input("x", (64, 100))
    for k, calls in ((4, 0), (5, 1), (20, 1)):
        launches = plan(g.top_k(x, k)[0], "cpu", cache=Cache(None)).parts.launches
        assert sum(isinstance(one.kernel, LibraryCall) for one in launches) == calls


@pytest.mark.parametrize(
    ("largest", "few"),
    [
        (False, 2),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((True, 3), (True, 4), (False, 4))),
    ],
)
def test_without_an_operation_few_elements_are_found_one_after_the_other(
    largest: bool, few: int
) -> None:
    spec = load("cpu").without_operation("numpy_sort_32").without_operation("select_rows_32")
    x = g.input("x", (6, 500))
    array = RNG.integers(0, 40, (6, 500)).astype("f")
    array[2, 7], array[3, 8] = np.nan, -np.inf
    outputs = (*g.top_k(x, few, largest=largest), g.top_k(x * 2.0, few - 1, largest=largest)[1])
    assert not run(outputs, array, spec).calls
    with pytest.raises(UnsupportedError, match="or select for a few elements"):
        plan(g.top_k(x, 20)[0], spec, cache=Cache(None))


def test_the_price_follows_the_spec() -> None:
    x = g.input("x", (1 << 20,))
    (few,) = [
        one
        for one in plan(g.top_k(x, 100)[1], "cpu", cache=Cache(None)).parts.launches
        if isinstance(one.kernel, LibraryCall)
    ]
    (whole,) = plan(g.argsort(x), "cpu", cache=Cache(None)).parts.launches
    assert few.kernel.method == "select" and whole.kernel.method == "compare"
    assert few.seconds < whole.seconds / 5
    slow = load("cpu").replace_operation("numpy_sort_32", throughput_per_cycle=0.021)
    (slower,) = plan(g.argsort(x), slow, cache=Cache(None)).parts.launches
    (shipped,) = plan(g.argsort(x), load("cpu"), cache=Cache(None)).parts.launches
    assert slower.seconds > 5 * shipped.seconds


def test_a_spec_without_the_operation_says_so() -> None:
    spec = load("h200").without_operation("cupy_radix_sort")
    with pytest.raises(
        UnsupportedError, match=r"no operation of spec h200 .* orders rows of float"
    ):
        plan(g.sort(g.input("x", (40,))), spec, cache=Cache(None))


def test_a_call_is_explained_and_checked() -> None:
    x = g.input("x", (8, 64))
    planned = plan(g.sort(g.exp(x)), "cpu", cache=Cache(None))
    explanation = planned.explain()
    text = render(explanation, "text")
    assert "operation  numpy_sort_32" in text and "1 kernel and 1 call" in text
    again = from_json(to_json(explanation))
    assert again == explanation
    check(again, planned.segments, planned.search.rules, planned.search.spec)
    other = planned.search.spec.without_operation("numpy_sort_32")
    with pytest.raises(TraceError, match="no operation of spec"):
        check(again, planned.segments, planned.search.rules, other)
