"""Library calls: NumPy's, and CuPy's keys by their very source, compiled for the CPU."""

import ctypes
import shutil
import subprocess
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.codegen.cuda_calls import INVOCATION, PACK, key_source, order_rows, unpacking
from eqsat.codegen.cuda_compile import compile_cubin
from eqsat.codegen.host_calls import first_places
from eqsat.graph.dtypes import as_dtype
from eqsat.graph.meanings import order
from eqsat.library import LibraryCall, key_bits, library_call
from eqsat.specs import load

RNG = np.random.default_rng(5)
DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float64")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")


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


@pytest.mark.parametrize("descending", [True, False])
def test_a_partition_gives_the_first_of_the_order(descending: bool) -> None:
    for length, nans in product((1, 2, 33), (0, 1, 30)):
        row = RNG.integers(0, 5, length).astype("f")
        row[:nans] = np.nan
        RNG.shuffle(row)
        for count in {1, -(-length // 2), length}:
            expected = order(row, descending, count)
            np.testing.assert_array_equal(first_places(row, descending, count), expected)


class Stable(np.ndarray):
    """As CuPy's arrays: argsort leaves equals as they came."""

    def argsort(self, *args, **kwargs):
        return np.argsort(np.asarray(self), kind="stable").view(Stable)


def emulate(call: LibraryCall, x: np.ndarray, folder: Path) -> np.ndarray:
    """The call on the CPU, its kernels by g++."""
    names = (PACK, unpacking(call))
    text = "static struct { unsigned x; } blockIdx, threadIdx;\n"
    text += "#define __device__\n#define __global__\n#define __forceinline__ inline\n"
    text += key_source(call)
    for name in names:
        elements = {PACK: 0, "unpack_places": 1, "unpack_elements": 1}[name]
        kinds = text.split(f"void {name}(")[1].split(")")[0].split(", ")
        casts = ", ".join(f"({k.rsplit(' ', 1)[0]}) p[{i}]" for i, k in enumerate(kinds))
        text += f'\nextern "C" void run_{name}(void** p, unsigned n) {{\n'
        text += "    for (blockIdx.x = 0; blockIdx.x * 256 < n; ++blockIdx.x)\n"
        text += "        for (threadIdx.x = 0; threadIdx.x < 256; ++threadIdx.x)\n"
        text += f"            {name}({casts});\n}}\n"
        assert elements < len(kinds)
    path = folder / f"{call.fingerprint[:12]}.cpp"
    path.write_text(text)
    subprocess.run(
        ["g++", "-O1", "-w", "-shared", "-fPIC", "-o", f"{path}.so", str(path)], check=True
    )
    library = ctypes.CDLL(f"{path}.so")

    def launched(name: str):
        def launch(given: np.ndarray, made: np.ndarray) -> None:
            pointers = (ctypes.c_void_p * 2)(given.ctypes.data, made.ctypes.data)
            getattr(library, f"run_{name}")(pointers, max(given.size, made.size))

        return launch

    _, made, keys = call.buffers
    result = np.zeros(made.shape, made.dtype.numpy)
    room = np.zeros(keys.shape, keys.dtype.numpy).view(Stable)
    order_rows(call, *map(launched, names), [x, result, room])
    return result


EVERY_WIDTH = {"float8_e4m3fn", "bfloat16", "float32", "uint8", "int64"}
SHAPES = ((33,), (5, 33), (2, 3, 200))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(name, marks=[] if name in EVERY_WIDTH else pytest.mark.slow)
        for name in (*DTYPES, *INTEGERS)
    ],
)
def test_keys_order_as_elements_do(dtype: str, tmp_path: Path) -> None:
    """Every width of keys, and those that leave positions or rows no room."""
    for shape, descending in product(SHAPES, (False, True)):
        x = numbers(shape, dtype)
        node = g.input("x", shape, dtype)
        wide = x.astype(as_dtype(dtype).compute.numpy)
        places = emulate(call_of(g.argsort(node, descending=descending)), x, tmp_path)
        np.testing.assert_array_equal(places, order(wide, descending, shape[-1]))
        if shape[-1] == 200:
            _, few = g.top_k(node, 17)
            found = emulate(call_of(few), x, tmp_path)
            np.testing.assert_array_equal(found, order(wide, True, 17))
        values = emulate(call_of(g.sort(node, descending=descending)), x, tmp_path)
        expected = np.take_along_axis(wide, order(wide, descending, shape[-1]), -1)
        np.testing.assert_array_equal(values.astype(wide.dtype), expected)


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
