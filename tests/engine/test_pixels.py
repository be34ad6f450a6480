"""Outputs of windows as one axis of pixels: which values have one, and what is computed over it."""

import numpy as np
import pytest
from fast_products import H200, normal, planned, run, traced
from terms import Terms, mul, universe

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.targets import TARGETS
from eqsat.driver import plan
from eqsat.graph.dtypes import as_dtype, bfloat16
from eqsat.graph.index import add, const, evaluate, floordiv, mod, scale, var
from eqsat.kernel.ir import Guard, Kernel
from eqsat.layout.pixels import pixel_axes, pixel_walk, walks_windows
from eqsat.layout.relayout import walked_axes
from eqsat.planned import Planned
from eqsat.schedule.menu import schedule_menus
from eqsat.terms.algebra import Facts, Read
from eqsat.terms.form import Form, Stored, form

pytestmark = pytest.mark.usefixtures("shared_search")

COPY = "tma_load_pixels"
ALONG = "along pixels"


def convolution(shape: tuple[int, ...], out: int, window: tuple[int, ...], **options) -> g.Tensor:
    """x with channels last, or first where `layout` says so."""
    channels = shape[-1] if options.setdefault("layout", "NHWC") == "NHWC" else shape[1]
    x, w = g.input("x", shape, "bfloat16"), g.input("w", (out, channels, *window), "bfloat16")
    return g.conv(x, w, **options)


def kernels(program: Planned) -> list[Kernel]:
    """Those that run, and the alternatives."""
    found = [p.kernel for p in program.parts.launches]
    others = (o for p in program.parts.launches for a in p.alternatives for o in a)
    return [k for k in (*found, *(o.kernel for o in others)) if isinstance(k, Kernel)]


def answer(program: Planned, out: g.Tensor, apart: float = 0.0, **shapes: tuple[int, ...]) -> None:
    """The program computes what the graph says, and its trace holds, through JSON too. `apart`: by
    how much numbers may differ that the graph rounds in between.
    """
    given = {n: np.rint(3 * normal(*s)).astype(bfloat16.numpy) for n, s in shapes.items()}
    (wanted,) = g.evaluate([out], given)
    found = run(program, **given)
    np.testing.assert_allclose(found.astype(float), wanted.astype(float), rtol=apart)
    assert not traced(program, {"": ALONG, ALONG: ""}).notes


CASES = {
    "same": ((3, 9, 7, 64), (3, 3), {"padding": 1}),
    "steps": ((3, 9, 14, 64), (3, 3), {"padding": 1, "stride": 2}),
    "apart": ((2, 11, 11, 64), (3, 3), {"padding": 2, "dilation": 2}),
    "valid": ((2, 11, 11, 64), (3, 3), {}),
    "line": ((50, 37, 64), (3,), {"padding": 1}),
    "volume": ((1, 5, 5, 5, 64), (3, 3, 3), {"padding": 1}),
    "first": ((1, 64, 14, 14), (3, 3), {"padding": 1, "layout": "NCHW"}),
}


@pytest.mark.parametrize(
    "name", [n if n == "steps" else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_a_convolution_over_pixels(name):
    shape, window, options = CASES[name]
    out = convolution(shape, 64, window, **options)
    program = planned(out)
    main = program.parts.launches[-1].kernel
    assert ALONG in main.rules and "copy_pixels_" in emit(main, OPERATIONS).text
    channels = 64
    answer(program, out, x=shape, w=(64, channels, *window))


OPERATIONS = {one.name: one for one in H200.operations}


@pytest.mark.slow
def test_what_follows_is_fused():
    shape = (3, 9, 7, 64)
    out = convolution(shape, 64, (3, 3), padding=1)
    b, r = g.input("b", (64,), "bfloat16"), g.input("r", shape, "bfloat16")
    out = g.maximum(out + b + r, 0)
    program = planned(out)
    main = program.parts.launches[-1].kernel
    assert ALONG in main.rules and len(main.buffers) == 5
    answer(program, out, 2**-6, x=shape, w=(64, 64, 3, 3), b=(64,), r=shape)


def plain() -> g.Tensor:
    return convolution((4, 14, 14, 64), 64, (1, 1))


def grouped() -> g.Tensor:
    x, w = g.input("x", (2, 14, 14, 64), "bfloat16"), g.input("w", (64, 1, 3, 3), "bfloat16")
    return g.conv(x, w, groups=64, padding=1, layout="NHWC")


def heads() -> g.Tensor:
    """Products of which one factor depends on the outermost of the rows' names alone."""
    q, k = g.input("q", (4, 8, 96, 64), "bfloat16"), g.input("k", (4, 8, 64, 96), "bfloat16")
    return q @ k


def pooled() -> g.Tensor:
    return g.max_pool(g.input("x", (2, 14, 14, 64), "bfloat16"), 3, stride=1, layout="NHWC")


@pytest.mark.parametrize(
    "make", [plain, *(pytest.param(m, marks=pytest.mark.slow) for m in (grouped, heads, pooled))]
)
def test_no_pixels_where_they_are_one_axis_already_or_no_product_reads_them(make):
    program = plan(make(), H200, cache=Cache(None), candidates=6)
    assert not any(ALONG in kernel.rules for kernel in kernels(program))


@pytest.mark.slow
def test_places_apart_are_pixels_too():
    """Every second place of rows and columns, none outside: no guard tells what an image is."""
    out = convolution((32, 56, 56, 256), 512, (1, 1), stride=2)
    (launch,) = plan(out, H200, cache=Cache(None)).parts.launches
    assert ALONG in launch.kernel.rules


def test_no_pixels_without_a_copy_that_walks_windows():
    out = convolution((32, 28, 28, 128), 128, (3, 3), padding=1)
    emitted = TARGETS["cuda"].operations
    assert walks_windows(H200, emitted) and not walks_windows(H200, emitted - {
        H200.operation(COPY).invocation_name})  # fmt: skip
    less = H200.without_operation(COPY)
    assert not walks_windows(less, emitted)
    for spec, some in ((H200, True), (less, False)):
        assert (ALONG in kernels(plan(out, spec, cache=Cache(None)))[-1].rules) == some


def summed(a: str, b: str, channels: int) -> Form:
    """y[i,j] of a sum over three places k in a window and channels t."""
    over = universe(64, 64, 3, channels)
    t = Terms(over)
    factors = [t.cast("float32", t.read(x, names, "bfloat16")) for x, names in (("a", a), ("b", b))]
    stored = Stored("y", t.sum("kt", mul(*factors)), ("i", "j"), as_dtype("float32"))
    return form([stored], Facts(over))


@pytest.mark.parametrize("channels", [8, 16, 64])
def test_places_in_a_window_are_offered_one_at_a_time(channels):
    """Beside a long index they must be; beside a short one they may also lie in a tile together."""
    menus = schedule_menus(summed("ikt", "jkt", channels), H200)
    assert menus.chunks["k"] == [1] and "t" in menus.kept
    assert ("k" in menus.kept) == (channels < 32)


def test_places_are_not_offered_so_where_no_factor_has_channels_together():
    menus = schedule_menus(summed("kti", "ktj", 16), H200)
    assert menus.chunks["k"] == [] and {"k", "t"} <= {*menus.kept}


# reads of pixels

EXTENTS = {"p": 3 * 5 * 7, "c": 16, "r": 3, "s": 3}


def read(step: int = 1) -> Read:
    """x[n, i + r - 1, step j + s - 1, c] of images of 5 x (7 step), p the number of (n, i, j)."""
    p, wide = var("p"), 7 * step
    n = floordiv(p, 35, EXTENTS)
    i = add(mod(floordiv(p, 7, EXTENTS), 5, EXTENTS), var("r"), const(-1))
    j = add(scale(mod(p, 7, EXTENTS), step), var("s"), const(-1))
    rows = add(scale(n, 5 * wide), scale(i, wide), j)
    guards = (Guard(i, 0, 5), Guard(j, 0, wide))
    return Read("x", bfloat16, add(scale(rows, 16), var("c")), guards)


@pytest.mark.parametrize("step", [1, 2])
def test_the_axes_of_a_read_of_pixels(step):
    one = read(step)
    assert walked_axes(one, EXTENTS) is None
    walk, axes = pixel_walk(one, EXTENTS, "p"), pixel_axes(one, EXTENTS)
    assert walk is not None and walk.apart is None and axes is not None
    assert [(a.count, a.first, a.step) for a in walk.axes] == [(7, -1, step), (5, -1, 1), (3, 0, 1)]
    assert [a.is_plain for a in walk.axes] == [False, False, True]
    assert [axis.slides for axis in axes] == [False, True, True, False]
    for point in ({"p": 0, "c": 3, "r": 1, "s": 2}, {"p": 104, "c": 0, "r": 0, "s": 1}):
        places = [(evaluate(a.start, point) + evaluate(a.within, point)) * a.stride
                  for a in walk.axes]  # fmt: skip
        at = evaluate(one.address, point)
        assert walk.offset + sum(places) + point["c"] == at
        assert sum(evaluate(a.place, point) * a.stride for a in axes) == at


def test_other_quotients_are_no_pixels():
    half = Read("x", bfloat16, add(scale(floordiv(var("p"), 2), 16), var("c")))
    assert pixel_walk(half, EXTENTS, "p") is None  # the remainder moves nothing
    both = add(scale(floordiv(var("p"), 6), 96), scale(mod(var("p"), 4), 16), var("c"))
    assert pixel_walk(Read("x", bfloat16, both), EXTENTS, "p") is None  # 6 is no multiple of 4
    assert pixel_walk(Read("x", bfloat16, var("p")), EXTENTS, "p") is None
