"""Windows that a CPU multiplies where they lie: places of an image once, tiles of any size."""

import importlib.util

import kernels
import numpy as np
import pytest
from kernel_building import Body, Sample, at, buffers

import eqsat
from eqsat.cache.store import Cache
from eqsat.codegen import oracle
from eqsat.codegen.cpu import products
from eqsat.codegen.cpu import target as numba_target
from eqsat.codegen.cpu.emit import emit
from eqsat.graph import index
from eqsat.graph.dtypes import DType, float32, float64
from eqsat.kernel.ir import Axis, Guard, Kernel, Store
from eqsat.specs import load

CALL = "windowed_"  # the routine that multiplies them


def convolution(
    image: tuple[int, int, int, int, int],
    outputs: int,
    window: tuple[int, int],
    step: int = 1,
    apart: int = 1,
    pad: int = 0,
    tiles: tuple[int, int, int, int] = (1, 99, 99, 99),
    dtype: DType = float32,
) -> Sample:
    """y[n,g,o,i,j] over c, r, s of w[g,o,c,r,s] x[n,g,c, step i + apart r - pad, ...]"""
    count, groups, channels, height, width = image
    down, right = (
        (n + 2 * pad - apart * (w - 1) - 1) // step + 1
        for n, w in zip((height, width), window, strict=True)
    )
    x, w, y = buffers(
        dtype,
        x=image,
        w=(groups, outputs, channels, *window),
        y=(count, groups, outputs, down, right),
    )
    rows, columns = (
        index.add(
            index.scale(index.var(a), step), index.scale(index.var(b), apart), index.const(-pad)
        )
        for a, b in ("ir", "js")
    )
    guards = (Guard(rows, 0, height), Guard(columns, 0, width)) if pad else ()
    b = Body(dtype)
    b.load("a", "n g i j c r s", at(x, "n", "g", "c", rows, columns, guards=guards))
    b.load("f", "g o c r s", at(w, "g", "o", "c", "r", "s"))
    b.contract("m", "n g o i j", "c r s", "f", "a", "vector_gemm")
    phase = b.phase(Store(at(y, "n", "g", "o", "i", "j"), "m"))
    sizes = {"n": count, "g": groups, "o": outputs, "i": down, "j": right}
    tile = dict(zip("noij", tiles, strict=True)) | {"g": groups}
    grid = tuple(Axis(name, size, min(tile[name], size)) for name, size in sizes.items())
    inner = tuple(Axis(n, k, k) for n, k in zip("crs", (channels, *window), strict=True))
    kernel = Kernel("convolution", (x, w, y), grid, inner, (phase,))
    random = np.random.default_rng(3)
    p = random.integers(-9, 10, image).astype(dtype.numpy)
    q = random.integers(-3, 4, w.shape).astype(dtype.numpy)
    edges = [(0, 0)] * 3 + [(pad, pad)] * 2
    padded, made = np.pad(p, edges).astype(np.float64), np.zeros(y.shape)
    for r, s in np.ndindex(window):
        first, second = apart * r, apart * s
        seen = padded[
            ..., first : first + step * down : step, second : second + step * right : step
        ]
        seen = seen[..., :down, :right]
        made += np.einsum("goc,ngcij->ngoij", q[..., r, s].astype(np.float64), seen)
    return Sample(kernel, {"x": p, "w": q}, {"y": made})


WAYS = {
    "plain": ((2, 1, 3, 9, 11), 5, (3, 3)),
    "padded": ((2, 1, 3, 9, 11), 5, (3, 3), 1, 1, 1),
    "ragged": ((1, 1, 4, 13, 21), 17, (3, 3), 1, 1, 1, (1, 7, 5, 8)),
    "row by row": ((1, 1, 4, 7, 21), 17, (3, 3), 1, 1, 1, (1, 99, 1, 99)),
    "steps": ((1, 1, 3, 14, 17), 6, (3, 3), 2, 1, 1),
    "steps, ragged, to the edge": ((2, 1, 3, 15, 17), 6, (2, 4), 3, 1, 0, (1, 4, 2, 3)),
    "apart": ((2, 1, 3, 12, 13), 6, (3, 2), 1, 2, 2),
    "steps and apart": ((1, 1, 3, 19, 18), 6, (3, 3), 2, 3, 2, (1, 99, 3, 4)),
    "many images": ((3, 1, 2, 6, 7), 4, (3, 3), 1, 1, 1, (2, 99, 99, 99)),
    "groups": ((2, 3, 2, 8, 9), 4, (3, 3), 1, 1, 1),
    "a column": ((1, 1, 3, 12, 9), 4, (3, 1), 1, 1, 1),
    "a row": ((1, 1, 3, 12, 9), 4, (1, 5), 1, 1, 2),
    "a long sum": ((1, 1, 40, 6, 6), 3, (3, 3), 1, 1, 1),
}


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_places_are_stored_once(way: str, dtype: DType) -> None:
    sample = convolution(*WAYS[way], **({} if dtype == float32 else {"dtype": dtype}))
    assert CALL in emit(sample.kernel)
    found, expected = kernels.arrays(sample), kernels.arrays(sample)
    numba_target.load(sample.kernel)([found[b.name] for b in sample.kernel.buffers])
    oracle.run(sample.kernel, expected)
    kernels.check(sample, found)
    kernels.check(sample, expected)


def test_a_factor_that_no_window_slides_over_is_packed() -> None:
    image, window = (1, 1, 8, 6, 6), (1, 1)
    assert CALL not in emit(convolution(image, 5, window).kernel)


def test_weights_that_all_tiles_share_are_packed_once() -> None:
    def packed_before(outputs: int) -> bool:
        tiles = (1, outputs, 4, 99)
        text = emit(convolution((2, 1, 3, 9, 11), 8, (3, 3), tiles=tiles).kernel)
        return text.index("= pack_left(") < text.index("for tile in range")

    assert packed_before(8) and not packed_before(4)


def test_a_value_that_others_read_too_keeps_its_windows() -> None:
    kernel = convolution((1, 1, 3, 9, 11), 5, (3, 3)).kernel
    (phase,) = kernel.phases
    b = Body()
    b.statements += phase.body
    b.reduce("t", "n g i j", "sum", "c r s", "a")
    b.map("z", "n g o i j", "add", "m", "t")
    (store,) = phase.stores
    whole = b.phase(Store(store.access, "z"))
    other = Kernel("both", kernel.buffers, kernel.grid, kernel.inner, (whole,))
    assert CALL in emit(kernel) and CALL not in emit(other)


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"dilation": 2}], ids=str)
def test_a_convolution_is_planned_so(options: dict[str, int], shared_search) -> None:
    """Channels first, where neighbours are pixels; not where they are channels."""
    x, w = eqsat.input("x", (2, 32, 30, 30)), eqsat.input("w", (32, 32, 3, 3))
    program = eqsat.compile(eqsat.conv(x, w, padding=1, **options), load("cpu"), cache=Cache(None))
    assert CALL in program.source()
    random = np.random.default_rng(5)
    a, b = (random.integers(-4, 5, t.shape).astype(np.float32) for t in (x, w))
    last = eqsat.input("x", (2, 30, 30, 32))
    other = eqsat.compile(
        eqsat.conv(last, w, padding=1, layout="NHWC", **options), load("cpu"), cache=Cache(None)
    )
    assert CALL not in other.source()
    expected = other(a.transpose(0, 2, 3, 1).copy(), b).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(program(a, b), expected)


@pytest.mark.parametrize("registers", ["avx2", "neon"])
def test_the_routine_on_other_machines(registers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    features = {"avx2": {"fma": True, "sse2": True}, "neon": {"neon": True}}[registers]
    monkeypatch.setattr(products.llvm, "get_host_cpu_features", lambda: features)
    spec = importlib.util.spec_from_file_location(f"{products.__name__}_there", products.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    random = np.random.default_rng(1)
    lanes = module.VECTOR // 4
    for m, k in ((1, 1), (module.ROWS + 3, 7), (module.HEIGHT + 1, module.DEPTH + 1)):
        n = 3 * lanes
        a = random.standard_normal((m, k)).astype(np.float32)
        terms = random.integers(0, 50, k)
        b = random.standard_normal(50 + n).astype(np.float32)
        c = np.full((m, n + 2), np.nan, np.float32)
        packed = module.pack_left(False, m, k, a.ravel(), 0, k)
        module._windowed(m, n, k, packed, b, terms, c.ravel(), n + 2)
        expected = a.astype(np.float64) @ b[terms[:, None] + np.arange(n)].astype(np.float64)
        np.testing.assert_allclose(c[:, :n], expected, rtol=1e-4, atol=1e-4)
        assert np.isnan(c[:, n:]).all()


def test_groups_between_what_is_summed(shared_search) -> None:
    """Gradients of a grouped convolution's weights: copies share a loop with calls."""
    count, groups, outputs, points, reach = 2, 2, 16, 64, 64
    random = np.random.default_rng(2)
    p = random.integers(-4, 5, (count, groups, outputs, points)).astype(np.float32)
    q = random.integers(-4, 5, (count, groups, points + reach - 1)).astype(np.float32)
    a, x = eqsat.input("a", p.shape), eqsat.input("x", q.shape)
    made = eqsat.compute(
        (groups, outputs, reach),
        lambda g, o, t: eqsat.sum_over(
            (count, points), lambda n, i: a[n, g, o, i] * x[n, g, t + i]
        ),
    )
    program = eqsat.compile(made, load("cpu"), cache=Cache(None))
    seen = np.lib.stride_tricks.sliding_window_view(q, reach, axis=-1)
    np.testing.assert_array_equal(program(p, q), np.einsum("ngoi,ngit->got", p, seen))
