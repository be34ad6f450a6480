"""Programs as a caller meets them: bad input, cut searches, outputs of every kind, caches."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest

import eqsat
import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.driver import compile, plan
from eqsat.errors import (
    ArgumentError,
    IdentifierError,
    SpecError,
)
from eqsat.graph.evaluate import topological
from eqsat.program import Program
from eqsat.saturate.saturation import Limits, SearchWarning
from eqsat.segment.finite_tensors import finite_tensors
from eqsat.specs import cpu, load

ORACLE = replace(cpu(), target="oracle")
# Multiples of a power of two: sums of their products are exact.
X = (np.arange(12, dtype=np.float32) - 5).reshape(3, 4) / 4
W = (3 - np.arange(8, dtype=np.float32)).reshape(4, 2) / 2
pytestmark = pytest.mark.usefixtures("shared_search")


def compiled(outputs: object, **options: object) -> Program:
    return compile(outputs, ORACLE, **{"cache": Cache(None), **options})  # type: ignore[arg-type]


def product() -> g.Tensor:
    return g.input("x", (3, 4)) @ g.input("w", (4, 2))


@pytest.fixture(scope="module")
def matmul(worker: object) -> Program:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eqsat.driver.SearchWorker", lambda _: _Open(worker))
        return compiled(product())


class _Open:
    """The shared search process, left running."""

    def __init__(self, worker: object) -> None:
        self.worker = worker

    def __enter__(self) -> object:
        return self.worker

    def __exit__(self, *_: object) -> None:
        pass


# --- bad arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((X.T, W), {}, r"input 'x' has shape \(4, 3\); .* compiled for \(3, 4\)\. Reshape"),
        ((X.astype(np.float64), W), {}, r"input 'x' is float64; .* for float32\. Convert"),
        ((X,), {}, r"missing w; the program's inputs are x, w"),
        ((X, W, W), {}, r"takes 2 arrays \(x, w\); got 3\. Drop the surplus"),
        ((X,), {"y": W}, r"no input 'y'; its inputs are x, w"),
        ((X,), {"x": X, "w": W}, r"input 'x' is given by position and by name; drop one"),
        ((X, W.tolist()), {}, r"input 'w' is of type list; pass a NumPy array or a DLPack array"),
        ((X, None), {}, r"input 'w' is of type NoneType; pass a NumPy array"),
    ],
)
def test_arguments_that_do_not_match(
    matmul: Program, args: tuple, named: dict, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        matmul(*args, **named)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.empty((2, 3), np.float32), r"out= is float32\[2, 3\]; the result needs .*\[3, 2\]"),
        (np.empty((3, 2), np.float64), r"out= is float64\[3, 2\]; .* float32\[3, 2\]"),
        (np.empty((2, 3), np.float32).T, r"writeable C-contiguous float32\[3, 2\]"),
        (
            np.broadcast_to(np.float32(0), (3, 2)),
            r"is float32\[3, 2\], read-only, not C-contiguous; the result needs a writeable C-cont",
        ),
        (
            [np.empty((3, 2), np.float32)] * 2,
            r"out= needs one array by itself; got 2 as \(\., \.\)\. Pass",
        ),
        ([np.empty((3, 2), np.float32)], r"out= needs one array by itself; got 1 as \(\.\)\. Pass"),
        (3.0, r"out= is of type float; pass a NumPy array"),
    ],
)
def test_out_that_cannot_take_the_result(matmul: Program, out: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        matmul(X, W, out=out)


def test_arguments_by_name_in_any_order_and_not_contiguous(matmul: Program) -> None:
    out = np.full((3, 2), nan, np.float32)
    wide = np.asfortranarray(X)
    assert matmul(w=np.repeat(W, 2, 1)[:, ::2], x=wide, out=out) is out
    np.testing.assert_allclose(out, X @ W, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": 0}, "candidates=0 is no whole number of at least 1"),
        ({"drawn": -1}, "drawn=-1 is no whole number of at least 0"),
        ({"seed": "x"}, "seed='x' is no whole number"),
        ({"tune": "yes"}, r"tune='yes' is neither True nor False\. .*; candidates= says how many"),
        ({"tune": 4}, "tune=4 is neither True nor False"),
        ({"spec": 3}, r"spec= takes a spec, .*; got a value of type int\. Pass"),
        ({"inputs": ["x"]}, r"inputs= takes tensors of eqsat.input, each once; 'x' is none"),
        ({"inputs": [g.input("x", (3,))] * 2}, "of x, x one is repeated"),
    ],
)
def test_options_that_mean_nothing(options: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        compile(g.input("x", (3,)) + 1.0, **{"spec": ORACLE, "cache": Cache(None)} | options)


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"compile takes tensors; got a value of type ndarray"):
        compiled((product(), X))


def test_inputs_that_lack_one_the_outputs_need() -> None:
    x, w = g.input("x", (3, 4)), g.input("w", (4, 2))
    with pytest.raises(IdentifierError, match=r"inputs= lacks w, which the outputs need"):
        compiled(x @ w, inputs=[x])
    with pytest.raises(IdentifierError, match=r"two inputs of the graph have the name 'x'"):
        compiled(x + g.input("x", (3, 4)))
    unused = g.input("unused", (1,))
    program = compiled(x @ w, inputs=[unused, w, x])
    assert [argument.name for argument in program.arguments] == ["unused", "w", "x"]


# --- specs ---------------------------------------------------------------------------------------


def test_unknown_specs_are_refused() -> None:
    with pytest.raises(SpecError, match=r"h2000"):
        compile(product(), "h2000")


def test_a_spec_too_small_for_any_kernel() -> None:
    part = load("example_cuda")
    memories = tuple(
        replace(m, size_bytes=64, max_per_group_bytes=4) if m.name == "registers" else m
        for m in part.memory_domains
    )
    with pytest.raises(SpecError, match=r"no schedule of k0.* fits example_cuda: .*registers"):
        plan(product(), replace(part, memory_domains=memories), cache=Cache(None))


# --- infinities and NaN where a law takes values to be finite ------------------------------------


def shifted(value: float) -> Program:
    """softmax(x + c) for a constant c that does not vary along the axis."""
    c = np.array([[0.5], [value], [1.0]], np.float32)
    return compiled(g.softmax(g.input("x", (3, 4)) + g.constant(c)))


@pytest.mark.parametrize("value", [inf, -inf, nan])
def test_a_shift_that_is_not_finite_is_not_cancelled(value: float) -> None:
    assert shifted(0.0).report.fired.get("cancel_shift")
    program = shifted(value)
    assert not program.report.fired.get("cancel_shift")
    result = program(X)
    assert np.isnan(result[1]).all() and np.isfinite(result[[0, 2]]).all()


def test_finite_and_infinite_constants_are_not_solved_alike() -> None:
    """One cache: the segments differ in nothing but what their constants hold."""
    cache, x = Cache(None), g.input("x", (3, 4))
    for value in (0.0, -inf):
        c = g.constant(np.full((3, 1), value, np.float32))
        result = compiled(g.softmax(x + c), cache=cache)(X)
        assert np.isnan(result).any() == (value == -inf)


@pytest.mark.parametrize("value", [inf, nan])
def test_products_with_infinite_constants_are_not_multiplied_out(value: float) -> None:
    """inf * (2 - 1) is inf, inf * 2 - inf * 1 is NaN."""
    w, x = g.constant(np.array([[value], [1.0]], np.float32)), g.input("x", (2, 3))
    program = compiled(w * g.sum(x, 0, keepdims=True) + g.sum(w * (x + 1.0), 1, keepdims=True))
    laws = {"swap_in_sum", "nest_sums", "distribute_in_sum", "cancel_shift"}
    assert not laws & program.report.fired.keys()


def test_a_query_without_keys_gives_nan() -> None:
    mask = np.zeros((3, 5), np.float32)
    mask[1] = -inf
    q, k, v = (g.input(n, (m, 4)) for n, m in (("q", 3), ("k", 5), ("v", 5)))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((n, 4), np.float32) for n in (3, 5, 5)]
    result = compiled(g.attention(q, k, v, mask=g.constant(mask)))(*arrays)
    assert np.isnan(result[1]).all() and np.isfinite(result[[0, 2]]).all()


def test_which_values_are_known_to_be_finite() -> None:
    x = g.input("x", (3, 4))
    masked = g.where(x > 0, x, -inf)
    known = {
        g.softmax(x): True,
        g.softmax(masked): True,
        g.layer_norm(x): True,
        g.gelu(x @ x.T): True,
        g.mean(x): True,
        g.exp(masked): True,
        g.exp(x - g.max(x, axis=1, keepdims=True)): True,
        masked: False,
        x / x: False,
        g.log(x): False,
        g.exp(-masked): False,
        x + g.constant(nan): False,
        g.pad(x, ((1, 1), (0, 0)), value=inf): False,
        g.astype(masked, "int32"): True,
    }
    found = finite_tensors(topological(list(known)))
    assert {str(t): t in found for t in known} == {str(t): v for t, v in known.items()}
    assert [t in found for t in known] == list(known.values())


# --- a search that is cut ------------------------------------------------------------------------


def test_limits_are_numbers_above_0() -> None:
    for wrong in ({"nodes": "a"}, {"nodes": 0}, {"rounds": 2.5}, {"seconds": float("nan")}):
        with pytest.raises(ArgumentError, match=r"Limits: \w+ is .* above 0. Give one"):
            Limits(**wrong)
    with pytest.raises(ArgumentError, match=r"compile: limits is 5\. Give eqsat\.Limits"):
        compiled(product(), limits=5)


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(seconds=1e-4), "over its limit of 0.0001 s; "),
        (Limits(memory_bytes=1 << 20), ""),
    ],
    ids=["seconds", "memory"],
)
def test_a_search_that_is_cut_gives_the_program_as_written(
    limits: Limits, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # a process of its own, since it dies
    cache = Cache(None)
    with pytest.warns(SearchWarning, match="Raise (its|the) limits") as warned:
        program = compiled(g.softmax(product()), limits=limits, cache=cache)
    first = str(warned[0].message)
    assert first.startswith("the search was cut: ") and why in first
    assert "the program is compiled as written" in first
    weights = np.exp(X @ W)
    np.testing.assert_allclose(program(X, W), weights / weights.sum(1, keepdims=True), rtol=1e-5)
    assert program.report.notes and not program.report.saturated and not program.report.fired
    with pytest.warns(SearchWarning):  # what was cut is not kept
        assert not compiled(g.softmax(product()), limits=limits, cache=cache).report.from_cache


def test_a_node_limit_cuts_the_search_in_time() -> None:
    program = compiled(g.softmax(product()), limits=Limits(nodes=5))
    assert not program.report.saturated
    assert compiled(g.softmax(product())).report.saturated


# --- outputs of every kind -----------------------------------------------------------------------


def test_outputs_come_back_in_the_same_nesting() -> None:
    x, w = g.input("x", (3, 4)), g.input("w", (4, 2))
    y = x @ w
    program = compiled({"y": y, "more": [x, (y, y.T)], "view": x[1:, ::2], "none": []})
    result = program(X, W)
    assert list(result) == ["y", "more", "view", "none"] and result["none"] == []
    np.testing.assert_allclose(result["y"], X @ W, rtol=1e-5)
    np.testing.assert_array_equal(result["more"][0], X)
    assert isinstance(result["more"][1], tuple)
    np.testing.assert_allclose(result["more"][1][1], (X @ W).T, rtol=1e-5)
    np.testing.assert_array_equal(result["view"], X[1:, ::2])
    assert not np.shares_memory(result["more"][0], X)
    assert not np.shares_memory(result["y"], result["more"][1][0])


def test_a_constant_and_a_position_may_be_outputs() -> None:
    program = compiled((g.constant(X), g.iota((2, 3), 1), g.constant(2.5), g.full((2,), 3)))
    whole, at, number, filled = program()
    np.testing.assert_array_equal(whole, X)
    assert at.tolist() == [[0, 1, 2]] * 2 and number == 2.5 and filled.tolist() == [3, 3]


def test_empty_operands_and_outputs() -> None:
    x, w = g.input("x", (3, 0)), g.input("w", (0, 2))
    padded = g.pad(x, ((0, 0), (1, 1)), value=2.0)
    program = compiled((x @ w, x, g.sum(x), padded, g.concat([x, g.ones((3, 1))], 1)))
    product, empty, total, ring, joined = program(
        np.empty((3, 0), np.float32), np.empty((0, 2), np.float32)
    )
    assert product.tolist() == [[0, 0]] * 3 and empty.shape == (3, 0) and total == 0
    assert ring.tolist() == [[2, 2]] * 3 and joined.tolist() == [[1]] * 3


def test_a_program_of_nothing() -> None:
    assert compiled(())() == ()
    assert compiled(g.zeros((0, 3)))().shape == (0, 3)


def test_tensors_without_dimensions() -> None:
    a, b = g.input("a", ()), g.input("b", ())
    result = compiled((a * b + 1.0, g.sum(a), g.broadcast_to(a, (2, 1))))(
        np.float32(2), np.asarray(3, np.float32)
    )
    assert result[0].shape == () and [result[0], result[1]] == [7, 2]
    assert result[2].tolist() == [[2], [2]]


# --- kinds of arrays -----------------------------------------------------------------------------


class Foreign:
    """An array of some library, known by DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_arrays_by_dlpack(matmul: Program) -> None:
    np.testing.assert_allclose(matmul(Foreign(X), Foreign(W)), X @ W, rtol=1e-5)


def test_bfloat16_arrays() -> None:
    x = g.input("x", (3, 4), "bfloat16")
    narrow = X.astype(x.dtype.numpy)
    result = compiled(x + x)(narrow)
    assert result.dtype == x.dtype.numpy
    np.testing.assert_array_equal(result, narrow + narrow)


# --- reductions of one value over several sets of axes ----------------------------------------


SETS = (("rows", "whole"), ("first", "least", "first of all"))


@pytest.mark.parametrize(
    ("name", "sets"),
    [
        ("cpu", (*SETS, ())),
        ("h200", (*SETS, ("columns", "weights", "every weight"))),
        pytest.param("h200", ((),), marks=pytest.mark.slow),
    ],
    ids=["cpu", "h200", "h200 together"],
)
def test_a_value_is_carried_over_several_sets_of_axes(name: str, sets: tuple) -> None:
    """Each about a pivot of its own: the mean of a row, and that of all rows."""
    array = np.random.default_rng(3).standard_normal((7, 127)).astype(np.float32)
    array[:, 5] += np.arange(7)
    x = g.input("x", array.shape)
    outputs = {
        "rows": g.var(x, axis=1), "whole": g.var(x), "columns": g.var(x, axis=0),
        "first": g.argmax(x, axis=1), "least": g.argmin(x, axis=1), "first of all": g.argmax(x),
        "weights": g.softmax(x), "every weight": g.exp(x - g.logsumexp(x)),
    }  # fmt: skip
    weights = np.exp(array - array.max(1, keepdims=True).astype(float))
    expected = {
        "rows": array.var(1), "whole": array.var(), "columns": array.var(0),
        "first": array.argmax(1), "least": array.argmin(1), "first of all": array.argmax(),
        "weights": weights / weights.sum(1, keepdims=True),
        "every weight": np.exp(array) / np.exp(array.astype(float)).sum(),
    }  # fmt: skip
    unit = replace(load(name), target="oracle")
    for names in sets:
        chosen = {one: outputs[one] for one in names or outputs}
        found = compile(chosen, unit, cache=Cache(None))(array)
        for one in chosen:
            np.testing.assert_allclose(found[one], expected[one], rtol=2e-4, err_msg=one)


def test_rows_taken_of_views_and_of_what_is_computed() -> None:
    v, at = g.input("v", (8,)), g.input("at", (3,), "int64")
    array, places = np.arange(8, dtype=np.float32), np.array([1, 7, 0])
    for turned, expected in ((g.roll(v, 1), np.roll(array, 1)), (v[::-1], array[::-1]),
                             (g.pad(v, [(1, 1)]), np.pad(array, 1))):  # fmt: skip
        program = compiled(g.take(turned, at) + g.take(g.exp(v) * 2.0, at), cache=Cache(None))
        found = program(v=array, at=places)
        np.testing.assert_allclose(found, expected[places] + np.exp(array)[places] * 2, rtol=1e-6)


# --- threads and caches --------------------------------------------------------------------------


def test_calls_from_several_threads(matmul: Program) -> None:
    def call(number: int) -> bool:
        scaled = X * np.float32(number)
        return np.allclose(matmul(scaled, W), scaled @ W, rtol=1e-4)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(40)))


def test_a_program_is_found_again_in_the_cache(tmp_path: Path) -> None:
    first = compiled(g.gelu(product()), cache=Cache(tmp_path / "cache"))
    again = compiled(g.gelu(product()), cache=Cache(tmp_path / "cache"))
    assert not first.report.from_cache and again.report.from_cache
    assert [k.fingerprint for k in again.kernels] == [k.fingerprint for k in first.kernels]
    assert (again.cost, again.report.fired) == (first.cost, first.report.fired)
    np.testing.assert_array_equal(again(X, W), first(X, W))
    assert not compiled(g.tanh(product()), cache=Cache(tmp_path / "cache")).report.from_cache


CHILD = """
import numpy as np
import eqsat.graph as g
from dataclasses import replace
from eqsat.driver import compile
from eqsat.specs import load
program = compile(g.tanh(g.input("x", (3, 4))), replace(load("cpu"), target="oracle"))
print(program.report.from_cache, program(np.ones((3, 4), np.float32))[0, 0])
"""


def test_another_process_finds_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path / "cache"))
    compile(g.tanh(g.input("x", (3, 4))), replace(load("cpu"), target="oracle"))
    root = Path(eqsat.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, cwd=root, check=True
    )
    assert done.stdout.split() == ["True", str(np.tanh(np.float32(1)))]


def test_an_output_over_an_input_is_refused():
    x = eqsat.input("x", (64, 64))
    program = eqsat.compile(x @ x)
    array = np.ones((64, 64), np.float32)
    with pytest.raises(ArgumentError, match="out= shares memory with input 'x'"):
        program(array, out=array)


def test_outputs_have_memory_and_names_of_their_own():
    x = g.input("x", (8,))
    program = compiled({"sum": x + 1.0, "all": (x * 2.0, x)})
    whole, array = np.empty(12, np.float32), np.arange(8, dtype=np.float32)
    for one, other in ((whole[:8], whole[:8]), (whole[:8], whole[4:])):
        with pytest.raises(ArgumentError, match="out= number 1 shares memory with one before it"):
            program(array, out={"sum": one, "all": [other, np.empty(8, np.float32)]})
    each = [np.empty(8, np.float32) for _ in range(3)]
    wrong = {"sums": each[0], "all": each[1:]}
    with pytest.raises(ArgumentError, match=r"\{'sum': \., 'all': \(\., \.\)\}; got 3 as .'sums'"):
        program(array, out=wrong)
    given = {"sum": each[0], "all": each[1:]}
    assert program(array, out=given) is given
    np.testing.assert_array_equal(each, [array + 1, array * 2, array])


def test_a_mask_is_not_lost():
    with pytest.raises(ArgumentError, match=r"'x' is a masked array, .* Pass .filled\(value\)"):
        compiled(g.input("x", (2,)) + 1.0)(np.ma.array(np.ones(2, np.float32), mask=[0, 1]))


def test_what_is_no_cache_or_no_list_is_named():
    x = g.input("x", (3,))
    with pytest.raises(ArgumentError, match=r"cache='/tmp/x' is no eqsat\.Cache"):
        compile(x + 1, ORACLE, cache="/tmp/x")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"is one tensor. Write evaluate\(\[x\], ...\)"):
        g.evaluate(x * 2, {"x": X[0, :3]})  # type: ignore[arg-type]


def test_a_product_that_the_target_cannot_write_is_named():
    unit = load("h200")
    name = "mma_m16n8k16_bf16"
    typo = unit.replace_operation(name, invocation_name="mma.sync.aligned.m16n8k16.row.cl")
    report = plan([product()], typo, cache=Cache(None)).report
    (note,) = report.notes
    assert note.startswith(f"no kernel uses {name}: target 'cuda' has no row for")
    assert "and spec h200 no native_implementation for it." in note
    assert note.endswith("Did you mean mma.sync.aligned.m16n8k16.row.col?")
    assert plan([product()], unit, cache=Cache(None)).report.notes == ()
