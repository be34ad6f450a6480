"""Library calls: the host's, and a GPU's keys and selections by their very source on the CPU."""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from cuda_emulation import blocks_library

import eqsat.graph as g
from eqsat.codegen.cpu import select as numba_select
from eqsat.codegen.cuda.run import select as cuda_select
from eqsat.codegen.cuda.run.calls import INVOCATION, PACK, key_source, order_rows, unpacking
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.codegen.cuda.run.select import select_source
from eqsat.graph.dtypes import as_dtype
from eqsat.graph.meanings import order
from eqsat.graph.ordered import ordered
from eqsat.library import MOST, PART, LibraryCall, key_bits, library_call
from eqsat.specs import load

RNG = np.random.default_rng(5)
DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float64")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
EVERY_WIDTH = {"float8_e4m3fn", "bfloat16", "float32", "int64"}
WIDTHS = [
    pytest.param(name, marks=[] if name in EVERY_WIDTH else pytest.mark.slow)
    for name in (*DTYPES, *INTEGERS)
]


def call_of(tensor: g.Tensor) -> LibraryCall:
    return library_call("k", tensor, ("x", "y"), load("h200"), frozenset({INVOCATION})).kernel


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """All bits occur: NaN of either sign, infinities, zeros, subnormals; and ties."""
    kind = as_dtype(dtype)
    bits = RNG.integers(0, 256, (*shape, kind.itemsize)).astype(np.uint8)
    x = np.ascontiguousarray(bits).view(kind.numpy)[..., 0].copy()
    x[..., 1::3] = RNG.integers(0, 3, x[..., 1::3].shape).astype(kind.numpy)
    if kind.kind == "float":
        x[..., ::9] = np.array(-0.0).astype(kind.numpy)
        x[..., 1::11] = np.array(np.nan).astype(kind.numpy)
    return x


def select_of(node: g.Tensor, count: int, descending: bool, device: str) -> LibraryCall:
    tensor = ordered(node, descending, count)
    invocation = {"h200": cuda_select.INVOCATION, "cpu": numba_select.INVOCATION}[device]
    return library_call("k", tensor, ("x", "y"), load(device), frozenset({invocation})).kernel


def hidden(call: LibraryCall) -> np.ndarray:
    """A row whose first elements are all in the hands of fewer threads than are asked for."""
    (threads,) = {threads for _, threads in cuda_select.kernels(call).values()}
    vector = cuda_select.VECTOR_BYTES // call.buffers[0].dtype.itemsize
    thread = np.arange(call.length) // vector % threads % (2 * call.count)
    return (1000 * thread + RNG.integers(0, 999, call.length)).astype("f")[None]


# Blocks that end with the row and within it; some elements, and all but one.
SELECTIONS = ((64, 32, False), (201, 3, True), (1000, 999, False))
TURN = {"float8_e4m3fn": 0, "bfloat16": 1, "uint8": 2, "int64": 0}
EACH = [  # by default all of float32, and of other widths one
    pytest.param(
        dtype, *one, marks=[] if TURN.get(dtype) == turn or dtype == "float32" else pytest.mark.slow
    )
    for dtype in (*DTYPES, *INTEGERS)
    for turn, one in enumerate(SELECTIONS)
]


@pytest.mark.parametrize(("dtype", "length", "count", "descending"), EACH)
def test_a_selection_gives_the_first_of_the_order(
    dtype: str, length: int, count: int, descending: bool, tmp_path: Path
) -> None:
    """On the host."""
    x = numbers((5, length), dtype)
    call = select_of(g.input("x", x.shape, dtype), count, descending, "cpu")
    made = np.zeros(call.buffers[1].shape, np.int64)
    numba_select.numba_select(call, tmp_path)([x, made])
    wide = x.astype(as_dtype(dtype).compute.numpy)
    np.testing.assert_array_equal(made, order(wide, descending, count))


def selected(calls: Sequence[LibraryCall], rows: Sequence[np.ndarray], folder: Path):
    """What the calls' kernels give for their rows, each thread a coroutine."""
    parts = ["#define __shared__ static"]
    for number, call in enumerate(calls):
        text = select_source(call)
        parts.append(f"namespace n{number} {{\n" + text.replace('extern "C"', ""))
        for name, (_, threads) in cuda_select.kernels(call).items():
            kinds = re.search(rf"{name}\(\s*(const .*\*) given, (.*\*) made", text)
            assert kinds
            parts.append(
                f'extern "C" const char* {name}_{number}(void** p, int block) {{\n'
                f"    body = [](void** p) {{ {name}(({kinds[1]}) p[0], ({kinds[2]}) p[1]); }};\n"
                "    given = p;\n"
                f"    return run_cluster(block, 1, 1, {threads}, {threads}, 0, block % 4);\n}}"
            )
        parts.append("}")
    library = blocks_library(parts, folder)
    for number, (call, x) in enumerate(zip(calls, rows, strict=True)):
        arrays = [x, *(np.zeros(one.shape, one.dtype.numpy) for one in call.buffers[:0:-1])]
        for n, (name, (blocks, _)) in enumerate(cuda_select.kernels(call).items()):
            launch = getattr(library, f"{name}_{number}")
            launch.restype = ctypes.c_char_p
            for block in range(blocks):
                pointers = [one.ctypes.data for one in arrays[n : n + 2]]
                fault = launch((ctypes.c_void_p * 2)(*pointers), block)
                assert not fault, fault.decode()
        yield arrays[-1]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("other", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", WIDTHS)
def test_a_selection_on_a_gpu_gives_the_first_of_the_order(
    dtype: str, other: bool, tmp_path: Path
) -> None:
    """One warp and several, vectors of every length, as many elements as there are or one less."""
    rows, calls, expected = [], [], []
    for turn, (length, count) in enumerate(((2, 1), (33, 32), (200, 7), (402, 100), (3000, 256))):
        descending = bool(turn % 2) != other
        x = numbers((2, length), dtype)
        rows.append(x)
        calls.append(select_of(g.input("x", x.shape, dtype), count, descending, "h200"))
        expected.append(order(x.astype(as_dtype(dtype).compute.numpy), descending, count))
    for found, wanted in zip(selected(calls, rows, tmp_path), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_long_rows_are_selected_from_in_parts(tmp_path: Path) -> None:
    """The last part short; random elements, all equal ones, and those that few threads have."""
    rows = [RNG.normal(size=(2, PART + 1000)).astype("f"), np.zeros((1, 2 * PART + 1), "f")]
    rows += [RNG.integers(-9, 9, (1, 70000)), np.zeros((1, PART), "f")]
    calls = [
        select_of(g.input("x", x.shape, str(x.dtype)), count, True, "h200")
        for x, count in zip(rows, (9, 5, 3, MOST), strict=True)
    ]
    rows[-1] = hidden(calls[-1])
    for call, x, found in zip(calls, rows, selected(calls, rows, tmp_path), strict=True):
        np.testing.assert_array_equal(found, order(x, True, call.count))


class Stable(np.ndarray):
    """As CuPy's arrays: argsort leaves equals as they came."""

    def argsort(self, *args, **kwargs):
        return np.argsort(np.asarray(self), kind="stable").view(Stable)


def emulated(calls: Sequence[LibraryCall], rows: Sequence[np.ndarray], folder: Path):
    """What the calls give for their rows on the CPU, their kernels compiled together by g++."""
    text = "static struct { unsigned x; } blockIdx, threadIdx;\n"
    text += "#define __device__\n#define __global__\n#define __forceinline__ inline\n"
    for number, call in enumerate(calls):
        source = key_source(call)
        text += f"namespace n{number} {{\n" + source.replace('extern "C"', "")
        for name in (PACK, unpacking(call)):
            kinds = source.split(f"void {name}(")[1].split(")")[0].split(", ")
            casts = ", ".join(f"({k.rsplit(' ', 1)[0]}) p[{i}]" for i, k in enumerate(kinds))
            text += f'\nextern "C" void {name}_{number}(void** p, unsigned n) {{\n'
            text += "    for (blockIdx.x = 0; blockIdx.x * 256 < n; ++blockIdx.x)\n"
            text += "        for (threadIdx.x = 0; threadIdx.x < 256; ++threadIdx.x)\n"
            text += f"            {name}({casts});\n}}\n"
        text += "}\n"
    path = folder / "keys.cpp"
    path.write_text(text)
    subprocess.run(
        ["g++", "-O1", "-w", "-shared", "-fPIC", "-o", f"{path}.so", str(path)], check=True
    )
    library = ctypes.CDLL(f"{path}.so")

    def launched(name: str):
        def launch(given: np.ndarray, made: np.ndarray) -> None:
            pointers = (ctypes.c_void_p * 2)(given.ctypes.data, made.ctypes.data)
            getattr(library, name)(pointers, max(given.size, made.size))

        return launch

    for number, (call, x) in enumerate(zip(calls, rows, strict=True)):
        _, made, keys = call.buffers
        result = np.zeros(made.shape, made.dtype.numpy)
        room = np.zeros(keys.shape, keys.dtype.numpy).view(Stable)
        kernels = (launched(f"{name}_{number}") for name in (PACK, unpacking(call)))
        order_rows(call, *kernels, [x, result, room])
        yield result


SHAPES = ((33,), (5, 33), (2, 3, 200))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("dtype", WIDTHS)
def test_keys_order_as_elements_do(dtype: str, tmp_path: Path) -> None:
    """Every width of keys, and those that leave positions or rows no room."""
    calls, rows, expected = [], [], []
    for shape, descending in product(SHAPES, (False, True)):
        x = numbers(shape, dtype)
        node = g.input("x", shape, dtype)
        wide = x.astype(as_dtype(dtype).compute.numpy)
        places = order(wide, descending, shape[-1])
        calls.append(call_of(g.argsort(node, descending=descending)))
        expected.append(places)
        if shape[-1] == 200:
            calls.append(call_of(ordered(node, True, 17)))
            expected.append(order(wide, True, 17))
        calls.append(call_of(g.sort(node, descending=descending)))
        expected.append(np.take_along_axis(wide, places, -1))
        rows += [x] * (len(calls) - len(rows))
    for found, wanted in zip(emulated(calls, rows, tmp_path), expected, strict=True):
        np.testing.assert_array_equal(found.astype(wanted.dtype), wanted)


def test_keys_are_as_narrow_as_rows_and_positions_allow() -> None:
    bfloat16, float32, int64 = map(as_dtype, ("bfloat16", "float32", "int64"))
    assert key_bits(bfloat16, (1000,), False) == 16
    assert key_bits(bfloat16, (60, 1000), True) == 32
    assert key_bits(float32, (1 << 20, 64), True) == 64
    assert key_bits(int64, (64,), False) == 64
    assert key_bits(int64, (64,), True) == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_the_keys_compile_for_a_gpu(dtype: str) -> None:
    node = g.input("x", (4, 1000), dtype)
    for tensor in (g.sort(node), g.argsort(node)):
        assert compile_cubin(key_source(call_of(tensor)), "sm_90a").data
    for length in (1000, 100_000):
        call = select_of(g.input("x", (4, length), dtype), 20, False, "h200")
        assert not compile_cubin(select_source(call), "sm_90a").spills
