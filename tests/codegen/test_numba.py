"""The Numba target against the oracle: samples, ops and dtypes, memory safety, threads, cache."""

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import kernels
import numpy as np
import pytest
from threadpoolctl import threadpool_info

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen import oracle
from eqsat.codegen.cpu import emit as numba_emit
from eqsat.codegen.cpu import scalars as numba_scalars
from eqsat.codegen.cpu import target as numba_target
from eqsat.driver import plan
from eqsat.errors import CompileError, DTypeError, UnsupportedError
from eqsat.graph.dtypes import BY_NAME, DTYPES, DType, bool_
from eqsat.graph.ops import ELEMENTWISE, OPS, Given
from eqsat.kernel.ir import Access, Axis, Buffer, Kernel, Map, Store
from eqsat.specs import load

GUARD = 64
FEW = [(1, 1, 1), (9, 17, 5)]
MORE = [(7, 15, 3), (8, 16, 4), (13, 37, 11), (31, 3, 1), (2, 1, 8)]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled kernels of this run; equal sources are compiled once."""
    return tmp_path_factory.mktemp("numba")


def run_numba(kernel: Kernel, arrays: dict[str, np.ndarray], folder: Path) -> None:
    numba_target.load(kernel, folder)([arrays[buffer.name] for buffer in kernel.buffers])


def check_sample(name: str, extents: tuple[int, int, int], folder: Path) -> None:
    sample = kernels.SAMPLES[name](*extents)
    guarded, expected = kernels.arrays(sample, GUARD), kernels.arrays(sample)
    run_numba(sample.kernel, guarded, folder)
    oracle.run(sample.kernel, expected)
    kernels.check(sample, guarded)
    for key, found in guarded.items():
        kernels.assert_close(found, expected[key].ravel(), sample.tolerance)
        before, after = found.base[:GUARD], found.base[found.size + GUARD :]
        filling = kernels.arrays(sample, GUARD)[key].base[:GUARD].tobytes()
        assert before.tobytes() == after.tobytes() == filling, f"memory around {key} was written"


SLOW = pytest.mark.slow
# By default one dtype of those whose numbers are held, and computed with, alike.
SELDOM = ("int16", "int32", "float8_e5m2")
EACH = [pytest.param(dtype, marks=SLOW if dtype.name in SELDOM else ()) for dtype in DTYPES]


@pytest.mark.parametrize(  # of size 1 by default every eighth
    ("name", "extents"),
    [
        pytest.param(name, size, marks=SLOW if size == FEW[0] and n % 8 else ())
        for n, name in enumerate(kernels.SAMPLES)
        for size in FEW
    ],
    ids=str,
)
def test_samples(name: str, extents: tuple[int, int, int], folder: Path) -> None:
    check_sample(name, extents, folder)


@SLOW
@pytest.mark.parametrize("extents", MORE, ids=str)
@pytest.mark.parametrize("name", kernels.SAMPLES)
def test_samples_at_more_sizes(name: str, extents: tuple[int, int, int], folder: Path) -> None:
    check_sample(name, extents, folder)


# --- every op and dtype ---

KERNEL_OPS = {"exp_difference": 2, "one_plus_erf": 1}  # those that no graph has, and their arity
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, -0.3, 7.25, 40]


def operands_of(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of some telling values of a dtype."""
    if dtype.kind == "float":
        values = np.array(SPECIAL)
    elif dtype.kind == "bool":
        values = np.array([False, True])
    else:
        limits = np.iinfo(dtype.numpy)
        values = [0, 1, 2, 3, 5, 7, 8, 31, 63, 100, limits.max, limits.min, limits.max - 1]
        values = np.array(values + [-1, -2, -3, -7, -128] * (dtype.kind == "int"))
    values = values.astype(dtype.numpy)
    a, b = np.meshgrid(values, values, indexing="ij")
    return np.ascontiguousarray(a.ravel()), np.ascontiguousarray(b.ravel())


@dataclass
class Operand:
    """What the table's dtype rules ask of an operand."""

    dtype: DType
    shape: tuple[int, ...] = (1,)


def result_dtype(op: str, dtype: DType) -> DType | None:
    """The dtype of the op's result on operands of a dtype; None if the table does not allow it."""
    if op in KERNEL_OPS:
        return dtype if dtype.kind == "float" else None
    kinds = [bool_, dtype, dtype] if op == "where" else [dtype] * OPS[op].arity
    try:
        return OPS[op].dtype(op, [Operand(kind) for kind in kinds], {"dtype": dtype}, Given())
    except DTypeError:
        return None


def op_kernel(ops: list[str], dtype: DType, points: int) -> Kernel:
    """One output per op, all on the same two inputs."""
    inputs = [Buffer(name, (points,), dtype, "input") for name in ("a", "b")]
    b = kernels.Body(dtype)
    for buffer in inputs:
        b.load(buffer.name, "i", kernels.at(buffer, "i"))
    b.map("less", "i", "not_equal", "a", "b", dtype=bool_)
    stores, outputs = [], []
    for op in ops:
        arity = KERNEL_OPS[op] if op in KERNEL_OPS else OPS[op].arity
        arguments = ("less", "a", "b") if op == "where" else ("a", "b")[:arity]
        result = result_dtype(op, dtype)
        assert result is not None
        b.map(f"v_{op}", "i", op, *arguments, dtype=result)
        outputs.append(Buffer(f"y_{op}", (points,), result, "output"))
        stores.append(Store(kernels.at(outputs[-1], "i"), f"v_{op}"))
    grid = (Axis("i", points, 100),)
    return Kernel("ops", (*inputs, *outputs), grid, (), (b.phase(*stores),))


@pytest.mark.parametrize("dtype", EACH, ids=str)
def test_every_op(dtype: DType, folder: Path) -> None:
    a, b = operands_of(dtype)
    ops = [op for op in sorted(numba_scalars.OPS - {"cast"}) if result_dtype(op, dtype)]
    kernel = op_kernel(ops, dtype, a.size)
    arrays = {x.name: np.zeros(a.size, x.dtype.numpy) for x in kernel.buffers} | {"a": a, "b": b}
    expected = {name: array.copy() for name, array in arrays.items()}
    run_numba(kernel, arrays, folder)
    oracle.run(kernel, expected)
    tolerance = {2: 1e-2, 4: 1e-5, 8: 1e-12}.get(dtype.itemsize, 0)
    for op in ops:
        found = arrays[f"y_{op}"]
        try:
            kernels.assert_close(found, expected[f"y_{op}"], tolerance)
        except AssertionError as error:
            raise AssertionError(f"{op} on {dtype}: {error}") from None


def test_every_op_has_a_row() -> None:
    assert numba_scalars.OPS - KERNEL_OPS.keys() == ELEMENTWISE


def test_an_op_without_a_row_is_refused() -> None:
    kernel = op_kernel(["add"], BY_NAME["float32"], 4)
    body = tuple(
        replace(s, op="frobnicate") if isinstance(s, Map) and s.op == "add" else s
        for s in kernel.phases[0].body
    )
    broken = replace(kernel, phases=(replace(kernel.phases[0], body=body),))
    with pytest.raises(UnsupportedError, match="no row for frobnicate of float32"):
        numba_emit.emit(broken)


@pytest.mark.parametrize("source", EACH, ids=str)
def test_casts(source: DType, folder: Path) -> None:
    values = [0, 1, 2, 3, 100, 127] + [-1, -3, -128] * (source.kind in ("int", "float"))
    values += [0.5, -2.75, 5.1] * (source.kind == "float") + [1000, 70000] * (source.itemsize > 2)
    x = Buffer("x", (len(values),), source, "input")
    outputs = [Buffer(f"y_{t.name}", x.shape, t, "output") for t in DTYPES]
    b = kernels.Body(source)
    b.load("a", "i", kernels.at(x, "i"))
    for target in DTYPES:
        b.map(f"c_{target.name}", "i", "cast", "a", dtype=target)
    stores = [Store(kernels.at(y, "i"), f"c_{y.dtype.name}") for y in outputs]
    grid = (Axis("i", len(values), 5),)
    kernel = Kernel("casts", (x, *outputs), grid, (), (b.phase(*stores),))
    arrays = {y.name: np.zeros(y.shape, y.dtype.numpy) for y in outputs}
    arrays["x"] = np.array(values).astype(source.numpy)
    expected = {name: array.copy() for name, array in arrays.items()}
    run_numba(kernel, arrays, folder)
    oracle.run(kernel, expected)
    for y in outputs:
        in_range = np.abs(arrays["x"].astype(float)) < 2.0 ** (8 * y.dtype.itemsize - 1)
        check = in_range & (arrays["x"].astype(float) >= 0) if y.dtype.kind == "uint" else in_range
        check |= y.dtype.kind in ("float", "bool") or source.kind != "float"
        found, wanted = (a[y.name][check].astype(float) for a in (arrays, expected))
        np.testing.assert_array_equal(found, wanted, err_msg=f"{source} to {y.dtype}")


@pytest.mark.parametrize(  # by default all of float32, and two of each other, by turns
    ("dtype", "monoid"),
    [
        pytest.param(
            dtype,
            monoid,
            marks=SLOW
            if dtype.name in SELDOM or ((n + at) % 2 and dtype.name != "float32")
            else (),
        )
        for n, dtype in enumerate(DTYPES)
        for at, monoid in enumerate(("sum", "prod", "max", "min"))
    ],
    ids=str,
)
def test_reductions_of_every_dtype(dtype: DType, monoid: str, folder: Path) -> None:
    random = np.random.default_rng(1)
    x = np.round(random.standard_normal((9, 21)) * 3).astype(dtype.numpy)
    for shape in [(9, 21), (9, 0)] if dtype.name in ("float32", "uint8") else [(9, 21)]:
        kernel = kernels.row_reduction(dtype, monoid, shape)
        source = np.ascontiguousarray(x[:, : shape[1]])
        arrays = {"x": source, "y": np.zeros(9, dtype.numpy)}
        expected = {"x": source, "y": np.zeros(9, dtype.numpy)}
        run_numba(kernel, arrays, folder)
        oracle.run(kernel, expected)
        kernels.assert_close(arrays["y"], expected["y"], 1e-2 if dtype.itemsize == 2 else 1e-5)


# --- shapes at the edge ---


NAMES = ("matmul", "matmul_blas", "matmul_whole", "matmul_batched_blas")
ZERO = ((0, 5, 3), (5, 0, 3), (5, 6, 0))


@pytest.mark.parametrize(  # by default no sums of no products of each, and another size by turns
    ("name", "extents"),
    [
        pytest.param(name, size, marks=SLOW if at == n % 2 else ())
        for n, name in enumerate(NAMES)
        for at, size in enumerate(ZERO)
    ],
    ids=str,
)
def test_zero_sizes(name: str, extents: tuple[int, int, int], folder: Path) -> None:
    check_sample(name, extents, folder)


def test_a_load_of_what_the_kernel_writes_is_not_delayed(folder: Path) -> None:
    """y = x + 1, then y = y[i,j] + y[i,0], in two phases of one tile"""
    x, y = kernels.buffers(x=(3, 8), y=(3, 8))
    b, end = kernels.Body(), kernels.Body()
    b.load("a", "i j", kernels.at(x, "i", "j"))
    b.literal("one", 1.0)
    b.map("s", "i j", "add", "a", "one")
    end.load("c", "i j", kernels.at(y, "i", "j"))
    end.load("d", "i", Access("y", kernels.at(y, "i", "j").address.__class__((("i", 8),), 0)))
    end.map("t", "i j", "add", "c", "d")
    phases = (
        b.phase(Store(kernels.at(y, "i", "j"), "s")),
        end.phase(Store(kernels.at(y, "i", "j"), "t")),
    )
    kernel = Kernel("twice", (x, y), (Axis("i", 3, 2),), (Axis("j", 8, 8),), phases)
    arrays = {"x": np.arange(24, dtype="f4").reshape(3, 8), "y": np.zeros((3, 8), "f4")}
    run_numba(kernel, arrays, folder)
    first = arrays["x"] + 1
    np.testing.assert_array_equal(arrays["y"], first + first[:, :1])


@pytest.mark.parametrize("name", ["attention_online", "attention_online_blas"])
def test_masked_first_chunks_give_no_nan(name: str, folder: Path) -> None:
    sample = kernels.SAMPLES[name](9, 40, 5)
    sample.inputs["mask"][:, :33] = -np.inf
    arrays, expected = kernels.arrays(sample), kernels.arrays(sample)
    run_numba(sample.kernel, arrays, folder)
    oracle.run(sample.kernel, expected)
    assert np.isfinite(arrays["y"]).all()
    kernels.assert_close(arrays["y"], expected["y"], 1e-4)


@pytest.mark.parametrize("name", ["attention_online", "attention_online_blas"])
def test_a_carry_may_be_rescaled_by_a_value_defined_after_its_chunk(
    name: str, folder: Path
) -> None:
    sample = kernels.SAMPLES[name](9, 17, 5)
    stream, last = sample.kernel.phases
    late = [s for s in stream.body if s.name in ("shrink", "weights", "next")]
    body = (*(s for s in stream.body if s not in late), *late)
    kernel = replace(sample.kernel, phases=(replace(stream, body=body), last))
    arrays = kernels.arrays(sample)
    run_numba(kernel, arrays, folder)
    kernels.check(sample, arrays)


def test_nan_and_infinity_pass_through_a_library_call(folder: Path) -> None:
    sample = kernels.matmul_blas(9, 17, 5)
    sample.inputs["x"][0, 0], sample.inputs["x"][1, 1] = np.nan, np.inf
    arrays, expected = kernels.arrays(sample), kernels.arrays(sample)
    run_numba(sample.kernel, arrays, folder)
    oracle.run(sample.kernel, expected)
    assert np.isnan(arrays["y"][0]).all()
    kernels.assert_close(arrays["y"], expected["y"], 1e-4)


# --- source ---


def test_library_call_reads_operands_in_place() -> None:
    source = numba_emit.emit(kernels.matmul_blas(64, 64, 64).kernel)
    call = re.search(r"gemm\((.*)\)", source)
    assert call is not None and "x_1" in call[1] and "w_2" in call[1]
    whole = numba_emit.emit(kernels.matmul_whole(64, 64, 64).kernel)
    call = re.search(r"gemm\(False, True, (.*)\)", whole)
    assert call is not None and "r_" in call[1] and "w_2" in call[1]


def test_operations_are_invoked_by_the_name_in_the_spec() -> None:
    kernel = kernels.matmul(16, 16, 16, operation="blas_gemm_f32").kernel
    assert "gemm(" not in numba_emit.emit(kernel)
    assert "gemm(" in numba_emit.emit(kernel, {"blas_gemm_f32": "cblas_gemm"})


def test_rows_of_a_fused_nest_are_scalars() -> None:
    source = numba_emit.emit(kernels.softmax_resident(16, 32, 1).kernel)
    assert source.count("= room(") == 1  # exp(x - max) of one row
    assert source.count("exp_f32(") == 1


def test_sums_of_gathered_rows_go_along_the_rows() -> None:
    """An index that chooses rows lies outside: neighbours in memory are added side by side."""
    table, ids = g.input("table", (500, 256)), g.input("ids", (64, 32), "int64")
    total = g.sum(g.take(table, ids, axis=0), axis=1)
    (launch,) = plan([total], load("cpu"), cache=Cache(None)).parts.launches
    source = numba_emit.emit(launch.kernel)
    assert source.index("in range(32)") < source.rindex("in range(256)")
    assert "accumulate" not in source


@pytest.mark.parametrize("evil", ['x"]); import os\n#', "a\nraise SystemExit", "def", "Ω", "1"])
def test_names_cannot_inject_source(evil: str, folder: Path) -> None:
    sample = kernels.transpose(5, 7, 1)
    kernel = sample.kernel
    x, y = kernel.buffers
    load = replace(kernel.phases[0].body[0], name=evil)
    load = replace(load, access=replace(load.access, buffer=evil))
    store = replace(kernel.phases[0].stores[0], value=evil)
    phase = replace(kernel.phases[0], body=(load,), stores=(store,))
    kernel = Kernel(evil, (replace(x, name=evil), y), kernel.grid, (), (phase,), spec=evil)
    arrays = {evil: sample.inputs["x"], "y": np.zeros((7, 5), "f4")}
    run_numba(kernel, arrays, folder)
    kernels.check(sample, arrays)


# --- running ---


def test_results_do_not_depend_on_threads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = kernels.matmul(257, 129, 65)
    results = []
    for threads in (1, 2, 3):
        monkeypatch.setenv("EQSAT_NUM_THREADS", str(threads))
        arrays = kernels.arrays(sample)
        run_numba(sample.kernel, arrays, folder)
        kernels.check(sample, arrays)
        results.append(arrays["y"].tobytes())
    assert len(set(results)) == 1


FAILING = """
import numpy as np

def kernel(start, stop, x):
    for tile in range(start, stop):
        if tile == 50:
            raise MemoryError
        x[tile] = tile
"""


@pytest.mark.parametrize("points", [0, 1 << 20])
def test_an_error_in_a_thread_reaches_the_caller(
    monkeypatch: pytest.MonkeyPatch, folder: Path, points: int
) -> None:
    monkeypatch.setenv("EQSAT_NUM_THREADS", "2")
    x = np.zeros(64, "f4")
    run = numba_target.load_source(FAILING, [x.dtype], 64, points, folder)
    for _ in range(3):
        with pytest.raises(MemoryError):
            run([x])
    assert x[49] == 49


def test_threads_of_python_share_the_cores(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Each call does what no core takes; threads that slept are woken."""
    monkeypatch.setenv("EQSAT_NUM_THREADS", "2")
    source = "import numpy as np\n\ndef kernel(start, stop, x):\n    x[start:stop] += 1\n"
    run = numba_target.load_source(source, [np.dtype("f4")], 4096, 1 << 20, folder)

    def many(x: np.ndarray) -> np.ndarray:
        for turn in range(200):
            run([x])
            if turn % 50 == 0:
                time.sleep(0.01)
        return x

    with ThreadPoolExecutor(4) as pool:
        for x in pool.map(many, [np.zeros(4096, "f4") for _ in range(4)]):
            np.testing.assert_array_equal(x, 200)


def test_blas_runs_on_one_thread(folder: Path) -> None:
    sample = kernels.matmul_blas(8, 8, 8)
    run_numba(sample.kernel, kernels.arrays(sample), folder)
    threads = {
        library["num_threads"]
        for library in threadpool_info()
        if library["user_api"] == "blas" and "scipy.libs" in library["filepath"]
    }
    assert threads <= {1}


def test_wrong_arrays_are_refused(folder: Path) -> None:
    sample = kernels.transpose(5, 7, 1)
    run = numba_target.load(sample.kernel, folder)
    x, y = sample.inputs["x"], np.zeros((7, 5), "f4")
    with pytest.raises(ValueError, match="buffer x has 35 contiguous elements"):
        run([x.T, y])
    with pytest.raises(ValueError):
        run([x[:4], y])
    with pytest.raises(TypeError):
        run([x.astype("f8"), y])
    with pytest.raises(ValueError):
        run([x])


def test_source_that_numba_refuses_is_shown_with_line_numbers(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"(?s)   2 def kernel.*   3     return missing"):
        source = "def kernel(start, stop):\n    return missing\n"
        numba_target.load_source(source, (), 1, 1, tmp_path)


SECOND_PROCESS = """
import sys
sys.path.insert(0, {tests!r})
import kernels
from eqsat.codegen.cpu import target
sample = kernels.attention_blas(9, 17, 5)
arrays = kernels.arrays(sample)
run = target.load(sample.kernel, {folder!r})
run([arrays[buffer.name] for buffer in sample.kernel.buffers])
kernels.check(sample, arrays)
"""


def test_second_process_does_not_compile(tmp_path: Path) -> None:
    code = SECOND_PROCESS.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    environment = os.environ | {"NUMBA_DEBUG_CACHE": "1"}
    logs = []
    for _ in range(2):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        logs.append(done.stdout)
    assert "data saved to" in logs[0]
    assert "data loaded from" in logs[1] and "data saved to" not in logs[1]
    assert not list(tmp_path.glob("*.tmp"))


def test_dear_functions_have_the_widest_vectors(folder: Path) -> None:
    """By an attribute that LLVM reads; what is cheap keeps to its choice."""
    x = g.input("x", (4096,))
    found = []
    for value in (g.exp(x), g.maximum(x, 0.0)):
        (launch,) = plan(value, "cpu", cache=Cache(None)).parts.launches
        arrays = [np.ones(4096, "f4"), np.empty(4096, "f4")]
        numba_target.load(launch.kernel, folder)(arrays)
        source = numba_target._from_a_table(numba_emit.emit(launch.kernel), [x.dtype.numpy] * 2)
        found.append("wide_vectors()" in source)
        np.testing.assert_allclose(arrays[1], np.e if found[-1] else 1, rtol=1e-6)
    assert found == [True, False]
