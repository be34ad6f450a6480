"""The sum over a window of few channels as one name, its windows taken whole or copied first."""

from dataclasses import replace

import numpy as np
import pytest
from fast_products import FAST, H200, normal, planned, run, traced

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.driver import plan
from eqsat.graph.dtypes import bfloat16
from eqsat.planned import Planned
from eqsat.specs import ParallelProcessingUnit, load

pytestmark = pytest.mark.usefixtures("shared_search")

ONE = "one sum"
CASES = {
    "stem": ((2, 29, 30, 3), (7, 7), {"padding": 3, "stride": 2}),
    "grey": ((3, 21, 20, 1), (5, 5), {}),
    "first": ((2, 3, 23, 23), (5, 5), {"padding": 2, "layout": "NCHW"}),
    "line": ((4, 203, 5), (9,), {"padding": 4, "stride": 3}),
}


def convolution(shape: tuple[int, ...], window: tuple[int, ...], **options) -> g.Tensor:
    """Into 64 channels of bfloat16."""
    channels = shape[-1] if options.setdefault("layout", "NHWC") == "NHWC" else shape[1]
    x, w = g.input("x", shape, "bfloat16"), g.input("w", (64, channels, *window), "bfloat16")
    return g.conv(x, w, **options)


def over_one_sum(out: g.Tensor, spec: ParallelProcessingUnit) -> Planned:
    """The best program whose last kernel sums over one name."""
    program = planned(out, spec, candidates=64)
    first = program.parts.launches[0]
    found = [program.parts.launches, *first.alternatives]
    chosen = next(launches for launches in found if ONE in launches[-1].kernel.rules)
    return replace(program, parts=replace(program.parts, launches=tuple(chosen)))


@pytest.mark.parametrize(
    "name", [n if n == "stem" else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_what_a_window_sums_up_is_one_sum(name):
    shape, window, options = CASES[name]
    out = convolution(shape, window, **options)
    program = over_one_sum(out, H200 if name == "line" else FAST)
    weights = (64, shape[1] if name == "first" else shape[-1], *window)
    given = {
        n: np.rint(3 * normal(*s)).astype(bfloat16.numpy)
        for n, s in {"x": shape, "w": weights}.items()
    }
    (wanted,) = g.evaluate([out], given)
    np.testing.assert_array_equal(run(program, **given).astype(float), wanted.astype(float))


@pytest.mark.parametrize("layout", ["NCHW", pytest.param("NHWC", marks=pytest.mark.slow)])
def test_a_stem_is_multiplied_where_threads_take_its_windows_whole(layout):
    """72 microseconds of 32 images on an H200, 206 where all windows are copied in memory first."""
    shape = (64, 224, 224, 3) if layout == "NHWC" else (64, 3, 224, 224)
    x, w = g.input("x", shape, "bfloat16"), g.input("w", (64, 3, 7, 7), "bfloat16")
    out = g.conv(x, w, stride=2, padding=3, layout=layout)
    program = plan(out, H200, cache=Cache(None))
    (main,) = program.parts.launches
    assert ONE in main.kernel.rules
    assert any(rule.startswith("substitute_mma") for rule in main.kernel.rules)
    source = emit(main.kernel, {one.name: one for one in H200.operations})
    assert "const unsigned short* const row" in source.text
    assert compile_cubin(source.text, "sm_90a").spills == 0
    traced(program, {ONE: ""})


def test_processors_that_copy_no_boxes_sum_over_one_name_too():
    """Threads take windows whole there as well: a third of the price of multiply-adds."""
    a100 = load("a100")
    x, w = g.input("x", (8, 100, 90, 5), "bfloat16"), g.input("w", (40, 5, 3, 3), "bfloat16")
    (launch,) = plan(g.conv(x, w, padding=2, dilation=2, layout="NHWC"), a100).parts.launches
    assert ONE in launch.kernel.rules and launch.seconds < 15e-6
    source = emit(launch.kernel, {one.name: one for one in a100.operations})
    assert compile_cubin(source.text, "sm_80").spills == 0


@pytest.mark.parametrize(
    ("channels", "dtype"),
    [
        pytest.param(channels, dtype, marks=[] if often else pytest.mark.slow)
        for channels, dtype, often in (
            (1, "float64", False), (3, "float64", True), (1, "float32", True),
            (3, "float32", False), (1, "float16", False), (3, "float16", False),
            (1, "float8_e4m3fn", True), (3, "float8_e4m3fn", False),
        )
    ],
)  # fmt: skip
def test_windows_of_every_width_of_element_have_a_price(dtype, channels):
    x, w = g.input("x", (8, 64, 64, channels), dtype), g.input("w", (32, channels, 3, 3), dtype)
    if dtype.startswith("float8"):
        x, w = g.astype(x, "bfloat16"), g.astype(w, "bfloat16")
    launches = plan(g.conv(x, w, padding=1, layout="NHWC"), H200).parts.launches
    assert 0 < sum(launch.seconds for launch in launches) < 1e-3


def test_small_windows_of_few_channels_are_multiplied_where_they_are_copied():
    """27 elements a window: copies of all windows in memory would cost more than they save."""
    x, w = g.input("x", (32, 224, 224, 3), "bfloat16"), g.input("w", (64, 3, 3, 3), "bfloat16")
    (launch,) = plan(g.conv(x, w, padding=1, layout="NHWC"), H200).parts.launches
    assert ONE in launch.kernel.rules
    assert any(rule.startswith("substitute_mma") for rule in launch.kernel.rules)


@pytest.mark.parametrize(
    ("shape", "window"),
    [
        ((2, 20, 20, 16), (3, 3)),
        ((2, 20, 20, 3), (1, 1)),
        pytest.param((2, 64, 3), (17,), marks=pytest.mark.slow),
    ],
)
def test_long_names_and_no_windows_stay_as_they_are(shape, window):
    program = planned(convolution(shape, window), candidates=32)
    first = program.parts.launches[0]
    every = [program.parts.launches, *first.alternatives]
    assert not any(ONE in one.kernel.rules for launches in every for one in launches)
